#!/usr/bin/env bash
# slurm_train.sh PARTITION JOB CONFIG WORK_DIR [FLAGS OF TRAIN...]: as in MMCV, with GPUS,
# GPUS_PER_NODE, CPUS_PER_TASK, PORT and SRUN_ARGS from the environment.
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
if [ -n "${PORT:-}" ]; then export MASTER_PORT=$PORT; fi
# shellcheck disable=SC2086
exec srun --partition "$partition" --job-name "$job" \
    --ntasks "$gpus" --ntasks-per-node "$per_node" \
    --gres "gpu:$per_node" --cpus-per-task "${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python3}" "$(dirname "$0")/train.py" "$config" \
    --work-dir "$work_dir" --launcher slurm "$@"
