"""Thousands of damaged options and directories: never a traceback."""

import copy
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from devrun.checkpoint import (
    find_latest,
    list_checkpoints,
    prune,
    step_name,
    sweep_leftovers,
    write_checkpoint,
    write_pointer,
)
from devrun.cli.main import parser_of
from devrun.config import Config, check_config
from devrun.errors import ConfigError
from tests.config.test_fuzz import PIECES
from tests.faults import harness
from tests.faults.harness import numbers
from tests.fuzzing import damaged, examples

KEYS = ["model.hidden", "optimizer.lr", "data.samples_per_gpu", "runner.max_iters",
        "custom_hooks.0.momentum", "modle.hidden", "optimizer", "x-note", "a.b.c", "",
        ".", "model.", "custom_hooks.99.a", "model.__class__",
        "data..train"]  # fmt: skip
VALUES = ["1", "1e-3", "null", "[1,2", "{a: 1}", "dict(a=1)", "[" * 500, "9" * 5000,
          "!!python/object:os.system", "__import__('os')", "\ud800", "\n", "é", "'",
          "nan", "${env:HOME}", "${env:", "{{ _base_.x }}", "*a", "&a 1", "a: b: c",
          "range(10**9)", "1,2,3", "(1,)", "True", "~", "0x", "1_000"]  # fmt: skip


@pytest.mark.parametrize("count", numbers(200, 5000))
def test_options_of_the_command(count, tmp_path, capsys, figures):
    path = harness.write_config(tmp_path)
    whole = Config.fromfile(path, import_custom_modules=False)
    read = refused = 0

    @examples(count)
    @given(
        st.sampled_from(KEYS) | damaged(KEYS, PIECES),
        st.sampled_from(VALUES) | damaged(VALUES, PIECES),
    )
    def taken(key, value):
        nonlocal read, refused
        words = [str(path), "--cfg-options", f"{key}={value}"]
        try:
            arguments = parser_of("train").parse_args(words)
            cfg = copy.deepcopy(whole)
            cfg.merge_from_dict(arguments.cfg_options or {})
            check_config(cfg)
            read += 1
        except ConfigError as error:
            assert str(error).isprintable()
            refused += 1
        except SystemExit as stop:
            assert stop.code == 2
            assert "Traceback" not in capsys.readouterr().err
            refused += 1

    taken()
    assert read > count // 20
    figures(
        "F22",
        f"{count} of {count} options taken ({read}) or refused in one line ({refused})",
    )


class Directory(RuleBasedStateMachine):
    """Saves, damage and removals in any order; a whole checkpoint is never lost."""

    @initialize(keep=st.integers(1, 5), saved=st.integers(0, 12))
    def begin(self, keep, saved):
        self.root = Path(tempfile.mkdtemp(prefix="faults-"))
        self.keep, self.step = keep, 0
        self.whole, self.foreign = [], []
        """Steps that must verify, and files of somebody else."""
        for _ in range(saved):
            self.save(best=False)

    def teardown(self):
        shutil.rmtree(self.root)

    @rule(best=st.booleans())
    def save(self, best):
        self.step += 1
        about = {"step": self.step}
        parts = {"model": {"w": self.step}}
        write_checkpoint(self.root, step_name(self.step), parts, about)
        if best:
            write_pointer(self.root, "best", step_name(self.step), self.step)
        self.whole.append(self.step)

    @rule()
    def tidy(self):
        removed = {path.name for path in prune(self.root, self.keep)}
        gone = [step for step in self.whole if step_name(step) in removed]
        self.whole = [step for step in self.whole if step not in gone]
        good = [info for info in list_checkpoints(self.root) if not info.problem]
        assert not gone or len(good) >= self.keep > 0
        assert max(gone, default=0) < max(self.whole, default=1)

    @rule()
    def sweep(self):
        sweep_leftovers(self.root)
        assert harness.leftovers(self.root) == []

    @precondition(lambda self: len(self.whole) > 1)
    @rule(newest=st.booleans(), shorter=st.booleans())
    def damage(self, newest, shorter):
        """The newest or the oldest, of all but one."""
        step = self.whole.pop(-1 if newest else 0)
        path = self.root / step_name(step) / "model.json"
        data = path.read_bytes()
        path.write_bytes(data[:-1] if shorter else data[:-1] + b" ")

    @rule(number=st.integers(0, 3))
    def die_in_a_write(self, number):
        place = self.root / f".tmp-{step_name(self.step + 1)}-{number:012x}"
        place.mkdir(exist_ok=True)
        (place / "model.json").write_text("{")

    @rule()
    def put_a_stranger(self):
        path = self.root / f"notes-{len(self.foreign)}" / "My Notes.txt"
        path.parent.mkdir()
        path.write_text("keep")
        self.foreign.append(path)

    @invariant()
    def nothing_is_lost(self):
        found = [int(path.name[5:]) for path in harness.whole(self.root)]
        assert found == self.whole
        if found:
            assert find_latest(self.root).name == step_name(found[-1])
        assert all(path.read_text() == "keep" for path in self.foreign)


@pytest.mark.parametrize("count", numbers(30, 2000))
def test_retention(count, tmp_path, monkeypatch, figures):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_state_machine_as_test(Directory, settings=examples(count, steps=14))
    figures("F27", f"{count} of {count} random histories kept a whole checkpoint")


def test_the_tenth_is_newer_than_the_ninth(tmp_path):
    """By number, not by text: also where the names grow by a digit."""
    for step in (9, 10, 99_999_999, 100_000_000):
        write_checkpoint(tmp_path, step_name(step), {"m": {"w": 1}}, {"step": step})
    prune(tmp_path, 1)
    assert [info.step for info in list_checkpoints(tmp_path)] == [100_000_000]
    assert sorted(n for n in os.listdir(tmp_path) if n.startswith("step")) == [
        step_name(100_000_000)
    ]
