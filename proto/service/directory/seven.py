"""The seven steps, by which managers change the directory under locks (``update = "seven"``; rules in docs/directory-seven.md).

An attempt asks for the lock of every manager (REQ, GRANT), sends what is to be committed (DATA), commits it when all have it
(DONE), and reports that (CONF). While an attempt holds a manager's lock, look-ups there wait. This is the update protocol of the
DONA paper on terminal management, repaired.

Sans-I/O. Below is the group ``zenjun.dir.seven`` with FIFO order: no message is lost, the messages of each sender arrive in its
order, and all survivors have the same messages of a member that has left before they have the view without it. Messages of
different senders have no common order, and neither have messages and views. A *manager* is a member of the group, whether its
copy is the group's (*active*) or not yet: a joining member does not know which ones are active.

No timer decides anything (rule U7): an attempt waits until each manager has answered or is no longer in the view.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from ...errors import UsageError
from .entries import NOWHERE, Place, Who
from .seventypes import (
    Age,
    Asked,
    Commit,
    Effect,
    Finished,
    Granted,
    Keep,
    Lock,
    Locked,
    Logged,
    Lost,
    Send,
    Standing,
    Wrong,
)
from .sevenwire import NOBODY, Asking, Kind, Message, decode, encode

GROUP: Final = "zenjun.dir.seven"
HELD_MAX: Final = 4096
"""Messages of members whose view has not come yet."""
LOG_MAX: Final = 4096
"""Commits kept while the own copy is not the group's."""


