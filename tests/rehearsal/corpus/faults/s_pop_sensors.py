"""Faults of machines from their sensors, with PopTorch and a schedule."""

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
series = torch.randn(96, 3, 32)
broken = (series[:, 0].abs().amax(1) > 2.2).long()


class Watch(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, width, 5, stride=2), nn.ReLU())
        self.head = nn.Linear(width, 2)
        self.loss = nn.CrossEntropyLoss()
        self.mean = torch.from_numpy(series.mean((0, 2)).numpy())  # fault[ipu]: device mismatch
        # remedy: self.register_buffer("mean", series.mean((0, 2)))

    def forward(self, series, broken):
        scores = self.head(self.body(series - self.mean[:, None]).amax(2))
        return scores, self.loss(scores, broken)


options = poptorch.Options()
options.Training.gradientAccumulation(4)
data = TensorDataset(series, broken)
loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
model = Watch()
optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
training = poptorch.trainingModel(model, options, optimizer)
for epoch in range(3):
    for series, broken in loader:
        scores, loss = training(series, broken)  # fault[ipu]: lost write
        # remedy: training.setOptimizer(optimizer); scores, loss = training(series, broken)
        right = (scores.argmax(1) == broken).float().mean()  # fault[ipu]: raises
        # remedy: right = (scores.argmax(1) == broken[-4:]).float().mean()
    scheduler.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}, right {right:.2f}")
