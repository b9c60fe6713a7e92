"""What a training takes on more devices than are here: memory, and bytes sent.

They are those of one rank on tensors without values, in torch's fake process group.
Each strategy has a process of its own, as groups and trackers stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.blame import cause_of
from devrun.config.imports import import_custom, import_named, search_folders
from devrun.devices.precision import autocast_for
from devrun.errors import DevrunError, UnsupportedFeatureError
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import Strategy, optimizers_in, strategy_for
from devrun.probes.memory import as_on_gpu, needed, resized, update_memory
from devrun.probes.notebook import Notebook, Notes
from devrun.probes.request import Grants, Request
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.tensors import batch_size_of, nbytes
from devrun.torch_features import needs

SCHEMA = "devrun.scaling/6"
_UPDATE, _RANK = "what an update is made of", "what it takes of a rank"
_NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Forecast:
    """What rank 0, which has the largest shards, sends, and its bytes by kind.

    Of `fsdp`, it keeps a share of weights, gradients and optimizer state, and gathers a
    block at a time. These and DDP's buckets are what is kept; `activations` and
    `gathered` (blocks while they are whole) are those of `peak`, the highest moment.
    Whether it fits, with the margin of `devrun check`, is None where no memory was
    given.
    """

    strategy: str
    sent: float
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    gathered: int
    buckets: int
    peak: int
    fits: bool | None


@dataclass(frozen=True)
class Scaling:
    """The result of `scaling`; `left_out` says why a strategy is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    strategies: list[Forecast]
    left_out: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def nothing_fits(self) -> bool:
        return all(one.fits is False for one in self.strategies)


def scaling(
    cfg: Any,
    grants: Grants,
    devices: int,
    *,
    memory: int | None = None,
    timeout: float = TIMEOUT,
) -> Scaling:
    """Say what `cfg` takes on `devices`, each with the samples of one.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        memory: bytes of a device.
        timeout: seconds for one process.

    Raises:
        DevrunError: as the training would, or the model needs values to be built.
    """
    names = ("ddp", "fsdp") if devices > 1 else ("ddp",)
    asked = [Request(cfg, grants, "cpu", "cpu", mode=name) for name in names]
    notes = side_by_side(asked, timeout, partial(_rehearse, devices))
    update: Any = None
    strategies, left_out = [], {}
    for name, found in zip(names, notes):
        if _RANK not in found.facts:
            left_out[name] = _why_not(found)
            continue
        update, rank = found.facts[_UPDATE], found.facts[_RANK]
        fits = None if memory is None else needed(rank["peak"]) <= memory
        strategies.append(Forecast(name, **rank, fits=fits))
    if not strategies:
        raise refusal_of(left_out["ddp"])
    reasons = {name: line for name, (_, line) in left_out.items()}
    return Scaling(
        grants.file, devices, **update, strategies=strategies, left_out=reasons
    )


def _why_not(notes: Notes) -> tuple[int, str]:
    """Exit status and line of a process that came to no result."""
    lost = (" at ".join(filter(None, (one.why, one.site))) for one in notes.findings)
    return notes.refused or (UnsupportedFeatureError.exit_code, "; ".join(lost))


def _rehearse(devices: int, request: Request, note: Notebook, left: float) -> None:
    """The work of the process: an update by the strategy that is the request's mode."""
    cfg, grants = request.cfg, request.grants
    with as_asked(grants):
        try:
            import_named(grants.imports, grants.file)
            folders = search_folders(grants.file) if grants.everything else ()
            import_custom(cfg.copy(), folders)
            if isinstance(cfg.get("parallel"), Mapping):
                # for as many processes as the user has: here each rank has its own
                cfg.merge_from_dict({"parallel.mesh": None})
            with note.stage("the simulation"), _without_values():
                _simulate(cfg, devices, request.mode, note)
            note.done()
        except DevrunError as error:
            note.refused(error)


def _simulate(cfg: Any, devices: int, strategy: str, note: Notebook) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with trial(cfg, 0, device="cpu", building=mode, progress=False) as training:
        batch = _batch(training, mode)
        accumulate = training.runner.session.policy.accumulate
        update = {"samples": batch_size_of(batch), "micro_batches": accumulate}
        note.fact(_UPDATE, update)
        note.fact(_RANK, _measured(strategy, devices, training, batch, mode))


