"""`compile: {backend: NAME or dotted path}`, and what if that compiles nothing."""

import pytest

from devrun.errors import ConfigError
from devrun.trust import allow_factory
from tests.devices.test_eager import Prepared, assert_near

GRAPHS = []


@allow_factory
def counting(graph, inputs):
    GRAPHS.append(graph)
    return graph.forward


@allow_factory
def hopeless(graph, inputs):
    raise NotImplementedError("no convolution on this target\nat node 3")


def prepared(backend, **options):
    path = f"{__name__}.{backend.__name__}"
    allow_factory(path)
    return Prepared(options={"compile": {"backend": path, **options}})


def test_a_backend_of_the_users_own_compiles_the_model():
    assert_near(prepared(counting).step()["loss"], Prepared().step()["loss"])
    assert GRAPHS


def test_a_backend_that_fails_is_one_line_with_the_module():
    with pytest.raises(ConfigError) as refusal:
        prepared(hopeless).step()
    said = str(refusal.value)
    assert f"backend '{__name__}.hopeless' cannot compile Sequential" in said
    assert "no convolution on this target" in said and "fallback: eager" in said
    assert "\n" not in said


def test_with_a_fallback_training_goes_on_and_says_so_once(caplog):
    run = prepared(hopeless, fallback="eager")
    losses = [run.step()["loss"] for _ in range(2)]
    plain = Prepared()
    assert_near(losses[0], plain.step()["loss"])
    assert_near(losses[1], plain.step()["loss"])
    assert [r.message for r in caplog.records if "runs uncompiled" in r.message][
        1:
    ] == []
    assert "cannot compile Sequential" in caplog.text


@pytest.mark.parametrize(
    ("compile", "said"),
    [
        ({"backend": "os.system"}, "--allow-factory os.system allows it"),
        ({"backend": "no_such.backend"}, "--allow-factory no_such.backend allows it"),
        ({"fallback": "eager"}, "a backend that is not inductor"),
        ({"backend": "aot_eager", "fallback": "cpu"}, "takes the fallback eager"),
    ],
)
def test_a_wrong_backend_or_fallback_is_refused(compile, said):
    with pytest.raises(ConfigError, match=said):
        Prepared(options={"compile": compile})
