"""What each process does for the tests here; run as a script, as tests/dist does.

Every function is one scenario; what it returns is written as JSON for its rank.
"""

import shutil
from collections import Counter
from contextlib import closing
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from devrun import dist
from devrun.checkpoint import read_mmcv_checkpoint
from devrun.cli.predictions import predict
from devrun.errors import CheckpointError, DevrunError
from devrun.hooks import EMAHook, EvalHook, Hook, OptimizerHook
from devrun.hooks.base import Priority
from devrun.models.gpt import GPT
from devrun.models.recompute import checkpoint_blocks
from devrun.models.resnet import ResNet
from devrun.models.vit import VisionTransformer
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import strategy_for
from devrun.runners import EpochBasedRunner
from tests.support.ranks import do
from tests.support.strict import zip_strict

TOKENS = 12


class Tokens(torch.utils.data.Dataset[Any]):
    """Sequences of which very different numbers of tokens count."""

    def __init__(self, count=24):
        generator = torch.Generator().manual_seed(4)
        self.ids = torch.randint(0, 20, (count, TOKENS), generator=generator)
        self.labels = self.ids.clone()
        for index, row in enumerate(self.labels):
            row[TOKENS - index % 5 :] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


class Means(Hook):
    """The mean loss of each update, where all processes have as many samples."""

    def __init__(self):
        self.values = []

    def after_train_iter(self, runner):
        total = {"loss": (float(runner.outputs["loss"]), 1.0)}
        self.values.append(dist.weighted_means(total)["loss"])


class Losses(Hook):
    def __init__(self):
        self.values = []

    def after_train_iter(self, runner):
        loss, count = runner.outputs["loss"], runner.outputs["num_items"]
        total = {"loss": (float(loss) * float(count), float(count))}
        self.values.append(dist.weighted_means(total)["loss"])


