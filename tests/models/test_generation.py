"""Generation: the tokens of the plain model, in few graphs, whatever the batches."""

import pytest
import torch

from devrun.errors import ConfigError
from tests.support.generation import LENGTHS, generated, gpt, plain
from tests.support.strict import zip_strict


def test_the_cache_changes_no_token():
    model = gpt()
    assert generated(model, "cpu") == plain(model)
    assert len(set(plain(model))) == len(LENGTHS)


def test_what_is_drawn_depends_on_the_seed_and_the_sample_alone():
    how = {"temperature": 3.0, "top_k": 20}
    first = generated(gpt(), "cpu", **how)
    assert first == generated(gpt(), "cpu", rows=5, **how)
    assert first != generated(gpt(), "cpu", seed=1, **how)
    assert generated(gpt(), "cpu", temperature=3.0, top_k=1) == plain(gpt())


def test_a_text_ends_with_the_token_that_stops_it():
    whole = plain(gpt())
    stop = whole[0][2]
    for tokens, all_of_it in zip_strict(generated(gpt(), "cpu", stop=stop), whole):
        end = all_of_it.index(stop) + 1 if stop in all_of_it else 8
        assert tokens == all_of_it[:end]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"samples": [{"input_ids": torch.ones(33).long()}]},
            "more than the model's 40",
        ),
        ({"samples": [{"x": torch.ones(3)}]}, "has no input_ids"),
        ({"samples": [{"input_ids": torch.ones(3)}]}, "float32: give ints"),
        ({"stop": -5}, "stop must be 0 or more, got -5"),
        ({"top_k": 0}, "top_k must be 1 or more, got 0"),
        ({"temperature": -1}, "temperature must be 0 or more, got -1"),
        ({"metrics": ["blue"]}, "did you mean 'bleu'"),
    ],
)
def test_what_cannot_be_generated_is_one_line(how, said):
    with pytest.raises(Exception, match=said):
        generated(gpt(), "cpu", **how)


def test_a_model_without_a_cache_is_named():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Embedding(61, 61)

        def forward(self, input_ids):
            return {"logits": self.body(input_ids)}

    with pytest.raises(ConfigError, match=r"Plain\.forward takes no past_key_values"):
        generated(Plain(), "cpu")
