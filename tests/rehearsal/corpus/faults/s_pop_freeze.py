"""Fine-tunes on an IPU: first the head alone, then all of it with less dropout."""

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, labels=None):
        scores = self.head(self.drop(self.body(x).relu()))
        if labels is None:
            return scores
        return scores, nn.functional.cross_entropy(scores, labels)


def main():
    options = poptorch.Options()
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    loader = poptorch.DataLoader(options, data, batch_size=8, shuffle=True)
    model = Net()
    model.body.requires_grad_(False)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    for epoch in range(3):
        if epoch == 1:
            model.body.requires_grad_(True)
            model.drop.p = 0.1  # fault[ipu]: drop.p
            # remedy: trainer.destroy(); model.drop.p = 0.1
        for x, labels in loader:
            scores, loss = trainer(x, labels)  # fault[ipu]: requires_grad
        print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
