"""One rank of many in one process: torch's fake process group, tensors without values.

Collectives of the group do nothing, so that nothing is said of results: of shapes,
of FLOPs and of memory everything is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils.flop_counter import FlopCounterMode

from devrun.blame import cause_of
from devrun.devices.precision import autocast_for
from devrun.errors import DevrunError, UnsupportedFeatureError
from devrun.parallel.fsdp import units_of
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import Strategy, optimizers_in, strategy_for
from devrun.rehearsal.check.aside import aside
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.parent import refusal_of
from devrun.rehearsal.check.request import Request
from devrun.rehearsal.memory import as_on_gpu, resized, size_of, update_memory
from devrun.runners.session import Session
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.tensors import batch_size_of, tensors_in

MEMORY, WORK = "memory", "work"
_NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Rank:
    """Rank 0, which has the largest shards, of replicate x shard x tensor processes.

    A sharded one keeps a share of weights, gradients and optimizer state, and gathers
    a block at a time; `tensor` of them divide matrices, and take each other's samples.
    """

    strategy: str
    replicate: int
    shard: int
    tensor: int = 1

    @property
    def devices(self) -> int:
        return self.replicate * self.shard * self.tensor


def rehearse_ranks(
    request: Request, ranks: Iterable[Rank], note: Notebook, seconds: float
) -> None:
    """Write down the memory of each rank, by strategy, and what an update computes.

    The model is built once; each rank has a process, as groups and trackers stay.

    Raises:
        DevrunError: the training, or its model without values, cannot be built or run.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    found = {}
    with ExitStack() as whole:
        with note.stage("the build"):
            building = trial(
                request.cfg, 0, device="cpu", building=mode, progress=False
            )
            with without_values():
                training = whole.enter_context(building)
            batch = _batch(training, mode)
        whole.enter_context(note.stage("the simulation"))
        work = partial(_work, training.runner.session, batch, mode)
        note.fact(WORK, _aside(request, work, seconds))
        for rank in ranks:
            sums = partial(_memory, rank, training, batch, mode)
            try:
                found[rank.strategy] = _aside(request, sums, seconds)
            except DevrunError as error:
                found[rank.strategy] = {"refused": str(error)}
    note.fact(MEMORY, found)


def _aside(request: Request, work: Callable[[], Any], seconds: float) -> Any:
    """What `work` returns in a process of its own.

    Raises:
        DevrunError: as it did; or it ended.
    """

    def careful() -> Any:
        try:
            return work(), None
        except DevrunError as error:
            return None, (error.exit_code, str(error))

    try:
        result, refused = aside(request, careful, seconds)
    except RuntimeError as error:
        raise DevrunError(f"the simulation ended: {error}") from error
    if refused is not None:
        raise refusal_of(refused)
    return result


def _batch(training: Training, mode: FakeTensorMode) -> Any:
    """A micro-batch without values, of the kind that the training reads."""
    runner = training.runner  # never prepared: weights without values stay so
    runner.session.step_module.optimizer = runner.optimizer
    loader = runner.adapter.prepare_dataloader(training.loaders[0], training=True)
    batch = next(iter(loader))
    with mode:
        return resized(batch, batch_size_of(batch), fake=True)


