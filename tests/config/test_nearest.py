"""The clause that names what was meant."""

import pytest

from devrun.errors import nearest

POLICIES = [
    "CosineAnnealing", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CosineRestart", "Cyclic", "CyclicLR", "Exp", "Fixed", "FlatCosineAnnealing", "Inv",
    "LambdaLR", "LinearLR", "MultiStepLR", "OneCycle", "OneCycleLR", "Poly",
    "PolynomialLR", "ReduceLROnPlateau", "Step", "StepLR",
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Cosin", "CosineAnnealing"),
        ("cosine", "CosineAnnealing"),
        ("CosineAnnealingLrUpdaterHook", "CosineAnnealing"),
        ("Plateau", "ReduceLROnPlateau"),
        ("StepLRScheduler", "StepLR"),
        ("torch.optim.lr_scheduler.LinearLR", "LinearLR"),
        ("one_cycle", "OneCycle"),
        ("WarmRestart", "CosineAnnealingWarmRestarts"),
        ("CyclicLr", "CyclicLR"),
    ],
)
def test_words_before_and_after_do_not_hide_a_name(given, meant):
    hint = nearest(given, POLICIES)
    assert hint.startswith("did you mean ")
    assert repr(meant) in hint
    assert len(hint.split("'")) <= 7  # three names at most


def test_a_close_name_is_the_only_one():
    assert nearest("Setp", POLICIES) == "did you mean 'Step'?"


def test_a_long_list_is_cut():
    hint = nearest("q", [f"a{n:03d}_block" for n in range(500)])
    assert hint.startswith("known: a000_block, ")
    assert hint.endswith(", ...")
    assert hint.count(",") == 20
    assert nearest("q", ["b", "a"]) == "known: a, b"
    assert nearest("q", []) == ""
