"""What the commands of ``zenjun name`` share: the connection, exit codes, how entries are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import click

from ...daemon.directory.wire import SOCKET, SOCKET_ENV, WAITS
from ...daemon.names import DirectoryError, Done, Malformed, NoQuorum, SyncDirectory, Undecided, connect_directory_sync
from ...daemon.terminal import json_text, printable
from ...proto.service.directory.entries import Entry, Place, Target, lease_of, parse_place, place_text
from ...proto.service.directory.operations import Operation
from .common import FAILED, NO_SERVICE, USAGE, Failure, socket_option_of
from .impairments import Quantity
from .lazy import Overview

F = TypeVar("F", bound=Callable[..., Any])
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class NameGroup(Overview):
    """Turns what the directory refuses into exit codes: 2 for what was refused before it was sent, 5 without quorum, else 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DirectoryError as error:
            code = USAGE if isinstance(error, Malformed) else NO_SERVICE if isinstance(error, NoQuorum | Undecided) else FAILED
            text, word = str(error), WORDS.get(error.code, "")
            if word and " " not in text:  # what the order refuses has a name for its text
                text = word if text == error.code else f"{text}: {word}"
            raise Failure(f"{text} ({error.code})", code, "name") from error


WORDS: Final = {
    "exists": "there is such a name already",
    "version": "the name has another version: it has been changed meanwhile",
    "not-permitted": "the zone's row does not allow it to you",
    "no-name": "there is no such name",
    "alias-loop": "the aliases would make a circle",
    "full": "no room is left",
}
"""For what the directory has only a word for."""


directory_option = socket_option_of(
    SOCKET_ENV, f"Socket of zenjun-directory. [default: ${SOCKET_ENV}, beside $ZENJUN_SOCKET, or {SOCKET}]"
)
"""-s/--socket: which directory process."""
CODES: Final = "Exit codes: docs/cli.md."


def json_option(f: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")(f)


def timeout_option(f: F) -> F:
    return click.option(
        "-t", "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds to wait for an answer."
    )(f)


def wait_option(f: F) -> F:
    return click.option(
        "--wait",
        type=click.Choice(WAITS),
        default="disk",
        show_default=True,
        help="Return when it is applied here (memory), on the disks of a quorum (disk), or applied everywhere.",
    )(f)


@dataclass(frozen=True)
class Update:
    """How a command makes a change: at which process, what it waits for and for how long, and what it prints then."""

    path: str | None
    wait: str
    timeout: float
    as_json: bool

    def send(self, operation: Operation, what: str) -> None:
        """Have the operation applied, and print that: ``what``, or JSON."""
        with directory(self.path, self.timeout) as d:
            said(d.update(operation, wait=self.wait), what, self.as_json)


def update_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that changes something; the command gets them as ``update``."""

    @wraps(f)
    def run(*args: Any, path: str | None, wait: str, timeout: float, as_json: bool, **others: Any) -> Any:
        return f(*args, update=Update(path, wait, timeout, as_json), **others)

    return directory_option(timeout_option(wait_option(json_option(run))))


def version_option(f: F) -> F:
    return click.option("--if-version", "version", type=Quantity("version", _place), help="Only if it has this version.")(f)


def since_option(f: F) -> F:
    return click.option("--since", type=Quantity("place", _place), help="In place of all there is: what has changed after it.")(f)


def _place(text: str) -> Place:
    return parse_place(text)


def seconds(text: str) -> float:
    """``90``, ``90s``, ``15m``, ``2h``, ``1d``. Raises ValueError."""
    unit = UNITS.get(text[-1:], 0)
    try:
        value = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10 * 365 * 86400:
        raise ValueError(f"{text!r} is no time as 0.5s, 90s, 15m or 2h")
    return value


def for_option(f: F) -> F:
    return click.option(
        "--for", "lasts", type=Quantity("time", seconds), help="Until then: 90s, 15m, 2h. Default: until taken back."
    )(f)


@contextmanager
def directory(path: str | None, timeout: float = 10.0) -> Iterator[SyncDirectory]:
    """A connection for one command."""
    with connect_directory_sync(path, name="zenjun name", timeout=timeout) as d:
        yield d


def said(done: Done, what: str, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        click.echo(json_text({"place": place_text(done.place), **({"text": done.text} if done.text else {})}))
    else:
        click.echo(what)


def target_text(target: Target) -> str:
    """As people type it, and what it goes with."""
    text = printable(target.address)
    if target.weight != 1:
        text += f"@{target.priority}*{target.weight}"
    elif target.priority:
        text += f"@{target.priority}"
    lease = lease_of(target)
    return f"{text} (station {lease.station})" if lease else text


def entry_json(e: Entry) -> dict[str, Any]:
    """An entry with words for keys."""
    out: dict[str, Any] = {"name": e.name, "zone": e.zone, "owner": e.owner, "version": place_text(e.version)}
    if e.alias:
        return {**out, "alias": e.alias}
    out["targets"] = [
        {"address": t.address, "priority": t.priority, "weight": t.weight, **({"while": t.until} if t.until else {})}
        for t in e.targets
    ]
    out["selection"] = e.selection
    for key, value in (("meta", dict(e.meta)), ("override", list(e.override)), ("override_end", e.override_end)):
        if value:
            out[key] = value
    if e.ttl != 1:
        out["ttl"] = e.ttl
    if e.exclusive:
        out["exclusive"] = True
    if e.schedule is not None:
        s = e.schedule
        out["schedule"] = [{"when": slot.when, "addresses": list(slot.addresses)} for slot in s.slots]
        out["slot"], out["next"] = s.current, s.due
    return out


def entry_line(e: Entry) -> str:
    """An entry in one line."""
    if e.alias:
        return f"{e.name}\t→ {e.alias}"
    words = ", ".join(target_text(t) for t in e.targets) or "no address"
    if e.override:
        words += f"; switched to {', '.join(map(printable, e.override))}"
    return f"{e.name}\t{words}"
