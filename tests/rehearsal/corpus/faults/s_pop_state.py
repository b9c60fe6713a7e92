"""A PopTorch program with a state, and options that come too late."""

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.rnn = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.out, self.loss = nn.Linear(32, 2), nn.CrossEntropyLoss()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, words, lengths, y):
        x = self.embed(words)
        self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))  # fault[ipu]: cannot be compiled
        # remedy: self.mean.copy_(0.9 * self.mean + 0.1 * x.mean((0, 1)).detach())
        h, _ = self.rnn(x - self.mean)  # fault[ipu]: cannot be compiled
        # remedy: h = torch.cat([x, x], 2)
        last = torch.stack([row[n - 1] for row, n in zip(h, lengths.tolist())])  # fault[ipu]: cannot be compiled
        # remedy: last = h.mean(1)
        scores = self.out(last)
        assert scores.abs().max() < 1e6  # fault[ipu]: cannot be compiled
        # remedy: -
        kept = torch.masked_select(scores, scores > 0).sum()  # fault[ipu]: cannot be compiled
        # remedy: kept = scores.sum()
        return scores + 0 * kept, self.loss(scores, y)


net = Net()
opts = poptorch.Options()
opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
model = poptorch.trainingModel(net, opts, opt)  # fault[ipu]: raises
# remedy: model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=0.01))
for step in range(4):
    words, lengths = torch.randint(30, (8, 7)), torch.randint(1, 7, (8,))
    scores, loss = model(words, lengths, torch.randint(2, (8,)))
    loss.backward()  # fault[ipu]: raises
    # remedy: pass
