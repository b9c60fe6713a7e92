"""`--launcher slurm` and `mpi`: who this process is, as other launchers say it."""

import os

import pytest

from devrun import dist
from devrun.errors import ConfigError
from devrun.launchers import first_host
from tests.launch.conftest import PATIENCE, told
from tests.support.zygote import free_port

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "gpu[08-11,20],fat1",
    "SLURM_JOB_ID": "41234",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "MASTER_ADDR": "127.0.0.1",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "h"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name in TORCH or name.startswith(("SLURM_", "OMPI_", "PMI", "MPI_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("launcher", "variables", "found"),
    [
        ("slurm", SLURM, ["3", "4", "1", "gpu08", "26234"]),
        ("slurm", {**SLURM, "MASTER_PORT": "5"}, ["3", "4", "1", "gpu08", "5"]),
        ("mpi", OPEN_MPI, ["3", "4", "3", "127.0.0.1", "29500"]),
        ("mpi", MPICH, ["3", "4", "1", "h", "29500"]),
    ],
)
def test_the_variables_of_torch_follow(launcher, variables, found, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert dist.check_launcher(launcher)
    assert [os.environ[name] for name in TORCH] == found
    assert (dist.launched(), dist.local_rank()) == (True, int(found[2]))


@pytest.mark.parametrize(
    ("launcher", "variables", "said"),
    [
        ("slurm", {}, "needs a number in SLURM_PROCID: start with srun"),
        ("slurm", {**SLURM, "SLURM_JOB_NODELIST": ""}, "needs MASTER_ADDR"),
        ("slurm", {**SLURM, "SLURM_PROCID": "x"}, "in SLURM_PROCID, and has 'x'"),
        ("slurm", {**SLURM, "SLURM_JOB_NODELIST": "$(id)"}, "cannot be read"),
        ("mpi", {}, "in OMPI_COMM_WORLD_RANK or PMI_RANK: start"),
        ("mpi", {**MPICH, "MASTER_ADDR": ""}, "needs MASTER_ADDR"),
    ],
)
def test_what_is_missing_is_named(launcher, variables, said, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        dist.check_launcher(launcher)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("n[1-3]", "n1"),
        ("n[007,9]-ib,x[1-2]", "n007-ib"),
        ("gpu-a.cluster", "gpu-a.cluster"),
    ],
)
def test_the_first_machine_of_a_list(nodes, first):
    assert first_host(nodes) == first


def test_two_tasks_of_slurm_are_one_run(place):
    place.write()
    shared = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "localhost",
        "MASTER_PORT": free_port(),
    }
    words = ("train", "run.yaml", "--launcher", "slurm", "--work-dir", "work")
    tasks = [
        place.start(*words, env={**shared, "SLURM_PROCID": rank, "SLURM_LOCALID": rank})
        for rank in "01"
    ]
    said = [task.communicate(timeout=PATIENCE) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "on cpu x 2 processes" in said[0][1]
    assert told(said[1][1]) == []
