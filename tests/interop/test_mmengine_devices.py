"""Models of MMPretrain on the emulated IPU and the emulated Gaudi."""

import re
from pathlib import Path

import pytest

from tests.interop.engine_runs import by_mmengine, classifier, rows, train

pytestmark = [
    pytest.mark.usefixtures("mmpretrain"),
    pytest.mark.filterwarnings("ignore"),  # of packages that are not maintained
]

IPU = ("--device", "ipu", "--emulate")
BACKBONE = (
    "dict(type='ResNet_CIFAR', depth=18, base_channels=4, stem_channels=4, "
    "out_indices=(3, ))"
)
NECK = (
    "dict(type='NonLinearNeck', in_channels={}, hid_channels=16, out_channels=8, "
    "num_layers=2, with_avg_pool={})"
)
PROJECT, PREDICT = NECK.format(32, True), NECK.format(8, False)
LATENT = (
    "dict(type='LatentPredictHead', loss=dict(type='CosineSimilarityLoss'), "
    f"predictor={PREDICT})"
)
CONTRAST = (
    "dict(type='ContrastiveHead', loss=dict(type='CrossEntropyLoss'), temperature=0.1)"
)
SELF_SUPERVISED = """
views = [dict(type='MultiView', num_views=[2],
              transforms=[[dict(type='RandomFlip', prob=0.0)]])]
data_preprocessor = dict(
    type='SelfSupDataPreprocessor', mean=[125.0, 123.0, 114.0],
    std=[51.0, 50.0, 51.0], to_rgb=False)
train_dataloader = dict(
    batch_size=8, num_workers=0, collate_fn=dict(type='default_collate'),
    dataset=dict(type='CIFAR10', data_root='data', split='train',
                 pipeline=[*{views}, dict(type='PackInputs')]),
    sampler=dict(type='DefaultSampler', shuffle=False))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
train_cfg = dict(by_epoch=True, max_epochs=1)
default_scope = 'mmpretrain'
default_hooks = dict(logger=dict(type='LoggerHook', interval=1))
randomness = dict(seed=3)
model = dict({model})
"""
METHODS = {
    "simsiam": f"type='SimSiam', backbone={BACKBONE}, neck={PROJECT}, head={LATENT}",
    "byol": (
        f"type='BYOL', base_momentum=0.01, backbone={BACKBONE}, neck={PROJECT}, "
        f"head={LATENT}"
    ),
    "simclr": f"type='SimCLR', backbone={BACKBONE}, neck={PROJECT}, head={CONTRAST}",
    "mae": (
        "type='MAE', backbone=dict(type='MAEViT', img_size=32, patch_size=8, "
        "mask_ratio=0.75, arch=dict(embed_dims=16, num_layers=2, num_heads=2, "
        "feedforward_channels=32)), neck=dict(type='MAEPretrainDecoder', "
        "num_patches=16, patch_size=8, embed_dim=16, decoder_embed_dim=16, "
        "decoder_depth=1, decoder_num_heads=2), head=dict(type='MAEPretrainHead', "
        "norm_pix=True, patch_size=8, loss=dict(type='PixelReconstructionLoss', "
        "criterion='L2'))"
    ),
}


def method(name):
    views = "[]" if name == "mae" else "views"
    return SELF_SUPERVISED.format(model=METHODS[name], views=views)


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


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_a_gaudi_has_the_losses_of_the_cpu(folder, name, on_gaudi):
    assert train(classifier(name)) == 0
    on_gaudi("cfg.py", "--work-dir", "hpu")
    same_on("hpu", 1e-2)
    same_on("hpu", 1e-2, "val", "accuracy/top5")


def test_replicas_and_accumulation_are_one_batch(folder):
    text = classifier("vit").replace("clip_grad=dict(max_norm=5.0)", "clip_grad=None")
    assert train(text.replace("batch_size=8", "batch_size=32", 1)) == 0
    ipu = text.replace("batch_size=8", "batch_size=8", 1) + (
        "ipu = dict(replicas=2)\noptim_wrapper['accumulative_counts'] = 2\n"
        "train_dataloader['drop_last'] = True\n"
    )
    assert train(ipu, *IPU, work="ipu") == 0
    assert losses("ipu")[0] == pytest.approx(losses()[0], rel=1e-4)


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


@pytest.mark.parametrize("name", ["simsiam", "mae"])
def test_an_ipu_trains_without_labels(folder, name):
    assert train(method(name)) == 0
    assert train(method(name), *IPU, work="ipu") == 0
    same_on("ipu", 1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("simclr", "GatherLayer is a torch.autograd.Function"),
        ("byol", r"aten::bool at .*averaged_model.py"),
    ],
)
def test_an_ipu_refuses_what_popart_cannot_do(folder, capsys, name, words):
    assert train(method(name), *IPU) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(words, error)


def test_a_model_that_asks_how_long_the_run_is_is_told(folder):
    assert train(method("byol")) == 0
    wanted, _, _ = by_mmengine(method("byol"))
    assert losses() == pytest.approx(wanted, rel=1e-5)


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
