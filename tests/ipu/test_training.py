"""Training on emulated IPUs gives what the CPU gives at the same global batch."""

import pytest
import torch
from torch import nn

from devrun.checkpoint import read_checkpoint
from devrun.hooks import EvalHook, Hook
from devrun.models import ResNet
from tests.ipu.harness import assert_same_state, ipu, loader, make, net, train
from tests.support.near import assert_near

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
GLOBAL = 16


@pytest.mark.parametrize("replicas", [1, 2, 4, 16])
def test_replicas_at_the_same_global_batch_give_the_same_losses(replicas):
    data = loader(batch_size=1, shuffle=True)
    _, losses = train(
        ipu(replicas=replicas), data, optimizer_config=accumulation(replicas)
    )
    expected = reference_losses()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(losses) == 8


def test_dropout_follows_the_seed_of_the_run_alone(emulation):
    def losses(seed, before_run):
        runner, seen = make(ipu(), net(dropout=0.5), seed=seed)
        before_run()
        runner.run([loader()], [("train", 1)])
        runner.close()
        return seen.values

    def another():
        make(ipu(), net(), seed=9)[0].close()

    expected = losses(5, lambda: None)
    assert losses(5, another) == expected
    assert losses(5, lambda: torch.manual_seed(9)) == expected
    assert losses(6, lambda: None) != expected


def accumulation(replicas):
    return {"cumulative_iters": GLOBAL // replicas}


_known = {}


def reference_losses():
    """Of plain batches of 16 on the CPU, computed once."""
    if not _known:
        data = loader(batch_size=GLOBAL, shuffle=True)
        _known["runner"], _known["losses"] = train("cpu", data)
    return _known["losses"]


def test_the_weights_too(emulation):
    data = loader(batch_size=2, shuffle=True)
    runner, _ = train(ipu(replicas=4), data, optimizer_config=accumulation(8))
    reference_losses()
    assert_same_state(runner.model, _known["runner"].model, **CLOSE)
    assert type(runner.model.head.weight) is nn.Parameter
    assert emulation.counts["compile"] == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, dampening=0.2),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.9), weight_decay=0.2),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    ],
    ids=["nesterov", "dampened", "adam", "adamw", "rmsprop"],
)
def test_every_optimizer_makes_the_same_updates_and_leaves_the_same_state(build):
    found = {}
    for device in ("cpu", ipu()):
        model = net()
        groups = [
            {"params": [model.conv.weight, model.head.weight]},
            {"params": [model.conv.bias, model.head.bias], "weight_decay": 0.0},
        ]
        optimizer = build(groups)
        runner, losses = train(device, model=model, optimizer=optimizer)
        found[str(device)] = losses, runner
    (losses, runner), (expected, reference) = reversed(found.values())
    assert losses == pytest.approx(expected, rel=1e-4)
    mine, theirs = (r.optimizer.state_dict() for r in (runner, reference))
    assert mine["state"].keys() == theirs["state"].keys()
    for number, entries in theirs["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    mine["state"][number][name], value, rtol=1e-3, atol=1e-5
                )
    assert mine["param_groups"] == theirs["param_groups"]


def test_clipping_and_schedules_are_those_of_the_cpu():
    def run(device):
        runner, losses = make(
            device, optimizer_config={"grad_clip": {"max_norm": 0.2}}, epochs=2
        )
        runner.register_training_hooks(
            {"policy": "step", "step": 3, "gamma": 0.3, "by_epoch": False},
            momentum_config={
                "policy": "step",
                "step": 5,
                "gamma": 0.5,
                "by_epoch": False,
            },
        )
        runner.run([loader(shuffle=True)], [("train", 1)])
        runner.close()
        return losses.values

    assert run(ipu()) == pytest.approx(run("cpu"), rel=1e-4)


class Named(torch.optim.SGD):
    """Another name for SGD."""


def test_a_subclass_that_only_has_another_name_is_what_it_inherits():
    model = net()
    optimizer = Named(model.parameters(), lr=0.1, momentum=0.9)
    _, losses = train(ipu(), model=model, optimizer=optimizer)
    assert losses == pytest.approx(train("cpu")[1], rel=1e-4)


class Moves(Hook):
    def __init__(self, counts):
        self.counts, self.seen = counts, []

    def after_train_iter(self, runner):
        self.seen.append(dict(self.counts))


def test_nothing_moves_while_training_but_what_changed(emulation, tmp_path):
    runner, _ = make(ipu(), work_dir=tmp_path, epochs=3)
    moves = Moves(emulation.counts)
    runner.register_hook(moves, "LOWEST")
    runner.register_training_hooks(
        {"policy": "step", "step": 1, "gamma": 0.5},
        checkpoint_config={"interval": 1},
        log_config={"interval": 1, "hooks": [{"type": "TextLoggerHook"}]},
    )
    runner.run([loader()], [("train", 1)])
    first, last = moves.seen[0], moves.seen[-1]
    assert first.get("weights_to_host", 0) == 0
    assert first["weights_to_device"] == last["weights_to_device"] == 1
    # one checkpoint after each of the first two epochs, seen from within the third
    assert last["weights_to_host"] == 2
    # the first values, and two steps of the learning rate
    assert last["optimizer_to_device"] == 3
    runner.close()


