"""``zenjun config``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...daemon import config as options
from ...daemon import key as keys
from .common import FAILED, OK
from .lazy import Overview


@click.group(cls=Overview, short_help="Check a configuration file, or print an example.", epilog="All options: docs/config.md.")
def config() -> None:
    """Look after the daemon's configuration.

    \b
    Examples:
      zenjun config example > zenjund.toml
      zenjun config check zenjund.toml
      zenjun config key > zenjun.key
    """


@config.command(epilog="Exit codes: 0 good, 1 something is wrong.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print every option with its value as JSON.")
def check(file: Path | None, as_json: bool) -> int:
    """Check FILE without starting anything; default $ZENJUN_CONFIG, else /etc/zenjun/zenjund.toml.

    Every mistake is one line with file, line and what is allowed. The fingerprint must be the same at all stations of a cluster.

    \b
    Examples:
      zenjun config check zenjund.toml
      zenjun config check --json | jq .cluster.window_frames
    """
    try:
        c = options.load(file)
    except options.ConfigError as error:
        click.echo(str(error), err=True)
        return FAILED
    wrong, unseen = keys.complaint(Path(c.station.key_file)) if c.station.key_file else ("", "")
    if wrong:
        click.echo(f"{c.file}: station.key_file: {wrong}", err=True)
        return FAILED
    if unseen:
        click.echo(unseen, err=True)
    if as_json:
        click.echo(
            json.dumps({**c.values(), "fingerprint": c.fingerprint, "window": c.cluster.window}, indent=2, ensure_ascii=False)
        )
    else:
        click.echo(
            f"{c.file}: good. Cluster {c.cluster.name}, station {c.station.id} of {c.cluster.stations} "
            f"on {', '.join(c.interfaces.values())}; "
            f"fingerprint {c.fingerprint:08x}"
        )
        if c.station.id not in c.cluster.roster:
            text = f"Station {c.station.id} is not in the roster of this file: it waits until it is added"
            click.echo(f"{text} (zenjun cluster add).")
    return OK


@config.command(epilog="All options: docs/config.md.")
def example() -> None:
    """Print a configuration file with every option explained.

    \b
    Example:
      zenjun config example | sudo tee /etc/zenjun/zenjund.toml
    """
    click.echo(options.example(), nl=False)


@config.command(epilog="What a key does, and what not: docs/service.md, docs/protocol.md.")
@click.option(
    "--bytes", "size", type=click.Choice(["16", "32"]), default="16", help="16: frames are sealed; 32: they prove their sender."
)
def key(size: str) -> None:
    """Print a new random key for a cluster. All its stations need the same file, which only the daemon's user may read.

    \b
    Examples:
      umask 077; zenjun config key > /etc/zenjun/zenjund.key
      umask 077; zenjun config key --bytes 32 > /etc/zenjun/zenjund.key
    """
    click.echo(keys.new_text(int(size)), nl=False)