class Messages(TorchDispatchMode):
    """Counts what is exchanged inside, by torch's names."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        home, _, name = func._schema.name.partition("::")
        self.found[name.strip("_")] += home == "c10d"
        return func(*args, **(kwargs or {}))


class Exchanges(Hook):
    """The messages of each update, without those between two."""

    priority = Priority.HIGHEST

    def before_run(self, runner):
        self.found = []

    def before_train_iter(self, runner):
        self.mode = Messages()
        self.mode.__enter__()

    def after_train_iter(self, runner):
        self.mode.__exit__(None, None, None)
        self.found.append({k: n for k, n in self.mode.found.items() if n})


def exchanges():
    """Of an update of one micro-batch and of three, each clipped and judged."""
    found = {}
    for kind in ("ddp", "fsdp"):
        for parts in (1, 3):
            seen = Exchanges()
            train({"type": kind}, accumulate=parts, hooks=[seen], max_epochs=2)
            found[f"{kind} {parts}"] = seen.found[-1]
        seen, pieces = Exchanges(), {"micro_batch": 2}
        train({"type": kind}, update=pieces, hooks=[seen], max_epochs=2)
        found[f"{kind} pieces"] = seen.found[-1]
    return found


def gpt(**more):
    torch.manual_seed(2)
    sizes = {"vocab_size": 20, "block_size": TOKENS, "n_layer": 2, "n_head": 4}
    return GPT(**{**sizes, "n_embd": 16, "dropout": 0.0, **more})


def runner_of(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    usual = {"device": "cpu", "seed": 3, "max_epochs": 1}
    return EpochBasedRunner(model, optimizer=optimizer, **{**usual, **options})


def train(parallel=None, batch=12, accumulate=1, hooks=(), **options):
    """Losses and final weights of an epoch; `batch` samples an update over all."""
    config = {
        "cumulative_iters": accumulate,
        "grad_clip": {"max_norm": 0.5},
        **options.pop("update", {}),
    }
    model = options.pop("model", None) or gpt()
    runner = runner_of(model, parallel=parallel, optimizer_config=config, **options)
    losses = Losses()
    for hook in [losses, *hooks]:
        runner.register_hook(hook)
    size = batch // accumulate // runner.adapter.data_share[1]
    with closing(runner):
        runner.run([DataLoader(Tokens(), size, shuffle=True)], [("train", 1)])
        state = runner.adapter.model_state(runner.session.wrapped)
        weights = {
            name: None if value.is_meta else value.flatten().tolist()
            for name, value in state.items()
        }
    return {"losses": losses.values, "weights": weights}


def line_of(action):
    """The one line that a run ends with."""
    try:
        action()
    except DevrunError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def said(**options):
    return line_of(lambda: train(**options))


def run_on(model, loader, hooks=(), **options):
    runner = runner_of(model, **options)
    for hook in hooks:
        runner.register_hook(hook)
    with closing(runner):
        runner.run([loader], [("train", 1)])


def fitted(model, data, parallel, **options):
    """The mean losses of two epochs of updates of 4 samples, whoever has them."""
    log, parts = Means(), options.get("optimizer_config", {}).get("cumulative_iters", 1)
    runner = EpochBasedRunner(
        model,
        parallel=parallel,
        **{
            "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
            "loss": nn.CrossEntropyLoss(),
            "device": "cpu",
            "seed": 3,
            "max_epochs": 2,
            **options,
        },
    )
    runner.register_hook(log)
    size = 4 // parts // runner.adapter.data_share[1]
    with closing(runner):
        runner.run([DataLoader(data, size, shuffle=True)], [("train", 1)])
    return log.values


def ddp():
    view = {"gradient_as_bucket_view": True, "bucket_cap_mb": 1}
    return {
        "plain": train(),
        "static": train({"static_graph": True}),
        "static accumulated": train({"static_graph": True}, accumulate=3),
        "accumulated": train({"type": "ddp", **view}, accumulate=3),
        "pieces": train(update={"micro_batch": 2}),
    }


def refused():
    return {
        "mesh": said(parallel={"type": "fsdp", "mesh": {"shard": 3}}),
        "ddp shards": said(parallel={"type": "ddp", "mesh": {"shard": 2}}),
        "none": said(parallel={"type": "none"}),
        "option": said(parallel={"type": "fsdp", "static_graph": True}),
        "offload": said(parallel={"type": "ddp", "offload": True}),
        "key": said(parallel={"tipe": "fsdp"}),
        "sync_bn": said(parallel={"sync_bn": True}),
    }


def fsdp():
    shards = {"type": "fsdp"}
    return {
        "plain": train(shards),
        "accumulated": train(shards, accumulate=3),
        "given up": train({**shards, "reshard": True}),
        "kept": train({**shards, "reshard": False, "wrap": ["Block", "Mlp"]}),
        "offloaded": train({**shards, "offload": True}),
        "hybrid": train({**shards, "mesh": {"replicate": 2}}),
        "bf16": train(shards, update={"precision": "bf16"}),
        "skipping": train(shards, update={"nonfinite": "skip", "grad_clip": None}),
        "by value": train(shards, update={"grad_clip": {"clip_value": 0.01}}),
        "pieces": train(shards, update={"micro_batch": 2}),
        "recomputed": train(shards, model=recomputed()),
    }


def recomputed():
    model = gpt()
    checkpoint_blocks(model, ["h.*"])
    return model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = ResNet(
            stage_blocks=(1, 1), base_channels=4, num_classes=3, stem="cifar"
        )

    def forward(self, x):
        y = self.body(x)
        return y


def images(count=16):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(pixels, torch.arange(count) % 3)


def convolutions(parallel=None, accumulate=1, batch=4, **update):
    """Losses, running statistics and weights; batches of 4 whoever has them."""
    model = Net()
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
        seed=3,
        max_epochs=2,
        parallel=parallel,
        optimizer_config={"cumulative_iters": accumulate, **update},
    )
    log = Means()
    runner.register_hook(log)
    with closing(runner):
        runner.run([DataLoader(images(), batch, shuffle=True)], [("train", 1)])
        norm = model.body.bn1
    known = {"mean": norm.running_mean.tolist(), "seen": int(norm.num_batches_tracked)}
    return {"losses": log.values, **known}


class Scaled(nn.Module):
    """With a temperature, a parameter of no dimension, as CLIP has one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.blocks = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x * self.scale.exp()


def scaled(parallel, accumulate=1):
    """Losses of updates of 4 samples, and the last temperature."""
    model = Scaled()
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(16, 12, generator=generator), torch.arange(16) % 12
    )
    losses = fitted(
        model,
        data,
        parallel,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True),
        optimizer_config={
            "cumulative_iters": accumulate,
            "grad_clip": {"max_norm": 0.1},
        },
    )
    return {"losses": losses, "scale": model.scale.item()}


def synced():
    """What becomes of the norms of a model whose device is said to be a GPU."""
    model, options = Net(), ParallelOptions.parse({"sync_bn": True})
    strategy = strategy_for(options, Mesh(options), torch.device("cuda"))
    strategy.apply(model, None, by_hand=True)  # DDP would look for a GPU
    return type(model.body.bn1).__name__


