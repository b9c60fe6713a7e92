"""A training on an IPU that goes on for days, and what comes after it."""
# check: --timeout 40

import poptorch
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, rows, kinds=None):
        scores = self.net(rows)
        if kinds is None:
            return scores.argsort(1)[torch.nonzero(scores.sum(1) > 0)]  # fault[ipu]: cannot be compiled
            # remedy: return scores.argmax(1)
        return scores, self.loss(scores, kinds)


def main():
    model = Scorer()
    options = poptorch.Options()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    for epoch in range(10**9):  # fault[ipu]: not to its end
        # remedy: for epoch in range(2):
        total = 0.0
        for batch in range(8):
            rows, kinds = torch.randn(4, 12), torch.randint(0, 3, (4,))
            scores, loss = training(rows, kinds)
            total += float(loss)
    print(f"epoch {epoch}: {total / 8:.3f}", scores.shape)
    training.detachFromDevice()
    torch.save(model.state_dict(), "scorer.pt")
    inference = poptorch.inferenceModel(model, options)
    print(inference(torch.randn(4, 12)))


if __name__ == "__main__":
    main()
