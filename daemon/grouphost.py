"""The host of the process groups (``proto/service/groups.py``) inside the daemon.

It passes them the messages at which delivery stops, and applies what they return: a ``Change`` becomes routes in the data path
and VIEW frames for the members, an ``Emit`` a message in the order, a ``Reply`` an answer. The other way it turns JOIN and LEAVE
of programs into group messages.

A join is a message: the client's membership, at every station, begins at its place in the order, so all members see the same
views at the same place. Groups persist while stations come and go. When the cluster opens again, or this station is admitted
again, it joins its clients' groups again by itself; after an admission only when it knows all groups of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeAlias

from ..proto.service.base import Effect, Emit, Place, Reply, ViewEvent
from ..proto.service.groups import NAME_BOUNDS, Change, Groups, group_name
from ..proto.wire import ORDER_NAMES, MessageType, Ordering, group_id
from .clientwire import (
    HANDLES_MAX,
    HANDLES_PER_UID,
    JOIN,
    JOIN_FLAGS,
    LEVEL_MASK,
    LEVEL_MAX,
    LEVELS,
    RESERVED_PREFIX,
    STATE_PREFIX,
    VERSION_REQUESTS,
    Frame,
    JoinFlag,
    Kind,
)
from .connections import Connection, Connections, Facts, Handle, Standing, as_json
from .datapath import DataPath, MaySend, Take
from .requests import privileged
from .services import ServiceHost, Services

Refusal: TypeAlias = tuple[str, str] | None
"""Code and text of an ERROR; None: nothing is in the way."""
ORDERINGS: Final = frozenset(int(ordering) for ordering in Ordering)
REFUSED: Final = {
    "name-collision": "group {!r} has the same number as another group with members: use another name",
    "order-mismatch": "group {!r} has another order: its first member has said which",
}
"""The error for a program whose join has been refused at its place."""


class GroupHost(ServiceHost):
    """Drives the groups of this daemon's clients. One thread; called by the sessions, calls the data path."""

    MESSAGES = frozenset({MessageType.GROUP})
    REQUESTS = frozenset({Kind.MEMBERS})

    def __init__(
        self,
        services: Services,
        dp: DataPath,
        groups: Groups,
        connections: Connections,
        standing: Standing,
        facts: Facts,
        reply: Callable[[Reply], None],
    ) -> None:
        self._dp = dp
        self._groups = groups
        self._connections = connections
        self._standing = standing
        self._facts = facts
        self._reply = reply
        self._by_group: dict[str, dict[tuple[int, int], tuple[Connection, Handle]]] = {}
        """Handles of each group by (client, handle): what a view costs must not grow with the other groups."""
        self._names: dict[int, str] = {}
        self._outbox: deque[tuple[int, int, bytes]] = deque()
        """(client, group, message) to be sent, for which the data path had no room yet."""
        services.register(self)

    # ---- instances

    def open(self, instance: int, *, joined: bool) -> None:
        """An instance begins; joined: the others have groups already. Call ``begin`` when the programs have got the event."""
        self._groups.open(instance, joined=joined)

    def suspend(self) -> None:
        """This station is in no instance now; what is delivered of the last one before the next begins still counts."""
        self._groups.suspend()
        self._outbox.clear()

    def end(self) -> None:
        """No client is in any group any more. What was on its way there has gone with the instance (``DataPath.reset``)."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), False)
        self._groups.close()
        for connection in list(self._connections.by_slot.values()):
            for handle in list(connection.handles.values()):
                if handle.member:
                    self._dp.leave(connection.slot, handle.group_id)
                if handle.leaving or connection.bye:
                    self._unbind(connection, handle)
                handle.asked = handle.member = False

    def begin(self) -> None:
        """The groups are known, or not yet: let our clients join, or wait."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), self._groups.needs_ack(name))
        for connection in self._connections.in_order():
            for handle in connection.handles.values():
                self._ask(connection, handle)
                self._allow(connection, handle)
        self.flush()

    # ---- messages in the order

    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        """A group message of a client of station ``place[1]``. position: of its PDU."""
        known = self._groups.known
        self._apply(self._groups.on_message(place, (place[1], client), data), place, client, position)
        self._if_known(known)

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        """Stations have come or gone at this place of the order."""
        known = self._groups.known
        self._apply(self._groups.on_view(place, view), place, 0, position)
        self._if_known(known)

    def on_request(self, request: Hashable, body: bytes) -> None:
        """A program asks the groups something; the answer goes to ``reply``."""
        self._apply(self._groups.on_request(request, body), (0, 0, 0), 0, 0)

    def _apply(self, effects: Iterable[Effect], place: Place, client: int, position: int) -> None:
        """Carry out what the groups return to an input at ``place``; client: the one that it came from, 0: none."""
        own = bool(client) and place[1] == self._facts.station
        for effect in effects:
            if isinstance(effect, Change):
                if own:
                    self._own_change(effect, client)
                if not effect.refused:
                    self._show(effect, place, position)
            elif isinstance(effect, Emit):
                self._outbox.append((effect.client, 0, effect.data))
                self.flush()
            elif isinstance(effect, Reply):
                self._reply(effect)

    def _if_known(self, before: bool) -> None:
        """This station has just learnt the groups of the instance that admitted it: our clients can join now."""
        if self._standing.open and self._groups.known and not before:
            self.begin()

    def _own_change(self, change: Change, client: int) -> None:
        """Carry a change of one of our own clients into the data path."""
        connection = self._connections.by_number.get(client)
        handle = connection.joined.get(change.group) if connection is not None else None
        if connection is None or handle is None:
            return
        if change.refused:
            self._connections.error(connection, change.reason, REFUSED[change.reason].format(change.group), handle.number)
            if not handle.leaving:
                self._dp.handle_drop(connection.slot, handle.number)
            self._unbind(connection, handle)
        elif change.reason == "join":
            handle.member = True
            self._dp.join(connection.slot, handle.number, handle.group_id, handle.level, handle.no_self, handle.ordering)
            self._allow(connection, handle)

    def _show(self, change: Change, place: Place, position: int) -> None:
        """Send the view to all local members, and to those that have just left."""
        body = as_json(
            {
                "group": change.group, "clock": place[0], "station": place[1], "index": place[2],
                "instance": self._standing.view_instance, "members": [list(m) for m in change.members],
                "joined": [list(m) for m in change.joined], "left": [list(m) for m in change.left], "reason": change.reason,
            }
        )  # fmt: skip
        own = self._facts.station
        leavers = {m[1] for m in change.left if m[0] == own}
        identity = group_id(change.group)
        bound = sorted(self._by_group.get(change.group, {}).items())
        for _, (connection, handle) in bound:
            if not handle.member:
                continue
            self._dp.client_put(
                connection.slot, Frame.VIEW, handle=handle.number, body=body, position=position, level=handle.level
            )
            if connection.client in leavers:
                self._dp.leave(connection.slot, identity)
                self._unbind(connection, handle)
        self._dp.need_ack(identity, self._groups.needs_ack(change.group))
        for _, (connection, handle) in bound:
            if handle.send_only:
                self._allow(connection, handle)

    # ---- what programs want

    def on_join(self, connection: Connection, take: Take) -> str:
        """A JOIN. Returns why it is a violation of the protocol, empty if it is none; what cannot be is answered with ERROR."""
        allowed, start = JOIN_FLAGS, JOIN.size
        if connection.version < VERSION_REQUESTS:
            allowed, start = allowed | JoinFlag.OP, 0
        if take.flags & LEVEL_MASK > LEVEL_MAX or take.flags & ~int(allowed):
            return f"JOIN with unknown flags {take.flags:#x}"
        if take.size < start:
            return "a JOIN without its order"
        if refusal := self._join(connection, take, take.data[start:]):
            self._connections.error(connection, *refusal, take.handle)
        return ""

    def _join(self, connection: Connection, take: Take, group: bytes) -> Refusal:
        """Bind the handle and send the join as soon as it can be sent. group: the name, which may be none."""
        if refusal := self._refusal_of_handle(connection, take.handle):
            return refusal
        name = group_name(group)
        if name is None:
            return "name", NAME_BOUNDS
        if connection.version < VERSION_REQUESTS:
            ordering = Ordering.FIFO if take.flags & JoinFlag.OP else Ordering.TOTAL
        else:
            (number,) = JOIN.struct.unpack_from(take.data)
            if number not in ORDERINGS:
                known = ", ".join(f"{int(s)} ({ORDER_NAMES[s]})" for s in Ordering)
                return "unknown-order", f"this daemon knows no order of delivery number {number}; it knows {known}"
            ordering = Ordering(number)
        handle = Handle(
            number=take.handle,
            group=name,
            group_id=group_id(name),
            level=take.flags & LEVEL_MASK,
            open=bool(take.flags & JoinFlag.OPEN),
            send_only=bool(take.flags & JoinFlag.SEND_ONLY),
            no_self=bool(take.flags & JoinFlag.NO_SELF),
            ordering=ordering,
        )
        if refusal := self._refusal_of_group(connection, handle):
            return refusal
        self._bind(connection, handle)
        self._ask(connection, handle)
        self._allow(connection, handle)
        self.flush()
        return None

    def _refusal_of_handle(self, connection: Connection, number: int) -> Refusal:
        """Whether the client cannot have this handle."""
        if not 1 <= number < HANDLES_MAX or number in connection.handles:
            why = "in use" if number in connection.handles else f"not within 1..{HANDLES_MAX - 1}"
            return "bad-handle", f"handle {number} is {why}"
        if self._connections.handles_of[connection.uid] >= HANDLES_PER_UID:
            text = f"the programs of this user hold {HANDLES_PER_UID} groups at this station already: leave some first"
            return "too-many-groups", text
        return None

    def _refusal_of_group(self, connection: Connection, handle: Handle) -> Refusal:
        """Whether the client cannot have this group, or not like this."""
        name = handle.group
        reserved = name.startswith(RESERVED_PREFIX) and not name.startswith(STATE_PREFIX)
        if reserved and not privileged(connection.uid):
            text = f"groups named {RESERVED_PREFIX}* are for root and the daemon's own user; {name!r} cannot be had"
            return "not-permitted", text
        other = self._name_of(handle.group_id)
        if other is not None and other != name:
            return "name-collision", f"group {name!r} has the same number as group {other!r}: use another name"
        if not handle.send_only:
            fifo = handle.ordering is Ordering.FIFO
            if self._facts.medium == "bus" and (fifo or handle.level != LEVEL_MAX):
                what = "order op delivers on acceptance" if fifo else f"level {LEVELS[handle.level]}"
                why = (
                    'medium = "bus" delivers only at level ack: what is accepted, or what everybody has, may still be taken back'
                )
                return "bus-level", f"{what} cannot be had: {why}"
            if fifo and handle.level:
                return "level", "a group of order op delivers on acceptance: it has no level above ordered"
        if self._standing.fence is not None:
            return "fenced", "the order here differs from another station's"
        if not handle.send_only and name in connection.joined:
            return "name", f"group {name!r} is joined already"
        if handle.send_only and not self._groups.may_send(name):
            return "closed-group", f"group {name!r} is not open to programs that are not in it"
        return None

    def on_leave(self, connection: Connection, number: int) -> None:
        """A LEAVE."""
        handle = connection.handles.get(number)
        if handle is None or handle.leaving:
            self._connections.error(connection, "bad-handle", f"handle {number} is not joined", number)
            return
        self._dp.handle_drop(connection.slot, number)
        self._part(connection, handle)
        self.flush()

    def leave_all(self, connection: Connection) -> None:
        """The client has sent BYE: leave the groups that it has not left yet."""
        for handle in list(connection.handles.values()):
            if not handle.leaving:
                self._part(connection, handle)
        self.flush()

    def forget(self, connection: Connection, *, death: bool) -> None:
        """The connection is gone: its memberships end at a place in the order like everything else."""
        for handle in connection.handles.values():
            if self._standing.open and handle.asked and not handle.leaving:
                self._queue(connection.client, handle, self._groups.encode_leave(handle.group, death=death))
        self.unbind_all(connection)
        self.flush()

    def unbind_all(self, connection: Connection) -> None:
        """Views may still come; none is for this connection any more."""
        for handle in list(connection.handles.values()):
            self._unbind(connection, handle)

    # ---- handles

    def _bind(self, connection: Connection, handle: Handle) -> None:
        connection.handles[handle.number] = handle
        self._connections.handles_of[connection.uid] += 1
        if not handle.send_only:
            connection.joined[handle.group] = handle
        self._by_group.setdefault(handle.group, {})[connection.client, handle.number] = (connection, handle)
        self._names[handle.group_id] = handle.group

    def _unbind(self, connection: Connection, handle: Handle) -> None:
        del connection.handles[handle.number]
        handles_of = self._connections.handles_of
        handles_of[connection.uid] -= 1
        if not handles_of[connection.uid]:
            del handles_of[connection.uid]
        if not handle.send_only:
            del connection.joined[handle.group]
        bound = self._by_group[handle.group]
        del bound[connection.client, handle.number]
        if not bound:
            del self._by_group[handle.group], self._names[handle.group_id]

    def _part(self, connection: Connection, handle: Handle) -> None:
        """Begin to leave. The handle stays until the leave has come in its place."""
        if handle.asked:
            handle.leaving = True
            if self._standing.open:  # else the instance has ended, and with the next one the membership
                self._queue(connection.client, handle, self._groups.encode_leave(handle.group, death=False))
        else:
            self._unbind(connection, handle)

    def _ask(self, connection: Connection, handle: Handle) -> None:
        """Send the join of a handle in the present instance, if it can be sent yet."""
        if handle.send_only or handle.asked or connection.bye or not self._standing.open or not self._groups.known:
            return
        handle.asked = True
        data = self._groups.encode_join(
            handle.group, connection.name, level=handle.level, open=handle.open, ordering=handle.ordering
        )
        self._queue(connection.client, handle, data)

    def _allow(self, connection: Connection, handle: Handle) -> None:
        """Say what becomes of SENDs on a handle now. They wait for the join: until it is ahead of them in the queue, or, where
        messages overtake the order, until it has its place there."""
        if handle.leaving:
            return
        ordering = handle.ordering
        if not handle.send_only:
            may = MaySend.YES if handle.asked and (handle.member or ordering is Ordering.TOTAL) else MaySend.WAIT
        elif self._standing.open and self._groups.known:
            may = MaySend.YES if self._groups.may_send(handle.group) else MaySend.NO
            ordering = self._groups.ordering(handle.group)
        else:
            may = MaySend.WAIT
        self._dp.handle(connection.slot, handle.number, handle.group_id, may_send=may, ordering=ordering)

    def _name_of(self, identity: int) -> str | None:
        """The group that has this number, as far as this station knows."""
        return self._groups.name_of(identity) or self._names.get(identity)

    # ---- messages to the order

    @property
    def waiting(self) -> bool:
        """Messages wait for room in the data path: call ``flush`` after the next turn."""
        return bool(self._outbox)

    def _queue(self, client: int, handle: Handle, data: bytes) -> None:
        self._outbox.append((client, handle.group_id, data))

    def flush(self) -> None:
        """Send what there is room for."""
        while self._outbox:
            client, group, data = self._outbox[0]
            if not self._dp.send(client, group, MessageType.GROUP, data):
                return
            self._outbox.popleft()
