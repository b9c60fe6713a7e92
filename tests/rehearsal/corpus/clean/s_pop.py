"""A classifier with PopTorch, and its evaluation."""
# devices: ipu
# check: --device ipu
import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.loss = nn.Linear(8, 16), nn.Linear(16, 3), nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.b(self.a(x).relu())
        return out if y is None else (out, self.loss(out, y))


data = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
opts = poptorch.Options()
opts.deviceIterations(2)
opts.Training.gradientAccumulation(2)
loader = poptorch.DataLoader(opts, data, batch_size=4, shuffle=True, drop_last=True)
net = Net()
optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model = poptorch.trainingModel(net, opts, optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
for epoch in range(2):
    for x, y in loader:
        out, loss = model(x, y)
    scheduler.step()
    model.setOptimizer(optimizer)
model.detachFromDevice()
evaluated = poptorch.inferenceModel(net.eval(), poptorch.Options())
print((evaluated(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean())
