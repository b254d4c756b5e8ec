"""Messages to groups that overlap: all properties in many histories, and each broken rule caught by the checker it should be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Id, Listed
from zenjun.proto.multicast.tables import Program, TokenTable

from ..rules import rule
from ..sim.history_asserts import assert_holds, block
from .multicast import broken
from .multicast.checks import CHECKERS, token_problem
from .multicast.net import MS
from .multicast.printed import PRINTED, BothLose, HolderWins, JoinerWins, NoLeave, Tokens, play
from .multicast.world import Plan, simulate

SEEDS = 120
VARIANT_SEEDS = 100
"""Seeds until a broken rule must have been caught."""


@pytest.mark.parametrize("number", range(4))
def test_seeds(number: int) -> None:
    """Crashes, cuts, joins, leaves, slow links: all properties hold, and it comes to rest."""
    assert_holds(simulate, block(number, SEEDS // 4))


@pytest.mark.parametrize("seed", [10476, 10574, 201120, 300348])
def test_seeds_that_once_failed(seed: int) -> None:
    """10476, 10574: a station that came back had a window besides that of its former life. 201120: the only holder of a message
    delivered it and the view behind it, and stopped; the others have the view without the message (level ordered).
    300348: a station that is being removed has an era of its own, whose number the others give to another one."""
    assert simulate(seed) is None


def plan(**changes: Any) -> Callable[[int], Plan]:
    """As a seed draws it, but for these."""
    return lambda seed: replace(Plan.draw(seed), **changes)


DRAWN = plan()
MANY = plan(groups=("token",) * 4, joins=0.4, stations=6, messages=30, settle=1 * MS)
STOPS = plan(groups=("token",) * 3, joins=0.4, stations=6, messages=15, faults=3, kinds=("crash", "cut"), safe=1.0)
LEAVES = plan(groups=("abcast",) * 3, faults=7, kinds=("join", "leave"), messages=30, slow=6 * MS)
LIVES = plan(stations=4, faults=7, kinds=("crash", "cut", "stall"), span=10 * MS, slow=2 * MS, detect=1 * MS)

CAUGHT: dict[type[object], tuple[str, Callable[[int], Plan], int]] = {
    broken.LoseEarlyDecisions: ("complete", MANY, 1),
    broken.PassMissing: ("order", MANY, 1),
    broken.OwnTimes: ("order", MANY, 9),
    broken.NoClock: ("order", MANY, 25),
    broken.TiesByArrival: ("order", MANY, 2),
    broken.DecideToAll: ("order", MANY, 2),
    broken.TwoSupers: ("one_time", MANY, 2),
    broken.NoFlush: ("views", STOPS, 0),
    broken.NobodyDecides: ("complete", STOPS, 2),
    broken.LoseDecisions: ("complete", DRAWN, 3),
    broken.NoWait: ("program", MANY, 14),
    broken.DecideEarly: ("complete", MANY, 4),
    broken.Smallest: ("order", MANY, 2),
    broken.DeliverDecided: ("order", MANY, 2),
    broken.RunsMix: ("program", MANY, 14),
    broken.StableAtDelivery: ("uniform", STOPS, 1),
    broken.NoWordToOutside: ("rest", DRAWN, 0),
    broken.NeverSettle: ("rest", DRAWN, 0),
    broken.SilentLeave: ("complete", LEAVES, 0),
    broken.LinksNotEmptied: ("complete", DRAWN, 29),
    broken.DecideWhenFrozen: ("complete", STOPS, 2),
    broken.FlushWithoutTimes: ("one_time", STOPS, 5),
    broken.AnyFlush: ("complete", LIVES, 0),
    broken.NoNext: ("program", STOPS, 51),
    broken.OldLives: ("digest", LIVES, 0),
    broken.OnePlace: ("place", DRAWN, 0),
    broken.DeliverForgotten: ("once", DRAWN, 0),
    broken.NoRelay: ("complete", STOPS, 4),
    broken.OpenEarly: ("views", MANY, 1),
    broken.ForgetAtDelivery: ("agreed", STOPS, 9),
    broken.TakeFrozen: ("complete", DRAWN, 17),
    broken.ToEverybody: ("genuine", DRAWN, 0),
}
"""Each broken rule with a checker that catches it when all others are off, the runs in which it does, and the first such seed."""


@pytest.mark.parametrize("defect", CAUGHT, ids=lambda defect: defect.__name__)
@rule("O3", "O8", "S2", "S3", "E1", "E2", "E3", "E6", "E7", "L1")
def test_a_broken_rule_is_caught(defect: type[object]) -> None:
    checker, runs, first = CAUGHT[defect]
    only = frozenset({checker})
    found = any(simulate(seed, defect, runs(seed), only) for seed in range(first, first + VARIANT_SEEDS))
    assert found, f"{checker} does not see it"


def test_no_defect_and_no_checker_is_left_out() -> None:
    """Four are in test_multicast_schedules.py, with the checker ``bounded``, those of links in test_multicast_links.py, with
    ``link`` and ``addresses``, and in test_multicast_cores.py; ``tokens`` is judged below."""
    elsewhere: set[type[object]] = {broken.NoSeen, broken.HeldByItself, broken.NoWatermark, broken.NoWindow}
    elsewhere |= {broken.NoPoll, broken.NoFallback, broken.AnswerByAddress, broken.AnyLink, broken.NakAnswers, broken.NeverStuck}
    elsewhere |= {broken.CalledForGood, broken.CallersCall}
    defects = {c for n, c in vars(broken).items() if isinstance(c, type) and c.__module__ == broken.__name__ and n[0] != "_"}
    assert defects == set(CAUGHT) | elsewhere
    assert {checker for checker, _, _ in CAUGHT.values()} == CHECKERS - {"tokens", "bounded", "link", "addresses"}


# ---- tokens as printed


def moves(r: random.Random, leaves: bool) -> list[str]:
    """Joins and leaves of up to five stations and four groups."""
    inside: set[tuple[int, int]] = set()
    played: list[str] = []
    for _ in range(r.randint(2, 12)):
        station, group = r.randint(1, 5), r.randint(1, 4)
        if (station, group) not in inside:
            inside.add((station, group))
            played.append(f"h{station}+{group}")
        elif leaves:
            inside.remove((station, group))
            played.append(f"h{station}-{group}")
    return played


def problem(tokens: Tokens) -> str | None:
    return token_problem({g: s for g, s in tokens.groups.items() if s}, tokens.hosts, tokens.supers)


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.__name__)
@rule("T2", "T3")
def test_tokens_as_printed_go_wrong(printed: type[Tokens]) -> None:
    wrong = 0
    for seed in range(300):
        tokens = printed()
        play(tokens, moves(random.Random(seed), leaves=printed is NoLeave))
        wrong += problem(tokens) is not None
    assert wrong > 3


@pytest.mark.parametrize(
    ("printed", "played", "found"),
    [
        (BothLose, "h1+1 h2+1", "group 1 has no token host"),
        (JoinerWins, "h3+3 h2+3 h3+1 h2+2 h1+2 h1+3", "group 3 has token hosts [1, 3] and super token host 2"),
        (HolderWins, "h2+3 h1+3 h3+3 h2+1 h1+2 h3+2 h3+4", "group 3 has token hosts [2, 3] and super token host 1"),
        (NoLeave, "h1+1 h2+1 h1-1", "group 1 has no token host"),
    ],
)
def test_sequences_of_joins_that_go_wrong(printed: type[Tokens], played: str, found: str) -> None:
    tokens = printed()
    play(tokens, played.split())
    assert problem(tokens) == found


@rule("T1", "T2", "T3")
def test_tokens_by_the_table_are_right() -> None:
    for seed in range(300):
        tokens = HolderWins()
        play(tokens, moves(random.Random(seed), leaves=True))
        table = TokenTable(tokens.groups)
        supers = {g: table.super_host(g) for g in table.groups}
        assert token_problem(table.groups, table.hosts, supers) is None


# ---- the times that a change gives


@rule("E4")
def test_times_of_a_change_are_those_of_the_rule_for_a_window_of_every_station() -> None:
    """Below the least that a later message of the same program with a common destination has, else above all: with eight windows
    of messages, each compared with all others took half a second of the daemon."""
    r = random.Random(4)
    main = MainOrder.begin(1, dict.fromkeys(range(1, 9), 1))
    era = main.era.number
    listed = [
        Listed(Id(era, z, k), Program(z, 1, k % 3), r.choice(("token", "abcast")), (1,),
               frozenset(r.sample(range(1, 9), 3)), True, r.choice((None, None, 1000 + r.randrange(300))))
        for z in range(1, 9) for k in range(1, 41)
    ]  # fmt: skip
    r.shuffle(listed)
    decided: dict[Id, int] = {}
    for m in sorted(listed, key=lambda m: m.id.number, reverse=True):
        later = [
            decided[o.id] for o in listed
            if o.id in decided and (o.program, o.order) == (m.program, m.order) and o.id.number > m.id.number
            and o.destinations & m.destinations
        ]  # fmt: skip
        decided[m.id] = m.time if m.time is not None else min([*later, 2001])
    assert {i: m.time for i, m in main._decide_era(listed, 2000).items()} == decided
    assert len(set(decided.values())) > 50
