"""A place that a hook will write in much later is tried at the start."""

import pytest

from devrun.errors import ConfigError, StorageError
from devrun.hooks.checkpoint import CheckpointHook
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import TensorboardLoggerHook
from tests.support.points import loader, make_runner

HOOKS = {
    "event files": lambda place: TensorboardLoggerHook(place),
    "checkpoints": lambda place: CheckpointHook(out_dir=place),
    "best checkpoints": lambda place: EvalHook(
        loader(), save_best="loss", out_dir=place
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("writes", HOOKS)
def test_a_place_that_cannot_be_written_is_told_before_the_first_update(
    tmp_path, writes
):
    (tmp_path / "file").write_text("mine")
    place = tmp_path / "file" / "folder"
    runner = make_runner(HOOKS[writes](place), work_dir=tmp_path / "work")
    with pytest.raises(StorageError, match="file is in the way") as caught:
        runner.run([loader()], [("train", 1)])
    assert str(place) in str(caught.value)
    assert runner.iter == 0


def test_a_best_checkpoint_needs_a_place_at_the_start():
    runner = make_runner(EvalHook(loader(), save_best="loss"))
    with pytest.raises(ConfigError, match="no work_dir to keep checkpoints in"):
        runner.run([loader()], [("train", 1)])
    assert runner.iter == 0
