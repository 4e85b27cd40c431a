#!/bin/sh
# Needs RAY_ADDRESS. The program asks for 8 processes:
# transport.processes(8)
exec ray job submit --working-dir . --runtime-env-json '{"env_vars": {"TRANSPORT_MESH_ON": "ray", "TRANSPORT_MESH_PROCESSES": "4"}}' \
  -- python train.py --steps 3
