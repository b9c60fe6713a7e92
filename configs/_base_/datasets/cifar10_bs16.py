# 8-bit pixels stay 8-bit until Normalize, so its numbers are in units of 0 to 255
img_norm_cfg = dict(
    mean=[125.307, 122.961, 113.8575],
    std=[51.5865, 50.847, 51.255],
)
train_pipeline = [
    dict(type="RandomCrop", size=32, padding=4),
    dict(type="RandomHorizontalFlip", p=0.5),
    dict(type="Normalize", **img_norm_cfg),
]
test_pipeline = [dict(type="Normalize", **img_norm_cfg)]
data = dict(
    samples_per_gpu=16,
    workers_per_gpu=2,
    train=dict(type="CIFAR10", data_prefix="data/cifar10", pipeline=train_pipeline),
    val=dict(
        type="CIFAR10",
        data_prefix="data/cifar10",
        pipeline=test_pipeline,
        test_mode=True,
    ),
    val_dataloader=dict(samples_per_gpu=256),
)
evaluation = dict(interval=1, metric="accuracy", save_best="accuracy")
