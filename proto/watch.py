"""The watch: from time to time, look for what delivery or opening waits for, and for trouble that no PDU tells of.

A look finds which members show no sign of life (``MediumRules.find_silent``, by ``silence.py``), whether own PDUs get through
(``OwnStream``), whether there is memory for what is to be delivered (``Starvation``), which stations an opening misses, and what
is worth a notice. It reports the stations that are waited for (``Blocked``). Between two looks as much time passes as an idle
cluster allows (``next_ns``). Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .core import Core, Drop
from .effects import Blocked, Effect, Notice
from .engineconfig import MS, EngineConfig
from .envelope import pieces_carry
from .medium import MediumRules
from .notices import Notices
from .outcomes import Outcome, Steps
from .parts import Parts
from .silence import unheard
from .timers import NEVER, Deadline

CONFLICTS: Final = {Drop.VERSION: "speaks another protocol version"}
"""Frames that C drops for these reasons are worth a notice: a station of this cluster is set up differently."""


class Watch:
    """One per engine. It owns the deadline WATCH."""

    def __init__(self, config: EngineConfig, parts: Parts, medium: MediumRules) -> None:
        self._config = config
        self._core = parts.core
        self._opening = parts.opening
        self._membership = parts.membership
        self._quorum = parts.quorum
        self._silence = parts.silence
        self._probing = parts.probing
        self._timers = parts.timers
        self._medium = medium
        self.own = OwnStream(config, parts, medium)
        self.starvation = Starvation(config, parts)
        self._notices = Notices()
        self._looked_ns = 0
        self._is_hurried = self._is_stopped = False
        self._waiting_since_ns = 0  # in no instance since then
        self._quorate = True
        self._doubts = False
        """It has not heard enough members lately (rule M11)."""
        self.blocked: dict[int, tuple[str, int]] = {}
        """Stations that delivery, or opening, waits for: reason, and since when."""

    # ---- inputs
    def start(self, now: int) -> None:
        """Opening has begun."""
        self._waiting_since_ns = now
        self._set(now)

    def begin(self, now: int) -> list[Effect]:
        """An instance begins: nothing is waited for."""
        self._set(now)
        return self._report_blocked(now, (), True)

    def end(self, now: int) -> None:
        """It is over."""
        self._waiting_since_ns = now
        self._doubts = False

    def stop(self) -> None:
        """This station leaves."""
        self._timers.stop(Deadline.WATCH)
        self._core.watch((), since_ns=0, quiet_ns=0, lag_at_ns=NEVER)
        self._is_stopped = True

    def hurry(self, now: int) -> None:
        """The members have changed: look at once. There may be quorum again, which programs are to be told."""
        self._is_hurried = True
        self._timers.set(Deadline.WATCH, now)

    def postpone(self, now: int) -> None:
        """The next look is due by what is known now, but not at once. A look that is to be taken at once is not put off."""
        if not self._is_hurried:
            self._set(now)

    def hasten(self, now: int) -> None:
        """Something may have changed that is to be looked at sooner."""
        if self._core.is_open and not self._is_hurried and not self._is_stopped:
            self._set(now, self._timers.at_ns(Deadline.WATCH))

    def _set(self, now: int, latest_ns: int = NEVER) -> None:
        """When to look next; what depends on what comes meanwhile is left to C. A look that finds nothing is not taken again at
        once."""
        soonest = now + MS
        core, silence = self._core, self._silence
        if core.is_open:
            members, after_ns = self._membership.target_indices, self._probing.after_ns
            quiet_ns = silence.quiet_at_ns(core, members, after_ns)
            core.watch(
                members,
                since_ns=silence.since_ns,
                quiet_ns=after_ns if soonest < quiet_ns else 0,
                lag_at_ns=max(soonest, self._looked_ns + self._config.progress_timeout_ns // 4),
            )
        self._timers.set(Deadline.WATCH, min(latest_ns, max(soonest, self.next_ns(now))))

    def forgive(self, now: int) -> None:
        """This station did not run for a while: every wait begins again."""
        self._silence.forgive(now)
        self.own.forgive()
        self.starvation.forgive()
        self._waiting_since_ns = now

    def look(self, now: int) -> Steps:
        """Which stations does delivery, or opening, wait for? Each step must be followed up before the next one."""
        core = self._core
        self._looked_ns = now
        self._is_hurried = False
        yield [*self._conflicts(now), *self._shortages(now)]
        if core.is_open:
            yield self._opening.note_clock(core.clock)
            yield self.own.judge(now)
        if core.is_open:
            yield self.starvation.judge(now)
        if core.is_open:
            yield from self._medium.find_silent(now)
        if core.is_open:
            waiting = {station: reason for station, reason, _ in self._membership.waiting()}
            unheard = self._unheard(now)
            self._doubts = bool(unheard)
            blamed = dict.fromkeys(unheard, "silent") | waiting
            yield self._report_blocked(now, blamed.items(), self._membership.has_quorum and not unheard)
        elif now - self._waiting_since_ns >= 2 * self._opening.pace.window_ns:
            yield self._report_blocked(now, self._opening.missing(now), True)
        self.postpone(now)

    # ---- reads
    def next_ns(self, now: int) -> int:
        """When a member can be asked, suspected or cleared at the earliest: an idle cluster is not woken to find nothing. Without
        what ``Core.silence_due_ns`` says: who has just been heard, and what own PDUs wait for."""
        core, membership, silence, config = self._core, self._membership, self._silence, self._config
        if not core.is_open:
            return now + self._opening.pace.window_ns // 2
        due = membership.next_deadline_ns()
        at = NEVER if due is None else due
        if membership.busy or self._doubts:
            at = min(at, now + config.probe_interval_ns)
        if silence.suspicious:
            at = min(at, self._looked_ns + config.progress_timeout_ns // 4)
        members = membership.target_indices
        quiet_ns = silence.quiet_at_ns(core, members, self._probing.after_ns)
        if quiet_ns <= now:  # being asked already: again, or the time is over
            over_ns = silence.quiet_at_ns(core, members, silence.patience(now) * config.fail_timeout_ns)
            at = min(at, now + config.probe_interval_ns, over_ns)
        elif quiet_ns <= now + MS:
            at = min(at, quiet_ns)
        return min(at, self._looked_ns + config.progress_timeout_ns)

    def _unheard(self, now: int) -> list[int]:
        """Rule M11: the members that have not been heard for ``quorum_timeout_ns``, if the others are no quorum. A station that
        is late with its own deadlines is no more patient here: it is its own quorum that it doubts, and nobody else."""
        core, timeout_ns = self._core, self._config.quorum_timeout_ns
        if not timeout_ns:
            return []
        members = [k for k in self._membership.target_indices if k != core.index]
        unheard = [k for k in members if now - self._silence.heard_ns(core.peer(k)) >= timeout_ns]
        heard = [k + 1 for k in members if k not in unheard]
        return [] if not unheard or self._quorum([core.index + 1, *heard]) else [k + 1 for k in unheard]

    # ---- reports
    def _report_blocked(self, now: int, blamed: Iterable[tuple[int, str]], quorum: bool) -> list[Effect]:
        """An effect if the set has changed."""
        new = dict(blamed)
        if new == {station: reason for station, (reason, _) in self.blocked.items()} and quorum == self._quorate:
            return []
        self._quorate = quorum
        old = self.blocked
        self.blocked = {s: (reason, old[s][1] if s in old and old[s][0] == reason else now) for s, reason in new.items()}
        return [Blocked(tuple(sorted(new.items())), quorum)]

    def _conflicts(self, now: int) -> list[Effect]:
        """Frames of this cluster that the core must drop because a station is configured differently."""
        effects: list[Effect] = []
        for reason, what in CONFLICTS.items():
            dropped = self._core.dropped(reason)
            if self._notices.is_news(now, reason.name.lower(), dropped):
                message = f"some station of cluster {self._config.cluster!r} {what}: {dropped} of its frames were dropped"
                effects.append(Notice(reason.name.lower(), message))
        return effects

    def _shortages(self, now: int) -> list[Effect]:
        """The order waits for memory, or has waited since the last notice."""
        if not self._notices.is_news(now, "memory", self._core.memory_refused):
            return []
        mib = self._core.assembling_bytes / 2**20
        message = f"the system has no memory for a large message ({mib:.1f} MiB in use for such): delivery waits for some"
        return [Notice("memory", message)]


class OwnStream:
    """Own PDUs that cannot get through: far larger than an MTU that has been lowered since, so that no station can repeat them;
    or received by no station at all, while all are heard. A stream has no gaps: only a new incarnation can help."""

    def __init__(self, config: EngineConfig, parts: Parts, medium: MediumRules) -> None:
        self._station = config.station
        self._timeout_ns = config.progress_timeout_ns
        self._core = parts.core
        self._quorum = parts.quorum
        self._opening = parts.opening
        self._membership = parts.membership
        self._silence = parts.silence
        self._medium = medium
        self.links_too_long = False
        """Records of a link to one station (docs/multicast.md) are in PDUs like that."""
        self._stuck: dict[str, tuple[int, int]] = {}  # what is wrong: how far own PDUs have got, and since when

    def forgive(self) -> None:
        """Every wait begins again."""
        self._stuck.clear()

    def _is_too_long(self) -> bool:
        """Whether an own PDU cannot be sent again: not in one frame, nor (on a switched network) in as many as a PDU may take."""
        one = self._core.pdu_max
        return self._core.is_too_long(one if self._medium.own_frames_return else pieces_carry(one))

    def judge(self, now: int) -> Sequence[Outcome]:
        """In an instance: what follows if own PDUs have been stuck for ``progress_timeout_ns``."""
        core, membership = self._core, self._membership
        members = membership.target_indices
        quiet_ns = self._silence.quiet_at_ns(core, members, self._timeout_ns // 2)
        away = quiet_ns <= now or not membership.has_quorum  # then that is why they are not confirmed
        matrix = core.matrix()
        others = [matrix[core.index][k] for k in members if k != core.index]
        me, least = f"station {self._station}", min(others, default=0)
        for why, wrong, stable in (
            (f"PDUs of {me} are larger than the MTU is now and cannot be sent again", self._is_too_long(), least),
            (f"PDUs of {me} to one station are larger than the MTU is now and cannot be sent again", self.links_too_long, 0),
            (f"nobody receives what {me} sends", unheard(matrix, members, core.index), max(others, default=0)),
        ):
            before, since = self._stuck.get(why, (-1, now))
            if away or not wrong or stable != before:
                since = now
            self._stuck[why] = (stable, since)
            if now - since >= self._timeout_ns:
                self._stuck.clear()
                if self._quorum([self._station]):  # it can do without them, and they cannot without it
                    return self._medium.on_deaf(now, [k + 1 for k in members if k != core.index])
                return self._opening.renew(now, why)
        return []


class Starvation:
    """Rule M10: who has had no memory for a message for ``progress_timeout_ns`` goes without it, as if the others had removed it.

    It accepts until its buffers are full and then stops every sender, though it is heard and is behind nobody: the others cannot
    tell it from a station whose programs are slow for a moment, so that it has to go by itself."""

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        self._station = config.station
        self.timeout_ns = config.progress_timeout_ns
        """Tests that break the rule raise it."""
        self._core = parts.core
        self._opening = parts.opening
        self._waits: tuple[int, int] | None = None  # which wait of the core's, by its count, and since when it is known here

    def forgive(self) -> None:
        """The wait begins again."""
        self._waits = None

    def judge(self, now: int, core: Core | None = None) -> Sequence[Outcome]:
        """In an instance, or while the rest of the last one is delivered: what follows if one message has waited for too long.
        What was held is given back with the instance; a new incarnation asks to join. core: the one that delivers, if it is that
        of the former configuration."""
        core = core or self._core
        count = core.memory_refused
        if not core.starves:
            self._waits = None
        elif self._waits is None or self._waits[0] != count:
            self._waits = count, now
        elif now - self._waits[1] >= self.timeout_ns:
            self._waits = None
            why = f"station {self._station} has had no memory for a large message for {self.timeout_ns / 1e9:g} s"
            return self._opening.renew(now, why, expelled=True)
        return []
