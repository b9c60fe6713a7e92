"""Programs on disk: written, loaded again, and compared with the model.

A model is traced once, by `torch.export`
(https://docs.pytorch.org/docs/stable/export.html), with the batch as a free axis; each
format makes a file of that, and reads it again as whoever gets it would.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from devrun import torch_features
from devrun.blame import cause_of
from devrun.errors import ConfigError
from devrun.export.inference import Inference, resized
from devrun.files import disk_errors
from devrun.log.logger import quieted

TOLERANCE = 1e-4
"""Of the largest output: float32 sums in another order, as other kernels have."""
SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "aoti": ".pt2"}
TORCH = "2.9"
"""The release from which torch writes models of any batch in all three."""
ONNX_LIMIT = 2**31
"""Bytes of one protobuf message, https://protobuf.dev/programming-guides/encoding."""

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Outputs of a loaded program, by name."""


@dataclass(frozen=True)
class Names:
    """Of what a program takes and returns, in their order."""

    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True)
class Written:
    """A program that does what the model does."""

    inputs: dict[str, dict[str, Any]]
    """By name: `shape`, with the name of an axis that is free, and `dtype`."""
    outputs: list[str]
    largest_difference: float
    """From the model's outputs, over all that was compared."""
    opset: int | None
    """Of ONNX; None of other formats."""


def write_program(
    model: Inference,
    inputs: Mapping[str, Tensor],
    target: Path,
    form: str,
    *,
    opset: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Written:
    """Write `model` as `form` to `target`; a failure leaves nothing.

    Args:
        inputs: of real samples, `[N, ...]`; what is compared is N of them twice, one
            less, and one.
        form: one of `SUFFIXES`.
        opset: of ONNX; None for the exporter's own.
        facts: of a JSON file beside it, with what it takes and gives.

    Raises:
        ConfigError: a package is missing, the model cannot be traced or has an operator
            that the format lacks, or the program does something else than the model.
        UnsupportedFeatureError: a torch that is too old.
        StorageError: the disk refused.
    """
    torch_features.needs(TORCH, f"--format {form}")
    if form == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            found_package(name)
    count = max(2, next(iter(inputs.values())).size(0))
    what = f"{type(model.model).__name__} as {form}"
    # exporters tell at length of their own insides
    with quieted(logging.WARNING), torch.no_grad():
        names = Names(list(inputs), list(model(inputs)))
        with explained(f"{what}: it cannot be traced"):
            program = _traced(model, resized(inputs, count))
        with disk_errors(
            f"{str(target)!r} cannot be written"
        ), tempfile.TemporaryDirectory(
            prefix=".export-", dir=target.absolute().parent
        ) as folder:
            new = Path(folder) / target.name
            with explained(f"{what}: it cannot be written"):
                run, found = _WRITERS[form](program, names, new, opset)
            worst = 0.0
            for samples in (2 * count, count - 1, 1):
                given = resized(inputs, samples)
                with explained(f"{what}: the program does not run"):
                    theirs = run(given)
                worst = max(worst, _difference(what, model(given), theirs))
            described = _described(program, names.inputs)
            if facts is not None:
                told: dict[str, Any] = {"inputs": described, "outputs": names.outputs}
                told.update(opset=found, largest_difference=worst)
                write_json(manifest_of(new), {**facts, **told})
                os.replace(manifest_of(new), manifest_of(target))
            os.replace(new, target)
    return Written(described, names.outputs, worst, found)


def _traced(model: Inference, inputs: Mapping[str, Tensor]) -> Any:
    """The graph of `model`, with the batch, and the length of tokens, free."""
    batch = torch.export.Dim("batch")
    axes: dict[str, Any] = {}
    for name, value in inputs.items():
        axes[name] = {0: batch}
        if value.dim() > 1 and not value.is_floating_point():
            axes[name][1] = torch.export.Dim.AUTO
    given = (dict(inputs),)
    return torch.export.export(model, given, dynamic_shapes=(axes,), strict=False)


def _described(program: Any, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Name, shape and type of each input of a traced program."""
    given = set(program.graph_signature.user_inputs)
    nodes = [one for one in program.graph.nodes if one.name in given]
    found = {}
    for name, node in zip(names, nodes):
        value = node.meta["val"]
        shape = [
            # a length that tracing has fixed may still be a symbol of one value
            "batch" if not axis else int(str(size)) if str(size).isdigit() else "length"
            for axis, size in enumerate(value.shape)
        ]
        found[name] = {"shape": shape, "dtype": str(value.dtype)[6:]}
    return found


def _difference(
    what: str, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> float:
    """The largest difference of all outputs."""
    worst = 0.0
    for name, expected in ours.items():
        value = theirs[name]
        if value.shape != expected.shape:
            raise ConfigError(
                f"{what}: output {name} has shape {list(value.shape)} there and "
                f"{list(expected.shape)} here; nothing was written"
            )
        found = (value.double() - expected.double()).abs().max().item()
        limit = TOLERANCE * max(1.0, expected.double().abs().max().item())
        if not found <= limit:
            raise ConfigError(
                f"{what}: output {name} differs by {found:.3g} from the model's, more "
                f"than {limit:.3g}; nothing was written"
            )
        worst = max(worst, found)
    return worst


def _onnx(program: Any, names: Names, path: Path, opset: int | None) -> tuple[Run, int]:
    size = sum(value.nbytes for value in program.state_dict.values())
    if size >= ONNX_LIMIT:
        raise ConfigError(
            "its weights are over the 2 GiB of one file; use --format pt2"
        )
    exported: Any = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=opset,
        verbose=False,
        input_names=names.inputs,
        output_names=names.outputs,
    )
    stamped = int(exported.model.opset_imports[""])
    if opset is not None and stamped != opset:  # torch keeps its own, and only warns
        raise ConfigError(
            f"this torch writes it in opset {stamped}, not {opset}; leave --opset out, "
            f"or give one from {stamped} on"
        )
    exported.save(str(path))
    session = found_package("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    there = [one.name for one in session.get_inputs()]

    def run(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        values = session.run(None, {name: inputs[name].numpy() for name in there})
        return dict(zip(names.outputs, map(torch.from_numpy, values)))

    return run, stamped


def _pt2(program: Any, names: Names, path: Path, opset: int | None) -> tuple[Run, None]:
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    return (lambda inputs: loaded(dict(inputs))), None


def _aoti(
    program: Any, names: Names, path: Path, opset: int | None
) -> tuple[Run, None]:
    inductor = importlib.import_module("torch._inductor")
    inductor.aoti_compile_and_package(program, package_path=str(path))
    loaded = inductor.aoti_load_package(str(path))
    return (lambda inputs: loaded(dict(inputs))), None


_WRITERS: dict[
    str, Callable[[Any, Names, Path, int | None], tuple[Run, int | None]]
] = {
    "onnx": _onnx,
    "pt2": _pt2,
    "aoti": _aoti,
}


def manifest_of(program: Path) -> Path:
    """The file with what who runs the program has to know."""
    return program.with_name(f"{program.name}.json")


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def found_package(name: str) -> Any:
    """A package that `--format onnx` needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"--format onnx needs the package {name}: pip install 'devrun[onnx]' "
            f"({error})"
        ) from None


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An error of a compiler as one of the user's: its first words and his line."""
    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {cause_of(error)}; nothing was written") from error
