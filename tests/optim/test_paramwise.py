"""`paramwise_cfg` group by group, on a model with every special kind of layer."""

import logging

import pytest
import torch
from torch import nn

from devrun.config.tree import ConfigDict, place, rehome
from devrun.errors import ConfigError, UnknownNameError
from devrun.optim import DefaultOptimizerConstructor, build_optimizer
from devrun.place import Origin

LR, DECAY = 0.01, 0.0001


class DeformConv2d(nn.Module):
    """Has what a deformable convolution has: a layer that predicts offsets."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.ones(1))
        self.conv_offset = nn.Conv2d(3, 2, 1)


class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 1, groups=2)  # depth-wise
        self.gn = nn.GroupNorm(2, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.param1 = nn.Parameter(torch.ones(1))
        self.conv1 = nn.Conv2d(3, 4, 1, bias=False)
        self.conv2 = nn.Conv2d(4, 2, 1)
        self.bn = nn.BatchNorm2d(2)
        self.sub = Sub()
        self.dcn = DeformConv2d()
        self.fc = nn.Linear(2, 1)


ORDER = [
    "param1",
    "conv1.weight",
    "conv2.weight",
    "conv2.bias",
    "bn.weight",
    "bn.bias",
    "sub.conv1.weight",
    "sub.conv1.bias",
    "sub.gn.weight",
    "sub.gn.bias",
    "dcn.weight",
    "dcn.bias",
    "dcn.conv_offset.weight",
    "dcn.conv_offset.bias",
    "fc.weight",
    "fc.bias",
]


def groups_of(model, **paramwise_cfg):
    """Parameter name -> (lr, weight decay) in multiples of the base values."""
    cfg = {"type": "SGD", "lr": LR, "weight_decay": DECAY, "momentum": 0.9}
    optimizer = build_optimizer(model, {**cfg, "paramwise_cfg": paramwise_cfg})
    names = {id(param): name for name, param in model.named_parameters()}
    result = {}
    for group in optimizer.param_groups:
        (param,) = group["params"]
        scaled = (group["lr"] / LR, group["weight_decay"] / DECAY)
        result[names[id(param)]] = pytest.approx(scaled)
    return result


def expected(**changed):
    return {name: changed.get(name.replace(".", "_"), (1, 1)) for name in ORDER}


def test_without_options_all_parameters_are_one_group():
    for paramwise_cfg in (None, {}):
        cfg = {"type": "SGD", "lr": LR, "paramwise_cfg": paramwise_cfg}
        (group,) = build_optimizer(Net(), cfg).param_groups
        assert len(group["params"]) == len(ORDER)


def test_biases_but_not_those_of_norms_and_deformable_convolutions():
    assert groups_of(Net(), bias_lr_mult=2, bias_decay_mult=0.5) == expected(
        conv2_bias=(2, 0.5),
        sub_conv1_bias=(2, 1),  # the depth-wise rule has its weight decay
        dcn_bias=(2, 0.5),
        fc_bias=(2, 0.5),
    )


def test_norm_layers():
    assert groups_of(Net(), norm_decay_mult=0) == expected(
        bn_weight=(1, 0), bn_bias=(1, 0), sub_gn_weight=(1, 0), sub_gn_bias=(1, 0)
    )


def test_depth_wise_convolutions():
    assert groups_of(Net(), dwconv_decay_mult=0.1) == expected(
        sub_conv1_weight=(1, 0.1), sub_conv1_bias=(1, 0.1)
    )


def test_offset_layers_of_deformable_convolutions():
    groups = groups_of(Net(), dcn_offset_lr_mult=0.1, bias_lr_mult=2)
    assert groups == expected(
        conv2_bias=(2, 1),
        sub_conv1_bias=(2, 1),
        dcn_bias=(2, 1),
        dcn_conv_offset_weight=(0.1, 1),
        dcn_conv_offset_bias=(0.1, 1),
        fc_bias=(2, 1),
    )


def test_custom_keys_win_over_the_other_rules_and_the_longest_over_the_shorter():
    groups = groups_of(
        Net(),
        bias_lr_mult=2,
        bias_decay_mult=0.5,
        norm_decay_mult=0,
        custom_keys={
            "param1": {"lr_mult": 10},
            "sub": {"lr_mult": 0.1, "decay_mult": 0},
            "sub.gn": {"lr_mult": 0.01},
            "fc": {"decay_mult": 3},
        },
    )
    assert groups == expected(
        param1=(10, 1),
        conv2_bias=(2, 0.5),
        bn_weight=(1, 0),
        bn_bias=(1, 0),
        sub_conv1_weight=(0.1, 0),
        sub_conv1_bias=(0.1, 0),
        sub_gn_weight=(0.01, 1),
        sub_gn_bias=(0.01, 1),
        dcn_bias=(2, 0.5),
        fc_weight=(1, 3),
        fc_bias=(1, 3),
    )


def test_a_shared_parameter_is_refused_or_taken_once(caplog):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    with pytest.raises(ValueError, match=r"'b\.weight' is shared .* bypass_duplicate"):
        groups_of(model, bias_lr_mult=2)
    with caplog.at_level(logging.WARNING, "devrun"):
        groups = groups_of(model, bias_lr_mult=2, bypass_duplicate=True)
    assert list(groups) == ["a.weight", "a.bias", "b.bias"]
    assert "b.weight is shared" in caplog.text


def test_without_weight_decay_no_group_gets_one():
    cfg = {"type": "SGD", "lr": LR, "paramwise_cfg": {"bias_lr_mult": 2}}
    optimizer = build_optimizer(nn.Linear(1, 1), cfg)
    assert [group["lr"] for group in optimizer.param_groups] == [LR, 2 * LR]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"bias_decay_mult": 0},
        {"norm_decay_mult": 0},
        {"dwconv_decay_mult": 0},
        {"custom_keys": {"fc": {"decay_mult": 0}}},
    ],
)
def test_a_decay_multiplier_without_weight_decay_is_a_value_error(options):
    cfg = {"type": "SGD", "lr": LR, "paramwise_cfg": options}
    with pytest.raises(ValueError, match="decay_mult multiplies weight_decay") as error:
        build_optimizer(Net(), cfg)
    assert isinstance(error.value, ConfigError)


@pytest.mark.parametrize(
    ("optimizer_cfg", "paramwise_cfg", "named"),
    [
        (["SGD"], None, "optimizer_cfg"),
        ({"type": "SGD"}, ["bias_lr_mult"], "paramwise_cfg"),
        ({"type": "SGD"}, {"custom_keys": ["fc"]}, "custom_keys"),
        ({"type": "SGD"}, {"custom_keys": {"fc": 2}}, r"custom_keys\['fc'\]"),
    ],
)
def test_parts_that_are_no_dicts_are_type_errors(optimizer_cfg, paramwise_cfg, named):
    with pytest.raises(TypeError, match=f"{named} must be a dict"):
        DefaultOptimizerConstructor(optimizer_cfg, paramwise_cfg)


def test_misspelt_options_show_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'norm_decay_mult'"):
        groups_of(Net(), norm_decay_mul=0)
    with pytest.raises(UnknownNameError, match=r"\['fc'\] has no .* mean 'lr_mult'"):
        groups_of(Net(), custom_keys={"fc": {"lr_mul": 2}})


def test_a_misspelt_option_is_reported_with_its_line():
    paramwise_cfg = ConfigDict()
    place(paramwise_cfg, "bias_lr_mul", 2, Origin("cfg.yaml", 12))
    cfg = ConfigDict(type="SGD", lr=0.1, paramwise_cfg=paramwise_cfg)
    rehome(cfg, ("optimizer",))
    with pytest.raises(UnknownNameError) as caught:
        build_optimizer(Net(), cfg)
    where = "cfg.yaml:12: optimizer.paramwise_cfg.bias_lr_mul: "
    assert str(caught.value).startswith(where)


def test_a_custom_key_that_fits_no_parameter_is_reported(caplog):
    with caplog.at_level(logging.WARNING, "devrun"):
        groups_of(Net(), custom_keys={"backbone": {"lr_mult": 2}, "fc": {"lr_mult": 2}})
    assert "'backbone'" in caplog.text
    assert "'fc'" not in caplog.text
