"""What processes do that are the stages of a pipeline; scenarios of `worker.py`."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun import dist
from devrun.errors import DevrunError
from devrun.runners import EpochBasedRunner
from devrun.tensors import named_tensors
from tests.parallel import worker

TWO = {"mesh": {"pipeline": 2}}
FROZEN = ("stem.weight", "stem.bias", "blocks.0.0.weight", "blocks.0.0.bias")


class Stack(nn.Module):
    """Layers one after the other; `odd` names what a pipeline cannot do."""

    def __init__(self, odd: str = "", blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.odd = odd
        self.stem = nn.Linear(3, 8)
        layers = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(blocks))
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.odd == "draws":
            x = x + torch.randn_like(x)
        first = y = self.stem(x)
        if self.odd == "reads" and y.sum().item() > 1e9:
            y = y * 2
        for number, block in enumerate(self.blocks):
            y = self.blocks[2](y) if self.odd == "twice" and number == 3 else y
            y = block(y)
        if self.odd == "skips":
            y = y + first
        if self.odd == "shares":
            y = y @ self.stem.weight @ self.stem.weight.t()
        z: torch.Tensor = self.head(y)
        return z


class Fed(nn.Module):
    """A layer that takes what was computed at the beginning, too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.fc(x) + first)


class FedStack(nn.Module):
    """Layers all of which take one value of the first stage."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(Fed() for _ in range(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        first = y * 2
        for block in self.blocks:
            y = block(y, first)
        z: torch.Tensor = self.head(y)
        return z


def fit(net: nn.Module, parallel: Any = TWO, count: int = 16, **options: Any) -> Any:
    """Losses of updates of 4 samples, or the one line that refuses them."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(count, 3, generator=generator), torch.arange(count) % 3
    )
    optimizer = options.pop("optimizer", torch.optim.AdamW)
    try:
        runner = EpochBasedRunner(
            net,
            optimizer=optimizer(net.parameters(), lr=1e-2),
            loss=nn.CrossEntropyLoss(),
            parallel=parallel,
            **{"device": "cpu", "seed": 3, "max_epochs": 1, **options},
        )
        means = worker.Means()
        runner.register_hook(means)
        with closing(runner):
            runner.run([DataLoader(data, 4)], [("train", 1)])
    except DevrunError as error:
        return f"{type(error).__name__}: {error}"
    return means.values


def frozen() -> Stack:
    net = Stack()
    for name in FROZEN:
        net.get_parameter(name).requires_grad_(False)
    return net


def stepped(parallel: Any) -> list[float]:
    """Losses of a model with a `train_step`."""
    model = worker.Steps(own=False, n_layer=4)
    runner = worker.runner_of(model, parallel=parallel)
    means = worker.Means()
    runner.register_hook(means)
    with closing(runner):
        runner.run([DataLoader(worker.Tokens(), 6, shuffle=True)], [("train", 1)])
    return means.values


def pipeline() -> Any:
    return {
        "accumulated": worker.train(TWO, accumulate=3),
        "bf16": worker.train(TWO, accumulate=3, update={"precision": "bf16"}),
        "vit": worker.vit(TWO),
        "counted": counted(),
    }


def counted() -> Any:
    """Numbers of weights, gradients and optimizer state, here and in the model."""
    model = worker.gpt()
    runner = worker.runner_of(model, parallel=TWO)
    with closing(runner):
        runner.run([DataLoader(worker.Tokens(), 12)], [("train", 1)])
        here = [param for param in model.parameters() if not param.is_meta]
        grads = [param.grad for param in model.parameters() if param.grad is not None]
        state = runner.optimizer.state.values()
        moments = [t for each in state for t in each.values() if t.dim()]
    whole = list(worker.gpt().parameters())
    tied = model.wte.weight.numel()
    return [sum(t.numel() for t in ts) for ts in (here, grads, moments, whole)] + [tied]


