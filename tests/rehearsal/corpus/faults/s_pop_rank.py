"""Ranks documents of a query on an IPU by pairs, and keeps the best weights."""

import copy

import poptorch
import torch
from torch import nn
from torch.utils.data import Dataset

QUERIES, DOCS, FEATURES = 64, 8, 12


class Clicks(Dataset):
    def __init__(self, offset=0, size=QUERIES):
        self.offset, self.size = offset, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.offset + i)
        docs = torch.randn(DOCS, FEATURES, generator=gen)
        return docs, (docs[:, 0] + 0.2 * docs[:, 1] > 0.3).float()


class Ranker(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, 1))
        self.margin = margin

    def forward(self, docs, clicks=None):
        scores = self.net(docs).squeeze(-1)
        if clicks is None:
            return scores
        gap = scores[:, :, None] - scores[:, None, :]
        better = (clicks[:, :, None] > clicks[:, None, :]).float()
        pairs = (self.margin - gap).clamp(min=0) * better
        return scores, poptorch.identity_loss(pairs.sum((1, 2)).mean(), "none")


def main():
    options = poptorch.Options()
    options.deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(options, Clicks(), batch_size=4, shuffle=True)
    model = Ranker()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = poptorch.trainingModel(model, options, optimizer)
    tester = poptorch.inferenceModel(model, options)  # fault[ipu]: loops
    # remedy: tester = poptorch.inferenceModel(model, poptorch.Options())
    held = torch.stack([Clicks(1000)[i][0] for i in range(8)])
    truth = torch.stack([Clicks(1000)[i][1] for i in range(8)])
    best, kept = -1.0, None
    for epoch in range(3):
        for docs, clicks in loader:
            _, loss = trainer(docs, clicks)
        scores = tester(held)
        hits = truth.gather(1, scores.argmax(1)[:, None]).mean().item()
        print("epoch", epoch, "loss", loss.mean().item(), "hits", hits)
        if hits > best:
            best, kept = hits, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)  # fault[ipu]: lost write
    # remedy: model.load_state_dict(kept); tester.copyWeightsToDevice()
    print("best", best, tester(held).argmax(1).tolist())


if __name__ == "__main__":
    main()
