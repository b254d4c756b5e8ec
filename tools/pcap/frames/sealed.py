"""Frames with an envelope, as a tool without the key sees them: what the envelope says, and what follows unless it is hidden.

Tags are not checked: for that the cluster's key would be needed. Nothing here raises for what is in a frame.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ....proto.envelope import ENCRYPTED, ENVELOPE, PROBE, TAG_BYTES, VERSION, Envelope, Hello, Suite, What
from ....proto.links import Said
from ....proto.wire import STATIONS_MAX

CRC_BYTES: Final = 4
"""In place of a tag, of suite 0."""
SUITES: Final = {
    int(Suite.NONE): "not sealed",
    int(Suite.AES_256_GCM): "authenticated",
    Suite.AES_256_GCM + ENCRYPTED: "encrypted",
}


class Sealed(NamedTuple):
    """A frame with an envelope."""

    envelope: dict[str, Any]
    """Its fields as JSON has them."""
    pdu: bytes | None
    """The PDU, with the tag and what follows as padding; None: it is hidden, or the frame is a HELLO."""
    hello: dict[str, Any] | None
    links: dict[str, Any] | None = None
    """What LINKS says; empty: it is hidden, or malformed."""
    probe: dict[str, Any] | None = None
    """What PROBE says; empty: as there."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has a frame without a PDU."""
        said = {"hello": self.hello, "links": self.links, "probe": self.probe}
        return {"envelope": self.envelope} | {name: value for name, value in said.items() if value is not None}


def sealed(frame: bytes) -> Sealed | None:
    """What follows the link-layer header; None: it has no envelope, or one that cannot be."""
    envelope = Envelope.read(frame)
    if envelope is None or envelope.version != VERSION or envelope.suite not in SUITES:
        return None
    is_plain = envelope.suite == Suite.NONE
    end = ENVELOPE.size + envelope.length + (CRC_BYTES if is_plain else TAG_BYTES)
    known = (What.LINKS, What.PROBE, What.PIECE) if is_plain else tuple(What)
    if (
        envelope.what not in known
        or bool(envelope.piece) != (envelope.what == What.PIECE)
        or not 1 <= envelope.tx <= STATIONS_MAX
        or end > len(frame)
    ):
        return None
    body = frame[ENVELOPE.size : ENVELOPE.size + envelope.length]
    plain: dict[str, Any] = {
        "what": What(envelope.what).name,
        "tx": envelope.tx,
        "suite": SUITES[envelope.suite],
        "length": envelope.length,
        "session": envelope.session.hex(),
        "number": envelope.number,
        "cluster": f"{envelope.cluster:08x}",
    }
    if envelope.what == What.HELLO:
        return Sealed(plain, None, _hello(Hello.read(envelope, body)))
    if envelope.what == What.LINKS:
        return Sealed(plain, None, None, _links(Said.read(body) if not envelope.suite & ENCRYPTED else None))
    if envelope.what == What.PROBE:
        return Sealed(plain, None, None, None, _probe(body if not envelope.suite & ENCRYPTED else b""))
    if envelope.what == What.PIECE:
        place, count = envelope.piece >> 8, envelope.piece & 0xFF
        return Sealed(plain | {"piece": place + 1, "pieces": count}, None, None)
    return Sealed(plain, frame[ENVELOPE.size :] if envelope.suite == Suite.AES_256_GCM else None, None)


def _links(said: Said | None) -> dict[str, Any]:
    if said is None:
        return {}
    heard = [station for station in range(1, len(said.frames) + 1) if said.hears_station(station)]
    return {
        "link": said.number,
        "hears": heard,
        "sent": said.sent,
        "frames": list(said.frames),
        "largest": list(said.largest),
        "rounds": list(said.rounds),
    }


def _probe(body: bytes) -> dict[str, Any]:
    if len(body) < PROBE.size:
        return {}
    link, answer, number, size, _ = PROBE.struct.unpack_from(body)
    return {"link": link, "round": number, "bytes": size, "answer": bool(answer)}


def _hello(hello: Hello | None) -> dict[str, Any]:
    """No session and no challenge in full: what is shown may be passed on."""
    if hello is None:
        return {"complete": False}
    return {
        "complete": True,
        "next": hello.next,
        "incarnation": hello.incarnation,
        "instance": hello.instance,
        "age_ms": hello.age_ms,
        "fingerprint": f"{hello.fingerprint:08x}",
        "keys": [f"{key:08x}" for key in hello.keys],
        "part": hello.part,
        "proven": {str(16 * hello.part + i): f"{echo.proven:08x}" for i, echo in enumerate(hello.echoes, 1) if echo.proven},
    }


def pieces(found: Sealed) -> list[str]:
    """The line of a frame whose PDU is not readable, without its time."""
    e = found.envelope
    if found.links is not None:
        hears = ", ".join(map(str, found.links.get("hears", ()))) or "nobody"
        said = (
            [f"link {found.links['link']}", f"hears {hears}", f"sent {found.links['sent']}"] if found.links else ["not readable"]
        )
        return [f"station {e['tx']}", "LINKS   ", *said]
    if found.probe is not None:
        said = (
            [f"link {found.probe['link']}", f"round {found.probe['round']}", f"{found.probe['bytes']} B"] if found.probe else []
        )
        return [f"station {e['tx']}", "PROBE   ", *(said or ["not readable"])]
    if "piece" in e:
        return [f"station {e['tx']}", "PIECE   ", f"{e['piece']} of {e['pieces']}", f"number {e['number']}", f"{e['length']} B"]
    if found.hello is None:
        return [f"station {e['tx']}", "ENCRYPTED", f"session {e['session']}", f"number {e['number']}", f"{e['length']} B"]
    out = [f"station {e['tx']}", "HELLO   ", f"session {e['session']}"]
    if not found.hello["complete"]:
        return [*out, "MALFORMED"]
    hello = found.hello
    proven = ", ".join(f"station {s}: {session}" for s, session in hello["proven"].items())
    return [
        *out,
        f"next {hello['next']}",
        f"instance {hello['instance']}",
        f"key {','.join(hello['keys'])}",
        f"reads {proven or 'nobody'}",
    ]
