"""The device of `torch-mojo-backend`, and a model and data for which it has kernels."""

import torch
import torch_mojo_backend
from torch import nn
from torch.utils.data import Dataset

torch_mojo_backend.register_mojo_devices()


class Soft(Dataset):
    """Targets that are probabilities: for class numbers it has no loss on a CPU."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(32, 8, generator=generator)
        self.targets = torch.randn(32, 4, generator=generator).softmax(-1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class CompiledMLP(MLP):
    """The same, compiled by Modular's compiler without devrun."""

    def __init__(self):
        super().__init__()
        plain, backend = super().forward, torch_mojo_backend.mojo_backend
        self.compiled = torch.compile(lambda x: plain(x), backend=backend)

    def forward(self, x):
        return self.compiled(x)


class Convolving(nn.Module):
    """Which Modular's compiler cannot do."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.norm(self.conv(x[:, None])).flatten(1))
