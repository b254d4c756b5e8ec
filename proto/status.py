"""The status of an engine: the protocol's part of the object in docs/status.md, which ``daemon/status.py`` completes. It reads
the engine and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .core import Medium, Peer
from .engineconfig import MS
from .openpdu import mac_text
from .peerstate import PeerState

if TYPE_CHECKING:
    from .engine import Engine


def engine_status(engine: Engine, at: int) -> dict[str, Any]:
    """JSON-able. at: monotonic nanoseconds, not before the engine's last input."""
    core, n = engine.core, engine.config.stations
    peers = [engine.parts_core.peer(index) for index in range(n)]
    own = peers[core.index]
    fence = core.fence() if engine.fenced else None
    counted, position, digest = core.digest()
    in_flight = own.top - own.min_al if engine.instance else 0
    others = [p.free_buffers // n for i, p in enumerate(peers) if i != core.index and p.member]
    return {
        "cluster": engine.config.cluster,
        "station": engine.config.station,
        "stations": n,
        "host": engine.config.host_name,
        "instance": engine.instance or engine.last_instance,
        "incarnation": engine.incarnation,
        "medium": Medium(engine.config.medium).name.lower(),
        "reset": engine.medium.status(),
        "state": engine_state(engine),
        "blocked": [
            {"station": station, "reason": reason, "since_ms": (at - since) // MS}
            for station, (reason, since) in sorted(engine.watch.blocked.items())
        ],
        "fence": fence
        and {
            "station": fence.station + 1,
            "position": fence.position,
            "own": f"{fence.own:016x}",
            "theirs": f"{fence.theirs:016x}",
        },
        "window": {
            "frames": engine.config.window_frames,
            "in_flight": in_flight,
            "room": max(0, min([engine.config.window_frames, *others]) - in_flight) if engine.instance else 0,
        },
        "positions": {**core.positions()._asdict(), "clock": core.clock},
        "digest": {"instance": counted, "position": position, "value": f"{digest:016x}"},
        "peers": [_peer_status(report) for report in peer_reports(engine, at)],
        "matrix": core.matrix() if engine.instance else None,
        "counters": {"core": core.counters()},
        "drops": core.drops(),
        "memory_bytes": {"core": core.memory_bytes, "messages": core.assembling_bytes},
        "uptime_ms": (at - engine.began_ns) // MS,
        **_membership_status(engine, at),
        "opening": {
            "state": engine.opening.state.name.lower(),
            "highest": engine.opening.highest,
            "malformed": engine.opening.malformed,
            "unbelieved": engine.opening.unbelieved,
            "moves": dict(engine.opening.moves),
            "conflicts": engine.opening.rivals.status(at),
        },
    }


def engine_state(engine: Engine) -> str:
    """``state`` of docs/status.md, as far as the protocol knows it."""
    if engine.fenced:
        return "fenced"
    if engine.instance:
        return "open" if engine.membership.has_quorum else "blocked"
    return "opening"


def _membership_status(engine: Engine, now: int) -> dict[str, Any]:
    """The members, and the peer states that each station keeps."""
    membership, n = engine.membership, engine.config.stations
    states: dict[str, dict[str, str] | None] = {}
    for station in range(1, n + 1):
        if station == engine.config.station:
            states[str(station)] = {str(k): state.name for k, state in membership.peer_states.items()}
            continue
        peer = engine.parts_core.peer(station - 1)
        row = None
        if engine.instance and peer.instance and station in membership.members:
            row = {str(k): letter_of(peer.state >> (k - 1) & 1, peer.trans >> (k - 1) & 1) for k in range(1, n + 1)}
        states[str(station)] = row
    return {
        "members": [[k, membership.incarnations[k - 1]] for k in membership.members] if engine.instance else [],
        "quorum": {
            "needed": engine.quorum.needed,
            "required": list(engine.quorum.required),
            "have": bool(engine.instance) and membership.has_quorum,
        },
        "membership": {
            "letters": states,
            "waiting": [
                {"station": engine.config.station, "for": k, "reason": reason, "since_ms": (now - since) // MS}
                for k, reason, since in membership.waiting()
            ]
            if engine.instance
            else [],
            "proposed": membership.proposed if engine.instance else 0,
            "changes": membership.changes,
            "near_misses": engine.silence.near_misses,
            "late": engine.silence.late,
            "last_change_ms": (now - membership.last_change_ns) // MS if engine.instance else 0,
            "moves": dict(membership.moves),
        },
    }


class PeerReport(NamedTuple):
    """What one station knows of another one, or of itself."""

    station: int
    """1..n"""
    is_self: bool
    host: str | None
    """Host name; None: not known."""
    mac: bytes
    state: str
    """A word of docs/status.md: self, up, never seen, out, fenced, or why the station is waited for."""
    heard_ms: int | None
    """Since the last frame from it; None: never, or it is this station."""
    incarnation: int | None
    """None: not known."""
    frame_max: int
    """Bytes of the largest PDU that it takes."""
    peer_state: str | None
    """How this station sees it (``PeerState``: A, AS, …); None: not at all."""
    core: Peer


def peer_reports(engine: Engine, now: int) -> list[PeerReport]:
    """All stations, in the order of their numbers. now: monotonic nanoseconds, not before the engine's last input."""
    return [_peer_report(engine, now, index) for index in range(engine.config.stations)]


def _peer_report(engine: Engine, now: int, index: int) -> PeerReport:
    peer, station, is_self = engine.parts_core.peer(index), index + 1, index == engine.core.index
    state = engine.membership.peer_states.get(station)
    return PeerReport(
        station=station,
        is_self=is_self,
        host=engine.opening.host_of(station),
        mac=engine.opening.mac if is_self else peer.mac,
        state="self" if is_self else _state_of(engine, station, peer),
        heard_ms=None if is_self or not peer.heard_ns else (now - peer.heard_ns) // MS,
        incarnation=engine.incarnation if is_self else peer.incarnation or None,
        frame_max=engine.opening.frame_max if is_self else peer.frame_max,
        peer_state=state.name if state is not None else None,
        core=peer,
    )


def _state_of(engine: Engine, station: int, peer: Peer) -> str:
    """How another station is, in a word."""
    blocked = engine.watch.blocked
    if peer.fenced:
        return "fenced"
    if station in blocked and (peer.member or not engine.instance or blocked[station][0] == "joining"):
        return blocked[station][0]
    if engine.instance and not peer.member:
        return "out" if engine.membership.last_incarnation(station) else "never seen"
    return "up" if engine.instance or engine.opening.host_of(station) is not None else "never seen"


def _peer_status(report: PeerReport) -> dict[str, Any]:
    peer = report.core
    return {
        "station": report.station,
        "self": report.is_self,
        "host": report.host,
        "mac": mac_text(report.mac) if any(report.mac) else None,
        "state": report.state,
        "heard_ms": report.heard_ms,
        "incarnation": report.incarnation,
        "req": peer.req,
        "top": peer.top,
        "base": peer.base,
        "min_al": peer.min_al,
        "acked": peer.acked,
        "ordered": peer.ordered,
        "gaps": peer.gaps,
        "free_buffers": peer.free_buffers,
        "frame_max": report.frame_max,
        "clock": peer.clock,
    }


def letter_of(state: int, trans: int) -> str:
    """How a station sees another one, by the bits of STATE and TRANS in its CONFIRM."""
    if state:
        return PeerState.AS.name if trans else PeerState.S.name
    return PeerState.SA.name if trans else PeerState.A.name
