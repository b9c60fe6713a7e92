"""What every test may rely on: the process is left as it was found.

Environment, directory, random streams, torch threads, process groups, signal
handlers and log handlers are put back after each test; files left in the repository
and process groups left open fail the test that left them.
"""

import logging
import os
import random
import re
import signal
import sys
from importlib.metadata import version
from pathlib import Path

# One thread each, before torch is imported, here and in child processes: results do
# not depend on the machine, and tests that run side by side do not fight.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Ignored under nohup, or in the background of a shell, and so they would be by the runs
# that tests hang up on or interrupt.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402 - after the variables that torch reads

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
NEEDS_DEVICES = {"cuda": 1, "multi_cuda": 2}
LONG = [
    ROOT / "tests" / folder
    for folder in ("rehearsal", "faults", "launch", "parallel", "checkpoint", "dist")
]
"""Folders whose files run for a minute each, mostly waiting for processes."""


NEWER_TORCH = {
    "2.5": (
        "hpu",
        "emulators/habana",
        "rehearsal",
        "parallel/test_gaudi.py",
        "devices/test_missing.py",
    ),
    "2.9": ("export", "parallel/test_strategies.py", "checkpoint/test_sharded*.py"),
    "2.2": ("faults/test_power_cut.py",),
}
"""What is left out before a torch that it needs from its first import on."""

NEWER_TESTS = {
    "2.1": (
        "test_lr_torch_scheduler", "test_what_has_no_lowering_is_refused_by_name",
        "test_a_subset_reads_the_batches_of_its_data_set",
        "test_parameters_without_a_shape_yet",
        "leaves_the_same_state[dampened]", "is_the_float_one_rounded[attention]",
        "test_vit.py", "test_versions_as_torch_never_writes_them",
        "test_devices_refuses_a_wrong_release",
    ),
    "2.3": ("test_auto_fp16_converts", "test_left_out.py", "has_the_losses_of_the_cpu"),
    "2.4": (
        "test_fast.py", "what_fast_switches", "[rms norm]",
        "test_a_compiled_model_learns", "test_a_plugin_device_brings_its_own_probe",
        "test_it_says_what_is_here-ToyAdapter-probes", "test_reads_and_packed",
    ),
    "2.6": ("[Adafactor]", "that_cannot_be_simulated", "of_the_first_updates_and"),
    "2.5": (
        "test_torch_private.py", "that_it_inherits", "gaudi_trains_as_the_cpu",
        "check/test_gaudi.py", "_is_a_row", "option_of_the_device", "_page_shows",
        "after_a_long_training",
    ),
    "2.9": ("test_museum.py", "loses_nothing[in_pieces]", "each_fsync_is_needed"),
    "2.10": (
        "the_bytes_are_those_of_rings", "the_words_are_a_table",
        "takes_what_one_of_two_real_ones_takes",
    ),
}  # fmt: skip
"""Parts of the names of tests of what is of that torch, or is refused before it."""


def lacks_torch(release):
    numbers = [version("torch").split(".")[:2], release.split(".")]
    here, wanted = (list(map(int, number)) for number in numbers)
    return here < wanted


collect_ignore_glob = [
    pattern
    for release, patterns in NEWER_TORCH.items()
    if lacks_torch(release)
    for pattern in patterns
]


def pytest_configure(config):
    """GPUs are for the tests of GPUs: `device: auto` is the same to others anywhere."""
    if "cuda" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What an older torch is refused by name, in a line that says so, is skipped."""
    report = yield
    if report.failed and call.excinfo:
        said = re.search(r"needs torch (\d+\.\d+) or later", str(call.excinfo.value))
        if said and lacks_torch(said[1]):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, said[0])
    return report


def pytest_collection_modifyitems(items):
    """The long files first, so that none is left for one process at the end.

    Skip, with the reason, what needs hardware that is not here.
    """
    for release, names in NEWER_TESTS.items():
        for item in items if lacks_torch(release) else ():
            if any(name in item.nodeid for name in names):
                item.add_marker(pytest.mark.skip(reason=f"of torch {release}"))
    items.sort(key=lambda item: not any(map(item.path.is_relative_to, LONG)))
    marked = [
        (item, name, count)
        for item in items
        for name, count in NEEDS_DEVICES.items()
        if item.get_closest_marker(name)
    ]
    if not marked:
        return
    import torch

    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item, name, count in marked:
        if here < count:
            reason = (
                f"{name}: needs {count} CUDA device(s), {here} here; "
                "`make test-gpu` runs it where there are enough"
            )
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def restored_process():
    """Environment, directory and signal handlers as before the test."""
    environment, directory = dict(os.environ), os.getcwd()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def restored_random_streams():
    """Python's, numpy's and torch's global streams as before the test."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy else None
    torch = sys.modules.get("torch")
    state = torch.get_rng_state() if torch else None
    yield
    random.setstate(python)
    if legacy is not None:
        numpy.random.set_state(legacy)
    if state is not None:
        torch.set_rng_state(state)


@pytest.fixture(autouse=True)
def restored_torch():
    """One thread, default switches, and no process group left open."""
    yield
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        group.destroy_process_group()
        pytest.fail("the test left a process group open")


@pytest.fixture(autouse=True)
def restored_logging():
    """The `devrun` logger as a new process has it.

    Not as before the test: a fixture of the module may have trained before this one.
    """
    yield
    logger = logging.getLogger("devrun")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


_made = set()
_MAKES = os.O_CREAT | os.O_WRONLY | os.O_RDWR


def _note_what_is_made(event, arguments):
    """Files and folders that this process makes, as Python announces them."""
    if event == "os.mkdir" or (event == "open" and arguments[2] & _MAKES):
        path = arguments[0]
        if isinstance(path, (str, os.PathLike)):
            path = os.path.abspath(path)
            if os.path.dirname(path) == str(ROOT) and not os.path.exists(path):
                _made.add(path)


sys.addaudithook(_note_what_is_made)


@pytest.fixture(autouse=True)
def clean_repository():
    """No test makes a file at the top of the repository; other programs may."""
    _made.clear()
    yield
    left = {os.path.basename(path) for path in _made if os.path.exists(path)}
    left -= {".pytest_cache", ".hypothesis", "__pycache__"}
    if left:
        pytest.fail(f"the test left {sorted(left)} in the repository")
