"""The moving average: its values, its place in evaluation, and its survival."""

import pytest
import torch
from torch import nn

from devrun.devices.cpu import CPUAdapter
from devrun.errors import CheckpointError, ConfigError
from devrun.hooks.ema import EMAHook
from devrun.hooks.simple import ClosureHook
from devrun.step import Capability
from tests.support.runs import TracedRun


def recorder():
    """Weights after each update, seen before the averaging of that update."""
    seen = []
    hook = ClosureHook(
        "after_train_iter", lambda r: seen.append(r.model.weight.detach().clone())
    )
    hook.priority = "HIGH"
    return seen, hook


def batch_norm():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("counted", [{"max_epochs": 3}, {"max_iters": 12}])
@pytest.mark.parametrize(("momentum", "warm_up"), [(0.1, 100), (0.5, 10)])
def test_average_follows_the_formula_from_the_first_weights(counted, momentum, warm_up):
    seen, record = recorder()
    hook = EMAHook(momentum=momentum, warm_up=warm_up)
    loop = TracedRun(record, hook, **counted)
    expected = loop.model.weight.detach().clone()
    loop.run()
    for i, weight in enumerate(seen):
        m = min(momentum, (1 + i) / (warm_up + i))
        expected = (1 - m) * expected + m * weight
    assert torch.allclose(hook.averaged["weight"], expected, rtol=1e-5)
    assert torch.equal(loop.model.weight, seen[-1])


def test_a_longer_interval_decays_as_much_per_update():
    seen, record = recorder()
    hook = EMAHook(momentum=0.1, interval=3, warm_up=1)
    loop = TracedRun(record, hook, max_iters=8)
    expected = loop.model.weight.detach().clone()
    loop.run()
    for i in (0, 3, 6):
        m = 1 - (1 - 0.1) ** 3
        expected = (1 - m) * expected + m * seen[i]
    assert torch.allclose(hook.averaged["weight"], expected, rtol=1e-5)


def test_evaluation_has_the_average_and_training_gets_its_weights_back():
    hook = EMAHook(momentum=0.1, warm_up=1)
    loop = TracedRun(hook, max_iters=6).run()
    trained = loop.model.weight.detach().clone()
    averaged = hook.averaged["weight"].detach().clone()
    with loop.runner.evaluating():
        assert torch.equal(loop.model.weight, averaged)
        with loop.runner.evaluating():  # an evaluation inside another
            assert torch.equal(loop.model.weight, averaged)
        assert torch.equal(loop.model.weight, averaged)
    assert torch.equal(loop.model.weight, trained)
    assert torch.equal(hook.averaged["weight"], averaged)
    assert not torch.equal(trained, averaged)


def test_weights_come_back_when_evaluation_fails():
    loop = TracedRun(EMAHook(momentum=0.1, warm_up=1), max_iters=3).run()
    trained = loop.model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), loop.runner.evaluating():
        raise ZeroDivisionError
    assert torch.equal(loop.model.weight, trained)


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_run_has_the_average_of_one_never_stopped(tmp_path, stop):
    def loop():
        hook = EMAHook(momentum=0.1, warm_up=30, interval=2, buffers="average")
        return hook, TracedRun(hook, max_iters=9, model=batch_norm())

    whole_hook, whole = loop()
    whole.run()
    _, first = loop()
    saved = first.run(stop_at=stop).save(tmp_path)
    hook, second = loop()
    second.load(saved).run()
    for name, value in whole_hook.state_dict()["model"].items():
        assert torch.equal(hook.state_dict()["model"][name], value), name


def test_buffers_stay_the_models_own_unless_averaged():
    def evaluated(buffers):
        loop = TracedRun(
            EMAHook(momentum=0.1, warm_up=1, buffers=buffers),
            max_iters=4,
            model=batch_norm(),
        ).run()
        live = loop.model[1].running_mean.clone()
        with loop.runner.evaluating():
            assert loop.model[1].num_batches_tracked == 4
            return live, loop.model[1].running_mean.clone()

    live, inside = evaluated("copy")
    assert torch.equal(live, inside)
    live, inside = evaluated("average")
    assert not torch.equal(live, inside)


class Noting(CPUAdapter):
    """Notes what it is asked to copy; `elsewhere`, its weights are not the model's."""

    def __init__(self, *, elsewhere):
        super().__init__()
        self.asked = []
        if elsewhere:
            self.capabilities = self.capabilities - {Capability.HOST_WEIGHTS}

    def sync_to_host(self, model):
        self.asked.append("sync_to_host")

    def sync_to_device(self, model):
        self.asked.append("sync_to_device")


def test_weights_are_fetched_and_pushed_where_the_device_keeps_its_own():
    device = Noting(elsewhere=True)
    fetched = []
    after = ClosureHook("after_run", lambda runner: fetched.extend(device.asked))
    loop = TracedRun(EMAHook(interval=2), after, max_iters=3, device=device).run()
    assert fetched == ["sync_to_host"] * 3  # iterations 0 and 2, and the end of the run
    device.asked.clear()
    with loop.runner.evaluating():
        assert device.asked == ["sync_to_host", "sync_to_device"]
    assert device.asked == ["sync_to_host", "sync_to_device", "sync_to_device"]


def test_a_checkpoint_inside_an_evaluation_is_refused(tmp_path):
    loop = TracedRun(EMAHook(), max_iters=2).run()
    refusal = pytest.raises(CheckpointError, match="averaged weights")
    with loop.runner.evaluating(), refusal:
        loop.save(tmp_path)


def test_a_state_of_another_model_is_refused_in_one_line():
    other = EMAHook()
    TracedRun(other, max_iters=1, model=nn.Linear(3, 5)).run()
    hook = EMAHook()
    hook.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="do not fit") as caught:
        TracedRun(hook, max_iters=1).run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"momentum": 0}, "momentum must be above 0 and below 1, got 0"),
        ({"momentum": 1.0}, "got 1.0"),
        ({"interval": 0}, "interval must be an int of 1 or more, got 0"),
        ({"interval": 1.5}, "got 1.5"),
        ({"buffers": "drop"}, "'copy' or 'average', got 'drop'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        EMAHook(**arguments)
