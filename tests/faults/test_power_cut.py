"""The power goes at any moment: what was acknowledged is there, and whole."""

import ast
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from devrun.checkpoint import (
    list_checkpoints,
    prune,
    read_pointer,
    step_name,
    sweep_leftovers,
    verify_checkpoint,
    write_checkpoint,
)
from devrun.checkpoint.catalog import set_others_aside
from devrun.checkpoint.sharded import ShardedSnapshot
from devrun.errors import CheckpointError
from devrun.hooks import Hook
from devrun.runners import IterBasedRunner
from tests.faults import harness
from tests.faults.powercut import Disk, Recorder, materialise

WORK = Path("new/work")
"""The run's own directory, which nobody has synced, nor the one it lies in."""
MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_place(tmp_path):
    """A directory in memory where there is one."""
    place = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else tmp_path))
    yield place
    shutil.rmtree(place)


def lost(place, acknowledged):
    """What a start after the cut finds wrong; None when nothing is."""
    root = place / WORK / "checkpoints"
    try:
        sweep_leftovers(root)
        for info in list_checkpoints(root):
            if (problem := info.problem) is not None:
                return problem
            verify_checkpoint(info.path)
    except (CheckpointError, OSError) as error:
        return str(error)
    places = [root, *root.glob("previous-*")]
    steps = [info.step for place in places for info in list_checkpoints(place)]
    if max(steps, default=0) < acknowledged:
        return f"step {acknowledged} was acknowledged, there are {steps}"
    pointer = root / "latest.json"
    named = read_pointer(root, "latest")
    if pointer.is_dir():
        return None
    if pointer.exists() and named is None:
        return "latest.json is torn"
    if acknowledged and (named is None or named < step_name(acknowledged)):
        return f"latest.json names {named} after step {acknowledged}"
    return None


def first_loss(log, place):
    """(cuts made, what the first harmful one did or None)."""
    disk, acknowledged, seen, cuts = Disk(), 0, set(), 0
    for operation in log:
        disk.apply(operation)
        if operation[0] == "acknowledged":
            acknowledged = operation[1]
        for tree in disk.states():
            key = hash((acknowledged, frozenset(tree.items())))
            if key in seen:
                continue
            seen.add(key)
            cuts += 1
            target = materialise(tree, place / str(cuts))
            wrong = lost(target, acknowledged)
            shutil.rmtree(target)
            if wrong is not None:
                return cuts, wrong
    return cuts, None


def recorded(place, save):
    """The log of `save(root, mark)`, which marks what it has acknowledged."""
    place.mkdir(exist_ok=True)
    recorder = Recorder(place)
    with recorder.recording():
        save(place / WORK / "checkpoints", recorder.mark)
    return recorder.log


def by_hand(root, mark):
    """Three checkpoints, the second written twice, of which one is kept."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for step, value in ((1, 1.0), (2, 2.0), (2, 2.5), (3, 3.0)):
        parts = {"model": {"w": torch.full((2,), value)}}
        write_checkpoint(root, step_name(step), parts, {"step": step})
        mark(step)
        prune(root, 1)


class Mark(Hook):
    """Tells of each update after which a checkpoint is complete."""

    priority = "LOWEST"

    def __init__(self, mark):
        self.mark = mark

    def after_train_iter(self, runner):
        if runner.checkpointer.last_saved_iter == runner.iter + 1:
            self.mark(runner.iter + 1)


def by_a_run(root, mark):
    """Three updates of a runner, each saved, of which one is kept."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    runner = IterBasedRunner(
        model,
        optimizer=optimizer,
        loss=nn.MSELoss(),
        device="cpu",
        seed=1,
        max_iters=3,
        work_dir=root.parent,
    )
    runner.register_checkpoint_hook(
        {"interval": 1, "by_epoch": False, "max_keep_ckpts": 1}
    )
    runner.register_hook(Mark(mark))
    x = torch.ones(3, 2)
    runner.run([[(x, x[:, :1])] * 3], [("train", 1)])
    runner.close()


def without_pointer(root, mark):
    """A checkpoint counts although something is in the way of `latest.json`."""
    root.parent.mkdir(parents=True)
    write_checkpoint(root, step_name(0), {"model": {"w": 0}}, {"step": 0})
    (root / "latest.json").unlink()
    (root / "latest.json").mkdir()
    by_hand(root, mark)


def after_another_run(root, mark):
    """The checkpoints of another run are set aside, then there are new ones."""
    root.parent.mkdir(parents=True)
    parts = {"model": {"w": torch.zeros(2)}}
    about = {"step": 7, "run_id": "other"}
    write_checkpoint(root, step_name(7), parts, about)
    mark(7)
    set_others_aside(root, "mine")


def in_pieces(root, mark):
    """Two checkpoints of a weight that is divided over processes, of which one is."""
    from torch.distributed.device_mesh import init_device_mesh  # of torch 2.2 and 2.5
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for step in (1, 2):
            weight = distribute_tensor(torch.full((2,), float(step)), mesh, [Shard(0)])
            shards = ShardedSnapshot.take({"model": {"w": weight}}, {"step": step})
            shards.write(root, step_name(step))
            mark(step)
    finally:
        dist.destroy_process_group()


SCENARIOS = [by_hand, without_pointer, after_another_run, in_pieces]
NOT_NEEDED = {"sweep_leftovers", "set_others_aside"}
"""Whose renames the sync of the next checkpoint covers: it is in the same directory."""


@pytest.mark.parametrize("save", [*SCENARIOS, by_a_run])
def test_a_cut_at_any_operation_loses_nothing(save, tmp_path, quick_place, figures):
    log = recorded(tmp_path, save)
    cuts, wrong = first_loss(log, quick_place)
    assert wrong is None, wrong
    figures(
        "F3",
        f"{cuts} of {cuts} states of a disk that keeps only what was synced lost "
        f"nothing, at {len(log)} operations ({save.__name__.replace('_', ' ')})",
    )


def test_each_fsync_is_needed(tmp_path, quick_place, figures):
    """Whichever call of `fsync` is left out, a cut then loses something."""
    noticed = set()
    for save in SCENARIOS:
        log = recorded(tmp_path / save.__name__, save)
        for number, (kind, *rest) in enumerate(log):
            if kind != "fsync":
                continue
            if rest[1] not in noticed:
                rest_of_log = log[:number] + log[number + 1 :]
                if first_loss(rest_of_log, quick_place / "cut")[1] is not None:
                    noticed.add(rest[1])
    needed = calls_of_sync()
    assert noticed == needed, "an fsync that no cut misses, or that no scenario meets"
    figures("F3", f"{len(noticed)} of {len(needed)} calls of fsync cannot be left out")


def calls_of_sync():
    """`file:line` of each call of `fileops.sync` in the package."""
    found = set()
    for path in (harness.ROOT / "devrun").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func).startswith("fileops.sync")
                    and function.name not in NOT_NEEDED
                ):
                    found.add(f"{path.name}:{node.lineno}")
    return found


def test_the_recorder_misses_nothing(tmp_path, quick_place):
    """The log, replayed to its end, gives the directory that is there."""
    log = recorded(tmp_path, by_hand)
    disk = Disk()
    for operation in log:
        disk.apply(operation)
    *_, last = disk.states()  # everything has reached the disk
    found = {
        str(path.relative_to(tmp_path)): path.read_bytes() if path.is_file() else None
        for path in tmp_path.rglob("*")
    }
    assert last == found
