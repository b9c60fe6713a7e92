"""A loop for PopTorch whose model keeps its state in Python."""

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, 2)
        self.hidden, self.calls = None, 0

    def forward(self, x, y):
        self.calls += 1  # fault[ipu]: once
        # remedy: -
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()  # fault[ipu]: once
        # remedy: -
        return nn.functional.cross_entropy(self.head(h), y)


model = Net()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training = poptorch.trainingModel(model, optimizer=optimizer)
for _ in range(3):
    loss = training(torch.randn(8, 8), torch.randint(0, 2, (8,)))
    print(loss)
