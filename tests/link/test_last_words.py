"""Clients that have been cut off: the reason waits for them, within bounds, and disturbs nobody."""

from __future__ import annotations

import select

from zenjun.daemon.datapath import CLIENTS_MAX, E_SLOW, LAST_WORDS_MAX, Want

from .rig import ERROR, MESSAGE, Bench, Program, errors, takes

KEEP_NS = 600 * 10**9
SHORT_NS = 50_000_000
GROUP = 7
BIG = 64 * 1024


def cut_off(bench: Bench, *slow: Program, size: int = BIG, keep_ns: int = KEEP_NS) -> None:
    """Let what is queued for these members of the group pile up until they are cut off, and give their slots up."""
    for _ in range((4 << 20) // size):
        bench.core.deliver(GROUP, bytes(size))
    bench.until(lambda: False, want=Want.CLIENT)
    assert sorted((t.slot, t.error) for t in takes(bench)) == sorted((s.slot, E_SLOW) for s in slow)
    for program in slow:
        bench.dp.client_cut_off(program.slot, keep_ns)


def reason(bench: Bench, program: Program) -> str:
    """What a client that reads at last is told; empty if it is nothing, whole frames or not."""
    bench.until(lambda: (program.read(), program.closed)[1])
    frames = program.frames()
    assert {f.type for f in frames} <= {MESSAGE, ERROR}
    return str(errors(frames)[-1]["code"]) if frames and frames[-1].type == ERROR else ""


def test_the_reason_is_there_when_a_slow_client_reads_at_last(bench: Bench) -> None:
    slow = bench.member(11)
    before = bench.dp.memory()
    cut_off(bench, slow)
    assert bench.dp.clients_left() == 0, "who stops does not wait for it"
    kept = bench.dp.memory() - before
    assert kept <= BIG, "the rest of a frame and the reason; the input buffer and the table of handles are gone"
    for _ in range(20):
        bench.core.deliver(GROUP, bytes(BIG))
        bench.turn()
    assert reason(bench, slow) == "slow-receiver" and not slow.buffer, "no frame is cut"
    assert bench.dp.memory() <= before


def test_the_rest_of_a_large_message_is_kept(bench: Bench) -> None:
    """A frame that has been begun must be ended before the reason can be told."""
    slow = bench.member(11)
    cut_off(bench, slow, size=1 << 20)
    assert reason(bench, slow) == "slow-receiver" and not slow.buffer


def test_no_longer_than_asked(bench: Bench) -> None:
    slow, other = bench.member(11), bench.member(12, 8)
    cut_off(bench, slow, keep_ns=SHORT_NS)
    poll = select.poll()
    poll.register(slow.sock, 0)  # only whether the other end is closed
    bench.until(lambda: poll.poll(0))
    assert reason(bench, slow) == ""
    assert bench.dp.clients_left() == 1 and not other.closed


def test_a_client_that_is_gone_is_not_kept(bench: Bench) -> None:
    slow = bench.member(11)
    before = bench.dp.memory()
    cut_off(bench, slow)
    slow.close()
    bench.until(lambda: bench.dp.memory() < before - BIG)


def test_the_oldest_goes_when_there_are_too_many(bench: Bench) -> None:
    slow: list[Program] = []
    for i in range(LAST_WORDS_MAX + 2):
        slow.append(bench.member(100 + i))
        cut_off(bench, slow[-1])
    assert [reason(bench, s) for s in slow] == ["", "", *["slow-receiver"] * LAST_WORDS_MAX]


def test_all_together_keep_no_more_than_one_queue(bench: Bench) -> None:
    """With rests of large frames, half a MiB each, fewer of them are kept: 4 MiB is the limit here."""
    slow: list[Program] = []
    before = bench.dp.memory()
    for i in range(16):
        slow.append(bench.member(100 + i))
        cut_off(bench, slow[-1], size=1 << 20)
        assert bench.dp.memory() - before <= 10 << 20, "up to twice the bytes, in powers of two"
    told = [reason(bench, s) for s in slow]
    assert 1 <= told.count("slow-receiver") < 16
    assert told == sorted(told), "the oldest have gone"


def test_a_new_client_has_precedence(bench: Bench) -> None:
    slow = bench.member(11)
    cut_off(bench, slow)
    for i in range(CLIENTS_MAX):
        bench.client(1000 + i)
    assert bench.dp.clients_left() == CLIENTS_MAX
    assert reason(bench, slow) == ""


def test_closed_at_once_if_there_is_nothing_to_wait_for(bench: Bench) -> None:
    """The reason fits into the socket, or the client has gone already."""
    polite, gone = bench.client(11), bench.client(12)
    assert bench.dp.client_put(polite.slot, ERROR, flags=1, body=b'{"code":"protocol"}', urgent=True)
    bench.dp.client_cut_off(polite.slot, KEEP_NS)
    bench.turn()
    gone.close()
    bench.turn()
    takes(bench)
    bench.dp.client_cut_off(gone.slot, KEEP_NS)
    bench.turn()
    assert reason(bench, polite) == "protocol"
    assert bench.dp.clients_left() == 0
