"""A script for torchrun on many GPUs, with mixed precision, a sampler, a schedule and a checkpoint."""

# check: --device hpu
import os

import torch  # fault[hpu]: not imported
# remedy: import torch
# remedy+: import habana_frameworks.torch.core as htcore
# remedy+: import habana_frameworks.torch.distributed.hccl
import torch.distributed as dist
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def average(value):
    value = value.clone()
    dist.all_reduce(value)
    return value / world


def main():
    dist.init_process_group(backend="nccl", rank=rank, world_size=world)  # fault[hpu]: nccl
    # remedy: dist.init_process_group(backend="hccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)  # fault[hpu]: set_device
    # remedy: -
    device = torch.device("cuda", rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)  # fault[hpu]: cuda
    # remedy: model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to("hpu")
    model = DDP(model, gradient_as_bucket_view=True)
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 8, sampler=sampler, pin_memory=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=12)
    scaler = GradScaler()  # fault[hpu]: cuda
    for epoch in range(2):
        sampler.set_epoch(epoch)
        running = 0.0
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  # fault[hpu]: cuda
            # remedy: x, y = x.to("hpu", non_blocking=True), y.to("hpu", non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with autocast():  # fault[hpu]: cuda
            # remedy: with torch.autocast("hpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # fault[hpu]: no step mark
            # remedy: scaler.step(optimizer)
            # remedy+: htcore.mark_step()
            scaler.update()
            schedule.step()
            running += average(loss.detach()).item()  # fault[hpu]: host waits
        if rank == 0:
            torch.save(model.module.state_dict(), "/dev/null")
            print(epoch, running.mean())  # fault[hpu]: raises
            # remedy: print(epoch, running / 6)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
