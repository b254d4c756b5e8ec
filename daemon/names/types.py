"""What the directory answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...proto.service.directory.entries import Entry, Place, Target, parse_place
from .errors import Malformed

Addresses: TypeAlias = Sequence[str | Target]
"""As text ``ADDRESS[@PRIORITY[*WEIGHT]]``, or as targets."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The addresses of a name, in the order in which to try them.

    name, path:  the name that has them, and the names on the way to it (aliases).
    version:     place of the name's last change; place: the place of the copy that answered.
    stale_ms:    time for which that copy may have missed changes without knowing; 0: it has not.
    """

    addresses: tuple[str, ...]
    name: str
    path: tuple[str, ...]
    version: Place
    place: Place
    stale_ms: int = 0
    meta: dict[str, str] = field(default_factory=dict)
    ttl: int = 1
    zone: str = ""
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The answer as it came."""


@dataclass(frozen=True, slots=True)
class Done:
    """An update that was applied, and its place; text: the address that ``take`` gave."""

    place: Place
    text: str = ""


@dataclass(frozen=True, slots=True)
class NameChange:
    """A change that a watch reports. kind: ``changed`` (entry None: the name was removed), ``listed`` (all entries have been
    reported), ``gap`` (states were skipped; the latest ones follow)."""

    kind: str
    place: Place
    name: str = ""
    entry: Entry | None = None


def answer_of(raw: dict[str, Any]) -> Answer:
    return Answer(
        tuple(raw["addresses"]),
        raw["name"],
        tuple(raw["path"]),
        parse_place(raw["version"]),
        parse_place(raw["place"]),
        int(raw.get("stale_ms", 0)),
        dict(raw["meta"]),
        int(raw["ttl"]),
        str(raw["zone"]),
        raw,
    )


def target_of(text: str | Target) -> Target:
    """``ADDRESS[@PRIORITY[*WEIGHT]]``. An ``@`` that no number follows belongs to the address. Raises Malformed."""
    if isinstance(text, Target):
        return text
    address, at, rest = text.rpartition("@")
    priority, star, weight = rest.partition("*")
    if not at or not priority.isdigit() or (star and not weight.isdigit()):
        return Target(text)
    if int(priority) > 65535 or (star and int(weight) > 65535):
        raise Malformed(f"{text}: priority and weight are 0 to 65535")
    return Target(address, int(priority), int(weight) if star else 1)


def targets_of(addresses: Addresses) -> tuple[Target, ...]:
    """Sorted, as a message has them. Raises Malformed for an address that is named twice."""
    targets = [target_of(a) for a in ([addresses] if isinstance(addresses, str) else addresses)]
    if len({t.address for t in targets}) != len(targets):
        raise Malformed("an address is named twice")
    return tuple(sorted(targets, key=lambda t: t.key))
