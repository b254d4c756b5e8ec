"""Mode unanimous: a transaction is committed when every site has agreed, and shown to anybody when every disk has it.

The update protocol of the paper on replicated databases, repaired: lock, update, release. Each step is a message in the order, so
nothing is lost, all have the same queue of locks, and only a view removes a site (rules N1 to N8 in docs/database.md):

1. CLOSE. The transaction's service asks for the lock. When it is the first in the queue every site stops serving reads, and says
   GRANT with its position.
2. WRITE, when all active sites have granted. It is certified and applied at its place, as in mode replicated, and hidden.
3. RELEASE, when all active sites have it on their disks (SYNCED). At its place they serve reads again; then the program is told.
"""

from __future__ import annotations

from collections import Counter

from ...errors import InvariantError
from ..base import Effect, Emit, Place, Source
from .certify import Shared
from .machine import OPEN_WAIT_NS, Durability, Machine
from .messages import Close, Grant, Leave, Lock, Message, Release, Txid, Write, decode, encode
from .roll import Sites
from .rows import Rows, RowsFailed, Verdict


class Unanimous(Machine):
    """One site of a database in this mode. Besides what ``Machine`` has: ``on_quorum``."""

    def __init__(self, me: Source, sites: Sites, rows: Rows, *, release: int = 0, open_wait_ns: int = OPEN_WAIT_NS) -> None:
        """The copy serves no reads yet."""
        super().__init__(me, sites, rows, release=release, open_wait_ns=open_wait_ns)
        self.is_open = False
        """Reads are served here."""
        self.quorum = True
        """The station's daemon has one."""
        self.has_readers = False
        """Programs wait to read here."""
        self._owes = False
        """They read first, and the GRANT comes when they have begun."""
        self._drafts: dict[Txid, Write] = {}
        """This site's transactions that are not decided."""
        self._sent: set[Txid] = set()
        """Those whose data are on their way."""
        self._released: set[Txid] = set()

    # ---- what others may ask

    def waited_for(self, shared: Shared) -> list[int]:
        """The stations that the transaction which has the lock waits for: for their GRANT, or for their disks."""
        if not self._is_closed(shared):
            return []
        if written := shared.agreement.written:
            return sorted(station for (station, client) in shared.active if shared.synced.get((station, client), 0) < written)
        return sorted(station for (station, _), position in shared.agreement.grants.items() if position is None)

    @property
    def owes_grant(self) -> bool:
        """``grant`` has to be called, when the programs that waited have begun to read, or soon at any rate."""
        return self._owes

    # ---- inputs

    def on_quorum(self, quorum: bool) -> list[Effect]:
        """Whether the station's daemon has a quorum: it learns that it is cut off before the group does."""
        self.quorum = quorum
        return self._take()

    def submit(self, write: Write, durability: Durability) -> list[Effect]:
        """Ask for the lock; the data follow when all have granted it. Whatever durability is asked for, all disks have it, also
        that of a site which becomes active meanwhile."""
        self._answers[write.txid] = Durability.ALL
        if self.shared is None:
            self._answer(write.txid, Verdict.UNDECIDED, 0)
        else:
            self._drafts[write.txid] = write
            self._emit(Close(write.txid, self.shared.epoch))
        return self._take()

    def submit_encoded(self, data: bytes, durability: Durability) -> list[Effect]:
        write = decode(data)
        if not isinstance(write, Write):
            raise InvariantError("what is submitted is no transaction")
        return self.submit(write, durability)

    def grant(self) -> list[Effect]:
        """The programs that waited have had their turn."""
        shared, owes = self.shared, self._owes
        self._owes = False
        if owes and shared is not None:
            try:
                self._say_grant(shared)
            except RowsFailed as failure:
                self._give_up(str(failure))
        return self._take()

    def unlock(self, txid: Txid) -> list[Effect]:
        """As in mode replicated; but a transaction that is to be committed goes on: its data may be everywhere."""
        return self._take() if txid in self._drafts else super().unlock(txid)

    # ---- one place of the order

    def _about_sites(self, shared: Shared, place: Place, source: Source, message: Message) -> None:
        if isinstance(message, Close):
            self._on_close(shared, source, message)
        elif isinstance(message, Grant):
            self._on_grant(shared, source, message)
        else:
            before = set(shared.active)
            super()._about_sites(shared, place, source, message)
            if isinstance(message, Leave):
                shared.agreement.leaving.discard(source)
                self._regard(shared)
            for joined in shared.active - before:
                self._joined(shared, joined)

    def _on_close(self, shared: Shared, source: Source, close: Close) -> None:
        """Rule N1: one queue, in the order of the messages. A transaction that has the lock already keeps it."""
        if close.epoch != shared.epoch or close.txid in shared.agreement.closing:
            return
        owner = next((s for s, lock in shared.locks if lock.txid == close.txid), None)
        if owner not in (None, source):
            return
        shared.agreement.closing.add(close.txid)
        if owner is None:
            self._lock(shared, source, Lock(close.txid, close.epoch))
        elif shared.locks[0][1].txid == close.txid:
            self._close(shared)

    def _grant(self, shared: Shared) -> None:
        """The first in the queue is another one."""
        if shared.locks[0][1].txid in shared.agreement.closing:
            self._close(shared)
        else:
            super()._grant(shared)

    def _close(self, shared: Shared) -> None:
        """Rule N2: whoever is active serves no reads, and says so when it is so. Programs that have waited for the transaction
        before read first: with many writers they would wait for ever."""
        agreement = shared.agreement
        agreement.written = 0
        agreement.grants = dict.fromkeys(self.needed(shared))
        self._owes = self.is_active and self.has_readers
        if self.is_active and not self._owes:
            self._say_grant(shared)

    def _say_grant(self, shared: Shared) -> None:
        """Raises RowsFailed."""
        self.gate(is_open=False)
        self._emit(Grant(shared.locks[0][1].txid, self.rows.position()))

    def needed(self, shared: Shared) -> list[Source]:
        """Rule N3: the sites whose GRANT is needed: all that are active, and those that have been put out and may not know it."""
        return sorted(shared.active | shared.agreement.leaving)

    def _joined(self, shared: Shared, source: Source) -> None:
        """A site that becomes active while there is a lock is asked like the others."""
        if self._is_closed(shared) and not shared.agreement.written:
            shared.agreement.grants.setdefault(source, None)
            if source == self.me:
                self._say_grant(shared)

    def _on_grant(self, shared: Shared, source: Source, grant: Grant) -> None:
        """When all have granted, copies that differ from most are put out, before anything is changed."""
        agreement = shared.agreement
        if not self._is_closed(shared) or agreement.written or grant.txid != shared.locks[0][1].txid:
            return
        if source in agreement.grants:
            agreement.grants[source] = grant.position
            self._regard(shared)

    def _regard(self, shared: Shared) -> None:
        """Who has gone is not waited for."""
        agreement = shared.agreement
        needed = set(self.needed(shared))
        agreement.grants = {source: position for source, position in agreement.grants.items() if source in needed}
        found = [position for source, position in agreement.grants.items() if position is not None and source in shared.active]
        if agreement.written or not agreement.is_granted or not found:
            return
        most = max(found, key=lambda position: Counter(found)[position])
        outside = {s for s, position in agreement.grants.items() if position != most and s in shared.active}
        if outside:
            self._leave(shared, outside, "the copy differs from those of most sites")

    def _write(self, shared: Shared, source: Source, write: Write) -> None:
        """Rule N4: data count if their transaction has the lock, and all have been asked. What they make is hidden."""
        holder = shared.locks[0] if shared.locks else None
        if holder is None or holder[0] != source or holder[1].txid != write.txid or not self._is_closed(shared):
            self._decided(source, write.txid, Verdict.STALE, self.rows.position().version)
            return
        if shared.agreement.written:
            self.dropped["again"] += 1
            return
        verdict, version = self.certifier.decide(shared, self.rows, write, self._enough(shared))
        if verdict is Verdict.DONE:
            shared.agreement.written = version
            self.on_written(shared)
        else:
            self._decided(source, write.txid, verdict, version)
            self._end_lock(shared, [holder[1]])

    def on_written(self, shared: Shared) -> None:
        """The data are here, and hidden."""

    def _decided(self, source: Source, txid: Txid, verdict: Verdict, version: int) -> None:
        if source == self.me:
            self._drafts.pop(txid, None)
        super()._decided(source, txid, verdict, version)

    def _end_lock(self, shared: Shared, ended: list[Lock]) -> None:
        """Rule N6: a lock ends by its service's RELEASE, or by the view without it. What has been written is committed, and
        otherwise nothing has changed."""
        agreement = shared.agreement
        first = shared.locks[0] if shared.locks else None
        for lock in ended:
            agreement.closing.discard(lock.txid)
            self._sent.discard(lock.txid)
            self._released.discard(lock.txid)
        if first is not None and first[1] in ended:
            written, agreement.written, agreement.grants = agreement.written, 0, {}
            self._owes = False
            if written:
                self._decided(first[0], first[1].txid, Verdict.DONE, written)
        super()._end_lock(shared, ended)

    def _left(self, shared: Shared, members: frozenset[Source]) -> None:
        shared.agreement.leaving &= members
        super()._left(shared, members)

    def _deactivate(self, shared: Shared, gone: set[Source]) -> None:
        super()._deactivate(shared, gone)
        self._regard(shared)

    def _leave(self, shared: Shared, outside: set[Source], reason: str) -> None:
        shared.agreement.leaving |= outside
        super()._leave(shared, outside, reason)

    def _stop_following(self) -> None:
        super()._stop_following()
        self._owes = False
        self._drafts.clear()
        self._sent.clear()
        self._released.clear()

    # ---- what follows from the state

    def _report_awaited(self, shared: Shared) -> None:
        """All wait for all disks."""
        if self._reports.owes:
            self._report(shared)

    def _is_closed(self, shared: Shared) -> bool:
        """The first transaction in the queue is to be committed."""
        return bool(shared.locks) and shared.locks[0][1].txid in shared.agreement.closing

    def _advance(self, shared: Shared) -> None:
        """The own transaction that has the lock goes on."""
        if not shared.locks or shared.locks[0][0] != self.me:
            return
        txid = shared.locks[0][1].txid
        write = self._drafts.get(txid)
        if shared.agreement.written:
            if txid not in self._released and self.may_release(shared):
                self._release(txid)
        elif write is None:
            # Asked for twice, or before this site got the state: it is decided, or will be asked for again.
            if self._is_closed(shared) and txid not in self._released:
                self._release(txid)
        elif txid not in self._sent and self.may_write(shared):
            self._sent.add(txid)
            self._send_write(write)

    def _release(self, txid: Txid) -> None:
        self._released.add(txid)
        self._emit(Release(txid))

    def _send_write(self, write: Write) -> None:
        if len(data := encode(write)) > self.long.part_bytes:
            self._emit_all(self.long.add(write.txid, data))
        else:
            self._effects.append(Emit(data))

    def may_write(self, shared: Shared) -> bool:
        """Rule N3: all have granted."""
        return self._is_closed(shared) and shared.agreement.is_granted

    def may_release(self, shared: Shared) -> bool:
        """Rule N5: all active sites have it on their disks, and they suffice."""
        return self._is_durable(shared.agreement.written, Durability.ALL)

    def may_serve(self) -> bool:
        """Rules N7 and N8: reads are served by an active site while nobody commits, and only of what enough disks have: what has
        been read is never lost."""
        shared = self.shared
        if shared is None or not self.quorum or not self.is_active or (self._is_closed(shared) and not self._owes):
            return False
        return self.rows.position().version <= self.durable_version()

    def gate(self, *, is_open: bool) -> None:
        """Serve reads, or no more. Raises RowsFailed: the copy cannot be written; then nobody can open it either."""
        if is_open != self.is_open:
            self.is_open = False
            self.rows.gate(is_open)
            self.is_open = is_open

    def _take(self) -> list[Effect]:
        """Every input ends here."""
        if self.shared is not None:
            self._advance(self.shared)
        try:
            self.gate(is_open=self.may_serve())
        except RowsFailed as failure:
            if not self.has_failed:
                self._give_up(str(failure))
        return super()._take()
