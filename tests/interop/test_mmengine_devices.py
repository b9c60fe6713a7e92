"""Models of MMPretrain on the emulated IPU and the emulated Gaudi."""

from pathlib import Path

import pytest

from tests.interop.engine_runs import MARKS, classifier, rows, train

pytestmark = MARKS

IPU = ("--device", "ipu", "--emulate")


def losses(work="out"):
    return [row["loss"] for row in rows("train", work)]


def same_on(work, rel, mode="train", key="loss"):
    found, wanted = ([row[key] for row in rows(mode, w)] for w in (work, "out"))
    assert wanted
    assert found == pytest.approx(wanted, rel=rel)


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_an_ipu_compiles_it_and_has_the_losses_of_the_cpu(folder, name):
    text = classifier(name)
    assert train(text) == 0
    assert train(text, *IPU, work="ipu") == 0
    same_on("ipu", 1e-4)
    same_on("ipu", 1e-4, "val", "accuracy/top5")


def test_what_mixes_a_batch_does_so_on_the_host(folder):
    text = classifier().replace(
        "to_rgb=False)",
        "to_rgb=False, batch_augments=dict(augments=dict(type='Mixup', alpha=0.8)))",
    )
    for work in ("ipu", "again"):
        assert train(text, *IPU, work=work) == 0
    assert losses("ipu") == losses("again")
    assert train(classifier(), *IPU, work="plain") == 0
    assert losses("ipu")[0] != losses("plain")[0]


def test_images_of_several_sizes_are_refused_on_an_ipu(folder, capsys):
    text = classifier().replace(
        "pipeline = [",
        "pipeline = [dict(type='RandomResize', scale=[(32, 32), "
        "(48, 48)], ratio_range=(0.5, 1.5), keep_ratio=False), ",
    )
    assert train(text, *IPU) in (2, 4)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "size" in error or "shape" in error
    assert Path("out").exists()
