"""PDUs in pieces, and PROBEs: what leaves, is put together, is dropped; without a key, with its seal, under a session."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from zenjun.daemon.datapath import KEY_BYTES, Want, guard_overhead, seal
from zenjun.proto.envelope import ENCRYPTED, ENVELOPE, PIECES_MAX, PROBE, TAG_BYTES, Envelope, Suite, What
from zenjun.proto.pieces import SETS, Joiner, cut
from zenjun.proto.wire import Kind

from ..rules import rule
from .net import Peer, Wire, ethernet, isolated, received, sizes
from .rig import CLUSTER, Bench
from .test_links import crc32c, opened, under_session
from .test_sealed import SESSION, THEIRS, key_of, pdu, sealing

Make = Callable[..., Bench]
KEY = bytes(range(KEY_BYTES))
GUARDS: dict[str, dict[str, Any]] = {
    "none": {},
    "siphash": {"key": KEY},
    "session": {"sealing": sealing()},
    "encrypted": {"sealing": sealing(Suite.AES_256_GCM + ENCRYPTED)},
}
SESSION_4 = b"\x01\x02\x03\x04"


def enveloped(guard: str, what: What, tx: int, number: int, body: bytes, piece: int = 0, session: bytes = SESSION_4) -> bytes:
    """A frame of another station."""
    if guard in ("session", "encrypted"):
        suite = GUARDS[guard]["sealing"].suite
        return under_session(what, tx, THEIRS, suite, number, body, piece)
    head = Envelope(CLUSTER, what, tx, 0, len(body), session, number, piece=piece).packed()
    tag = seal(KEY, head + body) if guard == "siphash" else crc32c(head + body).to_bytes(4, "big")
    return head + body + tag


def reading(make_bench: Make, guard: str, links: int = 1, **options: Any) -> tuple[Bench, list[Wire], list[Peer]]:
    bench, wires, peers = opened(make_bench, links, **GUARDS[guard], **options)
    if "sealing" in GUARDS[guard]:
        bench.dp.session_read(3, THEIRS, key_of(THEIRS), 1)
        bench.dp.seal_under(SESSION, key_of(SESSION))
    return bench, wires, peers


def pieces_of(frames: list[bytes], guard: str) -> list[bytes]:
    """PDUs that frames make up. An encrypted body is what it is: only its length counts here."""
    joiner, out = Joiner(64, 65535), []
    for frame in frames:
        envelope = Envelope.read(frame[14:])
        assert envelope is not None and (envelope.what, envelope.tx) == (What.PIECE, 1)
        body = frame[14 + ENVELOPE.size : 14 + ENVELOPE.size + envelope.length]
        if guard == "encrypted":
            place, count = envelope.piece >> 8, envelope.piece & 0xFF
            body = pdu(0, 1).ljust(len(body), b"\0") if not place else bytes(len(body))
            assert count <= PIECES_MAX
        whole = joiner.take(0, envelope.tx, envelope.session, envelope.number, envelope.piece, body)
        out += [whole] if whole is not None else []
    assert not joiner.bad and not joiner.held
    return out


@rule("J17")
@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("guard", GUARDS)
@isolated
def test_what_is_larger_than_the_limit_leaves_in_pieces(make_bench: Make, guard: str, links: int) -> None:
    """In as few as can be, none larger than a PDU of the limit is as a frame; the same bytes on each link; smaller PDUs whole."""
    bench, _, peers = reading(make_bench, guard, links)
    overhead = guard_overhead(GUARDS[guard].get("key", b""), GUARDS[guard].get("sealing"))
    limit = 1450 - overhead
    bench.dp.limit_size(limit, 1280 - overhead)
    core = bench.core.c
    core.tx_src, core.tx_cluster, core.tx_size, core.tx_left = 1, CLUSTER, 9000, 3
    bench.until(lambda: core.tx_sent == 3)
    core.tx_size, core.tx_left = limit, 2
    bench.until(lambda: core.tx_sent == 5)
    each = -(-9000 // len(cut(bytes(9000), 1450 - ENVELOPE.size - 16)))
    got = [received(bench, peer, 3 * -(-9000 // each) + 2) for peer in peers]
    assert all(frames == got[0] or [f[14:] for f in frames] == [f[14:] for f in got[0]] for frames in got)
    frames = got[0]
    assert max(map(len, frames)) == len(frames[-1]) == 14 + 1450
    whole = pieces_of(frames[:-2], guard)
    assert [len(p) for p in whole] == [9000] * 3
    if guard != "encrypted":
        assert [int.from_bytes(p[20:24], "big") for p in whole] == [0, 1, 2], "in their order, unchanged"
    assert bench.dp.counters()["tx_pieced"] == 3


@rule("J15")
@isolated
def test_what_many_ask_for_again_leaves_in_pieces_before_a_hole_has_been_found(make_bench: Make) -> None:
    """Four within a short time; then those, and what was asked for once goes whole. One or two were lost by chance."""
    bench, _, (peer,) = reading(make_bench, "none")
    bench.dp.limit_size(9000, 1280)
    core = bench.core.c
    core.tx_src, core.tx_cluster, core.tx_size = 1, CLUSTER, 1400

    def sent(again: int, asked: int) -> list[int]:
        core.tx_again, core.again, core.tx_left = again, core.again + asked, 10
        end = core.tx_sent + 10
        bench.until(lambda: core.tx_sent == end)
        pieced = bench.dp.counters()["tx_pieced"]
        return [len(frame) for frame in received(bench, peer, 10 + pieced - before)]

    before = 0
    assert sent(1, 0) == sent(1, 3) == [1414] * 10
    whole = sent(1, 4)
    before = bench.dp.counters()["tx_pieced"]
    assert before == 10 and len(whole) == 20 and max(whole) < 1294
    assert sent(0, 4) == [1414] * 10


@rule("J17", "J18")
@pytest.mark.parametrize("guard", GUARDS)
@isolated
def test_pieces_are_put_together_as_by_the_twin(make_bench: Make, guard: str) -> None:
    """In any order, some out of place or of another size, several PDUs at a time: the core gets what the twin makes of them, and
    bad ones are counted."""
    bench, _, (peer,) = reading(make_bench, guard, frame_max=9000, stations=3)
    rng = random.Random(guard)
    joiner = Joiner(3, 9000)
    number, sent, want = 1, 0, []
    for _ in range(60):
        burst = []
        for _ in range(rng.randint(1, 3)):
            body = pdu(
                number, 3, rng.choice((Kind.DATA, Kind.DATA, Kind.DATA, Kind.CONFIRM)), payload=bytes(rng.randrange(2000, 9500))
            )
            bodies = cut(body, rng.choice((700, 1240, 1400)))
            for place, part in enumerate(bodies):
                count = len(bodies) if rng.random() < 0.98 else rng.randrange(20)
                at = place if rng.random() < 0.98 else rng.randrange(20)
                part = part if rng.random() < 0.98 else part[: rng.randrange(len(part))]
                burst.append((number, at << 8 | count, part))
                number += 1
        rng.shuffle(burst) if rng.random() < 0.7 else None
        for at, piece, part in burst:
            if piece:
                peer.send(ethernet(enveloped(guard, What.PIECE, 3, at, part, piece)))
                sent += 1
                whole = joiner.take(0, 3, SESSION_4, at, piece, part)
                want += [len(whole)] if whole is not None else []
    bench.until(lambda: bench.dp.counters()["rx_piece"] == sent)
    assert sizes(bench) == want and len(want) > 20
    counters = bench.dp.counters()
    assert (counters["rx_pieced"], counters["rx_piece_bad"]) == (len(want), joiner.bad) and joiner.bad


@rule("J18")
@isolated
def test_unfinished_pieces_use_no_more_memory(make_bench: Make) -> None:
    """A flood of them: what is held is bounded, PDUs of others are put together meanwhile, those of the same station unless four
    newer ones have begun."""
    bench, _, (peer,) = reading(make_bench, "none", frame_max=9000, stations=3)
    rng = random.Random(1)
    peer.send(ethernet(enveloped("none", What.PIECE, 3, 16, bytes(1000), 15 << 8 | 16)))
    bench.until(lambda: bench.dp.counters()["rx_piece"] == 1)
    memory = bench.dp.memory()
    for i in range(3000):
        session = rng.randbytes(4)
        peer.send(ethernet(enveloped("none", What.PIECE, 3, 16 * i + 16, bytes(rng.randrange(1, 60)), 15 << 8 | 16, session)))
        if i % 100 == 99:
            bench.until(lambda i=i: bench.dp.counters()["rx_piece"] >= i)  # type: ignore[misc]
    bodies = cut(pdu(7, 2, payload=bytes(4000)), 1400)
    for place, part in enumerate(bodies):
        peer.send(ethernet(enveloped("none", What.PIECE, 2, 1 + place, part, place << 8 | len(bodies))))
    bench.until(lambda: bench.core.c.rx_frames == 1)
    assert bench.dp.memory() == memory <= bench.dp.memory() and SETS == 4
    assert bench.dp.counters()["rx_pieced"] == 1


@rule("J15", "J17")
@isolated
def test_a_refused_pdu_goes_in_pieces_at_once(make_bench: Make) -> None:
    """The interface's MTU is smaller than thought: nothing is lost, and Python is told which link it is."""
    bench, wires, peers = reading(make_bench, "none")
    bench.dp.limit_size(1500, 900)
    wires[0].set_mtu(1000)
    core = bench.core.c
    core.tx_src, core.tx_cluster, core.tx_size, core.tx_left = 1, CLUSTER, 1500, 5
    bench.until(lambda: core.tx_sent == 5, want=0)
    assert [len(p) for p in pieces_of(received(bench, peers[0], 10), "none")] == [1500] * 5
    assert (core.limit, core.base) == (900, 900)
    assert bench.dp.links_large() == ([0], 0) and bench.dp.links_large() == ([], 0)
    core.again = 3
    bench.until(lambda: False, want=Want.SAID)
    assert bench.dp.links_large() == ([], 3)


