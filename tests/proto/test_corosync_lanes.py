"""Messages of corosync's process groups that the host writes and delivers by itself, by what the machines have said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.errors import InvariantError
from zenjun.proto.service.corosync import cpg as cpg_module
from zenjun.proto.service.corosync.messages import (
    BUNDLE,
    LENGTH_BYTES,
    Mcast,
    Message,
    Part,
    Process,
    bundle,
    bundled,
    decode,
    encode,
    mcast_head,
    whole_head,
)
from zenjun.proto.service.corosync.results import Deliver

from ..rules import rule
from .test_corosync import GROUP, MESSAGES, cluster


@given(MESSAGES)
def test_the_beginning_of_a_whole_message(message: Message) -> None:
    data = encode(message)
    head = whole_head(data)
    is_whole = isinstance(message, Mcast) and message.part is Part.WHOLE and message.length == len(message.data)
    assert head == (mcast_head(message.process) if isinstance(message, Mcast) and is_whole else b"")
    assert not whole_head(data[:-1]) and not whole_head(data + b"x") if head else True


@given(st.binary(max_size=200))
def test_any_bytes_have_a_beginning_that_is_a_message_or_none(data: bytes) -> None:
    head = whole_head(data)
    found = decode(data)
    assert not head or found is None or (isinstance(found, Mcast) and mcast_head(found.process) == head)


def unbundled(data: bytes) -> tuple[list[bytes], int]:
    """Messages, and where there are no more."""
    found, at = list[bytes](), len(BUNDLE)
    while (message := bundled(data, at)) is not None:
        found.append(message)
        at += LENGTH_BYTES + len(message)
    return found, at


@rule("Y1")
@given(st.lists(MESSAGES, max_size=4), st.binary(max_size=3))
def test_messages_that_are_sent_together(messages: list[Message], more: bytes) -> None:
    data = bundle(map(encode, messages))
    assert decode(data) is None and not whole_head(data), "no node takes it for one message"
    found, at = unbundled(data + more)
    assert [decode(message) for message in found] == messages and at == len(data)
    assert len(unbundled(data[:-1])[0]) == max(0, len(messages) - 1), "what is cut off is not read"


@rule("Y10", "Y19")
def test_a_lane_is_what_the_machines_would_do() -> None:
    """Whole messages that the host emits and delivers by itself: the same hearers, the same room, the same order of own ones."""
    c = cluster(3)
    c.program(1, 1, 11)
    c.program(1, 2, 12, b"other")
    c.program(2, 3, 21)
    c.program(2, 4, 22)
    first, second = c.nodes[1].cpg, c.nodes[2].cpg
    message = encode(Mcast(Process(GROUP, 11), Part.WHOLE, 3, b"abc"))
    head = whole_head(message)
    assert head == first.handles[1].head and first.said(1, message)
    before = first.room.of(1)
    assert before == cpg_module.MESSAGE_BYTES + 3
    lane, far = first.lane((1, 1), head), second.lane((1, 1), head)
    assert lane is not None and far is not None
    assert (lane.node, lane.handles, far.node, far.handles, far.sender) == (1, (1,), 1, (3, 4), None)
    assert c.nodes[1].ring.is_own((1, 1)) and not c.nodes[2].ring.is_own((1, 1))
    first.came_back(lane, message)
    assert first.room.of(1) == 0
    with pytest.raises(InvariantError):
        first.came_back(lane, message)
    assert first.said(1, message)
    c.clear()
    c.lose(1)
    assert [e.message.data for e in c.heard(1, Deliver)] == [b"abc"], "what was under way"  # type: ignore[attr-defined]
    assert first.lane((1, 1), head) is None and not first.said(1, message), "alone the machines do it"
    assert second.lane((1, 1), head) is None, "and it has left"
    assert first.handles[2].head != head and not first.said(2, message), "not this handle's"
