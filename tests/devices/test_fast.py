"""`performance: fast`, and the settings that it is made of, on real trainings."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun import EpochBasedRunner
from devrun.config import Config
from devrun.errors import ConfigError
from devrun.models import GPT
from devrun.runners.training import build_training
from tests.support.observe import Lines
from tests.support.strict import zip_strict

UPDATES = 6


@pytest.fixture
def said():
    with Lines() as lines:
        yield lines


def images(updates=UPDATES):
    torch.manual_seed(1)
    data = TensorDataset(
        torch.randn(4 * updates, 3, 8, 8), torch.arange(4 * updates) % 3
    )
    return DataLoader(data, batch_size=4)


def runner(tmp_path=None, epochs=1, optimizer=torch.optim.AdamW, model=None, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    precision = options.pop("precision", None)
    return EpochBasedRunner(
        model,
        optimizer=optimizer(model.parameters(), lr=1e-3),
        loss=nn.CrossEntropyLoss(),
        max_epochs=epochs,
        seed=0,
        work_dir=tmp_path,
        device={"type": "cpu", **options},
        optimizer_config={"precision": precision} if precision else {},
    )


def trained(run, updates=UPDATES):
    run.run([images(updates)], [("train", 1)])
    return [param.detach().clone() for param in run.model.parameters()]


INSTRUCTIONS = {"avx2 avx512f avx512_bf16": True, "amx_bf16": True, "avx2": False}


@pytest.mark.parametrize("flags", INSTRUCTIONS)
def test_the_processor_and_the_model_decide(flags, tmp_path, monkeypatch, said):
    here = INSTRUCTIONS[flags]
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr("devrun.devices.cpu.CPUINFO", tmp_path / "cpuinfo")
    images = runner(performance="fast")
    trained(images)
    chosen = "bf16" if here else "fp32"
    assert images.policy.precision == chosen
    assert images.adapter.options.channels_last == (here or None)
    assert images.optimizer.param_groups[0]["fused"] is True
    own = "precision: bf16, channels_last: True, " if here else ""
    assert f"performance: fast on cpu sets {own}fused: True" in said.text
    points = runner(
        model=nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), performance="fast"
    )
    trained(points)
    assert points.policy.precision == "fp32"
    assert not points.adapter.options.channels_last


def test_two_runs_of_one_seed_and_a_resumed_one_have_the_same_bits(tmp_path):
    first, second = (runner(tmp_path / n, performance="fast") for n in "ab")
    assert all(map(torch.equal, trained(first), trained(second)))
    path = first.save_checkpoint()
    ends = []
    for _ in range(2):
        again = runner(epochs=2, performance="fast")
        again.resume(path)
        ends.append(trained(again))
    assert all(map(torch.equal, *ends)) and again.iter == 2 * UPDATES


def test_what_was_given_and_deterministic_come_before_fast(said):
    given = runner(performance="fast", channels_last=False, precision="fp32")
    assert not given.adapter.options.deterministic
    trained(given)
    assert "sets fused: True" in said.text
    assert given.adapter.options.channels_last is False
    weights = []
    for _ in range(2):
        run = runner(performance="fast", deterministic=True)
        weights.append(trained(run))
        assert run.optimizer.param_groups[0]["fused"] is True
        run.close()
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_update_takes_up_the_state_of_another_layout(tmp_path, kind, placed):
    def optimizer(fused):
        more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return lambda params, lr: kind(params, lr=lr, fused=fused, **more)

    first = runner(tmp_path, optimizer=optimizer(False))
    trained(first, 5)
    path = first.save_checkpoint()
    ends = []
    for fused in (False, True):
        run = runner(
            tmp_path, epochs=2, optimizer=optimizer(fused), channels_last=fused
        )
        if placed:
            run.prepare()
        run.resume(path)
        run.optimizer.param_groups[0]["fused"] = fused
        ends.append(trained(run, 5))
    for one, other in zip_strict(*ends):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_another_word_is_refused_at_its_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: {type: MLP}\ndata: {train: {type: X}}\noptimizer: {type: SGD}\n"
        "runner: {max_epochs: 1}\ndevice: cpu\nperformance: quick\n"
    )
    with pytest.raises(ConfigError, match=r"c\.yaml:6.*must be fast, got 'quick'"):
        build_training(Config.fromfile(str(path)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # read by torch itself
def test_blocks_that_are_alike_are_compiled_once():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = GPT(vocab_size=16, block_size=8, n_layer=4, n_head=2, n_embd=8, dropout=0.0)
    keys, graphs = list(model.state_dict()), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    rows = [{"input_ids": row, "labels": row} for row in torch.randint(16, (10, 8))]
    run = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        max_epochs=1,
        device={"type": "cpu", "compile": {"regions": True, "backend": backend}},
    )
    run.run([DataLoader(rows, batch_size=4)], [("train", 1)])
    assert list(model.state_dict()) == keys
    assert len(graphs) == 2  # one, and one for the short last batch