def _batch(training: Training, mode: FakeTensorMode) -> Any:
    """A micro-batch without values, of the kind that the training reads."""
    runner = training.runner  # never prepared: weights without values stay so
    runner.session.step_module.optimizer = runner.optimizer
    loader = runner.adapter.prepare_dataloader(training.loaders[0], training=True)
    batch = next(iter(loader))
    with mode:
        return resized(batch, batch_size_of(batch))


def _measured(
    name: str, devices: int, training: Training, batch: Any, mode: FakeTensorMode
) -> dict[str, Any]:
    """Bytes sent in an update, and by kind at the highest moment of the second one."""
    session = training.runner.session
    policy, parallel = session.policy, session.adapter.parallel
    model, optimizer = session.step_module, _only(session.optimizer)
    as_on_gpu(optimizer)
    autocast = autocast_for(policy.precision, "cpu")
    if name == "fsdp":
        # whose broadcast takes tensors of no value
        needs("2.10", "the forecast of fsdp")
        strategy = _sharding(devices, parallel)
        strategy.check(policy, model, optimizer)
        autocast = None if strategy.casts else autocast
        with mode:
            strategy.apply(model, optimizer)
    sent = _Sent(policy.accumulate)
    with sent:
        use = update_memory(model, [optimizer], [batch], autocast=autocast, inside=mode)
    found, buckets, gradients = use.bytes, 0, use.kept["gradients"]
    if name == "ddp" and devices > 1:
        # of two updates: a ring's all-reduce is a reduce-scatter and an all-gather
        sent.bytes = 2 * 2 * gradients * (devices - 1) / devices
        if not parallel.gradient_as_bucket_view:
            buckets = gradients  # which DDP reduces, beside gradients
    return {
        "sent": sent.bytes / 2,
        "weights": use.kept["weights"],
        "gradients": gradients,
        "optimizer_state": use.kept["optimizer state"],
        "activations": found.get("activations", 0),
        "gathered": found.get("gathered", 0),
        "buckets": buckets,
        "peak": use.peak + buckets,
    }


class _Sent(TorchDispatchMode):
    """Counts the bytes that a rank sends, where collectives are rings.

    One of the `micro_batches` is run: each gathers weights, and only the last
    exchanges gradients.
    """

    def __init__(self, micro_batches: int) -> None:
        super().__init__()
        self.micro_batches, self.bytes = micro_batches, 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        if name == "c10d::_allgather_base_":  # all but its own share
            self.bytes += self.micro_batches * (nbytes(args[0]) - nbytes(args[1]))
        elif name == "c10d::_reduce_scatter_base_":
            self.bytes += nbytes(args[1]) - nbytes(args[0])
        return func(*args, **(kwargs or {}))


def _sharding(devices: int, given: ParallelOptions) -> Strategy:
    """That of the config's `parallel`, on as many ranks of torch's fake group."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    if given.type == "ddp":  # whose options others refuse
        given = ParallelOptions()
    options = replace(given, type="fsdp", mesh={"shard": devices})
    mesh = Mesh(options, "cpu")
    _ = mesh.data  # a mesh has values: made before tensors have none
    return strategy_for(options, mesh, torch.device("cpu"))


def _only(optimizer: Any) -> Any:
    found = optimizers_in(optimizer)
    if len(found) != 1:
        raise UnsupportedFeatureError(
            f"--devices simulates a training with one optimizer, got {len(found)}"
        )
    return found[0]


@contextmanager
def _without_values() -> Iterator[None]:
    """Within, what a model cannot do without values is one line."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, DevrunError) else error
        if isinstance(cause, _NO_VALUES):
            raise UnsupportedFeatureError(
                "--devices builds and runs the model on tensors without values, and it "
                f"reads one: {cause_of(cause)}; take the value of no tensor, or check "
                "it without --devices"
            ) from error
        if isinstance(error, DevrunError):
            raise
        raise UnsupportedFeatureError(
            f"the simulation ended: {cause_of(error)}"
        ) from error
