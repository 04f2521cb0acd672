#!/usr/bin/env bash
# Trains on two machines. MASTER_ADDR is the address of machine 0, at which machine 1 finds it:
#
#     MASTER_ADDR=10.0.0.1 ./two_machines.sh 0 recipe.yaml    # on machine 0
#     MASTER_ADDR=10.0.0.1 ./two_machines.sh 1 recipe.yaml    # on machine 1
set -euo pipefail
machine=$1
shift
exec torchrun \
    --nnodes 2 --node-rank "$machine" --nproc-per-node "${PROCESSES:-gpu}" \
    --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
    -m regard train "$@"
