"""`gradient_checkpointing` under torch.compile and automatic mixed precision."""

import pytest
import torch
import torch.nn.functional as F

from devrun.models import ResNet, VisionTransformer
from devrun.models.recompute import checkpoint_blocks
from tests.support.near import assert_near

VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
KINDS = {
    "dropout": (lambda: VisionTransformer(**VIT, num_classes=4, dropout=0.3), True),
    "norms": (lambda: ResNet(stage_blocks=(2,), base_channels=4), ["layer1.*"]),
}


def trained(make, which):
    """The losses of three updates and the sum of all tensors after them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    if which is not None:
        checkpoint_blocks(model, which)
    step = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            scores = step(torch.randn(4, 3, 8, 8))
        loss = F.cross_entropy(scores.float(), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_model_learns_the_same_with_and_without(kind):
    make, which = KINDS[kind]
    losses, state = trained(make, None)
    same, found = trained(make, which)
    assert_near(same, losses)
    assert_near(found, state)