def refused() -> Any:
    def split(*layers: Any) -> Any:
        return fit(Stack(), {**TWO, "split": list(layers)})

    def updated(**update: Any) -> Any:
        return fit(Stack(), optimizer_config=update)

    return {
        **{odd: fit(Stack(odd)) for odd in ("draws", "reads", "twice", "skips")},
        "shares": fit(Stack("shares")),
        "name": split("blokcs.2"),
        "container": split("blocks"),
        "many": split("blocks.1", "blocks.2"),
        "backwards": split("blocks.3", "blocks.1"),
        "few blocks": fit(Stack(blocks=1)),
        "fp16": updated(precision="fp16"),
        "auto": updated(micro_batch="auto"),
        "lbfgs": fit(Stack(), optimizer=lambda p, lr: torch.optim.LBFGS(p, lr)),
        "fsdp": fit(Stack(), {"type": "fsdp", **TWO}),
        "option": fit(Stack(), {**TWO, "static_graph": True}),
        "wrap": fit(Stack(), {**TWO, "wrap": ["Sequential"]}),
        "compile": fit(Stack(), device={"type": "cpu", "compile": True}),
        "world": fit(Stack(), {"mesh": {"pipeline": 3}}),
        "own step": worker.said(parallel=TWO, model=worker.Steps(own=True)),
    }


def many() -> Any:
    """On four processes."""
    four = {"mesh": {"pipeline": 4}}
    deep = {"n_layer": 4}
    fed = {"update": {"micro_batch": 2}}
    parts = ["body.layer1", "body.layer2", "body.fc"]
    starts = [f"blocks.{n}" for n in (1, 2, 3)]
    return {
        "one": worker.train(four, model=worker.gpt(**deep)),
        "three": worker.train(four, model=worker.gpt(**deep), accumulate=3),
        "six": worker.train(four, model=worker.gpt(**deep), **fed),
        "gpipe": worker.train(
            {**four, "schedule": "gpipe"}, model=worker.gpt(**deep), **fed
        ),
        "side by side": worker.train(TWO, model=worker.gpt(**deep), accumulate=3),
        "dropped": worker.train(four, model=worker.gpt(**deep, dropout=0.2))["losses"],
        "norms": worker.convolutions({**four, "split": parts}, accumulate=2),
        "steps": stepped(four),
        "split": fit(Stack(), {**four, "split": starts}),
        "frozen": fit(frozen(), four),
        "fed": fit(FedStack(), four),
        "uneven": fit(Stack(), four, 14, optimizer_config={"cumulative_iters": 2}),
        "skipping": worker.train(
            four,
            model=worker.gpt(**deep),
            update={"nonfinite": "skip", "grad_clip": None},
        ),
    }


def taken_up(folder: Path, full: bool, parallel: Any, *, trains: bool = False) -> str:
    """What weights and optimizer state are, in one number: of a run of four updates
    that is saved, or of one that takes that up."""
    model = worker.gpt(n_layer=4)
    runner = worker.runner_of(model, parallel=parallel, work_dir=folder, max_epochs=2)
    with closing(runner):
        if trains:
            runner.register_checkpoint_hook({"interval": 2, "full": full})
            runner.run([DataLoader(worker.Tokens(), 12, shuffle=True)], [("train", 1)])
        else:
            runner.resume("auto")
            runner.prepare()
        adapter, wrapped = runner.adapter, runner.session.wrapped
        state = [
            adapter.model_state(wrapped),
            adapter.optimizer_state(wrapped, runner.optimizer),
        ]
    found = hashlib.sha256()
    if dist.is_main():
        for name, tensor in sorted(named_tensors(state), key=lambda pair: pair[0]):
            found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def bits(folder: Path) -> Any:
    """Of two stages, two times; then of four that take them up."""
    two, four = {"mesh": {"pipeline": 2, "replicate": 2}}, {"mesh": {"pipeline": 4}}
    found = {}
    for full in (False, True):
        place = folder / f"full-{full}"
        made = taken_up(place, full, two, trains=True)
        found[str(full)] = [made, taken_up(place, full, four)]
    return found
