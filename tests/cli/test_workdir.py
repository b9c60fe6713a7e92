import pytest

from devrun.cli.workdir import choose_work_dir, holds_run
from devrun.errors import ConfigError


def a_run_in(path):
    (path / "checkpoints" / "step-00000010").mkdir(parents=True)
    (path / "run.json").write_text("{}")
    (path / "20260101_000000.log").write_text("old")
    return path


def choose(named=None, stem="net", resume_from=None, overwrite=False):
    return choose_work_dir(named, stem, resume_from=resume_from, overwrite=overwrite)


def test_a_failed_start_does_not_take_the_default(tmp_path):
    (tmp_path / "work_dirs" / "net" / "checkpoints").mkdir(parents=True)
    assert choose().as_posix() == "work_dirs/net"


def test_auto_resume_takes_the_newest_default(tmp_path):
    a_run_in(tmp_path / "work_dirs" / "net")
    a_run_in(tmp_path / "work_dirs" / "net-2")
    assert choose(resume_from="auto").as_posix() == "work_dirs/net-2"


def test_mmcv_checkpoints_count_as_a_run(tmp_path):
    (tmp_path / "epoch_1.pth").touch()
    assert holds_run(tmp_path)


def test_resuming_from_elsewhere_does_not_write_into_another_run(tmp_path):
    checkpoint = str(a_run_in(tmp_path / "a") / "checkpoints" / "step-00000010")
    a_run_in(tmp_path / "b")
    with pytest.raises(ConfigError, match="another run"):
        choose("b", resume_from=checkpoint)
