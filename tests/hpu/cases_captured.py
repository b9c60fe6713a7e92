"""Whole updates from HPU graphs: the same bits, what ends a graph, what has none."""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import nn

from devrun.devices.captured import capture_updates
from devrun.devices.hpu.graphs import Captures
from devrun.errors import ConfigError, DivergedError, UnsupportedFeatureError
from devrun.hooks import Hook
from tests.hpu.runs import close, device, loader, make, net, train, weights
from tests.support.observe import Lines

MODES = ("lazy",)
COUNTED: list[int] = []
POLY = {"policy": "poly", "by_epoch": False}


def replays():
    from habana_frameworks import emulator

    return emulator.report().totals.get("graph_replay", 0)


def normed():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def adamw(params):
    """Whose step a graph can hold."""
    return torch.optim.AdamW(params, lr=0.01, capturable=True)


IN_GRAPH = {
    "optimizer": adamw,
    "fused": False,
    "model": partial(net, 0.2),
    "same": False,
    "within": 1e-6,
}
"""Rates are fp32 there, and numbers of Python in the other run."""


def both(
    same=True, hook=None, data=loader, model=normed, within=1e-5, fused=True, **options
):
    """(messages, replays) of the run from graphs, which had the bits of the other, or
    ended `within` that of it."""
    runs = []
    for graphs in (False, "update"):
        runner, losses = make(device(graphs=graphs, fused=fused), model(), **options)
        if hook is not None:
            runner.register_hook(hook())
        before = replays()
        with Lines() as log:
            runner.run([data()], [("train", 1)])
        runs.append((runner, losses.values))
        runner.close()
    close(*runs, within)
    if same:
        assert runs[0][1] == runs[1][1]
        mine, theirs = (weights(run) for run, _ in runs)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    return log.messages, replays() - before


def refusal(model=None, hook=None, **options):
    runner, _ = make(device(graphs="update"), model or normed(), **options)
    if hook is not None:
        runner.register_hook(hook)
    try:
        runner.run([loader()], [("train", 1)])
    except UnsupportedFeatureError as error:
        return str(error)
    finally:
        runner.close()
    raise AssertionError("no error")


def test_an_update_from_a_graph_has_the_bits_of_one_without():
    for options in (
        {"policy": {"grad_clip": {"max_norm": 0.5}}},
        {"policy": {"cumulative_iters": 2}},
        {"policy": {"precision": "bf16"}, "optimizer": torch.optim.AdamW},
    ):
        found = both(lr_config=POLY, **options)[1]
        assert found >= (12 if "cumulative_iters" in options["policy"] else 24) - 4


def test_the_step_of_an_optimizer_that_can_be_captured_is_in_the_graph():
    assert both(**IN_GRAPH, lr_config=POLY)[1] >= 20


def test_what_a_schedule_changes_at_each_update_leaves_the_step_out():
    class Momentum(Hook):
        def after_train_iter(self, runner):
            (group,) = runner.optimizer.param_groups
            group["betas"] = (group["betas"][0] * 0.999, 0.999)

    messages, found = both(**IN_GRAPH, hook=Momentum, epochs=3)
    assert found >= 30 - 4
    said = "\n".join(messages)
    assert "betas was" in said and "without graphs" not in said


def test_a_shape_has_a_graph_of_its_own():
    messages, found = both(data=lambda: loader(samples=22), epochs=6)
    assert found == (30 - 3) + (6 - 3)
    assert not [line for line in messages if "without" in line]


def test_what_changes_between_updates_is_captured_again():
    class Changing(Hook):
        def after_train_iter(self, runner):
            number = runner.state.updates
            if number == 8:
                runner.model[3].p = 0.5
            if number == 12:
                runner.model[0].weight.requires_grad_(False)
            if number == 16:
                runner.optimizer.load_state_dict(runner.optimizer.state_dict())
            if number == 18:
                runner.optimizer.zero_grad(set_to_none=True)

    # a frozen weight keeps gradients of 0, which the sum of the norm may see
    clipped = {"grad_clip": {"max_norm": 1.0}}
    messages, found = both(same=False, hook=Changing, policy=clipped)
    again = [line for line in messages if "captured again" in line]
    assert "Dropout 3: p was 0.2 and is 0.5" in again[0]
    assert "0.weight" in again[1] and len(again) == 2
    assert found >= 20


