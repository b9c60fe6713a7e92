"""What only a CUDA device can show; the contract suite covers the rest."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.cli.main import main
from devrun.devices.resolve import resolve_device
from devrun.errors import DeviceMemoryError, DeviceUnavailableError
from devrun.models.step_module import StepModule
from devrun.step import MicroBatches, UpdatePolicy
from tests.support.cpu import batch, net
from tests.support.zygote import ROOT

pytestmark = pytest.mark.cuda


@pytest.fixture
def adapter():
    made = resolve_device("cuda")
    made.setup(0)
    yield made
    made.teardown()


def prepared(adapter, model, **policy):
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


def test_memory_is_counted_and_given_back(adapter):
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device=adapter.device)
    assert adapter.stats()["peak_mib"] >= 64
    held = torch.cuda.memory_reserved()
    del block
    adapter.empty_cache()
    assert torch.cuda.memory_reserved() < held


def test_out_of_memory_is_one_line(adapter):
    class Huge(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x) + torch.empty(2**46, device=x.device)[0]

    model, optimizer = prepared(adapter, Huge())
    with pytest.raises(DeviceMemoryError, match="cuda:0 with 8 samples"):
        adapter.train_step(model, on_gpu(batch()), optimizer)


def test_it_trains_as_the_cpu_does_in_fp32():
    config = str(ROOT / "configs/digits/resnet8_digits.yaml")
    assert main(["compare", config, "--devices", "cpu,cuda", "--steps", "2"]) == 0


def test_an_index_that_is_not_here_is_refused():
    with pytest.raises(DeviceUnavailableError, match="cuda:99 is not here"):
        resolve_device("cuda:99").setup(0)


def test_tf32_holds_from_setup_to_teardown():
    before = torch.get_float32_matmul_precision()
    adapter = resolve_device({"type": "cuda", "tf32": True, "cudnn_benchmark": True})
    adapter.setup(0)
    assert torch.get_float32_matmul_precision() == "high"
    adapter.teardown()
    assert torch.get_float32_matmul_precision() == before
