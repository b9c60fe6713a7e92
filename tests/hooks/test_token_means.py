"""Means over tokens: the same whatever the batches, the micro-batches and the ranks."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from devrun.hooks import EvalHook
from devrun.models.gpt import GPT
from devrun.runners import EpochBasedRunner
from devrun.step import MicroBatches
from tests.support.cpu import Prepared, weights
from tests.support.near import assert_near

LENGTHS = (1, 12, 2, 11, 3, 10, 1, 9)
VOCABULARY, LONGEST = 7, 12


def sequences():
    """Eight padded sequences, of very different lengths."""
    generator = torch.Generator().manual_seed(4)
    found = []
    for length in LENGTHS:
        ids = torch.randint(0, VOCABULARY, (LONGEST,), generator=generator)
        labels = ids.clone()
        labels[length + 1 :] = -100  # one more, as the first one is predicted by none
        found.append({"input_ids": ids, "labels": labels})
    return found


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids):
        return self.table(input_ids).movedim(-1, 1)


class OwnMean(Tagger):
    """Makes its own mean over the valid labels, as Hugging Face's models do."""

    def forward(self, input_ids, labels):
        logits = super().forward(input_ids)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def gpt():
    torch.manual_seed(3)
    return GPT(VOCABULARY, LONGEST, n_layer=1, n_head=1, n_embd=8, dropout=0.0)


CLASS_WEIGHTS = torch.linspace(0.5, 2.0, VOCABULARY)
MODELS = {
    "separate loss": (Tagger, nn.CrossEntropyLoss),
    "class weights": (Tagger, lambda: nn.CrossEntropyLoss(CLASS_WEIGHTS)),
    "a mean of its own": (OwnMean, lambda: None),
    "shifted labels": (gpt, lambda: None),
}


def evaluated(kind, batch_size):
    model, loss = MODELS[kind][0](), MODELS[kind][1]()
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        max_epochs=1,
        device="cpu",
    )
    loader = DataLoader(sequences(), batch_size=batch_size)
    found = EvalHook(loader, metric=["accuracy", "top2", "perplexity"]).evaluate_now(
        runner
    )
    runner.close()
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_an_evaluation_does_not_depend_on_the_batch_size(kind):
    alone = evaluated(kind, 1)
    for batch_size in (2, 3, 8):
        assert evaluated(kind, batch_size) == pytest.approx(alone, rel=1e-5)
    assert_near(alone["perplexity"], math.exp(alone["loss"]))


def collated(samples):
    return {key: torch.stack([s[key] for s in samples]) for key in samples[0]}


@pytest.mark.parametrize("kind", MODELS)
def test_an_update_in_micro_batches_is_that_of_all_its_tokens(kind):
    data = sequences()
    pieces = [collated(data[:1]), collated(data[1:3]), collated(data[3:])]
    whole = Prepared(MODELS[kind][0](), loss=MODELS[kind][1]())
    parts = Prepared(MODELS[kind][0](), loss=MODELS[kind][1](), accumulate=3)
    split = Prepared(MODELS[kind][0](), loss=MODELS[kind][1](), micro_batch=2)
    for _ in range(3):
        expected = whole.step(collated(data))
        for outputs in (parts.step(MicroBatches(pieces)), split.step(collated(data))):
            assert_near(outputs.loss, expected.loss)
            assert float(outputs["num_items"]) == float(expected["num_items"])
    for run in (parts, split):
        assert_near(weights(run.module), weights(whole.module))


def test_a_micro_batch_without_a_valid_token_changes_nothing():
    data = sequences()
    empty = {**collated(data[:2]), "labels": torch.full((2, LONGEST), -100)}
    alone = Prepared(OwnMean(), loss=None)
    both = Prepared(OwnMean(), loss=None, accumulate=2)
    first = alone.step(collated(data))
    second = both.step(MicroBatches([empty, collated(data)]))
    assert_near(second.loss, first.loss)
    assert_near(weights(both.module), weights(alone.module))


def test_by_option_samples_count():
    data = sequences()
    pieces = [collated(data[:2]), collated(data[2:])]
    run = Prepared(OwnMean(), loss=None, accumulate=2, mean_over="samples")
    outputs = run.step(MicroBatches(pieces))
    model = OwnMean()
    with torch.no_grad():
        losses = [float(model(**piece)["loss"]) for piece in pieces]
    assert float(outputs.loss) == pytest.approx((2 * losses[0] + 6 * losses[1]) / 8)
    assert "num_items" not in outputs


def test_the_log_weighs_each_loss_by_its_tokens():
    model = Tagger()
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loss=nn.CrossEntropyLoss(),
        max_epochs=1,
        device="cpu",
    )
    runner.run([DataLoader(sequences(), batch_size=2, shuffle=False)])
    found = runner.log_buffer.means()["loss"]
    whole = collated(sequences())
    with torch.no_grad():
        expected = F.cross_entropy(model(whole["input_ids"]), whole["labels"])
    assert found == pytest.approx(float(expected), rel=1e-5)
    assert runner.log_buffer.mean_count() == 2  # the throughput is in samples
    runner.close()


def test_by_option_all_labels_of_a_causal_model_divide():
    """As transformers' Trainer did before 5.11: num_items_in_batch of all labels."""
    pieces = [collated(sequences()[:1]), collated(sequences()[1:])]
    pieces[0]["labels"][:, 1:] = -100  # a micro-batch of a label, but no target
    run = Prepared(gpt(), loss=None, accumulate=2, mean_over="labels")
    outputs = run.step(MicroBatches(pieces))
    model = gpt().train()
    theirs = torch.optim.SGD(model.parameters(), lr=0.1)
    num_items_in_batch = sum(piece["labels"].ne(-100).sum() for piece in pieces)
    total = 0.0
    for piece in pieces:
        logits = model(piece["input_ids"])["logits"][:, :-1].flatten(0, 1)
        targets = piece["labels"][:, 1:].flatten()
        loss = F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch
        loss.backward()
        total += float(loss.detach())
    theirs.step()
    assert float(outputs.loss) == pytest.approx(total, rel=1e-5)
    assert float(outputs["num_items"]) == float(num_items_in_batch)
    assert_near(weights(run.module), weights(model))
