"""What each process does for test_streaming.py; run as a script."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun.dist import barrier, close_dist, gather_objects, init_dist
from devrun.hooks import Hook
from devrun.runners import IterBasedRunner
from tests.data.test_streaming import Lines, Sliced

UPDATES = 9  # of 3 samples: more than an epoch of a share


class Model(nn.Module):
    """The loss depends on the samples and on their order."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch):
        return {"loss": (self.weight - batch.float()).square().mean() / 100}


class Seen(Hook):
    def __init__(self):
        self.batches = []

    def before_train_iter(self, runner):
        self.batches.append(runner.data_batch.tolist())


def counted(run, data):
    """How many samples all processes evaluate, and their sum."""
    loader = run.session.loader(DataLoader(data, batch_size=3), training=False)
    mine = [value for batch in loader for value in batch.tolist()]
    every = [value for rank in gather_objects(mine) for value in rank]
    return [len(every), sum(every)]


def main(folder, files, source):
    if "RANK" in os.environ:
        init_dist("pytorch", "gloo", timeout=60)
    rank = os.environ.get("RANK", "0")
    model, seen = Model(), Seen()
    run = IterBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        device="cpu",
        seed=1,
        max_iters=UPDATES,
        work_dir=str(folder / (source or "first")),
    )
    run.register_hook(seen)
    run.register_checkpoint_hook({"interval": 1, "by_epoch": False})
    if source:
        run.resume(folder / "first" / "checkpoints" / "step-00000005")
    data = Lines(files, shuffle=True)
    run.run([DataLoader(data, batch_size=3)], [("train", 1)])
    found = {
        "seen": seen.batches,
        "weights": model.weight.item(),
        "counted": {
            "files": counted(run, Lines(files)),
            "numbers": counted(run, Sliced(11)),
            "map": counted(run, list(range(11))),
        },
    }
    (folder / f"{source or 'whole'}-{rank}.json").write_text(json.dumps(found))
    barrier()
    close_dist()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
