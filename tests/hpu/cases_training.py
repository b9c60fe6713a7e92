"""In every mode: the numbers of the CPU, and state that moves to it and back."""

import torch

from devrun.checkpoint import read_checkpoint
from devrun.devices.resolve import resolve_device
from devrun.errors import (
    DeviceMemoryError,
    DeviceUnavailableError,
    UnsupportedFeatureError,
)
from devrun.step import UpdatePolicy
from tests.hpu.runs import close, device, loader, make, net, train, weights
from tests.support.observe import Lines
from tests.support.strict import zip_strict

MODES = ("lazy", "eager", "compile")

LR = {"policy": "step", "step": 2, "gamma": 0.7, "by_epoch": False}


def refused(kind, words, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert words in str(error) and "\n" not in str(error), str(error)
        return
    raise AssertionError(f"not refused: {words}")


def both(**options):
    """On the Gaudi and on the CPU; the former's run."""
    mine = train(device(), **options)
    close(mine, train("cpu", **options))
    return mine


def test_sgd_in_groups_with_schedule_clipping_and_accumulation():
    def sgd(params):
        first, *others = params
        groups = [{"params": [first], "lr": 0.05, "weight_decay": 0.1}]
        groups.append({"params": others, "nesterov": True})
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    policy = {"grad_clip": {"max_norm": 0.3}, "cumulative_iters": 2}
    runner, _ = both(optimizer=sgd, policy=policy, lr_config=LR)
    assert type(runner.optimizer).__name__ == "SGD"
    assert "FusedSGD" in str(type(runner.optimizer).__mro__)
    assert [g["weight_decay"] for g in runner.optimizer.param_groups] == [0.1, 0]
    assert runner.optimizer.param_groups[1]["nesterov"] is True


def test_fast_is_bf16_where_no_precision_was_given():
    policies = {"bf16": {}, "fp32": {"precision": "fp32"}}
    for precision, policy in policies.items():
        with Lines() as log:
            fast, _ = train(device(performance="fast"), policy=policy, epochs=1)
        assert fast.policy.precision == precision
        sets = "precision: bf16" if precision == "bf16" else "nothing"
        assert f"performance: fast on hpu sets {sets}" in log.text


def test_adamw_and_adam_without_decay_are_one_kernel():
    for kind in (torch.optim.AdamW, torch.optim.Adam):
        runner, _ = both(optimizer=lambda p, kind=kind: kind(p, lr=0.01), lr_config=LR)
        assert "FusedAdamW" in str(type(runner.optimizer).__mro__)


def test_an_optimizer_without_an_equal_stays_and_it_is_said():
    kept = {
        "weight_decay=0.1": lambda p: torch.optim.Adam(p, weight_decay=0.1),
        "amsgrad=True": lambda p: torch.optim.AdamW(p, amsgrad=True),
        "no fused optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3),
        "maximize=True": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    }
    for words, optimizer in kept.items():
        with Lines() as log:
            runner, _ = both(optimizer=optimizer, epochs=1)
        assert words in log.text, log.text
        assert "Fused" not in str(type(runner.optimizer).__mro__)


def test_an_optimizer_of_two_halves_resumes_in_the_other_order(tmp_path):
    """CPU -> HPU -> CPU, one epoch each, as three epochs on the CPU."""
    whole = train("cpu", optimizer=torch.optim.AdamW, epochs=3, lr_config=LR)
    path, losses = None, []
    for number, where in enumerate(("cpu", device(), "cpu")):
        runner, kept = make(
            where,
            optimizer=torch.optim.AdamW,
            epochs=number + 1,
            lr_config=LR,
            work_dir=tmp_path / str(number),
        )
        if path is not None:
            runner.resume(path)
        runner.run([loader()], [("train", 1)])
        path = runner.save_checkpoint()
        losses += kept.values
        runner.close()
    close((runner, losses), whole)


def test_a_checkpoint_holds_tensors_of_the_host_under_torchs_names(tmp_path):
    runner, _ = make(device(), optimizer=torch.optim.AdamW, epochs=1, work_dir=tmp_path)
    runner.run([loader()], [("train", 1)])
    saved = read_checkpoint(runner.save_checkpoint()).parts
    state = saved["optimizer"]
    assert state["type"] == "AdamW"
    assert set(state["state"]["0.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(state["state"]["0.weight"]["step"]) == 12
    assert {"amsgrad", "maximize"} < set(state["groups"][0])
    assert "bias_correction" not in state["groups"][0]
    ours = weights(runner)
    for name, value in saved["model"].items():
        assert type(value) is torch.Tensor and value.is_cpu
        assert torch.equal(value, ours[name])
    runner.close()


def test_fp8_is_refused_by_name():
    adapter = resolve_device(device())
    adapter.setup(0)
    pair = net(), torch.optim.SGD(net().parameters(), lr=0.1)
    policy = UpdatePolicy(precision="fp8")
    refused(
        UnsupportedFeatureError, "transformer_engine", adapter.prepare, *pair, policy
    )
    adapter.teardown()


def test_batches_are_pinned_and_copied_without_waiting():
    adapter = resolve_device(device())
    adapter.setup(0)
    prepared = adapter.prepare_dataloader(loader(), training=True)
    assert prepared.loader.pin_memory is True
    inputs, _ = next(iter(prepared))
    assert inputs.device.type == "hpu"
    adapter.teardown()


def test_workers_are_not_forked():
    adapter = resolve_device(device())
    adapter.setup(0)
    options = {"num_workers": 1, "persistent_workers": True}
    prepared = adapter.prepare_dataloader(loader(8, **options), training=True)
    labels = torch.cat([labels for _, labels in prepared]).tolist()
    assert labels != sorted(labels) and len(labels) == 8
    context = prepared.loader.multiprocessing_context
    assert type(context).__name__ == "ForkServerContext"
    prepared.close()
    adapter.teardown()


def test_memory_is_counted_and_runs_out_in_one_line():
    from habana_frameworks import emulator

    runner, _ = make(device(), model=net(hidden=4096), epochs=1)
    runner.prepare()
    assert runner.adapter.stats()["peak_mib"] * 2**20 >= 4096 * 8 * 4
    limit = torch.hpu.memory_reserved()
    emulator.set_memory_limit(torch.hpu.memory_allocated() + 50_000)
    try:
        words = "out of memory on hpu with 4 samples an update"
        refused(DeviceMemoryError, words, runner.run, [loader()], [("train", 1)])
    finally:
        emulator.set_memory_limit(limit)
        runner.close()


def test_another_mode_comes_too_late():
    other = "lazy" if device()["mode"] != "lazy" else "eager"
    late = resolve_device(device(mode=other))
    refused(UnsupportedFeatureError, "reads it once", late.setup, None)
    refused(DeviceUnavailableError, "not installed", resolve_device, "hpu")


def single_gpu_test(model, data_loader):
    """As MMCV has it: batches of the host go in, results come out."""
    model.eval()
    with torch.no_grad():
        return [model(input=inputs).cpu() for inputs, _ in data_loader]


def test_a_loop_of_ones_own_over_the_model_gets_its_batches_to_the_device():
    runner, _ = make(device(), epochs=1)
    runner.run([loader()], [("train", 1)])
    mine = single_gpu_test(runner.model, loader())
    plain = net()
    plain.load_state_dict(weights(runner))
    torch.manual_seed(0)
    for ours, (inputs, _) in zip_strict(mine, loader()):
        assert ours.shape == plain(inputs).shape
    inputs = next(iter(loader()))[0]
    torch.testing.assert_close(
        runner.model.eval()(inputs).cpu(), plain.eval()(inputs), rtol=1e-4, atol=1e-6
    )
    runner.close()
    assert not runner.model._forward_pre_hooks
