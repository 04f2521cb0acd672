#!/usr/bin/env bash
# Trains on machines that find one another: the same command on each of them. One of them is the host of the rendezvous.
#
#     RENDEZVOUS=node1:29500 ./rendezvous.sh recipe.yaml
set -euo pipefail
exec torchrun \
    --nnodes "${MACHINES:-2}" --nproc-per-node "${PROCESSES:-gpu}" \
    --rdzv-backend c10d --rdzv-endpoint "$RENDEZVOUS" --rdzv-id regard \
    -m regard train "$@"
