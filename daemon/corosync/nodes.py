"""libcfg's service: nodes and their addresses, the end of the stand-in, reading the configuration again."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any, Final

from ...proto.service.corosync.results import Code
from .codec import Request, shutdown_asked
from .programs import Host, Program, bytes_of, number_of
from .table import LINK_BYTES, LINKS_MAX

REQUEST, REGARDLESS, IMMEDIATE = 0, 1, 2
"""Flags of a shutdown: programs may object, are told, are not asked."""
YES: Final = 1
TIMEOUT_KEY: Final = "cfg.shutdown_timeout"
TIMEOUT_MS: Final = 5000
_LINK: Final = struct.Struct("<4BI256s256s")
_ADDRESS_BYTES: Final = 16


@dataclass(slots=True)
class Shutdown:
    """One that is wanted and not decided."""

    by: Program
    flags: int
    missing: set[int]
    """Programs that have not answered."""
    alarm: Any


def packed(address: str) -> tuple[int, bytes] | None:
    """Family and bytes of an address or of a host's name; None: it cannot be resolved."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        try:
            family, *_, where = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)[0]
        except OSError:
            return None
        return int(family), socket.inet_pton(family, str(where[0]))
    return (socket.AF_INET if found.version == 4 else socket.AF_INET6), found.packed


class Nodes:
    """The service ``cfg``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.tracking: set[int] = set()
        """Programs that are asked before an end."""
        self._shutdown: Shutdown | None = None
        self._addresses: dict[int, tuple[int, bytes]] = {}
        self._resolving = 0
        """How often that has been begun."""
        self.resolve()

    def resolve(self) -> None:
        """Take the nodelist's addresses. Names are resolved once, here."""
        self._take({node.id: packed(node.address) for node in self.host.conf.nodes})

    def resolve_later(self) -> None:
        """The same while programs are served: what resolves names may take longer than a node that hangs is given. Until it is
        done the addresses of before are given."""
        self._resolving += 1
        number, nodes = self._resolving, [(node.id, node.address) for node in self.host.conf.nodes]
        loop = asyncio.get_running_loop()

        def resolve() -> None:
            found = {node: packed(address) for node, address in nodes}
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._resolved, number, found)

        threading.Thread(target=resolve, name=f"addresses of reload {number}", daemon=True).start()

    def _resolved(self, number: int, found: dict[int, tuple[int, bytes] | None]) -> None:
        if number == self._resolving:
            self._take(found)

    def _take(self, found: dict[int, tuple[int, bytes] | None]) -> None:
        for node, address in found.items():
            if address is None:
                self.host.journal.warning("address", f"the address of node {node} cannot be resolved")
        self._addresses = {node: address for node, address in found.items() if address is not None}

    def opened(self, program: Program) -> None:
        pass

    def closed(self, program: Program) -> None:
        self.tracking.discard(program.number)
        if self._shutdown is not None and self._shutdown.by is program:
            self._shutdown.alarm.cancel()
            self._shutdown = None
        self._replied(program, yes=True)

    def asked(self, program: Program, request: Request) -> None:
        host, name, standin = self.host, request.name, self.host.standin
        if name == "local_get":
            host.answer(program, name, values={"node": standin.ring.node})
        elif name == "node_addresses":
            self._answer_addresses(program, number_of(request, "node") or standin.ring.node)
        elif name == "node_status":
            self._answer_status(program, number_of(request, "node"), number_of(request, "version"))
        elif name == "ring_status":
            own = host.conf.node_of(host.station).address.encode()
            text = (b"0 " + own)[:127].ljust(128, b"\0").ljust(LINKS_MAX * 128, b"\0") + b"OK".ljust(LINKS_MAX * 512, b"\0")
            host.answer(program, name, values={"count": 1}, tail=text)
        elif name == "kill_node":
            host.apply(standin.kill(program.number, number_of(request, "node"), bytes_of(request, "reason").rstrip(b"\0")))
        elif name == "reload":
            host.apply(standin.reload(program.number))
        elif name == "trackstart":
            self.tracking.add(program.number)
            host.answer(program, name)
        elif name == "trackstop":
            self.tracking.discard(program.number)
            host.answer(program, name)
        elif name == "try_shutdown":
            self._ask(program, number_of(request, "flags"))
        elif name == "reply_shutdown":
            code = Code.OK if self._waits_for(program) else Code.NOT_EXIST
            host.answer(program, name, code)
            self._replied(program, yes=number_of(request, "response") == YES)
        else:
            host.answer(program, name)  # reopen_logs: there is no file, the journal is the service manager's

    # ---- nodes

    def _answer_addresses(self, program: Program, node: int) -> None:
        found = self._addresses.get(node)
        if found is None:
            self.host.answer(program, "node_addresses", Code.NOT_EXIST)
            return
        family, address = found
        tail = address.ljust(_ADDRESS_BYTES, b"\0")
        self.host.answer(program, "node_addresses", values={"family": family, "count": 1}, tail=tail)

    def _answer_status(self, program: Program, node: int, version: int) -> None:
        host, ring = self.host, self.host.standin.ring
        """As corosync: a node that is not in the nodelist has no link and is not reachable."""
        if version != 1:
            host.answer(program, "node_status", Code.INVALID_PARAM)
            return
        found = next((n for n in host.conf.nodes if n.id == node), None)
        reached = int(node in ring.table)
        where = found.address.encode()[:255] if found else b""
        ends = where, b""  # corosync's transports but knet have the other node's address first, and none behind it
        if host.conf.get("totem", "transport") in ("", "knet"):
            ends = host.conf.node_of(host.station).address.encode()[:255], where
        link = _LINK.pack(int(found is not None), reached, 0, 0, host.mtu if found else 0, *ends)
        values = {"version": 1, "node": node, "reachable": reached}
        host.answer(program, "node_status", values=values, tail=link.ljust(8 * LINK_BYTES, b"\0"))

    # ---- the end

    def _ask(self, program: Program, flags: int) -> None:
        """corosync_cfg_try_shutdown: ask the programs that track, all but the one that wants it."""
        if self._shutdown is not None:
            self.host.answer(program, "try_shutdown", Code.EXIST)
            return
        missing = self.tracking - {program.number}
        if flags == IMMEDIATE or not missing:
            self._end(program)
            return
        found = self.host.maps[0].value(TIMEOUT_KEY)
        seconds = (found if isinstance(found, int) and found else TIMEOUT_MS) / 1000
        self._shutdown = Shutdown(program, flags, missing, self.host.after(seconds, self._decide))
        self.host.event(sorted(missing), shutdown_asked(flags))
        if flags == REGARDLESS:
            self._decide()

    def _waits_for(self, program: Program) -> bool:
        return self._shutdown is not None and program.number in self._shutdown.missing

    def _replied(self, program: Program, *, yes: bool) -> None:
        shutdown = self._shutdown
        if shutdown is None or program.number not in shutdown.missing:
            return
        if not yes:
            self._decide()
            return
        shutdown.missing.discard(program.number)
        if not shutdown.missing:
            self._decide()

    def _decide(self) -> None:
        """All have agreed, or one has not, or the time is over."""
        shutdown, self._shutdown = self._shutdown, None
        if shutdown is None:
            return
        shutdown.alarm.cancel()
        if shutdown.missing and shutdown.flags == REQUEST:
            self.host.answer(shutdown.by, "try_shutdown", Code.BUSY)
        else:
            self._end(shutdown.by)

    def _end(self, by: Program) -> None:
        self.host.answer(by, "try_shutdown")
        self.host.stop(f"process {by.pid} wants it (corosync_cfg_try_shutdown)")
