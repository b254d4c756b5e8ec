"""Questions and commands of programs, and their answers: REQUEST and REPLY, in versions 1 and 2 of the client protocol the pairs
STATUS, MEMBERS and ADMIN with their replies."""

from __future__ import annotations

import json
import logging
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..proto.errors import UsageError
from ..proto.service.base import Reply
from ..proto.wire import STATIONS_MAX
from .access import Access, Identity
from .audit import Audit
from .clientwire import REPLY, REQUEST, REQUESTS_MAX, Frame, Kind, ReplyStatus
from .connections import Connection, Connections, Facts, Standing, as_json
from .datapath import DataPath
from .observe import Journal
from .services import Services
from .sparing import Sparing

KINDS: Final = frozenset(int(kind) for kind in Kind)
KEY_ID_DIGITS: Final = 8
STATUSES_PER_S: Final = 200
"""And no more than a tenth of the processor (``sparing.SHARE``): a status takes a millisecond of Python or some."""
KIND_OF: Final[dict[int, Kind]] = {Frame.STATUS: Kind.STATUS, Frame.MEMBERS: Kind.MEMBERS, Frame.ADMIN: Kind.ADMIN}
"""Versions 1 and 2: a type of frame for each kind,"""
ANSWER: Final = {
    Kind.STATUS: Frame.STATUS_REPLY,
    Kind.MEMBERS: Frame.MEMBERS_REPLY,
    Kind.ADMIN: Frame.ADMIN_REPLY,
}
"""and one for its answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One request of a client, to be answered once. id None: asked by a frame of version 1 or 2."""

    connection: Connection
    kind: Kind
    id: int | None = None


