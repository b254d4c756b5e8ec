"""The models of agreement, openings and seven steps: what must hold holds, and each property fails when a rule is left out."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from enum import IntFlag
from pathlib import Path

import pytest

from . import checker
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
    digest_of,
    is_large,
    missing,
    proofs,
    run,
)

WORDS_OF = {Check: WORDS, OpeningCheck: OPENING_WORDS, PastsCheck: PASTS_WORDS, SevenCheck: SEVEN_WORDS}

pytestmark = [pytest.mark.formal, pytest.mark.timeout(3 * DEADLINE_S)]


@pytest.fixture(autouse=True)
def _tools() -> None:
    if missing():
        pytest.fail(f"missing: {', '.join(missing())} (Debian: apt-get install spin gcc)")


def is_recorded(name: str, cycles: bool) -> bool:
    """A large search of this very text has been made (checker.py), and is not to be made again. Fails if it was of another text,
    or found too little."""
    if not is_large(name) or os.environ.get("ZENJUN_FORMAL_ALL") == "1":
        return False
    proof = proofs().get((name, cycles))
    again = "python -m tests.formal.checker --record"
    assert proof is not None and proof.digest == digest_of(name, cycles), f"not searched since it was changed: {again}"
    assert proof.states >= configuration_of(name).states, "something that should happen does not"
    return True


def test_a_changed_model_has_to_be_searched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZENJUN_FORMAL_ALL", raising=False)
    assert is_recorded("tie3", cycles=True) and is_recorded("updates3", cycles=False) and not is_recorded("crash3", cycles=False)
    changed = tmp_path / "agreement.pml"
    changed.write_text(AGREEMENT.read_text() + " ")
    monkeypatch.setitem(checker.CONFIGURATIONS, "tie3", replace(CONFIGURATIONS["tie3"], model=changed))
    with pytest.raises(AssertionError, match="not searched since it was changed"):
        is_recorded("tie3", cycles=False)
    monkeypatch.setenv("ZENJUN_FORMAL_ALL", "1")
    assert not is_recorded("updates3", cycles=False)


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *OPENINGS, *BRINGING, *SEVENS])
def test_holds(name: str) -> None:
    """Every order of the steps, to the end of every run: nothing fails."""
    if is_recorded(name, cycles=False):
        return
    result = run(name)
    assert not result.errors, "\n".join(result.story)
    assert result.complete
    assert result.states >= configuration_of(name).states, "something that should happen does not"


@pytest.mark.parametrize("name", [name for name, configuration in CONFIGURATIONS.items() if configuration.cycles])
def test_every_run_ends(name: str) -> None:
    """No sequence of steps goes on for ever. With AGREED, which is asked at each end: whatever the order, all agree at last."""
    if is_recorded(name, cycles=True):
        return
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
