"""Frames that prove their sender, in the data path: bytes as the standards say, checks as those of ``proto/envelope.py``."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.daemon import key as key_file
from zenjun.daemon.datapath import Sealing, Want, guard_overhead, now_ns
from zenjun.proto.envelope import (
    ECHO,
    ENCRYPTED,
    ENVELOPE,
    HELLO_BYTES_MAX,
    OVERHEAD,
    TAG_BYTES,
    WINDOW,
    Drop,
    Echo,
    Envelope,
    Hello,
    Reader,
    Suite,
    What,
)
from zenjun.proto.wire import HEADER, Flag, Kind

from . import gcm
from .net import Peer, Wire, ethernet, isolated
from .rig import CLUSTER, Bench, grown

ROOT = Path(__file__).resolve().parent.parent.parent
STATIONS = 3
HELLO_KEY = bytes(range(100, 132))
SESSION = b"own-session" + bytes(21)
THEIRS = b"their-session" + bytes(19)
MS = 1_000_000


def key_of(session: bytes) -> bytes:
    return hashlib.sha256(session).digest()


def sealing(suite: int = Suite.AES_256_GCM, pause_ns: int = 0) -> Sealing:
    return Sealing(STATIONS, suite, HELLO_KEY, pause_ns, 7)


def pdu(mark: int, src: int, kind: Kind = Kind.DATA, flags: int = 0, payload: bytes = b"") -> bytes:
    """The mark stands where the double looks for it, too."""
    head = bytearray(HEADER.struct.pack(CLUSTER, 1, kind, flags, 3, src, 0, len(payload), 1, 1, 0, 0, 0, 0, 0, 0))
    head[HEADER.offset("clock") : HEADER.offset("clock") + 8] = mark.to_bytes(8, "big")
    return bytes(head) + payload


def sealed(body: bytes, number: int, *, tx: int = 2, suite: int = Suite.AES_256_GCM, session: bytes = THEIRS) -> bytes:
    """A frame of another station, made by the slow cipher."""
    head = Envelope(CLUSTER, What.PDU, tx, suite, len(body), session[:4], number).packed()
    nonce = bytes(4) + number.to_bytes(8, "big")
    if suite & ENCRYPTED:
        hidden, tag = gcm.seal(key_of(session), nonce, head, body)
        return head + hidden + tag
    return head + body + gcm.seal(key_of(session), nonce, head + body, b"")[1]


def hello(tx: int, *, clock: int = 1, challenge: int = 5, key: bytes = HELLO_KEY, returned: int = 0, named: int = 7) -> bytes:
    """named: id of the key that its tag is under; 0: it does not say."""
    body = Hello(
        tx=tx, suite=Suite.AES_256_GCM, session=THEIRS, challenge=challenge, clock=clock, next=1, boot=1, incarnation=1,
        instance=0, fingerprint=1, age_ms=0, keys=(7,), echoes=(Echo(other=returned),) * STATIONS, stations=STATIONS,
    ).bodies()[0]  # fmt: skip
    frame = Envelope(CLUSTER, What.HELLO, tx, Suite.AES_256_GCM, len(body), THEIRS[:4], named).packed() + body
    return frame + hmac.digest(key, frame, "sha256")[:TAG_BYTES]


def test_the_slow_cipher_gives_what_its_paper_prints() -> None:
    """The Galois/Counter Mode of Operation, D. McGrew, J. Viega, test cases 13 and 14."""
    assert gcm.seal(bytes(32), bytes(12), b"", b"")[1].hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    hidden, tag = gcm.seal(bytes(32), bytes(12), b"", bytes(16))
    assert (hidden.hex(), tag.hex()) == ("cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919")


@pytest.mark.parametrize("suite", [Suite.AES_256_GCM, Suite.AES_256_GCM + ENCRYPTED])
def test_frames_are_what_the_standard_says(make_bench: Callable[..., Bench], suite: int) -> None:
    dp = make_bench(sealing=sealing(suite)).dp
    with pytest.raises(BlockingIOError):
        dp.seal_frame(pdu(1, 1))
    dp.seal_under(SESSION, key_of(SESSION))
    rng = random.Random(3)
    for number, size in enumerate((0, 1, 15, 16, 17, 200, 1300), 1):
        body = pdu(number, 1, payload=rng.randbytes(size))
        assert dp.seal_frame(body) == sealed(body, number, tx=1, suite=suite, session=SESSION), size
    assert dp.next_number == 8
    dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    body = pdu(1, 2, payload=b"x" * 100)
    assert dp.open_frame(sealed(body, 1, suite=suite) + bytes(30), 0) == body, "padding stands behind the tag"


def open_slowly(session: bytes, number: int, head: bytes, body: bytes, tag: bytes) -> bytes | None:
    made = gcm.seal(key_of(session), bytes(4) + number.to_bytes(8, "big"), head + body, b"")[1]
    return body if made == tag else None


def other(rng: random.Random, frame: bytes) -> bytes:
    """One field or bit of it changed, or its end cut off."""
    out = bytearray(frame)
    match rng.randrange(6):
        case 0:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        case 1:
            return bytes(out[: rng.randrange(len(out))])
        case 2:
            out[ENVELOPE.offset("tx")] = rng.randrange(5)
        case 3:
            out[ENVELOPE.offset("suite")] = rng.choice((0, 1, 2, 17))
        case 4:
            out[ENVELOPE.offset("version")] = rng.choice((0, 1, 3))
        case _:
            out[ENVELOPE.offset("number") :][:8] = rng.randbytes(8)
            out[ENVELOPE.offset("number") : ENVELOPE.size] = rng.choice((0, 9, 20_000, 2**63)).to_bytes(8, "big")
    return bytes(out)


@pytest.mark.parametrize("seed", range(3))
def test_checks_as_those_of_the_simulation(make_bench: Callable[..., Bench], seed: int) -> None:
    """The same frames to both: right ones in any order, repeated, changed, of sessions that are proven and others."""
    dp = make_bench(sealing=sealing()).dp
    reader = Reader(1, STATIONS, Suite.AES_256_GCM, open_slowly)
    rng = random.Random(seed)
    sessions = {(tx, i): bytes([tx, i]) * 16 for tx in (2, 3) for i in range(3)}
    for (tx, i), session in sessions.items():
        if i < 2:
            first = 5 * i + 1
            dp.session_read(tx, session, key_of(session), first)
            reader.add(tx, session, first, 0)
    frames: list[bytes] = []
    seen = set()
    for _ in range(400):
        tx, i = rng.choice(list(sessions))
        number = rng.choice((rng.randrange(1, 40), rng.randrange(WINDOW - 60, WINDOW + 90), rng.randrange(2**20)))
        kind, flags = rng.choice(((Kind.DATA, 0), (Kind.CONFIRM, 0), (Kind.CONFIRM, Flag.RELAYED), (Kind.NAK, 0)))
        src = rng.choice((tx, tx, tx, 1, 2))
        frames.append(sealed(pdu(number, src, kind, flags), number, tx=tx, session=sessions[tx, i]))
        for frame in (rng.choice(frames), other(rng, rng.choice(frames)), frames[-1]):
            if len(frame) > 5 and frame[5] == What.HELLO:
                continue
            expected, got = reader.take(frame, 0), dp.open_frame(frame, 0)
            assert got == (f"rx_{expected}" if isinstance(expected, Drop) else expected), frame.hex()
            seen.add(expected if isinstance(expected, Drop) else None)
    assert len(seen) >= 10, f"the frames meet the checks: {seen}"


def test_a_session_is_read_until_it_is_forgotten(make_bench: Callable[..., Bench]) -> None:
    dp = make_bench(sealing=sealing()).dp
    frame = sealed(pdu(1, 2), 1)
    assert dp.open_frame(frame, 0) == "rx_unproven"
    dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    dp.session_read(2, SESSION, key_of(SESSION), 1)
    with pytest.raises(OSError, match="No space"):
        dp.session_read(2, b"third", key_of(THEIRS), 1)
    assert dp.open_frame(frame, 77) == pdu(1, 2)
    assert dp.session_heard_ns(2, THEIRS) == 77
    assert dp.open_frame(frame, 78) == "rx_replayed"
    dp.session_forget(2, THEIRS)
    assert dp.session_heard_ns(2, THEIRS) == 0
    assert dp.open_frame(frame, 79) == "rx_unproven"
    with pytest.raises(FileNotFoundError):
        dp.session_forget(2, THEIRS)


def test_settings_that_cannot_be(make_bench: Callable[..., Bench]) -> None:
    for wrong in (sealing(suite=0), sealing(suite=2), sealing()._replace(stations=0), sealing()._replace(stations=65)):
        with pytest.raises(OSError, match="Invalid argument"):
            make_bench(sealing=wrong)
    dp = make_bench().dp
    with pytest.raises(OSError, match="Invalid argument"):
        dp.seal_under(SESSION, key_of(SESSION))
    assert dp.hello_take() is None


def test_of_many_hellos_the_latest_and_some_other_are_kept(make_bench: Callable[..., Bench]) -> None:
    dp = make_bench(sealing=sealing()).dp
    others = set()
    for _ in range(60):  # that one of the two is never kept has a chance of 2^-59
        for clock in (5, 9, 3, 4):
            assert dp.open_frame(hello(2, clock=clock), 0) == "rx_hello"
        other, latest, none = dp.hello_take(), dp.hello_take(), dp.hello_take()
        assert latest == hello(2, clock=9)[:-TAG_BYTES] and none is None
        others.add(other)
    assert others == {hello(2, clock=clock)[:-TAG_BYTES] for clock in (3, 4)}
    assert dp.open_frame(hello(3, key=bytes(32)), 0) == "rx_tag"
    assert dp.hello_take() is None
    assert dp.hello_strange() == hello(3)[:-TAG_BYTES]
    assert dp.hello_strange() is None


def test_a_hello_that_returns_a_challenge_is_kept_whatever_comes_after(make_bench: Callable[..., Bench]) -> None:
    """Its clock was set back, and a recorded one of an earlier life follows each of its HELLOs."""
    dp = make_bench(sealing=sealing()).dp
    dp.hello_send(hello(1, challenge=77)[ENVELOPE.size : -TAG_BYTES])  # no link takes it
    fresh, recorded = hello(2, clock=1, returned=77), hello(2, clock=2**60)
    for frame in (fresh, *[recorded] * 100):
        assert dp.open_frame(frame, 0) == "rx_hello"
    assert [dp.hello_take() for _ in range(3)] == [recorded[:-TAG_BYTES], fresh[:-TAG_BYTES], None]


def test_of_fresh_hellos_the_last_one_made_is_kept(make_bench: Callable[..., Bench]) -> None:
    """One recorded a second ago is fresh as well, and comes again behind that which announces another session."""
    dp = make_bench(sealing=sealing()).dp
    for challenge in (77, 78):
        dp.hello_send(hello(1, challenge=challenge)[ENVELOPE.size : -TAG_BYTES])
    recorded, same, new = hello(2, clock=9, returned=77), hello(2, clock=5, returned=78), hello(2, clock=6, returned=78)
    for frame in (recorded, same, new, same, recorded):
        assert dp.open_frame(frame, 0) == "rx_hello"
    assert [dp.hello_take() for _ in range(2)] == [new[:-TAG_BYTES], None]


def test_a_hello_counts_under_its_own_key_only(make_bench: Callable[..., Bench]) -> None:
    """Who has one key of two proves nothing under the other; a key that is not here is for Python to name."""
    other_key = bytes(range(50, 82))
    dp = make_bench(sealing=sealing()).dp
    dp.hello_keys({7: HELLO_KEY, 8: other_key})
    for named in (0, 8):  # by a version that does not name the key of the tag, and by this one
        assert dp.open_frame(hello(2, key=other_key, named=named), 0) == "rx_hello"
    assert dp.hello_take() is None and dp.hello_strange() is None
    for named in (0, 7):
        assert dp.open_frame(hello(2, named=named), 0) == "rx_hello"
        assert dp.hello_take() == hello(2, named=named)[:-TAG_BYTES]
    assert dp.open_frame(hello(2, key=other_key), 0) == "rx_tag", "under another key than it names"
    assert dp.hello_strange() is not None
    dp.hello_keys({8: other_key})
    assert dp.open_frame(hello(2), 0) == dp.open_frame(hello(2, named=0), 0) == "rx_tag"
    for named in (0, 8):
        assert dp.open_frame(hello(2, key=other_key, named=named), 0) == "rx_hello"
        assert dp.hello_take() == hello(2, named=named)[:-TAG_BYTES], "it names a key that is not here"
    for wrong in ({}, dict.fromkeys(range(5), other_key)):
        with pytest.raises(OSError, match="Invalid argument"):
            dp.hello_keys(wrong)


@pytest.mark.parametrize("bound", [True, False], ids=["", "NamesAnything"])
def test_the_key_of_a_cluster_of_another_name_opens_nothing(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    """One file of keys for two clusters. Where keys are not made of the name, each cluster takes the other one's frames."""
    if not bound:
        made = key_file.info_of
        monkeypatch.setattr(key_file, "info_of", lambda purpose, name, *parts: made(purpose, "", *parts))
    secret, suite = bytes(range(32)), Suite.AES_256_GCM
    dp = make_bench(sealing=Sealing(STATIONS, suite, key_file.hello_key(secret, "ours"), 0, 7)).dp
    assert dp.open_frame(hello(2, key=key_file.hello_key(secret, "theirs")), 0) == ("rx_tag" if bound else "rx_hello")
    assert (dp.hello_take() is None) is bound
    dp.session_read(2, THEIRS, key_file.sending_key(secret, "ours", THEIRS, suite), 1)
    monkeypatch.setitem(globals(), "key_of", lambda session: key_file.sending_key(secret, "theirs", session, suite))
    body = pdu(1, 2, payload=b"of another cluster")
    assert dp.open_frame(sealed(body, 1), 0) == ("rx_tag" if bound else body)


