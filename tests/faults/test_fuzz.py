"""Thousands of damaged configs, options and directories: never a traceback."""

from __future__ import annotations

import copy
import os
import random
import resource
import shutil
import time

import pytest

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
from tests.config.test_fuzz import SEEDS, damaged
from tests.faults import harness
from tests.faults.harness import numbers, run

SECONDS, MEMORY = 2, 512 << 20


@pytest.mark.parametrize("count", numbers(150, 20_000))
def test_damaged_configs(count, tmp_path, figures):
    report = tmp_path / "report"
    status, said = run(read_configs, count, report, output=tmp_path / "o", seconds=1500)
    assert status == 0, said
    figures("F21", report.read_text())


def read_configs(count, report):
    """In a child of its own, which is killed for using too much memory or time."""
    draw, read, refused, slowest = random.Random(1), 0, 0, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    for number in range(count):
        suffix = draw.choice(list(SEEDS))
        text = damaged(draw, draw.choice(SEEDS[suffix]))
        start = time.process_time()
        try:
            check_config(Config.fromstring(text, suffix, import_custom_modules=False))
            read += 1
        except ConfigError as error:
            assert str(error).isprintable(), (number, text)
            refused += 1
        slowest = max(slowest, time.process_time() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    assert slowest < SECONDS, slowest
    assert grown < MEMORY, grown
    report.write_text(
        f"{count} of {count} damaged configs read ({read}) or refused in one line "
        f"({refused}), at most {slowest:.2f} s and {grown >> 20} MiB"
    )
    return 0


KEYS = ["model.hidden", "optimizer.lr", "data.samples_per_gpu", "runner.max_iters",
        "custom_hooks.0.momentum", "modle.hidden", "optimizer", "x-note", "a.b.c", "",
        ".", "model.", "custom_hooks.99.a", "model.__class__",
        "data..train"]  # fmt: skip
VALUES = ["1", "1e-3", "null", "[1,2", "{a: 1}", "dict(a=1)", "[" * 500, "9" * 5000,
          "!!python/object:os.system", "__import__('os')", "\ud800", "\n", "é", "'",
          "nan", "${env:HOME}", "${env:", "{{ _base_.x }}", "*a", "&a 1", "a: b: c",
          "range(10**9)", "1,2,3", "(1,)", "True", "~", "0x", "1_000"]  # fmt: skip


@pytest.mark.parametrize("count", numbers(300, 5000))
def test_options_of_the_command(count, tmp_path, capsys, figures):
    path = harness.write_config(tmp_path)
    whole = Config.fromfile(path, import_custom_modules=False)
    draw = random.Random(2)
    read = refused = 0
    for _ in range(count):
        key, value = draw.choice(KEYS), draw.choice(VALUES)
        if draw.random() < 0.3:
            key = damaged(draw, key or "k")
        if draw.random() < 0.3:
            value = damaged(draw, value)
        words = [str(path), "--cfg-options", f"{key}={value}"]
        try:
            arguments = parser_of("train").parse_args(words)
            cfg = copy.deepcopy(whole)
            cfg.merge_from_dict(arguments.cfg_options or {})
            check_config(cfg)
            read += 1
        except ConfigError as error:
            assert str(error).isprintable(), words
            refused += 1
        except SystemExit as stop:
            assert stop.code == 2
            said = capsys.readouterr().err
            assert "Traceback" not in said
            refused += 1
    assert read > count // 20
    figures(
        "F22",
        f"{count} of {count} options taken ({read}) or refused in one line ({refused})",
    )


class Directory:
    """Random saves, damage and removals; a whole checkpoint is never lost."""

    def __init__(self, root, draw):
        self.root, self.draw = root, draw
        self.step, self.keep = 0, draw.randint(1, 5)
        self.had_one = False
        self.foreign = []

    def save(self):
        self.step += 1
        parts = {"model": {"w": self.draw.random()}}
        write_checkpoint(self.root, step_name(self.step), parts, {"step": self.step})
        self.had_one = True

    def save_best(self):
        self.save()
        write_pointer(self.root, "best", step_name(self.step), self.step)

    def tidy(self):
        prune(self.root, self.keep)

    def sweep(self):
        sweep_leftovers(self.root)

    def damage(self):
        whole = self.whole()
        if len(whole) > 1:  # somebody damages all but one
            path = self.draw.choice(whole)
            file = self.draw.choice(sorted(path.iterdir()))
            file.write_bytes(file.read_bytes()[:-1])

    def die_in_a_write(self):
        name = f".tmp-{step_name(self.step + 1)}-{self.draw.randbytes(6).hex()}"
        (self.root / name).mkdir(parents=True)
        (self.root / name / "model.json").write_text("{")

    def put_a_stranger(self):
        path = self.root / f"notes-{len(self.foreign)}"
        path.mkdir(parents=True)
        (path / "My Notes.txt").write_text("keep")
        self.foreign.append(path / "My Notes.txt")

    def whole(self):
        return harness.whole(self.root)


@pytest.mark.parametrize("count", numbers(15, 2000))
def test_retention(count, tmp_path, caplog, figures):
    for number in range(count):
        draw = random.Random(number)
        place = Directory(tmp_path / str(number), draw)
        place.root.mkdir()
        moves = [place.save, place.save, place.save_best, place.tidy, place.tidy,
                 place.sweep, place.damage, place.die_in_a_write,
                 place.put_a_stranger]  # fmt: skip
        for _ in range(draw.randint(3, 14)):
            draw.choice(moves)()
            caplog.clear()
            if place.had_one:
                assert place.whole(), number
                assert find_latest(place.root) == place.whole()[-1]
            assert all(path.read_text() == "keep" for path in place.foreign)
        shutil.rmtree(place.root)
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
