"""Which faces are the same person: triplets on a Gaudi, in a script of its own."""

import os

os.environ["PT_HPU_LAZY_MODE"] = "1"

import habana_frameworks.torch.core as htcore
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

device = torch.device("hpu")


class Faces(Dataset):
    def __init__(self, size, offset=0):
        self.size, self.offset = size, offset

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.offset + i)
        person = i % 4
        return torch.randn(3, 12, 12, generator=gen) + person / 2, person


class Encoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(width * 36, 8)

    def forward(self, x):
        return F.normalize(self.head(self.net(x)), dim=-1)


def triplets(codes, people, margin=0.2):
    """The hardest negative of each pair, where it is nearer than the margin."""
    apart = 2 - 2 * codes @ codes.t()
    same = people[:, None] == people[None]
    positive = torch.where(same, apart, 0.0).amax(1)
    negative = torch.where(same, 9.0, apart).amin(1)
    gap = positive - negative + margin
    return gap.relu().mean()


def train(model, loader, optimizer, bank):
    total = torch.zeros((), device=device)
    for images, people in loader:
        images, people = images.to(device), people.to(device)
        with torch.autocast("hpu", dtype=torch.bfloat16):
            codes = model(images)
        loss = triplets(codes.float(), people)
        bank.append((codes, people))  # fault[hpu]: kept graph
        # remedy: bank.append((codes.detach(), people))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        htcore.mark_step()
        optimizer.step()
        htcore.mark_step()
        total += loss.detach()
    return total.item() / len(loader)


def main():
    model = Encoder().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Faces(64), batch_size=8, shuffle=True, drop_last=True)
    for epoch in range(2):
        bank = []
        loss = train(model, loader, optimizer, bank)
        apart = torch.cat([c for c, _ in bank]).float().std(0).mean()
        print(f"epoch {epoch}: loss {loss:.3f}, apart {apart.item():.3f}")
    torch.save(model.state_dict(), "faces.pt")


if __name__ == "__main__":
    main()