def test_hellos_are_given_in_turn(make_bench: Callable[..., Bench]) -> None:
    dp = make_bench(sealing=sealing()).dp
    given = set()
    for _ in range(4):
        for tx in (1, 2, 3):
            dp.open_frame(hello(tx), 0)
        given.add((dp.hello_take() or b"")[ENVELOPE.offset("tx")])
    assert given == {1, 2, 3}


def test_a_former_session_says_nothing_after_the_present_one_has(make_bench: Callable[..., Bench]) -> None:
    dp = make_bench(sealing=sealing()).dp
    dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    dp.session_read(2, SESSION, key_of(SESSION), 1)

    def confirm(number: int, session: bytes) -> bytes:
        return sealed(pdu(number, 2, Kind.CONFIRM), number, session=session)

    assert dp.open_frame(confirm(5, THEIRS), 0) == pdu(5, 2, Kind.CONFIRM)
    assert dp.open_frame(confirm(1, SESSION), 0) == pdu(1, 2, Kind.CONFIRM)
    assert dp.open_frame(confirm(6, THEIRS), 0) == "rx_reordered", "held back since"
    assert dp.open_frame(sealed(pdu(7, 2), 7), 0) == pdu(7, 2), "what is in a stream is taken"
    dp.session_forget(2, SESSION)
    assert dp.open_frame(confirm(8, THEIRS), 0) == pdu(8, 2, Kind.CONFIRM)


