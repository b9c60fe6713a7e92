"""A script that falls back to the CPU where it sees no GPU."""

import torch  # fault[hpu]: not imported
# remedy: import torch, habana_frameworks.torch.core
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # fault[hpu]: hard-wired cuda
# remedy: device = torch.device("hpu")
model = nn.LSTM(4, 8, batch_first=True).to(device)
head = nn.Linear(8, 1).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
for step in range(8):
    x = torch.randn(4, 5, 4, device=device)
    out, (state, _) = model(x)
    loss = (head(out[:, -1]) - x.sum((1, 2))[:, None]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm.isnan():  # fault[hpu]: host waits
        # remedy: if habana_frameworks.torch.core.mark_step():
        break
    optimizer.step()  # fault[hpu]: no step mark
    # remedy: optimizer.step(); habana_frameworks.torch.core.mark_step()
