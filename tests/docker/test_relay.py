"""The relay between Prometheus and the stations' Unix sockets, without any container."""

from __future__ import annotations

import http.server
import socketserver
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import compose

from ..e2e.cluster import wait_for

# Not of the end of the session, in which an engine may end.
pytestmark = pytest.mark.timeout(300, func_only=True)
METRICS = b"# TYPE frames counter\nframes_total 7\n# EOF\n"


class Metrics(http.server.BaseHTTPRequestHandler):
    """What a station answers on its socket: what was asked for comes back in a header."""

    def do_GET(self) -> None:
        found = self.path == "/metrics"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0")
        self.send_header("Content-Length", str(len(METRICS) if found else 0))
        self.end_headers()
        self.wfile.write(METRICS if found else b"")

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[str]:
    """A relay for station 2, which answers, and station 3, whose socket nobody serves any more; gives its address."""
    for number in ("2", "3"):
        (tmp_path / number).mkdir()
    station = socketserver.ThreadingUnixStreamServer(str(tmp_path / "2" / "metrics.sock"), Metrics)
    threading.Thread(target=station.serve_forever, daemon=True).start()
    socketserver.UnixStreamServer(str(tmp_path / "3" / "metrics.sock"), Metrics).server_close()
    with socketserver.TCPServer(("127.0.0.1", 0), Metrics) as free:
        port = free.server_address[1]
    process = subprocess.Popen([sys.executable, compose.FOLDER / "relay.py", tmp_path, str(port)], stderr=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"

    def listens() -> bool:
        try:
            urllib.request.urlopen(address, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        wait_for(listens, "the relay listens")
        yield address
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
        station.shutdown()
        station.server_close()


def test_metrics_pass_as_they_are(relay: str) -> None:
    with urllib.request.urlopen(f"{relay}/2", timeout=10) as answer:
        assert answer.read() == METRICS
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(
    ("path", "code"), [("/1", 502), ("/3", 502), ("/", 404), ("/../2", 404), ("/2/metrics", 404), ("/metrics", 404)]
)
def test_what_is_not_there_is_an_error(relay: str, path: str, code: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(relay + path, timeout=10)
    assert caught.value.code == code
    caught.value.close()
