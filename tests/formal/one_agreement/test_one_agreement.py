"""The model of one agreement: what must hold holds within its bounds, and fails when a rule is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .explore import (
    BROKEN,
    CONFIGURATIONS,
    DEADLINE_S,
    NEEDLESS,
    WORDS,
    Check,
    build,
    digest_of,
    is_large,
    missing,
    proofs,
    rules,
    run,
)

pytestmark = [pytest.mark.formal, pytest.mark.timeout(3 * DEADLINE_S)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing():
        pytest.fail(f"missing: {', '.join(missing())} (Debian: apt-get install g++)")
    return build(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_holds(program: Path, name: str) -> None:
    """Every order of the steps, within the bounds; a large search is not made again of the same text."""
    if is_large(name) and os.environ.get("ZENJUN_FORMAL_ALL") != "1":
        states, digest = proofs().get(name, (0, ""))
        assert digest == digest_of(name), (
            "not searched since it was changed: python -m tests.formal.one_agreement.explore --record"
        )
        assert states >= CONFIGURATIONS[name].states
        return
    result = run(program, CONFIGURATIONS[name].options)
    assert not result.errors, "\n".join(result.story)
    assert result.complete
    assert result.states >= CONFIGURATIONS[name].states, "something that should happen does not"


@pytest.mark.parametrize(("left_out", "name", "check"), BROKEN, ids=[f"{r.replace(' ', '+')}-{n}-{c.name}" for r, n, c in BROKEN])
def test_fails_without_the_rule(program: Path, left_out: str, name: str, check: Check) -> None:
    """Within the same bounds, only the named property asked."""
    result = run(program, f"{CONFIGURATIONS[name].options} checks={int(check)}", *left_out.split())
    assert result.errors == 1
    assert result.story[-1].startswith("  *** ") and any(said in result.story[-1] for said in WORDS[check]), result.story


def test_each_rule_and_property_is_seen_to_fail() -> None:
    """Each rule is in a failing run, or is named as one whose lack the model does not see."""
    seen = {rule for left_out, _, _ in BROKEN for rule in left_out.split()}
    assert seen.isdisjoint(NEEDLESS)
    assert seen | set(NEEDLESS) == set(rules())
    assert {check for _, _, check in BROKEN} == set(Check)


def test_the_exception_of_lost_memory_occurs(program: Path) -> None:
    """Else the check that it is asked for exactly would say nothing."""
    assert run(program, CONFIGURATIONS["lives3"].options).excused
