"""``zenjun key``: the keys of a cluster, and their change while it runs."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...daemon import config as options
from ...daemon import key as keys
from ...daemon.client.errors import NotReachable
from ...daemon.client.sync import SyncConnection
from ...daemon.keyring import add_to, retired_in, take_from
from ...daemon.manager import adapted
from ...daemon.store import Store, StoreError
from ...daemon.terminal import json_text
from ...proto.errors import UsageError
from .common import FAILED, OK, TIMED_OUT, Failure, daemon, say, socket_option
from .lazy import Overview

timeout_option = click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds until it must be done."
)
absent_option = click.option(
    "--without-absent", is_flag=True, help="Although stations are away, which may not have the newer key."
)
config_option = click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="The daemon's configuration; default as zenjund's."
)
file_option = click.option(
    "--key-file", "key_path", type=click.Path(path_type=Path), help="The station's key file; default: the configuration's."
)


@click.group(
    cls=Overview, short_help="Keys of the cluster: make, add, list, rotate, retire.", epilog="Step by step: docs/keys.md."
)
def key() -> None:
    """Look after the keys under which the stations of a cluster prove who they are.

    \b
    A change while the cluster runs:
      zenjun key new > new.key              once; take it to all stations by a safe way
      zenjun key add new.key                at each station
      zenjun key rotate                     at one station
      zenjun key retire 1a2b3c4d            at one station, when all have come back
    """


@key.command(epilog="What a key does, and what not: docs/protocol.md.")
def new() -> None:
    """Print a new random key of 32 bytes.

    \b
    Example:
      umask 077; zenjun key new > new.key
    """
    click.echo(keys.new_text(keys.LONG_KEY_BYTES), nl=False)


@key.command(epilog="Exit codes: docs/cli.md.")
@click.argument("file", type=click.File("r"))
@file_option
@config_option
@timeout_option
@socket_option
def add(file: Any, key_path: Path | None, config_path: Path | None, timeout: float, path: str | None) -> int:
    """Add the key in FILE (-: standard input) to this station: to its key file, and to what its daemon reads now.

    Nothing is sealed with it before zenjun key rotate. A daemon that does not run reads it when it starts.

    \b
    Examples:
      zenjun key add new.key
      ssh station2 zenjun key add - < new.key
    """
    text = file.read(4096)
    target = _key_file(key_path, config_path)
    try:
        with daemon(path, "key add", timeout, wait=0.0) as connection:
            if connection.status().get("sessions") is None:
                raise Failure(
                    "the daemon here runs without a key of 64 digits, so nothing was done: a cluster gets its first one with all "
                    "stations stopped (docs/keys.md)",
                    FAILED,
                    "key add",
                )
            _add_to_file(target, text, () if key_path else _retired(config_path))
            say(connection.key("add", text.split()[0]))
    except NotReachable:
        _add_to_file(target, text, () if key_path else _retired(config_path))
        say("no daemon runs here: it reads the file when it starts")
    return OK


@key.command("list", epilog="Exit codes: docs/cli.md.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@timeout_option
@socket_option
def list_keys(as_json: bool, timeout: float, path: str | None) -> int:
    """Print which keys the stations read, and which one each seals with (*), as this station's daemon knows it.

    \b
    Examples:
      zenjun key list
      zenjun key list --json | jq .stations
    """
    with daemon(path, "key list", timeout) as connection:
        status = connection.status()
        own = connection.welcome.station
    known = _known(status, own)
    if as_json:
        click.echo(json_text({"stations": {str(s): {"key": sends, "keys": reads} for s, (sends, reads) in known.items()}}))
        return OK
    for station, (sends, reads) in sorted(known.items()):
        click.echo(f"{station}\t" + (" ".join(f"{'*' if i == sends else ''}{i}" for i in reads) or "-"))
    return OK


@key.command(epilog="Exit codes: docs/cli.md.")
@click.argument("id", metavar="ID", required=False, default="")
@absent_option
@timeout_option
@socket_option
def rotate(id: str, without_absent: bool, timeout: float, path: str | None) -> int:
    """Let all stations seal with the key ID from now on; without ID, with the newest one of this station.

    It is refused while a member does not have the key, and while a station is away: that one could not come back unless it has
    the key by then. Data flows on meanwhile.

    \b
    Examples:
      zenjun key rotate
      zenjun key rotate 1a2b3c4d --without-absent
    """
    deadline = time.monotonic() + timeout
    with daemon(path, "key rotate", timeout) as connection:
        own = connection.welcome.station
        wanted = id.lower() or _known(connection.status(), own)[own][1][-1]
        say(connection.key("rotate", id, without_absent=without_absent))
        _until(connection, deadline, lambda sends, reads: sends == wanted, f"not all members seal with key {wanted}")
    say(f"all members seal with key {wanted}")
    return OK


@key.command(epilog="Exit codes: docs/cli.md.")
@click.argument("id", metavar="ID")
@absent_option
@file_option
@config_option
@timeout_option
@socket_option
def retire(
    id: str, without_absent: bool, key_path: Path | None, config_path: Path | None, timeout: float, path: str | None
) -> int:
    """Let no station read the key ID any more, nor after a restart, and take it out of this station's key file.

    It is refused while a member seals with it. The other stations ignore it where it is still in their files.

    \b
    Example:
      zenjun key retire 1a2b3c4d
    """
    deadline = time.monotonic() + timeout
    with daemon(path, "key retire", timeout) as connection:
        say(connection.key("retire", id, without_absent=without_absent))
        _until(connection, deadline, lambda sends, reads: id.lower() not in reads, f"not all members have retired key {id}")
    say(f"no member reads key {id} any more")
    try:
        target = _key_file(key_path, config_path)
        if take_from(target, int(id, 16)):
            say(f"it is no longer in {target}")
    except (UsageError, Failure, OSError) as error:
        say(f"it is still in the key file: {error}")
    return OK


@key.command(epilog="Exit codes: docs/cli.md.")
@config_option
def forget(config_path: Path | None) -> int:
    """Let this station start without a key, or with one of 16 bytes, although it was in the cluster with a longer one.

    Its daemon must be stopped, and those of all other stations too. As the daemon's user, or root. With instances of the unit,
    STATE_DIRECTORY names the state folder, as systemd does.

    \b
    Examples:
      zenjun key forget --config /etc/zenjun/zenjund.toml
      STATE_DIRECTORY=/var/lib/zenjun/blue zenjun key forget --config /etc/zenjun/blue.toml
    """
    config = adapted(_config(config_path), os.environ, "")
    store = Store(Path(config.station.state_dir), config.cluster.name, config.station.id)
    try:
        had = store.open().ran
        if had is None or not had.options.get("key"):
            text = f"station {config.station.id} was in no cluster with a key, as {config.station.state_dir} has it"
            raise Failure(text, FAILED, "key forget")
        store.forget_key()
    except StoreError as error:
        raise Failure(str(error), FAILED, "key forget") from None
    finally:
        store.close()
    say(f"station {config.station.id} may start without a key")
    return OK


# ---- helpers


def _add_to_file(target: Path, text: str, retired: Sequence[int]) -> None:
    try:
        number = add_to(target, text, retired)
    except UsageError as error:
        raise Failure(str(error), FAILED, "key add") from None
    except OSError as error:
        raise Failure(f"{target} cannot be written: {error.strerror}", FAILED, "key add") from None
    say(f"key {number:08x} is in {target}")


def _config(path: Path | None) -> options.Config:
    try:
        return options.load(path)
    except options.ConfigError as error:
        other = "" if options.find(path).exists() else "; --config FILE names another"
        raise Failure(f"{error}{other}", FAILED, "key") from None


def _key_file(given: Path | None, config_path: Path | None) -> Path:
    """Where the units expect it, if the configuration names none: beside it, with the suffix .key."""
    if given is not None:
        return given
    config = _config(config_path)
    return Path(config.station.key_file) if config.station.key_file else Path(config.file).with_suffix(".key")


def _retired(config_path: Path | None) -> list[int]:
    config = _config(config_path)
    return retired_in(Store(Path(config.station.state_dir), config.cluster.name, config.station.id).path.parent)


def _known(status: dict[str, Any], own: int) -> dict[int, tuple[str, list[str]]]:
    """By station: the key that it seals with, and those that it reads."""
    sessions = status.get("sessions")
    if not isinstance(sessions, dict):
        raise Failure("this station has no key of 64 hexadecimal digits", FAILED, "key")
    out = {own: (str(sessions["key"]), list(sessions["keys"]))}
    for station, about in sessions["stations"].items():
        out[int(station)] = (str(about["key"] or ""), list(about["keys"]))
    return out


def _until(connection: SyncConnection, deadline: float, holds: Any, otherwise: str) -> None:
    """Wait until it holds of the keys of every member."""
    own = connection.welcome.station
    while True:
        status = connection.status()
        known = _known(status, own)
        members = [int(m[0]) for m in status.get("members") or ()]
        if all(holds(*known.get(m, ("", []))) for m in members):
            return
        if (left := deadline - time.monotonic()) <= 0:
            raise Failure(f"{otherwise} yet; zenjun key list shows which", TIMED_OUT, "key")
        select.select([connection], [], [], min(left, 0.05))
        connection.serve(0.0)
