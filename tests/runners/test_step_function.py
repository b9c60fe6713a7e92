"""A training that is a function: no data set, no optimizer, and the same runner."""

import pytest
import torch

from devrun.errors import ConfigError
from devrun.models import MLP, StepFunction
from devrun.runners import IterBasedRunner


def walk(number, at):
    draw = torch.Generator().manual_seed(number)
    at = at + torch.randn(at.shape, generator=draw)
    return {"at": at}, {"far": at.norm()}


def runner_of(step, steps, work_dir=None, **state):
    model = StepFunction(step, **state)
    runner = IterBasedRunner(model, device="cpu", max_iters=steps, work_dir=work_dir)
    if work_dir is not None:
        saved = {"interval": 3, "by_epoch": False}
        runner.register_training_hooks(checkpoint_config=saved)
    return runner


def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path):
    start = {"at": torch.zeros(3)}
    whole = runner_of(walk, 6, **start)
    whole.run()
    first = runner_of(walk, 3, str(tmp_path), **start)
    first.run()
    second = runner_of(walk, 6, str(tmp_path), **start)
    second.resume("auto")
    second.run()
    assert second.iter == 6
    assert torch.equal(whole.model.at, second.model.at)
    assert not torch.equal(first.model.at, second.model.at)


def test_a_step_keeps_its_state_and_a_model_needs_data():
    def forgets(number, at):
        return {"from": at}, {}

    with pytest.raises(
        ConfigError, match="returned another at, from than it was given"
    ):
        runner_of(forgets, 1, at=torch.zeros(2)).run()
    runner = IterBasedRunner(MLP(2, [2], 2), device="cpu", max_iters=1)
    with pytest.raises(ConfigError, match="was given no data loader to train MLP on"):
        runner.run()


def test_an_ipu_says_that_it_has_nothing_to_train():
    ipu = {"type": "ipu", "emulate": True}
    model = StepFunction(walk, at=torch.zeros(2))
    with pytest.raises(
        ConfigError, match="there is no optimizer, so an IPU has nothing"
    ):
        IterBasedRunner(model, device=ipu, max_iters=1).run()
