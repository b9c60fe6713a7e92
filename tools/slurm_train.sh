#!/usr/bin/env bash
# slurm_train.sh PARTITION JOB CONFIG WORK_DIR [FLAGS OF TRAIN...]: as in MMCV, with GPUS,
# GPUS_PER_NODE, CPUS_PER_TASK, PORT and SRUN_ARGS from the environment. Slurm starts one
# torchrun a machine, which starts the processes there.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB CONFIG WORK_DIR [FLAGS OF TRAIN...]" >&2
    exit 2
fi
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-8}
if [ "$gpus" -lt "$per_node" ]; then per_node=$gpus; fi
if [ $((gpus % per_node)) -ne 0 ]; then
    echo "GPUS=$gpus is no multiple of GPUS_PER_NODE=$per_node" >&2
    exit 2
fi
nodes=$((gpus / per_node))
export NNODES=$nodes PORT="${PORT:-29500}"
# the words below are for the shell that runs on each machine
# shellcheck disable=SC2016
exec srun --partition "$partition" --job-name "$job" \
    --nodes "$nodes" --ntasks "$nodes" --ntasks-per-node 1 \
    --gres "gpu:$per_node" --cpus-per-task $((${CPUS_PER_TASK:-5} * per_node)) \
    --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    bash -c 'NODE_RANK=$SLURM_NODEID MASTER_ADDR=$(scontrol show hostnames \
        "$SLURM_JOB_NODELIST" | head -n 1) exec "$0" "$@"' \
    "$(dirname "$0")/dist_train.sh" "$config" "$per_node" --work-dir "$work_dir" "$@"
