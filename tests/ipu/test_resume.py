"""Runs that stop and go on, here and from one device to the other."""

import pytest
import torch

from devrun.hooks import EMAHook
from tests.ipu.harness import assert_same_state, ipu, loader, make, net

DEVICES = {"cpu": "cpu", "ipu": ipu(replicas=2)}
SIZES = {"cpu": 8, "ipu": 4}


def run(device, tmp_path=None, *, resume=None, stop_after=None, **options):
    """Three epochs of 8 updates of 8 samples, with everything that has a state."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    runner, losses = make(
        DEVICES[device],
        model=model,
        optimizer=optimizer,
        epochs=3,
        stop_after=stop_after,
        work_dir=tmp_path,
        **options,
    )
    runner.register_training_hooks(
        {"policy": "CosineAnnealing", "min_lr": 0, "by_epoch": False}
    )
    ema = EMAHook(momentum=0.3, warm_up=1)
    runner.register_hook(ema)
    if resume is not None:
        runner.resume(resume)
    data = loader(batch_size=SIZES[device], shuffle=True)
    runner.run([data], [("train", 1)])
    path = None if tmp_path is None else runner.save_checkpoint()
    runner.close()
    return runner, losses.values, ema.state_dict()["model"], path


@pytest.mark.parametrize(("first", "second"), [("cpu", "ipu"), ("ipu", "cpu")])
def test_a_run_goes_on_on_the_other_device(tmp_path, first, second):
    whole, losses, averaged, _ = run("cpu")
    _, begun, _, path = run(first, tmp_path, stop_after=11)
    resumed, rest, again, _ = run(second, resume=path)
    assert begun + rest == pytest.approx(losses, rel=1e-4)
    assert_same_state(resumed.model, whole.model, rtol=1e-3, atol=1e-5)
    assert_same_state(again, averaged, rtol=1e-3, atol=1e-5)


def test_weights_loaded_between_two_runs_reach_the_device(tmp_path):
    runner, losses = make(ipu(), epochs=1, work_dir=tmp_path)
    data = loader()
    first = {k: v.clone() for k, v in runner.model.state_dict().items()}
    runner.run([data], [("train", 1)])
    trained = losses.values[0]
    runner.model.load_state_dict(first)
    runner.adapter.sync_to_device(runner.model)
    outputs = runner.adapter.eval_step(runner.session.wrapped, next(iter(data)))
    assert float(outputs["loss"]) == pytest.approx(trained, rel=1e-5)
    runner.close()
