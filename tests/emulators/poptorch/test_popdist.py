"""Options for one process of several, and what poprun's environment says."""

import popdist
import popdist.poptorch
import poptorch
import pytest


def test_without_poprun_there_is_one_process():
    assert not popdist.isPopdistEnvSet()
    popdist.init()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)
    assert popdist.execute_on_instances({0}, max, 1, 2) == 2
    assert popdist.execute_on_instances({1}, max, 1, 2) is None


def test_poprun_decides_replicas_and_processes(monkeypatch):
    for name, value in (
        ("NUM_TOTAL_REPLICAS", 8),
        ("NUM_LOCAL_REPLICAS", 2),
        ("REPLICA_INDEX_OFFSET", 6),
        ("NUM_IPUS_PER_REPLICA", 4),
    ):
        monkeypatch.setenv(f"POPDIST_{name}", str(value))
    assert popdist.isPopdistEnvSet()
    assert popdist.getNumIpusPerReplica() == 4
    opts = popdist.poptorch.Options(ipus_per_replica=4)
    assert opts.replication_factor == 2
    assert (opts.Distributed.numProcesses, opts.Distributed.processId) == (4, 3)
    assert opts.deviceIterations(2).clone().device_iterations == 2
    loader = poptorch.DataLoader(opts, list(range(32)), batch_size=2)
    assert loader.combinedBatchSize == 8
    assert next(iter(loader)).tolist() == list(range(24, 32))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("replicationFactor", lambda o: o.replicationFactor(2)),
        ("useIpuId", lambda o: o.useIpuId(1)),
        ("Distributed.disable", lambda o: o.Distributed.disable()),
        ("Distributed.setEnvVarNames", lambda o: o.Distributed.setEnvVarNames("a")),
        (
            "Distributed.configureProcessId",
            lambda o: o.Distributed.configureProcessId(1),
        ),
    ],
)
def test_what_poprun_decides_cannot_be_set(name, call):
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}`"):
        call(popdist.poptorch.Options())
