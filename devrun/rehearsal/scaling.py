"""What a training takes on more devices than are here: memory, bytes sent, seconds.

Memory and bytes are those of one rank on tensors without values, in torch's fake
process group. Seconds are measured or not there: of an update those of the training's
own first ones, on a device that is here, and of sending the bytes over the rate that
`devrun devices --bench` kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
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
from devrun.devices.resolve import resolve_device
from devrun.errors import DevrunError, UnsupportedFeatureError
from devrun.hooks.base import Hook
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import Strategy, optimizers_in, strategy_for
from devrun.probes.aside import aside
from devrun.probes.memory import as_on_gpu, needed, resized, update_memory
from devrun.probes.notebook import Notebook
from devrun.probes.request import Grants, Request
from devrun.rehearsal.bench import load
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.run import Run
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.tensors import batch_size_of, nbytes
from devrun.text import one_line
from devrun.torch_features import needs

SCHEMA = "devrun.scaling/5"
UPDATES = 6
"""That are timed; the first, which compiles and allocates, does not count."""
_UPDATE, _TIMED = "an update", "seconds of an update"
_REFUSED = "refused"
_NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Forecast:
    """What rank 0, which has the largest shards, sends, and its bytes by kind.

    Of `fsdp`, it keeps a share of weights, gradients and optimizer state, and gathers a
    block at a time. These and DDP's buckets are what is kept; `activations` and
    `gathered` (blocks while they are whole) are those of `peak`, the highest moment.
    Seconds of sending, and whether it fits with the margin of `devrun check`, are None
    where no rate was measured and no memory given.
    """

    strategy: str
    sent: float
    sending: float | None
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
    """The result of `scaling`; `left_out` says why a strategy or time is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    computing: float | None
    """Seconds of an update of one device, measured; None without one."""
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
    device: str | None = None,
    timeout: float = TIMEOUT,
) -> Scaling:
    """Say what `cfg` takes on `devices`, each with the samples of one.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        memory: bytes of a device.
        device: one that is here, on which the first updates are timed; None times none.
        timeout: seconds for one process.

    Raises:
        DevrunError: as the training would, or the model needs values to be built.
    """
    rate = None if device is None else _rate(device)
    request = Request(cfg, grants, "cpu", "cpu")
    (notes,) = side_by_side([request], timeout, partial(in_child, devices, device))
    if notes.refused is not None:
        raise refusal_of(notes.refused)
    update: Any = notes.facts.get(_UPDATE)
    if update is None:
        raise DevrunError("; ".join(found.why for found in notes.findings) or "lost")
    found, left_out = [], {}
    for strategy, sums in update.pop("strategies").items():
        if _REFUSED in sums:
            left_out[strategy] = sums[_REFUSED]
            continue
        sending = sums["sent"] / rate if rate else None
        fits = None if memory is None else needed(sums["peak"]) <= memory
        found.append(Forecast(strategy, **sums, sending=sending, fits=fits))
    if not found:
        raise UnsupportedFeatureError(left_out["ddp"])
    timed: Any = notes.facts.get(_TIMED, "the process took too long, or was lost")
    if device is not None and isinstance(timed, str):
        left_out["computing"] = timed
    return Scaling(
        config=grants.file,
        devices=devices,
        **update,
        computing=timed if isinstance(timed, float) else None,
        strategies=found,
        left_out=left_out,
    )


def in_child(
    devices: int, device: str | None, request: Request, note: Notebook, left: float
) -> None:
    """The work of the process."""
    cfg, grants = request.cfg, request.grants
    with as_asked(grants):
        try:
            import_named(grants.imports, grants.file)
            folders = search_folders(grants.file) if grants.everything else ()
            import_custom(cfg.copy(), folders)
            if isinstance(cfg.get("parallel"), Mapping):
                # for as many processes as the user has: here each rank has its own
                cfg.merge_from_dict({"parallel.mesh": None})
            one = replace(request, cfg=deepcopy(cfg))
            note.fact(_UPDATE, _rehearse(one, devices, note, left))
            if device is not None:  # after all that forks
                note.fact(_TIMED, _timed(cfg, device))
            note.done()
        except DevrunError as error:
            note.refused(error)


def _timed(cfg: Any, device: str) -> float | str:
    """Seconds of an update of the training on `device`, or why there are none."""
    cfg.merge_from_dict({"device": device})
    clock = _Clock()
    try:
        with trial(cfg, UPDATES, progress=False) as training:
            training.runner.register_hook(clock)
            training.run()
    except Exception as error:  # noqa: BLE001 - such as a batch that does not fit
        return one_line(error)
    spans = [after - before for before, after in zip(clock.ends, clock.ends[1:])]
    return statistics.median(spans) if spans else "it has a single update"


class _Clock(Hook):
    """When each update was over, on the device too."""

    priority = "LOWEST"

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_train_iter(self, runner: Run) -> None:
        runner.adapter.synchronize()
        self.ends.append(time.perf_counter())


def _rate(device: str) -> float | None:
    """Bytes a second that a rank was measured to send, in the worst all-reduce."""
    peaks = load(resolve_device(device))
    rows = [] if peaks is None else peaks.measured
    # what is kept counts 2 (n - 1)/n for each byte, which is what a ring sends
    return min((r.median * 1e9 for r in rows if r.kind == "all_reduce"), default=None)


def _rehearse(
    request: Request, devices: int, note: Notebook, seconds: float
) -> dict[str, Any]:
    """What an update is made of, and what it takes of a rank by each strategy.

    The model is built once; each strategy has a process, as groups and trackers stay.

    Returns:
        Plain data: `samples` of a micro-batch, `micro_batches`, and of each of the
        `strategies` the bytes by kind, or why there are none.

    Raises:
        DevrunError: the training, or its model without values, cannot be built.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    building = trial(request.cfg, 0, device="cpu", building=mode, progress=False)
    found: dict[str, dict[str, Any]] = {}
    with note.stage("the build"), _without_values(), building as training:
        batch = _batch(training, mode)
        with note.stage("the simulation"):
            for strategy in ("ddp", "fsdp") if devices > 1 else ("ddp",):
                try:
                    sums = partial(_sums, strategy, devices, training, batch, mode)
                    found[strategy] = aside(sums, seconds)
                except RuntimeError as error:
                    found[strategy] = {_REFUSED: f"the simulation ended: {error}"}
        policy = training.runner.session.policy
    return {
        "samples": batch_size_of(batch),
        "micro_batches": policy.accumulate,
        "strategies": found,
    }


def _batch(training: Training, mode: FakeTensorMode) -> Any:
    """A micro-batch without values, of the kind that the training reads."""
    runner = training.runner  # never prepared: weights without values stay so
    runner.session.step_module.optimizer = runner.optimizer
    loader = runner.adapter.prepare_dataloader(training.loaders[0], training=True)
    batch = next(iter(loader))
    with mode:
        return resized(batch, batch_size_of(batch))


def _sums(
    name: str, devices: int, training: Training, batch: Any, mode: FakeTensorMode
) -> dict[str, Any]:
    try:
        with _without_values():
            return _measured(name, devices, training, batch, mode)
    except DevrunError as error:
        return {_REFUSED: str(error)}


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
    except (DevrunError, *_NO_VALUES) as error:
        cause = error.__cause__ if isinstance(error, DevrunError) else error
        if not isinstance(cause, _NO_VALUES):
            raise
        raise UnsupportedFeatureError(
            "--devices builds and runs the model on tensors without values, and it "
            f"reads one: {cause_of(cause)}; take the value of no tensor, or check it "
            "without --devices"
        ) from error
