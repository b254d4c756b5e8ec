"""One site of a replicated database: what its service does with each message and view of the group ``zenjun.db.NAME``.

A site is *active* when it has the state at every place and all others know it. Before that it *follows*: it has the state and
applies messages. Before that it *wants* the state and keeps messages, and *catches up* with them when the state has come. All
members take part in the roll call (``roll.py``).

Every input returns effects; those of ``base`` and the ones below. The host also calls ``on_lost`` when the connection's order has
ended, ``on_synced`` when the disk has a version, ``submit``, ``lock``, ``release`` and ``barrier`` for programs,
``give``, ``restore`` and ``catch_up`` for state transfer.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from ...errors import InvariantError
from ..base import Effect, Emit, Place, Source
from .certify import Certifier, Shared
from .effects import Answer, Durability, Failed, Give, Granted, Reached
from .keeping import ALL, Item, Kept
from .messages import (
    FORMAT,
    Active,
    Answered,
    Barrier,
    Check,
    Disk,
    Force,
    Leave,
    Lock,
    Message,
    Open,
    Part,
    Position,
    Release,
    Scrub,
    Stand,
    Summed,
    Synced,
    Txid,
    Want,
    Write,
    decode,
    encode,
    epoch_txid,
    next_digest,
    txid_of,
)
from .parts import Outgoing
from .reports import Reporting, Reports
from .roll import NOTHING, Opening, Roll, Sites
from .rows import Entry, Rows, RowsDamaged, RowsFailed, Verdict
from .scrub import Compared, Scrubbing, Sum, damaged
from .window import Window

OPEN_WAIT_NS: Final = 2_000_000_000


class Given(NamedTuple):
    """The state at the place of a WANT, besides the rows."""

    place: Place
    shared: Shared


class Machine(Reporting):
    """The service's decisions at one site."""

    certifier_class: type[Certifier] = Certifier
    roll_class: type[Roll] = Roll

    def __init__(self, me: Source, sites: Sites, rows: Rows, *, release: int = 0, open_wait_ns: int = OPEN_WAIT_NS) -> None:
        """me: the service as the group sees it; another one after each connection. release: of SQLite."""
        super().__init__()
        self.me, self.sites, self.rows, self.release = me, sites, rows, release
        self.open_wait_ns = open_wait_ns
        self.certifier = self.certifier_class()
        self.roll = self.roll_class()
        self.dropped: Counter[str] = Counter()
        self.has_failed = False
        self.distrusts = False
        """The copy here was found to be damaged: another site's takes its place, all of it."""
        self.unlike = ""
        """Why this site cannot take part with those that are active; empty: it can."""
        self.keeping: Callable[[], Kept] = Kept
        self.catch_up_max = ALL
        """Messages that ``catch_up`` follows at once."""
        self._kept: Kept | None = None
        """The messages since the place of the WANT; None: no state is wanted."""
        self._behind: Shared | None = None
        """The state that has come, as far as the kept messages have been followed; None: no state has, or all have been."""
        self._kept_from: Place = (0, 0, 0)
        self._asked = False
        """A WANT is on its way."""
        self._stands = False
        """A roll call has begun at this place."""
        self._open_at_ns: int | None = None
        self._open_waits = False
        self._answers: dict[Txid, Durability] = {}
        """The durability asked for by this site's transactions that have no verdict yet."""
        self.long = Outgoing()
        """This site's transactions that are sent in parts."""

    # ---- what others may ask

    @property
    def is_active(self) -> bool:
        return self.shared is not None and self.me in self.shared.active

    @property
    def can_write(self) -> bool:
        """The active sites suffice to commit."""
        return self.shared is not None and self.sites.sufficient(s for s, _ in self.shared.active)

    # ---- inputs

    def on_message(self, place: Place, source: Source, data: bytes) -> list[Effect]:
        """A message of the group at its place. Never raises for what others sent."""
        message = decode(data)
        if message is None:
            self.dropped["malformed"] += 1
        elif source not in self.members:
            self.dropped["stranger"] += 1
        else:
            self._item((place, source, message, self.members), len(data))
        return self._take()

    def on_view(self, place: Place, members: frozenset[Source]) -> list[Effect]:
        """Services have come or gone."""
        self._item((place, self.me, None, members))
        return self._take()

    def on_lost(self) -> list[Effect]:
        """The order has ended for this site: it was cut off, or the instance was opened again. What is under way here is
        undecided."""
        self.members = frozenset()
        self.roll = self.roll_class()
        self._stop_following()
        return self._take()

    def next_deadline_ns(self) -> int | None:
        return (self._open_at_ns or 0) if self._open_waits else None

    def on_timer(self, now_ns: int) -> list[Effect]:
        """A site that may open the database while some sites are missing first waits for them."""
        if self._open_waits:
            if self._open_at_ns is None:
                self._open_at_ns = now_ns + self.open_wait_ns
            elif now_ns >= self._open_at_ns:
                self._open_waits, self._open_at_ns = False, None
                self._emit(Open(self.roll.number))
        return self._take()

    # ---- programs

    def submit(self, write: Write, durability: Durability) -> list[Effect]:
        """Send a transaction, in parts if it is long; its Answer comes with a later input."""
        return self._submit(write.txid, encode(write), durability)

    def submit_encoded(self, data: bytes, durability: Durability) -> list[Effect]:
        """``submit``, of what ``messages.is_write`` is true of."""
        return self._submit(txid_of(data), data, durability)

    def _submit(self, txid: Txid, data: bytes, durability: Durability) -> list[Effect]:
        self._answers[txid] = durability
        if self.shared is None:
            self._answer(txid, Verdict.UNDECIDED, 0)
        elif len(data) > self.long.part_bytes:
            self._emit_all(self.long.add(txid, data))
        else:
            self._effects.append(Emit(data))
        return self._take()

    def lock(self, txid: Txid) -> list[Effect]:
        """Ask for the database alone; Granted comes when it is this transaction's turn."""
        if self.shared is not None:
            self._emit(Lock(txid, self.shared.epoch))
        return self._take()

    def unlock(self, txid: Txid) -> list[Effect]:
        """End the lock without a transaction: the program has given up, or has had it for too long."""
        self._emit(Release(txid))
        return self._take()

    def force(self) -> list[Effect]:
        """Open the database with what the present sites have."""
        self._emit(Force(self.roll.number))
        return self._take()

    def barrier(self, number: int) -> list[Effect]:
        """Reached comes when everything that was committed before this call is here."""
        self._emit(Barrier(number))
        return self._take()

    def compare(self) -> list[Effect]:
        """Begin a comparison of the active sites' positions."""
        if self.shared is not None:
            self._emit(Check(self.shared.epoch))
        return self._take()

    def scrub(self, number: int) -> list[Effect]:
        """Begin a comparison of the active sites' rows. Compared comes when all have summed theirs."""
        if self.shared is not None:
            self._emit(Scrub(self.shared.epoch, number))
        return self._take()

    def on_sum(self, number: int, sums: bytes) -> list[Effect]:
        """The sum of the rows at the place where Sum came."""
        if self.shared is not None and self.shared.scrub.number == number:
            self._emit(Summed(number, sums))
        return self._take()

    def fail(self, reason: str, *, is_damaged: bool = False) -> list[Effect]:
        """The copy's disk has failed: give it up."""
        if not self.has_failed:
            self._give_up(reason, is_damaged=is_damaged)
        return self._take()

    # ---- state transfer

    @property
    def wanted_from(self) -> Place | None:
        """The place of the WANT whose state is waited for; None: no state is."""
        return self._kept_from if self._kept is not None and self._behind is None else None

    @property
    def has_lost(self) -> bool:
        """What has come since that place could not all be kept: a later state is needed."""
        return self._kept is not None and not self._kept.is_whole

    @property
    def is_catching_up(self) -> bool:
        """The state has come, and ``catch_up`` has more to do."""
        return self._behind is not None

    def ask_again(self) -> list[Effect]:
        """The state does not come, or too much has come since its place: ask for a later one. If it has come meanwhile it is
        followed: another one would take as long again."""
        if self._kept is not None and (self.wanted_from is not None or self.has_lost):
            self._want()
        return self._take()

    def give(self, place: Place) -> Given:
        """The state as it is now, for the site that wants it."""
        if self.shared is None:
            raise InvariantError("only a site that follows gives its state")
        return Given(place, self.shared.copy())

    def restore(self, given: Given) -> list[Effect]:
        """The rows at the place of this site's WANT are in place: take what belongs to them, and ``catch_up``."""
        if self._kept is None or self._behind is not None or self.has_lost or not self.fits(given):
            return []
        if not self.roll.fits(given.shared.release, self.release):
            self._kept = None
            return []
        self._kept.take()  # the WANT itself
        self._behind, self.distrusts, self._reports = given.shared, False, Reports()
        return self.catch_up()

    def catch_up(self) -> list[Effect]:
        """Follow what was kept, in its order. What comes meanwhile is kept too, and this site follows the history when nothing is
        left (rule W4)."""
        kept, behind, self._behind = self._kept, self._behind, None
        if kept is None or behind is None:
            return self._take()
        self.shared = behind
        for _ in range(self.catch_up_max):
            if self.shared is None or (item := kept.take()) is None:
                break
            self._follow(item, self.shared)
        if self.shared is not None and not kept.is_empty:
            self.shared, self._behind = None, self.shared
        elif self.shared is not None and kept.is_whole:
            self._kept = None
            self._emit(Active(self.rows.position(), self.release))
        elif self.shared is not None:
            self.shared = None
            self._want()
        return self._take()

    def fits(self, given: Given) -> bool:
        """Whether it is the state at the place from which on all messages are kept. An answer to an earlier WANT lacks the
        messages in between."""
        return given.place == self._kept_from

    # ---- one place of the order

    def _item(self, item: Item, size: int = 0) -> None:
        """First the roll call, which concerns all members; then the state, at sites that have it."""
        place, source, message, members = item
        if message is None:
            self._view(place, members)
        elif isinstance(message, Stand | Open | Force | Active | Leave):
            self._roll_message(place, source, message)
        elif isinstance(message, Want) and source == self.me:
            self._asked = False
            if self.shared is None:
                self._kept, self._behind, self._kept_from = self.keeping(), None, place
        if self._kept is not None:
            self._kept.add(item, size)
        if self.shared is not None:
            self._follow(item, self.shared)
        if self._stands:
            self._stands = False
            self._emit(self.stand())

    def _view(self, place: Place, members: frozenset[Source]) -> None:
        before, self.members = self.members, members
        self.roll.remove(before - members)
        if members - before or not self.roll.active():
            self._begin_roll(place)
        else:
            self._roll_changed(place)
        if before - members and self.wanted_from is not None:
            self._want()  # the donor may be one of the members that left

    def _begin_roll(self, place: Place) -> None:
        """All members report again what they have: new members lack the earlier reports, and while a site was active the others
        followed it."""
        self.roll.begin(place[0], self.members)
        self._open_waits, self._open_at_ns = False, None
        self._stands = True

    def stand(self) -> Stand:
        disk, position, uuid = Disk.COPY, NOTHING, bytes(16)
        try:
            uuid = self.rows.uuid()
            if self.rows.blank():
                disk = Disk.BLANK
            else:
                position = self.rows.position()
        except RowsFailed:
            disk = Disk.UNABLE
        if self.has_failed or self.distrusts:
            disk, position = Disk.UNABLE, NOTHING
        return Stand(self.roll.number, self.is_active, disk, uuid, position, FORMAT, self.release)

    def _roll_message(self, place: Place, source: Source, message: Stand | Open | Force | Active | Leave) -> None:
        if isinstance(message, Stand):
            if message.roll == self.roll.number and source in self.roll.stands:
                self.roll.stands[source] = message
        elif isinstance(message, Active):
            if self.roll.is_present(message.position.epoch):
                self.roll.set_active(source, message.position.epoch)
        elif isinstance(message, Leave):
            self.roll.leave(source, message.epoch)
            if not self.roll.active():
                self._begin_roll(place)
        elif message.roll == self.roll.number:
            self._open(place, self.opening() if isinstance(message, Open) else self.roll.forced(self.sites))
        self._roll_changed(place)

    def _roll_changed(self, place: Place) -> None:
        """Open the database if no site is active and all of its sites are members; wait for the others if the present ones
        suffice; or ask an active site for the state."""
        self._open_waits = False
        if not self.roll.is_over:
            return
        self.unlike = self.roll.unlike(self.release) if self.shared is None else ""
        if self.roll.active():
            if self.unlike:
                self._kept, self._behind, self._asked = None, None, False
            elif self.shared is None and self._kept is None and not self._asked:
                self._want()
        elif self.opening() is not None:
            if self.roll.is_whole(self.sites):
                self._open(place, self.opening())
            elif self.me == min(self.roll.stands):
                self._open_waits = True

    def opening(self) -> Opening | None:
        return self.roll.opening(self.sites)

    def _open(self, place: Place, opening: Opening | None) -> None:
        """A new epoch begins here, with an entry of its own."""
        if not self.roll.is_over or self.roll.active() or opening is None:
            return
        epoch = place[0]
        for member in opening.equal:
            self.roll.set_active(member, epoch)
        self._stop_following()
        if self.me not in opening.equal:
            self._roll_changed(place)
            return
        try:
            if self.rows.blank():
                self.rows.create(opening.uuid)
            last = self.rows.position()
            txid = epoch_txid(epoch)
            version = last.version + 1
            digest = next_digest(last.digest, version, txid, b"")
            self.rows.write(Entry(Position(epoch, version, digest), txid, b""))
        except RowsFailed as failure:
            self._give_up(str(failure))
            return
        self.shared = Shared(epoch, set(opening.equal), self.window(version), version, opening.release)

    def window(self, version: int) -> Window:
        """The window of an epoch that begins: nothing of the past is known."""
        return Window(version)

    def _want(self) -> None:
        if not self.has_failed:
            self._asked = True
            self._kept = self._behind = None
            self._emit(Want(self.stand().position))

    # ---- the state

    def _follow(self, item: Item, shared: Shared) -> None:
        place, source, message, members = item
        try:
            if message is None:
                self._left(shared, members)
            elif isinstance(message, Write):
                self._write(shared, source, message)
            elif isinstance(message, Part):
                self._part(shared, source, message)
            elif isinstance(message, Lock):
                self._lock(shared, source, message)
            elif isinstance(message, Release):
                self._end_lock(shared, [lock for s, lock in shared.locks if s == source and lock.txid == message.txid])
            else:
                self._about_sites(shared, place, source, message)
        except RowsFailed as failure:
            self._give_up(str(failure), is_damaged=isinstance(failure, RowsDamaged))

    def _about_sites(self, shared: Shared, place: Place, source: Source, message: Message) -> None:
        if isinstance(message, Active):
            is_alike = self.roll.fits(shared.release, message.release)
            if shared.active and is_alike and self.is_here(message.position, shared):
                shared.active.add(source)
            elif source == self.me and not self.is_outdated(message, shared):
                self._stop_following()
                self._emit(Leave(shared.epoch))
        elif isinstance(message, Leave):
            if message.epoch == shared.epoch:
                self._deactivate(shared, {source})
        elif isinstance(message, Synced):
            if message.version > self.rows.position().version:
                self.dropped["future"] += 1
            elif message.epoch == shared.epoch:
                shared.synced[source] = max(message.version, shared.synced.get(source, 0))
                self._settle()
        elif isinstance(message, Want):
            self.drop_parts(shared)
            if self.me == self.donor(shared, place, source):
                self._effects.append(Give(source))
        elif isinstance(message, Barrier):
            self._barrier(shared, source, message)
        elif isinstance(message, Check):
            if message.epoch == shared.epoch and not shared.check:
                shared.check = dict.fromkeys(sorted(shared.active))
                if self.is_active:
                    self._emit(Answered(self.rows.position()))
        elif isinstance(message, Answered) and source in shared.check:
            shared.check[source] = message.position
            self._compare(shared)
        elif isinstance(message, Scrub):
            if message.epoch == shared.epoch and source in shared.active:
                shared.scrub = Scrubbing(message.number, dict.fromkeys(sorted(shared.active)))
                if self.is_active:
                    self._effects.append(Sum(message.number))
        elif isinstance(message, Summed) and message.number == shared.scrub.number and source in shared.scrub.sums:
            shared.scrub.sums[source] = message.sums
            self._compare_sums(shared)

    def donor(self, shared: Shared, place: Place, source: Source) -> Source | None:
        """Who gives the state: by chance, which the place decides, so that another one does when it is asked for again."""
        able = sorted(shared.active - {source})
        return able[crc32(struct.pack("!3Q", *place)) % len(able)] if able else None

    def is_outdated(self, active: Active, shared: Shared) -> bool:
        """It was on its way while the database was opened again, with this site, which is active in the epoch since then."""
        return active.position.epoch != shared.epoch and self.me in shared.active

    def is_here(self, position: Position, shared: Shared) -> bool:
        """This position is in the history here, and in its present epoch."""
        return position.epoch == shared.epoch and self.rows.digest_at(position.version) == position.digest

    def _write(self, shared: Shared, source: Source, write: Write) -> None:
        holder = shared.locks[0][1].txid if shared.locks else None
        if holder is not None and holder != write.txid:
            if self.certifier.has_room(shared, write):
                shared.waiting.append((source, write))
            else:
                self._decided(source, write.txid, Verdict.BUSY, self.rows.position().version)
            return
        verdict, version = self.certifier.decide(shared, self.rows, write, self._enough(shared))
        self._decided(source, write.txid, verdict, version)
        if holder is not None:
            self._end_lock(shared, [shared.locks[0][1]])

    def _part(self, shared: Shared, source: Source, part: Part) -> None:
        """A transaction stands at the place of its last part."""
        data = shared.parts.take(source, part)
        if data is None:
            self.dropped["part"] += 1
            return
        if source == self.me:
            self._emit_all(self.long.came(part))
        if part.is_last:
            write = decode(data)
            if isinstance(write, Write) and write.txid == part.txid:
                self._write(shared, source, write)
            else:
                self.dropped["malformed"] += 1

    def drop_parts(self, shared: Shared) -> None:
        """A site gets the state of this place, in which parts are not: they are void everywhere, and sent again. Of a transaction
        whose parts are all still to come nothing is void."""
        is_mine = shared.parts.has(self.me)
        shared.parts.clear()
        if is_mine:
            self._emit_all(self.long.again())

    def _enough(self, shared: Shared) -> bool:
        return self.sites.sufficient(s for s, _ in shared.active)

    def _decided(self, source: Source, txid: Txid, verdict: Verdict, version: int) -> None:
        if source != self.me and verdict is Verdict.DONE:
            self._reports.on_version(version)
        durability = self._answers.pop(txid, None) if source == self.me else None
        if durability is None:
            return
        if verdict is Verdict.DONE and not self._is_durable(version, durability):
            self._durable[txid] = (durability, version)
        else:
            self._effects.append(Answer(txid, verdict, version))

    # ---- locks

    def _lock(self, shared: Shared, source: Source, lock: Lock) -> None:
        if lock.epoch == shared.epoch and all(lock.txid != other.txid for _, other in shared.locks):
            shared.locks.append((source, lock))
            if len(shared.locks) == 1:
                self._grant(shared)

    def _grant(self, shared: Shared) -> None:
        source, lock = shared.locks[0]
        if source == self.me:
            self._effects.append(Granted(lock.txid, self.rows.position().version))

    def _end_lock(self, shared: Shared, ended: list[Lock]) -> None:
        """Decide the transactions that waited for the first one; then the next one has its turn."""
        first = shared.locks[0] if shared.locks else None
        shared.locks = [(source, lock) for source, lock in shared.locks if lock not in ended]
        if first is None or (shared.locks and shared.locks[0] == first):
            return
        waiting, shared.waiting = shared.waiting, []
        for source, write in waiting:
            verdict, version = self.certifier.decide(shared, self.rows, write, self._enough(shared))
            self._decided(source, write.txid, verdict, version)
        if shared.locks:
            self._grant(shared)

    # ---- which sites are active

    def _left(self, shared: Shared, members: frozenset[Source]) -> None:
        self._deactivate(shared, shared.active - members)
        shared.synced = {source: version for source, version in shared.synced.items() if source in members}
        shared.parts.keep(members)
        self._end_lock(shared, [lock for source, lock in shared.locks if source not in members])

    def _deactivate(self, shared: Shared, gone: set[Source]) -> None:
        shared.active -= gone
        for source in gone:
            shared.check.pop(source, None)
            shared.scrub.sums.pop(source, None)
        if gone:
            self._compare(shared)
            self._compare_sums(shared)
            self._settle()

    def _compare(self, shared: Shared) -> None:
        """All sites have reported their positions: a site that differs from the majority leaves; if two groups are equally large,
        the one with the lowest site counts."""
        found = [position for position in shared.check.values() if position is not None]
        if not shared.check or len(found) < len(shared.check):
            return
        most = max(found, key=lambda position: Counter(found)[position])
        outside = {source for source, position in shared.check.items() if position != most}
        shared.check = {}
        self._leave(shared, outside, "the copy differs from those of most sites")

    def _compare_sums(self, shared: Shared) -> None:
        """All have summed their rows. If no sum is that of most sites, nobody leaves for it: the right one might."""
        sums = shared.scrub.sums
        if sums and None not in sums.values() and self.shared is shared:
            outside, tied = damaged({source: said for source, said in sums.items() if said is not None})
            shared.scrub = Scrubbing(shared.scrub.number)
            self._effects.append(Compared(shared.scrub.number, outside, tied))
            self._leave(shared, set(outside), "comparison of all rows: the copy is damaged")

    def _leave(self, shared: Shared, outside: set[Source], reason: str) -> None:
        """These sites have a copy that is not right."""
        if self.me in outside and self.shared is shared:
            self._give_up(reason, is_damaged=True)
        elif outside:
            self._deactivate(shared, outside)

    def _give_up(self, reason: str, *, is_damaged: bool = False) -> None:
        self.has_failed = True
        epoch = self.shared.epoch if self.shared is not None else 0
        self._stop_following()
        self._emit(Leave(epoch))
        self._effects.append(Failed(reason, is_damaged))

    def _stop_following(self) -> None:
        """What programs here wait for cannot be learned here any more."""
        self.shared = None
        self._reports = Reports()
        self._kept = self._behind = None
        self._asked = False
        self._open_waits, self._open_at_ns = False, None
        self.long.clear()
        for txid in [*self._answers, *self._durable]:
            self._answer(txid, Verdict.UNDECIDED, 0)
        self._durable.clear()

    # ---- effects

    def _answer(self, txid: Txid, verdict: Verdict, version: int) -> None:
        self._answers.pop(txid, None)
        self._effects.append(Answer(txid, verdict, version))

    def _emit_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._emit(message)

    def _emit(self, message: Message) -> None:
        self._effects.append(Emit(encode(message)))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


__all__ = [
    "Answer",
    "Durability",
    "Failed",
    "Give",
    "Given",
    "Granted",
    "Machine",
    "Reached",
]