def norms():
    return {
        "ddp": convolutions(),
        "fsdp": convolutions({"type": "fsdp"}),
        "fsdp bf16": convolutions({"type": "fsdp"}, precision="bf16"),
    }


def averaged(folder, parallel, resume=False, divided=False, **options):
    """EMA, evaluation and prediction of uneven shares, a save and what it holds.

    Args:
        divided: the weights are before the resume, which then reads its part alone.
    """
    model = gpt()
    runner = runner_of(
        model, parallel=parallel, work_dir=folder, max_epochs=2, **options
    )
    ema = EMAHook(momentum=0.1, warm_up=1)
    runner.register_hook(ema)
    losses = Losses()
    runner.register_hook(losses)
    seen = Evaluations(DataLoader(Tokens(5), 1))
    runner.register_hook(seen)
    runner.register_checkpoint_hook({"interval": 1, **FULL})
    train_on = [DataLoader(Tokens(), 12 // runner.adapter.data_share[1], shuffle=True)]
    with closing(runner):
        if divided:
            runner.prepare()
        if resume:
            runner.resume("auto")
        runner.run(train_on, [("train", 1)])
        rows = predict(runner, {"": DataLoader(Tokens(5), 1)})[""]
    return {
        "losses": losses.values,
        "evaluated": seen.values,
        "predicted": [[int(n) for n in row["prediction"]] for row in rows],
    }


def tensor():
    two = {"mesh": {"tensor": 2}}
    drops = {"dropout": 0.2}
    again = gpt(**drops)
    checkpoint_blocks(again, ["h.*"])
    return {
        "plain": train(two),
        "accumulated": train(two, accumulate=3),
        "bf16": train(two, update={"precision": "bf16"}),
        "own plan": train(
            {**two, "plan": {"h.*.mlp.c_fc": "colwise", "h.*.mlp.c_proj": "rowwise"}}
        ),
        "dropped": train(two, model=gpt(**drops)),
        "dropped again": train(two, model=again),
        "vit": vit(two),
        "vit alone": vit(None),
        "unseeded": unseeded(),
    }


def unseeded():
    """Of a run without a seed, whose processes were seeded differently."""
    torch.manual_seed(100 + dist.get_dist_info()[0])
    model = gpt(dropout=0.2)
    torch.manual_seed(100 + dist.get_dist_info()[0])
    two = {"mesh": {"tensor": 2}}
    losses = train(two, model=model, seed=None)["losses"]
    return losses


def vit(parallel):
    torch.manual_seed(7)
    model = VisionTransformer(8, 4, 16, 2, 4, num_classes=3)
    nn.init.normal_(model.head.weight, std=0.1)
    return fitted(model, images(), parallel, max_epochs=1)


GAUDI = {"type": "hpu", "emulate": True, "fused": False}


def refused_by_tensor():
    two = {"mesh": {"tensor": 2}}

    data = Tokens()
    sampled = DataLoader(data, 4, sampler=DistributedSampler(data))
    return {
        "plan": said(parallel={**two, "plan": {"h.*.atn.c_attn": "qkv"}}),
        "style": said(parallel={**two, "plan": {"h.*.mlp.c_fc": "colwize"}}),
        "heads": said(parallel=two, model=gpt(n_head=3, n_embd=18)),
        "width": said(parallel={**two, "plan": {"net.0": "colwise"}}, model=Odd()),
        "no plan": said(parallel=two, model=Odd()),
        "ddp": said(parallel={"type": "ddp", **two}),
        "sampler": line_of(lambda: run_on(gpt(), sampled, parallel=two)),
        "batch": said(parallel={"mesh": {"tensor": 4}}),
    }


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))

    def forward(self, x):
        y = self.net(x)
        return y


class Evaluations(EvalHook):
    def __init__(self, loader):
        super().__init__(loader)
        self.values = []

    def publish(self, runner, named):
        self.values.append(float(named["loss"]))
        return super().publish(runner, named)


FULL = {}


def saved(folder):
    """A run in one go; and one whose second epoch is under another strategy."""
    found = {}
    shards = {"type": "fsdp"}
    for name, first, second, divided in (
        ("fsdp", shards, shards, True),
        ("fsdp to ddp", shards, None, False),
        ("ddp to fsdp", None, shards, False),
        ("fsdp to tensor", shards, {"mesh": {"tensor": 2}}, True),
        ("tensor to ddp", {"mesh": {"tensor": 2}}, None, False),
    ):
        place = folder / name.replace(" ", "-")
        found[name] = averaged(place, first)
        dist.barrier()
        if dist.is_main():
            newest = sorted((place / "checkpoints").iterdir())[-1]
            shutil.rmtree(newest)
        dist.barrier()
        found[f"{name} resumed"] = averaged(place, second, True, divided)
    found["damaged"] = damaged(folder / "fsdp")
    found["one file"] = one_file(folder / "one-file")
    return found


