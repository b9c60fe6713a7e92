"""What each of two processes does for test_two_processes.py; run as a script.

Every function is one scenario; what it returns is written as JSON for its rank.
"""

import math

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.utilities import dim_zero_cat

from devrun import dist
from devrun.devices.resolve import resolve_device
from devrun.errors import DevrunError, DivergedError, StorageError
from devrun.hooks import HOOKS, EvalHook, Hook, LoggerHook, OptimizerHook
from devrun.models.step_module import StepModule
from devrun.registry import METRICS
from devrun.runners import EpochBasedRunner
from devrun.runners.training import build_training
from devrun.step import MicroBatches, UpdatePolicy
from tests.support.ranks import do
from tests.support.strict import zip_strict


def net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def samples(count=16):
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(count, 3, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def runner_of(model, **options):
    """As every test here trains `model`, for one epoch unless `options` say more."""
    return EpochBasedRunner(
        model,
        optimizer=sgd(model),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
        seed=3,
        **{"max_epochs": 1, **options},
    )


class OwnUpdate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def train_step(self, batch, optimizer):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "log_vars": {}, "num_samples": len(inputs)}


class Losses(Hook):
    def __init__(self):
        self.values = []

    def after_train_iter(self, runner):
        self.values.append(mean_loss(runner.outputs))


def mean_loss(outputs):
    return dist.weighted_means({"loss": (float(outputs["loss"]), 1)})["loss"]


class OwnHook(OptimizerHook):
    def after_train_iter(self, runner):
        runner.optimizer.zero_grad()
        runner.outputs["loss"].backward()
        runner.optimizer.step()


def info():
    rank, world = dist.get_dist_info()

    @dist.master_only
    def where():
        return "main"

    return {
        "rank": rank,
        "world": world,
        "local": dist.local_rank(),
        "main": dist.is_main(),
        "master_only": where(),
        "gathered": dist.gather_objects({"rank": rank}),
        "broadcast": dist.broadcast_object(f"from {rank}"),
        "max": dist.all_reduce_max(float(rank)),
        "seed": dist.shared_seed(),
    }


def means():
    rank, _ = dist.get_dist_info()
    totals = {"loss": (float(rank), 1), "both": (6.0, 2)}
    if rank == 0:
        totals["only_here"] = (7.0, 1)
    return dist.weighted_means(totals)


def tensors():
    rank, _ = dist.get_dist_info()
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(float(rank))
    norm.num_batches_tracked.fill_(10 + rank)
    for coalesce, size in ((True, -1), (True, 1), (False, -1)):
        dist.allreduce_params(norm.buffers(), coalesce=coalesce, bucket_size_mb=size)
    used, half, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    used.grad = torch.full((2,), float(rank + 1))
    if rank == 1:
        half.grad = torch.ones(2)
    dist.allreduce_grads([used, half, unused])
    return {
        "mean": norm.running_mean.tolist(),
        "count": int(norm.num_batches_tracked),
        "used": used.grad.tolist(),
        "half": half.grad.tolist(),
        "unused": unused.grad,
    }


def trained():
    """An epoch of 16 samples, 2 per process and batch, of a model that steps itself."""
    adapter = resolve_device("cpu")
    adapter.setup(0)
    module = OwnUpdate()
    step, optimizer = adapter.prepare(StepModule(module), sgd(module), UpdatePolicy())
    data = DataLoader(samples(), batch_size=2, shuffle=True)
    losses = []
    for batch in adapter.prepare_dataloader(data, training=True):
        losses.append(mean_loss(adapter.train_step(step, batch, optimizer)))
    weights = [p.detach().flatten().tolist() for p in module.parameters()]
    unwrapped = adapter.unwrap_model(step) is module
    adapter.teardown()
    return {"losses": losses, "weights": weights, "unwrapped": unwrapped}


