"""Programs that say goodbye, and go before they are answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from zenjun.daemon.sessions import Sessions


def leaving(*slots: int) -> tuple[Sessions, list[bool]]:
    """Sessions with programs at these slots; what the engine is told of level ack."""
    told: list[bool] = []
    by_slot = {slot: SimpleNamespace(slot=slot, bye=False) for slot in slots}
    sessions: Any = object.__new__(Sessions)
    sessions.connections = SimpleNamespace(by_slot=by_slot, remove=lambda c: by_slot.pop(c.slot))
    sessions._want_ack = told.append
    sessions._dp = SimpleNamespace(client_remove=lambda *_a, **_k: None, client_cut_off=lambda *_a: None)
    sessions._groups = SimpleNamespace(leave_all=lambda _c: None)
    sessions._services = SimpleNamespace(forget=lambda *_a, **_k: None, waiting=False)
    return sessions, told


@pytest.mark.parametrize("first", [1, 2])
def test_nobody_waits_for_level_ack_when_who_said_goodbye_has_gone_without_an_answer(first: int) -> None:
    sessions, told = leaving(1, 2, 3)
    connections = dict(sessions.connections.by_slot)
    for slot in (1, 2):
        sessions._on_bye(connections[slot])
    assert told[-1]
    assert sessions.waiting

    sessions._on_end(connections[first], 0, 0)
    assert told[-1]

    sessions._on_end(connections[3 - first], 0, 0)
    assert not sessions.waiting  # so nobody looks at it again
    assert not told[-1]
