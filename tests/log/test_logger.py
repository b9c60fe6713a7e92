"""get_logger, print_log, collect_env, and what log files can be made to hold."""

import io
import json
import logging
import re
import resource
import sys

import pytest
from tqdm import tqdm

from devrun.errors import ConfigError
from devrun.log import close_logger, collect_env, get_logger, print_log
from devrun.log.jsonlines import JsonLines, strict_line

HOSTILE = "a\nb\r\x1b[31m\x00\x85\u2028\u202e\ud800"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800]")


@pytest.fixture
def name(request):
    unique = f"test-{request.node.name}"
    yield unique
    close_logger(unique)


def test_lines_have_mmcvs_format_on_console_and_in_the_file(name, tmp_path, capsys):
    logger = get_logger(name, tmp_path / "logs" / "a.log")
    logger.info("hello %d", 3)
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    pattern = rf"{stamp} - {re.escape(name)} - INFO - hello 3\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)
    assert re.fullmatch(pattern, (tmp_path / "logs" / "a.log").read_text())


def test_asking_again_adds_no_handler_and_keeps_the_level(name, tmp_path, capsys):
    get_logger(name, log_level="WARNING")
    logger = get_logger(name, tmp_path / "a.log")
    get_logger(name, tmp_path / "a.log")
    logger.info("not shown")
    logger.warning("once")
    assert capsys.readouterr().err.count("once") == 1
    assert (tmp_path / "a.log").read_text().count("once") == 1
    assert "not shown" not in (tmp_path / "a.log").read_text()


def test_a_full_disk_is_said_once_and_the_console_goes_on(name, tmp_path, capsys):
    logger = get_logger(name, tmp_path / "a.log")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        logger.info("first")
        logger.info("second")
        close_logger(name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.count("cannot write the log file") == 1
    assert "first" in said and "second" in said


def test_records_cannot_forge_lines_or_steer_the_terminal(name, tmp_path, capsys):
    logger = get_logger(name, tmp_path / "a.log")
    logger.info("metric %s", HOSTILE)
    for text in (capsys.readouterr().err, (tmp_path / "a.log").read_text("utf-8")):
        assert not CONTROLS.search(text)
        first, second = text.splitlines()
        assert first.endswith("metric a")
        assert second == r"    b\r\x1b[31m\x00\x85\u2028\u202e\ud800"


def test_a_log_file_that_cannot_be_written_is_one_line(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the log file"):
        get_logger(name, tmp_path / "file" / "a.log")


def test_an_unknown_level_is_named_with_the_nearest(name):
    with pytest.raises(ConfigError, match="did you mean 'WARNING'"):
        get_logger(name, log_level="WARNIN")


def test_a_line_above_a_bar_does_not_break_it(name, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = get_logger(name)
    with tqdm(total=4, file=stream, mininterval=0, miniters=1) as bar:
        bar.update(2)
        logger.info("above")
        bar.update(1)
    drawn = stream.getvalue().split("\r")
    (line,) = [part for part in drawn if "above" in part]
    assert re.match(r"\d{4}-", line)  # starts in the first column, over a blank line
    assert line.endswith("above\n")
    assert drawn[drawn.index(line) - 1].strip() == ""


def test_print_log_goes_where_it_is_told(name, capsys):
    print_log("to stdout")
    assert capsys.readouterr().out == "to stdout\n"
    print_log("nowhere", "silent")
    print_log("named", name, logging.WARNING)
    captured = capsys.readouterr()
    assert captured.err.endswith("WARNING - named\n")
    assert captured.out == ""
    with pytest.raises(TypeError, match="logger must be"):
        print_log("x", 3)


def test_collect_env_has_versions():
    facts = collect_env()
    assert facts["Python"].startswith(sys.version.split()[0])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (1.23456789, "1.23457"),
        (0.000123456789, "0.00012346"),
        (1e-12, "1e-12"),
        (12345.678912, "12345.67891"),
        (7, "7"),
        (None, "null"),
    ],
)
def test_numbers_in_json_lines_are_strict_and_short(value, written):
    assert strict_line({"x": value}) == f'{{"x": {written}}}'


def test_json_lines_are_one_record_a_line_whatever_the_keys_hold(tmp_path):
    path = tmp_path / "a.json"
    lines = JsonLines(str(path))
    lines.write({HOSTILE: HOSTILE, 3: {"nested": [path, {1}, object]}})
    lines.write({"x" * 1_000_000: 1.0})
    lines.close()
    text = path.read_text("ascii")
    assert text.count("\n") == 2
    first, second = (json.loads(line) for line in text.splitlines())
    assert first[HOSTILE] == HOSTILE
    assert first["3"]["nested"][0] == str(path)
    assert second == {"x" * 1_000_000: 1.0}
