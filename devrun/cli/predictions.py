"""What a model predicts for each sample of a data set, as rows of a file."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from devrun.data.prepared import ahead
from devrun.dist import gather_objects
from devrun.errors import ConfigError, DataError
from devrun.files import disk_errors, replace_file, user_path
from devrun.hooks.evaluation.loop import Steps, length_of, per_sample
from devrun.log.jsonlines import json_number
from devrun.run import Run
from devrun.step import StepOutput


def predict(runner: Run, loaders: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each of `loaders`; the model is asked for no loss."""
    with runner.evaluating():
        return {name: _rows(runner, loader) for name, loader in loaders.items()}


def generated(
    runner: Run, loaders: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """A row for each sample of each of `loaders`: its tokens, continued by `given`."""
    from devrun.hooks.evaluation.generation import continued, generation_of, text_of

    how = generation_of(given)
    found: dict[str, list[dict[str, Any]]] = {}
    with runner.evaluating():
        for name, loader in loaders.items():
            text = text_of(loader.dataset)
            found[name] = [
                {
                    "index": one.index,
                    "prompt": one.prompt,
                    "generated": list(one.tokens),
                    **({} if text is None else {"text": text(one.tokens)}),
                }
                for one in continued(runner, loader, how)
            ]
    return found


def _rows(runner: Run, loader: Any) -> list[dict[str, Any]]:
    """A row for each sample of `loader`, which reads a data set in its order.

    `index` is its place there; `file` where the data set has a list of them, as
    `paths`, `files` or torchvision's `samples`; `prediction` the class number where
    there are class scores, else what the model gave; `scores` those of one class a
    sample; `label` where there is one. All ranks must call it together.

    Raises:
        DataError: there are other samples than the data set has.
    """
    mine: list[tuple[Any, Any]] = []
    for outputs in ahead(Steps(runner, loader, "predict"), 1):
        mine += _of_step(outputs)  # while the device works on the next
    prepared = runner.prepare_eval_loader(loader)
    size, (rank, world) = length_of(prepared.dataset), prepared.data_share
    _, _, told = runner.adapter.data_share
    places = list(range(rank, size or 0, world)) if told else []
    if size is None and world == 1:
        places = list(range(len(mine)))
    found = gather_objects(list(zip(places, mine)))
    if not all(gather_objects(len(places) == len(mine))):
        raise DataError(
            f"the loader gave {len(mine)} samples, {len(places)} were expected: "
            "predictions need a data set with a length, each of whose samples is read "
            "once and in order"
        )
    pairs = sorted(chain(*found), key=lambda pair: pair[0])
    soft = all(_is_soft(*pair) for _, pair in pairs)  # one of many may be by chance
    file = _files(prepared.dataset, size)
    return [{"index": i, **file(i), **_row(*pair, soft)} for i, pair in pairs]


def _of_step(outputs: StepOutput) -> Iterable[tuple[Any, Any]]:
    """Prediction and label (or None) of each sample."""
    predictions, count = outputs.get("predictions"), outputs["num_samples"]
    if predictions is None:
        raise ConfigError(
            "the model's evaluation step returned no `predictions`, only "
            f"{', '.join(map(str, outputs))}: return them"
        )
    labels: Any = outputs.get("targets")
    known = hasattr(labels, "detach") and labels.dim() and len(labels) == count
    given = per_sample(labels, count) if known else [None] * count
    return zip(per_sample(predictions, count), given)


def write_predictions(
    path: str, sets: Mapping[str, list[dict[str, Any]]]
) -> dict[str, int]:
    """Write the rows of each set; path -> number of rows.

    One set without a name goes to `path`; of several, each goes to a file that has its
    name before the suffix. A file is whole, or what it was.

    Raises:
        StorageError: the disk refused.
    """
    place = user_path(path)
    write = {".csv": _as_csv, ".jsonl": _as_lines}[place.suffix]
    encoded = {
        str(place.with_name(f"{place.stem}-{name}{place.suffix}") if name else place): (
            write(rows),
            len(rows),
        )
        for name, rows in sets.items()
    }
    for target, (content, _) in encoded.items():
        with disk_errors(f"cannot write {target!r}"):
            replace_file(target, content)
    return {target: count for target, (_, count) in encoded.items()}


def _files(dataset: Any, size: int | None) -> Callable[[int], dict[str, str]]:
    """Gives the file of a sample, where the data set has a name for each."""
    for name in ("paths", "files", "samples"):
        held = getattr(dataset, name, None)
        if isinstance(held, (list, tuple)) and size and len(held) == size:
            first = [each[0] if isinstance(each, tuple) else each for each in held]
            if all(isinstance(each, (str, os.PathLike)) for each in first):
                return lambda index: {"file": os.fspath(first[index])}
    return lambda index: {}


def _row(made: Any, label: Any, soft: bool) -> dict[str, Any]:
    axis = 0 if soft else _class_axis(made, label)
    row = {"prediction": made if axis is None else made.argmax(axis)}
    if axis is not None and made.ndim == 1:
        row["scores"] = made
    return row if label is None else {**row, "label": label}


def _class_axis(made: Any, label: Any) -> int | None:
    """Where in the scores of one sample the classes are; None if they are no scores."""
    if getattr(getattr(made, "dtype", None), "kind", "") != "f" or made.ndim == 0:
        return None
    if label is None:
        return 0 if made.ndim == 1 and len(made) > 1 else None
    if label.dtype.kind not in "iu" or label.ndim != made.ndim - 1:
        return None
    if made.shape[:-1] == label.shape:
        return int(made.ndim) - 1
    return 0 if made.shape[1:] == label.shape else None


def _is_soft(made: Any, label: Any) -> bool:
    """Whether the label may be a share of each class: as long as the scores."""
    shape: Any = getattr(made, "shape", ())
    same = len(shape) == 1 < shape[0] and getattr(label, "shape", None) == shape
    floats = same and label.dtype.kind == made.dtype.kind == "f"
    return bool(floats and label.min() >= 0 and abs(label.sum() - 1) < 1e-3)


def _plain(value: Any) -> Any:
    """As JSON has it; a number it has none for is text that `float()` reads."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if callable(getattr(value, "tolist", None)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return json_number(value)
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(_plain(row))}\n" for row in rows).encode()


def _as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    return text.getvalue().encode()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """`scores` as a column each; what is no single value as JSON."""
    cells = {name: _plain(value) for name, value in row.items()}
    for number, score in enumerate(cells.pop("scores", ())):
        cells[f"score_{number}"] = score
    nested = (list, dict)
    return {k: json.dumps(v) if isinstance(v, nested) else v for k, v in cells.items()}