class Requests:
    """Answers the requests of programs.

    status:     ``status(now)`` gives the object of docs/status.md; asked at most ``STATUSES_PER_S`` times a second.
    services:   answer the questions that are theirs, by ``reply``.
    admin:      executes an operator's command, ``("expel", {"station": k})``, ``("leave", {})``, ``("key", {"step": …})`` or
                ``("cluster", {"step": …})``, and returns a line for people, or an answer with one as its ``message``;
                raises UsageError for what cannot be. Without it operators are refused. It may be set later.
    """

    def __init__(
        self,
        dp: DataPath,
        connections: Connections,
        standing: Standing,
        facts: Facts,
        journal: Journal,
        status: Callable[[int], dict[str, Any]],
        services: Services,
        admin: Callable[[str, dict[str, Any]], str | dict[str, Any]] | None = None,
        *,
        access: Access,
        audit: Audit,
    ) -> None:
        self._dp = dp
        self._connections = connections
        self._standing = standing
        self._facts = facts
        self._journal = journal
        self._make_status = status
        self._status = Sparing(self._status_and_reply, STATUSES_PER_S)
        self._services = services
        self.admin = admin
        self._access = access
        self._audit = audit
        self.sees: Callable[[Identity, str], bool] = lambda who, group: True
        """Whether a program may learn a group's name and members."""
        self._parts: dict[tuple[int, frozenset[int]], bytes] = {}
        """Of the status as made last, what users may see who may not see all."""

    def on_request(self, connection: Connection, data: bytes, now: int) -> str:
        """A REQUEST. Returns why it is a violation of the protocol, empty if it is none; what cannot be is answered."""
        if len(data) < REQUEST.size:
            return "a REQUEST without its kind"
        number, kind = REQUEST.struct.unpack_from(data)
        if number in connection.requests or len(connection.requests) >= REQUESTS_MAX:
            text = f"request {number} is still under way" if number in connection.requests else f"{REQUESTS_MAX} are under way"
            self._put_reply(connection, number, ReplyStatus.ERROR, _failure("too-many-requests", text))
        elif kind not in KINDS:
            text = f"this daemon knows no request of kind {kind}"
            self._put_reply(connection, number, ReplyStatus.ERROR, _failure("unknown-request", text))
        else:
            connection.requests.add(number)
            self.ask(Question(connection, Kind(kind), number), data[REQUEST.size :], now)
        return ""

    def ask(self, question: Question, body: bytes, now: int) -> None:
        """One question. Its answer, or an error, is queued now or (services) by a later ``reply``."""
        if question.kind is Kind.STATUS:
            self._answer(question, self._status_for(question.connection.who, now))
        elif question.kind is Kind.ADMIN:
            self._on_admin(question, body, now)
        elif question.kind is Kind.MEMBERS and not body:
            self._answer(question, as_json(self._stations(now)))
        elif not self._services.on_request(question.kind, question, body):
            self._fail(question, "unknown-request", f"no service of this daemon answers requests of kind {int(question.kind)}")

    def reply(self, reply: Reply) -> None:
        """The answer of a service to one of our questions. Nothing if the program has gone."""
        question = reply.request
        if not isinstance(question, Question) or question.connection not in self._connections:
            return
        if reply.code:
            self._fail(question, reply.code, str(reply.body.get("message", "")))
        else:
            self._answer(question, as_json(reply.body))

    def _answer(self, question: Question, body: bytes) -> None:
        if question.id is None:
            self._dp.client_put(question.connection.slot, ANSWER[question.kind], body=body, urgent=True)
        else:
            question.connection.requests.discard(question.id)
            self._put_reply(question.connection, question.id, ReplyStatus.OK, body)

    def _fail(self, question: Question, code: str, text: str) -> None:
        if question.id is None:
            self._connections.error(question.connection, code, text, 0, admin=question.kind is Kind.ADMIN)
        else:
            question.connection.requests.discard(question.id)
            self._put_reply(question.connection, question.id, ReplyStatus.ERROR, _failure(code, text))

    def _put_reply(self, connection: Connection, number: int, status: ReplyStatus, body: bytes) -> None:
        self._dp.client_put(connection.slot, Frame.REPLY, body=REPLY.struct.pack(number, status) + body, urgent=True)

    # ---- operators

    def _on_admin(self, question: Question, data: bytes, now: int) -> None:
        """A command of an operator: of root, of the user the daemon runs as, or of one of ``station.operators``."""
        connection = question.connection
        if not self._access.is_operator(connection.who):
            text = f"{connection.who.name} may not give commands: root, the daemon's own user and station.operators may"
            self._fail(question, "not-permitted", text)
            self._audit.refused("not-permitted", connection.who, connection.name, text, now)
            return
        try:
            command, arguments = self._command(data)
            if self.admin is None:
                raise UsageError("this daemon takes no commands")
            shown = {name: value for name, value in arguments.items() if name != "key"}
            text = f"client {connection.client} ({connection.name}, uid {connection.uid}) asks: {command} {shown or ''}"
            self._journal.event(logging.WARNING, "admin", text.rstrip(), now=now, key=command)
            done = self.admin(command, arguments)
            self._answer(question, as_json({"ok": True, **(done if isinstance(done, dict) else {"message": done})}))
            self._audit.done(f"command {command}", connection.who, connection.name, now)
        except UsageError as exc:
            self._fail(question, "refused", str(exc))

    def _command(self, data: bytes) -> tuple[str, dict[str, Any]]:
        """UsageError for what is no command."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise UsageError("a command is a JSON object")
        match body:
            case {"command": "leave"}:
                return "leave", {}
            case {"command": "expel", "station": int(station)} if not isinstance(station, bool):
                if not 1 <= station <= self._facts.stations:
                    raise UsageError(f"there is no station {station}; stations are 1 to {self._facts.stations}")
                return "expel", {"station": station}
            case {"command": "cluster", "step": "show"}:
                return "cluster", {"step": "show"}
            case {"command": "cluster", "step": "set", "option": str(option), "value": str(value)}:
                return "cluster", {"step": "set", "option": option, "value": value}
            case {"command": "cluster", "step": "add" | "remove" as step, "station": int(station), "absent": bool(absent)}:
                if isinstance(station, bool) or not 1 <= station <= STATIONS_MAX:
                    raise UsageError(f"stations are 1 to {STATIONS_MAX}")
                return "cluster", {"step": step, "station": station, "absent": absent}
            case {"command": "key", "step": "add", "key": str(key)}:
                return "key", {"step": "add", "key": key}
            case {"command": "key", "step": "rotate" | "retire" as step, "id": str(i), "without_absent": bool(alone)}:
                if i and not (len(i) == KEY_ID_DIGITS and set(i) <= set(string.hexdigits)):
                    raise UsageError(f"a key's id has {KEY_ID_DIGITS} hexadecimal digits")
                return "key", {"step": step, "id": i, "without_absent": alone}
        raise UsageError(
            "the commands are leave, expel with a station, key with add, rotate or retire, "
            "and cluster with show, set, add or remove"
        )

    # ---- status and stations

    def _status_and_reply(self, now: int) -> tuple[dict[str, Any], bytes]:
        self._parts.clear()
        status = self._make_status(now)
        return status, as_json(status)

    def _status_for(self, who: Identity, now: int) -> bytes:
        """The status without the groups that a program may not see."""
        status, whole = self._status(now)
        if not self._access.is_limited or self._access.is_operator(who):
            return whole
        key = (who.uid, who.groups)
        if key not in self._parts:
            groups = [group for group in status.get("groups", ()) if self.sees(who, group["name"])]
            clients = [
                {**client, "groups": [name for name in client["groups"] if self.sees(who, name)]}
                for client in status.get("clients", ())
            ]
            self._parts[key] = as_json({**status, "groups": groups, "clients": clients})
        return self._parts[key]

    def _stations(self, now: int) -> dict[str, object]:
        """The answer to MEMBERS without a name: the members of the instance, and of all stations what is known."""
        status, standing = self._status(now)[0], self._standing
        peers: dict[int, Mapping[str, Any]] = {p["station"]: p for p in status.get("peers", ())}
        hosts = {station: peer.get("host") or "" for station, peer in peers.items()}
        states = status.get("membership", {}).get("letters", {}).get(str(self._facts.station)) or {}
        incarnations = dict(enumerate(standing.incarnations, 1)) if standing.open else {}
        detail = [
            {
                "station": s,
                "incarnation": incarnations.get(s) or peers.get(s, {}).get("incarnation") or 0,
                "host": hosts.get(s, ""),
                "letter": states.get(str(s)),
                "state": peers.get(s, {}).get("state"),
                "member": bool(incarnations.get(s)),
            }
            for s in range(1, self._facts.stations + 1)
        ]
        return {
            "group": "",
            "members": [[s, 0, hosts.get(s, "")] for s, incarnation in incarnations.items() if incarnation],
            "detail": detail,
            "stations": self._facts.stations,
            "instance": standing.shown_instance,
        }


def _failure(code: str, text: str) -> bytes:
    return as_json({"code": code, "message": text})
