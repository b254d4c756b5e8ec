"""Cluster events (docs/client-protocol.md, EVENT) in words, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...daemon.terminal import printable


def describe(event: Mapping[str, Any], hosts: Mapping[int, str] | None = None) -> str:
    """One line for an event as the daemon sent it. hosts: names of stations, for events that bring only their numbers."""
    hosts = {**(hosts or {}), **{m[0]: m[2] for m in _list(event.get("members")) if isinstance(m, (list, tuple)) and len(m) > 2}}
    name = str(event.get("event", ""))
    who = stations(event.get("members"), hosts)
    instance = f"instance {event.get('instance', '-')}"
    if name == "view":
        return "; ".join([f"{instance}: {who}", *changes(event, hosts)])
    if name == "open":
        how = "this station has been admitted" if event.get("joined") is True else "the cluster is open"
        return f"{how}, {instance}" + (f": {who}" if who else "")
    if name == "reopened":
        how = "this station has been admitted again" if event.get("joined") is True else "the cluster was opened again"
        return f"{how}, {instance}" + (f": {who}" if who else "") + _cost(event)
    if name == "blocked":
        waits = ", ".join(f"station {w.get('station')} ({w.get('reason')})" for w in _list(event.get("stations")))
        lost = event.get("quorum") is False
        return f"the cluster waits for {waits or 'others'}" + (
            "; there is no quorum, nothing is sent or delivered" if lost else ""
        )
    if name in ("expelled", "closed"):
        reason = f" ({event['reason']})" if event.get("reason") else ""
        what = "the others continue without this station" if name == "expelled" else "this station is in no instance any more"
        return f"{what}{reason}{_cost(event)}"
    return {
        "unblocked": "the cluster no longer waits for a station",
        "fenced": "the order here differs from another station's: nothing more is delivered",
        "closing": "the daemon is stopping",
    }.get(name, f"event {name}")


def stations(members: object, hosts: Mapping[int, str]) -> str:
    """Stations of a list whose elements are numbers, or lists of number, incarnation and host: ``1 node-a, 2 node-b``."""
    return ", ".join(_station(m, hosts) for m in _list(members))


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def changes(event: Mapping[str, Any], hosts: Mapping[int, str]) -> Iterable[str]:
    """The members that joined and left with a view."""
    for word in ("joined", "left"):
        if who := stations(event.get(word), hosts):
            yield f"{word} {who}"


def _cost(event: Mapping[str, Any]) -> str:
    """What the end of an instance costs the program that gets the event."""
    undecided = event.get("undecided")
    words = f"; {undecided} own messages are undecided" if isinstance(undecided, int) and undecided > 0 else ""
    return words + ("; what was delivered at level ordered only may be unknown to the others" if event.get("unsafe") else "")


def _station(member: object, hosts: Mapping[int, str]) -> str:
    if isinstance(member, (list, tuple)) and member:
        host = member[2] if len(member) > 2 else hosts.get(member[0])
        return f"{member[0]} {printable(host or '')}".rstrip()
    return f"{member} {printable(hosts.get(member) or '')}".rstrip() if isinstance(member, int) else printable(member)
