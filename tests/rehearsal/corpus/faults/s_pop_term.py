"""Sorts signals into classes on an IPU, with a term that keeps what is hidden small."""

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Sorter(nn.Module):
    def __init__(self, weight=1e-2):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.weight = weight

    def forward(self, signals, labels=None):
        hidden = self.body(signals).relu()
        scores = self.head(hidden)
        if labels is None:
            return scores
        loss = nn.functional.cross_entropy(scores, labels)
        loss = loss + self.weight * hidden.abs().mean()  # fault[ipu]: other loss
        # remedy: loss = poptorch.identity_loss(loss + self.weight * hidden.abs().mean(), "none")
        return scores, loss


def main():
    options = poptorch.Options()
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    loader = poptorch.DataLoader(options, data, batch_size=8, shuffle=True)
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    for epoch in range(2):
        for signals, labels in loader:
            scores, loss = trainer(signals, labels)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault[ipu]: clipped
            # remedy: -
        print(f"epoch {epoch}: {loss.item():.3f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "sorter.pt")  # fault[ipu]: resume
        # remedy: torch.save({"model": model.state_dict()}, "sorter.pt")


if __name__ == "__main__":
    main()
