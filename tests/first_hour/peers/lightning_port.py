"""cifar_script.py with Lightning Fabric, for what Fabric knows."""

import argparse
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=192, depth=6, heads=3, patch=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (32 // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


def read(folder, names):
    records = [
        np.fromfile(os.path.join(folder, f"{name}.bin"), np.uint8).reshape(-1, 3073)
        for name in names
    ]
    records = np.concatenate(records)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).float()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return TensorDataset((images - mean) / std, labels)


def rate(step, steps, warmup):
    warm = min(1.0, 0.01 + 0.99 * step / warmup)
    return warm * 0.5 * (1 + math.cos(math.pi * step / steps))


def evaluate(model, loader):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
            count += len(labels)
    return right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--in-order", action="store_true", help="do not shuffle")
    args = parser.parse_args()
    fabric = Fabric(accelerator=args.device, devices=1)
    fabric.launch()
    torch.manual_seed(0)
    model = ViT()
    train = read(args.data, [f"data_batch_{number}" for number in range(1, 6)])
    loader = DataLoader(train, args.batch_size, shuffle=not args.in_order)
    test = DataLoader(read(args.data, ["test_batch"]), args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    model, optimizer = fabric.setup(model, optimizer)
    loader, test = fabric.setup_dataloaders(loader, test)
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate(step, steps, args.warmup)
    )
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        began = time.time()
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.6f}", flush=True)
        accuracy = evaluate(model, test)
        print(f"epoch {epoch} accuracy {accuracy:.4f} {time.time() - began:.1f} s")
        if accuracy > best:
            best = accuracy
            fabric.save("best.pth", {"model": model})


if __name__ == "__main__":
    main()
