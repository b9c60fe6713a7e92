#!/bin/bash
# add what the cluster wants, such as --partition, --account and --time
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={processes}
#SBATCH --cpus-per-task={cpus}
{gres}#SBATCH --signal=USR1@120
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --requeue

srun --kill-on-bad-exit=0 --wait=60 --cpus-per-task={cpus} \
    devrun train {words} --launcher slurm
status=$?
# 75: stopped by a signal, such as the warning before the end, and saved
if [ "$status" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
