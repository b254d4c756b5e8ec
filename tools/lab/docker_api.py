"""Docker Engine by its HTTP interface on a Unix socket: the dozen calls that a lab of containers needs.

Paths carry no version, so the engine answers in its newest one; only what has been there since 1.24 is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .errors import LabError, LabNotFound, LabTimeout, LabUnsupported

HOST_VARIABLE: Final = "DOCKER_HOST"
DEFAULT: Final = "unix:///var/run/docker.sock"
_CALL_S: Final = 30.0


class NoEngine(LabUnsupported):
    """No Docker Engine answers."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """One Docker Engine of this machine."""

    def __init__(self, host: str) -> None:
        """host: ``unix:///path/of/socket``; nothing is asked yet. Raises LabUnsupported for any other kind of address."""
        if not host.startswith("unix://"):
            raise LabUnsupported(f"{HOST_VARIABLE}={host}: faults need an engine on this machine, with an address like {DEFAULT}")
        self.host = host
        self._path = host.removeprefix("unix://")

    @classmethod
    def find(cls) -> Engine:
        """The engine of $DOCKER_HOST, or at its usual place. Raises NoEngine when none answers."""
        engine = cls(os.environ.get(HOST_VARIABLE) or DEFAULT)
        try:
            engine.call("GET", "/_ping", timeout_s=5.0)
        except LabError as error:
            raise NoEngine(f"no Docker Engine answers at {engine.host} ({error}): start it, or set {HOST_VARIABLE}") from error
        return engine

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, timeout_s: float = _CALL_S
    ) -> Any:
        """One request; returns the decoded JSON, or the text when it is none.

        query: values that are no text are sent as JSON. Raises LabNotFound (404), LabTimeout, LabError with the engine's words.
        """
        with self._open(method, path, body, query, timeout_s) as response:
            data = response.read()
        if response.headers.get_content_type() == "application/json" and data:
            return json.loads(data)
        return data.decode(errors="replace")

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: Any, query: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (query or {}).items()}
        target = path + (f"?{urllib.parse.urlencode(words)}" if words else "")
        connection = _Connection(self._path, timeout_s)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response)
            yield response
        except TimeoutError:
            raise LabTimeout(f"the Docker Engine has not answered {method} {path} within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise LabError(f"Docker Engine: {getattr(error, 'strerror', None) or error!r}") from error
        finally:
            connection.close()

    # Containers

    def containers(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """All containers, running or not, that have every one of these labels (``name`` or ``name=value``)."""
        found: list[dict[str, Any]] = self.call(
            "GET", "/containers/json", query={"all": "true", "filters": {"label": list(labels)}}
        )
        return found

    def inspect(self, container: str) -> dict[str, Any]:
        """Everything about one container."""
        found: dict[str, Any] = self.call("GET", f"/containers/{container}/json")
        return found

    def create(self, name: str, settings: Mapping[str, Any]) -> str:
        """Make a container; returns its id."""
        with _undisturbed():
            return str(self.call("POST", "/containers/create", settings, query={"name": name})["Id"])

    def act(self, container: str, action: str, **query: Any) -> None:
        """start, stop (t: seconds of grace), restart, pause, unpause, kill (signal)."""
        self.call("POST", f"/containers/{container}/{action}", query=query)

    def remove(self, container: str) -> None:
        """Kill a container and remove it with its own volumes; no error when it is gone already."""
        with contextlib.suppress(LabNotFound):
            self.call("DELETE", f"/containers/{container}", query={"force": "true", "v": "true"})

    def log(self, container: str) -> bytes:
        """What the container's program has written so far, both its outputs in one."""
        with self._open("GET", f"/containers/{container}/logs", None, {"stdout": "1", "stderr": "1"}, _CALL_S) as response:
            data = response.read()
        parts, at = [], 0
        while at + 8 <= len(data):
            (size,) = struct.unpack_from(">I", data, at + 4)
            parts.append(data[at + 8 : at + 8 + size])
            at += 8 + size
        return b"".join(parts)

    # Networks, volumes

    def network(self, name: str) -> dict[str, Any]:
        """One network by name or id. Raises LabNotFound."""
        found: dict[str, Any] = self.call("GET", f"/networks/{name}")
        return found

    def networks(self, label: str) -> list[dict[str, Any]]:
        """All networks with this label."""
        found: list[dict[str, Any]] = self.call("GET", "/networks", query={"filters": {"label": [label]}})
        return found

    def create_network(self, name: str, labels: Mapping[str, str], mtu: int) -> str:
        """Make a bridge network that leads nowhere; returns its id."""
        settings = {
            "Name": name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": True,
            "Labels": dict(labels),
            "Options": {"com.docker.network.driver.mtu": str(mtu)},
        }
        with _undisturbed():
            return str(self.call("POST", "/networks/create", settings)["Id"])

    def remove_network(self, name: str) -> None:
        """Remove a network that no container uses; no error when it is gone already."""
        with contextlib.suppress(LabNotFound):
            self.call("DELETE", f"/networks/{name}")

    def remove_volumes(self, label: str) -> None:
        """Remove all volumes with this label."""
        for volume in self.call("GET", "/volumes", query={"filters": {"label": [label]}})["Volumes"] or []:
            with contextlib.suppress(LabNotFound):
                self.call("DELETE", f"/volumes/{volume['Name']}", query={"force": "true"})

    def has_image(self, name: str) -> bool:
        """Whether the engine has an image of this name."""
        try:
            self.call("GET", f"/images/{name}/json")
        except LabNotFound:
            return False
        return True


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Take Ctrl-C after the block only: no command would look for what the engine is making when its caller ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _refusal(response: http.client.HTTPResponse) -> LabError:
    data = response.read()
    try:
        text = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        text = data.decode(errors="replace").strip() or f"status {response.status}"
    kind = LabNotFound if response.status == http.client.NOT_FOUND else LabError
    return kind(f"Docker Engine: {text}")
