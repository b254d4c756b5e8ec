"""The turn of the daemon: what it takes for a pause of its process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from zenjun.daemon import runtime as module
from zenjun.daemon.__main__ import STAY_NS
from zenjun.daemon.datapath import Want
from zenjun.daemon.runtime import PAUSE_NS, ROUNDS_NS, Runtime
from zenjun.daemon.stopping import Phase

MS = 1_000_000
S = 1000 * MS


def serving(trusting: Any, turn: Callable[[int, int], Any], *, began_ns: int) -> Runtime:
    """Of a runtime, what makes rounds. turn, began_ns: the data path's."""
    made = Runtime.__new__(Runtime)
    vars(made).update(
        _trusting=trusting,
        _dp=SimpleNamespace(turn=turn, planned_ns=S, began_ns=began_ns),
        _clients=SimpleNamespace(waiting=False),
        _done=SimpleNamespace(done=lambda: False),
        _deadline=lambda: 1 << 62,
        _serve=lambda _turn: None,
    )
    return made


def test_a_daemon_that_is_busy_for_long_was_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work without end, of which each turn leaves some: it took another session in every turn, with frames lost each time. One
    that was stopped for a second is seen."""
    clock = itertools.count(S, MS // 4)
    monkeypatch.setattr(module, "now_ns", lambda: next(clock))
    away: list[int] = []
    trusting = SimpleNamespace(woke=lambda now, planned: away.append(now - planned))
    busy = serving(trusting, lambda *_: SimpleNamespace(want=Want.CLIENT, now=next(clock)), began_ns=0)
    while next(clock) < 4 * S:
        assert busy._rounds(), "there is more"
    assert len(away) > 100 and max(away) < PAUSE_NS // 10, max(away)
    clock = itertools.count(6 * S, MS // 4)
    busy._rounds()
    assert away[-1] > S


@pytest.mark.parametrize("called", [True, False])
def test_a_callback_of_the_loop_is_bounded_with_what_c_has_done_in_it(called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C had waited for 8 ms before Python had its own 8 ms, whose last turn could wait for as long again: signals and programs
    that connect were 24 ms late."""
    clock = [S]
    made: list[tuple[int, int]] = []

    def turn(_deadline: int, until: int) -> SimpleNamespace:
        """Waits as the data path does, and wants something; the first one has been made in C."""
        if not (called and not made):
            clock[0] = max(clock[0] + MS // 4, min(clock[0] + STAY_NS, until))
        made.append((clock[0], until))
        return SimpleNamespace(want=Want.CLIENT, now=clock[0])

    monkeypatch.setattr(module, "now_ns", lambda: clock[0])
    runtime = serving(None, turn, began_ns=S if called else 0)
    clock[0] += 5 * MS if called else 0
    assert runtime._rounds(), "there is more"
    assert made[-1][0] - S <= ROUNDS_NS + MS // 4, made
    assert {until for _, until in made} == {S + ROUNDS_NS if called else 0}


def test_what_is_left_of_a_slice_is_no_work_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load each turn leaves some. Once Python had been asked for anything it stayed in, and served every slice."""
    wants = [Want.DEADLINE, Want.MORE, Want.MORE]
    left = iter(wants)
    served: list[int] = []
    alone: list[bool] = []
    busy = Runtime.__new__(Runtime)
    about = {
        "_trusting": None,
        "_again": False,
        "stopping": SimpleNamespace(phase=Phase.RUNNING),
        "_dp": SimpleNamespace(
            turn=lambda *_: SimpleNamespace(want=next(left), now=S), planned_ns=S, began_ns=0, alone=alone.append
        ),
        "_clients": SimpleNamespace(waiting=False),
        "_done": SimpleNamespace(done=lambda: False),
        "_deadline": lambda: 1 << 62,
        "_serve": lambda turn: served.append(turn.want),
    }
    monkeypatch.setattr(module, "now_ns", lambda: S)
    for name, value in about.items():
        monkeypatch.setattr(busy, name, value, raising=False)
    assert not busy._rounds(), "the descriptor is readable, and C takes it from here"
    assert served == [Want.DEADLINE] and list(left) == [Want.MORE] and alone == [True]


@pytest.mark.parametrize("begun", [False, True])
def test_what_nobody_judges_by_is_taken(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bus, and before the first session: LINKS, PROBEs and pairs that another station begins ended every turn at once."""
    taken: list[str] = []
    said = iter([(2, 0, b"")])
    serving = Runtime.__new__(Runtime)
    about = {
        "_clients": SimpleNamespace(
            waiting=False, multicast=SimpleNamespace(on_pairs=lambda: taken.append("pairs"), on_time=lambda now: None)
        ),
        "_trusting": None,
        "_judging": None,
        "sizing": None,
        "has_begun": begun,
        "_chores_ns": 1 << 62,
        "_chored_ns": S,
        "_applier": SimpleNamespace(apply=lambda effects: None),
        "_engine": SimpleNamespace(poll=lambda now, status: []),
        "stopping": SimpleNamespace(advance=lambda now: None),
        "_dp": SimpleNamespace(
            flush=lambda: None,
            links_said=lambda: next(said, None),
            links_doubtful=lambda: taken.append("doubtful"),
            links_asked=lambda: taken.append("asked"),
            links_large=lambda: taken.append("large"),
        ),
    }
    for name, value in about.items():
        monkeypatch.setattr(serving, name, value, raising=False)
    serving._serve(SimpleNamespace(now=S, want=Want.SAID | Want.PAIR, status=0))  # type: ignore[arg-type]
    assert taken == ["pairs", "doubtful", "asked", "large"] and next(said, None) is None


def resting(looks_ns: int, active_ns: int = 0, *, restless: bool = False) -> tuple[Runtime, SimpleNamespace]:
    """A daemon whose engine looks at its members at this time and every two seconds after it."""
    daemon = Runtime.__new__(Runtime)
    engine = SimpleNamespace(at=looks_ns)
    engine.own_deadline_ns = lambda: engine.at
    about = {
        "_engine": engine,
        "has_begun": True,
        "_chores_ns": 11 * S,
        "_chored_ns": 10 * S,
        "_dp": SimpleNamespace(active_ns=active_ns),
        "_trusting": None,
        "_judging": None,
        "_clients": SimpleNamespace(multicast=SimpleNamespace(has_links=False), awaits_hello=restless),
        "_journal": SimpleNamespace(holds_back=False),
        "_links": SimpleNamespace(are_open=True),
        "_announcer": SimpleNamespace(instance=1),
    }
    for name, value in about.items():
        setattr(daemon, name, value)
    return daemon, engine


def woken(daemon: Runtime, engine: SimpleNamespace, until: int) -> list[tuple[int, bool, bool]]:
    """When Python runs, and for what: chores, look."""
    out = []
    while (now := min(daemon._chores_ns, engine.at)) < until:
        chores, look = daemon._chores_due(now, Want.DEADLINE), engine.at <= now
        engine.at = now + 2 * S if look else engine.at
        out.append((now, chores, look))
    return out


@pytest.mark.parametrize("offset", range(0, 2000, 70))
def test_at_rest_python_runs_once_for_chores_and_look(offset: int) -> None:
    daemon, engine = resting(10 * S + offset * MS)
    runs = woken(daemon, engine, 30 * S)
    at = [now for now, chores, _ in runs if chores]
    assert all(S <= b - a <= 2 * S for a, b in itertools.pairwise([10 * S, *at]))
    late = [(chores, look) for now, chores, look in runs if now > 16 * S]
    assert set(late) == {(True, True)} and len(late) in (6, 7)


@pytest.mark.parametrize(("active", "restless"), [(1 << 62, False), (0, True)])
def test_chores_are_done_every_second_while_something_goes_on(active: int, restless: bool) -> None:
    daemon, engine = resting(10 * S + 300 * MS, active, restless=restless)
    at = [now for now, chores, _ in woken(daemon, engine, 30 * S) if chores]
    assert all(b - a == S for a, b in itertools.pairwise(at))


@pytest.mark.parametrize("want", [Want.GROUP, Want.CLIENT, Want.PAIR])
def test_what_was_said_at_rest_waits_a_second_for_chores_at_most(want: Want) -> None:
    daemon, engine = resting(10 * S)
    woken(daemon, engine, 20 * S)
    last = daemon._chored_ns
    assert daemon._chores_ns == last + 2 * S
    assert not daemon._chores_due(last + S // 4, Want.SAID) and daemon._chores_ns == last + 2 * S
    assert not daemon._chores_due(last + S // 2, want) and daemon._chores_ns == last + S
    assert daemon._chores_due(last + S, Want.DEADLINE)
