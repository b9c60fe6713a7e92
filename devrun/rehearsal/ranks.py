"""One rank of many in one process: torch's fake process group, tensors without values.

Collectives of the group do nothing, so that nothing is said of results: of shapes, of
memory and of the bytes that are sent everything is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from devrun.devices.precision import autocast_for
from devrun.errors import DevrunError, UnsupportedFeatureError
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import Strategy, optimizers_in, strategy_for
from devrun.probes.aside import aside
from devrun.probes.memory import as_on_gpu, resized, update_memory
from devrun.probes.notebook import Notebook
from devrun.probes.request import Request
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.tensors import batch_size_of, nbytes

REFUSED = "refused"
_NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Rank:
    """Rank 0, which has the largest shards, of replicate x shard processes.

    A sharded one keeps a share of weights, gradients and optimizer state, and gathers
    a block at a time.
    """

    strategy: str
    replicate: int
    shard: int


def rehearse_ranks(
    request: Request, ranks: Iterable[Rank], note: Notebook, seconds: float
) -> dict[str, Any]:
    """What an update is made of, and what it takes of each rank.

    The model is built once; each rank has a process, as groups and trackers stay.

    Returns:
        Plain data: `samples` of a micro-batch, `micro_batches`, and of each of `ranks`
        the bytes by kind, or why there are none.

    Raises:
        DevrunError: the training, or its model without values, cannot be built.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    building = trial(request.cfg, 0, device="cpu", building=mode, progress=False)
    found: list[dict[str, Any]] = []
    with note.stage("the build"), _without_values(), building as training:
        batch = _batch(training, mode)
        with note.stage("the simulation"):
            for rank in ranks:
                try:
                    sums = partial(_sums, rank, training, batch, mode)
                    found.append(aside(sums, seconds))
                except RuntimeError as error:
                    found.append({REFUSED: f"the simulation ended: {error}"})
        policy = training.runner.session.policy
    return {
        "samples": batch_size_of(batch),
        "micro_batches": policy.accumulate,
        "ranks": found,
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
    rank: Rank, training: Training, batch: Any, mode: FakeTensorMode
) -> dict[str, Any]:
    try:
        with _without_values():
            return _measured(rank, training, batch, mode)
    except DevrunError as error:
        return {REFUSED: str(error)}


def _measured(
    rank: Rank, training: Training, batch: Any, mode: FakeTensorMode
) -> dict[str, Any]:
    """Bytes sent in an update, and by kind at the highest moment of the second one."""
    session = training.runner.session
    policy, parallel = session.policy, session.adapter.parallel
    model, optimizer = session.step_module, _only(session.optimizer)
    as_on_gpu(optimizer)
    autocast = autocast_for(policy.precision, "cpu")
    if rank.strategy != "ddp":
        strategy = _strategy(rank, parallel)
        strategy.check(policy, model, optimizer)
        autocast = None if strategy.casts else autocast
        with mode:
            strategy.apply(model, optimizer)
    sent = _Sent(rank.replicate, policy.accumulate)
    with sent:
        use = update_memory(model, [optimizer], [batch], autocast=autocast, inside=mode)
    found, buckets, peak = use.bytes, 0, use.peak
    if rank.strategy == "ddp" and rank.replicate > 1:
        sent.reduced(2 * use.kept["gradients"])  # after each of the two updates
        if not parallel.gradient_as_bucket_view:
            buckets = use.kept["gradients"]  # which DDP reduces, beside gradients
            peak += buckets
    return {
        "sent": sent.bytes / 2,
        "weights": use.kept["weights"],
        "gradients": use.kept["gradients"],
        "optimizer_state": use.kept["optimizer state"],
        "activations": found.get("activations", 0),
        "gathered": found.get("gathered", 0),
        "buckets": buckets,
        "peak": peak,
    }


class _Sent(TorchDispatchMode):
    """Counts the bytes that a rank sends, where collectives are rings.

    All-reduces are among `copies` of a shard. One of the `micro_batches` is run: each
    gathers weights, and only the last exchanges gradients.
    """

    def __init__(self, copies: int, micro_batches: int) -> None:
        super().__init__()
        self.copies, self.micro_batches = copies, micro_batches
        self.bytes = 0.0

    def reduced(self, size: int) -> None:
        """An all-reduce sends as much as a reduce-scatter and an all-gather."""
        self.bytes += 2 * size * (self.copies - 1) / self.copies

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        if name == "c10d::_allgather_base_":  # all but its own share
            self.bytes += self.micro_batches * (nbytes(args[0]) - nbytes(args[1]))
        elif name == "c10d::_reduce_scatter_base_":
            self.bytes += nbytes(args[1]) - nbytes(args[0])
        elif name == "c10d::allreduce_":
            self.reduced(sum(nbytes(tensor) for tensor in args[0]))
        return func(*args, **(kwargs or {}))


def _strategy(rank: Rank, given: ParallelOptions) -> Strategy:
    """That of the config's `parallel`, on as many ranks of torch's fake group."""
    sizes = {"replicate": rank.replicate, "shard": rank.shard}
    world = rank.replicate * rank.shard
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    if given.type == "ddp":  # whose options others refuse
        given = ParallelOptions()
    options = replace(given, type="fsdp", mesh=sizes)
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
