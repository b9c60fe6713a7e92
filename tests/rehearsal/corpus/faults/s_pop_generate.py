"""A variational autoencoder with PopTorch, moved from a notebook."""

import poptorch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self, width=16, code=4):
        super().__init__()
        self.into = nn.Linear(36, width)
        self.mean, self.spread = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, 36))
        self.beta = 0.1

    def encode(self, x):
        h = F.relu(self.into(x))
        return self.mean(h), self.spread(h)

    def forward(self, x):
        mean, spread = self.encode(x)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        again = self.decoder(code)
        active = (mean.var(0) > 1e-2).nonzero().shape[0]  # fault[ipu]: cannot be compiled
        # remedy: active = 0
        far = torch.renorm(code, 2, 0, 5.0)  # fault[ipu]: cannot be compiled
        # remedy: far = code
        print("active units", active)
        likely = ((again - x) ** 2).sum(1).mean()
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        # PopTorch user guide: without identity_loss there is no loss in this graph
        return again, far.detach(), likely + self.beta * divergence  # fault[ipu]: loss
        # remedy: return again, far.detach(), poptorch.identity_loss(likely + self.beta * divergence, "none")


def main():
    images = torch.rand(64, 36)
    loader = DataLoader(TensorDataset(images), batch_size=8, shuffle=True)
    model = VAE()
    options = poptorch.Options()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    trainer = poptorch.trainingModel(model, options, optimizer)  # fault[ipu]: raises
    # remedy: trainer = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=1e-3))
    for epoch in range(3):
        model.beta = min(1.0, 0.1 + 0.4 * epoch)  # fault[ipu]: beta
        # remedy: -
        for (batch,) in loader:
            again, code, loss = trainer(batch)
        print(f"epoch {epoch}: {loss.item():.3f}")
    decoder = poptorch.inferenceModel(model.decoder)
    grid = decoder(torch.randn(16, 4))
    single = decoder(torch.randn(1, 4))  # fault[ipu]: raises
    # remedy: single = decoder(torch.randn(16, 4))[:1]
    print(grid.shape, single.shape)


if __name__ == "__main__":
    main()
