"""The cost model: its formulas, and that it counts what torch really sends."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.errors import ConfigError, UnknownNameError
from devrun.models.step_module import StepModule
from devrun.parallel.fsdp import FSDP
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.rehearsal.scaling import (
    FABRICS,
    Fabric,
    Link,
    Part,
    Weight,
    Work,
    fabric_of,
    fitted,
    predict,
)
from devrun.rehearsal.scaling.cost import buckets

COUNTS = [1 << n for n in range(11)]
SLOW = Fabric("slow", Link(1e-5, 1e9))


def work(blocks=4, size=8 << 20, **changes):
    block = Part((Weight(1024, size),), share=0.9 / blocks, output=1 << 20)
    rest = Part((Weight(1000, 4 << 20),), share=0.1)
    return Work(0.1, 0.2, 0.01, (block,) * blocks, rest, **changes)


def test_a_ring_takes_what_the_formula_says():
    link = Link(2e-6, 1e9)
    assert link.exchange(8e6, 4) == pytest.approx(3 * 2e-6 + 3 / 4 * 8e6 / 1e9)
    assert link.exchange(8e6, 1) == 0
    dgx = Fabric("", Link(1e-6, 4e9), box=8, across=Link(1e-5, 1e9))
    # a ring in the box on all bytes, and one across on an eighth
    expected = 7 * 1e-6 + 7 / 8 * 8e6 / 4e9 + 3 * 1e-5 + 3 / 4 * 1e6 / 1e9
    assert dgx.exchange(8e6, *dgx.split(32)) == pytest.approx(expected)


@pytest.mark.parametrize("name", FABRICS)
def test_the_tables_are_monotone(name):
    fabric = FABRICS[name]
    counts = [n for n in COUNTS if n <= (fabric.most or 1024)]
    for strategy in fabric.strategies:
        found = [predict(work(), fabric, strategy, n) for n in counts]
        assert found[0].exposed == 0 and found[0].efficiency == pytest.approx(1)
        for smaller, larger in itertools.pairwise(found):
            assert larger.exposed >= smaller.exposed
            assert larger.sent >= smaller.sent
        for one in found:
            assert one.replicate * one.shard * one.tensor == one.devices
            assert 0 < one.efficiency <= 1.04  # each has a share of the optimizer


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hybrid", "tensor"])
def test_a_faster_link_never_takes_longer(strategy):
    rates = [1e8, 1e9, 1e10, 1e12]
    fabrics = [Fabric("", Link(1e-6, 10 * rate), 4, Link(1e-5, rate)) for rate in rates]
    times = [predict(work(), each, strategy, 64).seconds for each in fabrics]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]


def test_exchanges_hide_behind_the_backward_pass():
    fast = predict(work(), Fabric("", Link(0, 1e12)), "ddp", 8)
    assert fast.exposed < 1e-4
    alone = Fabric("", Link(1e-5, 1e9), overlaps=())
    sums = sum(2 * SLOW.exchange(size, 8) for size, _ in buckets(work()))
    assert predict(work(), alone, "ddp", 8).exposed == pytest.approx(sums)
    hidden = predict(work(), SLOW, "ddp", 8).exposed
    assert 0 < hidden < sums


def test_accumulation_divides_what_is_exposed():
    one, four = (predict(work(micro_batches=n), SLOW, "ddp", 8).exposed for n in (1, 4))
    assert one == pytest.approx(four)


def test_a_link_is_found_again_from_its_times():
    link = Link(5e-5, 2e8)
    sizes = [1e4, 1e5, 1e6, 1e7]
    found = fitted([(size, 2 * link.exchange(size, 4)) for size in sizes], 4)
    assert found.latency == pytest.approx(link.latency)
    assert found.bandwidth == pytest.approx(link.bandwidth)
    with pytest.raises(ValueError, match="two sizes"):
        fitted([(1e4, 1.0)], 4)


@pytest.mark.parametrize(
    ("text", "latency", "bandwidth"),
    [
        ("5us,50GB/s", 5e-6, 50e9),
        ("1ms, 1Gbit/s", 1e-3, 1.25e8),
        ("0s,2e9B", 0, 2e9),
    ],
)
def test_a_link_may_be_given(text, latency, bandwidth):
    link = fabric_of(text, FABRICS).inside
    assert (link.latency, link.bandwidth) == pytest.approx((latency, bandwidth))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("dgx-h10", UnknownNameError, "did you mean 'dgx-h100'"),
        ("5us", UnknownNameError, "no link '5us'"),
        ("-5us,50GB/s", ConfigError, "is not a latency of 0 or more"),
        ("5us,-50GB/s", ConfigError, "a bandwidth above 0"),
        ("5us,0GB/s", ConfigError, "a bandwidth above 0"),
        ("fast,faster", ConfigError, "such as 5us,50GB/s"),
        ("1e400s,50GB/s", ConfigError, "is not a latency"),
    ],
)
def test_a_link_that_is_none_is_refused(text, kind, said):
    with pytest.raises(kind, match=said.replace("'", ".")):
        fabric_of(text, FABRICS)


class Sent(TorchDispatchMode):
    """Bytes of the collectives of an update, as one rank sends them on a ring."""

    def __init__(self, world):
        super().__init__()
        self.world, self.bytes = world, 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        share, name = (self.world - 1) / self.world, func.name().partition("::")[2]
        if name == "_allgather_base_":
            self.bytes += share * args[0].nbytes
        elif name == "_reduce_scatter_base_":
            self.bytes += share * args[1].nbytes
        return out

    def bucket(self, bucket):
        """What DDP calls for one, of whose operations a mode sees nothing."""
        self.bytes += 2 * (self.world - 1) / self.world * bucket.buffer().nbytes
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


class Deep(nn.Module):
    """Three blocks, whose sizes no number of ranks divides, a stem and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(7, 33)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 33))
            for _ in range(3)
        )
        self.head = nn.Linear(33, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(params=[4, 6])
def world(request):
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_bytes_are_those_that_torch_sends(world, strategy):
    torch.manual_seed(0)
    model = Deep()
    parts = [
        Part(tuple(Weight(len(p), p.nbytes) for p in each.parameters()), 0.2)
        for each in model.blocks
    ]
    rest = [*model.stem.parameters(), *model.head.parameters()]
    whole = Part(tuple(Weight(len(p), p.nbytes) for p in rest), 0.4)
    predicted = predict(
        Work(1, 2, 0, tuple(parts), whole), FABRICS["nvlink4"], strategy, world
    )
    sent = Sent(world)
    if strategy == "ddp":
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(sent, Sent.bucket)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = ParallelOptions(type="fsdp")
        fsdp = FSDP(options, Mesh(options), torch.device("cpu"))
        fsdp.apply(StepModule(model, nn.MSELoss()), optimizer)
        wrapped = model
    with sent if strategy == "fsdp" else nullcontext():
        wrapped(torch.randn(3, 7)).sum().backward()
    assert sent.bytes == pytest.approx(predicted.sent, rel=1e-6)
