"""libcpg's service: process groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Final

from ...proto.service.corosync.cpg import State
from ...proto.service.corosync.messages import Part
from ...proto.service.corosync.results import Address, Code, Confchg
from .codec import Request, addresses
from .mapped import FILES_MAX, MappedError, MappedFile, files_max
from .programs import Host, Program, bytes_of, number_of

INITIAL: Final = 1
"""Flag of a join: the program wants to hear of the ring at once."""
LIST_MAX: Final = 128
"""Entries of each list in libcpg's callbacks, CPG_MEMBERS_MAX: the library copies into arrays of this size without asking."""
NAMES_ONLY, ONE_GROUP, ALL = 1, 2, 3


def pieces(change: Confchg, own: tuple[int, int] | None) -> list[Confchg]:
    """A change as libcpg can take it: at most LIST_MAX entries a list. Processes that have left or joined come in several changes
    one after the other, the last of them complete. Of more members the first are listed, and the program itself (node, pid)."""
    if max(len(change.members), len(change.left), len(change.joined)) <= LIST_MAX:
        return [change]
    steps = [(change.left[k : k + LIST_MAX], ()) for k in range(0, len(change.left), LIST_MAX)]
    joins = [((), change.joined[k : k + LIST_MAX]) for k in range(0, len(change.joined), LIST_MAX)]
    found = []
    here = {*change.members, *(replaced(a) for a in change.left)} - {replaced(a) for a in change.joined}
    for left, joined in [*steps, *joins]:
        here = (here - {replaced(a) for a in left}) | {replaced(a) for a in joined}
        found.append(replace(change, members=cut(tuple(sorted(here)), own), left=left, joined=joined))
    return found or [replace(change, members=cut(change.members, own))]


def replaced(address: Address) -> Address:
    """As it is in a list of members: without a reason."""
    return Address(address.node, address.pid)


def cut(members: tuple[Address, ...], own: tuple[int, int] | None) -> tuple[Address, ...]:
    """The first of a sorted list, and the program itself."""
    if len(members) <= LIST_MAX:
        return members
    first = members[:LIST_MAX]
    if own is None or any(a[:2] == own for a in first) or not any(a[:2] == own for a in members):
        return first
    return (*first[:-1], Address(*own))


class Groups:
    """The service ``cpg``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files, self.files_max = 0, files_max()
        """Files for messages, of all programs."""

    def opened(self, program: Program) -> None:
        self.host.standin.cpg.open(program.number)

    def closed(self, program: Program) -> None:
        for file in program.mapped.values():
            file.close()
        self.files -= len(program.mapped)
        self.host.apply(self.host.standin.cpg.close(program.number))

    def own(self, number: int) -> tuple[int, int] | None:
        """Node and pid of a handle in a group."""
        handle = self.host.standin.cpg.handles.get(number)
        return (self.host.standin.ring.node, handle.process.pid) if handle and handle.process else None

    def asked(self, program: Program, request: Request) -> None:
        host, cpg = self.host, self.host.standin.cpg
        number, name = program.number, request.name
        if name == "mcast":
            host.apply(cpg.mcast(number, bytes_of(request, "data")))
        elif name == "mcast_part":
            self._part(program, request)
        elif name == "join":
            pid, initial = number_of(request, "pid"), bool(number_of(request, "flags") & INITIAL)
            host.apply(cpg.join(number, bytes_of(request, "group"), pid, initial=initial))
        elif name == "leave":
            host.apply(cpg.leave(number))
        elif name == "membership":
            found = cut(host.standin.ring.addresses(bytes_of(request, "group")), self.own(number))
            host.answer(program, name, values={"count": len(found)}, tail=addresses(found))
        elif name == "local_get":
            host.answer(program, name, values={"node": host.standin.ring.node})
        elif name.startswith("iteration_"):
            self._iterate(program, request)
        elif name == "map":
            host.answer(program, name, self._map(program, bytes_of(request, "path")))
        elif name == "unmap":
            file = program.mapped.pop(number_of(request, "number"), None)
            if file is not None:
                file.close()
                self.files -= 1
            host.answer(program, name, Code.OK if file is not None else Code.INVALID_PARAM)
        elif name == "mcast_mapped":
            self._mcast_mapped(program, number_of(request, "number"))
        else:
            host.answer(program, name)

    def _map(self, program: Program, path: bytes) -> Code:
        if len(program.mapped) >= FILES_MAX or self.files >= self.files_max:
            return Code.NO_RESOURCES
        try:
            program.mapped[program.last + 1] = MappedFile(path, program.uid, program.last + 1)
        except MappedError as error:
            text = f"a file of process {program.pid} for its messages: {error}"
            self.host.journal.event(logging.WARNING, "mapped", text, now=time.monotonic_ns())
            return Code.INVALID_PARAM
        program.last += 1
        self.files += 1
        return Code.OK

    def _mcast_mapped(self, program: Program, number: int) -> None:
        """As corosync: unlike a message without a file it has an answer."""
        cpg, file = self.host.standin.cpg, program.mapped.get(number)
        if cpg.handles[program.number].state not in (State.JOINING, State.INSIDE):
            self.host.answer(program, "mcast_mapped", Code.NOT_EXIST)
            return
        try:
            if file is None:
                raise MappedError("a file that nobody has given")
            data = file.message()
        except MappedError:
            self.host.answer(program, "mcast_mapped", Code.INVALID_PARAM)
            return
        self.host.apply(cpg.mcast(program.number, data))

    def _part(self, program: Program, request: Request) -> None:
        try:
            part = Part(number_of(request, "part"))
        except ValueError:
            self.host.answer(program, request.name, Code.INVALID_PARAM)
            return
        data, length = bytes_of(request, "data"), number_of(request, "length")
        self.host.apply(self.host.standin.cpg.mcast_part(program.number, part, length, data))

    def _iterate(self, program: Program, request: Request) -> None:
        host, name = self.host, request.name
        if name == "iteration_initialize":
            found = self._found(number_of(request, "type"), bytes_of(request, "group"))
            given = program.iterate(found) if found is not None else 0
            code = Code.OK if given else Code.INVALID_PARAM if found is None else Code.NO_RESOURCES
            host.answer(program, name, code, {"iteration": given})
            return
        given = number_of(request, "iteration")
        over = program.iterations.get(given)
        if over is None:
            host.answer(program, name, Code.BAD_HANDLE)
        elif name == "iteration_finalize":
            del program.iterations[given]
            host.answer(program, name)
        elif (entry := next(over, None)) is None:
            host.answer(program, name, Code.NO_SECTIONS)
        else:
            group, address = entry
            host.answer(program, name, values={"group": group, "node": address.node, "pid": address.pid})

    def _found(self, kind: int, group: bytes) -> Iterator[tuple[bytes, Address]] | None:
        """As of this call. All iterations of that time share one copy: a program may have many."""
        everybody = self.host.standin.cpg.everybody()
        if kind == NAMES_ONLY:
            return ((name, Address(0, 0)) for name, _ in groupby(everybody, key=itemgetter(0)))
        if kind == ONE_GROUP:
            return (entry for entry in everybody if entry[0] == group)
        return iter(everybody) if kind == ALL else None