@pytest.mark.parametrize("guard", GUARDS)
@isolated
def test_a_probe_has_its_size_and_is_noted(make_bench: Make, guard: str) -> None:
    bench, _, (peer,) = reading(make_bench, guard)
    around = ENVELOPE.size + (TAG_BYTES if "sealing" in GUARDS[guard] else 8 if guard == "siphash" else 4)
    assert bench.dp.probe(0, PROBE.struct.pack(1, 1, 5, 1400, 0), 1400)
    assert not bench.dp.probe(0, PROBE.struct.pack(1, 1, 5, 1501, 0), 1501), "the interface refuses it"
    assert not bench.dp.probe(0, PROBE.struct.pack(1, 1, 5, 20, 0), 20) and not bench.dp.probe(1, bytes(8), 100)
    (frame,) = received(bench, peer, 1)
    envelope = Envelope.read(frame[14:])
    assert len(frame) == 1414 and envelope is not None and envelope.what == What.PROBE and envelope.length == 1400 - around

    def come(number: int, round: int, size: int, answer: int, says: int = 0) -> None:
        body = PROBE.struct.pack(1, answer, round, says or size, 0).ljust(size - around, b"\0")
        peer.send(ethernet(enveloped(guard, What.PROBE, 3, number, body)))
        bench.until(lambda: bench.dp.counters()["rx_probe"] == number)

    come(1, 9, 1500, 0)
    assert bench.dp.links_asked() == []
    come(2, 9, 1400, 1)
    row = bench.dp.links_heard(0)[2]
    assert (row.round, row.largest) == (9, 1500) and row.heard_ns
    bench.until(lambda: False, want=Want.SAID)
    assert bench.dp.links_asked() == [0] and bench.dp.links_asked() == []
    come(3, 8, 1500, 0)
    assert bench.dp.links_heard(0)[2].round == 9, "an older round"
    come(4, 10, 1300, 0)
    come(5, 10, 1200, 0, says=1500)
    row = bench.dp.links_heard(0)[2]
    assert (row.round, row.largest) == (10, 1300), "what says that it is larger than it is does not count"


