"""A PopTorch program whose batches do not fit its options."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(8, 8, num_layers=2)
        self.head = nn.Linear(8, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        h, _ = self.body(x.transpose(0, 1))  # fault[ipu]: cannot be compiled
        # remedy: h = x.transpose(0, 1)
        out = self.head(h[-1])
        return out, self.loss(out, y)


options = poptorch.Options()
options.Training.gradientAccumulation(2)
model = Net()
trained = poptorch.trainingModel(
    model, options, optimizer=poptorch.optim.AdamW(model.parameters(), lr=1e-3)
)
data = TensorDataset(torch.randn(30, 5, 8), torch.randint(0, 2, (30,)))
for x, y in DataLoader(data, batch_size=8):
    if len(x) < 2:
        continue
    out, loss = trained(x, y)  # fault[ipu]: raises
    # remedy: out, loss = trained(x[:6], y[:6])
