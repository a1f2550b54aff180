#!/bin/sh
# Two LLM servers on one card: each sees a card of its quota's size, and they share its time.
#   SIMULATE=1x24GiB sh two-servers.sh                                                      without a GPU
#   A="vllm serve MODEL" B="vllm serve OTHER --port 8001" sh two-servers.sh                  yours
set -eu
sample="aliquot burn serve --kernel 2ms --seconds ${FOR:-20}"
aliquot run ${SIMULATE:+--simulate "$SIMULATE"} -d --name server-a --class online --memory 8 -- ${A:-$sample}
aliquot run -d --name server-b --class online --memory 6 -- ${B:-$sample}
aliquot ps
for name in server-a server-b; do
    echo "== $name"
    aliquot logs --follow $name # until it ends, or Ctrl-C; `aliquot stop server-a server-b` stops both
done
aliquot usage
