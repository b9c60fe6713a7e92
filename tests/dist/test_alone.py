"""`devrun.dist` without a second process: no-ops, and refusals that explain."""

import pytest

from devrun import dist
from devrun.errors import DeviceUnavailableError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_a_group_the_world_is_one():
    assert dist.get_dist_info() == (0, 1)
    assert dist.init_dist("none") is False
    assert dist.is_main()
    assert not dist.launched()
    assert dist.local_rank() is None
    assert dist.gather_objects("x") == ["x"]
    assert dist.broadcast_object({"a": 1}) == {"a": 1}
    assert dist.weighted_means({"loss": (4.0, 2)}) == {"loss": 2.0}
    assert dist.master_only(lambda value: value + 1)(1) == 2
    dist.barrier()
    dist.close_dist()


def test_a_given_seed_is_kept_and_a_made_one_differs():
    assert dist.shared_seed(7) == 7
    assert dist.shared_seed() != dist.shared_seed()


def test_a_backend_that_is_not_in_this_build_is_named(monkeypatch):
    world_of_one(monkeypatch)
    with pytest.raises(DeviceUnavailableError, match="'ucc2'"):
        dist.init_dist("pytorch", "ucc2")


def test_a_group_of_one_forms_and_closes(monkeypatch):
    world_of_one(monkeypatch)
    assert dist.init_dist("pytorch", "gloo", timeout=20) is True
    assert dist.init_dist("pytorch", "gloo") is False  # already in
    assert dist.get_dist_info() == (0, 1)
    assert not dist.launched()
    assert dist.gather_objects(3) == [3]
    assert dist.weighted_means({"a": (1, 1)}) == {"a": 1.0}
    dist.close_dist()
    dist.close_dist()


def world_of_one(monkeypatch):
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**values, "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
