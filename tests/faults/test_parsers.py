"""What reads a checkpoint or a command line, given anything at all."""

import json
from contextlib import suppress

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from devrun.checkpoint import decode_tree, encode_tree
from devrun.checkpoint.manifest import FileEntry, Manifest, _sealed
from devrun.checkpoint.names import FILE
from devrun.cli.main import COMMANDS, parser_of
from devrun.errors import CheckpointError, ConfigError
from devrun.files import json_line, parse_json
from tests.faults.harness import numbers
from tests.fuzzing import JSON, damaged_bytes, examples, json_of


def one_line(error):
    text = str(error)
    assert text.isprintable()
    assert len(text) < 2000


@pytest.mark.parametrize("count", numbers(60, 5000))
def test_json(count, figures):
    """What is written is read; anything else is read, or refused in one way."""

    @examples(count)
    @given(JSON)
    def written(value):
        assert parse_json(json_line(value)) == value

    @examples(count)
    @given(JSON.map(json_line).flatmap(damaged_bytes) | st.binary(max_size=40))
    def read(data):
        with suppress(ValueError):
            parse_json(data)

    written()
    read()
    figures("F20", f"JSON: {2 * count} texts read as what they are, or refused")


def manifest_record():
    files = tuple(FileEntry(f"{n}.json", 3, "0" * 64) for n in ("model", "trainer"))
    described = Manifest.describe({"step": 3, "run_id": "run", "note": "x"})
    facts = {**vars(described), "files": files}
    record = parse_json(Manifest(**facts).render())
    del record["self_sha256"]
    return record


RECORD = manifest_record()
HOSTILE = st.sampled_from(
    ["../x", "/etc/passwd", ".", "..", "a\x00b", "a\n", "", "CON"]
)
PATHS = st.sampled_from(
    [(key,) for key in RECORD]
    + [("files", 0, key) for key in ("name", "size", "sha256")]
    + [
        ("files", 0),
        ("files", 1),
        ("environment", "x"),
        ("meta", "$t"),
    ]
)


def put(place, path, value):
    """Set what `path` leads to, if a change before has left such a place."""
    *way, last = path
    for key in way:
        place = place[key] if has(place, key) else None
    if has(place, last) or (isinstance(place, dict) and isinstance(last, str)):
        place[last] = value


def has(place, key):
    if isinstance(place, list):
        return isinstance(key, int) and key < len(place)
    return isinstance(place, dict) and key in place


@pytest.mark.parametrize("count", numbers(150, 5000))
def test_manifests(count, figures):
    """Damaged ones are refused; forged ones, whose own hash fits, name plain files."""
    whole = _sealed(RECORD)
    assert Manifest.parse(whole).render() == whole
    read = 0

    @examples(count)
    @given(damaged_bytes(whole))
    def damaged(data):
        if data != whole:
            with pytest.raises(CheckpointError) as caught:
                Manifest.parse(data)
            one_line(caught.value)

    @examples(count)
    @given(st.lists(st.tuples(PATHS, JSON | HOSTILE), min_size=1, max_size=3))
    def forged(changes):
        nonlocal read
        record = json.loads(whole)
        for path, value in changes:
            put(record, path, value)
        record.pop("self_sha256", None)
        try:
            manifest = Manifest.parse(_sealed(record))
        except CheckpointError as error:
            one_line(error)
            return
        assert all(FILE.fullmatch(entry.name) for entry in manifest.files)
        assert all(entry.size >= 0 for entry in manifest.files)
        read += 1

    damaged()
    forged()
    assert read
    figures(
        "F20", f"manifests: {2 * count} damaged or forged ones, {read} of them read"
    )


TAGS = ["$tensor", "$float", "$int", "$bytes", "$tuple", "$set", "$dict",
        "$array", "$scalar", "dtype", "shape", "$other"]  # fmt: skip
WORDS = ["t", "b", "nan", "0x1f", "AAAA", "complex64", "<f4", "<U3", "|O", "<M8[D]"]
TREE = json_of(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from([1 << 60, 0.5, *WORDS]),
    st.sampled_from(TAGS) | st.text(max_size=2),
)


@pytest.mark.parametrize("count", numbers(300, 5000))
def test_trees(count, figures):
    """JSON that speaks the tags of a part: a value, or one line."""
    tensors = {"t": torch.zeros(2, 2), "b": torch.zeros(8, dtype=torch.uint8)}
    read = 0

    @examples(count)
    @given(TREE)
    def decoded(tree):
        nonlocal read
        try:
            decode_tree(tree, tensors)
            read += 1
        except CheckpointError as error:
            one_line(error)

    decoded()
    assert read > count // 20
    figures("F20", f"parts: {count} trees read ({read}) or refused in one line")


@pytest.mark.parametrize("count", numbers(200, 5000))
@pytest.mark.parametrize("command", COMMANDS)
def test_command_lines(command, count, capsys, figures):
    """Words of the command and others: arguments, or one line and status 2."""
    parser = parser_of(command)
    flags = sorted(parser._option_string_actions)
    word = st.sampled_from([*flags, "a.yaml", "1", "a=1", "--", "cpu", "none", "auto"])

    @examples(count)
    @given(st.lists(word | st.text(max_size=6), max_size=6))
    def parsed(words):
        try:
            parser.parse_args(words)
        except ConfigError as error:
            one_line(error)
        except SystemExit as stop:
            said = capsys.readouterr()
            if stop.code:
                assert stop.code == 2
                assert "Traceback" not in said.err
                assert len(said.err.splitlines()) == 1, said.err

    parsed()
    figures("F22", f"{count} of {count} command lines of `{command}`")


@pytest.mark.parametrize("count", numbers(150, 5000))
def test_what_hooks_may_save(count, figures):
    """Any state comes back field by field, through what the files hold."""
    numeric = st.sampled_from([numpy.float32, numpy.int64, numpy.bool_])
    shapes = st.lists(st.integers(0, 3), max_size=3)
    leaf = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary(max_size=9)
        | st.builds(lambda kind, x: kind(x), numeric, st.integers(-9, 9))
        | st.builds(torch.ones, shapes)
        | st.builds(lambda s, k: numpy.ones(s, k), shapes, numeric)
    )
    key = st.text(max_size=4) | st.integers() | st.none() | st.tuples(st.integers())
    state = st.recursive(
        leaf,
        lambda x: (
            st.lists(x, max_size=3)
            | st.lists(x, max_size=3).map(tuple)
            | st.dictionaries(key, x, max_size=3)
        ),
        max_leaves=10,
    )

    @examples(count)
    @given(state)
    def comes_back(value):
        encoded = encode_tree(value)
        text = json_line(encoded.tree)
        back = decode_tree(parse_json(text), encoded.tensors)
        assert described(back) == described(value)

    comes_back()
    figures("F15", f"{count} of {count} random states came back field by field")


def described(value):
    """A value, with types and bits of all that is in it, as plain text."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
    if isinstance(value, dict):
        pairs = (f"{k!r}: {described(v)}" for k, v in value.items())
        return f"{type(value).__name__}({', '.join(pairs)})"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{value.tolist()}"
    if isinstance(value, numpy.ndarray):
        return f"{value.dtype}{value.shape}{value.tolist()}"
    return f"{type(value).__name__} {value!r}"
