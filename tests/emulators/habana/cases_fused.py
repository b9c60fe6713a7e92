"""Fused optimizers, clipping, moving average and attention."""

import copy
import math

import torch
from habana_frameworks.torch.hpex.kernels import FusedSDPA
from habana_frameworks.torch.hpex.movingavrg import FusedEMA
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import (
    FusedAdagrad,
    FusedAdamW,
    FusedLamb,
    FusedLars,
    FusedResourceApplyMomentum,
    FusedSGD,
)
from habana_frameworks.torch.hpex.optimizers.distributed import (
    FusedAdamW as DistributedAdamW,
)
from pytest import raises
from torch import nn

MODES = ("lazy", "eager")

HPU = torch.device("hpu")


def same_steps(host_kind, host_args, our_kind, our_args):
    host = nn.Linear(4, 3)
    ours = copy.deepcopy(host).to("hpu")
    pairs = (
        (host, host_kind(host.parameters(), **host_args), "cpu"),
        (ours, our_kind(ours.parameters(), **our_args), "hpu"),
    )
    for _ in range(5):
        x = torch.randn(2, 4)
        for model, optimizer, place in pairs:
            optimizer.zero_grad()
            model(x.to(place)).pow(2).sum().backward()
            optimizer.step()
    weight = ours.weight.detach().cpu()
    torch.testing.assert_close(weight, host.weight.detach(), atol=1e-6, rtol=1e-4)


def stepped(kind, **kwargs):
    weight = torch.tensor([3.0, 4.0], device=HPU, requires_grad=True)
    weight.grad = torch.tensor([0.3, 0.4], device=HPU)
    kind([weight], **kwargs).step()
    return weight.detach().cpu()


def test_adamw_is_torchs_where_epsilon_does_not_matter():
    args = {"lr": 0.01, "eps": 1e-12, "weight_decay": 0.1}
    same_steps(torch.optim.AdamW, args, FusedAdamW, args)


def test_adamw_adds_epsilon_before_the_bias_is_corrected():
    weight = stepped(FusedAdamW, lr=0.1, eps=1.0)
    m, v = 0.1 * 0.3, 0.001 * 0.09
    size = 0.1 * math.sqrt(0.001) / 0.1
    assert abs(weight[0].item() - (3 - size * m / (math.sqrt(v) + 1))) < 1e-6


def test_adamw_counts_steps_in_the_group():
    weight = torch.ones(2, device=HPU, requires_grad=True)
    weight.grad = torch.ones(2, device=HPU)
    optimizer = FusedAdamW([weight])
    optimizer.step()
    optimizer.step()
    assert optimizer.param_groups[0]["step"] == 2
    assert optimizer.defaults["eps"] == 1e-6
    with raises(ValueError, match="lr"):
        FusedAdamW([weight], lr=-1.0)


def test_sgd_is_torchs():
    args = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    same_steps(torch.optim.SGD, args, FusedSGD, args)
    args = {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}
    same_steps(torch.optim.SGD, args, FusedSGD, args)


def test_adagrad_is_torchs_and_ignores_schedulers():
    args = {"lr": 0.01, "lr_decay": 0.1}
    same_steps(torch.optim.Adagrad, args, FusedAdagrad, args)
    weight = torch.ones(1, device=HPU, requires_grad=True)
    optimizer = FusedAdagrad([weight], lr=0.5)
    optimizer.param_groups[0]["lr"] = 0.0
    weight.grad = torch.ones(1, device=HPU)
    optimizer.step()
    assert abs(weight.item() - 0.5) < 1e-6


def test_lamb_scales_by_the_trust_ratio():
    weight = stepped(FusedLamb, lr=0.1, weight_decay=0.5, max_grad_norm=None)
    # The first update is the sign of the gradient, plus the decay.
    update = torch.tensor([1.0, 1.0]) + 0.5 * torch.tensor([3.0, 4.0])
    expected = torch.tensor([3.0, 4.0]) - 0.1 * 5 / update.norm() * update
    torch.testing.assert_close(weight, expected, atol=1e-4, rtol=0)
    with raises(RuntimeError, match="AMSGrad"):
        stepped(FusedLamb, amsgrad=True)


def test_lars_scales_gradients_of_unskipped_parameters():
    weights = [torch.tensor([3.0, 4.0], device=HPU, requires_grad=True) for _ in "ab"]
    for weight in weights:
        weight.grad = torch.tensor([0.3, 0.4], device=HPU)
    inner = FusedResourceApplyMomentum(weights, lr=0.1, momentum=0.9)
    FusedLars(inner, [1, 0], eeta=0.5, eps=0.0).step()
    ratio = 0.5 * 5 / 0.5
    assert abs(weights[0][0].item() - (3 - 0.1 * ratio * 0.3)) < 1e-6
    assert abs(weights[1][0].item() - (3 - 0.1 * 0.3)) < 1e-6


def test_clip_norm():
    weight = torch.zeros(2, device=HPU, requires_grad=True)
    clip = FusedClipNorm([weight], 1.0)
    assert clip.clip_norm([weight]).device.type == "cpu"
    weight.grad = torch.tensor([3.0, 4.0], device=HPU)
    assert abs(clip.clip_norm([weight]).item() - 5) < 1e-6
    assert abs(weight.grad.norm().item() - 1) < 1e-5
    scale = torch.zeros((), device=HPU, requires_grad=True)
    scale.grad = torch.tensor(4.0, device=HPU)
    clip.clip_norm([scale])
    assert abs(scale.grad.item() - 1) < 1e-5


def test_the_moving_average_ramps_its_decay():
    model = nn.Linear(1, 1, bias=False).to("hpu")
    model.weight.data.fill_(1.0)
    average = FusedEMA(model, decay=0.9)
    model.weight.data.fill_(2.0)
    average.update(model)
    decay = 0.9 * (1 - math.exp(-1 / 2000))
    assert abs(average.ema.weight.item() - (decay + 2 * (1 - decay))) < 1e-6


def test_attention_repeats_heads():
    q, k = torch.randn(1, 4, 3, 8, device=HPU), torch.randn(1, 2, 3, 8, device=HPU)
    out = FusedSDPA.apply(q, k, k, None, 0.0, True)
    assert out.shape == q.shape


def test_the_distributed_adamw_is_handed_its_gradients():
    weights = [torch.ones(3, device=HPU, requires_grad=True) for _ in range(2)]
    gradient = torch.full((3,), 0.5, device=HPU)
    DistributedAdamW([weights[0]], lr=0.1).step([gradient])
    weights[1].grad = gradient
    FusedAdamW([weights[1]], lr=0.1).step()
    assert weights[0].tolist() == weights[1].tolist() and weights[0].grad is None
    with raises(ValueError, match="2 gradients were given for 1 parameters"):
        DistributedAdamW([weights[0]]).step([gradient, gradient])
