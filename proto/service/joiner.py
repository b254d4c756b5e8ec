"""One attempt of a joiner to get the state: rules X5 to X8 of state transfer, from the offers to the restored state.

The joiner pulls. At most ``WINDOW`` parts are under way at each donor, so that no queue grows and the reader's pace counts.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from ..timers import NEVER
from .donor import PARTS_MAX
from .stateapi import Offer, Restore, State
from .transferwire import (
    DONORS_MAX,
    PART_MAX,
    WANTED_BYTES_MAX,
    Chunk,
    Control,
    End,
    Entry,
    Fetch,
    List,
    Listing,
    OfferMessage,
    Place,
    Who,
    digest_of,
)

S: Final = 1_000_000_000
WINDOW: Final = PARTS_MAX
"""Parts under way at each donor."""
LIST_COUNT: Final = 1000
"""Entries asked for at a time; a donor sends as many as fit into one message."""
AGAIN_NS: Final = S
"""Without an answer a request is repeated after this time."""
TRIES_MAX: Final = 3
"""A donor that has left this number of requests unanswered is excluded."""
OFFER_WAIT_NS: Final = 3 * S
LISTED_MAX: Final = 4_000_000
"""Chunks of a state."""
MESSAGE_OVERHEAD: Final = 256


@dataclass(slots=True)
class Building:
    """A state being built. It outlives an attempt: what is here under the digest listed is not fetched again."""

    restore: Restore
    delta: bool
    here: dict[bytes, bytes]
    """Key to digest of the chunks that ``restore`` has."""


@dataclass(slots=True)
class _Assembly:
    """A chunk of which parts are under way."""

    entry: Entry
    parts: list[bytes | None]
    missing: int
    next: int = 0
    """First part not asked for yet."""


@dataclass(slots=True)
class _Source:
    """A donor that serves."""

    who: Who
    readable: bool
    window: set[tuple[bytes, int]] = field(default_factory=set)
    assemblies: dict[bytes, _Assembly] = field(default_factory=dict)
    due: int = NEVER
    tries: int = 0


class Attempt:
    """From an ASK at its position to the restored state.

    outcome: None while it runs; ``restored``; ``again`` (ask other donors); ``slow`` (no donor has answered for OFFER_WAIT_NS);
             ``diverged`` (ask a third donor); ``failed`` (``error`` has the reason).
    """

    window_max: int = WINDOW

    def __init__(
        self, state: State, number: int, place: Place, donors: tuple[Who, ...], message_max: int, counters: Counter[str], now: int
    ) -> None:
        self.number = number
        self.place = place
        self.donors = list(donors)
        self.outcome: str | None = None
        self.error: Exception | None = None
        self.out: list[Control] = []
        self.bad: set[Who] = set()
        """Donors whose data was wrong."""
        self.silent: set[Who] = set()
        """Donors that did not answer in time."""
        self.ask_all = False
        """The delta could not be used: ask for the whole state."""
        self.mismatch = False
        """The restored state did not have the offer's digest."""
        self.offer: Offer | None = None
        self.size = 0
        """Bytes that have come."""
        self.chunks = 0
        self.compare = False
        """Donors are known to have diverged: no state counts that only one of them has."""
        self._state = state
        self._part = min(PART_MAX, message_max - MESSAGE_OVERHEAD)
        self._wanted_max = (message_max - MESSAGE_OVERHEAD) // WANTED_BYTES_MAX
        self._counters = counters
        self._offers: dict[Who, OfferMessage] = {}
        self._offers_at = now + OFFER_WAIT_NS
        self._sources: list[_Source] = []
        self._building: Building | None = None
        self._todo: deque[Entry] = deque()
        self._listed: set[bytes] = set()
        self._list_pending = False
        self._last = False

    def under_way(self) -> dict[Who, int]:
        """Number of parts asked for and not here yet, by donor."""
        return {s.who: len(s.window) for s in self._sources}

    # ---- offers

    def on_offer(self, now: int, donor: Who, m: OfferMessage, building: Building | None) -> Building | None:
        """A donor's snapshot is ready. Returns the state that is being built, perhaps a new one."""
        if donor not in self.donors or donor in self._offers or self._sources or self.outcome:
            self._counters["offer-unasked"] += 1
            return building
        self._offers[donor] = m
        if len(self._offers) == len(self.donors):
            return self._decide(now, building)
        return building

    def on_preparing(self, now: int, donor: Who) -> None:
        """A donor that is at work on its offer is not silent."""
        if donor in self.donors and not self._sources and not self.outcome:
            self._offers_at = now + OFFER_WAIT_NS

    def _decide(self, now: int, building: Building | None) -> Building | None:
        """All offers that will come are here."""
        self._offers_at = NEVER
        for who, m in list(self._offers.items()):
            if not self._is_verifiable(m):
                self._counters["delta-without-digest"] += 1
                self._offers.pop(who)
                self.ask_all = True
        if not self._offers:
            self.outcome = "again"
            return building
        digests = Counter(m.digest for m in self._offers.values() if m.digest)
        if len(digests) > 1 or self.compare:
            digest, count = digests.most_common(1)[0] if digests else (b"", 0)
            if count < 2:
                # A third donor that has left or is silent decides nothing: ask again.
                self.outcome = "again" if self.compare and len(self._offers) < DONORS_MAX else "diverged"
                return building
            self.bad |= {w for w, m in self._offers.items() if m.digest and m.digest != digest}
        usable = [w for w in self.donors if w in self._offers and w not in self.bad]
        first = self._offers[usable[0]]
        self._sources = [_Source(usable[0], first.readable)]
        for who in usable[1:]:
            m = self._offers[who]
            if m.readable and first.digest and m.digest == first.digest and m.delta == first.delta:
                self._sources.append(_Source(who, True))
        if rest := tuple(w for w in self.donors if w not in {s.who for s in self._sources}):
            self.out.append(End(self.number, rest))
        return self._begin(now, usable[0], first, building)

    def _is_verifiable(self, m: OfferMessage) -> bool:
        """A delta needs a digest: nothing else shows whether it starts from the joiner's state."""
        return not m.delta or bool(m.digest)

    def _begin(self, now: int, donor: Who, m: OfferMessage, building: Building | None) -> Building | None:
        self.offer = Offer(self.place, donor, m.delta, m.digest or None, m.chunks, m.size)
        try:
            if building is not None and building.delta != m.delta:
                building.restore.abort()
                building = None
            if building is None:
                restore = self._state.restore(self.offer)
                building = Building(restore, m.delta, dict(restore.kept()))
        except Exception as error:
            self._fail(error)
            return None
        self._building = building
        self._list(now)
        return building

    # ---- the donors' answers

    def on_listing(self, now: int, sender: Who, m: Listing) -> None:
        """The next entries."""
        source = self._sources[0] if self._sources else None
        if source is None or sender != source.who or not self._list_pending or m.start != len(self._listed):
            self._counters["listing-unasked"] += 1
            return
        keys = {e.key for e in m.entries}
        endless = not m.entries and not m.last
        if endless or len(keys) != len(m.entries) or keys & self._listed or len(self._listed) + len(keys) > LISTED_MAX:
            self._counters["listing-wrong"] += 1
            self.drop(now, sender, bad=True)
            return
        self._answered(now, source)
        self._list_pending = False
        self._listed |= keys
        self._last = m.last
        here = self._building.here if self._building else {}
        self._todo.extend(e for e in m.entries if here.get(e.key) != e.digest)
        self._pump(now)

    def on_chunk(self, now: int, sender: Who, m: Chunk) -> None:
        """One part of a chunk."""
        source = next((s for s in self._sources if s.who == sender), None)
        if source is None or (m.key, m.part) not in source.window:
            self._counters["chunk-unasked"] += 1
            return
        assembly = source.assemblies[m.key]
        if len(m.data) != min(self._part, assembly.entry.size - m.part * self._part):
            self._counters["chunk-size"] += 1
            self.drop(now, sender, bad=True)
            return
        source.window.discard((m.key, m.part))
        assembly.parts[m.part] = m.data
        assembly.missing -= 1
        self._answered(now, source)
        if not assembly.missing:
            del source.assemblies[m.key]
            data = b"".join(p for p in assembly.parts if p is not None)
            if digest_of(data) != assembly.entry.digest:
                self._counters["chunk-digest"] += 1
                self._todo.appendleft(assembly.entry)
                self.drop(now, sender, bad=True)
                return
            self._take(assembly.entry, data)
        self._pump(now)

    def _take(self, entry: Entry, data: bytes) -> None:
        if self._building is None or self.outcome:
            return
        try:
            self._building.restore.chunk(entry.key, data)
        except Exception as error:
            self._fail(error)
            return
        self._building.here[entry.key] = entry.digest
        self.size += len(data)
        self.chunks += 1

    def _answered(self, now: int, source: _Source) -> None:
        source.tries = 0
        waiting = source.window or (self._list_pending and source is self._sources[0])
        source.due = now + AGAIN_NS if waiting else NEVER

    def drop(self, now: int, who: Who, *, bad: bool = False, silent: bool = False) -> None:
        """A donor does not serve any more: it has left, has no snapshot, was silent, or what it sent was wrong."""
        if who not in self.donors or self.outcome:
            return
        self.donors.remove(who)
        self._offers.pop(who, None)
        if bad:
            self.bad.add(who)
        if silent:
            self.silent.add(who)
        if bad or silent:
            self.out.append(End(self.number, (who,)))
        if not self._sources:  # offers are still awaited
            if not self.donors:
                self.outcome = "again"
            elif len(self._offers) == len(self.donors):
                self._offers_at = now
            return
        index = next((i for i, s in enumerate(self._sources) if s.who == who), None)
        if index is None:
            return
        source = self._sources.pop(index)
        self._todo.extendleft(a.entry for a in source.assemblies.values())
        if not self._sources:
            self.outcome = "again"
        elif index == 0:
            # The listing is the next donor's now: it may divide its state into other chunks.
            self._todo.clear()
            self._listed.clear()
            self._last = False
            for other in self._sources:
                other.window.clear()
                other.assemblies.clear()
            self._list(now)
        else:
            self._pump(now)

    # ---- requests

    def _list(self, now: int) -> None:
        source = self._sources[0]
        self._list_pending = True
        source.due = min(source.due, now + AGAIN_NS)
        self.out.append(List(self.number, source.who, len(self._listed), LIST_COUNT))

    def _pump(self, now: int) -> None:
        """Ask for what the windows have room for; finish when everything is here."""
        if self.outcome:
            return
        for source in self._sources:
            if len(source.window) <= self.window_max // 2:
                self._ask_parts(now, source)
        busy = any(s.assemblies for s in self._sources)
        if self._todo or self._list_pending:
            return
        if not self._last:
            # A donor without ``read`` has only the chunks of its present listing.
            if self._sources[0].readable or not busy:
                self._list(now)
        elif not busy:
            self._finish()

    def _ask_parts(self, now: int, source: _Source) -> None:
        wanted: list[tuple[bytes, int, int]] = []
        room = self.window_max - len(source.window)
        open_ones = [a for a in source.assemblies.values() if a.next < len(a.parts)]
        while room and len(wanted) < self._wanted_max:
            if open_ones:
                assembly = open_ones.pop()
            elif self._todo:
                entry = self._todo.popleft()
                count = max(1, -(-entry.size // self._part))
                assembly = source.assemblies[entry.key] = _Assembly(entry, [None] * count, count)
            else:
                break
            count = min(room, len(assembly.parts) - assembly.next)
            wanted.append((assembly.entry.key, assembly.next, count))
            source.window |= {(assembly.entry.key, part) for part in range(assembly.next, assembly.next + count)}
            assembly.next += count
            room -= count
        if wanted:
            source.due = min(source.due, now + AGAIN_NS)
            self.out.append(Fetch(self.number, source.who, self._part, tuple(wanted)))

    def _repeat(self, now: int, source: _Source) -> None:
        """Ask again for all that is under way at a donor."""
        source.due = now + AGAIN_NS
        if self._list_pending and source is self._sources[0]:
            self.out.append(List(self.number, source.who, len(self._listed), LIST_COUNT))
        missing = sorted(source.window)
        runs: list[tuple[bytes, int, int]] = []
        for key, part in missing:
            if runs and runs[-1][0] == key and runs[-1][1] + runs[-1][2] == part:
                runs[-1] = (key, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((key, part, 1))
        for at in range(0, len(runs), self._wanted_max):
            self.out.append(Fetch(self.number, source.who, self._part, tuple(runs[at : at + self._wanted_max])))

    # ---- the end

    def _finish(self) -> None:
        """Everything listed is here: check the whole, then replace the old state by it."""
        building, offer = self._building, self.offer
        if building is None or offer is None:
            return
        try:
            self._drop_unlisted(building)
            digest = building.restore.end()
            if offer.digest is not None and digest != offer.digest and (offer.delta or digest is not None):
                self._counters["state-digest"] += 1
                self.mismatch = self.ask_all = True
                if self._is_donors_fault(offer):
                    self.bad.add(self._sources[0].who)
                self.outcome = "again"
            else:
                building.restore.commit(offer)
                self.outcome = "restored"
        except Exception as error:
            self._fail(error)
            return
        self.out.append(End(self.number, tuple(self.donors)))

    def _drop_unlisted(self, building: Building) -> None:
        """An earlier listing had these chunks; the state at this offer's place has not."""
        for key in sorted(building.here.keys() - self._listed):
            building.restore.drop(key)
            del building.here[key]

    def _is_donors_fault(self, offer: Offer) -> bool:
        """Whether the donor is the cause of a wrong digest. With a delta, the joiner's own state may not be what it starts
        from."""
        return not offer.delta

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.outcome = "failed"
        self.out.append(End(self.number, tuple(self.donors)))

    # ---- time

    def wait_more(self, now: int) -> None:
        """Continue to wait for the donors that were asked: there is no other one."""
        self.outcome = None
        self._offers_at = now + OFFER_WAIT_NS

    def on_timeout(self, now: int, building: Building | None) -> Building | None:
        """Repeat what has not been answered. Returns the state that is being built."""
        if self.outcome:
            return building
        if now >= self._offers_at:
            if not self._offers:
                self._offers_at = NEVER
                self.outcome = "slow"
                return building
            late = [w for w in self.donors if w not in self._offers]
            self._offers_at = NEVER
            for who in late:
                self.drop(now, who, silent=True)
            return self._decide(now, building)
        for source in list(self._sources):
            if now >= source.due and source in self._sources:
                source.tries += 1
                if source.tries >= TRIES_MAX:
                    self.drop(now, source.who, silent=True)
                else:
                    self._repeat(now, source)
        return building

    def next_deadline(self) -> int:
        return min([self._offers_at, *(s.due for s in self._sources)]) if self.outcome is None else NEVER
