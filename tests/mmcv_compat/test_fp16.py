"""The decorators of models written for MMCV's mixed precision."""

import pytest
import torch
from torch import nn

from devrun.interop.fp16 import auto_fp16, force_fp32
from devrun.models import wrap_fp16_model
from tests.mmcv_compat.mmcv_style import Classifier, loader, runner_of


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.fp16_enabled = False
        self.linear = nn.Linear(2, 2)

    @auto_fp16(apply_to=("x",))
    def some(self, x, y):
        return self.linear(x).dtype, x.dtype, y.dtype

    @auto_fp16(out_fp32=True)
    def all_and_back(self, x, extra=None):
        return {"x": x, "extra": [extra]}

    @force_fp32()
    def exact(self, x):
        return torch.mm(x, x).dtype

    @force_fp32(apply_to=("x",), out_fp16=True)
    def exact_and_back(self, x):
        return x


def ones(dtype=torch.float32):
    return torch.ones(2, 2, dtype=dtype)


def test_nothing_happens_until_fp16_is_enabled():
    model = Decorated()
    assert set(model.some(ones(), ones())) == {torch.float32}
    half = ones(torch.float16)
    assert model.exact_and_back(half) is half


def test_auto_fp16_converts_what_it_is_told_to():
    model = Decorated()
    wrap_fp16_model(model)
    assert model.some(ones(), y=ones()) == (
        torch.float16,
        torch.float16,
        torch.float32,
    )
    whole = torch.ones(2, dtype=torch.int64)
    back = model.all_and_back(ones(), extra=whole)
    assert back["x"].dtype == torch.float32 and back["extra"][0] is whole


def test_force_fp32_leaves_autocast_and_takes_low_precision():
    model = Decorated()
    wrap_fp16_model(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.exact(ones(torch.bfloat16)) == torch.float32
        assert model.exact_and_back(ones(torch.bfloat16)).dtype == torch.bfloat16


def test_other_classes_are_refused_as_in_mmcv():
    class Plain:
        @auto_fp16()
        def low(self, x):
            return x

        @force_fp32()
        def exact(self, x):
            return x

    for method in (Plain().low, Plain().exact):
        with pytest.raises(TypeError, match="Plain"):
            method(ones())


@pytest.mark.parametrize(("precision", "enabled"), [("bf16", True), ("fp32", False)])
def test_a_runner_enables_the_decorators_with_its_precision(precision, enabled):
    class Model(Classifier):
        fp16_enabled = False

        @force_fp32(apply_to=("scores",))
        def loss(self, scores, labels):
            self.seen = scores.dtype
            return nn.functional.cross_entropy(scores, labels)

        def forward(self, img, return_loss=True, **data):
            scores = self.head(self.backbone(img))
            self.computed = scores.dtype
            return {"loss": self.loss(scores, data["gt_label"])}

    runner = runner_of(model=Model(), max_epochs=1)
    runner.register_optimizer_hook({"precision": precision})
    runner.run([loader()], [("train", 1)])
    assert runner.model.fp16_enabled is enabled
    assert (runner.model.computed == torch.bfloat16) is enabled
    assert runner.model.seen == torch.float32
