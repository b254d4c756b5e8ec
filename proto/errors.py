"""Three kinds of wrong: a frame we reject is a counter in the core (``enum zj_drop``), a caller's misuse is ``UsageError``,
a broken invariant stops the daemon."""

from __future__ import annotations


class UsageError(Exception):
    """The caller (a client, an operator, a configuration) asked for what cannot be; the text is for people."""


class InvariantError(RuntimeError):
    """Something that cannot happen did: a bug here, never a peer's doing."""


def invariant(condition: bool, why: str) -> None:
    """Raise ``InvariantError(why)`` unless the condition holds; unlike ``assert`` it stays on under ``-O``."""
    if not condition:
        raise InvariantError(why)
