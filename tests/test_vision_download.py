"""Downloads, from servers in this process."""

import contextlib
import hashlib
import http.server
import os
import socket
import threading

import numpy as np
import pytest

from rushlight.data.vision import MNIST, DownloadError, download_file
from test_vision_files import idx_bytes

DATA = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.files.get(self.path)
        if answer is None:
            self.send_error(404)
            return
        if answer == "hang":
            self.server.release.wait(10)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer) + (1000 if "cut" in self.path else 0)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files = {
            "/good": DATA,
            "/wrong": DATA[:-1] + b"x",
            "/cut": DATA,
            "/hang": "hang",
        }
        server.asked, server.release = [], threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def refused():
    """An address where nobody listens."""
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/good"


def test_download(tmp_path, server):
    path, seen = tmp_path / "new" / "folder" / "file", []
    got = download_file(
        server.url + "/good", path, SHA256.upper(), progress=lambda *x: seen.append(x)
    )
    assert got == str(path)
    assert path.read_bytes() == DATA
    assert os.listdir(path.parent) == ["file"]
    assert seen[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    download_file(server.url + "/good", path, SHA256)  # there already
    assert server.asked == ["/good"]
    path.write_bytes(b"damaged")
    download_file([server.url + "/good"], path, md5=MD5)
    assert path.read_bytes() == DATA
    assert len(server.asked) == 2


def test_mirrors_are_tried_in_turn(tmp_path, server, refused):
    path, url = tmp_path / "file", server.url
    mirrors = [refused, url + "/none", url + "/wrong", url + "/cut", url + "/good", url + "/more"]
    download_file(mirrors, path, SHA256, md5=MD5)
    assert path.read_bytes() == DATA
    assert server.asked == ["/none", "/wrong", "/cut", "/good"]


def test_the_error_lists_what_was_tried(tmp_path, server, refused):
    path, url = tmp_path / "file", server.url
    path.write_bytes(b"before")
    mirrors = [refused, url + "/none", url + "/wrong", url + "/cut", url + "/hang", "nonsense"]
    with pytest.raises(DownloadError) as caught:
        download_file(mirrors, path, SHA256, timeout=0.2)
    lines = str(caught.value).splitlines()
    wrong = hashlib.sha256(server.files["/wrong"]).hexdigest()
    assert lines[0] == "could not download file; tried"
    assert all(f"  {m}: " in line for m, line in zip(mirrors, lines[1:], strict=False))
    assert "refused" in lines[1]
    assert "404" in lines[2]
    assert f"wrong checksum: sha256 is {wrong}, expected {SHA256}" in lines[3]
    assert f"ended after {len(DATA)} of {len(DATA) + 1000} bytes" in lines[4]
    assert "timed out" in lines[5]
    assert "unknown url type" in lines[6]
    assert f"put it at {path} (sha256 {SHA256})" in lines[7]
    assert isinstance(caught.value, OSError)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_what_no_mirror_can_help(tmp_path, server):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        download_file([server.url + "/good"] * 3, tmp_path / "folder", SHA256)
    assert server.asked == ["/good"]
    with pytest.raises(ValueError, match="checksum"):
        download_file(server.url + "/good", tmp_path / "x")
    with pytest.raises(ValueError, match="at least one URL"):
        download_file([], tmp_path / "x", SHA256)
    with pytest.raises(ZeroDivisionError):
        download_file(server.url + "/good", tmp_path / "x", SHA256, progress=lambda *_: 1 / 0)
    assert not (tmp_path / "x").exists()


def test_mnist_is_downloaded(tmp_path, server, refused, rng, monkeypatch):
    x, y = rng.integers(0, 256, (3, 28, 28), np.uint8), np.array([1, 2, 3], np.uint8)
    files = {"t10k-images-idx3-ubyte.gz": idx_bytes(x), "t10k-labels-idx1-ubyte.gz": idx_bytes(y)}
    server.files.update({f"/m/{name}": data for name, data in files.items()})
    sums = {name: hashlib.md5(data).hexdigest() for name, data in files.items()}
    monkeypatch.setattr(MNIST, "mirrors", [refused + "/", server.url + "/m/"])
    monkeypatch.setattr(MNIST, "md5", sums)
    dataset = MNIST(tmp_path, train=False, download=True)
    assert np.array_equal(dataset.data, x)
    assert sorted(os.listdir(tmp_path / "MNIST" / "raw")) == sorted(files)
    MNIST(tmp_path, train=False, download=True)
    assert len(server.asked) == 2
    monkeypatch.setattr(MNIST, "mirrors", [refused + "/"])
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DownloadError, match=r"t10k-images-idx3-ubyte.gz; tried\n.*refused"):
        MNIST(tmp_path, train=False, download=True)