def test_no_session_is_used_twice(make_bench: Callable[..., Bench]) -> None:
    """It would begin again at number 1."""
    dp = make_bench(sealing=sealing()).dp
    dp.seal_under(SESSION, key_of(SESSION))
    dp.seal_frame(pdu(1, 1))
    with pytest.raises(OSError, match="Invalid argument"):
        dp.seal_under(SESSION, key_of(SESSION))
    assert dp.next_number == 2


def test_between_a_pause_and_a_new_session_no_frame_leaves(make_bench: Callable[..., Bench]) -> None:
    """Wherever the process was stopped, not only while it slept."""
    dp = make_bench(sealing=sealing(pause_ns=50 * MS)).dp
    dp.seal_under(SESSION, key_of(SESSION))
    dp.turn(now_ns() + MS)
    time.sleep(0.15)
    with pytest.raises(BlockingIOError):
        dp.seal_frame(pdu(1, 1))
    assert dp.is_asleep and not dp.links_send(pdu(1, 1))
    dp.seal_under(THEIRS, key_of(THEIRS))
    assert dp.seal_frame(pdu(1, 1))


def test_a_slow_disk_is_no_pause(make_bench: Callable[..., Bench]) -> None:
    """A write that takes longer than others wait for a sign of life. What came before it counts, as does what takes too long."""
    dp = make_bench(sealing=sealing(pause_ns=50 * MS)).dp
    dp.seal_under(SESSION, key_of(SESSION))
    dp.turn(now_ns() + MS)
    began = now_ns()
    time.sleep(0.15)
    assert not dp.has_written(began - 11_000 * MS)
    assert dp.has_written(began)
    assert dp.seal_frame(pdu(1, 1)) and not dp.is_asleep
    time.sleep(0.15)
    assert not dp.has_written(now_ns() - MS) and dp.is_asleep


