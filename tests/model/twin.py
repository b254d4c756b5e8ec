"""The dumb twin: streams, ack-list matrix, levels of receipt and order of one station, in plain Python.

Written from the sentences of the specification, which the comments repeat in short; slow, without a clever line, so that it can
be checked by reading. It knows nothing of how the C core does the same. Numbers are whole (not 32 bits), stations are 0..n-1,
membership is fixed, the medium is the switched one. Nothing is ever forgotten, so there is nothing to free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from zenjun.proto import wire


@dataclass(frozen=True)
class Piece:
    """One message of a DATA PDU, or one fragment of one (``last``: its end)."""

    group: int
    data: bytes
    fragment: bool = False
    last: bool = False


@dataclass(frozen=True)
class Pdu:
    """What the protocol needs of a frame. ``pack`` is None if it carries no P vector."""

    kind: int
    flags: int
    src: int
    seq: int
    clock: int
    ack: tuple[int, ...]
    pack: tuple[int, ...] | None
    free_buffers: int
    pieces: tuple[Piece, ...] = ()
    only: int | None = None
    """A CONFIRM to this station alone; None: to all."""
    bound: int | None = None
    """T: every station is known to have passed this clock. None: the PDU does not speak for all."""

    @property
    def sequenced(self) -> bool:
        return self.kind in wire.SEQUENCED


def nearest(reference: int, low: int) -> int:
    """The number with these low 32 bits that is nearest to the reference."""
    high = reference >> 32
    return min(((high + step) * 2**32 + low for step in (-1, 0, 1)), key=lambda number: abs(number - reference))


def decode(frame: bytes, reference: int) -> Pdu:
    """Read a PDU by the wire table; sequence numbers are those nearest to ``reference``."""
    header = dict(zip((f.name for f in wire.HEADER.fields), wire.HEADER.struct.unpack_from(frame), strict=True))
    n, at = header["stations"], wire.HEADER.size

    def vector() -> tuple[int, ...]:
        return tuple(nearest(reference, int.from_bytes(frame[at + 4 * h : at + 4 * h + 4], "big")) for h in range(n))

    ack, at = vector(), at + 4 * n
    pack = None
    if header["flags"] & wire.Flag.PACK:
        pack, at = vector(), at + 4 * n
    payload = frame[at : at + header["length"]]
    only = wire.addressee(frame)
    return Pdu(
        kind=header["kind"],
        flags=header["flags"],
        src=header["src"] - 1,
        seq=nearest(reference, header["seq"]),
        clock=header["clock"],
        ack=ack,
        pack=pack,
        free_buffers=header["free_buffers"],
        pieces=tuple(_pieces(payload)) if header["kind"] == wire.Kind.DATA else (),
        only=only - 1 if only else None,
        bound=header["clock"] - header["bound"] + 1 if header["bound"] else None,
    )


def _pieces(payload: bytes) -> Iterator[Piece]:
    while payload:
        message = dict(zip((f.name for f in wire.MESSAGE.fields), wire.MESSAGE.struct.unpack_from(payload), strict=True))
        fragment = bool(message["mflags"] & wire.MessageFlag.FRAGMENT)
        start = wire.MESSAGE.size + (wire.FRAGMENT.size if fragment else 0)
        last = bool(message["mflags"] & wire.MessageFlag.LAST)
        yield Piece(message["group"], payload[start : start + message["size"]], fragment, last)
        payload = payload[start + message["size"] :]


@dataclass
class TwinStation:
    """Station ``me`` of ``n``; streams start at ``first``, clocks at ``clock``; ``window`` and ``buffers`` count PDUs. With
    ``direct`` stations or more confirmations may go to one alone; 0: never."""

    n: int
    me: int
    first: int
    clock: int
    window: int
    buffers: int
    direct: int = 0
    said: list[int] = field(init=False)
    """What it has told all that it expects."""
    told: list[int] = field(init=False)
    """What it has told each station, alone, that it expects of it."""
    heard_alone: int = field(init=False)
    """Own PDUs below: some station has confirmed them to this one alone."""
    summed: int = field(init=False)
    """Own PDUs below: all have been told that everyone has them and has passed their clocks."""
    req: list[int] = field(init=False)
    """What this station itself expects; its own entry: the next it will send."""
    al: list[list[int]] = field(init=False)
    """al[h][j]: what j next expects from h, as known here."""
    pk: list[list[int]] = field(init=False)
    """pk[h][j]: j's min_al for h, as known here."""
    accepted: list[Pdu] = field(default_factory=list)
    held: list[dict[int, Pdu]] = field(init=False)
    passed: list[int] = field(init=False)
    """The clock that each station is known to have passed."""
    promises: list[list[tuple[int, int]]] = field(init=False)
    """(next seq, clock) of unsequenced PDUs."""
    free: list[int] = field(init=False)
    heard: set[tuple[object, ...]] = field(default_factory=set)
    """What CONFIRMs said that came from their sources."""

    def __post_init__(self) -> None:
        everyone = range(self.n)
        self.req = [self.first for _ in everyone]
        self.al = [[self.first for _ in everyone] for _ in everyone]
        self.pk = [[self.first for _ in everyone] for _ in everyone]
        self.held = [{} for _ in everyone]
        self.passed = [self.clock for _ in everyone]
        self.promises = [[] for _ in everyone]
        self.free = [self.buffers * self.n for _ in everyone]
        self.said = [self.first for _ in everyone]
        self.told = [self.first for _ in everyone]
        self.heard_alone = self.summed = self.first

    # ---- matrix

    def min_al(self, h: int) -> int:
        """Everyone has every PDU of h below it."""
        return min(self.al[h])

    def acked(self, h: int) -> int:
        """Everyone has said that it knows that everyone has every PDU of h below it."""
        return min(self.pk[h])

    def _hear(self, pdu: Pdu) -> None:
        """Vectors count at once, whatever PDU brings them, by maximum."""
        if pdu.ack[self.me] >= self.al[self.me][pdu.src]:
            self.free[pdu.src] = pdu.free_buffers
        for h in range(self.n):
            self.al[h][pdu.src] = max(self.al[h][pdu.src], pdu.ack[h])
            if pdu.pack is not None:
                self.pk[h][pdu.src] = max(self.pk[h][pdu.src], pdu.pack[h])
        if pdu.bound is None:
            return
        assert pdu.pack is not None
        for h in range(self.n):  # P of a CONFIRM that speaks for all: everyone has this; of the own stream each says it itself
            for j in range(self.n):
                if h != self.me:
                    self.al[h][j] = max(self.al[h][j], pdu.pack[h])
        for j in range(self.n):  # T: whoever has all that the sender had of j knows as much of j's clock
            if j not in (self.me, pdu.src):
                self.promises[j].append((pdu.ack[j], pdu.bound))
        if pdu.only == self.me:
            self.heard_alone = max(self.heard_alone, pdu.ack[self.me])

    # ---- receiving

    def rx(self, pdu: Pdu) -> None:
        """A PDU of another station, sent by itself or again by anyone."""
        j = pdu.src
        self._hear(pdu)
        assert pdu.only in (None, self.me)
        if pdu.kind == wire.Kind.CONFIRM and not pdu.flags & wire.Flag.RELAYED and pdu.only is None:
            self.heard.add(self._word(pdu))
        if pdu.sequenced:
            if pdu.seq >= self.req[j]:
                self.held[j][pdu.seq] = pdu
            while self.req[j] in self.held[j]:  # accepted when its number is the one expected
                self._accept(self.held[j].pop(self.req[j]))
        else:
            self.clock = max(self.clock, pdu.clock)
            self.promises[j].append((pdu.seq, pdu.clock))
        for h in range(self.n):
            for next_seq, clock in self.promises[h]:  # counts only when everything before its next seq has been accepted
                if next_seq <= self.req[h]:
                    self.passed[h] = max(self.passed[h], clock)

    def _accept(self, pdu: Pdu) -> None:
        assert pdu.clock > self.passed[pdu.src], "clocks grow along a stream and beyond its promises"
        self.accepted.append(pdu)
        self.req[pdu.src] += 1
        self.passed[pdu.src] = pdu.clock
        self.clock = max(self.clock, pdu.clock)

    def missing(self) -> bool:
        """Loss is known: a number is skipped, somebody acknowledges more, or an unsequenced PDU's next number is beyond."""
        return any(
            bool(self.held[h]) or max(self.al[h]) > self.req[h] or any(next_seq > self.req[h] for next_seq, _ in self.promises[h])
            for h in range(self.n)
            if h != self.me
        )

    # ---- sending: the twin does not decide, it judges

    def sent(self, pdu: Pdu) -> None:
        """This station sends a new PDU. Raises AssertionError if the rules do not allow just this one."""
        assert pdu.src == self.me
        assert pdu.seq == self.req[self.me], "own numbers follow each other; an unsequenced PDU tells the next"
        if pdu.sequenced:
            least = min(self.free[j] for j in range(self.n) if j != self.me) if self.n > 1 else self.buffers * self.n
            room = min(self.window, least // self.n)
            assert self.min_al(self.me) <= pdu.seq < self.min_al(self.me) + room, "flow condition"
            assert pdu.clock > self.clock, "clock: larger than all seen"
            self.clock = pdu.clock
            self.req[self.me] += 1  # confirmed by itself from its transmission
            self.accepted.append(pdu)
        assert pdu.clock == self.clock, "a promise as large as can be given"
        self.passed[self.me] = self.clock
        assert pdu.ack == tuple(self.req), "A tells what is expected"
        if pdu.pack is not None and pdu.only is not None:
            assert pdu.pack == tuple(self.min_al(h) for h in range(self.n)), "P tells min_al"
        if pdu.bound is not None:
            assert self.direct and self.n >= self.direct and pdu.kind == wire.Kind.CONFIRM
            assert pdu.bound <= min(self.passed), "T tells what all are known to have passed"
        if pdu.only is not None:
            self._sent_alone(pdu.only)
            return
        self.said = list(self.req)
        for h in range(self.n):  # the own receipt counts once it has been broadcast
            self.al[h][self.me] = self.req[h]
        if pdu.bound is not None and self._own_clock(self.min_al(self.me)) <= pdu.bound:
            self.summed = max(self.summed, self.min_al(self.me))
        if pdu.pack is not None:
            assert pdu.pack == tuple(self.min_al(h) for h in range(self.n)), "P tells min_al"
            for h in range(self.n):
                self.pk[h][self.me] = pdu.pack[h]

    def _sent_alone(self, to: int) -> None:
        """To one station only what nobody else is owed, and only while no other PDU is under way."""
        assert self.direct and self.n >= self.direct
        owed = [h for h in range(self.n) if h != self.me and self.req[h] > max(self.said[h], self.told[h])]
        assert owed == [to], f"{to} alone is told what is owed to {owed}"
        assert all(self.min_al(h) == self.req[h] for h in range(self.n) if h != to), "several stations send"
        self.told[to] = self.req[to]

    def _own_clock(self, below: int) -> int:
        """Of the last own PDU below this number; 0: there is none."""
        return max((p.clock for p in self.accepted if p.src == self.me and p.seq < below), default=0)

    def may_pass_on(self, pdu: Pdu) -> bool:
        """A CONFIRM that was heard from its source, but for its question."""
        return pdu.kind == wire.Kind.CONFIRM and not pdu.flags & wire.Flag.POLL and self._word(pdu) in self.heard

    @staticmethod
    def _word(pdu: Pdu) -> tuple[object, ...]:
        return pdu.src, pdu.seq, pdu.clock, pdu.ack, pdu.pack, pdu.free_buffers

    def may_repeat(self, pdu: Pdu) -> bool:
        """Every station may send again what it has accepted."""
        return pdu in self.accepted or pdu in self.held[pdu.src].values()

    def owes(self) -> list[str]:
        """Confirmations that are due: C1, and C2 for PDUs of which somebody wants level ack."""
        debts = []
        for h in range(self.n):
            if h != self.me and self.req[h] > max(self.said[h], self.told[h]):
                debts.append(f"C1: {self.req[h]} expected of {h}, {self.said[h]} told")
            wanted = [p.seq for p in self.accepted if p.src == h and p.flags & wire.Flag.NEED_ACK]
            if any(seq >= self.acked(h) for seq in wanted) and self.min_al(h) > self.pk[h][self.me]:
                debts.append(f"C2: min_al of {h} is {self.min_al(h)}, {self.pk[h][self.me]} told")
        below = min(self.heard_alone, self.min_al(self.me))
        if below > self.summed and self._own_clock(below) <= min(self.passed) and not self.missing():
            debts.append(f"C7: everyone has own PDUs below {below}, told below {self.summed}")
        return debts

    # ---- order and levels

    def order(self) -> list[Pdu]:
        """Accepted PDUs by (clock, src) as far as every station is known to have passed their clocks."""
        known = [self.clock if j == self.me else self.passed[j] for j in range(self.n)]
        return [p for p in sorted(self.accepted, key=lambda p: (p.clock, p.src)) if p.clock <= min(known)]

    def preack(self) -> int:
        """How many PDUs of the order, from its beginning, everyone has."""
        return self._prefix(lambda pdu: pdu.seq < self.min_al(pdu.src))

    def ack(self) -> int:
        """How many PDUs of the order, from its beginning, everyone knows that everyone has."""
        return self._prefix(lambda pdu: pdu.seq < self.acked(pdu.src))

    def wanted_places(self) -> list[int]:
        """Places in the order of the PDUs of which somebody wants level ack; it comes with that of all before them."""
        return [place for place, pdu in enumerate(self.order()) if pdu.flags & wire.Flag.NEED_ACK]

    def _prefix(self, reached: Callable[[Pdu], bool]) -> int:
        count = 0
        for pdu in self.order():
            if not reached(pdu):
                break
            count += 1
        return count

    def messages(self) -> list[tuple[int, int, bytes]]:
        """(src, group, bytes) of the messages in the order; a fragmented one stands where its last fragment does."""
        out = []
        parts: list[bytes] = [b""] * self.n
        for pdu in self.order():
            for piece in pdu.pieces:
                if not piece.fragment:
                    out.append((pdu.src, piece.group, piece.data))
                    continue
                parts[pdu.src] += piece.data
                if piece.last:
                    out.append((pdu.src, piece.group, parts[pdu.src]))
                    parts[pdu.src] = b""
        return out
