import os

import pytest

from devrun.config import Config, MissingFileError
from devrun.errors import ConfigError


def message(path):
    with pytest.raises(ConfigError) as caught:
        Config.fromfile(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such configuration file"):
        Config.fromfile(tmp_path / "none.py")
    with pytest.raises(MissingFileError):
        Config.fromfile("a/b/none.yaml")


def test_other_extensions_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text("")
    assert "a .py, .json, .yaml or .yml file, not '.toml'" in message(
        tmp_path / "a.toml"
    )
    assert "not no extension" in message(tmp_path)


@pytest.mark.parametrize("name", ["f.yaml", "f.py", "f.json"])
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert "it is no regular file" in message(tmp_path / name)


def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path):
    (tmp_path / "a.py").write_bytes(b"a = 1\nb = '\xff'\n")
    assert "a.py:2: not UTF-8 (byte 0xff)" in message(tmp_path / "a.py")


def test_a_nul_byte_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"a: 1\nb: \0\n")
    assert "a.yaml:2: a NUL byte" in message(tmp_path / "a.yaml")


def test_a_byte_order_mark_is_accepted(tmp_path):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert Config.fromfile(tmp_path / "a.py").a == 1


def test_a_huge_file_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"#" * (2 << 20))
    assert "larger than 1024 KiB" in message(tmp_path / "a.yaml")


def test_a_path_with_odd_characters_stays_one_line():
    assert "no such configuration file" in message("a\nb\x1b[31m.py")
    assert "cannot be read" in message("a\0b.py")
