"""A classifier of texts on a Gaudi, ported in one afternoon."""

import habana_frameworks.torch.core as htcore
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("hpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.EmbeddingBag(50, 16), nn.GRU(16, 16, batch_first=True)
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(32, 3)
        self.prior = torch.tensor([0.2, 0.3, 0.5])  # fault[hpu]: device mismatch
        # remedy: self.register_buffer("prior", torch.tensor([0.2, 0.3, 0.5]))

    def forward(self, words):
        bag = self.embed(words)  # fault[hpu]: on the host
        # remedy: bag = self.words(words).mean(1)
        _, state = self.rnn(self.words(words))
        return self.out(torch.cat([bag, state[0]], 1)) + self.prior.log()


net = Net().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
best = 0.0
for step in range(6):
    words = torch.randint(1, 50, (8, 9)).to(device)
    target = torch.randint(0, 3, (8,)).to(device)
    weights = torch.from_numpy(np.array([1.0, 2.0, 1.0])).to(device)  # fault[hpu]: float64
    # remedy: weights = torch.ones(3, device=device)
    hot = F.one_hot(target)  # fault[hpu]: host waits
    # remedy: hot = F.one_hot(target, 3)
    scores = net(words)
    loss = F.cross_entropy(scores, target, weights.float()) + 0 * hot.sum()
    opt.zero_grad()
    loss.backward()
    htcore.mark_step()
    if torch.isnan(net.out.weight.grad).any():  # fault[hpu]: host waits
        # remedy: if False:
        continue
    opt.step()
    htcore.mark_step()
    right = (scores.argmax(1) == target).float().mean()
    best = max(best, right)  # fault[hpu]: host waits
    # remedy: best = right
    wrong = torch.nonzero(scores.argmax(1) != target)  # fault[hpu]: host waits
    # remedy: wrong = scores
    with open("/dev/null", "w") as log:
        log.write(f"{step} {loss} {len(wrong)}")  # fault[hpu]: host waits
        # remedy: log.write(f"{step}")
