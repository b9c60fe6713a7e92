"""A fault in any method of an adapter is caught by the conformance suite."""

import inspect
import math
from dataclasses import replace

import pytest
import torch

from devrun import device_facts
from devrun.device_facts import DeviceFacts
from devrun.devices import resolve
from devrun.devices.base import DataShare, DeviceAdapter
from devrun.runners import EpochBasedRunner
from devrun.step import UpdatePolicy
from devrun.testing import AdapterConformance
from tests.contract.toy_device import MirrorAdapter, ToyAdapter

Suite = AdapterConformance
LOSSES = Suite.test_losses_and_weights_are_those_of_a_plain_loop
HERE = Suite.test_it_says_what_is_here
OPTION = Suite.test_an_unknown_option_is_refused_and_the_config_left_alone
ON_DEVICE = Suite.test_an_update_is_done_on_the_device
SEED = Suite.test_a_seed_repeats_a_run
PRECISION = Suite.test_a_precision_is_taken_or_refused
EVALUATED = Suite.test_an_evaluation_loader_keeps_batches_and_their_order
RATE = Suite.test_a_new_learning_rate_and_momentum_take_effect
FAST = Suite.test_what_performance_sets_trains_or_is_refused
STAGES = Suite.test_stages_losses_and_weights_are_those_of_the_cpu
ORDER = Suite.test_the_order_of_the_data_follows_its_seed
PARTS = Suite.test_accumulation_equals_the_big_batch
OUTPUTS = Suite.test_outputs_are_detached_and_complete
EVALUATION = Suite.test_evaluation_changes_nothing_and_gives_predictions
FINITE = Suite.test_what_is_not_finite_is_found_before_a_save_at_the_latest
MODULE = Suite.test_the_users_module_and_groups_come_back_however_wrapped
STATE = Suite.test_state_goes_to_another_model
NUMBERS = Suite.test_its_numbers_and_its_state_tell_of_updates_left_out
RANDOM = Suite.test_its_random_stream_goes_back_to_where_it_was
TEARDOWN = Suite.test_teardown_leaves_the_process_as_it_was


def gives(value):
    """Does nothing but give that."""
    return lambda method, self, *args, **kwargs: value


def breaks(method, self, *args, **kwargs):
    raise RuntimeError("the driver has no such call")


def reseeds(method, self):
    torch.manual_seed(0)


def forgets_a_part(method, self, model, batch, *rest):
    return method(self, model, type(batch)(batch[:-1]), *rest)


def stays_attached(method, self, *args):
    outputs = method(self, *args)
    outputs["loss"] = outputs["loss"].clone().requires_grad_()
    return outputs


def trains_on(method, self, model, *rest):
    for param in self.unwrap_model(model).parameters():
        param.data.add_(1)
    return method(self, model, *rest)


def guesses(method, self, *args):
    outputs = method(self, *args)
    return type(outputs)(outputs, predictions=outputs["predictions"] * 2)


def evaluates_as_it_trains(method, self, model, *rest):
    model.train()
    return method(self, model, *rest)


def evaluates_exactly(method, self, *args):
    self.update = replace(self.update, autocast=None)
    return method(self, *args)


def sets_one_group(method, self, model, batch, optimizer, *rest):
    optimizer.param_groups[1].update(lr=0.1)
    return method(self, model, batch, optimizer, *rest)


def seeds_without_a_seed(method, self, seed):
    method(self, seed or 0)


def reverses(method, self, loader, **options):
    return [*method(self, loader, **options)][::-1]


def loads_at_once(method, self, *args):
    method(self, *args)()
    return int


def leaves_buffers_out(method, self, model):
    named = self.unwrap_model(model).named_parameters()
    return {name: param.detach() for name, param in named}


def misses_infinity(method, self, model=None):
    if model is None or all(p.isfinite().all() for p in model.parameters()):
        method(self, model)


def drops_the_policy(method, self, model, optimizer, policy):
    return method(self, model, optimizer, UpdatePolicy())


def ignores_the_seed(method, self, loader, *, training, seed=None):
    return method(self, loader, training=training, seed=1)


def gives_the_wrapper(method, self, model):
    return model


def names_by_position(method, self, *args):
    tree = method(self, *args)
    return {**tree, "state": dict(enumerate(tree["state"].values()))}


def looks_at_losses_only(method, self, model=None):
    return method(self)


