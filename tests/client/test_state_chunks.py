"""A donor's connection: chunks of a state leave room for the program's own messages."""

from __future__ import annotations

import struct

from zenjun.daemon.client.protocol import ClientProtocol
from zenjun.daemon.client.transfer import CHUNKS_BYTES_MAX, Agent
from zenjun.proto.service.stateapi import Have, Offer, Place, Restore, Snapshot
from zenjun.proto.service.transfertypes import Release, ToJoiner

from .test_protocol import WELCOME, done, frame, reply

CHUNK = 48 * 1024
SEND = 4
J, K = (3, 1), (1, 4)


class Blank:
    def have(self) -> Have | None:
        return None

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        return Snapshot([])

    def restore(self, offer: Offer) -> Restore:
        raise NotImplementedError


def sends(protocol: ClientProtocol) -> list[tuple[int, int]]:
    """(handle, first byte) of each SEND that is to be written now."""
    data, out = protocol.take_output(), []
    while data:
        size, kind, _, handle = struct.unpack_from("<IBBH", data)
        if kind == SEND:
            out.append((handle, data[8]))
        data = data[8 + size :]
    return out


def donor(*joiners: tuple[int, int]) -> tuple[ClientProtocol, Agent]:
    protocol = ClientProtocol("p")
    protocol.receive(frame(65, {**WELCOME, "message_max": 1 << 20}))
    agent = Agent(protocol, "g", Blank(), None, persistent=False, open_group=False, no_self=False)
    for joiner in joiners:
        for n in range(20):
            agent._do(ToJoiner(joiner, bytes([n + 1]) * CHUNK))
        agent._do(ToJoiner(joiner, bytes([20]) * CHUNK))  # asked for again before it has gone out
    assert not sends(protocol), "the handles are not joined yet"
    for number in range(len(joiners)):
        protocol.receive(reply(number + 1, {"members": []}))
    return protocol, agent


def test_chunks_go_out_as_they_are_delivered() -> None:
    protocol, _ = donor(J)
    first = sends(protocol)
    assert len(first) == -(-CHUNKS_BYTES_MAX // CHUNK)
    seen = len(first)
    for count in range(1, 21):
        protocol.receive(done(count, 0, 0))
        more = sends(protocol)
        assert len(more) == (1 if seen < 20 else 0)
        seen += len(more)
    assert seen == 20, "each once"


def test_two_joiners_are_served_in_turn() -> None:
    protocol, _ = donor(J, K)
    sent = sends(protocol)
    for count in range(1, 13):
        protocol.receive(done(count, 0, 0))
        sent += sends(protocol)
    later = [handle for handle, _ in sent[6:]]
    assert len(later) >= 10 and abs(later.count(min(later)) - later.count(max(later))) <= 1


def test_a_joiner_that_is_gone_gets_nothing_more() -> None:
    protocol, agent = donor(J)
    sends(protocol)
    agent._do(Release(J))
    protocol.receive(done(6, 0, 0))
    assert not sends(protocol)
