"""Weights by flags: renamed, downloaded, and written in another package's layout."""

import hashlib
import http.server
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from devrun.checkpoint import find_latest, load_checkpoint, read_checkpoint
from devrun.cli.main import main
from devrun.models import MLP
from tests.support.command import command


def mlp(seed=0):
    torch.manual_seed(seed)
    return MLP(in_features=16, hidden=[8], num_classes=4)


@pytest.fixture
def export(capsys):
    return partial(command, capsys, "export")


def test_keys_are_revised_by_the_config_and_by_flags(config, train):
    state = {f"student.{key}": value for key, value in mlp().state_dict().items()}
    state |= {f"teacher.{key}": value for key, value in mlp(1).state_dict().items()}
    torch.save({"state_dict": state}, "both.pth")
    words = ("--load-from", "both.pth", "--work-dir")
    status, _, err = train(config(), *words, "a")
    assert status == 3
    assert "nothing in both.pth fits MLP; its keys are 'student." in err
    drop = ("--revise-keys", "^student[.]=unused_", "--revise-keys", "^(?=t)teacher.=")
    status, _, err = train(config(), *words, "b", *drop)
    assert status == 0, err
    assert "4 unexpected: unused_" in err
    written = yaml.safe_load(Path("b/config.yaml").read_text())
    assert written["revise_keys"] == [
        ["^student[.]", "unused_"],
        ["^(?=t)teacher.", ""],
    ]
    file = config(load_from="both.pth", revise_keys=written["revise_keys"])
    assert train(file, "--work-dir", "c")[0] == 0


@pytest.mark.parametrize(
    ("versions", "expected"), [("text", 0), ({3: {}}, 0), ([1], 0), ({"": 3}, 3)]
)
def test_versions_as_torch_never_writes_them_are_no_crash(
    config, train, versions, expected
):
    state = OrderedDict(mlp().state_dict())
    state._metadata = versions
    torch.save(state, "odd.pth")
    status, _, err = train(config(), "--load-from", "odd.pth", "--dry-run")
    assert status == expected, err


@pytest.mark.parametrize(
    "words",
    [
        ("train", "FILE", "--work-dir", "~nobody-here/run"),
        ("train", "FILE", "--load-from", "~nobody-here/a.pth"),
        ("test", "FILE", "~nobody-here/a.pth"),
        ("predict", "FILE", "a.pth", "--out", "~nobody-here/a.csv"),
        ("export", "~nobody-here/a"),
        ("report", "~nobody-here/a"),
    ],
)
def test_a_home_that_is_nobodys_is_one_line(config, capsys, words):
    file = config()
    torch.save(mlp().state_dict(), "a.pth")
    status = main([file if word == "FILE" else word for word in words])
    err = capsys.readouterr().err
    assert status in (2, 3), err
    assert err.splitlines()[-1].startswith("devrun: error: ")
    assert "home directory that is not known" in err and "traceback" not in err


@pytest.mark.parametrize("text", ["^a", "(=b", "^(a)=\\2"])
def test_a_revision_that_is_none_is_one_line(config, train, text):
    status, _, err = train(config(), "--work-dir", "run", "--revise-keys", text)
    assert status == 2
    assert err.count("\n") == 1
    assert "revise" in err and not Path("run").exists()


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_weights_are_downloaded_for_training_and_test_with_the_flag_only(
    config, train, capsys, monkeypatch
):
    monkeypatch.setenv("TORCH_HOME", str(Path("torch").absolute()))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    torch.save({"state_dict": mlp().state_dict()}, "weights.pth")
    digits = hashlib.sha256(Path("weights.pth").read_bytes()).hexdigest()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/weights.pth#sha256={digits}"
        file = config(load_from=address)
        status, _, err = train(file, "--work-dir", "a")
        assert status == 3
        assert "give --allow-download" in err.splitlines()[-1]
        assert not Path("torch").exists()
        status, _, err = train(file, "--work-dir", "b", "--allow-download")
        server.shutdown()
        thread.join()
    assert status == 0, err
    assert "loaded all 4 tensors of http://127.0.0.1" in err
    assert [p.name for p in Path("torch/hub/checkpoints").iterdir()] == [
        f"weights-{digits[:8]}.pth"
    ]
    # the server is gone: it comes from the cache
    words = ["test", config(), address, "--split", "val"]
    assert main([*words, "--allow-download"]) == 0, capsys.readouterr().err
    assert main(words) == 3


def test_an_export_has_the_names_of_the_run_and_loads_again(config, train, export):
    assert train(config(), "--work-dir", "a", "--seed", "1")[0] == 0
    ours = read_checkpoint(find_latest("a/checkpoints"))["model"]
    loaded = partial(torch.load, weights_only=True)
    for form, read in (("torch", loaded), ("safetensors", load_file)):
        status, out, err = export("a", "--format", form)
        assert status == 0, err
        path = Path(out.strip().removeprefix("written: "))
        assert read(path).keys() == ours.keys()
        model = mlp()
        load_checkpoint(model, path, strict=True)
        assert all(torch.equal(v, ours[k]) for k, v in model.state_dict().items())
    assert export("a", "--format", "safetensors", "--output", "x.pth")[0] == 3
