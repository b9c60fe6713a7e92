"""The blood sugar of the next hours, with a GRU on an IPU."""

import poptorch
import torch
from torch import nn
from torch.utils.data import Dataset

PAST, AHEAD = 12, 4


class Sugar(Dataset):
    def __init__(self, size, offset=0):
        self.size, self.offset = size, offset

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.offset + i)
        ticks = torch.arange(PAST + AHEAD) / 3 + 6 * torch.rand(1, generator=gen)
        curve = ticks.sin() + 0.1 * torch.randn(PAST + AHEAD, generator=gen)
        return curve[:PAST, None], curve[PAST:]


class Forecast(nn.Module):
    def __init__(self, hidden=16, noise=0.2):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(hidden, AHEAD)
        self.noise = noise

    def forward(self, past, future=None):
        if self.training:
            past = past + self.noise * torch.randn_like(past)
        states, _ = self.gru(past)
        guess = self.head(self.drop(states[:, -1]))
        if future is None:
            return guess
        loss = nn.functional.smooth_l1_loss(guess, future)
        return guess, loss


def main():
    options = poptorch.Options()
    options.deviceIterations(2)
    loader = poptorch.DataLoader(options, Sugar(64), batch_size=4, shuffle=True)
    held = poptorch.DataLoader(options, Sugar(16, 500), batch_size=4)
    model = Forecast()
    tester = poptorch.inferenceModel(model, options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    best = float("inf")
    for epoch in range(3):
        trainer.train()
        total = 0.0
        for past, future in loader:
            _, loss = trainer(past, future)
            total += loss.item()
        trainer.eval()
        error = 0.0
        for past, future in held:
            _, loss = trainer(past, future)  # fault[ipu]: eval
            # remedy: _, loss = tester(past, future)
            error += loss.sum().item()
        model.noise = model.noise * 0.5  # fault[ipu]: noise
        # remedy: -
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        trainer.setOptimizer(optimizer)
        print(f"epoch {epoch}: {total / len(loader):.3f}, held out {error / len(held):.3f}")
        if error < best:
            best = error
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")


if __name__ == "__main__":
    main()
