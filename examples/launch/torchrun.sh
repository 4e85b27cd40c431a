#!/bin/sh
# On every node, with NODE_RANK from 0 and MASTER_ADDR, the host of node 0. All nodes
# need the same secret: TRANSPORT_SECRET_FILE, or a home directory that they share.
export TRANSPORT_MESH_ON=ranks
exec torchrun --nnodes=2 --nproc-per-node=4 \
  --node-rank="${NODE_RANK:?}" --master-addr="${MASTER_ADDR:?}" \
  --master-port="${MASTER_PORT:-29500}" train.py --steps 3
