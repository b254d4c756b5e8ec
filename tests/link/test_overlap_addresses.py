"""Where frames of links between two stations go (rule L2), in a data path with two interfaces and a real core."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from zenjun.daemon.datapath import DataPath, now_ns
from zenjun.proto.engineconfig import make_core
from zenjun.proto.envelope import ENVELOPE, Envelope, Suite, What
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.links import LinkLife, Pair
from zenjun.proto.multicast.records import Data, Id, Record, Report
from zenjun.proto.multicast.tables import EraNumber, Program
from zenjun.proto.wire import cluster_id

from ..rules import rule
from ..virtual.engines import CONFIG
from . import gcm
from .net import MAC_A, Peer, Wire, ethernet, isolated
from .rig import ETHERTYPE, GROUP_MAC, WAIT_S
from .test_sealed import SESSION, THEIRS, key_of, sealing

QUIET = replace(CONFIG, poll_delay_ns=1000 * 10**9, poll_delay_max_ns=2000 * 10**9)
"""No POLL but those of the test: a machine that stands still does not bring frames to the group address."""
CLUSTER = cluster_id(CONFIG.cluster)
MACS = (MAC_A, bytes.fromhex("025a4a00001a"))
THEIR_MACS = (bytes.fromhex("025a4a00000b"), bytes.fromhex("025a4a00001b"))
SUITE = Suite.AES_256_GCM


def end(me: int, other: int) -> Pair:
    """This end of the link between two stations."""
    low, high = sorted((me, other))
    return Pair(LinkLife(1, (low, 1), (high, 1)), me, replace(QUIET, station=me), 1400, now_ns())


class Two:
    """Station 1, a data path with two interfaces, and what the test has of station 2."""

    def __init__(self, *, sealed: bool) -> None:
        self.sealed, self.number, self.records = sealed, 0, 0
        self.wires = [Wire(f"za{i}", f"zb{i}", mac=MACS[i]) for i in (0, 1)]
        self.dp = DataPath(
            make_core(QUIET), station_index=0, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, links=2, rest_ns=0,
            linger_ns=0, stations=3, message_max=1 << 20, queue_bytes_max=1 << 22, sealing=sealing(SUITE) if sealed else None,
        )  # fmt: skip
        for i, wire in enumerate(self.wires):
            self.dp.link_open(wire.a, i)
        if sealed:
            self.dp.seal_under(SESSION, key_of(SESSION))
            self.dp.session_read(2, THEIRS, key_of(THEIRS), 1)
        self.peers = [Peer(wire.b, receive=True) for wire in self.wires]
        self.one, self.two = end(1, 2), end(2, 1)
        self.news = self.asked = 0

    def close(self) -> None:
        self.dp.close()

    def until(self, condition: Callable[[], object]) -> None:
        limit = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < limit, f"not within {WAIT_S} s: {self.dp.counters()}"
            self.dp.turn(now_ns() + 60_000_000_000)
            news, asked = self.dp.pairs()
            self.news, self.asked = self.news | news, self.asked | asked
            select.select([self.dp.fileno()], [], [], 0.01)

    def open(self) -> None:
        self.dp.pair(2, self.one.core.handle_pointer)
        self.dp.pair_records(2, self.one.queue_pointer, self.one.index, self.one.incarnation)

    def record(self, size: int = 0) -> Record:
        self.records += 1
        if size:
            return Data(Id(EraNumber(1, 0), 1, self.records), Program(1, 1, 1), "token", (7,), 0, bytes(size))
        return Report(EraNumber(1, 0), "token", 1, self.records, 1, 1)

    def pdus(self, pair: Pair) -> list[bytes]:
        """Station 2 has a record for the other end of this one of its links."""
        pair.send(encode(self.record()))
        pair.pump(now_ns())
        pair.core.step(now_ns(), False)
        return list(pair.core.tx(now_ns()))

    def bring(self, pdu: bytes, links: tuple[int, ...], *, to_group: bool) -> None:
        """A frame of station 2 comes on these links, one after the other."""
        self.number += 1
        body = pdu
        if self.sealed:
            head = Envelope(CLUSTER, What.PDU, 2, SUITE, len(pdu), THEIRS[:4], self.number).packed()
            body = head + pdu + gcm.seal(key_of(THEIRS), bytes(4) + self.number.to_bytes(8, "big"), head + pdu, b"")[1]
        for i in links:
            self._bring_one(i, ethernet(body, to=GROUP_MAC if to_group else MACS[i], source=THEIR_MACS[i]))

    def _bring_one(self, link: int, frame: bytes) -> None:
        before = self.dp.link_counters(link)["rx_frames"]
        self.peers[link].send(frame)
        self.until(lambda: self.dp.link_counters(link)["rx_frames"] > before)

    def goes(self, size: int = 0) -> list[bytes]:
        """Station 1 has a record for station 2, perhaps a message of this size: where it goes on each of the links."""
        for peer in self.peers:
            peer.receive()
        self.one.send(encode(self.record(size)))
        self.one.pump(now_ns())
        went: list[list[bytes]] = [[], []]

        def gone() -> bool:
            for i, peer in enumerate(self.peers):
                went[i] += peer.receive()
            return all(went)

        self.until(gone)
        for frame in went[0]:
            pdu, envelope = frame[14:], Envelope.read(frame[14:])
            if self.sealed and envelope is not None:
                pdu = pdu[ENVELOPE.size :][: envelope.length]
            self.two.core.pair_rx(now_ns(), pdu, MACS[0], frame[0] & 1 == 1)
        return [frames[-1][:6] for frames in went]


@rule("L2")
@pytest.mark.parametrize("sealed", [False, True])
@isolated
def test_frames_of_a_link_go_to_the_address_on_each_interface(sealed: bool) -> None:
    """The frame that asks for the link is kept for it, with its address. The address on the second interface is told by a copy,
    which of a sealed frame goes no further. What is for another station is nobody's here; a POLL at the group address is
    answered there."""
    with closing(Two(sealed=sealed)) as run:
        (first,) = run.pdus(run.two)
        run.bring(first, (0,), to_group=True)
        run.until(lambda: run.asked)
        run.open()
        run.until(lambda: run.news)
        assert run.asked == run.news == 0b10 and len(run.one.take()) == 1
        assert run.goes() == [THEIR_MACS[0], GROUP_MAC], "nothing has come on the second one"
        (second, *_) = run.pdus(run.two)
        run.bring(second, (0, 1), to_group=False)
        assert run.goes() == list(THEIR_MACS)
        run.dp.limit_size(1400, 300)
        assert run.goes(600) == list(THEIR_MACS), "alone, as it is larger than what passes in any case"
        run.one.take()
        run.news = 0
        stranger = end(2, 3)
        for strange in [pdu for _ in range(4) for pdu in run.pdus(stranger)]:  # one of them has the number that comes next
            run.bring(strange, (0, 1), to_group=True)
        assert not run.news and not run.one.take()
        run.pdus(run.two)  # they do not come
        later = run.two.core.poll_due_ns()
        run.two.core.step(later, False)
        run.two.core.poll(later)
        polls = list(run.two.core.tx(later))
        run.bring(polls[-1], (0, 1), to_group=True)
        assert run.goes() == [GROUP_MAC, GROUP_MAC]