def one_file(folder):
    """Weights and first moments at the end of a run, in its `.pth`, and in two runs
    that go on from that, the second of them under DDP."""
    found = []
    for number, parallel in enumerate(({"type": "fsdp"}, {"type": "fsdp"}, None)):
        runner = runner_of(gpt(), parallel=parallel, work_dir=folder)
        with closing(runner):
            if number:
                runner.resume(folder / "checkpoints" / "epoch_1.pth")
                runner.prepare()
            else:
                runner.run([DataLoader(Tokens(), 4)], [("train", 1)])
                runner.save_checkpoint(filename_tmpl="epoch_{}.pth")
            wrapped, optimizer = runner.session.wrapped, runner.optimizer
            state = runner.adapter.optimizer_state(wrapped, optimizer)["state"]
            weights = runner.adapter.model_state(wrapped)
            both = (weights, {k: v["exp_avg"] for k, v in state.items()})
        if not dist.is_main():
            continue
        found.append([{k: v.tolist() for k, v in each.items()} for each in both])
        if number == 0:
            file = read_mmcv_checkpoint(folder / "checkpoints" / "epoch_1.pth")
            moments = [v["exp_avg"].tolist() for v in file.optimizer["state"].values()]
            names = [name for name, _ in gpt().named_parameters()]
            weights = {k: v.tolist() for k, v in file.state_dict.items()}
            found.append([weights, dict(zip_strict(names, moments))])
    return found


def damaged(folder):
    """What is said where a file is damaged that rank 1 alone has to read."""
    runner = runner_of(gpt(), parallel={"type": "fsdp"}, work_dir=folder)
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    if dist.is_main():
        (second,) = newest.glob("shard-00002-*")
        with second.open("r+b") as file:
            file.seek(5000)
            file.write(b"broken")
    dist.barrier()
    with closing(runner):
        runner.prepare()
        try:
            runner.resume(newest)
        except CheckpointError as error:
            return str(error).replace(str(newest), "PATH")
    return "nothing"


class Steps(nn.Module):
    def __init__(self, own, **sizes):
        super().__init__()
        self.net, self.own = gpt(**sizes), own

    def train_step(self, batch, optimizer):
        loss = self.net(**batch)["loss"]
        if self.own:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch["labels"])}


class OwnHook(OptimizerHook):
    def after_train_iter(self, runner):
        runner.outputs["loss"].backward()


def refused_by_fsdp(folder):
    shards = {"type": "fsdp"}

    def of(**update):
        return said(parallel=shards, update=update)

    def fails(model, hooks=(), **options):
        loader = DataLoader(Tokens(), 4)
        return line_of(lambda: run_on(model, loader, hooks, parallel=shards, **options))

    few = EvalHook(DataLoader(Tokens(1), 1))
    return {
        "fp16": of(precision="fp16"),
        "auto": of(micro_batch="auto"),
        "own hook": fails(gpt(), optimizer_config=OwnHook()),
        "own step": fails(Steps(own=True)),
        "few": fails(gpt(), [few]),
        "wrap": said(parallel={**shards, "wrap": ["Blok"]}),
    }


def gaudi():
    device = {"type": "hpu", "emulate": True, "mode": "eager"}
    return {
        "fused": said(parallel={"type": "fsdp"}, device=device),
        "fsdp": train({"type": "fsdp"}, device=GAUDI),
        "fast": said(
            parallel={"type": "fsdp"}, device={**GAUDI, "performance": "fast"}
        ),
        "tensor": train({"mesh": {"tensor": 2}}, device=GAUDI),
    }


def scenarios(folder):
    return {
        "ddp": ddp,
        "fsdp": fsdp,
        "exchanges": exchanges,
        "norms": norms,
        "scaled": lambda: {
            "fsdp": scaled({"type": "fsdp"}),
            "accumulated": scaled({"type": "fsdp"}, accumulate=2),
        },
        "synced": synced,
        "refused": refused,
        "refused by fsdp": lambda: refused_by_fsdp(folder),
        "tensor": tensor,
        "refused by tensor": refused_by_tensor,
        "saved": lambda: saved(folder),
        "gaudi": gaudi,
    }


if __name__ == "__main__":
    do(scenarios)
