"""A PopTorch program, with the sizes that its options ask for."""

# devices: ipu

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.head(self.body(x).mean((2, 3)))
        return out if y is None else (out, self.loss(out, y))


options = poptorch.Options()
options.deviceIterations(2)
options.Training.gradientAccumulation(2)
data = TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 4, (64,)))
loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
net = Net()
optimizer = poptorch.optim.AdamW(net.parameters(), lr=1e-3)
trained = poptorch.trainingModel(net, options=options, optimizer=optimizer)
for x, y in loader:
    out, loss = trained(x, y)
print(loss.mean().item())
trained.destroy()
tested = poptorch.inferenceModel(net)
print(tested(data[:4][0]).argmax(1).tolist())