def test_a_change_at_each_update_ends_in_no_graphs():
    class Annealed(Hook):
        def after_train_iter(self, runner):
            runner.model[3].p *= 0.99

    error = refusal(hook=Annealed())
    assert "Dropout 3: p was" in error and "keeps changing" in error


def test_a_run_goes_on_bit_for_bit_after_a_stop(tmp_path):
    for optimizer, fused in ((torch.optim.AdamW, True), (adamw, False)):
        where = device(graphs="update", fused=fused)
        options = {"optimizer": optimizer, "lr_config": {"policy": "step", "step": 1}}
        whole = train(where, model=normed(), **options)
        folder = tmp_path / str(fused)
        first, _ = make(where, normed(), epochs=1, work_dir=folder, **options)
        first.run([loader()], [("train", 1)])
        path = first.save_checkpoint()
        first.close()
        again, losses = make(where, normed(), **options)
        again.resume(path)
        again.run([loader()], [("train", 1)])
        assert losses.values == whole[1][-len(losses.values) :]
        again.close()
        mine, theirs = weights(again), weights(whole[0])
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_loss_that_is_not_finite_stops_the_run():
    class Spoilt(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = normed(), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.net(x) * self.scale

    class Spoil(Hook):
        def after_train_iter(self, runner):
            if runner.state.updates == 10:
                with torch.no_grad():
                    runner.model.scale.fill_(float("nan"))

    runner, losses = make(device(graphs="update"), Spoilt())
    runner.register_hook(Spoil())
    before = replays()
    try:
        runner.run([loader()], [("train", 1)])
    except DivergedError:
        assert replays() - before >= 6 and 10 <= len(losses.values) <= 24
    else:
        raise AssertionError("no error")
    finally:
        runner.close()


def test_an_update_that_needs_python_is_refused_by_what_it_does():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = normed()

    class Reads(Model):
        def train_step(self, data, optimizer):
            loss = nn.functional.cross_entropy(self.net(data[0]), data[1])
            shown = {"loss": loss.item()}
            return {"loss": loss, "log_vars": shown, "num_samples": len(data[0])}

    class Draws(Model):
        def forward(self, x):
            return self.net(x) * random.random()

    class Counts(Model):
        def forward(self, x):
            COUNTED.append(1)  # which nobody watches
            return self.net(x) * (len(COUNTED) % 2 + 1)

    assert "item is not supported" in refusal(Reads())
    assert "draws from random at" in refusal(Draws())
    assert "the first replay gave another value" in refusal(Counts())


def test_an_update_without_a_graph_is_refused_by_name():
    hooked = normed()
    hooked[0].register_forward_hook(lambda *_: None)
    assert "Linear 0 has hooks" in refusal(hooked)
    assert "skip" in refusal(policy={"nonfinite": "skip"})
    assert "overflowed" in refusal(policy={"precision": "fp16"})
    assert "micro_batch" in refusal(policy={"micro_batch": 2})

    class Looks(Hook):
        def after_backward(self, runner):
            pass

    assert "after_backward" in refusal(hook=Looks())


def test_the_option_is_checked():
    for options, said in (
        ({"graphs": "updates"}, "did you mean 'update'"),
        ({"graphs": "update", "mode": "eager"}, "needs mode lazy"),
    ):
        try:
            make(device(**options))
        except ConfigError as error:
            assert said in str(error)
        else:
            raise AssertionError("no error")


def test_auto_times_updates_with_and_without_a_graph():
    runs = []
    for tried in (False, True):
        runner, losses = make(device(mode="lazy"), normed(), epochs=3)
        runner.prepare()
        adapter = runner.adapter
        if tried:
            graphs, module = Captures(adapter.sdk), runner.session.step_module.module
            capture_updates(graphs, adapter.update, module, adapter, "auto")
            captured = adapter.update.instead
        with Lines() as log:
            runner.run([loader()], [("train", 1)])
        runs.append((runner, losses.values))
        if tried:
            (line,) = [line for line in log.messages if "auto keeps" in line]
            assert ("keeps graphs" in line) == (captured.captured > 0)
        runner.close()
    close(*runs)
