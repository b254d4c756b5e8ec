"""The sans-I/O protocol by itself: bytes cut anywhere, answers, counts of DONE, violations."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.daemon.client import (
    BadLevel,
    BadName,
    Blocked,
    Closed,
    ClusterView,
    ConnectionClosed,
    Event,
    Expelled,
    Fenced,
    Message,
    NotMember,
    NotPermitted,
    Opened,
    OrderMismatch,
    ProtocolError,
    Refused,
    Reopened,
    SlowReceiver,
    Station,
    TooLarge,
    Unblocked,
    Undecided,
    UnknownOrder,
    View,
)
from zenjun.daemon.client.common import timed_out
from zenjun.daemon.client.errors import BY_CODE, ClientError, from_code
from zenjun.daemon.client.protocol import ClientProtocol, Membership
from zenjun.daemon.clientwire import BODY_MAX, REQUESTS_MAX

WELCOME = {
    "version": 3, "station": 2, "stations": 3, "cluster": "c", "client": 9, "message_max": 1000, "queue_bytes_max": 1 << 20,
    "instance": 4, "mtu": 1500, "payload_max": 1300,
}  # fmt: skip
ME = [2, 9, "me"]


def frame(kind: int, body: bytes | dict[str, Any] = b"", flags: int = 0, handle: int = 0) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("<IBBH", len(data), kind, flags, handle) + data


def view(handle: int, members: list[list[Any]] | None = None, **more: Any) -> bytes:
    body = {
        "group": "g", "clock": 1, "station": 1, "index": 0, "instance": 4, "members": members or [ME], "joined": [], "left": [],
        "reason": "join", **more,
    }  # fmt: skip
    return frame(67, body, handle=handle)


def message(handle: int, data: bytes, clock: int = 5, own: int = 0) -> bytes:
    return frame(66, struct.pack("<QHHBBH", clock, 3, 7, 1, 0, 0) + data, own, handle)


def done(*counts: int) -> bytes:
    return frame(69, struct.pack("<3Q", *counts))


def error(code: str, handle: int = 0, flags: int = 0, **more: Any) -> bytes:
    return frame(70, {"code": code, "message": f"why {code}", **more}, flags, handle)


def reply(number: int, body: dict[str, Any] | bytes, code: str = "") -> bytes:
    """REPLY; code: it failed."""
    if code:
        body = {"code": code, "message": f"why {code}"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return frame(74, struct.pack("<IHH", number, int(bool(code)), 0) + data)


TOTAL, FIFO = bytes(4), b"\1\0\0\0"
"""What a JOIN's body begins with."""


def sent(p: ClientProtocol) -> list[tuple[int, int, int, bytes]]:
    data, out = p.take_output(), []
    while data:
        size, kind, flags, handle = struct.unpack_from("<IBBH", data)
        out.append((kind, flags, handle, data[8 : 8 + size]))
        data = data[8 + size :]
    return out


def connected(**options: Any) -> ClientProtocol:
    p = ClientProtocol("me", **options)
    assert sent(p) == [(1, 0, 0, b"ZENJ\x03\x00\x03\x00me")]
    p.receive(frame(65, WELCOME))
    assert p.welcomed.result().message_max == 1000
    return p


def joined(p: ClientProtocol, **options: Any) -> Membership:
    m = p.join("g", **options)
    p.receive(view(m.handle))
    assert m.joined.settled
    sent(p)
    return m


def test_name_is_cut_within_a_character() -> None:
    assert sent(ClientProtocol("é" * 40))[0][3][8:].decode() == "é" * 32
    assert sent(ClientProtocol("x" + "é" * 40))[0][3][8:].decode() == "x" + "é" * 31


def test_join_flags_and_first_view() -> None:
    p = connected()
    m = p.join("g", "ack", open_group=True, no_self=True)
    assert sent(p) == [(2, 2 | 4 | 16, m.handle, TOTAL + b"g")]
    p.receive(message(m.handle, b"of a former life") + view(m.handle, [[1, 1, "other"]]))
    assert not m.joined.settled and not m.items
    p.receive(view(m.handle, [[1, 1, "other"], ME]) + message(m.handle, b"first"))
    got = m.joined.result()
    assert got is not None and [tuple(x) for x in got.members] == [(1, 1, "other"), (2, 9, "me")]
    assert isinstance(m.items[0], View)
    assert m.items[1] == Message(b"first", "g", 1, 7, (5, 1, 3), False)


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65, "\ud800"])
def test_bad_names_are_found_here(name: str) -> None:
    p = connected()
    with pytest.raises(BadName):
        p.join(name)
    assert sent(p) == []


