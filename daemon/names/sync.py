"""The directory for programs without an event loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from ...proto.service.directory.entries import NOWHERE, Entry, Place
from ...proto.service.directory.operations import Operation
from ..client.base import Patience
from ..client.common import TIMEOUT_S, program_name, ready
from ..client.errors import ClientError, ConnectionClosed, NotReachable, Timeout
from ..client.ticket import Ticket
from ..directory.wire import Frame
from . import calls
from .base import RETRY_S, SLACK_S, LeaseState, Pages, Persistence, apply_changes, done_of, outcome_of
from .common import open_socket, socket_path
from .errors import UpdateId
from .protocol import NamesProtocol
from .types import Addresses, Answer, Done, NameChange, answer_of

READ_BYTES = 256 * 1024
LOOK_S = 0.001
"""Time for which a kept answer may be returned without reading the reports of the process."""


class SyncLease(LeaseState):
    """An address registered until this connection ends. ``with`` releases it at the end."""

    def __init__(self, directory: SyncDirectory, answer: Frame) -> None:
        super().__init__()
        self._directory = directory
        self._registered(directory._protocol, answer)

    def renew(self) -> None:
        """Renew a lease with a ttl; call it at least twice within the ttl."""
        self._directory._call(self._directory._protocol.ask("renew", lease=self.number))

    def wait_held(self, timeout: float | None = None) -> bool:
        """Wait until the name is this lease's; False: not in time."""
        return self._directory._pump(lambda: self.held or self.ended, timeout) and self.held

    def close(self) -> None:
        """Give the lease back."""
        self._directory._call(self._directory._protocol.ask("release", lease=self.number))

    def __enter__(self) -> SyncLease:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._directory._protocol.ended is None:
            self.close()


