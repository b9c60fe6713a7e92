"""What each process does for test_gaudi.py: as worker.py, over emulated HCCL."""

import json
import sys
from contextlib import closing
from pathlib import Path

import torch

from devrun import dist
from tests.parallel.worker import GAUDI, averaged, gpt, runner_of, train

SHARDS = {"type": "fsdp"}
TENSOR = {"mesh": {"tensor": 2}}
HYBRID = {**SHARDS, "mesh": {"replicate": 2}}


def found(folder):
    """Of trainings that share the group of a runner that stays open."""
    with closing(runner_of(gpt(), device=GAUDI)):
        return {
            "rank": dist.get_dist_info()[0],
            "groups": torch.distributed.get_backend_config(),
            "fsdp": train(SHARDS, accumulate=3, device=GAUDI),
            "hybrid": train(HYBRID, device=GAUDI),
            "tensor": train(TENSOR, accumulate=3, device=GAUDI),
            "fsdp bf16": train(SHARDS, device=GAUDI, update={"precision": "bf16"}),
            "tensor bf16": train(TENSOR, device=GAUDI, update={"precision": "bf16"}),
            "saved": averaged(folder / "saved", SHARDS, device=GAUDI),
            "saved in parts": averaged(folder / "parts", TENSOR, device=GAUDI),
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    results = found(place)
    (place / f"rank{results['rank']}.json").write_text(json.dumps(results))
