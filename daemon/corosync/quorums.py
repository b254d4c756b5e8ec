"""The services of libquorum and libvotequorum."""

from __future__ import annotations

from typing import Final

from ...proto.service.corosync.results import Code
from ...proto.service.corosync.tracking import Track
from .codec import DEAD, MEMBER, Request, Value
from .programs import Host, Program, number_of

QUORUM_SET: Final = 1
"""Type of quorum: there is a provider."""
TWO_NODE, QUORATE, WAIT_FOR_ALL, AUTO_TIE_BREAKER = 1, 2, 4, 16
"""Flags of votequorum_getinfo."""
MODELS: Final = (0, 1)


class Quorums:
    """The service ``quorum``."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def opened(self, program: Program) -> None:
        self.host.standin.trackers.open(program.number, votes=False)

    def closed(self, program: Program) -> None:
        self.host.standin.trackers.close(program.number)

    def asked(self, program: Program, request: Request) -> None:
        host, name = self.host, request.name
        trackers = host.standin.trackers
        if name == "trackstart":
            host.apply(trackers.track(program.number, Track(number_of(request, "flags") & 7)))
        elif name == "trackstop":
            host.apply(trackers.stop(program.number))
        elif name == "getquorate":
            host.answer(program, name, values={"quorate": int(host.standin.votequorum.quorate)})
        elif name == "gettype":
            host.answer(program, name, values={"type": QUORUM_SET})
        else:
            model = number_of(request, "model")
            if model in MODELS:
                program.model = trackers.handles[program.number].model = model
            code = Code.OK if model in MODELS else Code.INVALID_PARAM
            host.answer(program, name, code, {"type": QUORUM_SET})


class Votequorums:
    """The service ``votequorum``."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def opened(self, program: Program) -> None:
        self.host.standin.trackers.open(program.number, votes=True)

    def closed(self, program: Program) -> None:
        self.host.standin.trackers.close(program.number)

    def asked(self, program: Program, request: Request) -> None:
        host, name, standin = self.host, request.name, self.host.standin
        if name == "getinfo":
            values = self.info(number_of(request, "node") or standin.ring.node)
            host.answer(program, name, Code.OK if values else Code.NOT_EXIST, values)
        elif name == "setexpected":
            host.apply(standin.set_expected(program.number, number_of(request, "expected")))
        elif name == "setvotes":
            host.apply(standin.set_votes(program.number, number_of(request, "node"), number_of(request, "votes")))
        elif name == "trackstart":
            program.context = number_of(request, "context")
            host.apply(standin.trackers.track(program.number, Track(number_of(request, "flags") & 7)))
        elif name == "trackstop":
            host.apply(standin.trackers.stop(program.number))
        else:
            host.answer(program, "status", Code.NOT_SUPPORTED)

    def info(self, node: int) -> dict[str, Value] | None:
        """What votequorum_getinfo says of a node; None: it has not been seen."""
        v = self.host.standin.votequorum
        if node not in v.votes:
            return None
        options = {
            TWO_NODE: v.config.two_node,
            QUORATE: v.quorate,
            WAIT_FOR_ALL: v.config.waits_for_all,
            AUTO_TIE_BREAKER: v.config.auto_tie_breaker,
        }
        return {
            "node": node,
            "state": MEMBER if node in v.members else DEAD,
            "votes": v.votes[node],
            "expected": v.expected,
            "highest": v.expected,
            "total": v.total,
            "quorum": v.quorum,
            "flags": sum(flag for flag, is_on in options.items() if is_on),
        }
