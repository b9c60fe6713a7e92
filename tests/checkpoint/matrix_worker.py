"""What each process does for test_sharded_matrix.py; run as a script.

`python matrix_worker.py FOLDER NAME save|load SOURCES...`: `NAME` is `WORLD-STRATEGY`,
as sources are; what is found is written as JSON by rank 0.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from devrun.dist import barrier, close_dist, init_dist, is_main
from devrun.errors import DevrunError
from devrun.hooks import Hook
from devrun.tensors import map_tensors
from tests.parallel.worker import Tokens, gpt, runner_of

STRATEGIES = {
    "none": {"type": "none"},
    "ddp": {"type": "ddp"},
    "fsdp": {"type": "fsdp"},
    "hybrid": {"type": "fsdp", "mesh": {"replicate": 2}},
    "tensor": {"type": "none", "mesh": {"tensor": 2}},
    "fsdptensor": {"type": "fsdp", "mesh": {"tensor": 2}},
}
BATCH = 12
UPDATES = 4
SAVED = 3
"""After so many updates, which is in the second epoch of two updates each."""


class Seen(Hook):
    """The whole state before an update, on rank 0."""

    def __init__(self, update):
        self.update, self.state = update, None

    def before_train_iter(self, runner):
        if runner.iter == self.update:
            session = runner.session
            adapter, optimizer = session.adapter, session.optimizer
            state = {
                "model": dict(adapter.model_state(session.wrapped)),
                "optimizer": adapter.optimizer_state(session.wrapped, optimizer),
            }
            self.state = map_tensors(torch.clone, state)


def equal(one, other):
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def run(name, folder, source, **saving):
    """Train to the end, from the checkpoint of `source` on if there is one."""
    strategy = name.partition("-")[2]
    model = gpt()
    seen = Seen(SAVED)
    runner = runner_of(model, parallel=STRATEGIES[strategy], max_epochs=UPDATES // 2)
    runner.register_hook(seen)
    size = BATCH // runner.adapter.data_share[1]
    root = folder / name
    if source is None:
        runner.register_checkpoint_hook(
            {"interval": 1, "by_epoch": False, "out_dir": str(root), **saving}
        )
    with closing(runner):
        if source is not None:
            runner.resume(folder / source / f"step-{SAVED:08d}")
        runner.run([DataLoader(Tokens(), size, shuffle=True)], [("train", 1)])
        weights = dict(runner.adapter.model_state(runner.session.wrapped))
    return {"seen": seen.state, "weights": weights}


def save(name, folder, **saving):
    try:
        found = run(name, folder, None, **saving)
    except DevrunError as error:
        return str(error)
    if is_main():
        torch.save(found, folder / f"{name}.pt")
    return "saved"


def load(name, folder, source):
    found = run(name, folder, source)
    if not is_main():
        return {}
    expected = torch.load(folder / f"{source}.pt")
    drift = max(
        (found["weights"][key] - value).abs().max().item()
        for key, value in expected["weights"].items()
    )
    return {
        "model": equal(found["seen"]["model"], expected["seen"]["model"]),
        "optimizer": equal(found["seen"]["optimizer"], expected["seen"]["optimizer"]),
        "drift": drift,
    }


def main():
    folder, name, what, *sources = sys.argv[1:]
    if not name.startswith("1-"):
        init_dist("pytorch", "gloo", timeout=60)
    place = Path(folder)
    if what == "save":
        saving = dict.fromkeys(sources, True)
        if "async" in saving:
            saving["max_keep_ckpts"] = 2
        found = save(name, place, **saving)
    else:
        found = {source: load(name, place, source) for source in sources}
    if is_main():
        (place / f"{what}-{name}.json").write_text(json.dumps(found))
    barrier()
    close_dist()


if __name__ == "__main__":
    main()