def test_join_refused() -> None:
    p = connected()
    m = p.join("g")
    p.receive(error("name-collision", m.handle))
    with pytest.raises(BadName, match="why name-collision"):
        m.joined.result()
    assert not p.memberships


def test_send_only_settles_by_the_barrier() -> None:
    p = connected()
    m = p.join("g", send_only=True)
    assert sent(p) == [(2, 1 | 8, m.handle, TOTAL + b"g"), (9, 0, 0, struct.pack("<IHH", 1, 2, 0) + b"g")]
    p.receive(reply(1, {"group": "g", "members": []}))
    assert m.joined.result() is None and m.state == "joined"
    n = p.join("h", send_only=True)
    p.receive(error("closed-group", n.handle) + reply(2, {"members": []}))
    with pytest.raises(NotMember):
        n.joined.result()
    with pytest.raises(NotMember):
        p.send(n, b"x", "preack")


def test_case_123_limit_is_known_and_checked_before_sending() -> None:
    p = connected()
    m = joined(p)
    assert p.send(m, b"x" * 1000, None) is None
    assert len(sent(p)) == 1
    with pytest.raises(TooLarge, match="1001 bytes is larger than the limit of 1000 bytes"):
        p.send(m, b"x" * 1001, None)
    with pytest.raises(TooLarge):
        p.send_run(m, [b"", b"x" * 1001], "ack")
    assert sent(p) == [] and p.sent == 1
    assert p.send(m, b"", "sent") is None


def test_counts_settle_each_level() -> None:
    p = connected()
    m = joined(p)
    tickets = [p.send(m, b"x", level) for level in ("ordered", "preack", "ack", None, "preack")]
    assert [f[1] for f in sent(p)] == [4, 5, 6, 0, 5]

    def state() -> list[bool | None]:
        return [None if t is None else t.settled for t in tickets]

    p.receive(done(1, 0, 0))
    assert state() == [True, False, False, None, False]
    p.receive(done(3, 2, 2))
    assert state() == [True, True, False, None, False]
    p.receive(done(5, 5, 3))
    assert state() == [True, True, True, None, True]
    assert not p.waiting


def test_a_run_asks_for_one_done() -> None:
    p = connected()
    m = joined(p)
    t = p.send_run(m, [b"a", b"bb", b""], "preack")
    assert sent(p) == [(4, 1, m.handle, b"a"), (4, 1, m.handle, b"bb"), (4, 5, m.handle, b"")]
    assert t is not None and not t.settled
    p.receive(done(3, 2, 0))
    assert not t.settled
    p.receive(done(3, 3, 0))
    assert t.settled
    assert p.send_run(m, [], "ack") is None
    assert p.send_run(m, [b"x"], None) is None and sent(p) == [(4, 0, m.handle, b"x")]


def test_refused_send_has_no_number() -> None:
    p = connected()
    m = joined(p)
    first, second, third = (p.send(m, b"x", "preack") for _ in range(3))
    assert first and second and third
    p.receive(error("closed-group", m.handle, send=2))
    with pytest.raises(NotMember):
        second.result()
    p.receive(done(2, 2, 0))
    assert first.settled and third.settled and p.sent == 2


def test_reopened_makes_undecided() -> None:
    p = connected()
    m = joined(p)
    p.send_run(m, [b"quiet"] * 10, None)
    acked = p.send(m, b"11", "ack")
    undecided = [p.send(m, b"12", level) for level in ("ack", "preack", "ordered")]
    later = p.send(m, b"15", "preack")
    p.receive(done(13, 0, 0))
    p.receive(frame(68, {"event": "reopened", "instance": 5, "members": [1, 2, 3], "undecided": 3, "first": 12}))
    assert acked and later and p.instance == 5
    with pytest.raises(Undecided) as caught:
        acked.result()
    assert caught.value.reached == "preack"
    for t, reached in zip(undecided, ["ordered", "ordered", None], strict=True):
        assert t is not None
        with pytest.raises(Undecided, match="may or may not") as caught:
            t.result()
        assert caught.value.reached == reached
    assert not later.settled
    p.receive(done(15, 15, 14))
    assert later.settled


def test_blocked_is_remembered_and_events_stand_in_order() -> None:
    p = connected()
    m = joined(p)
    seen: list[Event] = []
    p.on_event = seen.append
    p.receive(message(m.handle, b"1") + frame(68, {"event": "blocked", "stations": [{"station": 3, "reason": "silent"}]}))
    assert p.blocked == ((3, "silent"),)
    p.receive(frame(68, {"event": "unblocked"}) + message(m.handle, b"2"))
    assert not p.blocked and [e.name for e in seen] == ["blocked", "unblocked"]
    assert [type(i).__name__ for i in m.items] == ["View", "Message", "Blocked", "Unblocked", "Message"]


