"""What each of several processes does for test_sharded.py; run as a script.

`python sharded_worker.py FOLDER`: every function `do_*` is one scenario, in turn; what
it returns is written as JSON for its rank.
"""

import errno
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from devrun.checkpoint import (
    BackgroundWriter,
    fileops,
    list_checkpoints,
    optimizer_state_by_name,
    read_checkpoint,
    step_name,
    write_checkpoint,
)
from devrun.errors import DevrunError
from devrun.tensors import is_spread, map_tensors
from tests import failpoints


class Tied(nn.Module):
    """With what is awkward to shard: tied weights, a buffer, rows for few ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.inner = nn.Linear(3, 2)
        self.outer = nn.Linear(2, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        y = self.norm(self.embedding(x)) * self.scale
        return self.head(self.outer(torch.tanh(self.inner(y))))


class Sharded:
    """The model under FSDP, and an optimizer that has done an update."""

    def __init__(self):
        self.model = Tied()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(self.model.inner, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        generator = torch.Generator().manual_seed(dist.get_rank())
        x = torch.randint(0, 5, (4,), generator=generator)
        nn.functional.cross_entropy(self.model(x), x).backward()
        self.optimizer.step()

    def parts(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state_by_name(self.model, self.optimizer),
            "hooks": {"rank": dist.get_rank(), "seen": torch.arange(3)},
        }


def whole(tree):
    return map_tensors(lambda t: t.full_tensor() if is_spread(t) else t.clone(), tree)


def equal(one, other):
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def same(path, expected):
    """Whether a checkpoint has the weights and the optimizer's state, to the bit."""
    found = read_checkpoint(path)
    return all(
        equal(dict(found[part]), dict(expected[part]))
        for part in ("model", "optimizer")
    )


def failure_of(action):
    try:
        action()
    except DevrunError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def failing(failpoint, *, rank):
    """The file operations of one rank fail."""
    names = [*failpoints.OPERATIONS.values()]
    before = {name: getattr(fileops, name) for name in names}
    if rank == dist.get_rank():
        failpoints.arm(failpoint)
    yield
    for name, function in before.items():
        setattr(fileops, name, function)


def put(root, step, parts):
    return write_checkpoint(root, step_name(step), parts, {"step": step})


def do_save(folder):
    """Saved in pieces, read whole."""
    run = Sharded()
    expected = whole(run.parts())
    path = put(folder, 1, run.parts())
    read = read_checkpoint(path)
    return {
        "same": same(path, expected),
        "hooks": read["hooks"]["rank"],
        "tied": read["model"]["head.weight"] is read["model"]["embedding.weight"],
        "files": sorted(entry.name for entry in path.iterdir()),
    }


def do_background(folder):
    """What is saved is the state of the call, whatever training does meanwhile."""
    run, writer, found = Sharded(), BackgroundWriter(), []
    for step in (1, 2):
        expected = whole(run.parts())
        writer.save(folder, step_name(step), run.parts(), {"step": step})
        run.step()
        run.step()
        writer.wait()
        found.append(same(folder / step_name(step), expected))
    return found


def do_refused(folder):
    """A file operation that fails, on each rank in turn."""
    run = Sharded()
    expected = whole(run.parts())
    put(folder, 1, run.parts())
    said = {}
    for rank in range(dist.get_world_size()):
        for failpoint in ("open:1:EMFILE", "write:1:ENOSPC", "fsync:1:EIO"):
            with failing(failpoint, rank=rank):
                said[f"{rank} {failpoint}"] = failure_of(
                    lambda: put(folder, 2, run.parts())
                )
    dist.barrier()
    return {
        "said": said,
        "left": sorted(entry.name for entry in folder.iterdir()),
        "same": same(folder / step_name(1), expected),
    }


def do_refused_in_background(folder):
    run, writer = Sharded(), BackgroundWriter()
    with failing("write:1:ENOSPC", rank=1):
        writer.save(folder, step_name(1), run.parts(), {"step": 1})
        said = failure_of(writer.wait)
    writer.save(folder, step_name(2), run.parts(), {"step": 2})
    writer.wait()
    return said, [info.step for info in list_checkpoints(folder)]


def do_not_encodable(folder):
    """A value that only one rank cannot save: none of them writes or waits."""
    run = Sharded()
    parts = run.parts()
    if dist.get_rank() == 1:
        parts["model"]["odd"] = object()
    return failure_of(lambda: put(folder, 1, parts)), folder.exists()


def do_no_room(folder):
    run = Sharded()
    real = fileops.reserve

    def full(fd, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    fileops.reserve = full
    try:
        return failure_of(lambda: put(folder, 1, run.parts()))
    finally:
        fileops.reserve = real


def do_taken_name(folder):
    """Something that is no checkpoint stands in the way."""
    if dist.get_rank() == 0:
        folder.mkdir()
        (folder / step_name(1)).write_text("mine")
    dist.barrier()
    run = Sharded()
    return failure_of(lambda: put(folder, 1, run.parts()))


def do_not_shared(folder):
    """Each process sees another directory under the name."""
    mine = folder / str(dist.get_rank())
    mine.mkdir(parents=True)
    run = Sharded()
    said = failure_of(lambda: put(mine, 1, run.parts()))
    dist.barrier()
    return said, [path.name for path in mine.iterdir()]


def killed(folder, failpoint):
    """The last rank dies in the middle of a save; the others must end by themselves."""
    run = Sharded()
    put(folder, 1, run.parts())
    run.step()
    if dist.get_rank() == dist.get_world_size() - 1:
        failpoints.arm(failpoint)
    try:
        put(folder, 2, run.parts())
    except Exception as error:  # noqa: BLE001 - of torch's, about the peer
        Path(folder, f"ended{dist.get_rank()}").write_text(str(error))


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    if len(sys.argv) > 2:
        killed(folder, sys.argv[2])
        return
    results = {}
    for name, scenario in list(globals().items()):
        if name.startswith("do_"):
            results[name[3:]] = scenario(folder / name[3:])
            dist.barrier()
    path = folder / f"rank{dist.get_rank()}.json"
    path.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
