"""A training step on disk, for another system: written once it has passed three gates.

Each operator is one that the importer takes; nothing is in it that the importer gets
wrong without saying so; and in onnxruntime ten updates of it equal ten of the run's.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from devrun import torch_features
from devrun.blame import users_line_in
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.export.programs import (
    TORCH,
    explained,
    found_package,
    manifest_of,
    write_json,
)
from devrun.export.step import TrainingStep, traced
from devrun.files import disk_errors
from devrun.log.logger import quieted
from devrun.tensors import tensors_in

UPDATES = 10
LIMIT = 1e-5
"""Of the difference of a value after them, or of so much of its tensor's largest."""
KINK = 0.05
"""The same of an update in which a rounding decided: whether a ReLU was above 0, which
of two was the largest. Both are right, and what follows is begun from one state."""
NOISE = 1e-6
"""Part of the largest gradient below which one is a rounding error, of which Adam makes
a full step: of the bias of keys in attention, whose true gradient is 0."""
NEXT = "next."
"""Before the name of a state, that of the output which takes its place."""


@dataclass(frozen=True)
class WrittenStep:
    """A step that does what the run's own does."""

    files: list[Path]
    opset: int
    largest_difference: float
    parted: int
    """Updates besides, in which a rounding decided otherwise."""
    left_out: int
    """Weights that were not compared, as their gradients were rounding errors."""
    warnings: list[str]
    """What the importer is known to lack further on."""


def write_step(
    session: Any,
    batches: Sequence[Any],
    target: Path,
    importer: str,
    facts: Mapping[str, Any],
) -> WrittenStep:
    """Write an update of `session` to `target`, its facts and its state beside it.

    A failure leaves nothing. The session has done the updates afterwards.

    Args:
        session: prepared, with an optimizer that has done an update before.
        batches: of one shape, taken in turn.
        importer: one of `devrun.export.importers.TABLES`.
        facts: more of what the JSON file has.

    Raises:
        ConfigError: a package is missing, the update cannot be traced, has an operator
            without export, one that the importer lacks or gets wrong, or does
            something else there.
        UnsupportedFeatureError: an update that is not exported, or too old a torch.
        StorageError: the disk refused.
    """
    torch_features.needs(TORCH, "--step train")
    for name in ("onnx", "onnxruntime", "safetensors"):
        found_package(name)
    what = f"the training step of {session.step_module.model_name}"
    step = TrainingStep(session, batches[0])
    state, inputs = step.state(), step.inputs(batches[0])
    with quieted(logging.WARNING), explained(f"{what} cannot be traced"):
        module, results = traced(step, state, inputs)
    if results.keys() - state.keys() - {"loss"}:
        raise UnsupportedFeatureError(
            f"{what} begins with an optimizer that has done no update, and keeps "
            "nothing yet: export a checkpoint of a later one"
        )
    outputs = {k if k == "loss" else NEXT + k: node for k, node in results.items()}
    model = _lowered(what, module, [*state, *inputs], outputs, importer)
    with disk_errors(f"{str(target)!r} cannot be written"), tempfile.TemporaryDirectory(
        prefix=".export-", dir=target.absolute().parent
    ) as folder:
        new = Path(folder) / target.name
        new.write_bytes(model.SerializeToString())
        with explained(f"{what} does not run in onnxruntime"):
            compared = _compared(what, step, state, batches, new)
        warnings = _warnings(importer, model)
        told = {
            **facts,
            "step": "train",
            "for": importer,
            "opset": model.opset_import[0].version,
            "state": _described(state),
            "batch": _described(inputs),
            "outputs": list(outputs),
            "updates_compared": UPDATES,
            "updates_parted": compared["parted"],
            "largest_difference": compared["largest_difference"],
            "warnings": warnings,
        }
        files = _beside(new, told, state)
        for file in reversed(files):  # the model once all is there that it needs
            os.replace(file, target.parent / file.name)
    names = [target.parent / file.name for file in files]
    return WrittenStep(names, told["opset"], warnings=warnings, **compared)


def alike(loader: Iterable[Any], count: int) -> list[Any]:
    """So many batches of an epoch at most, all of the shapes of the first."""
    batches: list[Any] = []
    shapes = None
    for batch in loader:
        found = [value.shape for value in tensors_in(batch)]
        shapes = shapes or found
        if found == shapes:
            batches.append(batch)
        if len(batches) == count:
            break
    return batches