STATIONS = [{"station": 3, "reason": "told"}]
LOSS = {"undecided": 2, "first": 5, "forgotten": 7, "unsafe": True}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"event": "open", "instance": 5, "members": [1, 2], "joined": True}, Opened("open", 5, members=(1, 2), joined=True)),
        ({"event": "blocked", "stations": STATIONS, "quorum": False}, Blocked("blocked", stations=((3, "told"),), quorum=False)),
        ({"event": "blocked", "stations": STATIONS}, Blocked("blocked", stations=((3, "told"),))),
        ({"event": "unblocked"}, Unblocked("unblocked")),
        (
            {"event": "closed", "instance": 5, "reason": "no quorum", "station": 0},
            Closed("closed", 5, reason="no quorum"),
        ),
        (
            {"event": "expelled", "instance": 5, "reason": "silent", "station": 2, **LOSS},
            Expelled("expelled", 5, undecided=2, reason="silent", station=2, forgotten=7, unsafe=True),
        ),
        (
            {"event": "reopened", "instance": 6, "members": [1, 3], "joined": True, **LOSS},
            Reopened("reopened", 6, members=(1, 3), undecided=2, joined=True, forgotten=7, unsafe=True),
        ),
        (
            {
                "event": "view", "instance": 6, "members": [[1, 4, "a"], [3, 9, "c"]], "joined": [3], "left": [2, 3], "clock": 77,
                "station": 2, "index": 65535,
            },
            ClusterView(
                "view", 6, members=(1, 3), present=(Station(1, 4, "a"), Station(3, 9, "c")), joined=(3,), left=(2, 3),
                place=(77, 2, 65535),
            ),
        ),
        ({"event": "closing"}, Event("closing")),
        ({"event": "of a later daemon", "members": "?"}, Event("of a later daemon")),
    ],
    ids=lambda x: x["event"] if isinstance(x, dict) else "",
)  # fmt: skip
def test_events_have_types(body: dict[str, Any], expected: Event) -> None:
    p = connected()
    m = joined(p)
    seen: list[Event] = []
    p.on_event = seen.append
    p.receive(frame(68, body))
    assert seen == [expected] == m.items[1:] and seen[0].detail == body and isinstance(seen[0], Event)


def test_the_instance_follows_the_views_and_outside_is_known() -> None:
    """An expelled station's clients know that they are outside, and a time-out says so; sends in flight are undecided only with
    ``reopened``, which has the final figures."""
    p = connected()
    m = joined(p)
    t = p.send(m, b"x", "preack")
    p.receive(
        frame(68, {"event": "view", "instance": 5, "members": [], "joined": [], "left": [], "clock": 1, "station": 1, "index": 0})
    )
    assert p.instance == 5 and not p.outside
    p.receive(
        frame(68, {"event": "expelled", "instance": 5, "reason": "silent for 2 s", "station": 1, "undecided": 1, "first": 1})
    )
    error = timed_out(p, "sending", 1.0)
    assert error.not_open and str(error).endswith("this station is in no instance now: silent for 2 s")
    assert t is not None and not t.settled
    p.receive(frame(68, {"event": "reopened", "instance": 8, "members": [1, 2], "joined": True, "undecided": 1, "first": 1}))
    assert (p.instance, p.outside) == (8, "") and not timed_out(p, "sending", 1.0).not_open
    with pytest.raises(Undecided):
        t.result()
    assert m.state == "joined"


def test_blocked_without_quorum_shows_in_the_time_out() -> None:
    p = connected()
    p.receive(frame(68, {"event": "blocked", "stations": STATIONS, "quorum": False}))
    assert "station 3 (told); without quorum nothing is sent" in str(timed_out(p, "sending", 1.0))
    p.receive(frame(68, {"event": "unblocked"}))
    assert p.quorum and "quorum" not in str(timed_out(p, "sending", 1.0))


def test_order_op_has_its_own_level() -> None:
    p = connected()
    m = p.join("g", order="op")
    n = p.join("h", "accepted", order="op", open_group=True)
    assert sent(p) == [(2, 0, m.handle, FIFO + b"g"), (2, 4, n.handle, FIFO + b"h")] and (m.level, m.order) == ("ordered", "op")
    for level in ("preack", "ack"):
        with pytest.raises(BadLevel, match="on acceptance"):
            p.join("i", level, order="op")
    with pytest.raises(ValueError, match="one of"):
        p.join("i", "accepted")
    with pytest.raises(ValueError, match="one of total, op"):
        p.join("i", order="best")  # type: ignore[arg-type]
    assert sent(p) == []
    p.receive(error("order-mismatch", m.handle) + error("level", n.handle))
    with pytest.raises(OrderMismatch):
        m.joined.result()
    with pytest.raises(BadLevel):
        n.joined.result()
    assert not p.memberships


