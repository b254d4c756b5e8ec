"""Which configuration a station runs under, and how a running cluster goes over to the next one (docs/adr/0032).

A configuration is a number and options, which are opaque here. The way from number c to c + 1 is one decree of Paxos: acceptors
are the stations of c, a ballot is a place in the total order, or the number of a proposal to open (<< 32). What an acceptor has
accepted is its *mark*, durable before anybody else learns of it. From then on the station counts for no quorum of c (``joint``,
and the driver runs it under the marked configuration) until it learns that the attempt was given up.

Rules, by their names in the page: V1 ``_on_change``, ``_on_prepared``, ``on_view``; V2 ``_commit``; V3 ``promise``,
``accept``, ``begun``, ``_on_commit``; V4 ``_keep``, ``hear``; V5 ``hear``; V6 is the driver's (``Quorum.outside``).

The driver passes in what the order says once it has reached level preack, and the claims of OPENs; it applies the effects in
order. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from .configmessages import ConfigMessage, Say
from .errors import UsageError
from .openpdu import CONFIGURATIONS_MAX, Claim
from .wire import CONFIGURATION_MAX

KEEP_GAP_NS: Final = 500_000_000
"""A member says KEEP so often at most."""
LEAN_NS: Final = 3_000_000_000
"""Time for which a mark that another station has told counts here; the own one stays."""
ATTEMPT_NS: Final = 10_000_000_000
"""A member says UNABLE when an attempt has taken so long: a member that says nothing must not hold the programs of all."""
SAY_GAP_NS: Final = 10_000_000_000
"""The same refusal is said so often at most."""
AHEAD_MAX: Final = 2**20
"""A configuration that is so much later than the own one is not believed: one frame must not use up the numbers."""


class Stand(NamedTuple):
    """What a station has durable."""

    number: int
    options: bytes
    """Of its configuration."""
    ballot: int = 0
    proposed: bytes = b""
    """Its mark: the options of ``number`` + 1; empty: it has none."""
    promise: int = 0
    """It makes no mark at a lower ballot (V3)."""
    kept: int = 0
    """As in ``Claim``: of an attempt that this station gave up (V4)."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Make this durable before anything that follows, and before any frame leaves."""

    stand: Stand
    is_mark: bool = False
    """Of an attempt, at a member; the effect behind it tells the others. Where it cannot be written, ``Changing.unmarked`` says
    what is told in place of that. Any other that cannot be written ends the station."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this in the order."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hold:
    """Take no messages of programs (``yes``), or take them again."""

    yes: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """Leave the instance, if in one, and go on under these options. ``former``: a quorum of these is needed, too (V3); None: it
    is not."""

    number: int
    options: bytes
    former: bytes | None
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The configuration that the station runs under is decided: a quorum of the former one is not needed any more, and stations
    that it does not list take no part any more."""

    number: int
    options: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Said:
    """For the journal. ``outcome``: of an attempt of a member, for who has asked for it; None: it is about something else."""

    text: str
    warning: bool = False
    outcome: bool | None = None


Effect: TypeAlias = Keep | Tell | Hold | Adopt | Settled | Said


@dataclass(slots=True)
class _Attempt:
    """Under way in the instance."""

    ballot: int
    options: bytes
    prepared: set[int]
    asked: int
    begun_ns: int
    is_over: bool = False
    """This station has said UNABLE."""


