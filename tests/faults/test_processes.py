"""Gone on with by another number of processes, a run trains on the same samples."""

import pytest
import torch

from devrun.checkpoint import read_checkpoint
from tests.faults import harness
from tests.faults.harness import Child
from tests.support.zygote import free_port

BATCH, LEG, LENGTH = 8, 4, 40
"""Samples of an update over all processes, updates of a leg, samples of an epoch.

Five updates are an epoch: no leg ends with one.
"""
CHANGES = {
    "model": {"type": "MLP", "in_features": 4, "hidden": [8], "num_classes": 2},
    "optimizer_config": {},
    "lr_config": {"policy": "step", "step": [6], "by_epoch": False},
    "checkpoint_config": {"interval": LEG, "by_epoch": False},
    "launcher": "pytorch",
}


def trained(place, processes, updates, *words, batch=BATCH):
    """(status, output) of a run by so many processes, up to so many updates."""
    data = {
        "samples_per_gpu": batch // processes,
        "workers_per_gpu": 0,
        "train": {"type": "Numbered", "length": LENGTH},
    }
    hooks = [
        *harness.CONFIG["custom_hooks"],
        {"type": "WhichSamples", "path": str(place / "samples-{rank}")},
    ]
    runner = {"type": "IterBasedRunner", "max_iters": updates}
    harness.write_config(place, **CHANGES, data=data, custom_hooks=hooks, runner=runner)
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    children = [
        Child(
            harness.command, *harness.train(place, *words),
            output=place / f"output-{rank}",
            environment={
                **known, "WORLD_SIZE": str(processes),
                "RANK": str(rank), "LOCAL_RANK": str(rank),
            },
        )
        for rank in range(processes)
    ]  # fmt: skip
    statuses = {child.wait() for child in children}
    assert len(statuses) == 1, [child.said() for child in children]
    return statuses.pop(), children[0].said()


def samples(place):
    """Update -> its samples, those of the first process first."""
    found = {}
    for path in sorted(place.glob("samples-*")):
        for line in path.read_text().splitlines():
            update, *numbers = map(int, line.split())
            found.setdefault(update, []).extend(numbers)
        path.unlink()
    return found


def weights(place):
    newest = harness.newest(place / "work" / "checkpoints")
    return dict(read_checkpoint(newest)["model"])


@pytest.mark.parametrize(
    "worlds", [(2, 1), pytest.param((2, 1, 4, 2), marks=pytest.mark.faults)], ids=str
)
def test_the_same_samples_and_updates(worlds, tmp_path, figures):
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    for place in (alone, changing):
        place.mkdir()
    assert trained(alone, 1, LEG * len(worlds))[0] == 0
    seen = {}
    for leg, processes in enumerate(worlds, 1):
        status, said = trained(changing, processes, LEG * leg)
        assert status == 0, said
        new = samples(changing)
        assert seen.keys().isdisjoint(new)
        seen.update(new)
        assert leg == 1 or f"processes: {worlds[leg - 2]} -> {processes}" in said
    assert seen == samples(alone)
    torch.testing.assert_close(weights(changing), weights(alone))
    figures(
        "F30",
        f"{' -> '.join(map(str, worlds))} processes: {len(seen)} of {len(seen)} "
        "updates of the same samples in the same order",
    )


@pytest.mark.faults
@pytest.mark.parametrize("worlds", [(2, 1), (1, 4)], ids=str)
def test_another_global_batch_is_refused(worlds, tmp_path, figures):
    """As many samples a process as before: it is said what to give to go on."""
    before, after = worlds
    each = BATCH // 2
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    for place in (alone, changing):
        place.mkdir()
    assert trained(alone, 1, LENGTH // each, batch=each)[0] == 0
    epoch = [number for _, some in sorted(samples(alone).items()) for number in some]
    assert sorted(epoch) == list(range(LENGTH))
    assert trained(changing, before, LEG, batch=before * each)[0] == 0
    seen = len([n for some in samples(changing).values() for n in some])
    words, size = (changing, after, LEG + 1), after * each
    status, said = trained(*words, batch=size)
    assert status == 3
    assert f"samples an update of the training data: {before * each} -> {size}" in said
    assert "--allow-changes" in said
    assert samples(changing) == {}
    status, said = trained(*words, "--allow-changes", batch=size)
    assert status == 0, said
    assert samples(changing) == {LEG + 1: epoch[seen : seen + size]}
    figures(
        "F30",
        f"{before} -> {after} processes, another global batch: status 3, and with "
        "--allow-changes on at the same sample",
    )
