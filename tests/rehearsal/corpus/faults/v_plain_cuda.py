"""A training script for one GPU."""

import torch  # fault[hpu]: not imported
# remedy: import torch, habana_frameworks.torch.core
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
model = model.cuda()  # fault[hpu]: hard-wired cuda
# remedy: model = model.to("hpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.cuda.amp.GradScaler()  # fault[hpu]: hard-wired cuda
# remedy: scaler = torch.amp.GradScaler("cpu", enabled=False)
weights = torch.ones(4, device="cuda")  # fault[hpu]: hard-wired cuda
# remedy: weights = torch.ones(4, device="hpu")
for epoch in range(2):
    for images, labels in loader:
        images = images.to("cuda", non_blocking=True)  # fault[hpu]: hard-wired cuda
        # remedy: images = images.to("hpu")
        labels = labels.cuda()  # fault[hpu]: hard-wired cuda
        # remedy: labels = labels.to("hpu")
        with torch.autocast("cuda", dtype=torch.float16):  # fault[hpu]: hard-wired cuda
            # remedy: with torch.autocast("hpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), labels, weights)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # fault[hpu]: no step mark
        # remedy: scaler.step(optimizer); habana_frameworks.torch.core.mark_step()
        scaler.update()
        print(loss.item())  # fault[hpu]: host waits
        # remedy: habana_frameworks.torch.core.mark_step()