def test_a_daemon_without_the_order_is_named() -> None:
    p = connected()
    m = p.join("g", order="op")
    p.receive(error("unknown-order", m.handle))
    with pytest.raises(UnknownOrder, match="why unknown-order"):
        m.joined.result()


def test_each_answer_has_the_number_of_its_question() -> None:
    """In whatever order they come, errors among them: none of them is anybody else's."""
    p = connected()
    m = joined(p)
    sending = p.send(m, b"x", "preack")
    status, members, first, second, third = p.status(), p.members("g"), p.admin("expel", station=2), p.admin("leave"), p.status()
    frames = [(f[0], struct.unpack_from("<IHH", f[3]), f[3][8:]) for f in sent(p)[1:]]
    assert frames == [
        (9, (1, 1, 0), b""), (9, (2, 2, 0), b"g"), (9, (3, 3, 0), b'{"command": "expel", "station": 2}'),
        (9, (4, 3, 0), b'{"command": "leave"}'), (9, (5, 1, 0), b""),
    ]  # fmt: skip
    assert p.waiting
    p.receive(reply(4, {}, "not-permitted") + reply(5, {"n": 5}) + reply(3, {"ok": True, "message": "proposed"}))
    assert (third.result(), first.result()["message"]) == ({"n": 5}, "proposed") and not status.settled and not members.settled
    with pytest.raises(NotPermitted) as caught:
        second.result()
    assert isinstance(caught.value, PermissionError)
    p.receive(reply(2, {}, "name") + reply(1, {"n": 1}))
    with pytest.raises(BadName):
        members.result()
    assert status.result() == {"n": 1} and sending is not None and not sending.settled
    refused = p.admin("expel", station=9)
    p.receive(reply(6, {}, "refused"))
    with pytest.raises(Refused, match="why refused") as error:
        refused.result()
    assert error.value.code == "refused"
    last = p.admin("leave")
    p.eof()
    with pytest.raises(ConnectionClosed):
        last.result()


def test_an_error_without_a_handle_belongs_to_no_request() -> None:
    p = connected()
    members = p.members("g")
    p.receive(error("refused"))
    assert not members.settled and not p.ended.settled


def test_requests_beyond_the_bound_are_held_back() -> None:
    p = connected()
    tickets = [p.status() for _ in range(REQUESTS_MAX + 3)]
    assert len(sent(p)) == REQUESTS_MAX
    p.receive(reply(2, {"n": 2}) + reply(1, {"n": 1}))
    assert [struct.unpack_from("<I", f[3])[0] for f in sent(p)] == [REQUESTS_MAX + 1, REQUESTS_MAX + 2]
    assert tickets[1].result() == {"n": 2} and p.waiting
    p.eof()
    for ticket in tickets[2:]:
        with pytest.raises(ConnectionClosed):
            ticket.result()
    assert not p.waiting


def test_fenced_fails_what_is_under_way() -> None:
    p = connected()
    m = joined(p)
    t = p.send(m, b"x", "preack")
    p.receive(frame(68, {"event": "fenced", "at": 7, "with": 3}))
    assert t
    for _ in range(2):
        with pytest.raises(Fenced):
            t.result()
    with pytest.raises(Fenced):
        p.send(m, b"x", "preack")


def test_slow_receiver_is_told_why() -> None:
    """Case 119: the reason reaches the program."""
    p = connected()
    m = joined(p)
    p.receive(message(m.handle, b"last") + error("slow-receiver", flags=1))
    p.eof()
    with pytest.raises(SlowReceiver, match="why slow-receiver"):
        p.ended.result()
    assert isinstance(m.error, SlowReceiver) and len(m.items) == 2
    with pytest.raises(SlowReceiver):
        p.status()


def test_leave_frees_the_handle_when_the_daemon_is_done() -> None:
    p = connected()
    m = joined(p)
    p.leave(m)
    p.leave(m)
    assert sent(p) == [(3, 0, m.handle, b"")]
    p.receive(message(m.handle, b"late"))
    assert p.leaving("g") is m.gone and len(m.items) == 1
    p.receive(view(m.handle, [[1, 1, "x"]], left=[ME]))
    assert p.leaving("g") is None and m.gone.settled and not p.memberships


