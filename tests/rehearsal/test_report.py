"""`devrun report`: what the page says is what the run logged."""

import csv
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from devrun.hooks import HOOKS, Hook
from tests.support import zygote
from tests.support.observe import records

OTHER = {"type": "SGD", "lr": 0.05}


def log_of(work_dir):
    return next(work_dir.glob("*.log.json"))


def validations(work_dir):
    return [r for r in records(work_dir) if r.get("mode") == "val"]


def held(page):
    """The data that the page's program reads."""
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(data)


def state_of(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def copied(trained, tmp_path, name="copy"):
    return shutil.copytree(trained(), tmp_path / name)


def test_the_curves_are_those_of_the_log_and_the_run_stays_as_it_is(
    trained, report, tmp_path
):
    before = state_of(trained())
    page = tmp_path / "page.html"
    assert report(trained(), "-o", page) == (0, f"{page}\n", "")
    (run,) = held(page)["runs"]
    logged = [r for r in records(trained()) if r.get("mode") == "train"]
    (loss,) = [c for c in run["curves"] if (c["name"], c["mode"]) == ("loss", "train")]
    assert loss["steps"] == [r["step"] for r in logged] == [2, 4, 6, 8]
    assert loss["values"] == [r["loss"] for r in logged]
    assert loss["seconds"] == sorted(loss["seconds"])
    assert state_of(trained()) == before


def test_two_runs_are_compared_with_the_differences_of_their_configs(trained, report):
    second = trained("second", optimizer=OTHER)
    status, out, _ = report(trained(), second, "--json", "--watts", 100)
    data = json.loads(out)
    assert (status, data["schema"]) == (0, "devrun.report/4")
    assert data["config"] == {"optimizer.lr": [0.1, 0.05]}
    assert [run["name"] for run in data["runs"]] == ["first", "second"]
    first = data["runs"][0]
    facts, figures = first["facts"], first["figures"]
    assert (facts["device"]["name"], facts["status"]) == ("cpu", "done")
    assert figures["J"] == pytest.approx(100 * facts["duration_seconds"])
    assert figures["energy"] == "by --watts"
    assert sum(first["shares"].values()) == pytest.approx(figures["seconds"])
    scores = [r["accuracy"] for r in validations(trained())]
    assert figures["accuracy"] == scores[-1]
    # the record has it whole, the log rounded
    assert figures["best accuracy"] == pytest.approx(max(scores), abs=1e-5)


def test_a_run_that_nobody_holds_is_lost_if_it_was_of_this_machine(
    trained, report, tmp_path
):
    work_dir = copied(trained, tmp_path)
    facts = json.loads((work_dir / "run.json").read_text())
    (work_dir / "run.json").write_text(json.dumps({**facts, "status": "running"}))

    def status():
        (run,) = json.loads(report(work_dir, "--json")[1])["runs"]
        assert run["facts"]["heard"].startswith("20")
        return run["facts"]["status"]

    assert status() == "lost"
    code = "import sys, devrun.lock as l; l.lock_directory(sys.argv[1]); input()"
    command = [sys.executable, "-c", code, str(work_dir)]
    with subprocess.Popen(command, stdin=-1, cwd=zygote.ROOT) as other:
        while f'"pid": {other.pid},' not in (work_dir / "run.lock").read_text():
            time.sleep(0.01)
        assert status() == "running"
        other.kill()
    assert status() == "lost"
    lock = json.loads((work_dir / "run.lock").read_text())
    (work_dir / "run.lock").write_text(json.dumps({**lock, "host": "elsewhere"}))
    assert status() == "running"


def test_a_resumed_run_is_one_with_all_its_parts(trained, report, tmp_path):
    work_dir = copied(trained, tmp_path)
    old = [r["loss"] for r in records(work_dir) if r.get("mode") == "train"]
    again = [
        {"mode": "train", "step": step, "loss": 10.0 + step, "time": 1.0}
        for step in (6, 8, 10)
    ]
    newer = work_dir / "99991231_000000.log.json"
    newer.write_text("".join(json.dumps(record) + "\n" for record in again))
    facts = json.loads((work_dir / "run.json").read_text())
    part = {
        "started": "2026-01-01T00:00:00+0000",
        "status": "interrupted",
        "error": "stopped by SIGTERM after 4 iterations",
        "duration_seconds": 100.0,
        "seconds": {"compute": 90.0},
    }
    (work_dir / "run-20260101_000000.json").write_text(json.dumps(part))
    (run,) = json.loads(report(work_dir, "--json")[1])["runs"]
    (loss,) = [c for c in run["curves"] if (c["name"], c["mode"]) == ("loss", "train")]
    assert loss["steps"] == [2, 4, 6, 8, 10]
    assert loss["values"] == [*old[:2], 16.0, 18.0, 20.0]
    whole = 100 + facts["duration_seconds"]
    assert run["figures"]["seconds"] == pytest.approx(whole)
    assert sum(run["shares"].values()) == pytest.approx(whole)
    assert run["bound"].startswith("compute: ")
    assert run["earlier"][0]["error"] == "stopped by SIGTERM after 4 iterations"


def test_the_table_has_the_best_run_first(trained, report, tmp_path):
    second = trained("second", optimizer=OTHER)
    worse = copied(trained, tmp_path, "worse")
    log = log_of(worse)
    last = {"mode": "val", "step": 90, "accuracy": 0.001}
    log.write_text(f"{log.read_text()}{json.dumps(last)}\n")
    words = ("--sort", "accuracy", "--keys", "optimizer.lr", "--watts", "10")
    status, out, err = report(worse, trained(), second, "--table", *words)
    assert (status, err) == (0, "")
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:3] == ["run", "status", "optimizer.lr"] and "J" in head
    column = head.index("accuracy")
    scores = [float(row[column]) for row in rows]
    assert scores == sorted(scores, reverse=True) and rows[-1][0] == "worse"
    assert {row[0]: row[2] for row in rows}["second"] == "0.05"
    status, out, _ = report(worse, second, "--csv", "--sort", "loss")
    head, *rows = list(csv.reader(out.splitlines()))
    losses = [float(row[head.index("loss")]) for row in rows]
    assert status == 0 and losses == sorted(losses)


