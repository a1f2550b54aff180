#!/bin/sh
# A server, and fine-tuning that gets the time which the server leaves: a request interrupts it in the middle of a kernel.
#   SIMULATE=1x24GiB sh server-and-finetuning.sh                                             without a GPU
#   SERVER="vllm serve MODEL" FINETUNING="python train.py" sh server-and-finetuning.sh       yours
set -eu
server="aliquot burn serve --kernel 2ms --seconds ${FOR:-20}"
finetuning="aliquot burn load --seconds ${FOR:-20}"
aliquot run ${SIMULATE:+--simulate "$SIMULATE"} -d --name server --class online --memory 8 -- ${SERVER:-$server}
aliquot run -d --name finetuning --class offline --core 50 --memory 10 -- ${FINETUNING:-$finetuning}
aliquot ps
for name in server finetuning; do
    echo "== $name"
    aliquot logs --follow $name # until it ends, or Ctrl-C; `aliquot stop server finetuning` stops both
done
aliquot usage
