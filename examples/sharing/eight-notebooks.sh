#!/bin/sh
# Eight notebooks on one card: each has 2 GiB of it, and all of its time while the others are idle.
#   SIMULATE=1x24GiB sh eight-notebooks.sh                                                   without a GPU
#   NOTEBOOK="jupyter lab --no-browser" sh eight-notebooks.sh                                yours: each takes the next free port
set -eu
sample="aliquot burn serve --kernel 2ms --period 100ms --seconds ${FOR:-20}"
for number in 1 2 3 4 5 6 7 8; do
    aliquot run ${SIMULATE:+--simulate "$SIMULATE"} -d --name notebook-$number --memory 2 -- ${NOTEBOOK:-$sample}
done
aliquot ps
for number in 1 2 3 4 5 6 7 8; do
    echo "== notebook-$number"
    aliquot logs --follow notebook-$number # until it ends, or Ctrl-C
done
aliquot usage
