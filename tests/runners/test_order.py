"""Stage order and counters, as MMCV users know them."""

from devrun.hooks import Hook
from tests.support.noisy import plain_loader, runner
from tests.support.observe import Trace


def traced(run, loaders, workflow):
    trace = Trace()
    run.register_hook(trace)
    run.run(loaders, workflow)
    return trace.seen


def test_epoch_runner_order_and_counters():
    loaders = [plain_loader(2), plain_loader(2)]
    seen = traced(runner(limit=2), loaders, [("train", 1), ("val", 1)])
    assert seen[:12] == [
        ("before_run", 0, 0, 0),
        ("before_train_epoch", 0, 0, 0),
        ("before_train_iter", 0, 0, 0),
        ("after_train_iter", 0, 0, 0),
        ("before_train_iter", 0, 1, 1),
        ("after_train_iter", 0, 1, 1),
        ("after_train_epoch", 0, 2, 1),
        ("before_val_epoch", 1, 2, 1),
        ("before_val_iter", 1, 2, 0),
        ("after_val_iter", 1, 2, 0),
        ("before_val_iter", 1, 2, 1),
        ("after_val_iter", 1, 2, 1),
    ]
    assert seen[-2:] == [("after_val_epoch", 2, 4, 1), ("after_run", 2, 4, 1)]


def test_a_train_phase_ends_at_the_limit_and_the_val_phase_still_runs():
    loaders = [plain_loader(1), plain_loader(1)]
    seen = traced(runner(limit=3), loaders, [("train", 2), ("val", 1)])
    names = [entry[0] for entry in seen]
    assert names.count("after_train_epoch") == 3
    assert names.count("after_val_epoch") == 2
    assert names[-2] == "after_val_epoch"


def test_iter_runner_order_and_counters():
    loaders = [plain_loader(2), plain_loader(2)]
    run = runner(by_epoch=False, limit=3)
    seen = traced(run, loaders, [("train", 2), ("val", 1)])
    iterations = [entry for entry in seen if entry[0].startswith("before_")]
    assert iterations == [
        ("before_run", 0, 0, 0),
        ("before_train_iter", 0, 0, 0),
        ("before_train_iter", 0, 1, 1),
        ("before_val_iter", 0, 2, 0),
        ("before_train_iter", 1, 2, 0),
        ("before_val_iter", 1, 3, 0),
    ]
    assert run.iter == 3


def test_max_iters_is_known_before_run_and_the_batch_only_inside_an_iteration():
    facts = {}

    class Look(Hook):
        def before_run(self, runner):
            facts["max_iters"] = runner.max_iters

        def before_train_iter(self, runner):
            facts["batch"] = runner.data_batch[0].shape

        def after_train_epoch(self, runner):
            facts["gone"] = not hasattr(runner, "data_batch")

    run = runner(limit=3)
    run.register_hook(Look())
    run.run([plain_loader(4)], [("train", 1)])
    assert facts == {"max_iters": 12, "batch": (2, 4), "gone": True}


def test_validation_leaves_the_model_training_and_its_weights_alone():
    run = runner(limit=1)
    modes = []

    class Modes(Hook):
        def before_iter(self, runner):
            modes.append((runner.mode, runner.model.training))

        def after_run(self, runner):
            modes.append(("end", runner.model.training))

    run.register_hook(Modes())
    run.run([plain_loader(1), plain_loader(1)], [("train", 1), ("val", 1)])
    assert modes == [("train", True), ("val", False), ("end", True)]


def test_the_update_is_done_before_after_train_iter_and_the_loss_is_detached():
    seen = []

    class Look(Hook):
        priority = "HIGHEST"

        def before_train_iter(self, runner):
            self.weight = runner.model[0].weight.detach().clone()

        def after_train_iter(self, runner):
            changed = not self.weight.equal(runner.model[0].weight)
            seen.append((changed, runner.outputs["loss"].requires_grad))

    run = runner(limit=1)
    run.register_hook(Look())
    run.run([plain_loader(4)], [("train", 1)])
    assert seen == [(True, False)] * 4