def _lowered(
    what: str,
    module: Any,
    inputs: Sequence[str],
    outputs: Mapping[str, Any],
    importer: str,
) -> Any:
    """The model of ONNX, past the first two gates."""
    from devrun.export.importers import refused_by
    from devrun.export.lowering import NoOperatorError, lowered

    try:
        model, places = lowered(module, inputs, outputs)
    except NoOperatorError as error:
        raise ConfigError(
            f"{what} has an operator without export: {_placed(error.name, error.trace)}"
            "; nothing was written"
        ) from None
    for name, why in refused_by(importer, model):
        raise ConfigError(
            f"{what} is nothing for {importer}: {_placed(why, places.get(name))}; "
            "nothing was written"
        )
    return model


def _placed(what: str, trace: str | None) -> str:
    line = None if trace is None else users_line_in(trace)
    return what if line is None else f"{what}, at {line}"


def _compared(
    what: str,
    step: TrainingStep,
    state: Mapping[str, Tensor],
    batches: Sequence[Any],
    path: Path,
) -> dict[str, Any]:
    """Of `WrittenStep`, what so many updates of both say as part by rounding alone."""
    runtime = found_package("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in runtime.get_outputs()]
    taken = {one.name for one in runtime.get_inputs()}
    held = {name: value.numpy() for name, value in state.items()}
    session, worst, parted, left_out = step.session, 0.0, 0, 0
    for update in range(2 * UPDATES):
        batch = batches[update % len(batches)]
        factor = (update % UPDATES + 1) / UPDATES  # a schedule, which it must follow
        for name, group in zip(step.rates, step.optimizer.param_groups):
            group["lr"] = state[name].item() * factor
            held[name] = (state[name] * factor).numpy()
        given = {**held, **{k: v.numpy() for k, v in step.inputs(batch).items()}}
        given = {name: value for name, value in given.items() if name in taken}
        values = dict(zip(names, runtime.run(names, given)))
        ours = session.adapter.train_step(session.wrapped, batch, session.optimizer)
        after = step.state()
        pairs = {"loss": (ours["loss"], values.pop("loss"))}
        held.update({name[len(NEXT) :]: value for name, value in values.items()})
        pairs.update({k: (after[k], held[k]) for k in after.keys() - set(step.rates)})
        noise = _noise(after)
        left_out = sum(int(mask.sum()) for mask in noise.values())
        found, share, name = max(_apart(pairs, noise), key=lambda each: each[1])
        if share <= LIMIT:
            worst = max(worst, found)
        elif share <= KINK and parted < UPDATES:
            parted += 1
            held.update({key: value.numpy() for key, value in after.items()})
        else:
            raise ConfigError(
                f"{what}: in update {update + 1} {name} differs by {found:.3g} from "
                f"the run's, by {share:.3g} of its largest value; nothing was written"
            )
        if update + 1 - parted == UPDATES:
            break
    return {"largest_difference": worst, "parted": parted, "left_out": left_out}


def _apart(
    pairs: Mapping[str, tuple[Tensor, Any]], noise: Mapping[str, Tensor]
) -> Iterator[tuple[float, float, str]]:
    """How far each is apart, that as a part of its largest value or 1, and its name."""
    for name, (expected, value) in pairs.items():
        ours, theirs = expected.double(), torch.as_tensor(value).double()
        apart = (ours - theirs).abs().nan_to_num(torch.inf)
        if name in noise:
            apart = apart[~noise[name]]
        found = apart.max().item() if apart.numel() else 0.0
        largest = max(1.0, ours.abs().max().item() if ours.numel() else 0.0)
        yield found, found / largest, name


def _noise(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where in each weight Adam divides a rounding error by its own size."""
    ending = ".exp_avg_sq"
    sizes = {
        name[len("optimizer.") : -len(ending)]: value.sqrt()
        for name, value in state.items()
        if name.endswith(ending)
    }
    largest = max((size.max().item() for size in sizes.values()), default=0.0)
    return {name: size <= NOISE * largest for name, size in sizes.items()}


def _described(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    return {
        name: {"shape": list(value.shape), "dtype": str(value.dtype)[6:]}
        for name, value in tensors.items()
    }


def _warnings(importer: str, model: Any) -> list[str]:
    from devrun.export.importers import EMPTY_KERNELS

    kinds = {node.op_type for node in model.graph.node}
    empty = [kind for kind in EMPTY_KERNELS.get(importer, []) if kind in kinds]
    told = "code that computes nothing for {} on CPUs: run it on another device"
    return [f"{importer} makes {told.format(', '.join(empty))}"] if empty else []


def _beside(
    model: Path, facts: Mapping[str, Any], state: Mapping[str, Tensor]
) -> list[Path]:
    """The model, its facts and its first state, as files in its folder."""
    described = manifest_of(model)
    write_json(described, facts)
    first = model.with_name(f"{model.name}.safetensors")
    first.write_bytes(found_package("safetensors.torch").save(dict(state)))
    return [model, described, first]
