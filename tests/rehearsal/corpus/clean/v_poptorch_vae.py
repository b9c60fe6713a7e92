"""A variational autoencoder, whose noise the graph draws."""

# devices: ipu

import poptorch
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x):
        mean, log = self.inner(x).chunk(2, -1)
        made = self.outer(mean + torch.randn_like(mean) * (log / 2).exp())
        spread = (mean.square() + log.exp() - log - 1).mean()
        return made, poptorch.identity_loss(
            F.mse_loss(made, x) + spread, reduction="none"
        )


net = Net()
optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
trained = poptorch.trainingModel(net, optimizer=optimizer)
for _ in range(4):
    made, loss = trained(torch.randn(8, 16))
print(float(loss))
