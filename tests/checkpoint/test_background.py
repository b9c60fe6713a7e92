"""Saving in the background: a copy now, the same bytes later, failures told."""

import threading

import pytest
import torch
from torch import nn

from devrun.checkpoint import (
    BackgroundWriter,
    optimizer_state_by_name,
    read_checkpoint,
    sweep_leftovers,
    write_checkpoint,
)
from devrun.checkpoint.background import HostBuffers
from devrun.errors import StorageError
from tests import failpoints
from tests.support import zygote


@pytest.fixture
def parts(trained):
    model, optimizer = trained()
    wide = torch.arange(24.0).reshape(4, 6)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer_state_by_name(model, optimizer),
        "odd": {
            "transposed": wide.t(),
            "half": wide.bfloat16(),
            "complex": torch.view_as_complex(wide.reshape(-1, 2)),
            "empty": torch.zeros(0, 3),
            "twice": [wide, wide],
        },
    }


def content(path):
    return {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.name != "MANIFEST.json"  # which has the time
    }


def test_the_bytes_are_those_of_a_save_that_is_waited_for(tmp_path, parts):
    expected = content(write_checkpoint(tmp_path / "a", "c", parts, {"step": 1}))
    writer = BackgroundWriter()
    for name in ("first", "again"):  # the second in the memory of the first
        writer.save(tmp_path / "b", name, parts, {"step": 1})
        writer.wait()
        assert content(tmp_path / "b" / name) == expected


def test_what_is_saved_is_the_state_of_the_call(tmp_path):
    line = nn.Linear(200, 200)
    before = line.weight.detach().clone()
    writer = BackgroundWriter()
    done = []
    writer.save(
        tmp_path, "c", {"model": line.state_dict()}, {"step": 1}, lambda: done.append(1)
    )
    line.weight.data.zero_()
    writer.wait()
    assert torch.equal(read_checkpoint(tmp_path / "c")["model"]["weight"], before)
    assert done == [1]


def test_at_most_one_write_is_in_flight(tmp_path):
    writer, running, most = BackgroundWriter(), [], []

    def then():
        most.append(len(running) + 1)
        running.append(1)
        threading.Event().wait(0.05)
        running.pop()

    for step in range(4):
        writer.save(tmp_path, f"c{step}", {"a": {"n": step}}, {"step": step}, then)
    writer.wait()
    assert most == [1, 1, 1, 1]
    assert len(list(tmp_path.glob("c*"))) == 4


def test_a_failure_is_logged_at_once_and_raised_once(tmp_path, monkeypatch, caplog):
    writer = BackgroundWriter()
    failpoints.arm("reserve:1:ENOSPC", monkeypatch.setattr)
    writer.save(tmp_path / "c", "c", {"a": {"n": 1}}, {"step": 1})
    with pytest.raises(StorageError, match="free some space"):
        writer.wait()
    assert "free some space" in caplog.text
    writer.wait()
    assert sweep_leftovers(tmp_path / "c") == []
    writer.save(tmp_path / "c", "c", {"a": {"n": 1}}, {"step": 1})
    writer.wait()
    assert read_checkpoint(tmp_path / "c" / "c")["a"] == {"n": 1}


def test_the_process_does_not_end_before_the_write(tmp_path, in_child):
    """As at the end of a script that never waits."""
    code = (
        "import torch; from devrun.checkpoint import BackgroundWriter\n"
        "parts = {'model': {'w': torch.ones(300_000)}}\n"
        f"BackgroundWriter().save({str(tmp_path)!r}, 'c', parts, {{'step': 1}})\n"
    )
    assert zygote.run(["-c", code], finalize=True).returncode == 0
    assert read_checkpoint(tmp_path / "c")["model"]["w"].sum() == 300_000


def test_memory_is_kept_from_copy_to_copy():
    buffers, tensors = HostBuffers(), [torch.randn(1000) for _ in range(3)]
    first = [buffers.copy(tensor) for tensor in tensors]
    assert len({copy.data_ptr() for copy in first}) == 3
    buffers.reuse()
    second = [buffers.copy(tensor) for tensor in tensors]
    assert {c.data_ptr() for c in second} == {c.data_ptr() for c in first}
    assert all(map(torch.equal, second, tensors))
