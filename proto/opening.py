"""The OPEN agreement: stations in no instance start one together (dynamic instance groups, "opening and re-opening").

A proposal is an instance number above all known ones and the set of (station, incarnation) heard lately. Each station
broadcasts the proposal it issued last. It is agreed when every member has issued the identical one and the set has quorum. A set
without all n stations is proposed only after one more window, in which the others may come.

A station that hears a living instance does not open: it asks to join (RCV, the same bytes without a proposal) until the
members do (``joining.py``), or until that instance is not heard any more, or does not answer (``asking.py``). The same agreement
re-opens a cluster of which too few members are left.

``issued.py``, the record of what this station has proposed, explains why two stations cannot start different instances.
``sending.py`` decides what is sent and when; ``settling.py`` what to propose instead of a set that finds no agreement.

No message is lost between instances: ``handover.py`` says why.

Our deviations from the printed opening, each with its test in tests/proto/test_opening.py:

- a newcomer listens for one window before it proposes, and others act on its newer incarnation only then. So a second daemon with
  a station number in use is refused before it has disturbed another station (``test_duplicate_*``);
- a station that learns of a later incarnation of its number listens again before it takes a later one (``test_outdated_*``);
- another station's higher number for the same set is taken over, instead of competing with it (``test_race_*``);
- what many stations do differently, so that their OPENs do not overload the segment: ``pace.py``.

Sans-I/O. ``openpdu.py`` has the bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from .asking import Asking
from .belief import Belief, Lives
from .claims import Claims
from .effects import Accept, Closed, Effect, Opened, Promise, Send, Told
from .errors import InvariantError
from .issued import Issued
from .notices import Notices
from .openconfig import OpeningConfig, Timer
from .openpdu import (
    INSTANCE_MAX,
    NO_PAST,
    Claim,
    Members,
    OpenPdu,
    OpenProposal,
    Past,
    Pasts,
    decode_header,
    decode_open,
    mac_text,
)
from .openstate import MOVES, Cause, State
from .outcomes import Outcome, Recovering, UsedUp
from .ownnumber import OwnNumber
from .pace import FOLLOW_WINDOWS, Arrivals, Pace
from .rivals import Rival, Rivals
from .sending import Sender
from .settling import Heard, Settling
from .timers import NEVER, Timers
from .wire import Kind

CLOCK_STEP: Final = 2
"""Instance numbers that one look at the clock uses up at most."""
INSTANCES_AHEAD: Final = 7
"""So many more instance numbers are made durable than needed, so that most changes of membership wait for no disk."""
PATIENCE_WINDOWS: Final = 4
"""Number of windows after which a proposal counts as failed: a member hears no other station, or not all of them."""


class Opening(OwnNumber):
    """The agreement at one station. Inputs return effects in order; the caller enters and leaves the instance in the core on
    ``Opened`` and ``Closed``. Nothing a peer sends raises."""

    barred = False
    """It may propose nothing and ask nothing: the configuration is changing (rule V1 of ``changing.py``)."""

    def __init__(
        self,
        config: OpeningConfig,
        *,
        incarnation: int,
        instance: int,
        frame_max: int,
        add_checksum: Callable[[bytes], bytes],
        reached: Callable[[], Past | None],
        bind: Callable[[Past, Pasts], Past] = lambda past, pasts: past,
        quorum: Callable[[Iterable[int]], bool] | None = None,
        held: Callable[[int], int] = lambda station: 0,
        life_of: Callable[[int], int] = lambda station: 0,
        claim: Callable[[], Claim | None] = lambda: None,
    ) -> None:
        """incarnation: the present one. instance: the highest number stored. frame_max: largest PDU the interface takes, bytes.
        reached: asked when an instance ends: the final position of its order at level preack here; None: it is not reliable.
        bind: what this station brings instead, once it has issued a proposal with these pasts (``handover.Handover.bind``).
        quorum: whether these stations may form an instance. Any two sets for which it is true share a station; by default all n.
        held: incarnation of a member of the present instance, 0 if it is none. life_of: the highest incarnation of a station that
        was ever a member. claim: what this station says of configurations (``changing.py``)."""
        self._config = config
        self.claim = claim
        self.claims = Claims(config, claim, self._believe)
        self._reached = reached
        self._bind = bind
        self._held = held
        self._life_of = life_of
        self.asking = Asking()
        self._quorum_since_ns: int | None = None
        self._issued_ns = 0  # when the latest proposal was issued first
        self._answered_ns = 0  # when it last found another member's agreement
        self._ready_ns: int | None = None  # since when there has been something to propose
        self.pace = Pace.of(config.stations, config.interval_ns, config.window_ns, config.recover_ns)
        self._arrivals = Arrivals()
        self._quorum = quorum or (lambda stations: len(set(stations)) == config.stations)
        self.state = State.LISTENING
        self.incarnation = incarnation
        self.highest = instance
        self.instance: OpenProposal | None = None
        """The instance this station has started in; others may have followed it by votes."""
        self.current = 0
        """Number of the instance it is in now, 0: none. The engine raises it when the members have agreed on the next."""
        self.past = NO_PAST
        """What this process brings from the instance before: how far it has delivered, and others, as it knows since then."""
        self.mac = b""
        self.rivals = Rivals(config.recent_ns or 2 * config.window_ns)
        """Stations of this cluster's name with another configuration, heard lately."""
        self._inquired = (0, 0)  # number of an instance of which it was asked whether it is the one agreed to, and since when
        self._opened_ns = -NEVER  # when the instance was opened that this station is in
        self.returned = False
        """An own OPEN has come back."""
        self.frame_max = frame_max
        self.moves: Counter[str] = Counter()
        """How often each state was entered from which cause."""
        self.unbelieved = 0
        """Reported numbers that were not believed, or not yet."""
        self.malformed = 0
        """OPENs dropped: not sensible though their checksum was right."""
        self._notices, self._numbers, self._lives = Notices(), Belief(), Lives()
        self._timers = Timers(Timer)
        self._sender = Sender(config, self._timers, self, instance=instance, life_of=life_of, add_checksum=add_checksum)
        self._heard: dict[int, Heard] = {}
        self._settling = Settling(config.station, self.pace, self._heard, self._agreeable, self._sender.jitter)
        self._issued = Issued(config.station, config.stations, self._heard)
        self._floor = instance  # numbers up to it may have been used in a way that this incarnation does not know
        self._next_incarnation = 0  # to be taken when the listening is over

    # ---- inputs
    def start(self, now: int) -> list[Effect]:
        """Begin to listen. The first effect makes this incarnation durable."""
        self._sender.began_ns = now
        return self._enter_listening(now)

    def hand_over(self, reason: str) -> list[Effect]:
        """Another ``Opening`` takes over (``resume``): end the instance, if in one, and take no further part."""
        closed: list[Effect] = []
        if self.state is State.STARTED:
            closed = [Closed(self.current, reason, self._config.station)]
        self._forget_issued()
        self._leave_instance()
        return closed

    def resume(self, now: int, before: Opening) -> list[Effect]:
        """Go on in another configuration where ``before`` has ended its instance, if it was in one: with a new incarnation, and
        what it brings. It need not listen again, unless it was listening."""
        self._sender.began_ns, self.past, self.mac = before._sender.began_ns, before.past, before.mac
        self.state = State.LISTENING if before.state is State.LISTENING else State.PROPOSING
        return self._enter_listening(now) if self.state is State.LISTENING else self._enter_proposing(now)

    @property
    def past_instance(self) -> int:
        """Instances up to this one are of earlier configurations."""
        return self._config.past_instance

    def on_pdu(self, now: int, data: bytes, mac: bytes) -> list[Outcome]:
        """A control PDU (its checksum is right): OPEN, RCV, or one that does not belong to the instance."""
        if self.state is State.ENDED:
            return []
        header = decode_header(data)
        if header is None:
            self.malformed += 1
            return []
        if header["kind"] not in (Kind.OPEN, Kind.RCV):
            return [*self._on_stranger(now, header, mac)]
        pdu = decode_open(data, self._config.stations)
        if pdu is None:
            self.malformed += 1
            return []
        if pdu.src == self._config.station:
            return [*self._on_own_number(now, pdu, mac)]
        if pdu.fingerprint != self._config.fingerprint and self.claims.is_change(pdu):
            return [*self._tell_claim(now, pdu), *self._sender.answer(now)]
        if pdu.fingerprint != self._config.fingerprint:
            told = self._notices.give(
                now,
                "options",
                pdu.src,
                f"station {pdu.src} ({pdu.host}, {mac_text(mac)}) has other cluster options than station {self._who()}: "
                f"fingerprint {pdu.fingerprint:08x}, not {self._config.fingerprint:08x}; it is not admitted",
            )
            rival = Rival(pdu.src, self._config.stations, pdu.fingerprint, pdu.host, mac, pdu.started, now)
            return [*told, *self._on_rival(now, rival)]
        return [*self._tell_claim(now, pdu), *self._on_open(now, pdu, mac)]

    def _tell_claim(self, now: int, pdu: OpenPdu) -> list[Effect]:
        """What it says of configurations; the numbers that it knows are durable before."""
        if pdu.claim is None or not self.claims.counts(now, pdu):
            return []
        return [*self._sender.make_durable(), Told(pdu.src, pdu.claim, pdu.fingerprint)]

    def _believe(self, now: int, number: int) -> bool:
        self.highest = max(self.highest, self._believed(now, number))
        return self.highest >= number

    def on_other_schema(self, now: int, data: bytes, mac: bytes) -> list[Effect]:
        """A PDU of this cluster's name with another number of stations (its checksum is right): an OPEN, or a PDU with an
        instance number."""
        header = decode_header(data)
        if header is None or self.state is State.ENDED:
            return []
        src, n = header["src"], header["stations"]
        if header["kind"] not in (Kind.OPEN, Kind.RCV):
            if header["instance"] <= self._config.past_instance:  # of the last configuration: it may not know the present one
                return self._sender.answer(now)
            rival = Rival(src, n, None, "", mac, bool(header["instance"]), now)
        elif (pdu := decode_open(data, n)) is not None:
            if self.claims.is_change(pdu):
                return [*self._tell_claim(now, pdu), *self._sender.answer(now)]
            rival = Rival(src, n, pdu.fingerprint, pdu.host, mac, pdu.started, now)
        else:
            self.malformed += 1
            return []
        told = self._notices.give(
            now,
            "stations",
            src,
            f"{rival.text()} of this cluster is configured with another number of stations: {n} there, "
            f"{self._config.stations} at station {self._config.station} ({self._who()}); it is not admitted",
        )
        return [*told, *self._on_rival(now, rival)]

    def _on_rival(self, now: int, rival: Rival) -> list[Effect]:
        """Rule 9. While this station is in an instance, only an answer tells the other one why no station talks to it."""
        self.rivals.note(rival)
        if self.state is not State.STARTED or not self._config.heeds_rivals:
            return []
        if rival.living and now - self._opened_ns < self.rivals.recent_ns:
            differs = rival.differs(self._config.stations, self._config.fingerprint)
            return self.renew(now, f"{rival.text()} is in an instance of another configuration: {differs}")
        return [] if rival.living else self._sender.answer(now)

    def _held_back(self, now: int) -> list[Effect] | None:
        """None if no other configuration keeps this station from opening (rule 9); otherwise the notice."""
        own = [station for station, _ in self._candidates(now)[0]]
        rival = self.rivals.hold_back(now, len(own), self._config.stations) if self._config.heeds_rivals else None
        if rival is None:
            return None
        self._quorum_since_ns = None
        if not rival.living and not self._may_form(own):
            return []
        differs = rival.differs(self._config.stations, self._config.fingerprint)
        what = "is in an instance" if rival.living else "wants to open one"
        message = f"opening waits: {rival.text()} {what} of this cluster under another configuration: {differs}"
        return self._notices.give(now, "conflict", 0, message)

    def on_timeout(self, now: int) -> list[Effect]:
        """Early and repeated calls are harmless."""
        effects = self.look(now)
        if self._timers.due(Timer.LISTENED, now):
            effects += self._on_listened(now)
        if self._timers.due(Timer.OPEN, now):
            if self.state is State.PROPOSING:
                effects += self._consider(now)
            if self._timers.due(Timer.OPEN, now):  # considering may have sent one just now
                effects += self._sender.send(now)
        return effects

    def look(self, now: int) -> list[Effect]:
        """What follows from the OPENs that have come since it was looked at last."""
        if not self._timers.due(Timer.LOOK, now):
            return []
        self._timers.stop(Timer.LOOK)
        return self._consider(now) if self.state is State.PROPOSING else []

    def next_deadline_ns(self) -> int:
        return self._timers.next_ns()

    def renew(self, now: int, reason: str, station: int = 0, expelled: bool = False) -> list[Effect]:
        """Leave the instance, on the report of ``station`` (0: its own decision), and begin a new incarnation. ``expelled``: the
        others continue without it, as far as it knows. Its past counts all the same: they may die, or give up, before they have
        applied that, and then all must still deliver what was released here. In no instance: no effect."""
        if self.state is not State.STARTED:
            return []
        closed = Closed(self.current, reason, station or self._config.station, expelled)
        self._next_incarnation = self.incarnation + 1
        return [closed, *self._move(now, Cause.RESTARTED)]

    def outdated(self, now: int) -> list[Effect]:
        """This incarnation may have been admitted without learning of it, and removed again: only a new one can join."""
        if self.state is not State.PROPOSING:
            return []
        self._next_incarnation = self.incarnation + 1
        return self._move(now, Cause.RESTARTED)

    def admitted(self, now: int, instance: int) -> list[Effect]:
        """The members of a running instance have admitted this station (``joining.Entry``)."""
        self.instance = OpenProposal(instance, ((self._config.station, self.incarnation),))
        self.past = NO_PAST
        return self._move(now, Cause.ADMITTED) + self.note_instance(instance)

    def note_instance(self, number: int) -> list[Effect]:
        """An instance number has been proposed or seen: no other instance may ever get it."""
        self.highest = max(self.highest, min(number, INSTANCE_MAX))
        self._floor = max(self._floor, self.highest)
        return self._sender.make_durable(ahead=INSTANCES_AHEAD)

    def hear_instance(self, now: int, number: int) -> list[Effect]:
        """A station reports to be in that instance. The number counts as seen as far as time allows (``belief``): while
        ``highest`` is below it, the caller does not believe it."""
        believed = self._believed(now, number)
        return self.note_instance(believed) if believed > self.highest else []

    def _believed(self, now: int, number: int) -> int:
        believed = self._numbers.within(now, self.highest, min(number, INSTANCE_MAX))
        self.unbelieved += believed < number
        return believed

    def note_live(self, now: int) -> list[Effect]:
        """A member of an instance that has quorum was heard: ask to join."""
        new = self.asking.hear(now, self.pace.window_ns)
        if not new or self.state is not State.PROPOSING:
            return []
        self._sender.tries = 0
        return self._sender.send(now)

    def on_view(self, now: int, src: int, instance: int, view: int) -> list[Effect] | None:
        """A CONFIRM identifies the instance of its sender (``wire.view_hash``). If this incarnation has agreed to open one with
        that number and these members, it may be that one, and this station has missed the OPEN of its start: its members answer
        the own OPEN. Or it began by votes: so ask for one window only. None: it does not ask, the CONFIRM is that of any other
        instance."""
        asked = self._issued.with_view(src, instance, view) if self.state is State.PROPOSING else None
        if asked is None:
            return None
        if asked.instance != self._inquired[0]:
            self._inquired = (asked.instance, now)
        return self._sender.answer(now) if now - self._inquired[1] < self.pace.window_ns else None

    def _alive(self, now: int) -> bool:
        return not self.barred and self.asking.worth_it(now, self.pace.window_ns)

    def note_clock(self, clock: int) -> list[Effect]:
        """An instance's clock starts at its number << 32. One that runs beyond 2**32 PDUs uses up the numbers after its own:
        they count as seen, half a number ahead so that they are durable in time, or places in the order would come again."""
        used = min((clock + (1 << 31)) >> 32, INSTANCE_MAX, self.highest + CLOCK_STEP)
        if used <= self.highest:
            return []
        self.highest = used
        return self._sender.make_durable()

    def leave(self, now: int) -> None:
        """Leave: this station takes no further part."""
        self._move(now, Cause.LEAVING)

    # ---- reads
    @property
    def pasts(self) -> Pasts:
        """What the members of the instance bring that this station has started in."""
        return self.instance.pasts if self.instance else ()

    @property
    def issued(self) -> int:
        """The highest instance number that this incarnation has proposed, or agreed to; 0: none."""
        return self._issued.highest

    def restarted(self, now: int, incarnations: tuple[int, ...]) -> list[Recovering]:
        """Members with these incarnations (by index, 0: no member) of which a later one has asked to join already: a station that
        starts late, or joins, has read that request before, and receives it again only by chance."""
        out = []
        for station, heard in self._heard.items():
            life, pdu = incarnations[station - 1], heard.pdu
            asks = not pdu.started and pdu.age_ms * 1_000_000 >= self._config.window_ns
            if life and pdu.incarnation > life and asks and self._believes(now, station, life, pdu.incarnation):
                out.append(Recovering(station, pdu.incarnation, pdu.frame_max))
        return out

    def missing(self, now: int) -> tuple[tuple[int, str], ...]:
        """(station, reason) of those that opening waits for: ``silent``, or ``never seen``. Empty while in an instance."""
        if self.state in (State.STARTED, State.ENDED) or self._alive(now):
            return ()
        present = {station for station, _ in self._candidates(now)[0]}
        return tuple(
            (station, "silent" if station in self._heard else "never seen")
            for station in range(1, self._config.stations + 1)
            if station not in present and station not in self._config.vacant
        )

    def host_of(self, station: int) -> str | None:
        """Host name that the station reported, None if it was never heard."""
        if station == self._config.station:
            return self._config.host_name
        heard = self._heard.get(station)
        return heard.pdu.host if heard else None

    # ---- received
    def _on_open(self, now: int, pdu: OpenPdu, mac: bytes) -> list[Outcome]:
        if self.state is not State.STARTED:  # in an instance its members' votes tell
            self.highest = max(self.highest, self._believed(now, pdu.highest))
        listed = pdu.proposal.incarnation_of(self._config.station) if pdu.proposal else 0
        if pdu.outdated and self.state is State.STARTED and pdu.proposal and listed <= self.incarnation:
            others = [(k, life) for k, life in pdu.proposal.members if k not in (pdu.src, self._config.station)]
            return [UsedUp(k, life) for k, life in others if self._believes(now, k, self._life_of(k), life)]
        if pdu.outdated:
            late = listed > self.incarnation or (listed == self.incarnation and self.state is not State.STARTED)
            return [*self._on_outdated(now, pdu.src, listed)] if late else []
        known = self._heard.get(pdu.src)
        stale = known is not None and pdu.incarnation < known.pdu.incarnation and now - known.at_ns < self._config.window_ns
        if not stale:
            latest = self._issued.latest
            if latest is not None and pdu.proposal == latest and (known is None or known.pdu.proposal != latest):
                self._answered_ns = now
            self._heard[pdu.src] = Heard(pdu, now, mac)
            self._arrivals.note(now, pdu.src)
        if listed > self.incarnation or self._lost(pdu, listed):
            return [*self._on_outdated(now, pdu.src, listed)]
        if stale and self.state is not State.STARTED:
            return []
        match self.state:
            case State.STARTED:
                return self._on_open_started(now, pdu, self._own_instance())
            case State.PROPOSING:
                if (began := self._issued.begun(pdu)) is not None:
                    return [*self._agree(now, began)]
                if pdu.started and pdu.proposal is not None and pdu.proposal in self._issued:
                    return [*self._agree(now, pdu.proposal)]
                self._timers.set(Timer.LOOK, now)
                return []
            case State.LISTENING | State.ENDED:
                return []

    def _lost(self, pdu: OpenPdu, listed: int) -> bool:
        """A member has started an instance with this station's present incarnation, and this station does not know that it has
        agreed: its memory is lost (or it is in another instance, which cannot be). Only a new incarnation helps."""
        return pdu.started and listed == self.incarnation and pdu.proposal not in self._issued

    def _own_instance(self) -> OpenProposal:
        if self.instance is None:
            raise InvariantError("started without an instance")
        return self.instance

    def _on_open_started(self, now: int, pdu: OpenPdu, instance: OpenProposal) -> list[Outcome]:
        """In an instance, an OPEN or RCV of a station that is in none, or in another."""
        held = self._held(pdu.src)
        if pdu.started:
            if pdu.proposal == instance or held == pdu.incarnation:
                return []
            # In another instance with a later incarnation: the one that is a member here has ended.
            over = 0 < held < pdu.incarnation and self._believes(now, pdu.src, held, pdu.incarnation)
            return [*self._sender.answer(now), *([Recovering(pdu.src, pdu.incarnation, pdu.frame_max)] if over else [])]
        if pdu.age_ms * 1_000_000 < self._config.window_ns or pdu.proposal == instance or self.claims.is_behind(pdu):
            return [*self._sender.answer(now)]  # it listens; or is late; or takes it over first
        if not self._believes(now, pdu.src, self._life_of(pdu.src), pdu.incarnation):
            return []
        if pdu.incarnation != held and pdu.incarnation <= self._life_of(pdu.src):
            return [*self._sender.answer(now, pdu.src)]
        # The answer first: the recovery may lead to a new incarnation of this station.
        return [*([] if pdu.recovering else self._sender.answer(now)), Recovering(pdu.src, pdu.incarnation, pdu.frame_max)]

    def _on_outdated(self, now: int, by: int, listed: int) -> list[Effect]:
        if not self._believes(now, self._config.station, self.incarnation, listed):
            return self._notices.give(
                now, "exhausted", by, f"station {by} speaks of incarnation {listed} of this one: not believed"
            )
        take = max(listed, self.incarnation) + 1
        if self.state is State.LISTENING and take <= self._next_incarnation:
            return []
        effects: list[Effect] = []
        if self.instance is not None:
            reason = f"station {by} knows a later life of station {self._config.station} (incarnation {listed}): this one is out"
            effects.append(Closed(self.current, reason, by, True))
        self._next_incarnation = take
        return effects + self._move(now, Cause.OUTDATED)

    def _believes(self, now: int, station: int, known: int, life: int) -> bool:
        believed = self._lives.believes(now, station, known, life)
        self.unbelieved += not believed
        return believed

    def _on_stranger(self, now: int, header: dict[str, int], mac: bytes) -> list[Effect]:
        """Any other PDU that does not belong to the instance: an OPEN tells its sender the state."""
        effects: list[Effect] = []
        if header["src"] == self._config.station:
            # Others relay our sequenced PDUs, so these prove nothing; CONFIRM and NAK come only from their sender.
            foreign = header["kind"] in (Kind.CONFIRM, Kind.NAK) and bool(self.mac) and mac != self.mac
            if not foreign and header["incarnation"] == self.incarnation:
                return []
            if foreign:
                effects += self._notices.give(
                    now,
                    "duplicate",
                    self._config.station,
                    f"station number {self._config.station} is used twice: by {self._who()} and by {mac_text(mac)}",
                )
            return self._sender.answer(now) + effects
        return self._sender.answer(now) if self.state is State.STARTED and 1 <= header["src"] <= self._config.stations else []

    # ---- agreement
    def _candidates(self, now: int) -> tuple[Members, Pasts]:
        """Those heard within the window, self included, but for members of an instance that we are not in: they will have to
        leave it."""
        found = {self._config.station: (self.incarnation, self.past)}
        for station, heard in self._heard.items():
            if now - heard.at_ns < self.pace.window_ns and not heard.pdu.started and not self._settling.leaves_out(now, station):
                found[station] = (heard.pdu.incarnation, heard.pdu.past)
        members = tuple((station, life) for station, (life, _) in sorted(found.items()))
        pasts = tuple((station, *past) for station, (_, past) in sorted(found.items()) if past.view)
        latest = self._issued.latest
        if latest is not None and latest.members == members and self._of_others(latest.pasts) == self._of_others(pasts):
            return members, latest.pasts  # nothing has come or gone: what this station brings by it now is the same
        return members, pasts

    def _of_others(self, pasts: Pasts) -> Pasts:
        return tuple(past for past in pasts if past[0] != self._config.station)

    def _consider(self, now: int) -> list[Effect]:
        """Start what is agreed; otherwise issue another proposal if the present stations have changed or another one has a higher
        number for them."""
        if (held_back := self._held_back(now)) is not None:
            return held_back
        latest = self._issued.latest
        if latest is not None and self._issued.is_complete(latest):
            return self._agree(now, latest)
        late = latest is not None and now - self._issued_ns >= PATIENCE_WINDOWS * self.pace.window_ns
        if latest is not None and late:
            self._issued_ns = now
            taken = self._settling.settle(now, latest, OpenProposal(0, *self._candidates(now)), self.incarnation, self.highest)
            if taken == latest:
                return []
            if taken is not None:
                return self._issue(now, taken)
        if latest is not None and latest == self._settling.taken and not late:
            return []  # kept as long as an own one: otherwise the own set would replace it before any station could answer
        members, pasts = self._candidates(now)
        if self._alive(now) or not self._may_form(station for station, _ in members):
            self._quorum_since_ns = self._ready_ns = None
            return []
        if self._quorum_since_ns is None:
            self._quorum_since_ns = now
        if len(members) < self._config.stations - len(self._config.vacant) and now < self._complete_by_ns(self._quorum_since_ns):
            return []
        own_number = latest.instance if latest else self._floor
        if self.pace.crowded:
            taken, wait = self._follow(now, members[0][0], latest, own_number)
            if taken is not None:
                return self._issue(now, taken)
            if wait:
                return []
        offered = [h.pdu.proposal for h in self._heard.values() if h.pdu.proposal and h.pdu.proposal[1:] == (members, pasts)]
        adopted = max((p for p in offered if own_number < p.instance <= self.highest), key=lambda p: p.instance, default=None)
        if adopted is None:
            if latest is not None and latest[1:] == (members, pasts):
                return []
            if self.highest >= INSTANCE_MAX:
                return self._notices.give(now, "exhausted", 0, "instance numbers are used up: the state folders must be cleared")
            adopted = OpenProposal(self.highest + 1, members, pasts)
        return self._issue(now, adopted)

    def _may_form(self, stations: Iterable[int]) -> bool:
        """May these form an instance? Where own frames come back, one must have been seen first: it shows the medium."""
        return not self.barred and (self.returned or not self._config.returns) and self._quorum(stations)

    def _complete_by_ns(self, quorum_since_ns: int) -> int:
        """Until then a set that lacks some station is not proposed: the others may come yet."""
        return max(quorum_since_ns + self._config.window_ns, self._arrivals.calm_ns(self.pace, quorum_since_ns))

    def _follow(self, now: int, lowest: int, latest: OpenProposal | None, number: int) -> tuple[OpenProposal | None, bool]:
        """In a crowd the lowest station present proposes, and the others take what it proposes; each of them by itself only if
        it does not. (The proposal to take or None, whether to wait for now.)"""
        if self._ready_ns is None:
            self._ready_ns = now
        if lowest != self._config.station:
            heard = self._heard.get(lowest)
            offer = heard.pdu.proposal if heard else None
            if offer is not None and number < offer.instance <= self.highest and self._agreeable(offer):
                return offer, False
        if latest is not None and now - self._answered_ns < self.pace.window_ns:
            return None, True  # as long as answers come; stations that have come since join by votes
        return None, lowest != self._config.station and now - self._ready_ns < FOLLOW_WINDOWS * self.pace.window_ns

    def _agreeable(self, offer: OpenProposal) -> bool:
        """Whether it contains of this station what this station reports itself, and its members may form an instance."""
        own = offer.incarnation_of(self._config.station) == self.incarnation and self._fits(offer)
        return own and self._may_form(station for station, _ in offer.members)

    def _fits(self, offer: OpenProposal) -> bool:
        """Whether it contains what this station brings, or leads to the same."""
        past = next((Past(*rest) for station, *rest in offer.pasts if station == self._config.station), NO_PAST)
        return past == self.past or (past.view == self.past.view and self._bind(past, offer.pasts) == self.past)

    def _issue(self, now: int, proposal: OpenProposal) -> list[Effect]:
        """Say it, and agree to it if all others have issued it already."""
        self._issued.add(proposal)
        self._issued_ns = self._answered_ns = now
        self._ready_ns = None
        self.highest = max(self.highest, proposal.instance)
        self.past = self._bind(self.past, proposal.pasts)
        promised: list[Effect] = [Promise(proposal.instance)] if self._config.joint else []
        effects = promised + self._sender.send(now)
        return effects + (self._agree(now, proposal) if self._issued.is_complete(proposal) else [])

    def _agree(self, now: int, proposal: OpenProposal) -> list[Effect]:
        self.instance = proposal
        self._opened_ns = now
        marked: list[Effect] = [Accept(proposal.instance)] if self._config.joint else []
        return [*marked, *self._move(now, Cause.AGREED), self._opened(proposal), *self._sender.send(now)]

    def _opened(self, proposal: OpenProposal) -> Opened:
        heard = [self._heard[station] for station, _ in proposal.members if station in self._heard]
        return Opened(
            instance=proposal.instance,
            incarnations=self._issued.incarnations_of(proposal),
            frame_max=min([self.frame_max, *(h.pdu.frame_max for h in heard)]),
        )

    # ---- states: each entry sets everything the state owns
    def _move(self, now: int, cause: Cause) -> list[Effect]:
        """Change the state and run its entry action. For LISTENING and PROPOSING ``_next_incarnation`` is set before, for STARTED
        ``instance``."""
        key = self.state, cause
        self.moves[f"{self.state.name.lower()} {cause.value}"] += 1
        if key not in MOVES:
            return []
        self.state = MOVES[key]
        match self.state:
            case State.LISTENING:
                return self._enter_listening(now)
            case State.PROPOSING:
                return self._enter_proposing(now)
            case State.STARTED:
                self._enter_started()
            case State.ENDED:
                self._enter_ended()
        return []

    def _leave_instance(self) -> None:
        """The caller closes it in the core before it does anything else."""
        if self.instance is not None:
            self.past = self._reached() or NO_PAST
            self._arrivals = Arrivals()
        self.instance = None
        self.current = 0
        self._quorum_since_ns = self._ready_ns = None
        self._sender.tries = 0

    def _forget_issued(self) -> None:
        """Of an incarnation that is over: others may start what it issued, so that its numbers are not for the next one's
        proposals."""
        self._floor = max(self._floor, self.current, self._issued.highest)
        self._issued.clear()

    def _enter_listening(self, now: int) -> list[Effect]:
        self._forget_issued()
        self._leave_instance()
        self._timers.set(Timer.LISTENED, now + self._config.window_ns)
        return self._sender.send(now)

    def _enter_proposing(self, now: int) -> list[Effect]:
        self._forget_issued()
        self._leave_instance()
        self.incarnation = max(self.incarnation, self._next_incarnation)
        self._next_incarnation = 0
        self._timers.stop(Timer.LISTENED)
        effects = self._consider(now)
        return effects if any(isinstance(effect, Send) for effect in effects) else [*effects, *self._sender.send(now)]

    def _enter_started(self) -> None:
        self.current = self._own_instance().instance
        self._settling.agreed()
        self._timers.stop(Timer.LISTENED)
        self._timers.stop(Timer.OPEN)

    def _enter_ended(self) -> None:
        self._leave_instance()
        self._issued.clear()
        self._timers.stop(Timer.LISTENED)
        self._timers.stop(Timer.OPEN)

    def _on_listened(self, now: int) -> list[Effect]:
        self._timers.stop(Timer.LISTENED)
        return self._move(now, Cause.LISTENED)

    # ---- small
    @property
    def latest(self) -> OpenProposal | None:
        """What this incarnation has proposed last, or agreed to."""
        return self._issued.latest

    def is_recovering(self, now: int) -> bool:
        """It asks a running instance to admit it."""
        return self.state is State.PROPOSING and self._alive(now)
