"""Weights of other packages' models into ours and back, by what their keys are."""

import logging

import pytest
import torch
from torch import nn

from devrun.checkpoint import load_checkpoint, load_state_dict
from devrun.errors import CheckpointError
from devrun.models import ResNet, VisionTransformer

MMCLS_VIT = {
    "cls_token": "backbone.cls_token",
    "pos_embed": "backbone.pos_embed",
    "patch_embed.proj": "backbone.patch_embed.projection",
    "blocks.0.norm1": "backbone.layers.0.ln1",
    "blocks.0.attn.qkv": "backbone.layers.0.attn.qkv",
    "blocks.0.attn.proj": "backbone.layers.0.attn.proj",
    "blocks.0.norm2": "backbone.layers.0.ln2",
    "blocks.0.mlp.fc1": "backbone.layers.0.ffn.layers.0.0",
    "blocks.0.mlp.fc2": "backbone.layers.0.ffn.layers.1",
    "norm": "backbone.ln1",
    "head": "head.layers.head",
}


def vit(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1}
    model = VisionTransformer(**{**sizes, "num_heads": 2, "num_classes": 3, **changes})
    return randomized(model)


def resnet(seed=0, **changes):
    torch.manual_seed(seed)
    args = {"stage_blocks": (1, 1), "base_channels": 8, "num_classes": 3, **changes}
    return randomized(ResNet(**args))


def randomized(model):
    """No tensor is like another one, so that two of them mixed up show."""
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) * 0.2 + 0.1)
    return model.eval()


def as_mmcls(model):
    names = MMCLS_VIT
    if isinstance(model, ResNet):
        kept = ("conv1", "bn1", "layer1", "layer2")
        names = {"fc": "head.fc", **{key: f"backbone.{key}" for key in kept}}
    return {
        names[ours] + key[len(ours) :]: value
        for key, value in model.state_dict().items()
        for ours in [next(n for n in names if key == n or key.startswith(f"{n}."))]
    }


def named(state):
    """A model with tensors of these names and shapes, as another package has them."""
    model = nn.Module()
    for key, value in state.items():
        *path, last = key.split(".")
        place = model
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place._modules[part]
        place.register_buffer(last, torch.zeros_like(value))
    return model


def equal(first, second):
    theirs = second.state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in first.state_dict().items())


@pytest.mark.parametrize("make", [vit, resnet])
def test_an_mmcls_file_is_read_by_its_keys_and_the_map_is_said(make, tmp_path, caplog):
    torch.save({"state_dict": as_mmcls(make()), "meta": {}}, tmp_path / "epoch_1.pth")
    model = make(1)
    with caplog.at_level(logging.INFO):
        load_checkpoint(model, tmp_path / "epoch_1.pth", strict=True)
    assert equal(make(), model)
    assert "keys such as " in caplog.text


@pytest.mark.parametrize("make", [vit, resnet])
def test_the_same_table_leads_into_a_model_with_mmcls_keys(make):
    classifier = named(as_mmcls(make()))
    load_state_dict(classifier, make().state_dict(), strict=True)
    for key, value in as_mmcls(make()).items():
        assert torch.equal(classifier.state_dict()[key], value)


def test_what_is_of_another_shape_is_left_out_by_name(caplog):
    state, model = as_mmcls(vit()), vit(1, num_classes=5)
    head = model.head.weight.clone()
    with caplog.at_level(logging.INFO):
        load_state_dict(model, state, source="vit.pth")
    assert torch.equal(model.norm.weight, state["backbone.ln1.weight"])
    assert torch.equal(model.head.weight, head)
    (record,) = caplog.records
    assert record.getMessage() == (
        "vit.pth into VisionTransformer (keys such as backbone.cls_token as "
        "cls_token): 18 tensors matched\n"
        "  2 of another shape: head.weight (file [3, 8], model "
        "[5, 8]), head.bias (file [3], model [5])"
    )


def test_weights_of_another_size_are_one_line_with_their_shapes():
    with pytest.raises(CheckpointError) as caught:
        load_state_dict(vit(embed_dim=12), as_mmcls(vit()), source="vit.pth")
    assert "19 of another shape: cls_token (file [1, 1, 8], model [1, 1, 12]), " in (
        str(caught.value)
    )


def test_keys_that_fit_as_they_are_stay_although_a_map_would_fit_as_many():
    state = vit().state_dict()
    state |= {f"ema.{key}": value for key, value in vit(2).state_dict().items()}
    model = vit(1)
    load_state_dict(model, state)
    assert equal(vit(), model)


HOSTILE = {
    "sparse": lambda value: value.to_sparse(),
    "scalar": lambda value: torch.tensor(1.0),
    "more dimensions": lambda value: value[None, None],
    "twice as wide": lambda value: torch.cat([value, value], dim=-1),
    "empty": lambda value: torch.zeros(0),
    "nested": lambda value: torch.nested.nested_tensor([value, value[:1]]),
    "no tensor": lambda value: "text",
    "few for many": lambda value: torch.ones(1).as_strided((1 << 22,) * 2, (0, 0)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_tensor_of_any_kind_in_place_of_another_is_named_or_refused(kind):
    state = as_mmcls(vit())
    for key in list(state):
        given = {**state, key: HOSTILE[kind](state[key])}
        with pytest.raises(CheckpointError):
            load_state_dict(vit(1), given, strict=True)