def test_inbox_limit() -> None:
    p = connected(inbox_bytes_max=1000)
    m = joined(p)
    assert p.may_read
    p.receive(message(m.handle, b"x" * 976) + message(m.handle, b""))
    assert p.inbox_bytes == 1024 and not p.may_read
    t = p.status()
    assert p.may_read, "while an answer is awaited reading goes on, up to a harder limit"
    p.receive(message(m.handle, b"x" * 8000))
    assert not p.may_read
    items, weight = p.take_items(m)
    assert len(items) == 4 and weight == p.inbox_bytes
    p.consumed(weight)
    assert p.may_read and p.inbox_bytes == 0 and not t.settled


def test_discarding_member_keeps_nothing() -> None:
    p = connected()
    m = p.join("g", receive=False)
    p.receive(view(m.handle) + message(m.handle, b"x") + frame(68, {"event": "unblocked"}))
    assert m.joined.settled and not m.items and p.inbox_bytes == 0


def stream(m: int) -> tuple[bytes, list[bytes]]:
    rng = random.Random(7)
    payloads = [rng.randbytes(rng.choice([0, 1, 15, 16, 40, 900])) for _ in range(60)]
    parts = []
    for i, data in enumerate(payloads):
        parts.append(message(m, data, clock=i))
        if i % 7 == 0:
            parts.append(done(i, i, i))
        if i % 11 == 0:
            parts.append(frame(68, {"event": "new", "instance": 4}) + frame(70, {"code": "x"}))
    return b"".join(parts), payloads


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=50), st.booleans())
def test_cut_anywhere(cuts: list[int], twice: bool) -> None:
    p = connected()
    m = joined(p)
    data, payloads = stream(m.handle)
    for _ in range(1 + twice):
        at = i = 0
        while at < len(data):
            step = cuts[i % len(cuts)]
            p.receive(data[at : at + step])
            at += step
            i += 1
    got = [x.data for x in m.items if isinstance(x, Message)]
    assert got == payloads * (1 + twice)
    assert p.inbox_bytes == sum(24 + len(x) for x in got)
    assert p.done == (56, 56, 56) and not p.ended.settled


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 80), st.integers(0, 400))
def test_garbage_ends_the_connection_at_worst(data: bytes, kind: int, size: int) -> None:
    for garbage in (data, frame(kind, data, handle=1), struct.pack("<IBBH", size, kind, 0, 1) + data):
        p = connected()
        joined(p)
        p.receive(garbage)
        p.receive(garbage)
        p.eof()
        with pytest.raises(ClientError):
            p.ended.result()


@pytest.mark.parametrize(
    "bad",
    [
        frame(99),
        frame(66, b"x" * 15, handle=1) + b"x" * 20,
        frame(66, b"x" * 15, handle=1),
        struct.pack("<IBBH", BODY_MAX + 1, 66, 0, 1) + bytes(30),
        struct.pack("<IBBH", BODY_MAX + 1, 66, 0, 1),
        reply(1, b"[]"),
        reply(1, b"\xff"),
        reply(1, b"[" * 100000),
        reply(7, {}),
        frame(74, b"short"),
        frame(71, {}),
        frame(69, b"short"),
        frame(67, {"group": "g"}, handle=1),
        frame(68, {}),
        frame(65, {**WELCOME, "version": 1}),
        frame(68, {"event": "view", "instance": 5, "members": [1, 2]}),
        frame(68, {"event": "blocked", "stations": 3}),
    ],
    ids=range(17),
)
def test_violations(bad: bytes) -> None:
    p = connected()
    joined(p)
    p.status()
    p.receive(bad)
    with pytest.raises(ProtocolError):
        p.ended.result()


def test_end_in_the_middle_of_a_frame() -> None:
    p = connected()
    p.receive(b"\x05")
    p.eof()
    with pytest.raises(ConnectionClosed, match="middle of a frame"):
        p.ended.result()


def test_every_code_has_its_type() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "client-protocol.md").read_text()
    for code, kind in BY_CODE.items():
        assert f"`{code}`" in document and type(from_code(code, "x")) is kind
    assert type(from_code("new", "x")).__name__ == "Refused"


def test_imports_neither_daemon_nor_core_nor_a_loop() -> None:
    program = (
        "import sys, zenjun.daemon.client; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('uvloop', 'cffi', '_cffi_backend', 'pyroute2', 'click', 'rich') "
        "or m.startswith(('zenjun.proto.core', 'zenjun.daemon.datapath'))]; sys.exit(repr(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
