"""The project of `devrun new`, as one writes it for Lightning."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy


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


class MyNet(nn.Module):
    def __init__(self, width=16, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))


class Training(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.model, self.loss = MyNet(), nn.CrossEntropyLoss()
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, index):
        images, labels = batch
        loss = self.loss(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        output = self.model(images)
        self.log("val_loss", self.loss(output, labels))
        self.accuracy(output, labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        step = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": step}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work-dir", default="work")
    parser.add_argument("--resume")
    parser.add_argument("--fast-dev-run", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator=args.device,
        max_epochs=args.epochs,
        log_every_n_steps=10,
        logger=CSVLogger(args.work_dir),
        callbacks=[
            ModelCheckpoint(monitor="accuracy", mode="max", filename="best"),
            ModelCheckpoint(save_last=True, filename="last"),
            LearningRateMonitor("step"),
        ],
        fast_dev_run=args.fast_dev_run,
    )
    train = DataLoader(MyDigits(), 64, shuffle=True)
    val = DataLoader(MyDigits("val"), 64)
    trainer.fit(Training(args.lr), train, val, ckpt_path=args.resume)
    print(f"accuracy {trainer.callback_metrics['accuracy'].item():.4f}")


if __name__ == "__main__":
    main()
