"""The performance snapshot is exact; a change of behaviour shows here, and the commit says why it is right."""

from __future__ import annotations

import pytest

from . import snapshot


def test_performance_snapshot(request: pytest.FixtureRequest) -> None:
    text = snapshot.make()
    if request.config.getoption("--rewrite"):
        snapshot.FILE.write_text(text)
        return
    assert text == snapshot.FILE.read_text(), (
        "pytest --rewrite tests/sim/test_snapshot.py, and explain the difference in the commit"
    )
