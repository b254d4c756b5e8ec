"""The envelope of a frame that proves who sends it: its fields, HELLO, and the checks of a receiver.

Nothing here knows a cipher: the caller passes in the function that checks a tag. The simulation runs this module, and the C code
of the data path is compared with it.

All integers are unsigned and in network byte order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum, auto
from typing import Final

from .wire import HEADER, SEQUENCED, STATIONS_MAX, Field, Flag, Kind, Layout

VERSION: Final = 2
TAG_BYTES: Final = 16
SESSION_BYTES: Final = 32
WINDOW: Final = 8192
"""Numbers below the highest one seen that are still told apart: re-ordering of so many frames loses none (gotatun#146)."""
KEYS_MAX: Final = 4
ECHOES_PER_PART: Final = 16
"""Stations that one HELLO frame speaks about, so that it fits the least MTU. A HELLO of more stations has several parts."""


class What(IntEnum):
    """What an envelope carries."""

    PDU = 1
    HELLO = 2
    LINKS = 3
    PROBE = 4
    PIECE = 5


class Suite(IntEnum):
    """How frames are sealed. ``ENCRYPTED`` is added where the body is hidden as well."""

    NONE = 0
    AES_256_GCM = 1


ENCRYPTED: Final = 16

ENVELOPE: Final = Layout(
    "envelope",
    (
        Field("cluster", 4, "CRC-32 of the cluster name, as in a PDU: the kernel's filter looks at it"),
        Field("version", 1, "2; a frame without an envelope has 1 here"),
        Field("what", 1, "what the body is: 1 PDU, 2 HELLO, 3 LINKS, 4 PROBE, 5 PIECE"),
        Field("tx", 1, "station that put the frame on the wire, 1..n; the PDU names the one whose PDU it is"),
        Field("suite", 1, "0 none; 1 AES-256-GCM; 16 more: the body is encrypted"),
        Field("length", 2, "bytes of the body; the tag follows it, then padding"),
        Field("piece", 2, "PIECE: its place, from 0, and how many the PDU has, a byte each; else 0"),
        Field("session", 4, "first bytes of the session under which tx seals; suite 0: of a random number, drawn at its start"),
        Field(
            "number", 8, "of the frame in its session: from 1, one more for every frame sealed; HELLO: id of the key of its tag"
        ),
    ),
    "Before the body of every frame of a cluster whose frames prove their sender. A tag of 16 bytes follows the body.",
)

HELLO: Final = Layout(
    "hello",
    (
        Field("hello_session", 32, "the session that this station seals under, or is about to: random bytes"),
        Field("challenge", 8, "random; who sends it back within 2 s is alive now"),
        Field("clock", 8, "wall clock, ns since 1970: which of two HELLOs is later, and nothing else"),
        Field("next", 8, "number of the next frame under this session: what is older is not read"),
        Field("boot", 8, "random number that the daemon draws when it starts"),
        Field("incarnation", 4, "of this life of the daemon"),
        Field("instance", 4, "instance that the station is in, 0: in none"),
        Field("fingerprint", 4, "CRC-32 of the options that must be equal in the whole cluster"),
        Field("age_ms", 4, "how long the daemon has been running"),
        Field("link", 1, "number of the link, from 1"),
        Field("part", 1, "which 16 stations the echoes are about, from 0: echo i is station 16 * part + i + 1's"),
        Field("stations", 1, "n: stations of the roster"),
        Field("keys", 1, "number of key ids, 1..4"),
        Field("sending", 1, "which of them this station seals with, from 0"),
        Field("pad", 3, "0"),
    ),
    "HELLO body, followed by `keys` ids of 4 bytes and the echoes. Its tag is HMAC-SHA-256, cut to 16 bytes.",
)

ECHO: Final = Layout(
    "echo",
    (
        Field("proven", 4, "first bytes of that station's session that is proven here, 0: none"),
        Field("echo", 8, "one of its challenges that was heard, 0: none"),
        Field("other", 8, "another one of them, 0: none other"),
    ),
    "What a HELLO says to one station.",
    repeat="stations",
)

PROBE: Final = Layout(
    "probe",
    (
        Field("probe_link", 1, "number of the link, from 1"),
        Field("answer", 1, "1: LINKS is wanted at once; 0: with the next one"),
        Field("round", 2, "one more (modulo 2^16) for each try; LINKS names the last one heard"),
        Field("bytes", 2, "of the whole frame behind the Ethernet header"),
        Field("probe_pad", 2, "0"),
    ),
    "PROBE body: whoever gets it has had a frame of this size. Zeros follow.",
)

LAYOUTS: Final = (ENVELOPE, HELLO, ECHO, PROBE)
PIECES_MAX: Final = 16
"""Of a PDU; at least 2."""
PIECE_EXTRA: Final = ENVELOPE.size + 4
"""Bytes that a PIECE carries less than a PDU may have, at most: envelope and checksum."""


def pieces_carry(frame_max: int) -> int:
    """Bytes of the largest PDU that can be sent in pieces. frame_max: of one that is sent whole."""
    return PIECES_MAX * (frame_max - PIECE_EXTRA)


OVERHEAD: Final = ENVELOPE.size + TAG_BYTES
HELLO_BYTES_MAX: Final = ENVELOPE.size + HELLO.size + 4 * KEYS_MAX + ECHOES_PER_PART * ECHO.size + TAG_BYTES


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields of an envelope."""

    cluster: int
    what: int
    tx: int
    suite: int
    length: int
    session: bytes
    """Four bytes."""
    number: int
    version: int = VERSION
    piece: int = 0

    def packed(self) -> bytes:
        session = int.from_bytes(self.session, "big")
        return ENVELOPE.struct.pack(
            self.cluster, self.version, self.what, self.tx, self.suite, self.length, self.piece, session, self.number
        )

    @classmethod
    def read(cls, frame: bytes) -> Envelope | None:
        """The envelope that a frame begins with, whatever is in it; None: the frame is too short for one."""
        if len(frame) < ENVELOPE.size:
            return None
        cluster, version, what, tx, suite, length, piece, session, number = ENVELOPE.struct.unpack_from(frame)
        return cls(cluster, what, tx, suite, length, session.to_bytes(4, "big"), number, version, piece)


@dataclass(frozen=True, slots=True)
class Echo:
    """What a HELLO says to one station. Numbers as on the wire, 0: none."""

    proven: int = 0
    echo: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """What a station says of itself, and to the others; the parts of one HELLO have everything but the echoes in common."""

    tx: int
    suite: int
    session: bytes
    challenge: int
    clock: int
    next: int
    boot: int
    incarnation: int
    instance: int
    fingerprint: int
    age_ms: int
    keys: tuple[int, ...]
    echoes: tuple[Echo, ...]
    """As read: those of one part. To be written: of all stations, in their order."""
    part: int = 0
    stations: int = 0
    link: int = 1
    sending: int = 0

    @property
    def key(self) -> int:
        """Id of the key that its session's is made of."""
        return self.keys[self.sending]

    def said_to(self, station: int) -> Echo | None:
        """What this part says to a station; None: it says nothing to it, another part does."""
        at = station - 1 - self.part * ECHOES_PER_PART
        return self.echoes[at] if 0 <= at < len(self.echoes) else None

    def bodies(self) -> list[bytes]:
        """The bodies of its frames."""
        keys = b"".join(key.to_bytes(4, "big") for key in self.keys)
        out = []
        for part in range(-(-len(self.echoes) // ECHOES_PER_PART)):
            head = HELLO.struct.pack(
                self.session,
                self.challenge,
                self.clock,
                self.next,
                self.boot,
                self.incarnation,
                self.instance,
                self.fingerprint,
                self.age_ms,
                self.link,
                part,
                len(self.echoes),
                len(self.keys),
                self.sending,
                bytes(3),
            )
            said = self.echoes[part * ECHOES_PER_PART : (part + 1) * ECHOES_PER_PART]
            out.append(head + keys + b"".join(ECHO.struct.pack(e.proven, e.echo, e.other) for e in said))
        return out

    @classmethod
    def read(cls, envelope: Envelope, body: bytes) -> Hello | None:
        """The HELLO in a body whose tag is right; None: it is none, or of a number of stations or keys that cannot be."""
        if len(body) < HELLO.size:
            return None
        session, challenge, clock, following, *rest = HELLO.struct.unpack_from(body)
        boot, incarnation, instance, fingerprint, age_ms, link, part, stations, keys, sending, _ = rest
        said = min(ECHOES_PER_PART, stations - part * ECHOES_PER_PART)
        if not 1 <= stations <= STATIONS_MAX or said < 1 or not 1 <= keys <= KEYS_MAX or sending >= keys:
            return None
        if len(body) != HELLO.size + 4 * keys + said * ECHO.size or session[:4] != envelope.session:
            return None
        ids = tuple(int.from_bytes(body[HELLO.size + 4 * i :][:4], "big") for i in range(keys))
        echoes = tuple(Echo(*ECHO.struct.unpack_from(body, HELLO.size + 4 * keys + i * ECHO.size)) for i in range(said))
        return cls(
            tx=envelope.tx, suite=envelope.suite, session=session, challenge=challenge, clock=clock, next=following, boot=boot,
            incarnation=incarnation, instance=instance, fingerprint=fingerprint, age_ms=age_ms, keys=ids, echoes=echoes,
            part=part, stations=stations, link=link, sending=sending,
        )  # fmt: skip


class Window:
    """Which numbers of a session have been seen (RFC 6479, with a set in place of its ring of bits)."""

    SIZE = WINDOW

    def __init__(self, first: int) -> None:
        """first: the lowest number that may still be taken, from 1."""
        self._first = first
        self.top = first - 1
        """The highest number taken."""
        self._seen: set[int] = set()

    def look(self, number: int) -> Drop | None:
        """Why a frame with this number is not taken; None: it may be."""
        if number < self._first or number + self.SIZE <= self.top:
            return Drop.LATE
        return Drop.REPLAYED if number in self._seen else None

    def mark(self, number: int) -> None:
        """A frame with this number has been taken: its tag was right."""
        if number > self.top:
            low = self.top - self.SIZE + 1
            for gone in range(low, min(self.top, number - self.SIZE) + 1):  # bound: SIZE
                self._seen.discard(gone)
            self.top = number
        self._seen.add(number)


class Drop(StrEnum):
    """Why a frame of a cluster whose frames prove their sender is dropped, in the order of the checks. A counter each."""

    SIZE = auto()
    """Too short for what it says it carries, or for an envelope."""
    VERSION = auto()
    """No envelope: a station without a key, or with the seal of ADR 6."""
    SUITE = auto()
    """Another suite than the cluster's, or something that is not known."""
    OWN = auto()
    """It says that this station has sent it."""
    UNPROVEN = auto()
    """Of a session that nobody has proven here: recorded frames of any age, and the first ones of a station that has started."""
    LATE = auto()
    """A number from before the proof, or below the window."""
    REPLAYED = auto()
    """A number that was seen before."""
    TAG = auto()
    """Damaged, or forged."""
    SPOOFED = auto()
    """A PDU of another station than the sender's that only its source may send."""
    REORDERED = auto()
    """An unsequenced PDU older than the last one of its station: what it says has been said anew."""


@dataclass(slots=True)
class Read:
    """A session that is proven at a reader."""

    session: bytes
    window: Window
    unsequenced: int = 0
    """Number of its last unsequenced PDU."""
    heard_ns: int = 0
    order: int = 0
    """Of two sessions of a station the later one to be proven has the larger number."""


Opener = Callable[[bytes, int, bytes, bytes, bytes], bytes | None]
"""(session, number, envelope, body, tag) to the PDU, or None where the tag is wrong."""


@dataclass
class Reader:
    """The checks of a receiver, in their order: nothing is touched behind the first one that fails."""

    station: int
    stations: int
    suite: int
    """What frames must have."""
    open: Opener
    """Checks the tag and decrypts."""
    sessions: dict[tuple[int, bytes], Read] = field(default_factory=dict)
    """By station and the session's first bytes; at most two of a station."""
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))
    _added: int = 0

    def add(self, tx: int, session: bytes, first: int, now: int) -> None:
        """A session has been proven: read what was sealed under it from this number on."""
        self._added += 1
        self.sessions[tx, session[:4]] = Read(session, Window(first), 0, now, self._added)

    def forget(self, tx: int, session: bytes) -> None:
        self.sessions.pop((tx, session[:4]), None)

    def take(self, frame: bytes, now: int) -> bytes | Drop:
        """The PDU of a frame that carries one, or why it is dropped. HELLO has a tag of its own and does not come here."""
        pdu = self._take(frame, now)
        if isinstance(pdu, Drop):
            self.drops[pdu] += 1
        return pdu

    def _take(self, frame: bytes, now: int) -> bytes | Drop:
        envelope = Envelope.read(frame)
        if envelope is None or envelope.version != VERSION:
            return Drop.SIZE if envelope is None else Drop.VERSION
        end = ENVELOPE.size + envelope.length
        if end + TAG_BYTES > len(frame):
            return Drop.SIZE
        known = (
            What.PDU <= envelope.what <= What.PIECE
            and envelope.what != What.HELLO
            and bool(envelope.piece) == (envelope.what == What.PIECE)
        )
        if not known or envelope.suite != self.suite:
            return Drop.SUITE
        if envelope.tx == self.station:
            return Drop.OWN
        read = self.sessions.get((envelope.tx, envelope.session))
        if read is None:
            return Drop.UNPROVEN
        if (seen := read.window.look(envelope.number)) is not None:
            return seen
        head, body, tag = frame[: ENVELOPE.size], frame[ENVELOPE.size : end], frame[end : end + TAG_BYTES]
        pdu = self.open(read.session, envelope.number, head, body, tag)
        if pdu is None:
            return Drop.TAG
        read.window.mark(envelope.number)
        read.heard_ns = now
        return self._of_sender(envelope, read, pdu) if envelope.what == What.PDU else pdu

    def _of_sender(self, envelope: Envelope, read: Read, pdu: bytes) -> bytes | Drop:
        """What the envelope's sender may send, and only if it says nothing that it has said anew since."""
        if len(pdu) < HEADER.size:
            return Drop.SIZE
        kind, flags, src = (pdu[HEADER.offset(name)] for name in ("kind", "flags", "src"))
        if kind in SEQUENCED:
            return pdu
        if src != envelope.tx and not (kind == Kind.CONFIRM and flags & Flag.RELAYED):
            return Drop.SPOOFED
        if envelope.number < read.unsequenced or self._is_followed(envelope.tx, read):
            return Drop.REORDERED
        read.unsequenced = envelope.number
        return pdu

    def _is_followed(self, tx: int, read: Read) -> bool:
        """Whether the station has said something under a later session: nobody seals under two by turns."""
        return any(key[0] == tx and other.order > read.order and other.unsequenced for key, other in self.sessions.items())


def c_header() -> str:
    """Text of ``daemon/datapath/zj_envelope.h``: sizes, offsets and numbers, all from the tables above."""
    out = [
        "/* Generated from proto/envelope.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */",
        "#ifndef ZJ_ENVELOPE_H",
        "#define ZJ_ENVELOPE_H",
        "",
        f"#define ZJE_VERSION {VERSION}u",
        f"#define ZJE_TAG_BYTES {TAG_BYTES}u",
        f"#define ZJE_ECHOES_PER_PART {ECHOES_PER_PART}u",
        *(f"#define ZJE_WHAT_{what.name} {int(what)}u" for what in What),
        *(f"#define ZJE_SUITE_{suite.name} {int(suite)}u" for suite in Suite),
        f"#define ZJE_ENCRYPTED {ENCRYPTED}u /* added to a suite: the body is hidden */",
    ]
    for layout in LAYOUTS:
        out += [f"\n/* {layout.help} */", f"#define ZJE_SIZEOF_{layout.name.upper()} {layout.size}u"]
        for f in layout.fields:
            out.append(
                "#define " + f"ZJE_{layout.name}_{f.name}".upper() + f" {layout.offset(f.name)}u /* {f.width} bytes: {f.help} */"
            )
    return "\n".join([*out, "", "#endif", ""])
