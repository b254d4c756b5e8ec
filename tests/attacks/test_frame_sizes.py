"""Attack: PROBEs without end, LINKS that lie or were recorded. Frames must not become larger than what has passed, and answers
must not fill the network. Whoever may speak for a station can make frames small, as a network could: nothing is lost by that."""

from __future__ import annotations

import random

from zenjun.proto.sizes import BASE, SIZES, Answer, Config, Probe, Sizes

from ..rules import rule

MS = 1_000_000
T = 1_000 * MS
N = 5
MOST = 9216


def proven() -> tuple[Sizes, list[Probe]]:
    """Station 1 of five; all have had 1500 bytes and said so."""
    machine = Sizes(Config(1, N, (1,), 576, MOST), random.Random(1).randrange)
    machine.on_interface(T, 1, 1500)
    sent = [e for e in machine.step(T, range(1, N + 1), MOST) if isinstance(e, Probe)]
    for station in range(2, N + 1):
        machine.on_said(T + MS, 1, station, sent[0].round, 1500)
    machine.step(T + MS, range(1, N + 1), MOST)
    assert machine.limit.size == 1500
    return machine, sent


@rule("J13")
def test_links_that_name_what_was_never_sent_prove_nothing() -> None:
    machine = Sizes(Config(1, N, (1,), 576, MOST), random.Random(1).randrange)
    machine.on_interface(T, 1, 1500)
    (first, *_) = [e for e in machine.step(T, range(1, N + 1), MOST) if isinstance(e, Probe)]
    for station in range(N + 3):
        for round in (first.round, first.round - 1, first.round + 1, 0, 65535):
            for size in (1501, 9000, 65535, 1499):
                machine.on_said(T + MS, 1, station, round, size)
    machine.step(T + 2 * MS, range(1, N + 1), MOST)
    assert machine.limit.size == BASE


@rule("J13", "J15")
def test_recorded_links_hide_no_hole() -> None:
    """Every word that was ever said is said again, all the time, while 1500 passes no more: the hole is found all the same."""
    machine, sent = proven()
    recorded = [(station, sent[0].round, size) for station in range(2, N + 1) for size in SIZES if size <= 1500]
    now = T + 100 * MS
    machine.on_again()
    for _ in range(500):
        now += MS
        for words in recorded:
            machine.on_said(now, 1, *words)
        for effect in machine.step(now, range(1, N + 1), MOST):
            if isinstance(effect, Probe) and effect.size <= BASE:
                for station in range(2, N + 1):
                    machine.on_said(now, 1, station, effect.round, effect.size)
        if machine.limit.size == BASE:
            break
    assert machine.limit.size == BASE and now <= T + 250 * MS


@rule("J19")
def test_probes_at_the_rate_of_the_line_cost_few_frames() -> None:
    """100,000 PROBEs a second that want an answer, in the name of every station, for a second; nobody answers this one's."""
    machine = Sizes(Config(1, N, (1,), 576, MOST), random.Random(1).randrange)
    machine.on_interface(T, 1, 9000)
    answers = probes = 0
    for at in range(T, T + 1_000 * MS, MS):
        for _ in range(20):
            for station in range(N + 1):
                machine.on_probe(at, 1, station)
        for effect in machine.step(at, (), MOST):
            answers += isinstance(effect, Answer)
            probes += isinstance(effect, Probe)
    assert answers <= 101 and probes <= 20 * len(SIZES), (answers, probes)
