"""Options and corners of the devices that run operation by operation."""

import pytest
import torch
from torch import nn

from devrun.devices.cuda.adapter import BackendSettings
from devrun.devices.generic import GenericAdapter
from devrun.errors import UnsupportedFeatureError
from devrun.step import MicroBatches
from tests.support.cpu import Prepared, batch, net, same, weights
from tests.support.near import assert_near
from tests.support.strict import zip_strict


def closure_loop(steps):
    model, losses = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        losses.append(optimizer.step(closure).item())
    return losses, weights(model)


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def test_an_optimizer_that_needs_a_closure_gets_one():
    model = net()
    run = Prepared(model, optimizer=lbfgs(model))
    losses, expected = closure_loop(3)
    assert [float(run.step()["loss"]) for _ in range(3)] == losses
    assert same(weights(model), expected)


@pytest.mark.parametrize("policy", [{"precision": "fp16"}, {"nonfinite": "skip"}])
def test_what_a_closure_cannot_do_is_refused(policy):
    model = net()
    with pytest.raises(UnsupportedFeatureError, match="closure"):
        Prepared(model, optimizer=lbfgs(model), **policy)


def test_resumed_optimizer_state_is_used_and_kept_in_place():
    model = net()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    Prepared(model, optimizer=adam).step()
    moments = [state["exp_avg"].clone() for state in adam.state.values()]
    again = Prepared(model, optimizer=adam)
    assert again.optimizer is adam
    for state, before in zip_strict(adam.state.values(), moments):
        assert torch.equal(state["exp_avg"], before)
        assert float(state["step"]) == 1.0


def test_channels_last_reaches_weights_and_images():
    seen = []

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x):
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return self.head(self.conv(x).mean((2, 3)))

    run = Prepared(Conv(), options={"channels_last": True})
    assert run.module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    data = [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))]
    for item in run.adapter.prepare_dataloader(data, training=True):
        run.step(item)
    assert seen == [True]


def test_compile_keeps_the_names_of_the_weights():
    run = Prepared(options={"compile": {"backend": "eager"}})
    plain = Prepared()
    assert run.module.state_dict().keys() == plain.module.state_dict().keys()
    assert_near(run.step()["loss"], plain.step()["loss"])


def test_numeric_switches_go_back_to_what_they_were():
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.benchmark, cudnn.deterministic
    settings = BackendSettings()
    settings.set_tf32(True)
    settings.set_benchmark(True)
    assert torch.get_float32_matmul_precision() == "high"
    assert cudnn.benchmark is True
    settings.set_deterministic()
    assert (cudnn.benchmark, cudnn.deterministic) == (False, True)
    settings.undo()
    settings.undo()
    after = torch.get_float32_matmul_precision(), cudnn.benchmark, cudnn.deterministic
    assert after == before


def test_log_vars_of_micro_batches_are_means_over_samples():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def train_step(self, data, optimizer):
            loss = nn.functional.cross_entropy(self.net(data[0]), data[1])
            size = len(data[0])
            log_vars = {"size": torch.tensor(float(size))}
            if size == 2:
                log_vars["only_here"] = 5.0
            return {"loss": loss, "log_vars": log_vars, "num_samples": size}

    run = Prepared(Counted(), accumulate=2)
    x, y = batch(8)
    outputs = run.step(MicroBatches([(x[:6], y[:6]), (x[6:], y[6:])]))
    assert float(outputs.log_vars["size"]) == pytest.approx((6 * 6 + 2 * 2) / 8)
    assert float(outputs.log_vars["only_here"]) == pytest.approx(5.0)
    assert outputs.num_samples == 8


def test_an_old_torch_without_accelerators_is_said(monkeypatch):
    monkeypatch.setattr("devrun.torch_features.VERSION", "2.5.1")
    assert "torch 2.6" in GenericAdapter.unavailable_reason()
    assert GenericAdapter.list_devices() == ()


def test_what_was_read_anyway_is_logged_as_the_number_it_is_from_the_first_update():
    run = Prepared(net(), grad_clip={"max_norm": 1.0})
    for _ in range(2):
        outputs = run.step()
        assert list(outputs.log_vars) == ["loss", "grad_norm"]
        assert outputs.log_vars["loss"] == outputs.loss.item()
        assert type(outputs.log_vars["grad_norm"]) is float


def test_the_loss_that_a_model_logs_itself_is_left_as_it_is():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def train_step(self, data, optimizer):
            loss = nn.functional.cross_entropy(self.net(data[0]), data[1])
            return {"loss": 2 * loss, "log_vars": {"loss": 7.0}, "num_samples": 8}

    run = Prepared(Model())
    assert [run.step().log_vars for _ in range(2)] == [{"loss": 7.0}] * 2