@pytest.mark.parametrize("guard", ["none", "siphash", "session"])
@isolated
def test_what_has_no_right_tag_is_no_piece_and_no_probe(make_bench: Make, guard: str) -> None:
    """Without a key a checksum is all there is; with one, its seal is needed; and what is not known is counted."""
    bench, _, (peer,) = reading(make_bench, guard)
    body = cut(pdu(7, 3, payload=bytes(4000)), 1400)[0]
    other = "siphash" if guard != "siphash" else "none"
    sent = 0
    for what, piece in ((What.PIECE, 3), (What.PROBE, 0), (What.LINKS, 0)):
        frame = enveloped(guard, what, 3, 1, body, piece)
        wrong = [frame[:-1] + bytes([frame[-1] ^ 1]), frame[:40] + bytes([frame[40] ^ 1]) + frame[41:], frame[:-9]]
        wrong += [enveloped(other, what, 3, 1, body, piece), frame[:5] + b"\x06" + frame[6:]]
        for bad in wrong:
            peer.send(ethernet(bad))
        sent += len(wrong)
    bench.until(lambda: bench.dp.counters()["rx_frames"] == sent)
    counters = bench.dp.counters()
    assert counters["rx_piece"] == counters["rx_probe"] == counters["rx_links"] == 0
    names = ("rx_tag", "rx_size", "rx_suite", "rx_version", "rx_unsealed")
    assert sum(counters[name] for name in names) == sent and bench.core.c.rx_frames == 0
