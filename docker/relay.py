"""GET /N answers with the metrics of station N, which it gives on FOLDER/N/metrics.sock only.

relay.py FOLDER PORT: listens on the loopback. A station that does not answer is 502, so that Prometheus shows it as down.
"""

from __future__ import annotations

import http.client
import http.server
import signal
import socket
import sys
from http import HTTPStatus
from pathlib import Path
from types import FrameType

TIMEOUT_S = 4.0


class Station(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


class Relay(http.server.BaseHTTPRequestHandler):
    """One request."""

    folder = Path()

    def do_GET(self) -> None:
        number = self.path.removeprefix("/")
        if not number.isdecimal():
            self.send_error(HTTPStatus.NOT_FOUND, "GET /1 gives the metrics of station 1")
            return
        station = Station(self.folder / number / "metrics.sock")
        try:
            # Prometheus says which formats it takes.
            station.request("GET", "/metrics", headers={"Accept": self.headers.get("Accept", "*/*")})
            answer = station.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, f"station {number}: {error}")
            return
        finally:
            station.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Errors only: a line every few seconds for each station helps nobody."""

    def log_error(self, format: str, *args: object) -> None:
        print(format % args, file=sys.stderr, flush=True)


def main() -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        sys.exit(0)

    # The first process of a container gets no signal that it does not ask for.
    signal.signal(signal.SIGTERM, stop)
    Relay.folder = Path(sys.argv[1])
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Relay).serve_forever()


if __name__ == "__main__":
    main()
