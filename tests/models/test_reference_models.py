"""The reference models: sizes as published, values by hand, and that they learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from devrun.errors import ConfigError
from devrun.models import GPT, MLP, ResNet, StepModule, VisionTransformer
from tests.support.near import assert_near

TINY_RESNET = {"stage_blocks": (1, 1, 1), "base_channels": 8, "stem": "cifar"}
TINY_VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
TINY_GPT = {"vocab_size": 17, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


def count(model):
    return sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize(
    ("kind", "arguments", "params"),
    [
        (ResNet, {"depth": 18, "stem": "cifar", "num_classes": 10}, 11_173_962),
        (ResNet, {"depth": 18}, 11_689_512),
        (ResNet, {"depth": 34}, 21_797_672),
        (ResNet, {"depth": 50}, 25_557_032),
        (ResNet, {"depth": 101}, 44_549_160),
        (VisionTransformer, {}, 86_567_656),
        (GPT, {}, 124_439_808),
    ],
)
def test_parameter_counts_are_the_published_ones(kind, arguments, params):
    with torch.device("meta"):
        assert count(kind(**arguments)) == params


def learner(name):
    """A tiny model as a step, and eight samples."""
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    if name == "GPT":
        tokens = torch.randint(0, 17, (8, 8))
        return StepModule(GPT(**TINY_GPT, dropout=0.0)), {
            "input_ids": tokens,
            "labels": tokens,
        }
    model = {
        "MLP": lambda: MLP(3 * 8 * 8, (32,), 4),
        "ResNet": lambda: ResNet(num_classes=4, **TINY_RESNET),
        "ResNet-bottleneck": lambda: ResNet(
            50, 4, base_channels=2, stem="cifar", zero_init_residual=True
        ),
        "ViT": lambda: VisionTransformer(num_classes=4, **TINY_VIT),
    }[name]()
    return StepModule(model, nn.CrossEntropyLoss()), (images, labels)


NAMES = ["MLP", "ResNet", "ResNet-bottleneck", "ViT", "GPT"]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_reached_and_eight_samples_are_learnt(name):
    step, batch = learner(name)
    optimizer = torch.optim.Adam(step.parameters(), lr=1e-2)
    first = step(batch, "train")["loss"].item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = step(batch, "train")["loss"]
        loss.backward()
        optimizer.step()
    unreached = [n for n, p in step.named_parameters() if not p.grad.abs().sum() > 0]
    assert unreached == []
    assert loss.item() < 0.1 * first


def test_resnet_stems_and_stages_shrink_the_image_as_published():
    shapes = []

    def note(module, inputs, output):
        shapes.append(tuple(output.shape[1:]))

    for stem in ("imagenet", "cifar"):
        model = ResNet(18, num_classes=5, stem=stem, base_channels=4)
        for index in range(4):
            getattr(model, f"layer{index + 1}").register_forward_hook(note)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    assert shapes[:4] == [(4, 8, 8), (8, 4, 4), (16, 2, 2), (32, 1, 1)]
    assert shapes[4:] == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


def test_zero_init_residual_starts_every_block_as_its_shortcut():
    model = ResNet(num_classes=4, zero_init_residual=True, **TINY_RESNET).eval()
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(model.layer1[0](x), F.relu(x))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either depth or stage_blocks"),
        ({"depth": 18, "stage_blocks": (1, 1)}, "either depth or stage_blocks"),
        ({"depth": 20}, "one of 18, 34, 50, 101, 152, got 20"),
        ({"depth": 18, "stem": "mnist"}, "imagenet or cifar, got 'mnist'"),
    ],
)
def test_resnet_refuses_what_it_cannot_be(arguments, words):
    with pytest.raises(ConfigError, match=words):
        ResNet(**arguments)


def test_vit_starts_as_the_authors_code_does():
    torch.manual_seed(0)
    model = VisionTransformer(img_size=64, depth=1, num_classes=10)
    assert model(torch.randn(2, 3, 64, 64)).abs().max() == 0  # the head is zero
    assert model.cls_token.abs().max() == 0
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    block = model.blocks[0]
    assert block.attn.qkv.weight.std().item() == pytest.approx(768**-0.5, rel=0.01)
    assert block.mlp.fc1.weight.std().item() == pytest.approx(
        (2 / (768 + 3072)) ** 0.5, rel=0.01
    )
    assert block.mlp.fc1.bias.abs().max() < 1e-5


def test_vit_names_are_those_of_timm():
    names = set(VisionTransformer(**TINY_VIT).state_dict())
    block = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
    layers = [f"blocks.{index}.{layer}" for index in (0, 1) for layer in block]
    expected = {
        f"{layer}.{kind}"
        for layer in ("patch_embed.proj", "norm", "head", *layers)
        for kind in ("weight", "bias")
    }
    assert names == expected | {"cls_token", "pos_embed"}


def test_vit_refuses_sizes_that_do_not_fit():
    with pytest.raises(ConfigError, match="img_size 30 is not a multiple"):
        VisionTransformer(img_size=30)
    with pytest.raises(ConfigError, match="embed_dim 10 is not a multiple"):
        VisionTransformer(embed_dim=10, num_heads=3)
    with pytest.raises(ConfigError, match="img_size 8, got images of 8 x 12"):
        VisionTransformer(**TINY_VIT)(torch.zeros(1, 3, 8, 12))


def test_gpt_looks_back_only():
    torch.manual_seed(0)
    model = GPT(**TINY_GPT).eval()
    tokens = torch.randint(0, 17, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 17
    before, after = model(tokens)["logits"], model(changed)["logits"]
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_gpt_loss_compares_with_the_next_token_and_skips_minus_100():
    torch.manual_seed(0)
    model = GPT(**TINY_GPT).eval()
    tokens = torch.randint(0, 17, (2, 6))
    labels = tokens.clone()
    labels[0, 3] = -100
    output = model(tokens, labels)
    scores = output["logits"].log_softmax(-1)
    terms = [
        -scores[row, at, labels[row, at + 1]]
        for row in range(2)
        for at in range(5)
        if labels[row, at + 1] != -100
    ]
    assert len(terms) == 9
    assert_near(output["loss"], torch.stack(terms).mean())
    assert model(tokens)["loss"] is None


def test_gpt_starts_as_gpt2_does():
    torch.manual_seed(0)
    model = GPT(vocab_size=500, block_size=256, n_layer=4, n_head=4, n_embd=128)
    std = {name: param.std().item() for name, param in model.named_parameters()}
    assert std["wte.weight"] == pytest.approx(0.02, rel=0.05)
    assert std["wpe.weight"] == pytest.approx(0.01, rel=0.05)
    assert std["h.1.mlp.c_fc.weight"] == pytest.approx(0.02, rel=0.05)
    assert std["h.1.mlp.c_proj.weight"] == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert std["h.1.attn.c_attn.bias"] == 0
