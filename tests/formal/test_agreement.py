"""The models of agreement, openings and seven steps: what must hold holds, and each property fails when a rule is left out."""

from __future__ import annotations

import re
from enum import IntFlag

import pytest

from .checker import (
    AGREEMENT,
    BRINGING,
    BROKEN,
    CONFIGURATIONS,
    DEADLINE_S,
    OPENING,
    OPENING_WORDS,
    OPENINGS,
    PASTS,
    PASTS_WORDS,
    SEVEN,
    SEVEN_WORDS,
    SEVENS,
    WORDS,
    Check,
    OpeningCheck,
    PastsCheck,
    SevenCheck,
    configuration_of,
    missing,
    run,
)

WORDS_OF = {Check: WORDS, OpeningCheck: OPENING_WORDS, PastsCheck: PASTS_WORDS, SevenCheck: SEVEN_WORDS}

pytestmark = [pytest.mark.formal, pytest.mark.timeout(3 * DEADLINE_S)]


@pytest.fixture(autouse=True)
def _tools() -> None:
    if missing():
        pytest.fail(f"missing: {', '.join(missing())} (Debian: apt-get install spin gcc)")


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *OPENINGS, *BRINGING, *SEVENS])
def test_holds(name: str) -> None:
    """Every order of the steps, to the end of every run: nothing fails."""
    result = run(name)
    assert not result.errors, "\n".join(result.story)
    assert result.complete
    assert result.states >= configuration_of(name).states, "something that should happen does not"


@pytest.mark.parametrize("name", [name for name, configuration in CONFIGURATIONS.items() if configuration.cycles])
def test_every_run_ends(name: str) -> None:
    """No sequence of steps goes on for ever. With AGREED, which is asked at each end: whatever the order, all agree at last."""
    result = run(name, cycles=True)
    assert not result.errors
    assert result.complete
    assert result.states >= CONFIGURATIONS[name].states


@pytest.mark.parametrize(("broken", "name", "check"), BROKEN, ids=[f"{b}-{n}-{c.name}" for b, n, c in BROKEN])
def test_fails_without_the_rule(broken: str, name: str, check: IntFlag) -> None:
    """The same configuration that passes above, and only the named property asked."""
    result = run(name, broken, check)
    assert result.errors == 1
    assert result.story, "an error without a story"
    words = WORDS_OF[type(check)][check]
    assert any(said in line for line in result.story if line.startswith("  *** ") for said in words), result.story


def test_every_rule_and_property_is_seen_to_fail() -> None:
    """No switch of a model and no property is left without a failing run."""
    for model, own, checks in (
        (AGREEMENT, CONFIGURATIONS, Check),
        (OPENING, OPENINGS, OpeningCheck),
        (PASTS, BRINGING, PastsCheck),
        (SEVEN, SEVENS, SevenCheck),
    ):
        switches = set(re.findall(r"BREAK_[A-Z]+", model.read_text()))
        broken = [(switch, check) for switch, name, check in BROKEN if name in own]
        assert switches == {switch for switch, _ in broken}
        assert set(checks) == {check for _, check in broken}
    for _, name, check in BROKEN:
        assert check in configuration_of(name).checks, "a property that fails here must have been asked of the good model too"
