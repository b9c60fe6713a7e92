# for a batch of 128: 8 devices of 16, or 16 with optimizer_config.cumulative_iters=8
optimizer = dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=None)
lr_config = dict(policy="step", step=[100, 150])
runner = dict(type="EpochBasedRunner", max_epochs=200)
