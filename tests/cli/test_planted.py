"""What a config names, or a work_dir holds, leads the files of a run nowhere else."""

import json
import os
import sys
from datetime import datetime, timedelta

import pytest

from devrun.errors import ConfigError
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import WandbLoggerHook
from tests.support.points import loader

MINE = "mine, and of no run\n"


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "home" / "settings.json"
    file.parent.mkdir()
    file.write_text(MINE)
    return file


@pytest.fixture
def work_dir(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def soon(suffix):
    """Names of the logs of a run that starts within a minute."""
    now = datetime.now()
    seconds = (now + timedelta(seconds=s) for s in range(60))
    return [f"{second:%Y%m%d_%H%M%S}{suffix}" for second in seconds]


PLACES = {
    "the lock": lambda: ["run.lock"],
    "the log": lambda: soon(".log"),
    "the log of values": lambda: soon(".log.json"),
    "the record": lambda: ["run.json"],
    "the config": lambda: ["config.yaml"],
    "the new config": lambda: [".config.yaml"],
}


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_in_a_work_dir_is_not_written_through(
    config, train, victim, work_dir, place, link
):
    for name in PLACES[place]():
        link(victim, work_dir / name)
    status, _, said = train(config(), "--work-dir", work_dir)
    assert victim.read_text() == MINE
    assert "Traceback" not in said
    if status:
        assert status in (2, 8)
        assert "a link, or no regular file, stands there" in said.splitlines()[-1]
    else:
        assert json.loads((work_dir / "run.json").read_text())["status"] == "done"
        assert not (work_dir / "config.yaml").is_symlink()


def test_a_link_to_a_folder_takes_no_checkpoints(config, train, victim, work_dir):
    (work_dir / "checkpoints").symlink_to(victim.parent)
    status, _, said = train(config(), "--work-dir", work_dir, "--resume-from", "auto")
    assert status == 2
    assert "is a link, which devrun does not follow" in said.splitlines()[-1]
    assert [file.name for file in victim.parent.iterdir()] == [victim.name]


@pytest.mark.parametrize("kind", ["a pipe", "a pipe by a link", "brackets", "size"])
def test_a_record_that_cannot_be_read_keeps_no_run_from_going_on(
    config, train, work_dir, kind
):
    record = work_dir / "run.json"
    if kind == "brackets":
        record.write_text("[" * 200_000)
    elif kind == "size":
        record.write_text(json.dumps({"status": "running", "x": " " * (1 << 20)}))
    else:
        pipe = work_dir / "pipe" if "link" in kind else record
        os.mkfifo(pipe)
        if pipe != record:
            record.symlink_to(pipe)
    status, _, said = train(config(), "--work-dir", work_dir, "--resume-from", "auto")
    assert (status, "Traceback" in said) == (0, False)
    assert json.loads(record.read_text())["status"] == "done"


def test_a_state_names_no_best_checkpoint_elsewhere():
    hook = EvalHook(loader(), save_best="loss")
    best = [0.5, "../../other/step-00000001"]
    hook.load_state_dict({"best": best, "key_indicator": "loss", "rule": "less"})
    assert hook.best.entry == (0.5, "step-00000001")


@pytest.mark.parametrize(
    "init", [{"settings": {}}, {"save_code": True}, {"config": "/etc/passwd"}, []]
)
def test_a_config_tells_wandb_only_what_to_record(monkeypatch, init):
    monkeypatch.setitem(sys.modules, "wandb", pytest)  # it is not asked for anything
    with pytest.raises(ConfigError, match="init_kwargs"):
        WandbLoggerHook(init_kwargs=init)
