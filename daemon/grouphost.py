"""The host of the process groups (``proto/service/groups.py``) inside the daemon.

It passes them the messages at which delivery stops, and applies what they return: a ``Change`` becomes routes in the data path
and VIEW frames for the members, an ``Emit`` a message in the order, a ``Reply`` an answer. The other way it turns JOIN and LEAVE
of programs into group messages.

A join is a message: the client's membership, at every station, begins at its place in the order, so all members see the same
views at the same place. Groups persist while stations come and go. When the cluster opens again, or this station is admitted
again, it joins its clients' groups again by itself; after an admission only when it knows all groups of the others.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from ..proto.engineconfig import EngineConfig
from ..proto.multicast.codec import GROUPS_MAX, OPERATIONS
from ..proto.multicast.links import MESSAGE_MAX as MULTICAST_BYTES
from ..proto.multicast.member import MULTICAST
from ..proto.service.base import Effect, Emit, Place, Reply, ViewEvent
from ..proto.service.groups import LEVEL_OF, NAME_BOUNDS, Change, Groups, group_name
from ..proto.service.transferwire import companion_of
from ..proto.wire import ORDER_NAMES, MessageType, Ordering, group_id
from .access import Access, Identity, What
from .audit import Audit
from .clientwire import (
    HANDLES_MAX,
    JOIN,
    JOIN_FLAGS,
    LEVEL_MASK,
    LEVEL_MAX,
    LEVELS,
    SEND_TO,
    STATE_PREFIX,
    VERSION_REQUESTS,
    Frame,
    JoinFlag,
    Kind,
    SendFlag,
)
from .connections import Connection, Connections, Facts, Handle, Standing, as_json
from .datapath import DataPath, MaySend, Take, now_ns
from .multicast import WAIT, MulticastHost, Outgoing, Verdict
from .requests import Question
from .services import ServiceHost, Services

Refusal: TypeAlias = tuple[str, str] | None
"""Code and text of an ERROR; None: nothing is in the way."""
MULTICAST_OPERATIONS: Final = frozenset(bytes([operation]) for operation in OPERATIONS)
REFUSED: Final = {
    "name-collision": "group {!r} has the same number as another group with members: use another name",
    "order-mismatch": "group {!r} has order {}: its first member has said so",
    "too-many-groups": "group {!r} would be one more than the cluster may have (cluster.groups_max)",
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
        config: EngineConfig | None = None,
        *,
        access: Access,
        audit: Audit,
    ) -> None:
        """config: the engine's, for groups of orders ``abcast`` and ``token``; None: there are none."""
        self._dp = dp
        self._groups = groups
        self._connections = connections
        self._standing = standing
        self._facts = facts
        self._reply = reply
        self._access = access
        self._audit = audit
        self.multicast = MulticastHost(dp, groups, connections, standing, facts, config)
        self.multicast.emit = self._emit
        self.multicast.unbind = self._unbind_now
        self.multicast.judge = self._judge
        self.multicast.on_ready = self.begin
        self.multicast.on_open = self._ask_next
        self._by_group: dict[str, dict[tuple[int, int], tuple[Connection, Handle]]] = {}
        """Handles of each group by (client, handle): what a view costs must not grow with the other groups."""
        self._names: dict[int, str] = {}
        self._joining: Handle | None = None
        """Its join to a group of order abcast or token has no place yet."""
        self._more_wait = False
        """Perhaps further joins to such groups wait."""
        self._outbox: deque[tuple[int, int, bytes]] = deque()
        """(client, group, message) to be sent, for which the data path had no room yet."""
        services.register(self)

    # ---- instances

    def open(self, instance: int, *, joined: bool) -> None:
        """An instance begins; joined: the others have groups already. Call ``begin`` when the programs have got the event."""
        self._groups.open(instance, joined=joined)
        self.multicast.open(instance, joined=joined)

    def on_configuration(self, groups_max: int) -> None:
        """The next instance may have so many groups."""
        self._groups.groups_max = groups_max

    def suspend(self) -> None:
        """This station is in no instance now; what is delivered of the last one before the next begins still counts."""
        self._groups.suspend()
        self.multicast.suspend()
        self._outbox.clear()

    def end(self) -> None:
        """No client is in any group any more. What was on its way there has gone with the instance (``DataPath.reset``)."""
        self._joining, self._more_wait = None, False
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), False)
        self._groups.close()
        for connection in list(self._connections.by_slot.values()):
            for handle in list(connection.handles.values()):
                if handle.member and handle.ordering not in MULTICAST:
                    self._dp.leave(connection.slot, handle.group_id)
                if handle.leaving or connection.bye:
                    self._unbind(connection, handle)
                handle.asked = handle.member = False

    def begin(self) -> None:
        """The groups are known, or not yet: let our clients join, or wait."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), self._groups.needs_ack(name))
            self._note_preack(name)
        for connection in self._connections.in_order():
            for handle in connection.handles.values():
                self._ask(connection, handle)
                self._allow(connection, handle)
        self.multicast.send_waiting()
        self.flush()
        if self._access.is_limited:
            self.review()

    # ---- messages in the order

    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        """A group message of a client of station ``place[1]``. position: of its PDU."""
        if not client and data[:1] in MULTICAST_OPERATIONS:
            self.multicast.on_group_message(place[1], data)
            return
        known, kept = self._groups.known, self._groups.kept
        effects = self._groups.on_message(place, (place[1], client), data)
        if self._groups.kept > kept:
            self.multicast.on_kept()
        self._apply(effects, place, client, position)
        self._if_known(known)
        self.multicast.on_groups()

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        """Stations have come or gone at this place of the order."""
        known, syncing = self._groups.known, self._groups.syncing
        self._groups.uses_multicast = self.multicast.member.is_used
        effects = self._groups.on_view(place, view)
        gone = [e for e in effects if isinstance(e, Change) and e.ordering in MULTICAST]
        self._apply([e for e in effects if e not in gone], place, 0, position)
        self.multicast.on_view(view, gone, syncing)
        for change in gone:
            self._note_preack(change.group)
        self._if_known(known)
        self.multicast.on_groups()

    def on_request(self, request: Hashable, body: bytes) -> None:
        """A program asks the groups something; the answer goes to ``reply``."""
        if isinstance(request, Question) and (name := group_name(body)) and not self.sees(request.connection.who, name):
            text = self._why_unseen(request.connection.who, name)
            self._audit_refusal(request.connection, "not-permitted", text)
            self._reply(Reply(request, {"message": text}, "not-permitted"))
            return
        effects = self._groups.on_request(request, body)
        tokens = self.multicast.tokens_of(group_name(body) or "")
        if tokens is not None:
            effects = [replace(e, body={**e.body, "tokens": tokens}) if isinstance(e, Reply) else e for e in effects]
        self._apply(effects, (0, 0, 0), 0, 0)

    def _apply(self, effects: Iterable[Effect], place: Place, client: int, position: int) -> None:
        """Carry out what the groups return to an input at ``place``; client: the one that it came from, 0: none."""
        own = bool(client) and place[1] == self._facts.station
        for effect in effects:
            if isinstance(effect, Change):
                if own:
                    self._own_change(effect, client)
                if self._access.is_limited and effect.reason == "join":
                    self._review_companions(effect.group)
                if not effect.refused and effect.ordering in MULTICAST:
                    self.multicast.on_change(effect)
                    self._note_preack(effect.group)
                    self._allow_others(effect.group)
                elif not effect.refused:
                    self._show(effect, place, position)
            elif isinstance(effect, Emit):
                self._outbox.append((effect.client, 0, effect.data))
                self.flush()
            elif isinstance(effect, Reply):
                self._reply(effect)

    def _note_preack(self, group: str) -> None:
        """Whether somebody waits for level preack of a group's messages, if it is of order abcast or token."""
        identity = group_id(group)
        wants = self._groups.ordering(group) in MULTICAST and self._groups.wants_preack(identity)
        self._dp.need_preack(identity, wants)

    def _if_known(self, before: bool) -> None:
        """This station has just learnt the groups of the instance that admitted it: our clients can join now."""
        if self._standing.open and self._groups.known and not before:
            self.begin()

    def _own_change(self, change: Change, client: int) -> None:
        """Carry a change of one of our own clients into the data path."""
        connection = self._connections.by_number.get(client)
        handle = connection.joined.get(change.group) if connection is not None else None
        if handle is not None and handle is self._joining:
            self._joining = None
        if connection is None and (change.refused or change.reason == "join"):
            self.multicast.on_joined(client, change.group, refused=bool(change.refused))
        if connection is None or handle is None:
            return
        if change.refused:
            text = REFUSED[change.reason].format(change.group, ORDER_NAMES[change.ordering])
            self._connections.error(connection, change.reason, text, handle.number)
            if not handle.leaving:
                self._dp.handle_drop(connection.slot, handle.number)
            self._unbind(connection, handle)
            self.multicast.send_waiting()
            self._ask_next()
        elif change.reason == "join":
            handle.member = True
            if handle.ordering not in MULTICAST:
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
        self._allow_others(change.group)

    def _allow_others(self, group: str) -> None:
        """Whether programs may send that are not in the group can be another matter now; also those who have taken another name
        of the same id."""
        for name in sorted({group, self._names.get(group_id(group), group)}):
            for _, (connection, handle) in sorted(self._by_group.get(name, {}).items()):
                if handle.send_only:
                    self._allow(connection, handle)

    def _emit(self, data: bytes) -> None:
        """A message of this station to all."""
        self._outbox.append((0, 0, data))
        self.flush()

    def _unbind_now(self, connection: Connection, handle: Handle) -> None:
        if connection.handles.get(handle.number) is handle:
            self._unbind(connection, handle)

    # ---- rights

    def sees(self, who: Identity, group: str) -> bool:
        """Whether a program may learn a group's name and members."""
        if not self._access.is_limited:
            return True
        known = self._groups.names() if group.startswith(STATE_PREFIX) else ()
        return self._access.sees(who, group, known)

    def _why_unseen(self, who: Identity, group: str) -> str:
        if group.startswith(STATE_PREFIX):
            return f"{who.name} may not receive of the group whose state {group!r} transfers (docs/access.md)"
        return self._access.why_not(who, "receive", group)

    def _lacks(self, who: Identity, handle: Handle) -> str:
        """The right that a program lacks for a handle, in words, or an empty string."""
        what: What = "send" if handle.send_only else "receive"
        if not self._access.may(who, what, handle.group):
            return self._access.why_not(who, what, handle.group)
        if handle.group.startswith(STATE_PREFIX) and not self.sees(who, handle.group):
            return self._why_unseen(who, handle.group)
        return ""

    def review(self) -> None:
        """Rights, or the groups that are known, have changed: programs lose the handles that they may not have."""
        for connection in self._connections.in_order():
            for handle in list(connection.handles.values()):
                self._review(connection, handle)
        self.flush()

    def _review_companions(self, group: str) -> None:
        """A group is known from here on: who may not receive of it loses the groups by which its state is transferred."""
        base = companion_of(group)
        for name in [name for name in self._by_group if name == base or name.startswith(base + ".")]:
            for _, (connection, handle) in sorted(self._by_group[name].items()):
                self._review(connection, handle)
        self.flush()

    def _review(self, connection: Connection, handle: Handle) -> None:
        if handle.leaving:
            return
        if text := self._lacks(connection.who, handle):
            self._connections.error(connection, "not-permitted", text, handle.number)
            self._audit_refusal(connection, "not-permitted", text)
            self._dp.handle_drop(connection.slot, handle.number)
            self._part(connection, handle)
        else:
            self._allow(connection, handle)

    def _audit_refusal(self, connection: Connection, code: str, text: str) -> None:
        self._audit.refused(code, connection.who, connection.name, text, now_ns())

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
            self._audit_refusal(connection, *refusal)
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
            if number not in self.multicast.orderings:
                known = ", ".join(f"{int(s)} ({ORDER_NAMES[s]})" for s in self.multicast.orderings)
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
        if self._audit.everything:
            done = f"may send to group {name!r}" if handle.send_only else f"joins group {name!r}"
            self._audit.done(done, connection.who, connection.name, now_ns())
        return None

    def _refusal_of_handle(self, connection: Connection, number: int) -> Refusal:
        """Whether the client cannot have this handle."""
        if not 1 <= number < HANDLES_MAX or number in connection.handles:
            why = "in use" if number in connection.handles else f"not within 1..{HANDLES_MAX - 1}"
            return "bad-handle", f"handle {number} is {why}"
        text = self._access.may_hold(connection.who, self._connections.handles_of[connection.uid])
        return ("too-many-groups", text) if text else None

    def _refusal_of_group(self, connection: Connection, handle: Handle) -> Refusal:
        """Whether the client cannot have this group, or not like this."""
        name = handle.group
        if text := self._lacks(connection.who, handle):
            return "not-permitted", text
        other = self._name_of(handle.group_id)
        if other is not None and other != name:
            shown = f"group {other!r}" if self.sees(connection.who, other) else "another group"
            return "name-collision", f"group {name!r} has the same number as {shown}: use another name"
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
            if handle.level > LEVEL_OF[handle.ordering]:
                return "level", f"a group of order {ORDER_NAMES[handle.ordering]} has no level {LEVELS[handle.level]}"
        if self._standing.fence is not None:
            return "fenced", "the order here differs from another station's"
        if not handle.send_only and name in connection.joined:
            return "name", f"group {name!r} is joined already"
        if handle.send_only and not self._groups.may_send(name):
            return "closed-group", f"group {name!r} is not open to programs that are not in it"
        return None

    def on_send(self, connection: Connection, take: Take) -> str:
        """A SEND on a handle of a group of order abcast or token, or a SEND_TO. Returns why it is a violation of the protocol."""
        handles, data = [take.handle], take.data
        if take.type == Frame.SEND_TO:
            if take.size < SEND_TO.size:
                return "a SEND_TO without its handles"
            (count,) = SEND_TO.struct.unpack_from(data)
            end = SEND_TO.size + 2 * count
            if take.size < end:
                return "a SEND_TO that is shorter than its handles"
            handles = list(struct.unpack_from(f"<{count}H", data, SEND_TO.size))
            data = data[end:]
        if len(handles) > GROUPS_MAX or not handles:
            text = f"a message to {len(handles)} groups; allowed: 1..{GROUPS_MAX}"
            self._dp.refuse(connection.slot, "groups", text, handle=take.handle)
            return ""
        for group in [connection.handles[h].group for h in handles if h in connection.handles]:
            if not self._access.may(connection.who, "send", group):
                text = self._access.why_not(connection.who, "send", group)
                self._audit_refusal(connection, "not-permitted", text)
                self._dp.refuse(connection.slot, "not-permitted", text, handle=take.handle)
                return ""
        groups = {connection.handles[h].group_id for h in handles if h in connection.handles}
        notify = bool(take.flags & SendFlag.NOTIFY)
        self.multicast.send(Outgoing(connection, tuple(handles), tuple(sorted(groups)), data, take.flags & LEVEL_MASK, notify))
        return ""

    def _judge(self, m: Outgoing) -> Verdict:
        """Whether a message to these handles can be sent now: when it came their joins may have had no place yet, and while it
        waited others may have made or left groups."""
        orders: set[Ordering] = set()
        for number in m.handles:
            handle = m.connection.handles.get(number)
            if handle is None or handle.leaving:
                return "bad-handle", f"no group is joined as handle {number}"
            if not self._standing.open or not self._groups.known or not (handle.member or handle.send_only):
                return WAIT
            if handle.send_only and not self._groups.may_send(handle.group):
                return "closed-group", f"group {handle.group!r} is not open to programs that are not in it"
            if not self._access.may(m.connection.who, "send", handle.group):
                return "not-permitted", self._access.why_not(m.connection.who, "send", handle.group)
            if self._groups.members(handle.group) or not handle.send_only:
                orders.add(handle.ordering if not handle.send_only else self._groups.ordering(handle.group))
        if len(orders) > 1:
            return "order-mismatch", "one message cannot go to groups of different orders"
        if orders - MULTICAST:
            return "groups", "only groups of orders abcast and token can be addressed together"
        if m.level > LEVEL_OF[Ordering.TOKEN]:
            return "level", "messages to groups of orders abcast and token have no level ack"
        if len(m.data) > MULTICAST_BYTES:
            return "too-large", f"a message of {len(m.data)} bytes; to such groups {MULTICAST_BYTES} can be sent"
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
        self.multicast.on_gone(connection)
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
        if handle is self._joining:
            self._joining = None
        handles_of = self._connections.handles_of
        handles_of[connection.uid] -= 1
        if not handles_of[connection.uid]:
            del handles_of[connection.uid]
        if not handle.send_only:
            del connection.joined[handle.group]
        bound = self._by_group[handle.group]
        del bound[connection.client, handle.number]
        if not bound:
            del self._by_group[handle.group]
            if self._names.get(handle.group_id) == handle.group:  # two names may have one id: who only sends has joined nothing
                del self._names[handle.group_id]

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
        if handle.ordering in MULTICAST:
            # Each join is a change, to which all stations say what they have not finished: if all came at once, each would be
            # overtaken by the next, all of them would be kept, and a station would be busy with them until it was taken for dead.
            if not self.multicast.is_ready:
                return
            if self._joining is not None or not self.multicast.may_change:
                self._more_wait = True
                return
            self._joining = handle
        handle.asked = True
        data = self._groups.encode_join(
            handle.group, connection.name, level=handle.level, open=handle.open, ordering=handle.ordering
        )
        self._queue(connection.client, handle, data)

    def _ask_next(self) -> None:
        """The change before is over: the next join to a group of order abcast or token, if one waits."""
        if self._joining is not None or not self._more_wait:
            return
        for connection in self._connections.in_order():
            for handle in list(connection.handles.values()):
                if handle.ordering in MULTICAST and not handle.asked:
                    self._ask(connection, handle)
                    if self._joining is handle:
                        self._allow(connection, handle)
                        self.flush()
                        return
        self._more_wait = False

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
            if ordering in MULTICAST and not self.multicast.is_ready:
                may = MaySend.WAIT
        else:
            may = MaySend.WAIT
        direct = ordering in MULTICAST
        if may is not MaySend.NO and not self._access.may(connection.who, "send", handle.group):
            may, ordering, direct = MaySend.YES, Ordering.TOKEN, False  # its SENDs come here, and are refused by ``on_send``
        self._dp.handle(connection.slot, handle.number, handle.group_id, may_send=may, ordering=ordering, direct=direct)

    def _name_of(self, identity: int) -> str | None:
        """The group that has this number, as far as this station knows."""
        return self._groups.name_of(identity) or self._names.get(identity)

    # ---- messages to the order

    @property
    def waiting(self) -> bool:
        """Messages wait for room in the data path: call ``flush`` after the next turn."""
        return bool(self._outbox)

    @property
    def joins_wait(self) -> bool:
        """Joins or leaves of programs have not gone yet."""
        return self.waiting or self._more_wait

    def _queue(self, client: int, handle: Handle, data: bytes) -> None:
        self._outbox.append((client, handle.group_id, data))

    def flush(self) -> None:
        """Send what there is room for."""
        while self._outbox:
            client, group, data = self._outbox[0]
            if not self._dp.send(client, group, MessageType.GROUP, data):
                return
            self._outbox.popleft()
