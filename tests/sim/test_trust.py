"""Sessions while somebody records and repeats frames: the rules hold, and a station without one of them is caught."""

from __future__ import annotations

import pytest

from .broken_trust import BROKEN, BROKEN_KEYS, SHADOWED
from .trust import World
from .trust_checks import Violation

SEEDS = 10
TRIES = 40
"""Worlds in which a broken variant is looked for."""


def test_the_rules_hold_whatever_is_sent_again() -> None:
    accepted, dropped = 0, set()
    for seed in range(SEEDS):
        checks = World(seed).run()
        accepted += checks.accepted
        dropped |= {why for why, count in checks.dropped.items() if count}
    assert accepted > 1000 * SEEDS
    assert len(dropped) == 10, f"the worlds of {SEEDS} seeds meet each check: {sorted(dropped)}"


def test_who_starts_is_read_by_all_soon() -> None:
    """Two stations had not heard each other's first HELLOs, and did not for 10 s."""
    World(1803900001).run()


def test_after_a_pause_it_may_seal_with_the_other_key_at_once() -> None:
    """It paused while a change of the key was proven: nobody reads its next session yet, whatever its key."""
    World(1796105193, rotates=True).run()


@pytest.mark.parametrize("seed", [0, 1, 43])
def test_two_daemons_with_one_number_find_each_other(seed: int) -> None:
    assert World(seed, twin=True).run().twins


def test_a_recorded_hello_behind_each_new_one_keeps_nobody_out() -> None:
    """Also where clocks were set back: then the recorded ones have the latest."""
    for seed in range(4):
        World(seed, shadow=True).run()
    with pytest.raises(Violation, match="all are believed"):
        for seed in range(TRIES):
            World(seed, SHADOWED, shadow=True).run()


def test_a_key_changes_while_all_send_and_restart() -> None:
    for seed in range(4):
        World(seed, rotates=True).run()


@pytest.mark.parametrize("name", BROKEN_KEYS)
def test_a_change_of_the_key_without_its_rule_is_caught(name: str) -> None:
    with pytest.raises(Violation):
        for seed in range(TRIES):
            World(seed, BROKEN_KEYS[name], rotates=True).run()


def test_one_seed_is_one_run() -> None:
    first, second = World(3).run(), World(3).run()
    assert (first.accepted, first.dropped, first.hellos) == (second.accepted, second.dropped, second.hellos)


@pytest.mark.parametrize("name", BROKEN)
def test_a_station_without_the_rule_is_caught(name: str) -> None:
    parts, rules = BROKEN[name]
    found = set()
    for seed in range(TRIES):
        try:
            World(seed, parts).run()
        except Violation as broken:
            found.add(broken.rule)
            if broken.rule in rules:
                return
    pytest.fail(f"none of {sorted(rules)} in {TRIES} worlds, only {sorted(found)}")
