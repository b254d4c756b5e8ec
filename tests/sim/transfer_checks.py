"""What must hold in every history of state transfer."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final

from zenjun.proto.service.donor import PARTS_MAX
from zenjun.proto.service.roster import TRANSFERS_MAX
from zenjun.proto.service.stateapi import Place
from zenjun.proto.service.transfer import ALL_DAMAGED
from zenjun.proto.service.transfertypes import Note
from zenjun.proto.service.transferwire import CHUNK_MAX, NOWHERE, Holding, OfferMessage, Who, decode

from .violation import Violation

if TYPE_CHECKING:
    from .transfer import Member, World

CHECKERS: Final = frozenset(
    {
        "equal",
        "complete",
        "place",
        "old_state",
        "roster",
        "furthest",
        "bounded",
        "released",
        "liveness",
        "silence",
        "honest",
        "join",
    }
)
S: Final = 1_000_000_000


class Checks:
    """Checkers of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.damaged = False
        """A program's state was damaged on purpose in this run."""
        self._messages: list[Place] = []
        """Positions of the group's messages."""
        self._digests: dict[Place, bytes] = {}
        """State of a program, by the position of the last message (or START) that made it."""
        self._starts: list[Place] = []
        self._rosters: dict[Place, tuple[object, object]] = {}
        self._views: list[frozenset[Who]] = []
        self._seen_starts: dict[Who, int] = {}
        self._base: dict[Who, Place] = {}
        """Position of the START that a program's state began with, if no message has come since."""
        self._own: dict[Who, tuple[str, int]] = {}
        """Each program's state (history, number of rows) as it was last changed by right."""
        self._offers: dict[Who, tuple[int, list[tuple[Who, int]]]] = {}
        """Number and offers (donor, when) of each joiner's last transfer."""
        self._told: dict[Who, tuple[Place, Place]] = {}
        """(view, position of its state) by member's last HAVE."""
        self._applied: dict[Who, int] = {}
        """Number of the group's messages, from the beginning, that the program's state takes account of."""

    def _fail(self, checker: str, text: str) -> None:
        raise Violation(checker, f"{self.world.now / S:.4f}: {text}")

    # ---- events

    def on_message(self, place: Place) -> None:
        self._messages.append(place)

    def on_view(self, members: set[Who]) -> None:
        self._views.append(frozenset(members))

    def on_order(self, member: Member, place: Place) -> None:
        """A member has taken a message or view of the companion group."""
        roster = member.transfer.roster
        if roster.known and member.transfer.failed is None:
            seen = (sorted(roster.active), sorted(roster.transfers.values()))
            first = self._rosters.setdefault(place, seen)
            if first != seen:
                self._fail("roster", f"at {place} {member.who} holds {seen}, another member {first}")
        if roster.started != self._seen_starts.get(member.who, 0):
            self._seen_starts[member.who] = roster.started
            if roster.started:
                self._on_start(member, place)

    def _on_start(self, member: Member, place: Place) -> None:
        roster = member.transfer.roster
        if member.who not in roster.active:
            return
        if place not in self._starts:
            bisect.insort(self._starts, place)
        digest = member.program.table.digest()
        self._applied[member.who] = bisect.bisect_right(self._messages, place)
        self._note_digest(member, place, digest)
        self._base[member.who] = place
        _, mine = self._told.get(member.who, (NOWHERE, NOWHERE))
        for who in roster.members:
            view, place_told = self._told.get(who, (NOWHERE, NOWHERE))
            if view == roster.view and place_told > mine:
                self._fail("furthest", f"{member.who} starts with {mine}, although {who} has {place_told}")

    def on_control(self, sender: Who, data: bytes) -> None:
        """A message of the companion group gets its position."""
        m = decode(data)
        if isinstance(m, OfferMessage):
            number, offers = self._offers.get(m.joiner, (0, []))
            self._offers[m.joiner] = (m.number, [*(offers if number == m.number else []), (sender, self.world.now)])
        elif isinstance(m, Holding):
            self._told[sender] = (m.view, m.have.place if m.have and not m.damaged else NOWHERE)

    def _note_digest(self, member: Member, place: Place, digest: bytes) -> None:
        self._keep_own(member)
        if member.damaged:
            return
        first = self._digests.setdefault(place, digest)
        if first != digest:
            self._fail("equal", f"at {place} the state of {member.who} is another than a former one")

    def on_apply(self, member: Member, place: Place, key: str, value: int) -> None:
        """A program applies a message."""
        index = bisect.bisect_left(self._messages, place)
        have = self._applied.get(member.who)
        if have != index:
            self._fail("complete", f"{member.who} applies message {index}; its state has {have}")
        self._check_own(member)
        member.program.table.apply(place, key, value)
        self._applied[member.who] = index + 1
        self._note_digest(member, place, member.program.table.digest())

    def _keep_own(self, member: Member) -> None:
        table = member.program.table
        self._own[member.who] = (table.history, len(table.rows))

    def _check_own(self, member: Member) -> None:
        table = member.program.table
        own = self._own.get(member.who)
        if own is not None and own != (table.history, len(table.rows)) and not member.damaged:
            self._fail("old_state", f"the state of {member.who} has changed without a commit")

    def on_note(self, member: Member, note: Note) -> None:
        if note.kind == "active" and member.transfer.gate.value != "open":
            self._fail("honest", f"{member.who} is active without a state")

    def on_member(self, member: Member) -> None:
        """After each turn of a member."""
        self._check_commits(member)
        self._check_own(member)
        transfer = member.transfer
        served = [d for d in transfer.donations.values() if d.snapshot is not None]
        if len(transfer.donations) > TRANSFERS_MAX:
            self._fail("bounded", f"{member.who} serves {len(transfer.donations)} transfers")
        if len(member.program.snapshots.open) > len(served):
            self._fail("released", f"{member.who} has {len(member.program.snapshots.open)} snapshots, serves {len(served)}")
        for donation in served:
            if donation.held_bytes > 2 * CHUNK_MAX:
                self._fail("bounded", f"{member.who} holds {donation.held_bytes} bytes")
        attempt = transfer.attempt
        for who, parts in attempt.under_way().items() if attempt else ():
            if parts > PARTS_MAX:
                self._fail("bounded", f"{parts} parts are under way from {who} to {member.who}")

    def _check_commits(self, member: Member) -> None:
        commits = member.program.commits
        for offer, digest in commits:
            donor = self.world.members[offer.donor]
            last = self._last_before(offer.place)
            known = self._digests.get(last) if last != NOWHERE else None
            # Of a damaged donor's state nothing is known before another program has been as far.
            wrong = known != digest if known is not None else donor.damaged
            if wrong and not donor.damaged:
                self._fail("place", f"{member.who} restored another state than that at {offer.place}")
            if wrong and self._compared(member):
                self._fail(
                    "join", f"{member.who} took a damaged state of {offer.donor}, although another donor had offered its own"
                )
            member.damaged = wrong
            self._applied[member.who] = bisect.bisect_right(self._messages, offer.place)
            if last != NOWHERE and not wrong:
                self._digests[last] = digest
            self._keep_own(member)
        commits.clear()

    def _compared(self, member: Member) -> bool:
        """At least two donors offered in time, and not most of them were damaged."""
        _, offers = self._offers.get(member.who, (0, []))
        times = [when for _, when in offers]
        honest = 2 * sum(self.world.members[who].damaged for who, _ in offers) <= len(offers)
        return len(offers) > 1 and honest and times[1] - times[0] < S and member.muted_until == 0

    def _last_before(self, place: Place) -> Place:
        """Position of the message or START that made the state at ``place``."""
        at = bisect.bisect_right(self._messages, place)
        start = bisect.bisect_right(self._starts, place)
        return max(self._messages[at - 1] if at else NOWHERE, self._starts[start - 1] if start else NOWHERE)

    def on_failed(self, member: Member) -> None:
        """The join of a member has failed."""
        if not self.damaged and ALL_DAMAGED not in str(member.transfer.failed):
            self._fail("join", f"{member.who} gave up: {member.transfer.failed}")
        member.damaged = False

    # ---- the end

    def at_rest(self) -> bool:
        now = self.world.now
        return all(
            m.transfer.active and not m.batch and not m.transfer.readable and max(m.ready_at.values()) < now
            for m in self.world.live()
        )

    def finish(self) -> None:
        """All is repaired, and time has passed."""
        world = self.world
        for member in world.live():
            transfer = member.transfer
            if not transfer.active and not self.damaged:
                self._fail("liveness", f"{member.who} is not active: {transfer.gate}, {transfer.roster.active}")
            if transfer.active and world.now - member.last_control < S and not self.damaged:
                self._fail("silence", f"{member.who} still sends")
            if not self.damaged and (transfer.donations or member.program.snapshots.open):
                self._fail("released", f"{member.who} serves {sorted(transfer.donations)}")
        if not self.damaged:
            digests = {m.program.table.digest() for m in world.live()}
            if len(digests) > 1:
                self._fail("equal", f"the states at the end differ: {len(digests)}")
