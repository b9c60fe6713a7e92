"""Weights from a server on this machine: allowed, checked, whole, never replaced."""

import hashlib
import http.server
import threading

import pytest
import torch
from torch import nn

from devrun.checkpoint import load_checkpoint, save_checkpoint
from devrun.errors import CheckpointError, StorageError
from devrun.network import downloads_allowed


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers of `server.pages`: bytes, or a function that writes one itself."""

    def do_GET(self):
        self.server.asked.append(self.path)
        page = self.server.pages.get(self.path)
        if callable(page):
            page(self)
        elif page is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.pages, found.asked = {}, []
        found.address = f"http://127.0.0.1:{found.server_port}"
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


@pytest.fixture
def net():
    def build(seed=0):
        torch.manual_seed(seed)
        return nn.Linear(3, 2)

    return build


@pytest.fixture
def content(tmp_path, net):
    save_checkpoint(net(), tmp_path / "made.pth")
    return (tmp_path / "made.pth").read_bytes()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_other_schemes_are_not_downloaded_even_then(net, tmp_path):
    save_checkpoint(net(), tmp_path / "a.pth")
    with downloads_allowed():
        for scheme in ("file", "ftp", "torchvision", "open-mmlab", "s3"):
            with pytest.raises(CheckpointError, match="download it first"):
                load_checkpoint(net(), f"{scheme}://{tmp_path}/a.pth")


def test_a_checksum_in_the_name_or_after_it_is_checked_and_the_file_is_cached(
    server, cache, net, content
):
    digits = sha256(content)
    server.pages |= {f"/r18-{digits[:8]}.pth": content, "/model.pth": content}
    model = net(1)
    with downloads_allowed():
        for _ in range(2):
            load_checkpoint(model, f"{server.address}/r18-{digits[:8]}.pth")
        assert torch.equal(model.weight, net().weight)
        load_checkpoint(model, f"{server.address}/model.pth#sha256={digits}")
        assert len(server.asked) == 2
        named = [f"model-{digits[:8]}.pth", f"r18-{digits[:8]}.pth"]
        assert files(cache) == named


def redirect(address):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.end_headers()

    return answer


def cut_short(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"PK" * 100)


def test_whatever_goes_wrong_is_one_line_and_leaves_nothing(
    server, cache, net, content, tmp_path
):
    (tmp_path / "secret.pth").write_bytes(content)
    server.pages |= {
        "/wrong-01234567.pth": content,
        "/short-01234567.pth": cut_short,
        "/file-01234567.pth": redirect(f"file://{tmp_path}/secret.pth"),
        "/ftp-01234567.pth": redirect("ftp://127.0.0.1/a.pth"),
        "/plain.pth": content,
        "/hang-01234567.pth": lambda handler: handler.connection.close(),
    }
    free = "http://127.0.0.1:1"
    cases = {
        f"{server.address}/gone-01234567.pth": "answers 404",
        f"{server.address}/wrong-01234567.pth": f"got .{sha256(content)[:8]}",
        f"{server.address}/short-01234567.pth": "ended too early",
        f"{server.address}/file-01234567.pth": "not allowed",
        f"{server.address}/ftp-01234567.pth": "could not be downloaded",
        f"{server.address}/hang-01234567.pth": "could not be downloaded",
        f"{server.address}/plain.pth": "append #sha256=",
        f"{server.address}/plain.pth#sha256=zz": "8 to 64 hexadecimal",
        f"{server.address}/plain.pth#md5=0123456789": "8 to 64 hexadecimal",
        f"{server.address}/..%2f..%2fa-01234567.pth": "answers 404",
        f"{server.address}/": "names no file",
        f"{server.address}/.a-01234567.pth": "names no file",
        f"{server.address}/x%00y-01234567.pth": "names no file",
        f"{free}/offline-01234567.pth": "is this machine offline",
        "http:///a-01234567.pth": "is no http",
        "http://[/a-01234567.pth": "is no http",
        "http://127.0.0.1:x/a-01234567.pth": "could not be downloaded",
        "HTTP://127.0.0.1:1/\u00e9/a-01234567.pth": "could not be downloaded",
    }
    with downloads_allowed():
        for address, text in cases.items():
            with pytest.raises(CheckpointError, match=text) as caught:
                load_checkpoint(net(), address)
            assert "\n" not in str(caught.value)
            assert files(cache) == []


def test_a_cache_that_cannot_be_written_is_one_line(server, net, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file"))
    with downloads_allowed(), pytest.raises(StorageError, match="cannot write"):
        load_checkpoint(net(), f"{server.address}/a-01234567.pth")
