"""A recurrent net on a Gaudi, with a checkpoint at the end."""

# devices: hpu

import io

import habana_frameworks.torch.core as htcore
import torch
from torch import nn

device = torch.device("hpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def main():
    net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(6):
        x = torch.randn(4, 5, 4).to(device)
        loss = (net(x)[:, 0] - x.sum((1, 2))).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        htcore.mark_step()
        optimizer.step()
        htcore.mark_step()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    net.load_state_dict(torch.load(file))


if __name__ == "__main__":
    main()
