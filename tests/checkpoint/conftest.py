"""A small model with an optimizer that has moments, and whole checkpoints of it."""

import os
import signal
import warnings

import pytest
import torch
from torch import nn

from devrun.checkpoint import (
    optimizer_state_by_name,
    prepare_optimizer_state,
    write_checkpoint,
)
from devrun.tensors import map_tensors
from tests import failpoints


@pytest.fixture
def trained():
    """(model, optimizer) after a few steps of AdamW."""

    def build(seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        return model, optimizer

    return build


@pytest.fixture
def save(tmp_path, trained):
    """Writes a checkpoint of a model seeded by `step`; its path."""

    def write(step, root=None, name=None, seed=None, **meta):
        model, optimizer = trained(step if seed is None else seed)
        parts = {
            "model": model.state_dict(),
            "optimizer": optimizer_state_by_name(model, optimizer),
            "trainer": {"epoch": step, "note": "after"},
        }
        meta = {"step": step, "run_id": "run", **meta}
        return write_checkpoint(
            root or tmp_path / "checkpoints", name or f"step-{step:08d}", parts, meta
        )

    return write


@pytest.fixture
def in_child():
    """Runs a function in a forked child; its exit status, negative for a signal."""

    def run(function, failpoint=None):
        with warnings.catch_warnings():  # the child only writes files and exits
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            status = 70
            try:
                if failpoint is not None:
                    failpoints.arm(failpoint)
                function()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return run


@pytest.fixture
def killed():
    return -signal.SIGKILL


def equal(first, second):
    """Whether two trees are the same: types, shapes, dtypes and bits."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and first.shape == second.shape
            and bits(first) == bits(second)
        )
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            equal(first[key], second[key]) for key in first
        )
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, float):
        return repr(first) == repr(second)
    if hasattr(first, "dtype"):  # NumPy
        same = first.dtype == second.dtype and first.shape == second.shape
        return bool(same and first.tobytes() == second.tobytes())
    return bool(first == second)


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.fixture
def same():
    return equal


def load_optimizer_state_by_name(model, optimizer, tree):
    """Check `tree` and load a copy of it."""
    copied = map_tensors(torch.Tensor.clone, tree)
    prepare_optimizer_state(model, optimizer, copied)()
