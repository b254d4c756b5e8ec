"""State transfer at a position in the total order: the machine of one member of a group with state.

A member that joins gets the state as of the position of its own ASK from an active member, while messages flow, and then all
later messages of the group. This module composes the roster (rules X2, X10), the donor (X4, X6), the joiner (X5 to X8) and the
queue between the order and the program (X3, X9).

Sans-I/O: times are monotonic nanoseconds and arguments. ``take`` returns the effects, in order. The program's own objects
(``stateapi``) are called directly.

Two positions matter at each member: the position that the order has reached, and the position up to which the program has read. A
snapshot, and the answer to "what do you have", belong to the second: they wait as markers in the queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic

from ..errors import UsageError
from ..timers import NEVER
from .donor import Donation
from .joiner import Attempt, Building
from .roster import RosterState
from .stateapi import Gated, Starting, State
from .transfertypes import (
    CloseMailbox,
    Digest,
    Effect,
    Gate,
    Item,
    MemoryQueue,
    Note,
    OpenMailbox,
    Options,
    Queue,
    Release,
    ToGroup,
    ToJoiner,
)
from .transferwire import (
    DONORS_MAX,
    MESSAGE_MIN,
    NOWHERE,
    Active,
    Ask,
    Chunk,
    Control,
    Data,
    Failed,
    Fetch,
    Gone,
    Have,
    List,
    Listing,
    OfferMessage,
    Place,
    Preparing,
    Who,
    decode,
    encode,
)

S: Final = 1_000_000_000
CATCH_UP: Final = 1000
"""A joiner with fewer kept messages left declares itself active."""
SIGN_NS: Final = S
"""While a snapshot's digest is computed, the donor reports that at this interval."""
IDLE_NS: Final = 600 * S
"""A snapshot that has not been read for this time is closed."""
MISMATCHES_MAX: Final = 3
"""Restored states with a wrong digest, until the join fails."""
PROGRESS_BYTES: Final = 16 << 20
"""Progress is reported each time after this number of bytes."""
ALL_DAMAGED: Final = "the state of every member is damaged: none can start"
TOO_SMALL: Final = f"state transfer needs a message_max of at least {MESSAGE_MIN} bytes; the cluster's is "