def test_stations_that_are_not_read_are_told_once_in_a_while(make_bench: Callable[..., Bench]) -> None:
    dp = make_bench(sealing=sealing()).dp
    frames = [sealed(pdu(number, tx), number, tx=tx) for number in range(1, 50) for tx in (2, 3, 9)]
    assert {str(dp.open_frame(frame, 5)) for frame in frames} == {"rx_unproven"}
    assert dp.unread() == [2, 3] and dp.unread() == []
    assert dp.open_frame(frames[0], 640 * MS) == dp.open_frame(frames[1], 700 * MS) == "rx_unproven"
    assert dp.unread() == [3]


def test_of_a_machine_that_was_asleep_no_frame_leaves_either(make_bench: Callable[..., Bench]) -> None:
    """Its processes do not see that time go by. Also between two turns of Python's, and within a turn."""
    bench = make_bench(sealing=sealing(pause_ns=3_600_000 * MS))
    dp = bench.dp
    dp.seal_under(SESSION, key_of(SESSION))
    assert dp.seal_frame(pdu(1, 1))
    dp.as_if_slept(50 * MS)
    assert dp.seal_frame(pdu(1, 1)), "clocks that are read one after the other differ by as much"
    dp.as_if_slept(1_000 * MS)
    with pytest.raises(BlockingIOError):
        dp.seal_frame(pdu(1, 1))
    asked: list[int] = []
    call, *arguments = dp.again(lambda: asked.append(bench.turn().want))
    dp.alone(True)
    call(*arguments)
    assert asked and asked[0] & Want.TRUST
    dp.seal_under(THEIRS, key_of(THEIRS))
    assert dp.seal_frame(pdu(1, 1)) and not dp.is_asleep


