"""Failures inside a step become one line that says what to do."""

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, DeviceMemoryError
from devrun.step import MicroBatches
from tests.support.cpu import Prepared, batch


class Failing(nn.Module):
    def __init__(self, fail):
        super().__init__()
        self.linear, self.fail = nn.Linear(4, 3), fail

    def forward(self, x):
        self.fail()
        return self.linear(x)


def too_much():
    torch.empty(2**52)


def raises(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_label_out_of_range_is_named_with_its_place(evaluate):
    run = Prepared()
    inputs, labels = batch()
    labels[5] = 7
    with pytest.raises(ConfigError, match="label 7 of sample 5") as refusal:
        if evaluate:
            run.adapter.eval_step(run.model, (inputs, labels))
        else:
            run.step((inputs, labels))
    assert isinstance(refusal.value.__cause__, IndexError)


def test_the_place_counts_over_micro_batches():
    run = Prepared(accumulate=2)
    first, second = batch(), batch()
    second[1][3] = -1
    with pytest.raises(ConfigError, match="label -1 of sample 11"):
        run.step(MicroBatches([first, second]))


def test_labels_in_a_dict_are_named_by_their_key():
    run = Prepared()
    inputs, labels = batch()
    labels[0] = 99
    with pytest.raises(ConfigError, match=r"label 99 of sample 0 .*'labels'"):
        run.step({"inputs": inputs, "labels": labels})


def test_a_token_outside_the_vocabulary_is_named():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

        def forward(self, tokens):
            return self.head(self.table(tokens).mean(1))

    tokens = torch.ones(4, 5, dtype=torch.long)
    tokens[2, 1] = 12
    with pytest.raises(ConfigError, match="index 12 of sample 2 .* have 10 rows"):
        Prepared(Words()).step((tokens, torch.zeros(4, dtype=torch.long)))


@pytest.mark.parametrize(
    "fail", [too_much, raises(MemoryError())], ids=["allocator", "python"]
)
def test_out_of_host_memory_says_size_and_remedy(fail):
    run = Prepared(Failing(fail))
    with pytest.raises(DeviceMemoryError, match="cpu with 8 samples") as refusal:
        run.step()
    assert "smaller batch" in str(refusal.value)
    assert "peak" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_out_of_device_memory_is_the_same_error():
    if not hasattr(torch, "OutOfMemoryError"):
        pytest.skip("its public name came with torch 2.5")
    text = "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total"
    run = Prepared(Failing(raises(torch.OutOfMemoryError(text))), accumulate=2)
    with pytest.raises(DeviceMemoryError, match="in 2 micro-batches.*2.00 GiB"):
        run.step(MicroBatches([batch(), batch()]))


def test_a_step_before_prepare_is_said():
    from devrun.devices.cpu import CPUAdapter

    with pytest.raises(RuntimeError, match="prepare"):
        CPUAdapter.from_config({}).train_step(nn.Linear(1, 1), batch(), None)
