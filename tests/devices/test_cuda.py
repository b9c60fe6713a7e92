"""What only a CUDA device can show; the contract suite covers the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.devices.cuda import CUDAAdapter
from devrun.devices.resolve import resolve_device
from devrun.errors import (
    DeviceMemoryError,
    DeviceUnavailableError,
    UnsupportedFeatureError,
)
from devrun.models.step_module import StepModule
from devrun.step import MicroBatches, UpdatePolicy
from tests.support.cpu import batch, net
from tests.support.observe import Lines

pytestmark = pytest.mark.cuda


@pytest.fixture
def adapter():
    made = resolve_device("cuda")
    made.setup(0)
    yield made
    made.teardown()


def prepared(adapter: CUDAAdapter, model: nn.Module, **policy):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    module = StepModule(model, nn.CrossEntropyLoss())
    return adapter.prepare(module, optimizer, UpdatePolicy(**policy))


def on_gpu(data):
    return tuple(part.cuda() for part in data)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_follows_fp32(adapter, precision):
    losses = []
    for each in ("fp32", precision):
        model, optimizer = prepared(adapter, net(), precision=each)
        steps = [
            adapter.train_step(model, on_gpu(batch()), optimizer) for _ in range(5)
        ]
        losses.append([float(step.loss) for step in steps])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_copied_aside_arrive_whole_and_in_order(adapter, accumulate):
    prepared(adapter, net(), accumulate=accumulate)
    rows = torch.arange(4096.0)[:, None].expand(-1, 64).contiguous()
    loader = adapter.prepare_dataloader(
        DataLoader(TensorDataset(rows), batch_size=64), training=True
    )
    work = torch.randn(2048, 2048, device="cuda")
    expected = 0
    for item in loader:
        for (part,) in item if isinstance(item, MicroBatches) else [item]:
            for _ in range(4):  # keep compute busy while the next copy runs
                work = work @ work.T / work.norm()
            first = part[:, 0].clone()
            assert part.is_cuda
            assert first.tolist() == list(range(expected, expected + 64))
            expected += 64
    assert expected == 4096


def test_fast_trains_with_compiled_blocks_in_low_precision():
    adapter = resolve_device({"type": "cuda", "performance": "fast"})
    adapter.setup(0)
    model, optimizer = prepared(adapter, net())
    steps = [adapter.train_step(model, on_gpu(batch()), optimizer) for _ in range(20)]
    assert optimizer.param_groups[0]["fused"] is True
    assert torch.get_float32_matmul_precision() == "high"
    assert adapter.options.compile == {"regions": True}
    assert float(steps[-1].loss) < float(steps[0].loss)
    adapter.teardown()
    assert torch.get_float32_matmul_precision() == "highest"


class Dropping(nn.Module):
    """A model that draws, and reads a value where it is told to."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.linear, self.drop, self.reads = nn.Linear(4, 3), nn.Dropout(0.2), reads

    def forward(self, x):
        x = self.drop(self.linear(x))
        return x * float(x.mean()) if self.reads else x


def graphed(graphs, make=torch.optim.AdamW, model=None, updates=30, **policy):
    """(losses, weights, what did the updates) of a short training."""
    adapter = resolve_device({"type": "cuda", "graphs": graphs})
    adapter.setup(0)
    torch.manual_seed(0)
    model = Dropping() if model is None else model
    module = StepModule(model, nn.CrossEntropyLoss())
    optimizer = make(model.parameters(), lr=0.05)
    module, optimizer = adapter.prepare(module, optimizer, UpdatePolicy(**policy))
    losses = []
    for number in range(updates):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + number)
        losses.append(adapter.train_step(module, on_gpu(batch()), optimizer).loss)
    captured = adapter.update.instead
    values = torch.stack(losses).tolist()
    weights = [param.detach().cpu() for param in model.parameters()]
    adapter.teardown()
    return values, weights, captured


def fused(params, **options):
    return torch.optim.AdamW(params, fused=True, **options)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, fused])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_updates_from_a_graph_are_those_without(make, precision):
    clipped = {"grad_clip": {"max_norm": 0.5}, "precision": precision}
    plain = graphed(False, make, **clipped)
    captured = graphed(True, make, **clipped)
    assert captured[2].captured == 1 and not captured[2].refused
    assert captured[0] == pytest.approx(plain[0], rel=1e-4)
    for mine, theirs in zip(captured[1], plain[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_model_that_reads_a_value_trains_without_a_graph():
    plain = graphed(False, model=Dropping(reads=True))
    left = graphed("auto", model=Dropping(reads=True))
    assert left[2].refused
    assert left[0] == plain[0]
    with pytest.raises(UnsupportedFeatureError, match="waits for the device"):
        graphed(True, model=Dropping(reads=True))


def test_auto_decides_and_says_so():
    with Lines() as log:
        graphed("auto", updates=60)
    assert "cuda graphs: auto keeps" in log.text


def test_memory_is_counted_and_given_back(adapter):
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device=adapter.device)
    assert adapter.memory_stats()["peak_mib"] >= 64
    held = torch.cuda.memory_reserved()
    del block
    adapter.empty_cache()
    assert torch.cuda.memory_reserved() < held


def test_out_of_memory_is_one_line(adapter):
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x) + torch.empty(2**46, device=x.device)[0]

    model, optimizer = prepared(adapter, Huge())
    with pytest.raises(DeviceMemoryError, match="cuda:0 with 8 samples"):
        adapter.train_step(model, on_gpu(batch()), optimizer)


def test_an_index_that_is_not_here_is_refused():
    with pytest.raises(DeviceUnavailableError, match="cuda:99 is not here"):
        resolve_device("cuda:99").setup(0)


def test_devices_are_listed_with_memory_and_dtypes():
    for found in CUDAAdapter.list_devices():
        assert found.memory_bytes > 2**28
        assert {"fp32", "fp16"} <= set(found.dtypes)


def test_tf32_holds_from_setup_to_teardown():
    before = torch.get_float32_matmul_precision()
    adapter = resolve_device({"type": "cuda", "tf32": True, "cudnn_benchmark": True})
    adapter.setup(0)
    assert torch.get_float32_matmul_precision() == "high"
    adapter.teardown()
    assert torch.get_float32_matmul_precision() == before
