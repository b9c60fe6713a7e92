"""An SDK that is built for another torch is refused in one line, before its import."""

import json
import os
from pathlib import Path

import pytest
import torch

from devrun.cli.main import main
from devrun.devices.versions import fitting, misfit
from tests.support import zygote

ROOT = Path(__file__).resolve().parents[2]
HERE = ".".join(torch.__version__.split(".")[:2])
CRASH = "import os\nos.abort()  # as native code of another torch may\n"
LIST = "from devrun.cli.main import main\nraise SystemExit(main(['devices', '--json']))"


def test_a_known_release_for_another_torch_does_not_fit_and_the_right_one_is_named():
    table = {"1.0": "1.9", "1.1": HERE, "1.2": HERE}
    assert misfit("kit", "1.1.3+build", table) is None
    assert misfit("kit", "7.0", table) is None  # not known: it may
    assert misfit("kit", "1.0.2", table) == (
        f"kit 1.0.2 is built for torch 1.9, this is torch {torch.__version__}; "
        f"kit 1.1 and 1.2 are for torch {HERE}"
    )
    assert fitting("kit", {"1.0": HERE}) == f"kit 1.0 is for torch {HERE}"
    assert fitting("kit", {"1.0": "1.9", "2.0": "1.10"}) == (
        f"no known release of kit is for torch {HERE}, the newest, 2.0, is for "
        "torch 1.10"
    )


def test_the_emulated_gaudi_needs_the_torch_of_an_sdk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("devrun.torch_features.VERSION", "2.4.1")
    config = ROOT / "configs" / "digits" / "resnet8_digits.yaml"
    assert main(["train", str(config), "--device", "hpu", "--emulate"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the emulated Gaudi needs torch 2.5 or later, this is torch" in line


@pytest.mark.skipif(hasattr(torch._C, "_acc"), reason="torch 2.10 compiles nothing")
def test_an_older_torch_needs_a_compiler_for_the_emulated_gaudi(tmp_path):
    config = ROOT / "configs" / "digits" / "resnet8_digits.yaml"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": "nothing-of-that-name"}
    words = ["-m", "devrun", "train", str(config), "--device", "hpu", "--emulate"]
    done = zygote.run(words, env=env, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 9 and "install g++ (or set CXX)" in line


def installed(site, package, distribution, version, *requires):
    """As pip would leave a package that ends the process when it is imported."""
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text(CRASH)
    info = site / f"{distribution}-{version.partition('+')[0]}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join([*lines, ""]))


def rows(site):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT)])
    done = zygote.run(["-c", LIST], env, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return {row["device"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("device", "package", "distribution", "version", "requires", "words"),
    [
        (
            *("ipu", "poptorch", "poptorch", "3.4.0+113432_960e9c294b", ()),
            "PopTorch 3.4.0+113432_960e9c294b is built for torch 2.0, this is torch",
        ),
        (
            *("ipu", "poptorch", "poptorch", "9.1.0", ("torch==1.12.1+cpu",)),
            "PopTorch 9.1.0 is built for torch 1.12, this is torch",
        ),
        (
            *("hpu", "habana_frameworks", "habana_torch_plugin", "1.16.2.2", ()),
            "habana_frameworks 1.16.2.2 is built for torch 2.2, this is torch",
        ),
    ],
    ids=["ipu-known", "ipu-says-itself", "hpu"],
)
def test_devices_refuses_a_wrong_release_without_importing_it(
    tmp_path, device, package, distribution, version, requires, words
):
    installed(tmp_path, package, distribution, version, *requires)
    reason = rows(tmp_path)[device]["reason"]
    assert reason.startswith(words)
    assert "\n" not in reason
