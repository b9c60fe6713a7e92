"""A training written for CUDA, on the emulated device: run by test_processes.py."""

import sys
from pathlib import Path

import habana_frameworks.torch.core  # noqa: F401 - makes the device known
import torch
from habana_frameworks import emulator
from torch import nn

work_dir = Path(sys.argv[1])
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.manual_seed(3)
torch.cuda.set_device(3)  # a rank's number; each process has one device
host = nn.Linear(4, 2)
model = nn.Linear(4, 2).cuda()
model.load_state_dict(host.state_dict())
assert model.weight.device.type == "hpu" and model.weight.is_cuda
for device in ("cuda:0", torch.device("cuda", 1), 0):
    assert nn.Linear(2, 2).to(device).weight.is_hpu
assert torch.randn(3, device="cuda").is_hpu
assert torch.ones(2).new_zeros(2, device="cuda").is_hpu

data = torch.utils.data.TensorDataset(torch.randn(8, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
    assert x.is_pinned()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, host)]
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16, enabled=False):
        loss = model(x.cuda(non_blocking=True)).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizers[0])
    scaler.update()
    host(x).pow(2).mean().backward()
    optimizers[1].step()
    for optimizer in optimizers:
        optimizer.zero_grad()
torch.testing.assert_close(model.weight.detach().cpu(), host.weight.detach())

with torch.autocast("cuda", dtype=torch.float16):
    assert model(x.cuda()).dtype is torch.bfloat16
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.max_memory_allocated(0) > 0
assert torch.cuda.get_device_properties(0).total_memory == 96 << 30
state = torch.cuda.get_rng_state()
drawn = torch.rand(3, device="cuda").cpu()
torch.cuda.set_rng_state(state)
assert torch.equal(drawn, torch.rand(3, device="cuda").cpu())
torch.save(model.state_dict(), work_dir / "weights.pt")
assert torch.load(work_dir / "weights.pt", map_location="cuda")["weight"].is_hpu
compiled = torch.compile(model)  # inductor, were it a GPU
compiled(x.cuda()).sum().backward()
assert emulator.report().of("compilation")