def opened(make_bench: Callable[..., Bench], suite: int) -> tuple[Bench, Peer, Peer]:
    link = Wire()
    bench = make_bench(sealing=sealing(suite))
    bench.core.c.tx_cluster = CLUSTER
    bench.dp.link_open(link.a)
    return bench, Peer(link.b), Peer(link.b, receive=True)


@isolated
@pytest.mark.parametrize("suite", [Suite.AES_256_GCM, Suite.AES_256_GCM + ENCRYPTED])
def test_on_a_wire(make_bench: Callable[..., Bench], suite: int) -> None:
    """Nothing leaves before there is a session; then every frame has its own number, and what comes is checked and counted."""
    bench, peer, listener = opened(make_bench, suite)
    bench.core.c.tx_left, bench.core.c.tx_size = 130, 100
    bench.turn()
    assert bench.core.c.tx_sent == 0
    assert not bench.dp.links_send(pdu(5, 1))
    bench.dp.seal_under(SESSION, key_of(SESSION))
    bench.until(lambda: bench.core.c.tx_sent == 130, what="the batch goes out")
    assert bench.dp.links_send(pdu(5, 1))
    frames: list[bytes] = []
    bench.until(lambda: grown(frames, listener.receive()) >= 131, what="all come out at the other end")
    numbers = [int.from_bytes(f[14 + 16 : 14 + 24], "big") for f in frames]
    assert numbers == list(range(1, 132))
    assert frames[-1][14:] == sealed(pdu(5, 1), 131, tx=1, suite=suite, session=SESSION)
    bench.dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    for frame in (sealed(pdu(9, 2), 1, suite=suite), sealed(pdu(9, 2), 1, suite=suite), pdu(9, 2), sealed(pdu(9, 3), 7, tx=3)):
        peer.send(ethernet(frame))
    refused = ("rx_replayed", "rx_version", "rx_suite" if suite & ENCRYPTED else "rx_unproven")
    bench.until(lambda: all(bench.dp.counters()[name] == 1 for name in refused), what="three are counted")
    assert bench.core.c.rx_frames == 1


