"""The runner's constructor, its attributes, and what it refuses."""

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, UnknownNameError
from devrun.hooks import Hook
from devrun.runners import EpochBasedRunner, Runner, build_runner
from tests.support.noisy import loss, net, plain_loader, runner
from tests.support.observe import Trace


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"optimizer": "sgd"}, TypeError, "torch.optim.Optimizer"),
        ({"optimizer": {"g": 1}}, TypeError, "g must be"),
        ({"logger": "log"}, TypeError, "logging.Logger"),
        ({"meta": [1]}, TypeError, "meta"),
        ({"work_dir": 3}, TypeError, "work_dir"),
        ({"max_epochs": 1, "max_iters": 1}, ValueError, "not both"),
        ({"max_epochs": -1}, ValueError, "max_epochs"),
        ({"max_epochs": 1.5}, ValueError, "max_epochs"),
        ({"device": "gpu0"}, UnknownNameError, "no device"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        EpochBasedRunner(net(), loss=loss, **{"device": "cpu", **arguments})


@pytest.mark.parametrize(
    ("loaders", "workflow", "words"),
    [
        (lambda: plain_loader(1), [("train", 1)], "must be a list"),
        (lambda: [plain_loader(1)], [("train", 1), ("val", 1)], "2 phases"),
        (lambda: [plain_loader(1)], ["train"], r"\('train', 1\)"),
        (lambda: [plain_loader(1)], [(1, 1)], "is a str"),
        (lambda: [plain_loader(1)], [("train", -1)], "0 or more"),
        (lambda: [plain_loader(1)], [("test", 1)], "no workflow phase 'test'"),
        (lambda: [plain_loader(1)], [("val", 1)], "never trains"),
    ],
)
def test_wrong_workflows_are_refused(loaders, workflow, words):
    with pytest.raises(ConfigError, match=words):
        runner(limit=1).run(loaders(), workflow)


class Phases(EpochBasedRunner):
    """With two phases of its own, and methods that are none."""

    def distill(self, data_loader, **kwargs):
        self.train(data_loader, **kwargs)

    @torch.no_grad()
    def look(self, data_loader):
        self.looked = self.iter

    def prepare_eval_loader(self, data_loader):
        return super().prepare_eval_loader(data_loader)

    def wipe(self, path):
        raise AssertionError("called by a config")

    def _inner(self, data_loader):
        raise AssertionError("called by a config")


def phases():
    model = net()
    return Phases(model, optimizer=sgd(model), loss=loss, device="cpu", max_epochs=2)


def test_a_workflow_calls_no_method_that_is_not_a_phase():
    """Whatever the runner has, by any name, is refused before anything has run."""
    for made in (lambda: runner(limit=1), lambda: runner(False, limit=1), phases):
        accepted = {"train", "val"} | ({"distill", "look"} if made is phases else set())
        for name in {*dir(type(made())), "nothing", "__init__", ""} - accepted:
            run = made()
            with pytest.raises(UnknownNameError, match="accepted: 'train', 'val'"):
                run.run([plain_loader(1)], [(name, 1)])
            assert run.mode is None


def test_a_phase_of_a_subclass_runs():
    run = phases()
    run.run([plain_loader(1)] * 2, [("distill", 1), ("look", 1)])
    assert (run.epoch, run.iter, run.looked) == (2, 2, 2)


def test_a_run_without_a_limit_is_refused():
    for by_epoch, name in ((True, "max_epochs"), (False, "max_iters")):
        with pytest.raises(ConfigError, match=name):
            runner(by_epoch, limit=None).run([plain_loader(1)])


def test_extra_arguments_of_run_reach_train_step():
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def train_step(self, data, optimizer, scale=1.0):
            seen.append(scale)
            return {"loss": self.fc(data[0]).mean(), "log_vars": {}, "num_samples": 2}

    model = Model()
    run = EpochBasedRunner(model, optimizer=sgd(model), max_epochs=1, device="cpu")
    run.run([plain_loader(2)], [("train", 1)], scale=0.5)
    assert seen == [0.5, 0.5]


def test_a_stop_ends_at_the_iteration_boundary_and_runs_after_run():
    class Stop(Hook):
        def before_train_iter(self, runner):
            if runner.iter == 3:
                runner.request_stop("enough")

    run, trace = runner(limit=5), Trace()
    run.register_hook(Stop())
    run.register_hook(trace)
    run.run([plain_loader(2)])
    assert (run.iter, run.stop_reason) == (4, "enough")
    assert trace.names()[-1] == "after_run"


def test_an_exception_reaches_the_hooks_and_keeps_its_own_traceback():
    seen = []

    class Fails(Hook):
        def after_train_iter(self, runner):
            raise KeyError("mine")

        def on_exception(self, runner, exception):
            seen.append(exception)

    run = runner(limit=1)
    run.register_hook(Fails())
    with pytest.raises(KeyError, match="mine") as caught:
        run.run([plain_loader(1)])
    assert seen == [caught.value]
    assert caught.traceback[-1].name == "after_train_iter"


def test_a_second_run_goes_on():
    run = runner(limit=1)
    data = plain_loader(2)
    run.run([data])
    with pytest.warns(DeprecationWarning, match="max_epochs"):
        run.run([data], [("train", 1)], max_epochs=3)
    assert (run.epoch, run.iter) == (3, 6)


def test_runners_are_built_from_a_config_that_stays_as_it_was():
    config = {"type": "IterBasedRunner", "max_iters": 3}
    model = net()
    defaults = {"model": model, "optimizer": sgd(model), "loss": loss, "device": "cpu"}
    for _ in range(2):
        assert build_runner(config, defaults).max_iters == 3
    assert config == {"type": "IterBasedRunner", "max_iters": 3}
    with pytest.raises(KeyError, match="did you mean 'EpochBasedRunner'"):
        build_runner({"type": "EpochBasedRuner", "max_epochs": 1}, defaults)
    with pytest.raises(TypeError, match="dict"):
        build_runner("EpochBasedRunner")


def test_the_old_name_warns():
    with pytest.warns(DeprecationWarning, match="EpochBasedRunner"):
        Runner(net(), loss=loss, max_epochs=1, device="cpu")


def test_the_usual_hooks_need_no_policy():
    run = runner(limit=1)
    run.register_training_hooks()
    run.run([plain_loader(2)])
    assert run.iter == 2
