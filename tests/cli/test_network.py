"""What a config names opens no connection while it is built, unless allowed."""

import http.server
import threading
import urllib.request

import pytest
from torch import nn

from devrun.errors import ConfigError
from devrun.network import downloads_allowed
from devrun.registry import DATASETS, HOOKS, MODELS
from tests.cli.conftest import CONFIG


class Asked(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"8")

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """Of this machine: a proxy may be one too, so that it counts as the network."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}/weights"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        return int(answer.read())


class Fetching(nn.Sequential):
    """A model whose constructor downloads, in a thread of its own or not."""

    def __init__(self, url, pretrained=True, in_thread=False, cached=False):
        found = []

        def work():
            try:
                found.append(fetch(url) if pretrained else 8)
            except OSError:
                if cached:
                    found.append(8)
                elif not in_thread:
                    raise

        if in_thread:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            work()
        if not found:
            raise RuntimeError("nothing was downloaded")
        super().__init__(nn.Linear(16, found[0]), nn.Linear(8, 4))


@pytest.fixture(autouse=True)
def registered():
    MODELS.register_module(module=Fetching)
    yield
    del MODELS.module_dict["Fetching"]


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_model_that_downloads_needs_the_flag(config, train, server, in_thread):
    section = {"type": "Fetching", "url": server.url, "in_thread": in_thread}
    file = config(model=section)
    status, _, err = train(file, "--dry-run")
    assert status == 2
    (line,) = [line for line in err.splitlines() if "--allow-download" in line]
    assert "model: Fetching: asks for 127.0.0.1 on the network" in line
    assert not server.asked
    status, _, err = train(file, "--dry-run", "--allow-download")
    assert status == 0, err
    assert server.asked == ["/weights"]


def test_what_needs_no_network_or_has_it_in_a_cache_is_built(config, train, server):
    for arguments in ({"pretrained": False}, {"cached": True}):
        section = {"type": "Fetching", "url": server.url, **arguments}
        status, _, err = train(config(model=section), "--dry-run")
        assert status == 0, err
    assert not server.asked


def test_a_data_set_that_downloads_needs_it_too(config, train, server):
    class Downloaded(DATASETS.get("SyntheticClassification")):
        def __init__(self, **arguments):
            fetch(server.url)
            super().__init__(**arguments)

    DATASETS.register_module(module=Downloaded)
    data = {**CONFIG["data"], "train": {"type": "Downloaded", "num_samples": 32}}
    try:
        status, _, err = train(config(data=data), "--dry-run")
    finally:
        del DATASETS.module_dict["Downloaded"]
    assert status == 4
    assert "data.train: Downloaded: asks for 127.0.0.1 on the network" in err
    assert not server.asked


def test_a_hook_has_the_network_while_it_trains(config, train, server):
    from devrun import Hook

    class Reporting(Hook):
        def before_run(self, runner):
            fetch(server.url)

    HOOKS.register_module(module=Reporting)
    try:
        status, _, err = train(
            config(custom_hooks=[{"type": "Reporting"}]), "--dry-run"
        )
    finally:
        del HOOKS.module_dict["Reporting"]
    assert status == 0, err
    assert server.asked == ["/weights"]


def test_it_holds_in_a_program_too_and_only_while_it_builds(server):
    cfg = {"type": "Fetching", "url": server.url}
    with pytest.raises(ConfigError, match="downloads_allowed"):
        MODELS.build(cfg)
    assert fetch(server.url) == 8
    with downloads_allowed():
        assert isinstance(MODELS.build(cfg), Fetching)
