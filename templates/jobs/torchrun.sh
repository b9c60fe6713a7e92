torchrun --nproc-per-node {processes} --nnodes {nodes} --max-restarts {restarts} \
    --rdzv-backend c10d --rdzv-endpoint "${{HEAD:-localhost}}:29500" \
    -m devrun train {words} --launcher pytorch