class SyncDirectory:
    """A connection to the directory process of this station; made by ``connect_directory_sync``."""

    def __init__(self, sock: socket.socket, protocol: NamesProtocol, timeout: float | None, path: str | None = None) -> None:
        self._socket = sock
        self._protocol = protocol
        self._timeout = timeout
        self._path = path
        self.zones_down: tuple[str, ...] = ()
        """Zones whose names the last ``list`` lacks, because no holder is active."""
        self._looked = 0.0
        self._lock = threading.RLock()

    # ---- look-ups

    def lookup(self, name: str, *, key: str | None = None, fresh: bool = False, timeout: float | None = None) -> Answer:
        """The addresses of a name. key: for selection ``spread``. fresh: the answer includes everything that was acknowledged
        before the call.

        An answer is kept, and returned again until the process reports that it may have changed. Answers for a cyclic name, or
        from a copy that may be stale, are not kept. Raises NoName, NoAddress, NoQuorum, Timeout."""
        if not fresh and self._protocol.kept(name, key) is not None:
            now = time.monotonic()
            if now - self._looked > LOOK_S:
                self._looked = now
                self.poll()
            if (kept := self._protocol.kept(name, key)) is not None:
                return kept
        seconds = self._seconds(timeout)
        return answer_of(self._call(self._protocol.lookup(name, key, fresh, seconds), seconds))

    @property
    def place(self) -> Place:
        """Place of the latest answer. Pass it to ``connect_directory_sync`` for the next connection, and reads never go back."""
        return self._protocol.place

    def list(self, prefix: str = "") -> list[Entry]:
        """All entries, or those of the names that begin with ``prefix`` (a name, or one with a dot at its end)."""
        pages = Pages(prefix)
        while not pages.complete:
            pages.take(self._call(pages.ask(self._protocol)))
        self.zones_down = pages.down
        return pages.found

    def status(self) -> dict[str, Any]:
        """How the process is (docs/directory-service.md)."""
        return self._call(self._protocol.ask("status"))

    def request(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Any other request of the protocol."""
        return self._call(self._protocol.ask(do, **arguments))

    # ---- updates

    def update(self, *operations: Operation, wait: str = "disk", timeout: float | None = None) -> Done:
        """Several operations at once: all or none.

        wait: ``memory``: applied at this station, all members have it; ``disk``: on the disks of a quorum; ``everywhere``:
        applied at every active station. If the connection breaks before the answer, the update is sent again on another
        connection: it has an id, and is applied once. Raises Exists, VersionMismatch, NotPermitted, NoQuorum, Undecided,
        Malformed.
        """
        persistence = Persistence(self._protocol.changing(operations, wait), self._seconds(timeout))
        try:
            return done_of(self._call(persistence.ask(self._protocol), persistence.left()))
        except ClientError as error:
            persistence.after(error)
        while True:
            try:
                with connect_directory_sync(self._path, wait=persistence.left(), timeout=self._timeout, keep=False) as other:
                    return done_of(other._call(persistence.ask(other._protocol), persistence.left()))
            except ClientError as error:
                persistence.after(error)
            time.sleep(RETRY_S)

    def outcome(self, update: UpdateId) -> Done | None:
        """What has become of an update whose id an Undecided has; None: it never happened, or is under way. Raises what it was
        refused with."""
        return outcome_of(self._call(self._protocol.ask("outcome", c=update[0], n=update[1])))

    def set(self, name: str, addresses: Addresses, *, wait: str = "disk", **options: Any) -> Done:
        """Make a name with these addresses, or replace them. options: selection, ttl, meta, zone, new, version."""
        return self.update(calls.set_of(name, addresses, **options), wait=wait)

    def add(self, name: str, addresses: Addresses, *, wait: str = "disk") -> Done:
        """Add addresses, or change their priority and weight."""
        return self.update(calls.add_of(name, addresses), wait=wait)

    def drop(self, name: str, addresses: Addresses, *, wait: str = "disk") -> Done:
        """Remove addresses."""
        return self.update(calls.drop_of(name, addresses), wait=wait)

    def alias(self, name: str, target: str, *, wait: str = "disk", **options: Any) -> Done:
        """Make ``name`` another name of ``target``."""
        return self.update(calls.alias_of(name, target, **options), wait=wait)

    def rm(self, name: str, *, wait: str = "disk", version: Place | None = None) -> Done:
        """Remove a name."""
        return self.update(calls.remove_of(name, version), wait=wait)

    def take(self, name: str) -> str:
        """The next address, by one cursor for all stations."""
        return self.update(calls.take_of(name), wait="memory").text

    def register(
        self, name: str, address: str, *, ttl: float = 0.0, exclusive: bool = False, selection: str = "all", zone: str = ""
    ) -> SyncLease:
        """Add an address that goes when this connection does. ttl: seconds; with it, also when ``renew`` is not called."""
        operation = calls.register_of(name, address, exclusive=exclusive, selection=selection, zone=zone)
        return SyncLease(self, self._call(self._protocol.register(operation, ttl, self._seconds(None))))

    # ---- watches

    def watch(self, subject: str = "", timeout: float | None = None, since: Place | None = None) -> Iterator[NameChange]:
        """All there is, ``listed``, then each change. subject: a name, or the beginning of names with a dot at its end; "": all.
        timeout: longest wait for the next one. since: the place of a change that the program has had: in place of all there is
        come the changes after it, what is gone among them; after a ``gap`` all there is, if they are no longer known. Raises
        Timeout, ConnectionClosed."""
        number, ticket = self._protocol.watch(subject, since)
        try:
            self._call(ticket)
            queue = self._protocol.watches[number]
            while True:
                if not queue and not self._pump(lambda: bool(queue), timeout):
                    raise Timeout(f"waiting for a change of {subject or 'any name'}: nothing after {timeout:g} s")
                yield queue.popleft()
        finally:
            self._protocol.unwatch(number)

    def mirror(self, subject: str = "") -> SyncMirror:
        """A mapping of names to addresses, kept up to date by ``refresh``."""
        return SyncMirror(self, subject)

    # ---- the connection

    def poll(self) -> None:
        """Take what has come, without waiting: events of leases. Raises ConnectionClosed."""
        while self._protocol.ended is None and ready(self._socket, 0.0):
            self._receive()
        if self._protocol.ended is not None:
            raise self._protocol.ended

    def close(self) -> None:
        """Close; leases end with it."""
        self._protocol.lost(ConnectionClosed("the connection was closed"))
        self._socket.close()

    def __enter__(self) -> SyncDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _seconds(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _call(self, ticket: Ticket[Frame], timeout: float | None = None) -> Frame:
        seconds = self._seconds(timeout)
        if not self._pump(lambda: ticket.settled, None if seconds is None else seconds + SLACK_S):
            raise Timeout(f"the directory process has not answered after {seconds:g} s")
        return ticket.result()

    def _pump(self, until: Any, timeout: float | None) -> bool:
        """Write and read until the condition holds; False: not in time. Raises what ended the connection."""
        deadline = None if timeout is None else time.monotonic() + timeout
        protocol = self._protocol
        with self._lock:
            while not until():
                if data := protocol.take():
                    self._send(data)
                if protocol.ended is not None:
                    raise protocol.ended
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if ready(self._socket, left):
                    self._receive()
            if data := protocol.take():
                self._send(data)
            return True

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._protocol.lost(ConnectionClosed(f"the connection to the directory process broke: {error.strerror or error}"))

    def _receive(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            self._protocol.lost(ConnectionClosed(f"the connection to the directory process broke: {error.strerror or error}"))
            return
        if data:
            self._protocol.receive(data)
        else:
            self._protocol.lost(None)


class SyncMirror(Mapping[str, Entry]):
    """The entries of a watch as a mapping. ``refresh`` takes what has come; it never waits."""

    def __init__(self, directory: SyncDirectory, subject: str) -> None:
        self._entries: dict[str, Entry] = {}
        self._directory = directory
        self._number, ticket = directory._protocol.watch(subject)
        directory._call(ticket)
        self._queue = directory._protocol.watches[self._number]
        if not directory._pump(lambda: any(change.kind == "listed" for change in self._queue), directory._timeout):
            self.close()
            raise Timeout(f"the names under {subject or 'all'} have not come after {directory._timeout:g} s")
        self.refresh()

    def close(self) -> None:
        """Follow no more."""
        self._directory._protocol.unwatch(self._number)

    def refresh(self) -> None:
        """Take the changes that are here."""
        self._directory.poll()
        apply_changes(self._entries, self._queue)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def connect_directory_sync(
    path: str | None = None,
    *,
    name: str | None = None,
    wait: float | None = 0.0,
    timeout: float | None = TIMEOUT_S,
    place: Place = NOWHERE,
    keep: bool = True,
) -> SyncDirectory:
    """Connect to the directory process of this station.

    path: its socket; default $ZENJUN_DIRECTORY, else directory.sock beside $ZENJUN_SOCKET, else /run/zenjun/directory.sock.
    wait: seconds to keep trying while no process answers (None: forever). timeout: default for each call, seconds.
    place: no answer may be from before it: ``place`` of a former connection, also of one to another station's process.
    keep: answers are kept, and returned again until the process reports that they may have changed. Raises NotReachable.
    """
    where = socket_path(path)
    patience = Patience(wait)
    while True:
        try:
            sock = open_socket(where)
            break
        except NotReachable as error:
            time.sleep(patience.after(error))
    protocol = NamesProtocol(program_name() if name is None else name, place, keep)
    directory = SyncDirectory(sock, protocol, timeout, where)
    try:
        directory._call(protocol.hello)
    except BaseException:
        sock.close()
        raise
    return directory