class Transfer(Generic[Item]):
    """State transfer at one member.

    Inputs come in the order in which the daemon delivers: ``on_view`` and ``on_control`` for the companion group, ``on_item`` for
    the group. Nothing raises for what a peer sent; it is dropped and counted in ``counters``.
    """

    roster_class: type[RosterState] = RosterState
    attempt_class: type[Attempt] = Attempt
    donation_class: type[Donation] = Donation

    def __init__(self, me: Who, state: State, options: Options, queue: Queue[tuple[Item, Place]] | None = None) -> None:
        """Raises UsageError if the cluster's messages are too small."""
        if options.message_max < MESSAGE_MIN:
            raise UsageError(f"{TOO_SMALL}{options.message_max}")
        self.me = me
        self.options = options
        self.counters: Counter[str] = Counter()
        self.failed: Exception | None = None
        """Why this member cannot get the state; then nothing happens any more."""
        self.place: Place = NOWHERE
        """Position up to which the program's state contains the group's messages."""
        self.gate = Gate.DROP
        self.roster = self.roster_class(me, options.holders, self.counters)
        self.donations: dict[Who, Donation] = {}
        self._state = state
        self._queue: Queue[tuple[Item, Place]] = queue if queue is not None else MemoryQueue()
        self._effects: list[Effect] = []
        self._markers: deque[tuple[int, Callable[[int], None]]] = deque()
        self._appended = self._taken = 0
        self._reading = False
        """The program has a batch that it may not have finished with."""
        self._group_joined = False
        self._mailbox = ""
        """Empty, ``opening`` or ``open``."""
        self._number = options.number % (1 << 64)
        self._asked = 0
        """Number of the ASK under way or taken; 0: none."""
        self.attempt: Attempt | None = None
        """From the own ASK's position to the restored state."""
        self._building: Building | None = None
        self._ready = False
        """The program has read what it is to read before it may be asked for its state, or given one."""
        self._restored = False
        self._active_sent = False
        self._was_active = False
        self._damaged = False
        self._whole = False
        self._bad: set[Who] = set()
        self._silent: set[Who] = set()
        self._mismatches = 0
        self._diverged = False
        self._progress = 0

    # ---- facts

    @property
    def active(self) -> bool:
        """This member's state is the group's, from a position on that the order has reached."""
        return self.gate is Gate.OPEN and self.me in self.roster.active

    @property
    def stands(self) -> bool:
        """The program has a state that its next message belongs to: it may read."""
        return self.gate is Gate.OPEN

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes of the state that have come, and the total (-1: not known), in the present attempt."""
        attempt = self.attempt
        if attempt is None:
            return 0, -1
        return attempt.size, attempt.offer.size if attempt.offer else -1

    def next_deadline(self) -> int:
        """When ``on_timeout`` has something to do; monotonic nanoseconds, NEVER if nothing."""
        if self.failed:
            return NEVER
        at = self.roster.next_deadline()
        if self.attempt is not None:
            at = min(at, self.attempt.next_deadline())
        return min([at, *(min(d.read_at + IDLE_NS, d.sign_at) for d in self.donations.values())])

    def take(self) -> list[Effect]:
        """What is to be done now, in order."""
        effects, self._effects = self._effects, []
        return effects

    def close(self) -> None:
        """The member leaves: close the snapshots that it serves, drop a state that is being built."""
        for donation in list(self.donations.values()):
            self._close(donation)
        self._drop_building()
        self.attempt = None
        self._effects.clear()

    # ---- inputs in the order

    def on_view(self, now: int, place: Place, members: Iterable[Who], joined: Iterable[Who], left: Iterable[Who]) -> None:
        """A view of the companion group. One in which this member joins restarts everything: its station has been expelled and
        admitted again, or the cluster has opened again."""
        if self.failed:
            return
        came = set(joined)
        if self.me in came:
            self._restart(now)
        self.roster.on_view(now, place, members, came, left)
        if self.me in came:
            self._wait_for_program(now)
        self._settle(now)

    def on_group(self, now: int) -> None:
        """This member is in the group itself (again): its messages come from here on."""
        self._group_joined = True
        self._settle(now)

    def on_mailbox(self, now: int) -> None:
        """This member is in its mailbox group."""
        if self._mailbox == "opening":
            self._mailbox = "open"
            self._settle(now)

    def on_control(self, now: int, place: Place, sender: Who, data: bytes) -> None:
        """A message of the companion group at its position."""
        m = decode(data)
        if self.failed:
            return
        if m is None or isinstance(m, Listing | Chunk):
            self.counters["malformed"] += 1
            return
        starts = self.roster.started
        self.roster.on_control(now, sender, m)
        if self.roster.started != starts:
            self._on_start(now, place)
        if isinstance(m, Ask):
            self._on_ask(now, place, sender, m)
        elif isinstance(m, OfferMessage):
            self._on_offer(now, sender, m)
        elif isinstance(m, List | Fetch):
            self._on_request(now, sender, m)
        elif isinstance(m, Gone) and m.joiner == self.me and self.attempt and m.number == self.attempt.number:
            self.attempt.drop(now, sender, silent=True)
        elif isinstance(m, Preparing) and m.joiner == self.me and self.attempt and m.number == self.attempt.number:
            self.attempt.on_preparing(now, sender)
        elif isinstance(m, Active) and sender == self.me:
            self._on_own_active(now)
        elif isinstance(m, Failed) and sender == self.me:
            self._wait_for_program(now)
        self._settle(now)

    def on_data(self, now: int, sender: Who, data: bytes) -> None:
        """A message of this member's mailbox."""
        m, attempt = decode(data), self.attempt
        if m is None or not isinstance(m, Listing | Chunk):
            self.counters["malformed"] += 1
        elif attempt is None or attempt.number != m.number:
            self.counters["data-unasked"] += 1
        else:
            if isinstance(m, Listing):
                attempt.on_listing(now, sender, m)
            else:
                attempt.on_chunk(now, sender, m)
            self._settle(now)

    def on_item(self, now: int, item: Item, place: Place, size: int) -> None:
        """A message (or view, or event) of the group. size: bytes that it takes."""
        if self.gate is Gate.DROP or self.failed:
            return
        # Behind the own ACTIVE there is no way back: a full queue would leave the roster with an active member without a state.
        if self._queue.append((item, place), size, limited=not self._active_sent):
            self._appended += 1
            if self.gate is Gate.OPEN and not self.active:
                self._settle(now)
            return
        # Asked again, the state comes with all that did not fit.
        self.counters["overflow"] += 1
        self._note("overflow", "more messages than can be kept came before the state stood: asking for it again")
        self._sync_again(now)
        self._settle(now)

    def on_timeout(self, now: int) -> None:
        """Do what is due. Early and late calls are harmless."""
        if self.failed:
            return
        self.roster.on_timeout(now)
        if self.attempt is not None:
            self._building = self.attempt.on_timeout(now, self._building)
        for donation in list(self.donations.values()):
            if now >= donation.read_at + IDLE_NS:
                self._give_up(donation, "the joiner has asked for nothing for ten minutes")
            elif now >= donation.sign_at:
                donation.sign_at = now + SIGN_NS
                self._send(Preparing(donation.joiner, donation.number))
        self._settle(now)

    # ---- the program

    def poll(self, now: int) -> int:
        """The program has finished with everything it has read. Returns how many items it can read now."""
        self._reading = False
        self._fire(now)
        self._settle(now)
        return self.readable

    def read(self, count: int) -> list[Item]:
        """Up to ``count`` items; call ``poll`` before, and again when the program has applied them."""
        pairs = self._queue.pop(min(count, self.readable))
        if pairs:
            self._taken += len(pairs)
            self.place = max(self.place, pairs[-1][1])
            self._reading = True
        return [item for item, _ in pairs]

    def allow(self, now: int) -> None:
        """The program's ``may_ask`` has become true."""
        if not self.failed:
            self._settle(now)

    def fail(self, now: int, reason: str) -> None:
        """The program has found its state to be wrong: get it again."""
        if self.failed:
            return
        self._damaged = self._whole = True
        if self.me in self.roster.active or self._active_sent:
            self._send(Failed(reason))
        self._note("syncing", reason)
        self._sync_again(now)
        self._settle(now)

    @property
    def readable(self) -> int:
        """Number of items that the program can read before something else has to happen."""
        if self.gate is Gate.KEEP or self.failed:
            return 0
        end = self._markers[0][0] if self._markers else self._appended
        return max(0, min(end, self._appended) - self._taken)

    def _mark(self, now: int, action: Callable[[int], None]) -> None:
        """Call ``action`` when the program has read everything that is in the queue now."""
        self._markers.append((self._appended, action))
        self._fire(now)

    def _fire(self, now: int) -> None:
        while self._markers and not self._reading and self._taken >= self._markers[0][0] and not self.failed:
            self._markers.popleft()[1](now)

    def _forget_unread(self) -> None:
        self._queue.clear()
        self._appended = self._taken
        self._markers.clear()

    # ---- own standing

    def _restart(self, now: int) -> None:
        for donation in list(self.donations.values()):
            self._close(donation)
        self.roster.leave()
        self._group_joined = False
        if self.gate is Gate.KEEP:
            self._forget_unread()
        self._stop_attempt()
        self._silent.clear()

    def _stop_attempt(self) -> None:
        self.gate = Gate.DROP
        self.attempt = None
        self._asked = 0
        self._ready = self._restored = self._active_sent = False
        self._was_active = False

    def _sync_again(self, now: int) -> None:
        """This member's state is not the group's, or cannot become so by what is here."""
        self._forget_unread()
        self._stop_attempt()
        self._wait_for_program(now)

    def _wait_for_program(self, now: int) -> None:
        self._ready = False

        def ready(now: int) -> None:
            self._ready = True

        self._mark(now, ready)

    def _on_start(self, now: int, place: Place) -> None:
        """A START has taken effect at ``place``."""
        if self.me not in self.roster.active:
            self._sync_again(now)
            return
        self.attempt, self._asked = None, 0
        self._drop_building()
        self.gate = Gate.OPEN
        self.place = place
        self._restored = self._active_sent = True
        if isinstance(self._state, Starting):
            self._state.start(place, self.roster.members)

    def _on_own_active(self, now: int) -> None:
        if not self.active:
            self._sync_again(now)

    def _own_have(self) -> Have | None:
        have = self._state.have()
        return Have(self.place) if have is None and self.place != NOWHERE else have

    # ---- the joiner

    def _want_state(self, now: int) -> None:
        """Send an ASK if one is due and a donor is free."""
        roster = self.roster
        if not (self._ready and self._group_joined and roster.known and roster.active) or self._asked or self._restored:
            return
        if self.me in roster.active:
            return
        if not self._mailbox:
            self._mailbox = "opening"
            self._effects.append(OpenMailbox())
        if self._mailbox != "open":
            return
        if isinstance(self._state, Gated) and not self._state.may_ask():
            return
        if not roster.active - self._bad:
            self._give_up_join(f"the state of every active member ({_names(self._bad)}) was wrong")
            return
        free = [w for w in roster.free(self.me) if w not in self._bad]
        donors = [w for w in free if w not in self._silent]
        if not donors or self._diverged:
            self._silent.clear()
            donors = free
        if self._diverged and len(donors) < DONORS_MAX:
            self._give_up_join("two donors have unequal states at one position, and there is no third to compare with")
            return
        if not donors:
            return  # each has as many transfers as it may: one will end
        wanted = DONORS_MAX if self._diverged else self.options.donors
        have = None if self._whole or self._damaged else self._own_have()
        self._number = self._number % ((1 << 64) - 1) + 1
        self._asked = self._number
        self._send(Ask(self._number, tuple(donors[:wanted]), have))
        self._note("asked", f"asked {_names(donors[:wanted])} for the state")

    def _on_ask(self, now: int, place: Place, sender: Who, m: Ask) -> None:
        mine = self.roster.transfers.get(sender)
        if not self.roster.known or mine is None or mine.number != m.number:
            return
        if sender == self.me and m.number == self._asked:
            if not mine.donors:
                self._asked = 0
                return
            self._forget_unread()
            self.gate = Gate.KEEP
            self.attempt = self.attempt_class(
                self._state, m.number, place, mine.donors, self.options.message_max, self.counters, now
            )
            self.attempt.compare = self._diverged
        elif self.me in mine.donors and self.gate is not Gate.OPEN:
            # Its own FAILED is under way: the state is wrong, or is not the one at this position.
            self._send(Gone(sender, m.number, "the donor's state is wrong"))
        elif self.me in mine.donors:
            self._serve(now, self.donation_class(sender, m.number, place, m.have, now))

    def _on_offer(self, now: int, sender: Who, m: OfferMessage) -> None:
        if m.joiner != self.me:
            return
        if self.attempt is None or self.attempt.number != m.number:
            self.counters["offer-unasked"] += 1
            return
        self._building = self.attempt.on_offer(now, sender, m, self._building)
        offer = self.attempt.offer
        if offer is not None and self.attempt.outcome is None:
            kind = "delta" if offer.delta else "state"
            self._note("offer", f"{offer.donor[0]}.{offer.donor[1]} serves a {kind}", offer.place, 0, offer.size)

    def _judge(self, now: int) -> None:
        """The attempt has come to something."""
        attempt = self.attempt
        if attempt is None:
            return
        current = self.roster.transfers.get(self.me)
        serving = current.donors if current is not None and current.number == attempt.number else ()
        if attempt.outcome is None:
            for who in [d for d in attempt.donors if d not in serving]:
                attempt.drop(now, who)
        if attempt.size // PROGRESS_BYTES > self._progress:
            self._progress = attempt.size // PROGRESS_BYTES
            total = attempt.offer.size if attempt.offer else -1
            self._note("progress", f"{attempt.size} bytes of the state are here", attempt.place, attempt.size, total)
        if attempt.outcome == "slow":
            others = set(self.roster.free(self.me)) - self._bad - self._silent - set(attempt.donors)
            if not others:
                attempt.wait_more(now)
            else:
                self._silent |= set(attempt.donors)
                attempt.outcome = "again"
        if attempt.outcome is not None:
            self._conclude(now, attempt)

    def _conclude(self, now: int, attempt: Attempt) -> None:
        self._emit(attempt.out)
        self._silent |= attempt.silent
        self.attempt, self._progress = None, 0
        if attempt.bad and not attempt.mismatch:
            self._note("diverged", f"left out for wrong data: {_names(attempt.bad)}", attempt.place)
        self._bad |= attempt.bad
        self._whole |= attempt.ask_all
        self._mismatches += attempt.mismatch
        if attempt.outcome == "restored":
            self._restored, self._damaged, self._whole, self._diverged = True, False, False, False
            self._building = None
            self._silent.clear()
            self.gate = Gate.OPEN
            self.place = attempt.place
            self._note("restored", "the state stands", attempt.place, attempt.size, attempt.size)
            return
        self._asked = 0
        self.gate = Gate.DROP
        self._forget_unread()
        if attempt.outcome == "failed":
            self._give_up_join(f"the program could not restore the state: {attempt.error}", attempt.error)
        elif attempt.outcome == "diverged":
            self._note("diverged", f"unequal states at one position: {_names(attempt.donors)}", attempt.place)
            if self._diverged:
                self._give_up_join("no two of three donors have equal states")
            self._diverged = True
        elif attempt.mismatch:
            self._drop_building()
            if self._mismatches >= MISMATCHES_MAX:
                self._give_up_join(f"{self._mismatches} restored states did not have the digest that was offered")

    def _drop_building(self) -> None:
        building, self._building = self._building, None
        if building is not None:
            try:
                building.restore.abort()
            except Exception as error:
                self._give_up_join(f"the program could not drop a state: {error}", error)

    @property
    def _catching_up(self) -> bool:
        return self._restored and self.gate is Gate.OPEN and not self.active

    def _catch_up(self) -> None:
        """Declare this member active when few kept messages are left, or at once if no member is active any more."""
        mine = self.roster.transfers.get(self.me)
        if not self._catching_up or self._active_sent or mine is None or mine.number != self._asked:
            return
        if self._appended - self._taken < CATCH_UP or self.roster.vacant:
            self._active_sent = True
            self._send(Active(self._asked))

    def _give_up_join(self, reason: str, cause: Exception | None = None) -> None:
        if self.failed is None:
            self.failed = UsageError(reason)
            self.failed.__cause__ = cause
            self.attempt = None
            self._note("failed", reason)
            building, self._building = self._building, None
            if building is not None and cause is None:
                building.restore.abort()
            for donation in list(self.donations.values()):
                self._close(donation)

    # ---- the donor

    def _serve(self, now: int, donation: Donation) -> None:
        old = self.donations.get(donation.joiner)
        if old is not None:
            self._close(old)
        self.donations[donation.joiner] = donation

        def snapshot(now: int) -> None:
            if self.donations.get(donation.joiner) is not donation:
                return
            try:
                shot = self._state.snapshot(donation.place, donation.have)
                donation.open(shot)
                donation.read_at = now
                digest = shot.digest
                if callable(digest):
                    donation.sign_at = now + SIGN_NS
                    self._effects.append(Digest(donation.joiner, donation.number, digest))
                else:
                    self._offer(donation, digest)
            except Exception as error:
                self._no_snapshot(donation, error)

        self._mark(now, snapshot)

    def on_digest(self, now: int, joiner: Who, number: int, digest: bytes | Exception | None) -> None:
        """What a snapshot's own function has returned, or raised, as its digest."""
        donation = self.donations.get(joiner)
        if donation is None or donation.number != number or donation.sign_at == NEVER or self.failed:
            return
        try:
            if isinstance(digest, Exception):
                raise digest
            donation.read_at = now
            self._offer(donation, digest)
        except Exception as error:
            self._no_snapshot(donation, error)
        self._settle(now)

    def _offer(self, donation: Donation, digest: bytes | None) -> None:
        """Raises UsageError for a digest that is none."""
        donation.complete(digest)
        shot = donation.snapshot
        if shot is None:
            return
        fields = (shot.delta, donation.readable, shot.count, shot.size, donation.digest or b"")
        self._send(OfferMessage(donation.joiner, donation.number, *fields))
        self._note("serving", f"serving {_names([donation.joiner])}", donation.place, 0, shot.size)

    def _no_snapshot(self, donation: Donation, error: Exception) -> None:
        self._give_up(donation, f"no snapshot: {error}")
        self._note("snapshot-failed", str(error), donation.place)

    def _on_request(self, now: int, joiner: Who, m: List | Fetch) -> None:
        if m.donor != self.me:
            return
        donation = self.donations.get(joiner)
        if donation is None or donation.number != m.number or donation.snapshot is None or donation.sign_at != NEVER:
            self.counters["request-unknown"] += 1
            return
        donation.read_at = now
        answers: Iterable[Data] | None
        try:
            if isinstance(m, Fetch):
                answers = donation.fetch(m)
            else:
                listing = donation.answer(m, self.options.message_max)
                answers = None if listing is None else (listing,)
        except Exception as error:
            self._give_up(donation, f"the snapshot cannot be read: {error}")
            self._note("snapshot-failed", str(error), donation.place)
            return
        if answers is None:
            self.counters["request-wrong"] += 1
            return
        self._effects += [ToJoiner(joiner, encode(answer)) for answer in answers]

    def _give_up(self, donation: Donation, reason: str) -> None:
        self._send(Gone(donation.joiner, donation.number, reason))
        self._close(donation)

    def _close(self, donation: Donation) -> None:
        if self.donations.get(donation.joiner) is donation:
            del self.donations[donation.joiner]
            self._effects.append(Release(donation.joiner))
        try:
            donation.close()
        except Exception as error:
            self._note("snapshot-failed", f"closing a snapshot: {error}", donation.place)

    def _end_donations(self) -> None:
        """Close what the order has ended: END, ACTIVE, FAILED, a new ASK, a START, a view without the joiner."""
        for donation in list(self.donations.values()):
            open_one = self.roster.transfers.get(donation.joiner)
            if open_one is None or open_one.number != donation.number or self.me not in open_one.donors:
                self._close(donation)

    # ---- after every input

    def _settle(self, now: int) -> None:
        if self.failed:
            return
        if self.roster.hopeless:
            self._give_up_join(ALL_DAMAGED)
            return
        self._emit(self.roster.out)
        for kind, text in self.roster.notes:
            self._note(kind, text, self.roster.view)
        self.roster.notes.clear()
        self._end_donations()
        if self.attempt is not None:
            self._judge(now)
        if self.attempt is not None:
            self._emit(self.attempt.out)
        if self._restored and not self.active and self._asked and self._asked not in self._open_numbers():
            self._sync_again(now)  # a START has made another state the group's
        try:
            # A member that is catching up needs no START: with what it keeps, its state is the group's.
            if self.roster.have_due(now) and not self._catching_up:
                self._mark(now, self._tell)
            self._want_state(now)
        except Exception as error:  # from the program's ``have``
            self._give_up_join(f"the program could not tell what it has: {error}", error)
        self._emit(self.roster.out)
        self._catch_up()
        self._look_active()

    def _open_numbers(self) -> set[int]:
        mine = self.roster.transfers.get(self.me)
        return {mine.number} if mine is not None else set()

    def _tell(self, now: int) -> None:
        self.roster.tell(None if self._damaged else self._own_have(), self._damaged)

    def _look_active(self) -> None:
        if self.active and not self._was_active:
            self._was_active = True
            self._asked = 0
            if self._mailbox:
                self._mailbox = ""
                self._effects.append(CloseMailbox())
            self._note("active", "this member's state is the group's", self.place)

    def _send(self, m: Control) -> None:
        self._effects.append(ToGroup(encode(m)))

    def _emit(self, messages: list[Any]) -> None:
        for m in messages:
            self._send(m)
        messages.clear()

    def _note(self, kind: str, text: str, place: Place = NOWHERE, size: int = 0, total: int = -1) -> None:
        self._effects.append(Note(kind, text, place, size, total))


def _names(members: Iterable[Who]) -> str:
    return ", ".join(f"{station}.{client}" for station, client in sorted(members))
