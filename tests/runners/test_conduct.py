"""How a run behaves around its loop: modes, failures, loaders and workers."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from devrun.devices.cpu import CPUAdapter
from devrun.errors import ConfigError, DataError, DivergedError, UnsupportedFeatureError
from devrun.hooks import EvalHook, Hook, OptimizerHook
from tests.support.noisy import loader, loss, plain_loader, runner


class Frozen(Hook):
    """Keeps a BatchNorm in evaluation mode, and notes the mode of every step."""

    def __init__(self):
        self.modes = []

    def before_train_epoch(self, runner):
        runner.model[1].eval()

    def before_train_iter(self, runner):
        self.modes.append((runner.model[0].training, runner.model[1].training))


def test_evaluation_puts_each_module_back_into_its_own_mode():
    run, frozen = runner(True, 1), Frozen()
    run.register_hook(frozen)
    run.register_hook(
        EvalHook(loader(shuffle=False), by_epoch=False, interval=2),
    )
    run.run([loader()])
    assert frozen.modes == [(True, False)] * 6


def test_a_failing_on_exception_hides_neither_the_error_nor_the_other_hooks(capfd):
    class Broken(Hook):
        def on_exception(self, runner, exception):
            raise OSError("no such file")

    class Fails(Hook):
        def after_train_iter(self, runner):
            raise RuntimeError("the first")

    told = []

    class Told(Hook):
        def on_exception(self, runner, exception):
            told.append(str(exception))

    run = runner(True, 1)
    for hook in (Broken(), Fails(), Told()):
        run.register_hook(hook)
    with pytest.raises(RuntimeError, match="the first"):
        run.run([plain_loader(2)])
    assert told == ["the first"]
    assert "no such file" in capfd.readouterr().err


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(10):
            yield torch.full((4,), float(index)), torch.tensor(index % 2)


def test_iterations_need_no_length():
    run = runner(False, 8)
    run.run([DataLoader(Stream(), batch_size=4)])
    assert (run.iter, run.epoch) == (8, 2)


def test_epochs_need_a_length():
    with pytest.raises(ConfigError, match="has no length.*IterBasedRunner"):
        runner(True, 1).run([DataLoader(Stream(), batch_size=4)])


def test_a_loader_that_cannot_start_again_is_named():
    class Once:
        dataset = ()

        def __init__(self):
            self.batches = iter(plain_loader(2))

        def __iter__(self):
            return self.batches

    with pytest.raises(DataError, match="nothing in epoch 2.*iteration 3"):
        runner(False, 8).run([Once()])


def test_phases_with_the_same_loader_go_through_its_data_together():
    run, seen = runner(False, 6), []

    class Notes(Hook):
        def before_train_iter(self, runner):
            seen.append(runner.data_batch[0].sum().item())

    run.register_hook(Notes())
    data = plain_loader(6)
    run.run([data, data], [("train", 2), ("train", 1)])
    assert len(set(seen)) == 6


class Queued(CPUAdapter):
    """A device whose values the host should not wait for at every step."""

    name = "queued"
    host_shared = False


@pytest.mark.parametrize(("interval", "reached"), [(2, 1), (100, 8)])
def test_a_bad_loss_is_found_at_log_points_and_at_the_end(interval, reached):
    def bad(output, target):
        return loss(output, target) * float("nan")

    run = runner(True, 2, device=Queued, loss=bad)
    run.register_logger_hooks(
        {"interval": interval, "hooks": [{"type": "TextLoggerHook"}]}
    )
    with pytest.raises(DivergedError):
        run.run([plain_loader(4)])
    assert run.iter == reached


class OwnUpdate(OptimizerHook):
    """A subclass does the update itself."""


def test_after_backward_is_refused_where_it_would_never_be_called():
    class Gradients(Hook):
        def after_backward(self, runner):
            pass

    run = runner(True, 1, optimizer_config=OwnUpdate())
    run.register_hook(Gradients())
    with pytest.raises(UnsupportedFeatureError, match="after_backward.*never called"):
        run.run([plain_loader(2)])


def test_a_misspelt_key_of_log_config_is_named():
    with pytest.raises(ConfigError, match="'hook'.*accepted: interval, hooks"):
        runner().register_logger_hooks({"interval": 2, "hook": []})


@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_of_another_model_is_refused(several):
    run, other = runner(True, 1), torch.nn.Linear(2, 2)
    wrong = torch.optim.SGD(other.parameters(), lr=0.1)
    run.session.optimizer = {"a": run.optimizer, "b": wrong} if several else wrong
    with pytest.raises(ConfigError, match="SGD has no parameter of the model"):
        run.run([loader()])