FAULTS = [
    (HERE, MirrorAdapter, "unavailable_reason", gives("switched off")),
    (HERE, ToyAdapter, "list_devices", gives(())),
    (HERE, ToyAdapter, "probes", gives(None)),
    (HERE, ToyAdapter, "data_share", gives(DataShare(0, 2))),
    (OPTION, ToyAdapter, "from_config", lambda method, cls, cfg: cls()),
    (SEED, ToyAdapter, "setup", gives(None)),
    (SEED, ToyAdapter, "setup", seeds_without_a_seed),
    (ON_DEVICE, ToyAdapter, "clam", breaks),  # so the base's claims the host
    (PRECISION, ToyAdapter, "prepare", drops_the_policy),
    (ORDER, ToyAdapter, "prepare_dataloader", ignores_the_seed),
    (EVALUATED, ToyAdapter, "prepare_dataloader", reverses),
    (PARTS, ToyAdapter, "train_step", forgets_a_part),
    (RATE, ToyAdapter, "train_step", sets_one_group),
    (OUTPUTS, ToyAdapter, "train_step", stays_attached),
    (EVALUATION, ToyAdapter, "eval_step", trains_on),
    (EVALUATION, ToyAdapter, "eval_step", guesses),
    (EVALUATION, ToyAdapter, "eval_step", evaluates_as_it_trains),
    (PRECISION, ToyAdapter, "eval_step", evaluates_exactly),
    (FINITE, ToyAdapter, "check_finite", gives(None)),
    (FINITE, ToyAdapter, "check_finite", misses_infinity),
    (FINITE, ToyAdapter, "check_finite", looks_at_losses_only),
    (MODULE, ToyAdapter, "unwrap_model", gives_the_wrapper),
    (STATE, MirrorAdapter, "model_state", gives({})),
    (STATE, MirrorAdapter, "model_state", leaves_buffers_out),
    (STATE, MirrorAdapter, "load_model_state", gives(None)),
    (STATE, ToyAdapter, "optimizer_state", names_by_position),
    (STATE, ToyAdapter, "load_optimizer_state", gives(int)),
    (STATE, ToyAdapter, "load_optimizer_state", loads_at_once),
    (ON_DEVICE, MirrorAdapter, "sync_to_host", gives(None)),
    (STATE, MirrorAdapter, "sync_to_device", gives(None)),
    (NUMBERS, ToyAdapter, "stats", gives({})),
    (NUMBERS, MirrorAdapter, "stats", gives({"peak_mib": math.nan})),
    (FAST, ToyAdapter, "switches", gives({"no_such_option": True})),
    (LOSSES, MirrorAdapter, "empty_cache", breaks),
    (LOSSES, MirrorAdapter, "synchronize", breaks),
    (LOSSES, ToyAdapter, "synchronize", reseeds),
    (NUMBERS, ToyAdapter, "state_dict", gives({})),
    (NUMBERS, ToyAdapter, "load_state_dict", gives(None)),
    (RANDOM, MirrorAdapter, "rng_state", gives({})),
    (RANDOM, MirrorAdapter, "set_rng_state", gives(None)),
    (TEARDOWN, MirrorAdapter, "teardown", gives(None)),
]


def faulty(adapter, name, fault):
    """A subclass whose method of that name goes through `fault`."""
    kind, method = vars(DeviceAdapter).get(name), getattr(adapter, name, None)
    method = getattr(method, "__func__", method)

    def planted(self, *args, **kwargs):
        return fault(method, self, *args, **kwargs)

    wrap = type(kind) if isinstance(kind, (classmethod, property)) else lambda f: f
    return type("Faulty", (adapter,), {name: wrap(planted)})


@pytest.fixture
def conforms(monkeypatch):
    """Does one test of the suite for an adapter class."""

    def run(adapter, test):
        monkeypatch.setitem(resolve._registered, "faulty", adapter)
        suite, taken = Suite(), inspect.signature(test).parameters
        suite.device = "faulty"
        cases = {"sizes": (4, 4, 4), "kind": EpochBasedRunner}
        given = {name: cases[name] for name in cases.keys() & taken}
        if "adapter" in taken:
            given["adapter"] = adapter.from_config({})
            given["adapter"].setup(0)
        test(suite, **given)

    return run


@pytest.mark.parametrize(("test", "adapter", "method", "fault"), FAULTS)
def test_a_planted_fault_is_caught(conforms, test, adapter, method, fault):
    with pytest.raises((Exception, pytest.fail.Exception)):
        conforms(faulty(adapter, method, fault), test)


def test_a_counter_of_energy_that_breaks_is_caught(conforms, monkeypatch):
    facts = DeviceFacts(energy="devrun.devices.cpu:no_such_counter")
    monkeypatch.setitem(device_facts._loaded(), ToyAdapter.name, facts)
    with pytest.raises(AttributeError, match="no_such_counter"):
        conforms(ToyAdapter, STAGES)


@pytest.mark.parametrize("adapter", [ToyAdapter, MirrorAdapter])
def test_without_a_fault_those_tests_pass(conforms, adapter, monkeypatch):
    monkeypatch.setattr(Suite, "torch_device", "cpu")
    for test in {row[0] for row in FAULTS if row[1] is adapter}:
        conforms(adapter, test)


def test_no_public_method_is_without_a_fault():
    public = {
        name
        for name, value in vars(DeviceAdapter).items()
        if not name.startswith("_")
        and (callable(value) or isinstance(value, (classmethod, property)))
    }
    assert public == {row[2] for row in FAULTS} - {"clam", "switches"}
