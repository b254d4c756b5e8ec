"""Text scenarios, and the frame counts the papers claim."""

from __future__ import annotations

from pathlib import Path

import pytest
from zenjun.proto.core import Fault

from .scenario import SEPARATOR, Scenario, carry_out
from .violation import Violation

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    there, now = carry_out(path)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
        return
    assert SEPARATOR in there, f"{path.name} expects nothing yet: pytest --rewrite"
    assert now == there, "run pytest --rewrite and explain the difference in the commit"


BROKEN: list[tuple[str, str | Fault, str]] = [
    ("two-join-apart", "shrinking_votes", "instances"),
    ("ends-while-removing", Fault.EARLY_REMOVAL, "claims"),
    ("ends-while-removing", Fault.EARLY_REMOVAL, "total_order"),
    ("ends-while-removing", Fault.LATE_LEVELS, "claims"),
    ("ends-while-joining", Fault.EAGER_JOINER, "claims"),
    ("ends-while-joining", Fault.EAGER_JOINER, "place"),
]
"""What a scenario shows when a rule is broken, too rarely met by chance: the rule, and a checker that sees it alone."""


@pytest.mark.parametrize(("name", "rule", "checker"), BROKEN)
def test_scenario_shows_the_broken_rule(name: str, rule: str | Fault, checker: str) -> None:
    path = Path(__file__).parent / "scenarios" / f"{name}.txt"
    with pytest.raises(Violation) as found:
        if isinstance(rule, Fault):
            _ = carry_out(path, (), int(rule), (checker,))
        else:
            _ = carry_out(path, (rule,), 0, (checker,))
    assert found.value.checker == checker


def test_a_joiner_that_does_not_hear_a_voter_needs_the_others() -> None:
    """The rule that members repeat the votes of all for who asks again, broken: station 3 never gets in."""
    _, now = carry_out(Path(__file__).parent / "scenarios" / "rejoins-half-heard.txt", ("resend_own",))
    assert now.splitlines()[-4:][2] == "  s3: in no instance"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("no-memory", ["ordered 31 preack 31 ack 31, 303 messages"] * 2 + ["ordered 1 preack 1 ack 1, 0 messages"]),
        ("no-memory-at-the-end", ["in no instance"] * 3),
    ],
)
def test_without_the_rule_on_memory_all_wait_for_ever(name: str, shown: list[str]) -> None:
    """What ``show`` prints after seconds in which one station has no memory."""
    _, now = carry_out(Path(__file__).parent / "scenarios" / f"{name}.txt", ("wait_for_memory",))
    lines = now.split(SEPARATOR)[1].split("> show\n")[2].splitlines()[:3]
    assert [line.split(": ", 1)[1] for line in lines] == shown


@pytest.mark.parametrize("n", range(2, 9))
def test_lone_data_costs_2n_frames_to_ack_and_n_to_preack(n: int) -> None:
    """TO protocol, number of PDUs: best case 1 + (n - 1) + n to level ack, one less if confirmations are serialised.

    To preack n. Then nothing but heartbeats.
    """
    s = Scenario()
    s.command(f"cluster stations={n}")
    s.command("send station=1 size=64")
    assert s.command("count until=preack") == [f"{n} frames to preack"]
    s = Scenario()
    s.command(f"cluster stations={n} need_ack=1")
    s.command("send station=1 size=64 ack")
    assert s.command("count until=ack")[0] in (f"{2 * n} frames to ack", f"{2 * n - 1} frames to ack")
    assert s.command("quiet 900ms") == ["0 frames besides heartbeats"]


@pytest.mark.parametrize("n", range(2, 9))
def test_lone_data_without_need_ack_falls_silent_after_preack(n: int) -> None:
    s = Scenario()
    s.command(f"cluster stations={n}")
    s.command("send station=1 size=64")
    s.command("count until=preack")
    assert s.command("quiet 900ms") == ["0 frames besides heartbeats"]


def test_zero_window_never_blocks_a_confirm() -> None:
    """Flow: station 1 may send no more (station 2's acks do not reach it), yet it confirms station 3's data."""
    s = Scenario()
    s.command("cluster stations=3 window=1 slots=4")
    s.command("cut from=2 to=1")
    s.command("send station=1 size=64 count=50")
    s.command("run 3ms")
    sim = s.sim
    assert sim is not None
    window_closed = sim.stations[0].queues[0]
    assert window_closed, "station 1 has messages it may not send"
    s.command("send station=3 size=64")
    lines = s.command("run 1ms")
    assert any(" s1 CONFIRM" in line for line in lines), lines
    s.command("heal")
    s.command("run 2s")
    assert not window_closed
    assert {len(stay.records) for stay in sim.facts.stays if stay is not None} == {51}
