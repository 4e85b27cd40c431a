#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --gpus-per-node=h100:4

export TRANSPORT_MESH_ON=ranks
export TRANSPORT_MESH_PROCESSES=4
exec srun --no-kill --kill-on-bad-exit=0 --wait=0 python train.py --steps 3
