"""Assertions on measured times."""

from __future__ import annotations


def in_time(ok: bool, what: str) -> None:
    """A measured time has kept its bound. What a machine that others use as well has measured once proves nothing: the failure
    begins with the words by which tools/test knows what it runs once more."""
    assert ok, f"not within its time: {what}"
