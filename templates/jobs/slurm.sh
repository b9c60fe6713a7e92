#!/bin/bash
# add what the cluster wants, such as --partition, --account and --time
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{gres}#SBATCH --signal=USR1@120
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --requeue

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((15000 + SLURM_JOB_ID % 15000))
srun --kill-on-bad-exit=0 --cpus-per-task={cpus} devrun train {words} \
    --num-devices {processes} --max-restarts {restarts} --nnodes {nodes}{meeting}
status=$?
# 75: stopped by a signal, such as the warning before the end, and saved
if [ "$status" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
