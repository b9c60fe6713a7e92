"""Policy gradients from a stored set of episodes, for one GPU."""

# check: --device hpu
import collections

import numpy as np
import torch  # fault[hpu]: not imported
# remedy: import torch, habana_frameworks.torch.core as htcore
from torch import nn
from torch.distributions import Categorical

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # fault[hpu]: cuda
# remedy: device = torch.device("hpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.act, self.value = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.act(h).softmax(-1), self.value(h).squeeze(-1)


def returns_of(rewards, discount=0.99):
    total, found = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        found.insert(0, total)
    return torch.tensor(found)


policy = Policy().to(device)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
memory = collections.deque(maxlen=4)
best = -np.inf
for episode in range(8):
    state = np.random.randn(10, 6)
    x = torch.from_numpy(state).to(device)  # fault[hpu]: float64
    # remedy: x = torch.from_numpy(state.astype("float32")).to(device)
    share, value = policy(x.float())
    chosen = Categorical(share, validate_args=False)
    action = chosen.sample()
    rewards = [float(a == 1) for a in action.cpu().numpy()]  # fault[hpu]: host waits
    # remedy: rewards = [1.0] * 10
    goal = returns_of(rewards)
    goal = (goal - goal.mean()) / (goal.std() + 1e-6)
    goal = goal.type(torch.cuda.FloatTensor)  # fault[hpu]: FloatTensor
    # remedy: goal = goal.to(device)
    gain = goal - value.detach()
    loss = -(chosen.log_prob(action) * gain).mean() + (value - goal).pow(2).mean()
    entropy = chosen.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    if not np.isfinite(norm.item()):  # fault[hpu]: host waits
        # remedy: if False:
        continue
    optimizer.step()  # fault[hpu]: no step mark
    # remedy: optimizer.step(); htcore.mark_step()
    memory.append(entropy.detach())
    low = torch.stack(list(memory)).min()
    if low < 1e-3:  # fault[hpu]: host waits
        # remedy: if False:
        break
    best = max(best, float(sum(rewards)))
    torch.cuda.manual_seed(episode)
    spread = torch.linalg.eigvalsh(torch.cov(x.float().t())).amax()  # fault[hpu]: on the host
    # remedy: spread = x.float().var()
