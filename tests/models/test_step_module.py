"""`StepModule`: one step of every kind of model, and what is refused."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from devrun.errors import ConfigError, ConfigTypeError
from devrun.models import StepModule

X = torch.arange(12.0).reshape(4, 3) / 10
Y = torch.tensor([0, 1, 1, 0])
CORE = {"loss", "log_vars", "num_samples"}


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


class OwnSteps(nn.Module):
    def __init__(self, **output):
        super().__init__()
        self.net = linear()
        self.output = output
        self.seen = []

    def train_step(self, data, optimizer):
        self.seen.append(("train", optimizer))
        return self._step(data)

    def val_step(self, data, optimizer):
        self.seen.append(("val", optimizer))
        return self._step(data)

    def _step(self, data):
        loss = F.cross_entropy(self.net(data["img"]), data["gt_label"])
        result = {"loss": loss, "log_vars": {"loss": loss.item(), "acc": 0.5}}
        return {**result, "num_samples": len(data["img"]), **self.output}


class OwnLoss(nn.Module):
    """Hugging Face's contract; `make` is what the output is made with."""

    def __init__(self, make=dict):
        super().__init__()
        self.net = linear()
        self.make = make

    def forward(self, inputs, labels=None, scale=1.0):
        logits = self.net(inputs)
        loss = None if labels is None else F.cross_entropy(logits, labels) * scale
        return self.make(loss=loss, logits=logits)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor
    aux: torch.Tensor = dataclasses.field(default_factory=lambda: torch.tensor(2.0))


Named = namedtuple("Named", ["loss", "logits"])


class Attributes:
    def __init__(self, **fields):
        vars(self).update(fields)


def test_plain_train_step_is_the_loss_of_the_output():
    step = StepModule(linear(), nn.CrossEntropyLoss())
    result = step((X, Y), "train")
    assert set(result) == CORE
    expected = F.cross_entropy(step.module(X), Y)
    assert torch.equal(result["loss"], expected)
    assert result["num_samples"] == 4
    assert torch.equal(result["log_vars"]["loss"], expected)
    assert not result["log_vars"]["loss"].requires_grad
    result["loss"].backward()
    assert step.module.weight.grad.abs().sum() > 0


def test_plain_predict_step_needs_no_labels():
    step = StepModule(linear(), nn.CrossEntropyLoss())
    for batch in (X, (X,), [X], {"inputs": X}):
        result = step(batch, "predict")
        assert result["loss"] is None
        assert result["log_vars"] == {}
        assert result["num_samples"] == 4
        assert torch.equal(result["predictions"], step.module(X))
        assert result["targets"] is None
    assert step((X, Y), "predict")["targets"] is Y


@pytest.mark.parametrize(
    "batch",
    [
        [X, Y],
        {"inputs": X, "labels": Y},
        {"img": X, "gt_label": Y},
        {"whatever": X, "target": Y},
        {"index": torch.arange(4), "image": X, "label": Y},
    ],
)
def test_plain_models_take_pairs_and_dicts_by_the_usual_names(batch):
    step = StepModule(linear(), nn.CrossEntropyLoss())
    for _ in range(2):  # the second time, the layout is known
        result = step(batch, "train")
        assert torch.equal(result["loss"], F.cross_entropy(step.module(X), Y))
        assert result["num_samples"] == 4


def test_plain_models_of_several_inputs():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = linear()

        def forward(self, left, right):
            return self.net(left - right)

    step = StepModule(Pair(), nn.CrossEntropyLoss())
    expected = F.cross_entropy(step.module(X, X / 2), Y)
    assert torch.equal(step((X, X / 2, Y), "train")["loss"], expected)
    batch = {"right": X / 2, "left": X, "label": Y}
    assert torch.equal(step(batch, "train")["loss"], expected)


def test_a_dict_whose_inputs_cannot_be_told_is_refused_with_its_keys():
    step = StepModule(linear(), nn.CrossEntropyLoss())
    batch = {"left": X, "right": X, "label": Y}
    with pytest.raises(ConfigError, match="Linear.forward.* keys left, right, label"):
        step(batch, "train")