def skipped():
    """Only rank 1 has a bad loss; neither may update."""
    adapter = resolve_device("cpu")
    adapter.setup(0)
    module = net()
    policy = UpdatePolicy(owner="adapter", nonfinite="skip")
    step, optimizer = adapter.prepare(
        StepModule(module, nn.CrossEntropyLoss()), sgd(module), policy
    )
    inputs, labels = samples(4).tensors
    before = [p.detach().clone() for p in module.parameters()]
    bad = inputs * math.nan if dist.get_dist_info()[0] == 1 else inputs
    adapter.train_step(step, (bad, labels), optimizer)
    kept = _same(module.parameters(), before)
    adapter.train_step(step, (inputs, labels), optimizer)
    moved = not _same(module.parameters(), before)
    adapter.teardown()
    return {"kept": kept, "moved": moved}


def _same(params, others):
    return all(torch.equal(p, q) for p, q in zip_strict(params, others))


def stopped():
    adapter = resolve_device("cpu")
    adapter.setup(0)
    module = net()
    step, optimizer = adapter.prepare(
        StepModule(module, nn.CrossEntropyLoss()), sgd(module), UpdatePolicy()
    )
    inputs, labels = samples(4).tensors
    bad = inputs * math.nan if dist.get_dist_info()[0] == 1 else inputs
    try:
        adapter.train_step(step, MicroBatches([(bad, labels)]), optimizer)
    except DivergedError as error:
        return str(error)
    finally:
        adapter.teardown()


def runs(folder):
    """Through the runner: losses, evaluation, and who writes what."""
    found = {}
    for name, config in (("adapter", {}), ("hook", OwnHook())):
        model = net()
        runner = runner_of(
            model, max_epochs=2, work_dir=folder / name, optimizer_config=config
        )
        losses = Losses()
        runner.register_hook(losses)
        runner.register_training_hooks(
            None,
            checkpoint_config={"interval": 1},
            log_config={"interval": 1, "hooks": [{"type": "TextLoggerHook"}]},
        )
        runner.run([DataLoader(samples(), 2, shuffle=True)], [("train", 1)])
        runner.close()
        weights = [p.detach().flatten().tolist() for p in model.parameters()]
        found[name] = {"losses": losses.values, "weights": weights, "iter": runner.iter}
    return found


class Shift(Hook):
    """BatchNorm statistics that differ by rank, as the samples of each make them."""

    def after_train_iter(self, runner):
        runner.model[0].running_mean.fill_(float(dist.get_dist_info()[0]))