@isolated
def test_a_hello_brings_python_in(make_bench: Callable[..., Bench]) -> None:
    bench, peer, listener = opened(make_bench, Suite.AES_256_GCM)
    peer.send(ethernet(hello(2)))
    bench.until(lambda: False, want=Want.TRUST, what="the turn comes back")
    assert bench.dp.hello_take() == hello(2)[:-TAG_BYTES]
    assert not bench.turn().want & Want.TRUST
    peer.send(ethernet(sealed(pdu(1, 3), 1, tx=3)))
    bench.until(lambda: False, want=Want.TRUST, what="so does a frame of no known session")
    assert bench.dp.unread() == [3] and not bench.turn().want & Want.TRUST
    body = hello(1)[ENVELOPE.size : -TAG_BYTES]
    assert bench.dp.hello_send(body)
    frames: list[bytes] = []
    bench.until(lambda: grown(frames, listener.receive()) >= 1, what="it goes out without a session")
    assert frames[0][14:] == hello(1)
    assert not bench.dp.hello_send(body + bytes(HELLO_BYTES_MAX))


HARNESS = ROOT / "tests" / "link" / "sealed_frames.c"


def test_changed_frames_under_sanitizers(tmp_path: Path) -> None:
    """Random changes of 120,000 right frames: no wrong read or write, and none of them is believed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "this test needs a C compiler"
    program = tmp_path / "sealed_frames"
    datapath, core = ROOT / "daemon" / "datapath", ROOT / "proto" / "core"
    sources = [str(HARNESS), *(str(datapath / name) for name in ("sealed.c", "guard.c", "kernel.c"))]
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ]
    command = [compiler, *flags, f"-I{datapath}", f"-I{core}", *sources, "-lcrypto", "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([str(program), "60000"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    without = tmp_path / "openssl.cnf"
    without.write_text("openssl_conf = a\n[a]\nproviders = b\n[b]\nnull = c\n[c]\nactivate = 1\n", encoding="ascii")
    environ = {**os.environ, "OPENSSL_CONF": str(without)}
    done = subprocess.run([str(program), "1"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"no guard: {-errno.ENOTSUP}\n", "what libcrypto does not offer here is told from a lack of memory"


def test_sizes() -> None:
    """The bytes that a frame has besides its PDU, in C and in Python."""
    assert (ENVELOPE.size, ECHO.size, OVERHEAD) == (24, 20, 40)
    assert guard_overhead(b"", sealing()) == OVERHEAD