def test_a_torch_loss_gets_the_logits_of_a_richer_output_and_others_get_all_of_it():
    seen = []

    def own(output, target):
        seen.append(output)
        return F.cross_entropy(output["logits"], target)

    class Rich(OwnLoss):
        def forward(self, inputs):
            return {"logits": self.net(inputs), "aux": 1}

    step = StepModule(Rich(), nn.CrossEntropyLoss())
    result = step((X, Y), "val")
    assert torch.equal(result["predictions"], step.module.net(X))
    step = StepModule(Rich(), own)
    assert torch.equal(step((X, Y), "train")["loss"], result["loss"])
    assert seen[0]["aux"] == 1


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        (nn.CrossEntropyLoss(reduction="none"), ConfigError, r"scalar.*\(4,\).*mean"),
        (lambda out, y: 3.0, ConfigTypeError, "0-d tensor, got float"),
        (lambda out, y: None, ConfigTypeError, "0-d tensor, got NoneType"),
        (lambda out, y: out.detach().sum(), ConfigError, "no gradient path"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_names_the_model(loss, error, words):
    with pytest.raises(error, match=f"Linear.*{words}") as caught:
        StepModule(linear(), loss)((X, Y), "train")
    assert "\n" not in str(caught.value)


def test_all_frozen_has_no_gradient_path_but_may_be_evaluated():
    step = StepModule(linear().requires_grad_(False), nn.CrossEntropyLoss())
    assert step((X, Y), "val")["loss"].dim() == 0
    with pytest.raises(ConfigError, match="the loss of Linear has no gradient path"):
        step((X, Y), "train")


@pytest.mark.parametrize("batch", [X, (X,), {"inputs": X}])
def test_a_batch_without_labels_is_refused_where_a_loss_is_due(batch):
    with pytest.raises(ConfigError, match=r"Linear.*a batch must be \(x, y\)"):
        StepModule(linear(), nn.CrossEntropyLoss())(batch, "train")


@pytest.mark.parametrize("make", [dict, Output, Named, Attributes])
def test_own_loss_of_every_kind_of_output(make):
    step = StepModule(OwnLoss(make))
    batch = {"inputs": X, "labels": Y}
    result = step(batch, "train")
    assert set(result) == CORE
    assert torch.equal(result["loss"], F.cross_entropy(step.module.net(X), Y))
    assert not result["log_vars"]["loss"].requires_grad
    assert result["num_samples"] == 4
    result = step(batch, "val")
    assert torch.equal(result["predictions"], step.module.net(X))
    assert result["targets"] is Y
    assert result["loss"] is not None


@pytest.mark.parametrize("mode", ["train", "val"])
def test_own_loss_absent_names_the_model_and_the_ways_out(mode):
    with pytest.raises(ConfigError, match="OwnLoss returned no loss .* add `loss`"):
        StepModule(OwnLoss())({"inputs": X}, mode)


def test_a_batch_is_spread_over_the_arguments_or_passed_whole():
    class Whole(OwnLoss):
        def forward(self, batch):
            return super().forward(**batch)

    expected = F.cross_entropy(linear()(X), Y)
    batch = {"inputs": X, "labels": Y}
    for model, data in ((OwnLoss(), (X, Y)), (OwnLoss(), batch), (Whole(), batch)):
        assert torch.equal(StepModule(model)(data, "train")["loss"], expected)


def test_a_batch_with_keys_the_model_does_not_take_is_refused_with_both():
    with pytest.raises(
        ConfigError, match=r"\(inputs, labels=None.*dict with images, labels"
    ):
        StepModule(OwnLoss())({"images": X, "labels": Y, "more": 1}, "train")


def test_a_plain_model_without_a_loss_is_told_to_give_one():
    with pytest.raises(ConfigError, match="Linear.* needs `loss` in the config"):
        StepModule(linear())((X, Y), "train")
    with pytest.raises(ConfigError, match=r"Linear returned no loss \(got Tensor\)"):
        StepModule(linear())(X, "train")


def test_own_steps_get_batch_and_optimizer():
    model = OwnSteps(extra=1)
    step = StepModule(model)
    step.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "optimizer" not in dict(step.named_modules())
    batch = {"img": X, "gt_label": Y}
    result = step(batch, "train")
    assert result["loss"].requires_grad
    assert result["log_vars"] == {"loss": result["loss"].item(), "acc": 0.5}
    assert (result["num_samples"], result["extra"]) == (4, 1)
    step(batch, "val")
    assert model.seen == [("train", step.optimizer), ("val", step.optimizer)]


def test_own_steps_without_a_loss_are_left_to_whoever_updates():
    step = StepModule(OwnSteps(loss=None, log_vars={"d": 1.0}))
    result = step({"img": X, "gt_label": Y}, "train")
    assert result["loss"] is None
    assert result["log_vars"] == {"d": 1.0}


def test_return_loss_false_is_how_such_models_predict():
    class Classifier(OwnSteps):
        def forward(self, img, return_loss=True, gt_label=None):
            return "loss" if return_loss else [self.net(img).argmax(1)]

    result = StepModule(Classifier())({"img": X, "gt_label": Y}, "predict")
    assert result["loss"] is None
    assert result["num_samples"] == 4
    assert torch.equal(result["predictions"][0], linear()(X).argmax(1))
    assert result["targets"] is Y


def test_batch_processor_works_and_is_deprecated():
    calls = []

    def process(model, data, train_mode):
        calls.append(train_mode)
        return {"loss": model(data).sum(), "log_vars": {}, "num_samples": 2}

    model = linear()
    with pytest.warns(DeprecationWarning, match="train_step") as warned:
        step = StepModule(model, batch_processor=process)
    assert warned[0].filename == __file__
    assert torch.equal(step(X, "train")["loss"], model(X).sum())
    assert step(X, "val")["num_samples"] == 2
    assert calls == [True, False]


@pytest.mark.filterwarnings("ignore:batch_processor:DeprecationWarning")
def test_parts_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="OwnSteps gets its loss from train_step"):
        StepModule(OwnSteps(), nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match="OwnSteps has train_step"):
        StepModule(OwnSteps(), batch_processor=lambda model, data, train_mode: {})
    with pytest.raises(TypeError, match="batch_processor must be callable, got int"):
        StepModule(linear(), batch_processor=3)
    with pytest.raises(TypeError, match="loss must be callable, got str"):
        StepModule(linear(), "CrossEntropyLoss")
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got dict"):
        StepModule({"type": "ResNet"})