def test_what_is_damaged_is_said_and_the_rest_is_shown(trained, report, tmp_path):
    work_dir = copied(trained, tmp_path)
    log = log_of(work_dir)
    odd = '{"mode": "train", "step": 9, "loss": "NaN"}\n{"mode": "train", "st'
    log.write_text(log.read_text() + odd)
    (work_dir / "run.json").write_text('{"status": ')
    (work_dir / "config.yaml").unlink()
    os.mkfifo(work_dir / "b.log")
    os.mkfifo(work_dir / "b.log.json")
    (work_dir / "e.log.json").write_text(f"{'x' * (3 << 20)}\n")
    status, out, _ = report(work_dir, "--json")
    (run,) = json.loads(out)["runs"]
    assert status == 0
    assert [line.partition(":")[0] for line in run["problems"]] == [
        log.name, "b.log.json cannot be read", "e.log.json",
        "run.json cannot be read", "config.yaml is not there", "b.log cannot be read",
    ]  # fmt: skip
    assert run["problems"][2].endswith("damaged lines left out: 1")
    (loss,) = [c for c in run["curves"] if (c["name"], c["mode"]) == ("loss", "train")]
    assert loss["values"][-1] == "NaN"
    page = tmp_path / "page.html"
    assert report(work_dir, "-o", page)[0] == 0
    assert "b.log cannot be read: " in page.read_text()


def test_words_of_a_log_are_never_markup_and_secrets_stay_hidden(
    trained, report, tmp_path
):
    evil = "</script><script>document.title='ran'</script>"
    work_dir = copied(trained, tmp_path, "a<b>")
    log = log_of(work_dir)
    record = {"mode": "train", "step": 9, evil: 1.0}
    log.write_text(log.read_text() + json.dumps(record) + "\n")
    text = next(p for p in work_dir.glob("*.log"))
    warning = (
        f"2026-01-01 00:00:00,000 - devrun - WARNING - {evil} api_key=abcd1234efgh"
    )
    text.write_text(f"{warning}\n    more\n{warning}\n    more\n")
    page = tmp_path / "page.html"
    assert report(work_dir, "-o", page)[0] == 0
    source = page.read_text()
    assert evil not in source and "<b>" not in source
    assert "abcd1234efgh" not in source
    assert "2 times" in source
    assert evil in [curve["name"] for curve in held(page)["runs"][0]["curves"]]


