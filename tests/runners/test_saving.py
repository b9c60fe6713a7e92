"""When a run saves: in the background, on a full disk, beside another run."""

import errno

import pytest

from devrun.checkpoint import list_checkpoints
from devrun.errors import StorageError
from devrun.hooks import EvalHook, Hook
from tests import failpoints
from tests.support.noisy import loader, runner, same, weights


def started(work_dir, limit=6, hooks=(), **config):
    run = runner(False, limit, work_dir=work_dir)
    run.register_checkpoint_hook({"interval": 2, "by_epoch": False, **config})
    for hook in hooks:
        run.register_hook(hook)
    return run


def steps(work_dir):
    return [info.step for info in list_checkpoints(work_dir / "checkpoints")]


@pytest.fixture
def full_at(tmp_path, monkeypatch):
    """The disk refuses the n-th checkpoint of a run."""
    started(tmp_path / "probe", 2).run([loader()])
    (path,) = (tmp_path / "probe" / "checkpoints").glob("step-*")
    files = len(list(path.iterdir()))

    def arm(nth):
        first = (nth - 1) * files + 1
        failpoints.arm(f"reserve:{first}:ENOSPC", monkeypatch.setattr)

    return arm


@pytest.mark.parametrize("background", [False, True])
def test_async_saves_the_same(tmp_path, background):
    run = started(tmp_path / "a", **{"async": background, "max_keep_ckpts": 2})
    run.run([loader()])
    assert steps(tmp_path / "a") == [4, 6]
    again = runner(False, 6, work_dir=tmp_path / "a")
    again.resume("auto")
    assert again.iter == 6
    assert same(weights(again), weights(run))


def test_the_best_checkpoint_is_saved_in_the_background_too(tmp_path):
    best = EvalHook(loader(shuffle=False), interval=2, by_epoch=False, save_best="loss")
    run = started(tmp_path, hooks=[best], **{"async": True})
    run.run([loader()])
    names = {info.path.name for info in list_checkpoints(tmp_path / "checkpoints")}
    (first,) = [name for name in names if name.startswith("best_loss_iter_")]
    assert run.meta["hook_msgs"]["best_ckpt"].endswith(first)
    assert first in (tmp_path / "checkpoints" / "best.json").read_text()


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_does_not_end_the_run(tmp_path, full_at, capsys, background):
    full_at(2)
    run = started(tmp_path, **{"async": background})
    run.run([loader()])
    assert run.iter == 6
    assert steps(tmp_path) == [2, 6]
    assert "training goes on without it" in capsys.readouterr().err


@pytest.mark.parametrize("background", [False, True])
def test_an_end_that_is_not_saved_is_an_error(tmp_path, monkeypatch, background):
    def broken(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(Hook):
        def after_train_iter(self, runner):
            if runner.iter + 1 == 6:
                monkeypatch.setattr("devrun.checkpoint.fileops.reserve", broken)

    run = started(tmp_path, hooks=[Full()], **{"async": background})
    with pytest.raises(StorageError):
        run.run([loader()])
    assert 2 in steps(tmp_path)
    assert 6 not in steps(tmp_path)


def test_going_back_sets_later_checkpoints_aside(tmp_path):
    run = started(tmp_path)
    run.run([loader()])
    again = started(tmp_path, 4)
    again.resume(tmp_path / "checkpoints" / "step-00000002")
    again.run([loader()])
    assert steps(tmp_path) == [2, 4]
    aside = tmp_path / "checkpoints" / "previous-1"
    assert [info.step for info in list_checkpoints(aside)] == [4, 6]
