"""Frames under the cluster's key: what is sent bears a seal, what comes without a right one never reaches the core."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from zenjun.daemon.datapath import KEY_BYTES, SEAL_BYTES, seal
from zenjun.proto.wire import HEADER, Flag

from .net import Peer, Wire, ethernet, isolated
from .rig import CLUSTER, Bench, grown

KEY = bytes(range(KEY_BYTES))
MASK = 2**64 - 1


def siphash(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 as its paper writes it, word by word: independent of the C one."""
    k0, k1 = struct.unpack("<QQ", key)
    v: list[int] = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & MASK

    def mix() -> None:
        for a, b, low, high in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
            v[a] = v[a] + v[b] & MASK
            v[b] = turn(v[b], low) ^ v[a]
            v[a] = turn(v[a], high) if high else v[a]

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        mix()
        mix()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(4):
        mix()
    return (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "big")


def pdu(mark: int, *, stations: int = 3, payload: bytes = b"", pack: bool = False) -> bytes:
    """Header and vectors as the seal reads them; the mark stands where the double looks for it, behind the cluster."""
    head = bytearray(HEADER.size)
    struct.pack_into(">I", head, 0, CLUSTER)
    head[HEADER.offset("flags")] = Flag.PACK if pack else 0
    head[HEADER.offset("stations")] = stations
    struct.pack_into(">H", head, HEADER.offset("length"), len(payload))
    struct.pack_into(">Q", head, HEADER.offset("clock"), mark)
    return bytes(head) + bytes(4 * stations * (2 if pack else 1)) + payload


def sealed(body: bytes) -> bytes:
    return body + siphash(KEY, body)


def test_the_vector_of_the_paper() -> None:
    """Appendix A of the SipHash paper: key 00 … 0f, message 00 … 0e."""
    assert seal(KEY, bytes(range(15))).hex() == siphash(KEY, bytes(range(15))).hex() == "a129ca6149be45e5"


def test_like_the_slow_one_at_every_length() -> None:
    rng = random.Random(7)
    for size in [*range(70), 1371, 1500, 9000]:
        key, data = rng.randbytes(KEY_BYTES), rng.randbytes(size)
        assert seal(key, data) == siphash(key, data), size


def opened(make_bench: Callable[..., Bench], key: bytes = KEY) -> tuple[Bench, Peer, Peer]:
    link = Wire()
    bench = make_bench(key=key)
    bench.core.c.tx_cluster = CLUSTER
    bench.dp.link_open(link.a)
    return bench, Peer(link.b), Peer(link.b, receive=True)


@isolated
def test_only_what_bears_a_right_seal_reaches_the_core(make_bench: Callable[..., Bench]) -> None:
    bench, peer, _ = opened(make_bench)
    bodies = [pdu(1), pdu(2, payload=b"x" * 100), pdu(3, pack=True), pdu(4, stations=64, pack=True, payload=b"y" * 700)]
    good = [sealed(body) for body in bodies]
    good += [frame + bytes(range(1, 40)) for frame in good]  # padding and trailers stand behind the seal
    body = bodies[1]
    bad = [
        body,
        body + bytes(SEAL_BYTES),
        body + siphash(bytes(KEY_BYTES), body),
        sealed(body)[:-1],
        body + b"\0" + siphash(KEY, body),
        sealed(body)[: HEADER.size],
        sealed(body)[: HEADER.size + SEAL_BYTES - 1],
        pdu(9, stations=255, pack=True)[:100],
        struct.pack(">I", CLUSTER),
    ]
    for bit in range(8 * len(sealed(body))):
        changed = bytearray(sealed(body))
        changed[bit // 8] ^= 1 << bit % 8
        if changed[:4] == body[:4]:  # another cluster's does not come through the filter at all
            bad.append(bytes(changed))
    for frame in bad:
        peer.send(ethernet(frame))
    bench.until(lambda: bench.dp.counters()["rx_unsealed"] == len(bad), what="all are counted")
    assert bench.core.c.rx_frames == 0
    for frame in good:
        peer.send(ethernet(frame))
    bench.until(lambda: bench.core.c.rx_frames == len(good), what="all are taken")
    assert bench.dp.counters()["rx_unsealed"] == len(bad)


@isolated
def test_every_frame_sent_bears_one(make_bench: Callable[..., Bench]) -> None:
    bench, _, listener = opened(make_bench)
    bench.core.c.tx_left, bench.core.c.tx_size = 130, 100
    bench.until(lambda: bench.core.c.tx_sent == 130)
    bench.dp.links_send(pdu(5))
    frames: list[bytes] = []
    bench.until(lambda: grown(frames, listener.receive()) >= 131, what="all come out at the other end")
    assert len(frames) == 131
    for frame in frames:
        assert frame[-SEAL_BYTES:] == siphash(KEY, frame[14:-SEAL_BYTES])
    assert bench.dp.counters()["tx_bytes"] == sum(map(len, frames))


def test_a_key_of_another_length_is_refused(make_bench: Callable[..., Bench]) -> None:
    with pytest.raises(OSError, match="a key of 5 bytes, not 16"):
        make_bench(key=b"short")
    with pytest.raises(ValueError, match="a key of 5 bytes, not 16"):
        seal(b"short", b"")
