#!/usr/bin/env bash
# dist_train.sh CONFIG PROCESSES [FLAGS OF TRAIN...]: as in MMCV, one process a device.
# For several machines, on each: NNODES, MASTER_ADDR and PORT.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG PROCESSES [FLAGS OF TRAIN...]" >&2
    exit 2
fi
config=$1 processes=$2
shift 2
machines=()
if [ "${NNODES:-1}" -gt 1 ]; then
    machines=(--nnodes "$NNODES"
        --rdzv-endpoint "${MASTER_ADDR:-127.0.0.1}:${PORT:-29500}")
fi
exec "${PYTHON:-python3}" "$(dirname "$0")/train.py" "$config" \
    --num-devices "$processes" ${machines[@]+"${machines[@]}"} "$@"