def evaluated():
    """What the ranks evaluate with, once the last update is done."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    runner = runner_of(model)
    runner.register_hook(Shift())
    runner.register_hook(EvalHook(DataLoader(samples(), 2)))
    runner.run([DataLoader(samples(), 2)], [("train", 1)])
    runner.close()
    return model[0].running_mean.tolist()


def failed_on_main():
    """What each rank hears of a failure on rank 0, whatever its type."""
    heard = []
    for error in (ZeroDivisionError("by hand"), StorageError("disk full")):

        def act(error=error):
            raise error

        try:
            dist.on_main(act)
        except Exception as caught:  # noqa: BLE001 - that is what is looked at
            heard.append(f"{type(caught).__name__}: {caught}")
    return [*heard, dist.on_main(lambda: "fine")]


class Room(nn.Module):
    def __init__(self, room):
        super().__init__()
        self.net, self.room = net(), room

    def forward(self, x):
        if self.training and dist.get_dist_info()[0] == 1 and len(x) > self.room:
            raise torch.cuda.OutOfMemoryError("out of memory")
        y = self.net(x)
        return y


def split_up():
    found = {}
    for name, room, policy in (
        ("whole", 99, {}),
        ("split", 2, {"micro_batch": "auto"}),
    ):
        adapter = resolve_device("cpu")
        adapter.setup(0)
        module = Room(room)
        step, optimizer = adapter.prepare(
            StepModule(module, nn.CrossEntropyLoss()),
            sgd(module),
            UpdatePolicy(owner="adapter", **policy),
        )
        data = DataLoader(samples(), batch_size=4, shuffle=True)
        for batch in adapter.prepare_dataloader(data, training=True):
            adapter.train_step(step, batch, optimizer)
        found[name] = [p.detach().flatten().tolist() for p in module.parameters()]
        found[f"{name} size"] = adapter.state_dict().get("micro_batch", {}).get("size")
        adapter.teardown()
    return found


def run_one(val=None, workflow=None, **how):
    """A short run, evaluated on `val`; what was logged of the evaluations on rank 0."""
    model = how.pop("model", None) or net()
    data = how.pop("data", None) or samples(8)
    runner = runner_of(model, **how)
    if isinstance(val, EvalHook):
        runner.register_hook(val)
    runner.register_logger_hooks({"interval": 1, "hooks": [{"type": "Values"}]})
    loaders = [DataLoader(data, 2, shuffle=True), DataLoader(samples(1))]
    workflow = workflow or [("train", 1)]
    try:
        runner.run(loaders[: len(workflow)], workflow)
    finally:
        runner.close()
    return next(hook for hook in runner.hooks if isinstance(hook, Values)).seen


@HOOKS.register_module()
class Values(LoggerHook):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def log(self, runner):
        if self.get_mode(runner) == "val":
            self.seen.append(sorted(runner.log_buffer.output))


CONFIG = {
    "model": {"type": "MLP", "in_features": 16, "hidden": [8], "num_classes": 4},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 2,
        "workers_per_gpu": 0,
        "train": {"type": "SyntheticClassification", "num_samples": 8},
        "val": {"type": "SyntheticClassification", "num_samples": 1, "offset": 8},
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 1},
    "device": "cpu",
}


def disagreements():
    """What each rank says where the two were given something different."""
    rank = dist.get_dist_info()[0]

    def build(**changes):
        build_training({**CONFIG, **changes}, progress=False).run()

    def evaluated_on(count, **how):
        return EvalHook(DataLoader(samples(count), 2, **how))

    attempts = {
        "samples": lambda: run_one(data=samples(8 + 4 * rank)),
        "evaluation": lambda: run_one(evaluated_on(8 + rank)),
        "dropped": lambda: run_one(evaluated_on(2, drop_last=True)),
        "model": lambda: run_one(model=nn.Linear(3, 2 + rank)),
        "epochs": lambda: run_one(max_epochs=1 + rank),
        "hooks": lambda: run_one(evaluated_on(8) if rank else None),
        "seed": lambda: build(seed=None if rank else 3),
        "config": lambda: build(optimizer={"type": "SGD", "lr": 0.1 + rank}),
        "own folder": lambda: build(work_dir=None if rank else "."),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            said[name] = "accepted"
        except DevrunError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


class Judged(TensorDataset):
    def evaluate(self, results, logger):
        return {"judged": len(results)}


@METRICS.register_module()
class Seen(torchmetrics.Metric):
    """How many samples there were, from a list that each process keeps."""

    def __init__(self):
        super().__init__()
        self.add_state("values", [], dist_reduce_fx="cat")

    def update(self, predictions, targets):
        self.values.append(targets)

    def compute(self):
        return torch.tensor(len(dim_zero_cat(self.values)))


def few_samples():
    """One sample to evaluate on, for two processes: in each way that there is."""
    one = samples(1)
    ways = {
        "means": {"val": EvalHook(DataLoader(one), metric="accuracy")},
        "own state": {"val": EvalHook(DataLoader(one), metric="Seen")},
        "judged": {"val": EvalHook(DataLoader(Judged(*one.tensors)))},
        "phase": {"workflow": [("train", 1), ("val", 1)]},
    }
    return {name: run_one(max_epochs=2, **way) for name, way in ways.items()}


def scenarios(folder):
    return {
        "info": info,
        "means": means,
        "tensors": tensors,
        "model": trained,
        "skipped": skipped,
        "stopped": stopped,
        "runs": lambda: runs(folder),
        "evaluated": evaluated,
        "failed on main": failed_on_main,
        "split": split_up,
        "disagreements": disagreements,
        "few samples": few_samples,
    }


if __name__ == "__main__":
    do(scenarios)