ODD = {
    "lone surrogates": ({"device": "\ud800", "command": "<\udfff>"}, "device"),
    "no numbers": ({"best": {"score": math.nan, "metric": "acc"}}, "samples"),
    "no end": ({"duration_seconds": math.inf, "seconds": {"data": math.nan}}, "time"),
    "its end": ({"stopped": "loss <b> is low enough"}, "loss &lt;b&gt; is low enough"),
    "other kinds": (
        {"versions": 3, "device": [1], "git": {"a": {}}},
        "revision",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_any_facts_give_a_page(trained, report, tmp_path, name):
    work_dir = copied(trained, tmp_path)
    facts, said = ODD[name]
    (work_dir / "run.json").write_text(json.dumps(facts))
    log = log_of(work_dir)
    lines = [
        {"mode": "val", "step": 9, "acc": math.nan},
        {"mode": "train", "step": 90, "time": 1e308, "loss": 1e308},
    ]
    log.write_text(log.read_text() + "".join(f"{json.dumps(x)}\n" for x in lines))
    status, _, err = report(work_dir, "-o", tmp_path / "page.html", "--watts", "1e300")
    assert (status, err) == (0, "")
    assert said in (tmp_path / "page.html").read_text()
    assert report(work_dir, "--json")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: WORK_DIR"),
        (("nowhere",), "'nowhere' is no folder of a run: neither *.log.json nor run"),
        (("x" * 5000,), "x' is no folder of a run"),
        (("file",), "'file' is no folder of a run"),
        (("run", "-o", "no/such/page.html"), "choose another place by -o"),
        (("run", "--watts", "-1"), "'-1' is not a number of 0 or more, nor one a run"),
        (("run", "--price", "1,2,3"), "--price has 3 numbers for 1 runs; give one, or"),
        (("run", "--target", "accuracy"), "'accuracy' is not such as accuracy=0.9"),
        (("run", "--target", "acuracy=1"), "--target acuracy is in no validation of"),
        (("run", "--sort", "loss"), "--sort is of the table; add --table or --csv"),
        (("run", "--table", "--sort", "los"), "'los' is in none of these runs; did"),
    ],
)
def test_bad_input_is_one_line(trained, report, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    copied(trained, tmp_path, "run")
    (tmp_path / "file").write_text("")
    status, out, err = report(*words)
    assert status == (8 if "-o" in words else 2)
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_what_runs_cost_to_a_target_and_against_each_other(trained, report, tmp_path):
    dear = copied(trained, tmp_path, "dear")
    lines = [{"mode": "train", "step": step, "time": 36.0, "samples_per_sec": 2.0}
             for step in (50, 100)]  # fmt: skip
    lines[1:1] = [{"mode": "val", "step": 50, "accuracy": 0.7}]
    lines.append({"mode": "val", "step": 100, "accuracy": 0.9})
    log_of(dear).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    cheap = shutil.copytree(dear, tmp_path / "cheap")
    lines = [{**line, **({"time": 9.0} if "time" in line else {})} for line in lines]
    log_of(cheap).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = ("--target", "accuracy=0.9", "--watts", "100,200", "--price", "10")
    out = report(dear, cheap, "--csv", *words)[1]
    first, second = csv.DictReader(out.splitlines())
    # 100 updates of 36 s: an hour at 100 W
    assert float(first["seconds to accuracy"]) == pytest.approx(3600)
    assert float(first["J to accuracy"]) == pytest.approx(360_000)
    assert float(first["money to accuracy"]) == pytest.approx(10)
    # a quarter of the time at twice the power
    assert float(second["seconds ratio"]) == pytest.approx(4)
    assert float(second["J ratio"]) == pytest.approx(2)
    assert float(second["money ratio"]) == pytest.approx(4)
    assert report(dear, cheap, "-o", tmp_path / "page.html", *words)[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "<td>money to accuracy</td><td>10</td><td>2.5</td>" in page
    unreached = report(cheap, "--csv", "--target", "accuracy=0.95")[1]
    assert "to accuracy" not in unreached


def test_measured_energy_goes_before_the_power_given(
    tmp_path, report, monkeypatch, trained
):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("9999999")
    counter = package / "energy_uj"
    counter.write_text("8000000")
    monkeypatch.setattr("devrun.devices.cpu.POWERCAP", tmp_path)

    class Burn(Hook):
        """5 J an update, on a counter that begins again after 10."""

        def after_train_iter(self, runner):
            counter.write_text(str((int(counter.read_text()) + 5_000_000) % 10_000_000))

    monkeypatch.setitem(HOOKS.module_dict, "Burn", Burn)
    hooks = [{"type": "Burn"}, {"type": "EnergyHook"}]
    work_dir = trained("measured", custom_hooks=hooks)
    (run,) = json.loads(report(work_dir, "--json", "--watts", "1e9")[1])["runs"]
    assert run["figures"]["energy"] == "measured"
    assert run["figures"]["J"] == pytest.approx(5 * run["facts"]["iterations"])
    package.rename(tmp_path / "none")
    without = trained("without", custom_hooks=[{"type": "EnergyHook"}])
    (run,) = json.loads(report(without, "--json")[1])["runs"]
    assert "no counter of energy here" in str(run["warnings"])
    assert "J" not in run["figures"]
