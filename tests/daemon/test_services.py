"""Services inside the daemon: each registers itself, and gets what is its own, and what concerns all."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from zenjun.daemon.clientwire import Kind
from zenjun.daemon.connections import Connection
from zenjun.daemon.services import ServiceHost, Services
from zenjun.proto.service.base import Place, ViewEvent
from zenjun.proto.wire import MessageType

PLACE: Place = (9, 1, 0)
VIEW = ViewEvent(2, 7, (1, 1), (2,), ())


class Recorder(ServiceHost):
    """Notes what reaches it."""

    MESSAGES = frozenset({MessageType.GROUP})
    REQUESTS = frozenset({Kind.MEMBERS})

    def __init__(self, services: Services) -> None:
        self.seen: list[str] = []
        self.asked: list[Hashable] = []
        services.register(self)

    def open(self, instance: int, *, joined: bool) -> None:
        self.seen.append(f"open {instance}")

    def begin(self) -> None:
        self.seen.append("begin")

    def suspend(self) -> None:
        self.seen.append("suspend")

    def end(self) -> None:
        self.seen.append("end")

    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        self.seen.append(f"message {data.decode()}")

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        self.seen.append(f"view {view.instance}")

    def on_request(self, request: Hashable, body: bytes) -> None:
        self.asked.append(request)

    def forget(self, connection: Connection, *, death: bool) -> None:
        self.seen.append(f"forget {connection.client}")

    def flush(self) -> None:
        pass


class Other(Recorder):
    """Another service: it has a room of its own for messages, and answers nothing."""

    MESSAGES = frozenset({MessageType.SERVICE})
    REQUESTS = frozenset()
    has_messages = False

    @property
    def waiting(self) -> bool:
        return self.has_messages

    def flush(self) -> None:
        self.has_messages = False


def test_each_service_gets_its_own_messages_and_requests() -> None:
    services = Services()
    groups, other = Recorder(services), Other(services)
    services.on_message(MessageType.GROUP, PLACE, 1, b"g", 1)
    services.on_message(MessageType.SERVICE, PLACE, 0, b"s", 2)
    services.on_message(77, PLACE, 0, b"of a later version", 3)
    assert (groups.seen, other.seen) == (["message g"], ["message s"])
    assert services.on_request(Kind.MEMBERS, "question", b"g") and groups.asked == ["question"]
    assert not services.on_request(Kind.STATUS, "question", b"") and other.asked == []


def test_what_concerns_all_reaches_all() -> None:
    services = Services()
    hosts = [Recorder(services), Other(services)]
    services.end()
    services.open(2, joined=True)
    services.begin()
    services.on_view(PLACE, VIEW, 1)
    services.forget(Connection(0, 5, 0, 0), death=True)
    services.suspend()
    assert [host.seen for host in hosts] == [["end", "open 2", "begin", "view 2", "forget 5", "suspend"]] * 2


def test_one_that_waits_for_room_is_come_back_to() -> None:
    services = Services()
    Recorder(services)
    other = Other(services)
    assert not services.waiting
    other.has_messages = True
    assert services.waiting
    services.flush()
    assert not services.waiting


def test_two_services_cannot_have_the_same() -> None:
    services = Services()
    Recorder(services)
    with pytest.raises(ValueError, match="Recorder: messages of type 1 are another service's"):
        Recorder(services)
    asking = type("Asking", (Other,), {"REQUESTS": frozenset({Kind.MEMBERS})})
    with pytest.raises(ValueError, match="Asking: requests of kind 2 are another service's"):
        asking(services)
