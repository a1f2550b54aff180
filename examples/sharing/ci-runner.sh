#!/bin/sh
# A CI job with an offline slice: it never delays online work, and waits ten minutes for room. Exits with the tests' code.
#   SIMULATE=1x24GiB sh ci-runner.sh                                                         without a GPU
#   TESTS=./test.sh sh ci-runner.sh                                                          yours
set -eu
sample="aliquot burn load --seconds ${FOR:-20}"
exec aliquot run ${SIMULATE:+--simulate "$SIMULATE"} --name "ci-${CI_JOB_ID:-$$}" --class offline --core 20 --memory 4 \
    --timeout 10m -- ${TESTS:-$sample}
