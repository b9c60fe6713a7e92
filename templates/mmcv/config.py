model = dict(type="MyClassifier", width=64)
data = dict(
    samples_per_gpu=64,
    workers_per_gpu=0,
    train=dict(type="MyDigits"),
    val=dict(type="MyDigits", test_mode=True),
)
optimizer = dict(type="SGD", lr=0.1, momentum=0.9)
optimizer_config = dict(grad_clip=dict(max_norm=1.0))
lr_config = dict(policy="step", step=[4])
runner = dict(type="EpochBasedRunner", max_epochs=5)
evaluation = dict(interval=1, save_best="accuracy")
checkpoint_config = dict(interval=1, max_keep_ckpts=2)
log_config = dict(interval=10, hooks=[dict(type="TextLoggerHook")])
workflow = [("train", 1)]
seed = 0
