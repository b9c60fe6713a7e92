"""Two networks for one GPU, with the device chosen at the top."""

# check: --device hpu
import torch  # fault[hpu]: not imported
# remedy: import torch, habana_frameworks.torch.core as htcore
from torch import nn
from torch.nn.utils import clip_grad_norm_

device = "cuda"
Tensor = torch.cuda.FloatTensor  # fault[hpu]: FloatTensor
# remedy: Tensor = lambda *size: torch.empty(*size, device="hpu")


def weights(module):
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)


gen = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12)).to(device)  # fault[hpu]: cuda
# remedy: gen = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12)).to("hpu")
disc = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)).to(device=device)  # fault[hpu]: cuda
# remedy: disc = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)).to("hpu")
fixed = torch.randn(4, 8, device=device)  # fault[hpu]: cuda
# remedy: fixed = torch.randn(4, 8, device="hpu")
opt_g = torch.optim.Adam(gen.parameters(), 2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(disc.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
ones = torch.ones(8, 1).to("hpu")
for step in range(8):
    real = Tensor(8, 12).normal_()
    noise = torch.randn(8, 8).type(torch.cuda.FloatTensor)  # fault[hpu]: FloatTensor
    # remedy: noise = torch.randn(8, 8).to("hpu")
    fake = gen(noise)
    opt_d.zero_grad()
    valid = torch.full((8, 1), 0.9, device=real.device)
    loss_d = bce(disc(real), valid) + bce(disc(fake.detach()), torch.zeros(8, 1, device="cuda:0"))  # fault[hpu]: cuda
    # remedy: loss_d = bce(disc(real), valid) + bce(disc(fake.detach()), torch.zeros(8, 1, device="hpu"))
    loss_d.backward()
    norm = clip_grad_norm_(disc.parameters(), 1.0, error_if_nonfinite=True)  # fault[hpu]: host waits
    # remedy: norm = clip_grad_norm_(disc.parameters(), 1.0)
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(disc(fake), torch.ones_like(valid))
    loss_g.backward()
    opt_g.step()  # fault[hpu]: no step mark
    # remedy: opt_g.step(); htcore.mark_step()
    if real.is_cuda:
        torch.cuda.empty_cache()
    print(f"{step}: {loss_d:.3f} {loss_g.data.item():.3f}")  # fault[hpu]: host waits
    # remedy: -
    ok = torch.equal(fake, fake)  # fault[hpu]: host waits
    # remedy: ok = True
with torch.no_grad():
    samples = gen(fixed).data.cpu().numpy()
