"""Tags words with a recurrent net, as a program for a CPU does it."""

import torch  # fault[hpu]: not imported
# remedy: import torch; import habana_frameworks.torch.core as htcore
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WORDS, TAGS, LENGTH = 30, 4, 6


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.places = nn.Embedding(LENGTH, 8)
        self.cell = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, TAGS)

    def forward(self, x):
        places = torch.arange(x.shape[1])  # fault[hpu]: device mismatch
        # remedy: places = torch.arange(x.shape[1], device=x.device)
        start = torch.zeros(1, len(x), 16)  # fault[hpu]: device mismatch
        # remedy: start = torch.zeros(1, len(x), 16, device=x.device)
        out, _ = self.cell(self.words(x) + self.places(places), start)
        return self.head(out)


draw = torch.Generator().manual_seed(3)
words = torch.randint(0, WORDS, (40, LENGTH), generator=draw)
data = DataLoader(TensorDataset(words, words % TAGS), batch_size=8)
weight = torch.ones(TAGS)  # fault[hpu]: device mismatch
# remedy: weight = torch.ones(TAGS).to("hpu")
model = Tagger()  # fault[hpu]: device mismatch
# remedy: model = Tagger().to("hpu")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
total = 0.0
for epoch in range(2):
    for x, y in data:
        optimizer.zero_grad()
        out = model(x)  # fault[hpu]: device mismatch
        # remedy: out = model(x.to("hpu"))
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten(), weight)  # fault[hpu]: mismatch
        # remedy: y = y.to("hpu").flatten()
        # remedy+: loss = F.cross_entropy(out.flatten(0, 1), y, weight)
        #
        loss.backward()
        optimizer.step()  # fault[hpu]: no step mark
        # remedy: optimizer.step(); htcore.mark_step()
        total += loss.item()  # fault[hpu]: host waits
        # remedy: total = total + loss.detach()
    right = out.argmax(2).numpy() == y.numpy()  # fault[hpu]: numpy
    # remedy: right = out.argmax(2).cpu().numpy() == y.view(-1, LENGTH).cpu().numpy()
