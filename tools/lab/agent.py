"""The process of one station: it keeps the station's namespaces alive.

Forked by the holder, it moves into network and mount namespaces of its own and executes there what must be done inside (links,
daemon, captures, frames to inject), one request at a time. When the holder goes, however it goes, the agent kills every process
of its network namespace and ends; the namespaces go with it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import forking, ipc, namespaces, network
from .errors import LabError, LabNotFound, LabTimeout

CAPTURE_READY_S = 5.0
CAPTURE_STOP_S = 10.0
KILL_S = 3.0
REQUEST_S = 10.0


class Agent:
    """Carries out requests inside one station. All methods named ``do_*`` take and return JSON objects."""

    def __init__(self, station: int, description: str, links: int = 1) -> None:
        self._station = station
        self._description = description
        self._ports = {link: network.Port(station, network.interface_name(link), link=link) for link in range(1, links + 1)}
        self._daemon: subprocess.Popen[bytes] | forking.Forked | None = None
        self._capture: subprocess.Popen[str] | None = None
        self._beside: list[subprocess.Popen[bytes] | forking.Forked] = []

    def _port(self, request: ipc.Message) -> network.Port:
        """The interface on the link that a request names, the first one's if it names none."""
        if (link := int(request.get("link", 1))) not in self._ports:
            raise LabNotFound(f"station {self._station} has no link {link} (it has 1 to {len(self._ports)})")
        return self._ports[link]

    def do_configure(self, request: ipc.Message) -> ipc.Message:
        self._port(request).configure()
        return {}

    def do_describe(self, request: ipc.Message) -> ipc.Message:
        interface = self._port(request).describe()
        links = [{"link": link, **port.describe()} for link, port in self._ports.items()] if len(self._ports) > 1 else []
        return {"interface": interface, "links": links, "daemon": self._daemon_state(), "capturing": self._capturing()}

    # The daemon

    def _daemon_state(self) -> dict[str, Any] | None:
        if self._daemon is None:
            return None
        return {"pid": self._daemon.pid, "returncode": self._daemon.poll()}

    def do_poll(self, _request: ipc.Message) -> ipc.Message:
        return {"daemon": self._daemon_state()}

    def do_start(self, request: ipc.Message) -> ipc.Message:
        if self._daemon is not None and self._daemon.poll() is None:
            raise LabError(f"the daemon of station {self._station} is running already (process {self._daemon.pid})")
        self._daemon = self._start(request, "the daemon")
        return {"daemon": self._daemon_state()}

    def _start(self, request: ipc.Message, what: str) -> subprocess.Popen[bytes] | forking.Forked:
        """A program in the station's namespace that ends with this agent."""
        try:
            with Path(request["log"]).open("ab") as log:
                if forking.can_start(request["argv"], request["env"]):
                    return forking.Forked(request["argv"], request["env"], request["cwd"], log)
                return subprocess.Popen(
                    request["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=request["env"],
                    cwd=request["cwd"],
                    start_new_session=True,
                    preexec_fn=namespaces.die_with_parent,
                )
        except OSError as error:
            raise LabError(f"{what} of station {self._station} cannot be started: {error}") from error

    def do_beside(self, request: ipc.Message) -> ipc.Message:
        """Start a program beside the daemon; it ends with this agent."""
        started = self._start(request, request["argv"][0])
        self._beside.append(started)
        return {"pid": started.pid}

    def do_signal(self, request: ipc.Message) -> ipc.Message:
        if self._daemon is None or self._daemon.poll() is not None:
            raise LabNotFound(f"no daemon is running at station {self._station}")
        self._daemon.send_signal(int(request["signal"]))
        return {}

    # The interface

    def do_link(self, request: ipc.Message) -> ipc.Message:
        self._port(request).set(**request["set"])
        return {}

    def do_rename(self, request: ipc.Message) -> ipc.Message:
        self._port(request).rename(request["name"])
        return {}

    def do_rate(self, request: ipc.Message) -> ipc.Message:
        self._port(request).set_rate(int(request["rate_bit"]))
        return {}

    def do_inject(self, request: ipc.Message) -> ipc.Message:
        network.send_frames(self._port(request).name, [base64.b64decode(f) for f in request["frames"]])
        return {}

    # Captures

    def _capturing(self) -> bool:
        return self._capture is not None and self._capture.poll() is None

    def do_capture_start(self, request: ipc.Message) -> ipc.Message:
        if self._capturing():
            raise LabError(f"station {self._station} is being captured already")
        program = Path(__file__).with_name("capture.py")
        options = ["--description", f"{self._description}, station {self._station}", "--count", str(request.get("count", 0))]
        options += ["--ring-mib", str(request.get("ring_mib", 32))]
        self._capture = subprocess.Popen(
            [sys.executable, "-I", str(program), request["path"], *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=namespaces.die_with_parent,
        )
        line = self._capture_line(CAPTURE_READY_S)
        if line != "ready":
            self._capture.kill()
            self._capture.wait()
            self._capture = None
            raise LabError(f"no capture at station {self._station}: {line or 'the program ended'}")
        return {}

    def _capture_line(self, timeout_s: float) -> str:
        assert self._capture is not None and self._capture.stdout is not None
        if not select.select([self._capture.stdout], [], [], timeout_s)[0]:
            return "no answer in time"
        return self._capture.stdout.readline().strip()

    def do_capture_stop(self, _request: ipc.Message) -> ipc.Message:
        if self._capture is None:
            raise LabNotFound(f"station {self._station} is not being captured")
        capture = self._capture
        if capture.poll() is None:
            capture.send_signal(signal.SIGTERM)
        line = self._capture_line(CAPTURE_STOP_S)
        self._capture = None
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            capture.kill()
            raise LabError(f"the capture at station {self._station} did not end well: {line or 'it was killed'}") from None
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                capture.wait(1)
        return {"capture": result}

    def close(self) -> None:
        """Let a capture finish its file, then kill all other processes of the station."""
        with contextlib.suppress(LabError):
            if self._capturing():
                self.do_capture_stop({})
        namespaces.kill_neighbours(KILL_S)


def run(station: int, description: str, sock: socket.socket, holder: int, links: int = 1) -> None:
    """The agent, in a fresh fork of the holder: announce itself, serve, clean up. Never returns."""
    code = 0
    try:
        # The pipe of the wake-up descriptor is the holder's. A handler that does nothing, since programs started here would
        # inherit that a signal is ignored.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        namespaces.enter_station()
        agent = Agent(station, description, links)
        ipc.send(sock, {"ok": True})
        try:
            _serve(agent, sock, holder)
        finally:
            agent.close()
    except BaseException as error:
        with contextlib.suppress(OSError):
            ipc.send(sock, {"ok": False, "kind": getattr(error, "kind", "failed"), "error": f"station {station}: {error}"})
        print(f"station {station}: {error!r}", file=sys.stderr, flush=True)
        code = 1
    os._exit(code)


def _serve(agent: Agent, sock: socket.socket, holder: int) -> None:
    # The socket ends with the holder, and so does the process descriptor; either alone would do.
    watch = os.pidfd_open(holder)
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    poller.register(watch, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if sock.fileno() not in ready:
            return
        request = ipc.receive(sock, REQUEST_S)
        if request is None or request["op"] == "quit":
            return
        ipc.send(sock, answer(agent, request))


def answer(target: object, request: ipc.Message) -> ipc.Message:
    """Call the method ``do_<op>`` of *target*; whatever it raises becomes a reply that ``errors.from_kind`` understands."""
    started = time.monotonic()
    try:
        method = getattr(target, f"do_{request.get('op')}", None)
        if method is None:
            raise LabError(f"unknown request {request.get('op')!r}")
        return {"ok": True, **method(request)}
    except (LabError, LabTimeout) as error:
        return {"ok": False, "kind": error.kind, "error": str(error)}
    except (KeyError, TypeError, ValueError, OSError) as error:
        took = time.monotonic() - started
        return {"ok": False, "kind": "failed", "error": f"request {request.get('op')!r} failed after {took:.3f} s: {error!r}"}
