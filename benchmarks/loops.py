"""Training loops that benchmarks compare: by hand, devrun's, and those of three peers.

Each trains what a `Job` describes with the same things switched on: a cosine schedule
each iteration, clipping by norm, and the mean loss read and logged every 50 iterations.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

MIN_RATIO, MAX_NORM, LOG = 0.01, 10.0, 50


@dataclass(frozen=True)
class Job:
    """A training: what is trained, on which batches, and how fast it is asked to be."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: IterableDataset[Any]
    """Of known length, the number of iterations; pairs, or `named` ones for a loop
    that takes them so."""
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    device: str = "cpu"
    bf16: bool = False
    """Autocast, by the loop's own setting."""
    compiled: bool = False
    """By the loop's own setting, where it has one; else `model` gives it compiled."""
    tf32: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """Of devrun's device; the settings above are not read there."""

    @property
    def steps(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.batches, batch_size=None)

    def schedule(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: factor(step, self.steps)
        )


def factor(step: int, steps: int) -> float:
    """Of the learning rate: cosine from 1 to `MIN_RATIO`."""
    return MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * step / steps))


def pair(x: Tensor, y: Tensor) -> Any:
    return x, y


def named(x: Tensor, y: Tensor) -> Any:
    return {"x": x, "labels": y}


class WithLoss(nn.Module):
    """The model and its loss in one, as some of them ask for."""

    def __init__(self, net: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.net, self.criterion = net, criterion

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.criterion(self.net(x), labels)}


class Autocast(nn.Module):
    """`net` in bf16; its output in fp32, as a loss needs it."""

    def __init__(self, net: nn.Module, device: str) -> None:
        super().__init__()
        self.net, self.device = net, torch.device(device).type

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            out: Tensor = self.net(x)
        return out.float()


class ChannelsLast(nn.Module):
    """`net`, its weights and its images in that layout."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.to(memory_format=torch.channels_last))
        return out


def raw(job: Job, log: Any) -> None:
    """The loop that one would write by hand."""
    model, criterion = job.model().to(job.device), job.criterion
    optimizer, params = job.optimizer(model), list(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    if job.bf16:
        model = Autocast(model, job.device)
    if job.tf32:
        torch.set_float32_matmul_precision("high")
    steps = job.steps
    losses: list[Tensor] = []
    model.train()
    for step, (x, y) in enumerate(job.loader()):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor(step, steps)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) == LOG:
            log.write(f"{step} loss {torch.stack(losses).mean().item():.4f}\n")
            losses.clear()


def register_hooks(runner: Any) -> None:
    """On a runner of devrun, or of MMCV, what the other loops have."""
    runner.register_training_hooks(
        {"policy": "CosineAnnealing", "by_epoch": False, "min_lr_ratio": MIN_RATIO},
        {"grad_clip": {"max_norm": MAX_NORM}},
        None,
        {"interval": LOG, "hooks": [{"type": "TextLoggerHook", "by_epoch": False}]},
    )


def devrun(job: Job, log: Any) -> None:
    from devrun.log.logger import close_logger
    from devrun.runners import IterBasedRunner

    model = job.model()
    with tempfile.TemporaryDirectory() as work_dir:
        runner = IterBasedRunner(
            model,
            optimizer=job.optimizer(model),
            loss=job.criterion,
            work_dir=work_dir,
            device={"type": job.device, **job.options},
            max_iters=job.steps,
        )
        register_hooks(runner)
        runner.run([job.loader()], [("train", 1)])
        runner.close()
        close_logger()


def accelerate(job: Job, log: Any) -> None:
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin

    more: dict[str, Any] = {"mixed_precision": "bf16"} if job.bf16 else {}
    if job.compiled:
        more["dynamo_plugin"] = TorchDynamoPlugin(
            backend="inductor", use_regional_compilation=True
        )
    lite = Accelerator(cpu=job.device == "cpu", **more)
    if job.tf32:
        torch.set_float32_matmul_precision("high")
    bare, criterion = job.model(), job.criterion
    sgd = job.optimizer(bare)
    model, optimizer, loader, rates = lite.prepare(
        bare, sgd, job.loader(), job.schedule(sgd)
    )
    losses: list[Tensor] = []
    model.train()
    for step, (x, y) in enumerate(loader):
        with lite.accumulate(model):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            lite.backward(loss)
            if lite.sync_gradients:
                lite.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            rates.step()
        losses.append(loss.detach())
        if len(losses) == LOG:
            log.write(f"{step} loss {torch.stack(losses).mean().item():.4f}\n")
            losses.clear()


def hugging_face(job: Job, log: Any) -> None:
    """Batches are `named`."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    model = WithLoss(job.model(), job.criterion)
    optimizer = job.optimizer(model)

    class Fed(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(job.loader())

    more: dict[str, Any] = {"tf32": True} if job.tf32 else {}
    if job.bf16 or job.compiled:
        more["logging_nan_inf_filter"] = False  # it reads the loss each time
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.steps,
            max_grad_norm=MAX_NORM,
            logging_steps=LOG,
            save_strategy="no",
            report_to=[],
            use_cpu=job.device == "cpu",
            disable_tqdm=True,
            remove_unused_columns=False,
            bf16=job.bf16,
            torch_compile=job.compiled,
            **more,
        )
        trainer = Fed(
            model,
            arguments,
            train_dataset=job.batches,
            optimizers=(optimizer, job.schedule(optimizer)),
        )
        for shown in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(shown)
        trainer.train()


def lightning(job: Job, log: Any) -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = job.model(), job.criterion

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            loss: Tensor = self.criterion(self.net(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = job.optimizer(self)
            rate = {"scheduler": job.schedule(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": rate}

    if job.tf32:
        torch.set_float32_matmul_precision("high")
    more: dict[str, Any] = {"precision": "bf16-mixed"} if job.bf16 else {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if job.device == "cuda" else job.device,
            devices=1,
            max_steps=job.steps,
            gradient_clip_val=MAX_NORM,
            log_every_n_steps=LOG,
            logger=pl.pytorch.loggers.CSVLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **more,
        )
        trainer.fit(Module(), job.loader())