def _memory(
    rank: Rank, training: Training, batch: Any, mode: FakeTensorMode
) -> dict[str, int]:
    """Bytes by kind at the highest moment of the second update, and its sum.

    Divided matrices that are sharded too cannot be simulated (a mesh of two dimensions
    looks at its values in the step): what is kept is divided by the shards then, and
    the two largest blocks are added as gathered.
    """
    shards = rank.shard if rank.tensor > 1 else 1
    rank = replace(rank, shard=rank.shard // shards)
    session = training.runner.session
    model, optimizer = session.step_module, _only(session.optimizer)
    # by names of classes, which `fully_shard` changes
    units = units_of(session.model, session.adapter.parallel.wrap)
    if rank.tensor == 1:  # torch's loops over lists take tensors of one kind
        as_on_gpu(optimizer)
    autocast = autocast_for(session.policy.precision, "cpu")
    if rank.strategy != "ddp":
        strategy = _strategy(rank, training)
        strategy.check(session.policy, model, optimizer)
        autocast = None if strategy.casts else autocast
        with mode:
            if rank.tensor > 1:
                batch = resized(batch, batch_size_of(batch) * rank.tensor, fake=True)
            strategy.apply(model, optimizer)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.training = False  # one divided would draw a seed, a value
    largest = sorted((size_of(unit.parameters()) for unit in units), reverse=True)
    with without_values():
        use = update_memory(model, [optimizer], [batch], autocast=autocast, inside=mode)
    found, kept, peak = Counter(use.bytes), use.kept, use.peak
    if shards > 1:
        found["gathered"] += sum(largest[:2])
        peak += sum(largest[:2])
        peak -= sum(found[kind] - -(-found[kind] // shards) for kind in kept)
        kept = {kind: -(-size // shards) for kind, size in kept.items()}
    views = session.adapter.parallel.gradient_as_bucket_view
    if rank.strategy == "ddp" and rank.devices > 1 and not views:
        found["buckets"] = kept["gradients"]  # which DDP reduces, beside gradients
        peak += found["buckets"]
    return {**found, **kept, "peak": peak}


def _strategy(rank: Rank, training: Training) -> Strategy:
    """That of the config's `parallel`, on as many ranks of torch's fake group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=rank.devices)
    given = training.runner.session.adapter.parallel
    if given.type == "ddp":  # whose options others refuse
        given = ParallelOptions()
    sizes = {"replicate": rank.replicate, "shard": rank.shard, "tensor": rank.tensor}
    options = replace(given, type="fsdp", mesh=sizes)
    mesh = Mesh(options, "cpu")
    _ = mesh.data, mesh.tensor  # a mesh has values: made before tensors have none
    return strategy_for(options, mesh, torch.device("cpu"))


def _only(optimizer: Any) -> Any:
    found = optimizers_in(optimizer)
    if len(found) != 1:
        raise UnsupportedFeatureError(
            f"--devices simulates a training with one optimizer, got {len(found)}"
        )
    return found[0]


@contextmanager
def without_values() -> Iterator[None]:
    """Within, what a model cannot do without values is one line."""
    try:
        yield
    except DevrunError as error:
        if isinstance(error.__cause__, _NO_VALUES):
            raise _needs_values(error.__cause__) from error
        raise
    except _NO_VALUES as error:
        raise _needs_values(error) from error


def _needs_values(error: BaseException) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        "--devices builds and runs the model on tensors without values, and it reads "
        f"one: {cause_of(error)}; take the value of no tensor, or check it without "
        "--devices"
    )


def _work(session: Session, batch: Any, mode: FakeTensorMode) -> dict[str, Any]:
    """FLOPs of a micro-batch, and the weights that are exchanged, as plain data."""
    model, policy = session.step_module, session.policy
    autocast = autocast_for(policy.precision, "cpu")
    blocks = units_of(session.model, session.adapter.parallel.wrap)
    outputs: list[int] = []

    def note(_: nn.Module, __: Any, out: Any) -> None:
        outputs.append(sum(tensor.nbytes for tensor in tensors_in(out)))

    handles = [block.register_forward_hook(note) for block in blocks]
    counter = FlopCounterMode(display=False)
    with mode, without_values(), counter:
        with autocast or nullcontext():
            loss = model(batch, "train")["loss"]
        loss.backward()
    for handle in handles:
        handle.remove()
    inside = {id(p) for block in blocks for p in block.parameters()}
    weights: dict[bool, list[Any]] = {True: [], False: []}
    for p in model.parameters():
        rows = p.shape[0] if p.dim() else 1
        weights[id(p) in inside].append((rows, p.nbytes, p.requires_grad))
    return {
        "flops": counter.get_total_flops(),
        "blocks": weights[True],
        "rest": weights[False],
        "outputs": sum(outputs),
        "samples": batch_size_of(batch),
        "micro batches": policy.accumulate,
        "precision": policy.precision,
    }
