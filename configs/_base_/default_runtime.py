checkpoint_config = dict(interval=1)
log_config = dict(
    interval=100,
    hooks=[
        dict(type="TextLoggerHook"),
        # dict(type="TensorboardLoggerHook"),
    ],
)
log_level = "INFO"
load_from = None
resume_from = None
workflow = [("train", 1)]
