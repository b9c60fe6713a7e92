"""HPU graphs in training: the same numbers, what a new shape does, what is refused."""

from __future__ import annotations

import torch
from torch import nn

from devrun.errors import UnsupportedFeatureError
from tests.hpu.cases_report import Planted
from tests.hpu.runs import Logged, close, device, loader, make, net, train


def total(name):
    from habana_frameworks import emulator

    return emulator.report().totals.get(name, 0)


def normed(dropout=0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def case_replay_gives_the_numbers_of_no_graphs():
    policies = ({}, {"cumulative_iters": 2}, {"precision": "bf16"})
    for policy in policies:
        runs = []
        for graphs in (False, True):
            before = total("graph_replay")
            where = device(graphs=graphs)
            runs.append(train(where, model=normed(), policy=policy))
            replays = total("graph_replay") - before
            assert replays >= 40 if graphs else replays == 0
        close(*runs, 1e-6)
        assert "forward" not in vars(runs[1][0].model)


def case_each_new_shape_is_captured_up_to_the_limit():
    runner, _ = make(device(graphs=True, max_graphs=1), epochs=1)
    with Logged() as log:
        runner.run([loader(samples=22)], [("train", 1)])
    graphed = runner.adapter._graphed
    assert (graphed.captured, graphed.uncaptured) == (1, 1)
    assert "a shape beyond max_graphs" in log.text
    runner.close()
    runner, _ = make(device(graphs=True), epochs=1)
    runner.run([loader(samples=22)], [("train", 1)])
    assert (runner.adapter._graphed.captured, runner.adapter._graphed.uncaptured) == (
        2,
        0,
    )
    runner.close()


def case_auto_times_both_and_keeps_the_faster():
    with Logged() as log:
        runner, losses = train(device(graphs="auto"), epochs=3)
    (line,) = [line for line in log.lines if "auto keeps" in line]
    kept = runner.adapter._graphed.on
    assert ("keeps graphs" in line) == kept
    assert losses == train(device(), epochs=3)[1]


def case_what_auto_chose_is_kept_by_a_resumed_run(folder):
    runner, _ = make(device(graphs="auto"), epochs=2, work_dir=folder)
    runner.run([loader()], [("train", 1)])
    chosen, path = runner.adapter._graphed.on, runner.save_checkpoint()
    runner.close()
    again, _ = make(device(graphs="auto"), epochs=2)
    again.resume(path)
    again.prepare()
    assert (again.adapter._graphed.on, again.adapter._trial.decided) == (chosen, True)
    again.close()


def case_a_model_that_cannot_be_captured_is_refused_or_left_alone():
    runner, _ = make(device(graphs=True), model=Planted("mask"))
    try:
        runner.run([loader()], [("train", 1)])
    except UnsupportedFeatureError as error:
        assert "Planted cannot be captured in an HPU graph: dynamic shapes" in str(
            error
        )
    else:
        raise AssertionError("no error")
    finally:
        runner.close()
    with Logged() as log:
        mine = train(device(graphs="auto"), model=Planted("mask"))
    assert "Planted runs without graphs: dynamic shapes" in log.text
    close(mine, train(device(), model=Planted("mask")), 1e-6)


def case_an_average_of_the_weights_has_a_forward_of_its_own():
    import copy

    runner, _ = make(device(graphs=True), model=normed())
    runner.run([loader()], [("train", 1)])
    twin = copy.deepcopy(runner.model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    inputs = torch.ones(2, 4, device="hpu")
    twin.eval()
    assert float(twin(inputs).detach().abs().sum()) == 0
    runner.close()


def case_marks_come_after_backward_and_after_the_update():
    before = total("flush by mark_step")
    train(device(fused=False), epochs=1)
    first = total("flush by mark_step") - before
    assert first >= 2 * 12
    train(device(fused=False), epochs=1, policy={"cumulative_iters": 2})
    second = total("flush by mark_step") - before - first
    assert 12 + 6 <= second <= first


def case_a_models_own_update_is_marked_too():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def train_step(self, data, optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.net(data[0]), data[1])
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach(), "log_vars": {}, "num_samples": 4}

    before = total("flush by mark_step")
    mine = train(device(fused=False), model=Own(), epochs=1)
    assert total("flush by mark_step") - before >= 12
    close(mine, train("cpu", model=Own(), epochs=1))
