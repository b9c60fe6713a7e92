import pytest
import torch
from torch.utils.data import DataLoader

from devrun.models import LSTM
from devrun.runners import IterBasedRunner
from tests.support.observe import Losses


def losses(device):
    torch.manual_seed(0)
    model = LSTM(31, hidden_size=12)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 31, (8, 10), generator=draw)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    runner = IterBasedRunner(model, optimizer=optimizer, device=device, max_iters=3)
    seen = Losses()
    runner.register_hook(seen)
    runner.run([DataLoader(data, batch_size=4)])
    runner.close()
    return seen.values


def test_an_ipu_trains_it_as_the_cpu_does():
    found = losses({"type": "ipu", "emulate": True})
    assert found == pytest.approx(losses("cpu"), rel=1e-5)  # of float32
    assert found[2] < found[0]
