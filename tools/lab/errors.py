"""What can go wrong in a lab, as exceptions; the command line turns each into its own exit code."""

from __future__ import annotations

from typing import Any


class LabError(Exception):
    """An operation on a lab failed; the text is one line for a person."""

    kind = "failed"


class LabNotFound(LabError):
    """There is no such lab, it is not running, or it has no such station."""

    kind = "not-found"


class LabUnsupported(LabError):
    """This machine lacks a kernel feature, a right or a program; the text names it and what would help."""

    kind = "unsupported"


class LabTimeout(LabError):
    """A condition was not met before its deadline."""

    kind = "timeout"


_KINDS: dict[str, type[LabError]] = {c.kind: c for c in (LabError, LabNotFound, LabUnsupported, LabTimeout)}


def from_kind(kind: str, text: str) -> LabError:
    """The exception that another process reported as (kind, text); an unknown kind becomes a plain LabError."""
    return _KINDS.get(kind, LabError)(text)


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply of another lab process without its ``ok``, or the error it reports as an exception."""
    if not reply.get("ok"):
        raise from_kind(str(reply.get("kind")), str(reply.get("error")))
    return {key: value for key, value in reply.items() if key != "ok"}
