"""A script for several GPUs, and weights that were saved on one."""

# check: --device hpu
import io

import habana_frameworks.torch.core as htcore
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl", "tcp://127.0.0.1:0", rank=0, world_size=1)  # fault[hpu]: nccl
# remedy: -
props = torch.cuda.get_device_properties(0)  # fault[hpu]: get_device_properties
# remedy: props = torch.hpu.get_device_properties(0)
print(props)
model = nn.DataParallel(nn.Linear(4, 2)).to("hpu")  # fault[hpu]: DataParallel
# remedy: model = nn.Linear(4, 2).to("hpu")
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file, map_location="cuda:0"))  # fault[hpu]: map_location
# remedy: model.load_state_dict(torch.load(file, map_location="cpu"))
generator = torch.Generator("cuda")  # fault[hpu]: Generator
# remedy: generator = torch.Generator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.rand(2, 4, generator=generator).to("hpu")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
