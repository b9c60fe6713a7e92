"""Whatever the device: its state moves to any other device, and it leaves no trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError
from devrun.step import Capability, MicroBatches, UpdatePolicy
from devrun.testing.harness import (
    AdapterTests,
    Session,
    batches,
    by_hand,
    loader,
)


class StateTests(AdapterTests):
    """State, random streams and loaders: what a resumed run relies on."""

    def test_a_run_begun_here_goes_on_on_the_cpu(self, adapter: DeviceAdapter) -> None:
        data = batches(8)
        _, model, _ = by_hand(data)
        first = Session(adapter)
        first.train(data[:4])
        state = copy.deepcopy(first.host_state())
        cpu = resolve_device("cpu")
        cpu.setup(None)
        second = Session(cpu, state=state)
        second.train(data[4:])
        self.assert_same_weights(second.host_state()[0], model)

    def test_weights_loaded_after_prepare_are_the_ones_used(
        self, adapter: DeviceAdapter
    ) -> None:
        data = batches(8)
        _, model, _ = by_hand(data)
        _, half, optimizer = by_hand(data[:4])
        session = Session(adapter)
        session.train(data[:1])
        adapter.unwrap_model(session.model).load_state_dict(half.state_dict())
        session.optimizer.load_state_dict(optimizer.state_dict())
        adapter.sync_to_device(session.model)
        session.train(data[4:])
        self.assert_same_weights(session.host_state()[0], model)

    def test_its_own_state_survives_a_round_trip(self, adapter: DeviceAdapter) -> None:
        session = Session(adapter)
        session.train(batches(2))
        state = adapter.state_dict()
        adapter.load_state_dict(copy.deepcopy(state))
        assert adapter.state_dict() == state

    def test_its_random_stream_goes_back_to_where_it_was(
        self, adapter: DeviceAdapter
    ) -> None:
        Session(adapter)
        place = getattr(adapter, "device", torch.device("cpu"))
        host, state = torch.get_rng_state(), adapter.rng_state()
        first = torch.rand(8, device=place)
        torch.rand(100, device=place)
        torch.set_rng_state(host)
        adapter.set_rng_state(state)
        assert torch.equal(torch.rand(8, device=place), first)

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_an_epoch_has_every_sample_once_in_as_many_items_as_its_len(
        self, adapter: DeviceAdapter, accumulate: int
    ) -> None:
        Session(adapter, UpdatePolicy(accumulate=accumulate))
        prepared = adapter.prepare_dataloader(
            loader(22, 4, shuffle=True), training=True
        )
        items = list(prepared)
        static = Capability.DYNAMIC_SHAPES not in adapter.capabilities
        expected = 22 // (4 * accumulate) if static else -(-6 // accumulate)
        assert len(items) == len(prepared) == expected
        grouped = [i if isinstance(i, MicroBatches) else [i] for i in items]
        labels = torch.cat([labels for item in grouped for _, labels in item]).tolist()
        if static:  # the last, short update is left out
            assert len(labels) == len(set(labels)) == expected * 4 * accumulate
        else:
            assert sorted(labels) == list(range(22))
        assert labels != sorted(labels)

    def test_preparing_a_loader_twice_changes_nothing(
        self, adapter: DeviceAdapter
    ) -> None:
        Session(adapter)
        once = adapter.prepare_dataloader(loader(8, 4), training=True)
        assert adapter.prepare_dataloader(once, training=True) is once

    def test_an_evaluation_loader_never_groups_batches(
        self, adapter: DeviceAdapter
    ) -> None:
        Session(adapter, UpdatePolicy(accumulate=4))
        prepared = adapter.prepare_dataloader(loader(10, 4), training=False)
        assert [len(labels) for _, labels in prepared] == [4, 4, 2]

    def test_teardown_twice_and_without_setup(self) -> None:
        adapter = resolve_device(self.device)
        adapter.teardown()
        adapter.setup(None)
        Session(adapter).train(batches(1))
        adapter.teardown()
        adapter.teardown()

    def test_an_unknown_option_is_refused_and_the_config_left_alone(self) -> None:
        given = {"type": self.device} if isinstance(self.device, str) else self.device
        config: dict[str, Any] = {**given, "no_such_option": 1}
        before = copy.deepcopy(config)
        with pytest.raises(ConfigError, match="no_such_option"):
            resolve_device(config)
        assert config == before
