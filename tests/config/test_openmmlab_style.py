"""Configs written as OpenMMLab's are: they load, merge and pass the check."""

import pytest

from devrun.config import Config, check_config

FILES = {
    "_base_/models/resnet18_cifar.py": """\
        # model settings
        model = dict(
            type='ImageClassifier',
            backbone=dict(
                type='ResNet_CIFAR',
                depth=18,
                num_stages=4,
                out_indices=(3, ),
                style='pytorch'),
            neck=dict(type='GlobalAveragePooling'),
            head=dict(
                type='LinearClsHead',
                num_classes=10,
                in_channels=512,
                loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
            ))
        """,
    "_base_/datasets/cifar10_bs16.py": """\
        # dataset settings
        dataset_type = 'CIFAR10'
        img_norm_cfg = dict(
            mean=[125.307, 122.961, 113.8575],
            std=[51.5865, 50.847, 51.255],
            to_rgb=False)
        train_pipeline = [
            dict(type='RandomCrop', size=32, padding=4),
            dict(type='RandomFlip', flip_prob=0.5, direction='horizontal'),
            dict(type='Normalize', **img_norm_cfg),
            dict(type='Collect', keys=['img', 'gt_label'])
        ]
        test_pipeline = [
            dict(type='Normalize', **img_norm_cfg),
            dict(type='Collect', keys=['img'])
        ]
        data = dict(
            samples_per_gpu=16,
            workers_per_gpu=2,
            train=dict(
                type=dataset_type, data_prefix='data/cifar10', pipeline=train_pipeline),
            val=dict(
                type=dataset_type,
                data_prefix='data/cifar10',
                pipeline=test_pipeline,
                test_mode=True),
            test=dict(
                type=dataset_type,
                data_prefix='data/cifar10',
                pipeline=test_pipeline,
                test_mode=True))
        """,
    "_base_/schedules/cifar10_bs128.py": """\
        # optimizer
        optimizer = dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.0001)
        optimizer_config = dict(grad_clip=None)
        # learning policy
        lr_config = dict(policy='step', step=[100, 150])
        runner = dict(type='EpochBasedRunner', max_epochs=200)
        """,
    "_base_/default_runtime.py": """\
        # checkpoint saving
        checkpoint_config = dict(interval=1)
        # yapf:disable
        log_config = dict(
            interval=100,
            hooks=[
                dict(type='TextLoggerHook'),
                # dict(type='TensorboardLoggerHook')
            ])
        # yapf:enable

        dist_params = dict(backend='nccl')
        log_level = 'INFO'
        load_from = None
        resume_from = None
        workflow = [('train', 1)]
        """,
    "resnet/resnet18_8xb16_cifar10.py": """\
        _base_ = [
            '../_base_/models/resnet18_cifar.py',
            '../_base_/datasets/cifar10_bs16.py',
            '../_base_/schedules/cifar10_bs128.py', '../_base_/default_runtime.py'
        ]
        """,
    "resnet/resnet50_8xb16_mixup_cifar10.py": """\
        _base_ = './resnet18_8xb16_cifar10.py'

        _crop = 28
        train_pipeline = [
            dict(type='RandomCrop', size=_crop),
            dict(type='Normalize', **{{_base_.img_norm_cfg}}),
        ]
        data = dict(train=dict(pipeline=train_pipeline), samples_per_gpu=2 * 16)
        model = dict(
            backbone=dict(depth=50),
            head=dict(
                in_channels={{_base_.model.head.in_channels}} * 4,
                loss=dict(_delete_=True, type='LabelSmoothLoss', mode='classy_vision')),
            train_cfg=dict(augments=dict(
                type='BatchMixup', alpha=1., num_classes=10, prob=1.)))
        paramwise_cfg = dict(custom_keys={'.cls_token': dict(decay_mult=0.0)})
        optimizer = dict(
            _delete_=True,
            type='AdamW',
            lr=5e-4 * 1024 / 512,
            paramwise_cfg=paramwise_cfg)
        lr_config = dict(step=[40, 80, 120])
        evaluation = dict(interval=1, metric='accuracy', save_best='auto')
        work_dir = './work_dirs/{{ fileBasenameNoExtension }}'
        """,
}


@pytest.fixture
def configs(write):
    for name, text in FILES.items():
        write(name, text)
    return Config.fromfile


@pytest.mark.parametrize("name", [n for n in FILES if not n.startswith("_base_")])
def test_it_loads_passes_the_check_and_survives_a_dump(configs, name, tmp_path):
    cfg = configs(name)
    check_config(cfg)
    cfg.dump(tmp_path / "out.py")
    again = Config.fromfile(tmp_path / "out.py")
    assert again == cfg
    check_config(again)


def test_a_child_of_the_recipe(configs):
    cfg = configs("resnet/resnet50_8xb16_mixup_cifar10.py")
    assert cfg.model.backbone == {
        "type": "ResNet_CIFAR",
        "depth": 50,
        "num_stages": 4,
        "out_indices": (3,),
        "style": "pytorch",
    }
    assert cfg.model.head.in_channels == 2048
    assert cfg.model.head.loss == {"type": "LabelSmoothLoss", "mode": "classy_vision"}
    assert cfg.optimizer.lr == 1e-3
    assert cfg.optimizer.paramwise_cfg.custom_keys[".cls_token"].decay_mult == 0.0
    assert cfg.data.samples_per_gpu == 32
    assert cfg.data.val.pipeline[-1].type == "Collect"
    assert cfg.work_dir == "./work_dirs/resnet50_8xb16_mixup_cifar10"
