"""Devices that models share, the executable cache, overlapped transfers."""

import gc

import poptorch
import pytest
import torch


def inference(make, **ids):
    opts = poptorch.Options()
    if ids:
        opts.useIpuId(ids["ipu"])
    return poptorch.inferenceModel(make(), opts)


def test_a_device_is_held_by_one_model(make, data):
    x, _ = data(4)
    first, second = inference(make, ipu=1), inference(make, ipu=1)
    first(x)
    with pytest.raises(poptorch.Error, match="Failed to acquire 1 IPU"):
        second(x)
    first.detachFromDevice()
    second(x)
    with pytest.raises(poptorch.Error, match="Detach or destroy another model"):
        first(x)
    second.destroy()
    assert torch.equal(first(x), second.model(x))


def test_a_forgotten_model_frees_its_device(make, data):
    inference(make, ipu=3)(data(4)[0])
    inference(make, ipu=3)(data(4)[0])


def test_a_machine_of_chosen_size_is_shared(make, data, emulator):
    gc.collect()
    emulator.set_ipus(2)
    x, _ = data(4)
    models = [inference(make) for _ in range(3)]
    models[0](x)
    models[1](x)
    with pytest.raises(poptorch.Error, match="2 of 2 IPUs are in use"):
        models[2](x)
    models[0].detachFromDevice()
    models[2](x)


def test_the_cache_knows_what_was_compiled_before(make, data, emulator, tmp_path):
    def compiled(rows, steps=1):
        opts = poptorch.Options().enableExecutableCaching(str(tmp_path / "cache"))
        opts.deviceIterations(steps)
        poptorch.inferenceModel(make(), opts).compile(data(rows)[0])
        return emulator.counts["cache_hit"], emulator.counts["cache_miss"]

    assert compiled(4) == (0, 1)
    assert compiled(4) == (1, 1)
    assert compiled(8) == (1, 2)  # another shape
    assert compiled(8, steps=2) == (1, 3)  # other options
    assert compiled(8, steps=2) == (2, 3)
    assert len(list((tmp_path / "cache").iterdir())) == 3


MODE = poptorch.OverlapMode.OverlapAccumulationLoop


class Overlaps(torch.nn.Module):
    """Marks its input or output in the right place, or not."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def forward(self, x):
        if self.where == "used input":
            return poptorch.set_overlap_for_input(x, MODE) + x
        if self.where == "no input":
            return poptorch.set_overlap_for_input(x + 1, MODE)
        if self.where == "no output":
            return poptorch.set_overlap_for_output(x + 1, MODE) * 2
        if self.where == "output twice":
            y = x + 1
            return y, poptorch.set_overlap_for_output(y, MODE)
        x = poptorch.set_overlap_for_input(x, MODE)
        return poptorch.set_overlap_for_output(x + 1, MODE)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("used input", "must be the only op applied to an input"),
        ("no input", "not a tensor input"),
        ("no output", "not a tensor output"),
        ("output twice", "returned twice"),
    ],
)
def test_overlaps_are_at_the_edges_of_the_graph(where, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Overlaps(where))(torch.ones(1))


def test_overlaps_need_sharding_and_tiles():
    with pytest.raises(poptorch.Error, match="please switch to poptorch.Sharded"):
        poptorch.inferenceModel(Overlaps(""))(torch.ones(1))
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(poptorch.Error, match="No IO tiles allocated"):
        poptorch.inferenceModel(Overlaps(""), opts)(torch.ones(1))
    opts = opts.clone()
    opts.TensorLocations.numIOTiles(32)
    assert poptorch.inferenceModel(Overlaps(""), opts)(torch.ones(1)).item() == 2
