"""A sample or a worker that fails ends the run with one line that names it."""

import os
import re
import signal

import pytest
import torch

from devrun.errors import DataError, HangError
from tests.data.helpers import Draws, Dying, Failing, prepared, read
from tests.support import zygote

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def test_a_failing_sample_in_a_worker_names_the_worker_too():
    with pytest.raises(DataError) as caught:
        read(prepared(Failing((6,)), num_workers=2), 0)
    assert re.fullmatch(
        r".*helpers\.py:\d+ in __getitem__: ValueError: first line sample file 6 is "
        r"torn; data loading failed at sample 6, epoch 1 \(worker 1\)",
        str(caught.value),
    )
    assert "in __getitem__" in str(caught.value.__cause__)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_make_no_batch_are_named(workers):
    class Ragged(Draws):
        def __getitem__(self, index):
            return torch.zeros(index)

    with pytest.raises(
        DataError, match=r"buckets.*batch that starts with sample 0 .*together"
    ):
        read(prepared(Ragged(), num_workers=workers), 0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("killed", "SIGKILL"),
        # torch looks for a worker that ended quietly every 5 seconds
        pytest.param("exits", "exit status 0", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_is_named(how, told):
    loader = prepared(Dying(6, how), num_workers=2)
    with pytest.raises(DataError, match=rf"worker 1 \(pid \d+\) died of {told}"):
        read(loader, 0)


def test_a_death_reported_outside_the_loader_is_explained():
    loader = prepared(Dying(99, "never"), num_workers=2, prefetch_factor=1)
    with pytest.raises(RuntimeError) as caught:
        for _ in loader:
            victim = loader._iterator._workers[1]
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            raise RuntimeError(f"DataLoader worker (pid {victim.pid}) is killed")
    explained = loader.explain(caught.value)
    assert isinstance(explained, DataError)
    assert "worker 1" in str(explained)
    assert loader.explain(RuntimeError("something else")) is None


def test_a_loader_whose_sample_failed_can_be_read_again():
    dataset = Failing((6,))
    loader = prepared(dataset, num_workers=1, persistent_workers=True)
    with pytest.raises(DataError):
        read(loader, 0)
    dataset.bad = ()
    assert torch.cat(read(loader, 0)).tolist() == list(range(20))
    loader.close()


def test_a_hanging_worker_ends_at_the_timeout_and_is_gone():
    loader = prepared(Dying(6, "hangs"), num_workers=1, timeout=1)
    batches = iter(loader)
    next(batches)
    workers = loader._iterator._workers
    with pytest.raises(HangError, match="no batch within 1 s"):
        list(batches)
    for worker in workers:
        worker.join(10)  # torch before 2.13 does not wait for their end
    assert not any(worker.is_alive() for worker in workers)


SIGNALLED = """
import os, signal, warnings
warnings.simplefilter("ignore")  # torch's advice where there is one core
from torch.utils.data import DataLoader
from devrun.data import LoaderSpec, PreparedLoader

signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGUSR1, lambda *_: None)
plain = DataLoader(list(range(40)), batch_size=2, num_workers=2)
loader = PreparedLoader(LoaderSpec.of(plain, seed=0))
seen = []
for number, batch in enumerate(loader):
    if number in (2, 5):
        os.killpg(0, signal.SIGTERM)
        os.killpg(0, signal.SIGINT)
        os.killpg(0, signal.SIGUSR1)
    seen += batch.tolist()
assert seen == list(range(40)), seen
kept = iter(loader)  # workers that live on at exit must not hold it up
next(kept)
print("done")
"""


def test_signals_to_the_whole_group_lose_no_batch_and_exit_is_clean():
    done = zygote.run(["-c", SIGNALLED], finalize=True)
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


BORN = """
import os, signal
from torch.utils.data import DataLoader
from devrun.data import LoaderSpec, PreparedLoader

parent = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: os.getpid() != parent and os._exit(9))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
plain = DataLoader(list(range(40)), batch_size=2, num_workers=2)
loader = PreparedLoader(LoaderSpec.of(plain, seed=0))
print(sum(batch.sum().item() for batch in loader))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_signal_that_meets_a_worker_at_its_birth_does_not_end_it():
    done = zygote.run(["-c", BORN], finalize=True)
    assert done.stdout == "780\nset()\n", done.stderr
