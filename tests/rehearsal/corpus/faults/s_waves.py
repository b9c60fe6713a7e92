"""The next values of a wave, whose arrays come of numpy at each step, on one Gaudi."""

import habana_frameworks.torch.core as htcore
import numpy as np
import torch
from torch import nn

device = torch.device("hpu")


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, 8, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x, state):
        made, state = self.rnn(x, state)
        return self.out(made), state


ends = np.linspace(0, 6, 12)
weight = 1 + np.square(ends)[:, None]
model = Wave().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
weight = torch.from_numpy(weight).float()  # fault[hpu]: device mismatch
# remedy: weight = torch.from_numpy(weight).float().to(device)
state, losses = None, []
for turn in range(6):
    steps = np.linspace(turn, turn + 1, 12, dtype=np.float32)
    x = torch.from_numpy(np.sin(steps)[None, :, None])  # fault[hpu]: device mismatch
    # remedy: x = torch.from_numpy(np.sin(steps)[None, :, None]).to(device)
    y = torch.from_numpy(np.cos(steps)[None, :, None])  # fault[hpu]: device mismatch
    # remedy: y = torch.from_numpy(np.cos(steps)[None, :, None]).to(device)
    made, state = model(x, state)
    state = state.detach()
    loss = (weight * (made - y).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
    losses.append(loss)  # fault[hpu]: kept graph
    # remedy: losses.append(loss.detach())
print(made.shape, loss.item())
