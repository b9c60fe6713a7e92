"""cifar_script.py on MMEngine's Runner, on devices that MMEngine finds."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
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


class ViT(BaseModel):
    def __init__(self, dim=192, depth=6, heads=3, patch=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (32 // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images, labels, mode):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        output = self.head(self.norm(self.blocks(x)).mean(1))
        if mode == "loss":
            loss = F.cross_entropy(output, labels, label_smoothing=0.1)
            return {"loss": loss}
        return output, labels


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


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        output, labels = data_samples
        right = (output.argmax(1) == labels).sum().item()
        self.results.append({"right": right, "count": len(labels)})

    def compute_metrics(self, results):
        count = sum(one["count"] for one in results)
        return {"accuracy": sum(one["right"] for one in results) / count}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--in-order", action="store_true", help="do not shuffle")
    args = parser.parse_args()
    train = read(args.data, [f"data_batch_{number}" for number in range(1, 6)])
    loader = DataLoader(train, args.batch_size, shuffle=not args.in_order)
    test = DataLoader(read(args.data, ["test_batch"]), args.batch_size)
    steps = args.epochs * len(loader)
    runner = Runner(
        model=ViT(),
        work_dir="work",
        train_dataloader=loader,
        val_dataloader=test,
        train_cfg={"by_epoch": True, "max_epochs": args.epochs},
        val_cfg={},
        val_evaluator=[Accuracy()],
        optim_wrapper={
            "optimizer": {"type": "AdamW", "lr": args.lr, "weight_decay": 0.05},
            "clip_grad": {"max_norm": 1.0},
        },
        param_scheduler=[
            {"type": "LinearLR", "start_factor": 0.01, "by_epoch": False,
             "end": args.warmup},
            {"type": "CosineAnnealingLR", "by_epoch": False, "T_max": steps},
        ],
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": 50},
            "checkpoint": {"type": "CheckpointHook", "save_best": "accuracy"},
        },
        randomness={"seed": 0},
    )  # fmt: skip
    runner.train()


if __name__ == "__main__":
    main()