class Changing:
    """One station's."""

    def __init__(
        self,
        station: int,
        stand: Stand,
        *,
        newcomer: bool = False,
        unfit: Callable[[bytes], str] = lambda options: "",
    ) -> None:
        """newcomer: it has never been in an instance of this cluster, so that its file says nothing of the others' configuration.
        unfit: why these options cannot be those of the next configuration; empty: they can."""
        self.station = station
        self.stand = stand
        self._newcomer = newcomer
        self._unfit = unfit
        self.kept = stand.kept
        """As in ``Claim``. What was heard of others is not durable: they have it."""
        self._has_given_up = False
        """By UNABLE, in this instance: the next view event shows that it stays so."""
        self.members: frozenset[int] = frozenset()
        """Of the instance; empty: this station is in none."""
        self.instance = 0
        self._attempt: _Attempt | None = None
        self._before = stand
        """Stand before the last mark."""
        # ballot, options, former: the mark of the highest ballot that is known, and when another station has told it
        self._best: tuple[int, bytes, bytes] | None = None
        self._told_ns = 0
        if stand.ballot:
            self._best = (stand.ballot, stand.proposed, stand.options)
        self._kept_ns = -KEEP_GAP_NS
        self._refused: tuple[tuple[int, bytes], int] | None = None
        """Configuration that was refused last, and when that was said."""
        self.changes = 0
        """Configurations that were taken over."""

    # ---- what the station runs under
    @property
    def joint(self) -> bytes | None:
        """Options of the configuration of which a quorum is needed as well; None: of none."""
        return self._best[2] if self._best is not None and not self._attempt else None

    @property
    def options(self) -> bytes:
        """Of the configuration that it runs under."""
        return self._best[1] if self._best is not None and not self._attempt else self.stand.options

    @property
    def number(self) -> int:
        """Of that."""
        return self.stand.number + (self.joint is not None)

    @property
    def under_way(self) -> bool:
        """A change is under way in this instance."""
        return self._attempt is not None

    def claim(self, always: bool = False) -> Claim | None:
        """What its OPENs say; nothing where configurations have never changed, unless ``always``."""
        stand = self.stand
        if not stand.number and not self.kept and not stand.ballot and self.joint is None and not always:
            return None
        if self._attempt is not None:  # it may be given up yet
            return Claim(stand.number, stand.options, 0, b"", self.kept)
        return Claim(stand.number, stand.options, stand.ballot, stand.proposed, self.kept)

    # ---- what an operator asks for
    def propose(self, options: bytes) -> bytes:
        """The message that proposes these options. Raises UsageError."""
        if not self.members:
            raise UsageError("this station is in no instance: a configuration changes in the order of one")
        if self._attempt is not None or self.joint is not None:
            raise UsageError(f"configuration {self.stand.number + 1} is under way: one change at a time")
        if options == self.stand.options:
            raise UsageError("that would change nothing")
        if len(options) > CONFIGURATION_MAX:
            raise UsageError(f"the options that are not at their defaults take {len(options)} bytes; at most {CONFIGURATION_MAX}")
        if self.stand.number >= CONFIGURATIONS_MAX:
            raise UsageError("the numbers of configurations are used up")
        if why := self._unfit(options):
            raise UsageError(why)
        return ConfigMessage(Say.CHANGE, self.stand.number + 1, 0, options).packed()

    # ---- instances
    def begun(self, instance: int, members: Iterable[int]) -> list[Effect]:
        """An instance has begun here."""
        self.instance, self.members, self._attempt = instance, frozenset(members), None
        self._newcomer = self._has_given_up = False
        return self._say_commit()

    def ended(self) -> list[Effect]:
        """The instance has ended here. Whoever has made a mark goes forward with it."""
        self.members, attempt = frozenset(), self._attempt
        if attempt is None:
            return []
        self._attempt = None
        effects: list[Effect] = [Hold(False)]
        if self.stand.ballot == attempt.ballot:
            self._best = (attempt.ballot, attempt.options, self.stand.options)
            effects.append(self._adopt("the instance ended while the configuration was changing"))
        return effects

    def promise(self, instance: int) -> list[Effect]:
        """V3: this station is about to say a proposal of this number, under ``joint``. Until all members of it have said it,
        nothing is marked: a mark that one station alone made would bind those who have not heard of it."""
        if self.joint is None:
            return []
        return self._make(self.stand._replace(promise=max(self.stand.promise, instance << 32)))

    def accept(self, instance: int) -> list[Effect]:
        """V3: all members of a proposal of this number have said it, under ``joint``. The mark takes that ballot: none of them
        marks, or has marked, anything at a lower one since it said it."""
        best = self._best
        if best is None or self.joint is None:
            return []
        self._best = (instance << 32, best[1], best[2])
        return self._make(self.stand._replace(options=best[2], ballot=instance << 32, proposed=best[1]))

    # ---- what the order says, at level preack
    def on_message(self, now: int, clock: int, source: int, data: bytes) -> list[Effect]:
        """clock: of the message's place. Nothing if it is none of these, or of another configuration."""
        said = ConfigMessage.read(data)
        if said is None or not self.members:
            return []
        if said.say is Say.KEEP:
            return self._on_keep(said.number)
        # Above all of an instance before this one, also where the sender's clock has not jumped yet behind the last vote.
        ballot = max(clock, (self.instance << 32) + 1)
        if said.number != self.stand.number + 1:
            if said.say is not Say.CHANGE:
                return []
            why = f"it is at configuration {self.stand.number}"
            return [Tell(ConfigMessage(Say.UNABLE, said.number, ballot, why.encode()).packed())]
        match said.say:
            case Say.CHANGE:
                return self._on_change(now, ballot, source, said.rest)
            case Say.PREPARED:
                return self._on_prepared(source, said.ballot)
            case Say.UNABLE:
                return self._on_unable(source, said)
            case Say.COMMIT:
                return self._on_commit()
            case _:
                return []

    def on_view(self, instance: int, members: Iterable[int]) -> list[Effect]:
        """Members have come or gone at this place. An attempt that is under way ends here, at every member (V1)."""
        self.instance, self.members = instance, frozenset(members)
        if self._attempt is not None:
            self.kept = max(self.kept, instance)
            return self._give_up("members have come or gone meanwhile")
        return [*(self._keep_durably() if self._has_given_up else []), *self._say_commit()]

    def _on_change(self, now: int, ballot: int, source: int, options: bytes) -> list[Effect]:
        if self._attempt is not None or self.joint is not None:
            own = source == self.station
            return [
                Said(
                    f"station {source} asks for another change while one is under way: refused",
                    warning=True,
                    outcome=False if own else None,
                )
            ]
        self._attempt = attempt = _Attempt(ballot, options, set(), source, now)
        why = "it has said a proposal of a later instance" if ballot < self.stand.promise else self._unfit(options)
        if why:
            return [Hold(True), self._unable(attempt, why)]
        self._before = self.stand
        self.stand = self.stand._replace(ballot=ballot, proposed=options)
        return [
            Hold(True),
            Keep(self.stand, is_mark=True),
            Tell(ConfigMessage(Say.PREPARED, self.stand.number + 1, ballot).packed()),
        ]

    def unmarked(self, why: str) -> Tell | None:
        """The mark that was to be made cannot be written, whatever is on the disk now: this station has none, as if it had lost
        power before. If the disk has it all the same, V4 takes it away."""
        self.stand, attempt = self._before, self._attempt
        return self._unable(attempt, why) if attempt is not None else None

    def _unable(self, attempt: _Attempt, why: str) -> Tell:
        attempt.is_over = True
        told = why.encode(errors="replace")[:CONFIGURATION_MAX]
        return Tell(ConfigMessage(Say.UNABLE, self.stand.number + 1, attempt.ballot, told).packed())

    def _on_prepared(self, source: int, ballot: int) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.ballot != ballot:
            return []
        attempt.prepared.add(source)
        return self._commit(attempt) if attempt.prepared >= self.members else []

    def _commit(self, attempt: _Attempt) -> list[Effect]:
        """V2: all members have the mark, and all know it that live."""
        text = f"configuration {self.stand.number + 1} is in force, as station {attempt.asked} asked"
        return [*self._take_over(self.stand.number + 1, attempt.options), Said(text, outcome=True), self._adopt(text)]

    def _on_unable(self, source: int, said: ConfigMessage) -> list[Effect]:
        if self._attempt is None or self._attempt.ballot != said.ballot:
            return []
        self._has_given_up = True
        return self._give_up(f"station {source}: {said.rest.decode(errors='replace')}")

    def _give_up(self, why: str) -> list[Effect]:
        self._attempt = self._best = None
        text = f"configuration {self.stand.number + 1} is given up: {why}"
        forgotten = self._make(self.stand._replace(ballot=0, proposed=b"", kept=self.kept))
        return [*forgotten, Hold(False), Said(text, warning=True, outcome=False)]

    def _keep_durably(self) -> list[Effect]:
        """V4: something has reached preack in this instance. Were it forgotten in a restart of all, the mark of one that was away
        could come into force after all, long after an operator was told that it is given up."""
        self._has_given_up = False
        self.kept = max(self.kept, self.instance)
        return self._make(self.stand._replace(kept=self.kept))

    def _say_commit(self) -> list[Effect]:
        """V3: the lowest member, and the next one if it is gone."""
        if self.joint is None or not self.members or self.station != min(self.members):
            return []
        return [Tell(ConfigMessage(Say.COMMIT, self.stand.number + 1).packed())]

    def _on_commit(self) -> list[Effect]:
        """V3: all members have started this instance, with their marks."""
        if self.joint is None or self._best is None:
            return []
        number, options = self.stand.number + 1, self._best[1]
        text = f"configuration {number} is in force: a quorum of the former one has opened under it"
        return [*self._take_over(number, options), Said(text, outcome=True), Settled(number, options, text)]

    def _on_keep(self, number: int) -> list[Effect]:
        return self._keep_durably() if number == self.stand.number and self.joint is None else []

    # ---- what OPENs say
    def hear(self, now: int, claim: Claim, station: int = 0) -> list[Effect]:
        """An OPEN of this station has come with this claim."""
        if claim.number > self.stand.number:
            return self._hear_later(now, claim, station)
        if claim.number < self.stand.number or not (self._newcomer or claim.options == self.stand.options):
            return []
        if self.members:
            return self._keep(now, claim.ballot)
        before = self._best
        is_later = before is None or claim.ballot > before[0] or (claim.ballot, claim.proposed) == before[:2]
        if claim.ballot and is_later and not self._unfit(claim.proposed):
            self._best = (claim.ballot, claim.proposed, claim.options)
            self._told_ns = now
        self.kept = max(self.kept, claim.kept)
        if self._best is not None and self.kept << 32 > self._best[0]:
            self._best = None
        if (before and before[1:]) == (self._best and self._best[1:]):
            return []
        if self._best is None:
            text = f"configuration {self.stand.number + 1} was given up: this station goes back to {self.stand.number}"
            return [*self._make(self.stand._replace(ballot=0, proposed=b"")), self._adopt(text)]
        return [self._adopt(f"configuration {self.stand.number + 1} has been proposed, and perhaps decided")]

    def on_time(self, now: int) -> list[Effect]:
        """From time to time: the mark of a station that is not heard any more counts for nothing here, unless it is an own
        one. An attempt that takes too long ends."""
        attempt = self._attempt
        if attempt is not None and not attempt.is_over and now - attempt.begun_ns >= ATTEMPT_NS:
            silent = ", ".join(map(str, sorted(self.members - attempt.prepared)))
            return [self._unable(attempt, f"station {silent} has not said that it is ready, for {ATTEMPT_NS // 10**9} s")]
        if self._best is None or self._attempt is not None or self.members or now - self._told_ns < LEAN_NS:
            return []
        own = (self.stand.ballot, self.stand.proposed, self.stand.options) if self.stand.ballot else None
        before, self._best = self._best, own
        if own is not None and before[1:] == own[1:]:
            return []
        return [self._adopt("the station that had another configuration proposed is not heard any more")]

    def _hear_later(self, now: int, claim: Claim, station: int) -> list[Effect]:
        """V5."""
        if self.members and (claim.number, claim.options) != (self.stand.number + 1, self.stand.proposed):
            text = f"this station is in an instance of configuration {self.stand.number}, and goes by that until it ends"
            return self._refuse(now, claim, f"station {station} says that configuration {claim.number} is in force; {text}")
        too_far = claim.number > self.stand.number + AHEAD_MAX
        if why := f"it is later by more than {AHEAD_MAX}" if too_far else self._unfit(claim.options):
            return self._refuse(
                now, claim, f"configuration {claim.number} is in force, and cannot be that of this station: {why}"
            )
        text = f"configuration {claim.number} is in force: this station was at {self.stand.number}"
        under = (self.number, self.options) if self.joint is not None else None
        effects = [*self._take_over(claim.number, claim.options), Said(text, outcome=True)]
        if under == (claim.number, claim.options):
            return [*effects, Settled(claim.number, claim.options, text)]
        return [*effects, self._adopt(text)]

    def _refuse(self, now: int, claim: Claim, text: str) -> list[Effect]:
        which = claim.number, claim.options
        if self._refused is not None and self._refused[0] == which and now - self._refused[1] < SAY_GAP_NS:
            return []
        self._refused = which, now
        return [Said(text, warning=True)]

    def _keep(self, now: int, ballot: int) -> list[Effect]:
        """V4: somebody outside still has a mark of an attempt that was given up here."""
        if not ballot or self.joint is not None or self._attempt is not None or ballot >= self.instance << 32:
            return []
        if self.station != min(self.members) or now - self._kept_ns < KEEP_GAP_NS or self.kept << 32 > ballot:
            return []
        self._kept_ns = now
        return [Tell(ConfigMessage(Say.KEEP, self.stand.number).packed())]

    # ---- small
    def _make(self, stand: Stand) -> list[Effect]:
        if stand == self.stand:
            return []
        self.stand = stand
        return [Keep(stand)]

    def _take_over(self, number: int, options: bytes) -> list[Effect]:
        self._attempt = self._best = None
        self._newcomer = self._has_given_up = False
        self.kept = 0
        self.changes += 1
        return [*self._make(Stand(number, options)), Hold(False)]

    def _adopt(self, reason: str) -> Adopt:
        return Adopt(self.number, self.options, self.joint, reason)
