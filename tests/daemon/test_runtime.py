"""The turn of the daemon: what it takes for a pause of its process."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from zenjun.daemon import runtime as module
from zenjun.daemon.datapath import Want
from zenjun.daemon.runtime import PAUSE_NS, Runtime

MS = 1_000_000
S = 1000 * MS


def test_a_daemon_that_is_busy_for_long_was_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work without end, of which each turn leaves some: it took another session in every turn, with frames lost each time. One
    that was stopped for a second is seen."""
    clock = itertools.count(S, MS // 4)
    monkeypatch.setattr(module, "now_ns", lambda: next(clock))
    away: list[int] = []
    busy = Runtime.__new__(Runtime)
    about = {
        "_trusting": SimpleNamespace(woke=lambda now, planned: away.append(now - planned)),
        "_dp": SimpleNamespace(turn=lambda _deadline: SimpleNamespace(want=Want.CLIENT, now=next(clock)), planned_ns=S),
        "_clients": SimpleNamespace(waiting=False),
        "_done": SimpleNamespace(done=lambda: False),
        "_deadline": lambda: 1 << 62,
        "_serve": lambda _turn: None,
    }
    for name, value in about.items():
        monkeypatch.setattr(busy, name, value, raising=False)
    while next(clock) < 4 * S:
        assert busy._rounds(), "there is more"
    assert len(away) > 100 and max(away) < PAUSE_NS // 10, max(away)
    clock = itertools.count(6 * S, MS // 4)
    busy._rounds()
    assert away[-1] > S


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
