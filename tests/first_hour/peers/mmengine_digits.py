"""The project of `devrun new`, as one writes it for MMEngine."""

import argparse

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset


class MyDigits(Dataset):
    def __init__(self, split="train"):
        digits = load_digits()
        held_out = torch.arange(len(digits.target)) % 5 == 0
        chosen = held_out if split == "val" else ~held_out
        self.images = torch.tensor(digits.images, dtype=torch.float32)[chosen, None]
        self.labels = torch.tensor(digits.target)[chosen]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return (self.images[index] - 4.9) / 6.0, self.labels[index]


class MyNet(BaseModel):
    def __init__(self, width=16, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, images, labels, mode):
        output = self.head(self.body(images).flatten(1))
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(output, labels)}
        return output, labels


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
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--work-dir", default="work")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    collate = {"type": "default_collate"}
    sampler = {"type": "DefaultSampler"}
    loader = {"batch_size": 64, "num_workers": 0, "collate_fn": collate}
    runner = Runner(
        model=MyNet(),
        work_dir=args.work_dir,
        train_dataloader={
            **loader, "dataset": MyDigits(), "sampler": {**sampler, "shuffle": True},
        },
        val_dataloader={
            **loader, "dataset": MyDigits("val"),
            "sampler": {**sampler, "shuffle": False},
        },
        train_cfg={"by_epoch": True, "max_epochs": args.epochs},
        val_cfg={},
        val_evaluator=[Accuracy()],
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": args.lr}},
        param_scheduler={
            "type": "CosineAnnealingLR", "eta_min": 0, "T_max": args.epochs,
            "convert_to_iter_based": True,
        },
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": 10},
            "checkpoint": {
                "type": "CheckpointHook", "max_keep_ckpts": 2, "save_best": "accuracy",
            },
        },
        randomness={"seed": 0},
        resume=args.resume,
    )  # fmt: skip
    runner.train()


if __name__ == "__main__":
    main()
