"""A PopTorch program with an optimizer that no IPU has, and backward of its own."""

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)

    def forward(self, x, y):
        out = self.body(x)
        if out.mean() > 0:  # fault[ipu]: branch on a value
            # remedy: if self.training:
            out = out * 2
        return out, nn.functional.cross_entropy(out, y)


model = Net()
optimizer = torch.optim.Adadelta(model.parameters())
# training takes it
training = poptorch.trainingModel(model, optimizer=optimizer)  # fault[ipu]: raises
# remedy: training = poptorch.trainingModel(model)
for _ in range(3):
    out, loss = training(torch.randn(4, 8), torch.randint(0, 2, (4,)))
    loss.backward()  # fault[ipu]: raises
    # remedy: -
