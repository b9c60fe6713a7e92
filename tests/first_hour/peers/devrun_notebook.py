# %%
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from devrun import EpochBasedRunner
from devrun.hooks import EvalHook, ProgressHook

images = torch.randn(256, 16)
data = TensorDataset(images, images[:, :4].argmax(1))
model = nn.Linear(16, 4)
# %%
optimizer = optim.SGD(model.parameters(), 0.5)
runner = EpochBasedRunner(
    model,
    optimizer=optimizer,
    loss=nn.CrossEntropyLoss(),
    work_dir="out",
    max_epochs=2,
)
log = {"interval": 2, "hooks": [{"type": "TextLoggerHook"}]}
runner.register_training_hooks(log_config=log)
runner.register_hook(ProgressHook())
runner.register_hook(EvalHook(DataLoader(data, 32), metric="accuracy"))
runner.run([DataLoader(data, 32, shuffle=True)], [("train", 1)])
# %%
runner
