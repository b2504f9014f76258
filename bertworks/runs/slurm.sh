#!/bin/bash
{options}

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "job $SLURM_JOB_ID on $SLURM_NNODES machines, which meet at $head"
srun bertworks {command}
status=$?
# 143: saved after SIGTERM, shortly before the time limit
if [ "$status" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
