"""An actor and a critic on a Gaudi: turns of a game between the updates."""

import os

os.environ["PT_HPU_LAZY_MODE"] = "1"

import habana_frameworks.torch.core as htcore
import torch
from torch import nn
from torch.distributions import Categorical

device = torch.device("hpu")
STATES, ACTIONS, STEPS = 6, 4, 16


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATES, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, ACTIONS), nn.Linear(32, 1)

    def forward(self, state):
        hidden = self.body(state)
        return self.policy(hidden), self.value(hidden).squeeze(-1)


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
table = torch.rand(STATES, ACTIONS).to(device)


def play(batch=8):
    """States, actions, rewards and old chances of STEPS steps."""
    rows = []
    state = torch.eye(STATES, device=device)[torch.randint(0, STATES, (batch,), device=device)]
    for _ in range(STEPS):
        with torch.no_grad():
            logits, value = agent(state)
            choice = Categorical(logits=logits)  # fault[hpu]: host waits
            # remedy: choice = Categorical(logits=logits, validate_args=False)
            action = choice.sample()
            reward = (state @ table).gather(1, action[:, None]).squeeze(1)
        logp = choice.logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
        rows.append((state, action, reward, logp, value))
        state = state.roll(1, dims=1)
        htcore.mark_step()
    return [torch.stack(column) for column in zip(*rows)]


def advantages(rewards, values, gamma=0.9, lam=0.95):
    result, last = torch.zeros(rewards.shape), torch.zeros_like(rewards[0])
    for t in reversed(range(STEPS)):
        following = values[t + 1] if t + 1 < STEPS else 0
        last = rewards[t] + gamma * following - values[t] + gamma * lam * last
        result[t] = last  # fault[hpu]: host waits
        # remedy: result = torch.cat([last[None], result.to(device)[:-1]])
    return result.to(device)


for update in range(6):
    states, actions, rewards, old, values = play()
    gain = advantages(rewards, values)
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    for epoch in range(4):
        logits, value = agent(states)
        logp = logits.log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
        ratio = (logp - old).exp()
        policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = policy + 0.5 * (value - rewards).square().mean()
        if (old - logp).mean() > 0.05:  # fault[hpu]: host waits
            # remedy: if False:
            break
        optimizer.zero_grad()
        loss.backward()
        htcore.mark_step()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        htcore.mark_step()
    if update == 5:
        print("reward", rewards.mean().item())
