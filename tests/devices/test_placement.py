"""What a device that needs new parameter objects does to model and optimizer."""

import pytest
import torch
from torch import nn

from devrun.devices.options import EagerOptions
from devrun.devices.placement import move_together
from devrun.models.step_module import StepModule


@pytest.fixture
def moves_make_new_parameters():
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def test_tied_parameters_stay_one_and_the_optimizer_follows(moves_make_new_parameters):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    first = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    move_together(
        StepModule(model, nn.MSELoss()), optimizer, torch.device("cpu"), EagerOptions()
    )
    assert model[0].weight is not first
    assert model[2].weight is model[0].weight
    assert model[2].bias is not model[0].bias
    own = {id(parameter) for parameter in model.parameters()}
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == own