class Seven:
    """One manager. Every input may have effects, which ``take`` returns; the caller applies them in order.

    unicast: REQ, RELEASE, DATA and CONF are sent to each manager separately, as in the paper, so that they can be counted.
    """

    def __init__(self, me: Who, *, unicast: bool = False) -> None:
        self.me = me
        self.unicast = unicast
        self.counters: Counter[str] = Counter()
        self.active = False
        """This copy is the group's."""
        self.place: Place = NOWHERE
        """Place of the last commit, once the copy is the group's."""
        self.life: Place = NOWHERE
        """Place of the view by which this member joined the group: its incarnation there. NOWHERE: it is not a member."""
        self.members: dict[Who, Place] = {}
        """The other managers, and the places at which they joined; NOWHERE: not known yet."""
        self.standing = Standing.IDLE
        self.lock: Lock | None = None
        self.waiting: dict[Who, Asked] = {}
        """The REQs that came while the lock was another's."""
        self.granted: dict[Who, Granted] = {}
        """GRANTs for the own attempt."""
        self.done: dict[Who, bool] = {}
        """DONEs for the own attempt, and whether it is on disk there."""
        self._view: Place = NOWHERE
        self._seen = 0
        """The largest counter of an age so far."""
        self._number = 0
        self._age = Age(0, me)
        self._copying = False
        self._own: Message | None = None
        """The own DATA."""
        self._kept = False
        """The own DATA is kept here."""
        self._held: list[tuple[Who, Message]] = []
        self._log: deque[Logged] = deque(maxlen=LOG_MAX)
        self._effects: list[Effect] = []

    # ---- facts

    @property
    def closed(self) -> bool:
        """Look-ups have to wait (rule U10). COPY changes no entry."""
        return self.lock is not None and not self.lock.copying

    @property
    def covered(self) -> bool:
        """The own attempt has the lock of each manager of the present view.

        A manager that has joined since the attempt had all locks cannot have become active by an attempt, but it can by a START.
        A COPY that is not covered then releases its locks, and asks again.
        """
        return self.granted.keys() >= self.members.keys()

    @property
    def missing(self) -> list[Who]:
        """The managers that the own attempt waits for."""
        if self.standing is Standing.ASKING:
            return sorted(self.members.keys() - self.granted.keys())
        if self.standing is Standing.SENT:
            return sorted(self.granted.keys() - self.done.keys())
        if self.standing is Standing.WAITING and self.lock is not None:
            return [self.lock.asking.owner]
        return []

    def take(self) -> list[Effect]:
        """What is to be done, in order."""
        effects, self._effects = self._effects, []
        return effects

    # ---- the group

    def on_view(self, place: Place, members: Iterable[Who], joined: Iterable[Who] = (), left: Iterable[Who] = ()) -> None:
        """A view of the group. One in which this member joins begins a new incarnation: its station was expelled and has been
        admitted again, or the cluster has opened again. The lock and all that was under way have ended then, and the copy is not
        the group's."""
        came = set(joined)
        self._view = place
        if self.me in came:
            self._begin(place, members)
        elif self.life != NOWHERE:
            for who in sorted(left):
                self._leave(who)
            for who in sorted(came):
                self._join(who, place)
        self._release_held()
        self._advance()

    def receive(self, sender: Who, data: bytes) -> None:
        """A message of the group. Nothing that others send raises."""
        m = decode(data)
        if m is None:
            self.counters["malformed"] += 1
        elif self.life == NOWHERE or sender == self.me or not self._concerns(m):
            pass
        elif m.life > self._view:
            # It has come before the view by which its sender has.
            if len(self._held) >= HELD_MAX:
                self.counters["held-full"] += 1
            else:
                self._held.append((sender, m))
        else:
            self._receive(sender, m)

    # ---- the own attempt

    def request(self, *, copying: bool = False) -> None:
        """Begin an attempt; ``Locked`` reports that it has all locks. copying: COPY, by which a copy becomes the group's.

        Raises UsageError if there is one, this member is not in the group, or an inactive copy is to be changed.
        """
        if self.standing is not Standing.IDLE or self.life == NOWHERE or self.active is copying:
            raise UsageError("an attempt that cannot begin now")
        self._seen += 1
        self._age = self._make_age(self._seen)
        self._copying = copying
        if self.lock is not None:
            self.standing = Standing.WAITING
        else:
            self._ask()

    def copied(self, place: Place) -> None:
        """The own COPY has all locks, and the state is at ``place``: that of an active manager."""
        self.place = place
        self._log.clear()

    def data(self, data: bytes, *, durable: bool = False) -> Place:
        """What the own attempt, which has all locks, is to commit. Returns its place."""
        if self.standing is not Standing.LOCKED:
            raise UsageError("the own attempt has not got all locks")
        place = (max(self.place[0], self._view[0]) + 1, self.me[0], 0)
        self.standing = Standing.SENT
        self.done.clear()
        self._kept = False
        asking = self._asking
        self._own = Message(Kind.DATA, self.life, asking, NOBODY, 0, self._copying, durable, True, self.place, place, data)
        self._broadcast(self._own)
        self._effects.append(Keep(asking, self.me, self.place, place, self._copying, durable, data))
        return place

    def abandon(self) -> None:
        """Give all locks back: there is nothing to commit."""
        if self.standing is not Standing.LOCKED:
            raise UsageError("the own attempt has not got all locks")
        self._broadcast(Message(Kind.RELEASE, self.life, self._asking))
        self.standing = Standing.IDLE
        self._free()

    def kept(self, asking: Asking) -> None:
        """What ``Keep`` has asked for is done."""
        lock = self.lock
        if lock is None or lock.asking != asking:
            return  # it is over: the view without its owner, or a new incarnation
        if asking == self._asking:
            self._kept = True
            self._advance()
        elif lock.data is not None:
            self._say_done(lock.data)

    def activate(self, place: Place) -> None:
        """A START has made this copy the group's, at ``place`` (state transfer). What others have committed on it before this
        member reached the START is applied now."""
        self.active = True
        self.place = place
        log, self._log = list(self._log), deque(maxlen=LOG_MAX)
        for base, commit in log:
            if commit.place > place:
                self._commit(base, commit)

    # ---- members

    def _begin(self, place: Place, members: Iterable[Who]) -> None:
        if self.standing is not Standing.IDLE:
            self._effects.append(Lost(self.standing is Standing.SENT))
        self.standing = Standing.IDLE
        self.life = place
        self.members = {who: NOWHERE for who in members if who != self.me}
        self.lock = None
        self.active = False
        self.waiting.clear()
        self.granted.clear()
        self.done.clear()
        self._held = [(sender, m) for sender, m in self._held if m.life > place]
        self._log.clear()
        self._number = self._seen = 0
        self._own = None
        self._send(Message(Kind.HERE, self.life, self._asking))

    def _join(self, who: Who, place: Place) -> None:
        if who != self.me:
            self.members[who] = place
            if self.unicast:
                self._ask_again(who)  # its HERE may have come before this member was here itself

    def _ask_again(self, who: Who) -> None:
        """A joined member may not have read the REQ: others may have the view with it before its own station has."""
        if self.standing is Standing.ASKING:
            self._send(self._req()._replace(to=who))

    def _leave(self, who: Who) -> None:
        """Rule U6: the lock of a member that has left ends, and its DATA, which all have, is committed."""
        self.members.pop(who, None)
        self._end_life(who, commit=True)

    def _end_life(self, who: Who, *, commit: bool) -> None:
        self.waiting.pop(who, None)
        self._strike(who)
        lock = self.lock
        if lock is not None and self._ends_with(lock, who):
            if commit and lock.data is not None:
                self._commit_lock(lock, lock.data)
            self._free()

    def _strike(self, who: Who) -> None:
        """The DATA was never sent to a member that has left and joined again."""
        self.granted.pop(who, None)
        self.done.pop(who, None)

    def _ends_with(self, lock: Lock, who: Who) -> bool:
        """Whether a lock ends at the view without this member."""
        return lock.asking.owner == who

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for sender, m in held:
            if m.life > self._view:
                self._held.append((sender, m))
            else:
                self._receive(sender, m)

    # ---- messages

    def _concerns(self, m: Message) -> bool:
        """DATA for another is read as well: its owner may end between two of them, and all survivors have the same of it."""
        return m.to in (NOBODY, self.me) or m.kind is Kind.DATA

    def _receive(self, sender: Who, m: Message) -> None:
        known = self.members.get(sender)
        if known is None or m.life < known or known != m.life > self.life:
            self.counters["of-a-former-life"] += 1
            return
        if NOWHERE != known != m.life:
            # It was a member before, so no view has told where it joined; what a member sends just before it knows of its new
            # incarnation comes in this one.
            self._end_life(sender, commit=False)
        self.members[sender] = m.life
        owner = sender if m.kind not in (Kind.GRANT, Kind.DONE) else self.me
        if m.asking.owner != owner or (owner == sender and m.asking.life != m.life):
            if owner == sender:
                self.counters["malformed"] += 1
            return  # a GRANT or DONE for another
        match m.kind:
            case Kind.REQ:
                self._on_req(sender, m)
            case Kind.GRANT:
                self._on_grant(sender, m)
            case Kind.RELEASE:
                self._on_end(sender, m, None)
            case Kind.DATA:
                self._on_data(m)
            case Kind.DONE:
                if self.standing is Standing.SENT and m.asking == self._asking:
                    self.done[sender] = m.durable
                    self._advance()
            case Kind.CONF:
                self._on_end(sender, m, m)
            case Kind.HERE:
                self._ask_again(sender)

    def _on_req(self, sender: Who, m: Message) -> None:
        self._seen = max(self._seen, m.age)
        lock = self.lock
        if lock is not None and lock.asking == m.asking:
            return  # repeated, for members that have joined
        asked = Asked(m.asking, self._age_of(m.age, sender), m.copying)
        if self.standing is Standing.ASKING and asked.age < self._age:
            self._broadcast(Message(Kind.RELEASE, self.life, self._asking))
            self.standing = Standing.WAITING
            lock = self.lock = None
        if lock is None:
            self._grant(asked)
        else:
            self.waiting[sender] = asked

    def _on_grant(self, sender: Who, m: Message) -> None:
        if self.standing is Standing.ASKING and self._is_own(m.asking):
            self.granted[sender] = Granted(m.active, m.base)
            self._advance()

    def _is_own(self, asking: Asking) -> bool:
        """Whether a GRANT is for the present asking."""
        return asking == self._asking

    def _on_data(self, m: Message) -> None:
        lock = self.lock
        if lock is None or lock.asking != m.asking:
            return  # its owner did not know this member when it got its locks; the copy that this one will get has it
        lock.data = m
        if m.to not in (NOBODY, self.me):
            return
        if not self.active:
            self._say_done(m)
        elif m.base != self.place:
            self._wrong(f"the changes of {m.asking.owner} are based on {m.base}, this copy is at {self.place}")
        else:
            self._effects.append(Keep(m.asking, m.asking.owner, m.base, m.place, m.copying, m.durable, m.data))

    def _say_done(self, m: Message) -> None:
        self._send(Message(Kind.DONE, self.life, m.asking, m.asking.owner, durable=m.durable and self.active, active=self.active))

    def _on_end(self, sender: Who, m: Message, conf: Message | None) -> None:
        """RELEASE, or CONF."""
        asked = self.waiting.get(sender)
        if asked is not None and asked.asking == m.asking:
            del self.waiting[sender]
        lock = self.lock
        if lock is None or lock.asking != m.asking:
            return
        if conf is not None and lock.data is not None:
            self._commit_lock(lock, lock.data)
        self._free()

    # ---- what follows

    @property
    def _asking(self) -> Asking:
        return Asking(self.me, self.life, self._number)

    def _make_age(self, counter: int) -> Age:
        return Age(counter, self.me)

    def _age_of(self, counter: int, owner: Who) -> Age:
        return Age(counter, owner)

    def _req(self) -> Message:
        return Message(Kind.REQ, self.life, self._asking, age=self._age.counter, copying=self._copying)

    def _ask(self) -> None:
        """① → ②: with the own lock. Each asking has a number of its own."""
        self._number += 1
        self.standing = Standing.ASKING
        self.granted.clear()
        self.lock = Lock(self._asking, self._age, self._copying)
        self._broadcast(self._req())
        self._advance()

    def _grant(self, asked: Asked) -> None:
        self.lock = Lock(asked.asking, asked.age, asked.copying)
        place = self.place if self.active else NOWHERE
        self._send(Message(Kind.GRANT, self.life, asked.asking, asked.asking.owner, active=self.active, base=place))

    def _needed(self) -> Iterable[Who]:
        """The managers whose GRANT the own attempt needs: all of the own present view, by name (rule U4)."""
        return self.members.keys()

    def _advance(self) -> None:
        if self.standing is Standing.ASKING and self.granted.keys() >= set(self._needed()):
            self._lock_all()
        if self.standing is Standing.SENT and self._kept and self.done.keys() >= self.granted.keys():
            self._finish()

    def _lock_all(self) -> None:
        self.standing = Standing.LOCKED
        places = [g.place for g in self.granted.values() if g.active]
        if self.active:
            if any(place != self.place for place in places):
                self._wrong(f"other copies are at {sorted(set(places))}, this one is at {self.place}")
                return
            places.append(self.place)
        self._effects.append(Locked(self._copying, max(places, default=NOWHERE)))

    def _finish(self) -> None:
        """⑤ → ⑥, ⑦."""
        m = self._own
        if m is None:
            return
        durable = {who for who, on_disk in self.done.items() if on_disk}
        if m.durable:
            durable.add(self.me)
        self.active = True
        self._commit(m.base, Commit(m.place, self.me, m.copying, m.data))
        self._broadcast(Message(Kind.CONF, self.life, self._asking))
        self._effects.append(Finished(m.place, frozenset(durable)))
        self.standing = Standing.IDLE
        self._own = None
        self._free()

    def _commit_lock(self, lock: Lock, m: Message) -> None:
        self._commit(m.base, Commit(m.place, lock.asking.owner, m.copying, m.data))

    def _commit(self, base: Place, commit: Commit) -> None:
        if not self.active:
            self._log.append(Logged(base, commit))
        elif base != self.place:
            self._wrong(f"changes at {commit.place} are based on {base}, this copy is at {self.place}")
        else:
            self.place = commit.place
            self._effects.append(commit)

    def _free(self) -> None:
        """The lock goes to the oldest attempt that asks for it, perhaps the own one."""
        self.lock = None
        oldest = min(self.waiting.values(), key=lambda asked: asked.age, default=None)
        if self.standing is Standing.WAITING and (oldest is None or self._age < oldest.age):
            self._ask()
        elif oldest is not None:
            del self.waiting[oldest.asking.owner]
            self._grant(oldest)

    def _wrong(self, text: str) -> None:
        self.counters["wrong"] += 1
        self._effects.append(Wrong(text))

    def _broadcast(self, m: Message) -> None:
        if self.unicast:
            for who in sorted(self.members):
                self._send(m._replace(to=who))
        else:
            self._send(m)

    def _send(self, m: Message) -> None:
        self._effects.append(Send(encode(m)))