def test_evaluation_shares_the_weights_and_compiles_once(emulation):
    found = []
    for device in ("cpu", ipu()):
        runner, _ = make(device, epochs=3)
        scores = []
        runner.register_hook(EvalHook(loader(samples=20, batch_size=8)), "LOW")
        runner.register_hook(Scores(scores), "VERY_LOW")
        runner.run([loader()], [("train", 1)])
        runner.close()
        found.append(scores)
    assert len(found[1]) == 3
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert emulation.counts["compile"] == 2
    assert emulation.counts["weights_to_host"] == 3  # once for each evaluation


class Scores(Hook):
    def __init__(self, scores):
        self.scores = scores

    def after_train_epoch(self, runner):
        self.scores.append(runner.log_buffer.output["loss"])


class Reader(Hook):
    def __init__(self):
        self.seen = {}

    def after_train_iter(self, runner):
        if runner.iter % 4 == 3:
            self.seen[runner.iter] = runner.model.head.weight.detach().clone()


def test_a_hook_that_reads_weights_sees_the_present_ones(emulation):
    seen = {}
    for device in ("cpu", ipu()):
        runner, _ = make(device)
        reader = Reader()
        runner.register_hook(reader)
        runner.run([loader()], [("train", 1)])
        runner.close()
        seen[str(device)] = reader.seen
    mine, theirs = reversed(seen.values())
    assert mine.keys() == theirs.keys()
    for number, value in theirs.items():
        torch.testing.assert_close(mine[number], value, **CLOSE)
    assert emulation.counts["weights_to_host"] == len(mine)


def test_device_iterations_count_as_one_iteration():
    data = loader(samples=64, batch_size=4)
    runner, _ = train(ipu(deviceIterations=2), data)
    assert runner.iter == 2 * 64 // (4 * 2)
    reference, _ = train("cpu", data)
    assert_same_state(runner.model, reference.model, **CLOSE)


def test_half_precision_trains_and_saves_what_the_cpu_can_load(tmp_path):
    config = {
        "type": "Fp16OptimizerHook",
        "loss_scale": 128.0,
        "options": {"accum_type": "half", "velocity_accum_type": "half"},
    }
    runner, losses = make(ipu(), optimizer_config=config, work_dir=tmp_path, epochs=4)
    runner.run([loader()], [("train", 1)])
    path = runner.save_checkpoint()
    runner.close()
    assert runner.model.head.weight.dtype == torch.float16
    assert losses.values[-1] < losses.values[0]
    _, reference = train("cpu", epochs=4)
    assert losses.values[:8] == pytest.approx(reference[:8], rel=0.02)
    saved = read_checkpoint(path).parts["model"]
    assert {value.dtype for value in saved.values()} == {torch.float32}
    second, rest = make("cpu", epochs=5)
    second.resume(path)
    second.run([loader()], [("train", 1)])
    second.close()
    assert rest.values[0] < losses.values[0]


class Thawing(Hook):
    """Trains only the last layer, with fixed statistics, until epoch 1."""

    def before_train_epoch(self, runner):
        runner.model.conv.requires_grad_(runner.epoch > 0)
        runner.model.norm.train(runner.epoch > 0)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        # the gradient of a bias before a norm is rounding, which a small eps blows up
        lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
    ],
    ids=["sgd", "adamw"],
)
def test_layers_that_are_freed_later_train_from_then_on(build, emulation, capsys):
    found = {}
    for device in ("cpu", ipu()):
        model = net(norm=True)
        runner, losses = make(device, model, build(model.parameters()), epochs=3)
        runner.register_hook(Thawing())
        runner.run([loader(samples=32)], [("train", 1)])
        runner.close()
        found[str(device)] = (model, losses.values)
    (expected, losses), (mine, values) = found.values()
    assert values == pytest.approx(losses, rel=1e-4)
    assert_near(mine.state_dict(), expected.state_dict())
    assert emulation.counts["compile"] == 2
    assert capsys.readouterr().err.count("compiling anew") == 1


@pytest.mark.parametrize("scale", ["dynamic", 1024.0])
def test_half_precision_differs_as_rounded_weights_do(scale):
    # weights of half an IPU are half themselves, where a CPU keeps float32 ones
    def losses(device, rounded=False, **options):
        torch.manual_seed(3)
        model = ResNet(
            stem="cifar",
            stage_blocks=[1, 1, 1],
            base_channels=8,
            in_channels=2,
            num_classes=4,
        )
        if rounded:
            model.half().float()
        data = loader(batch_size=16)
        return torch.tensor(train(device, data, model=model, iters=24, **options)[1])

    fp16 = {"type": "Fp16OptimizerHook", "loss_scale": scale}
    exact = losses("cpu")
    mine = losses(ipu(deterministic=True), optimizer_config=fp16)
    rounding = (losses("cpu", rounded=True) - exact).abs().max()
    assert 0 < (mine - exact).abs().max() < 4 * rounding
