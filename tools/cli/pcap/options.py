"""Options that the commands of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ....proto import wire

F = TypeVar("F", bound=Callable[..., Any])


def ethertype(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Callback: the EtherType that a text says."""
    try:
        value = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write it like 0x88b5") from None
    if not 0x0600 <= value <= 0xFFFF:
        raise click.BadParameter(f"{text} is not in 0x0600..0xffff")
    return value


def ethertype_option(f: F) -> F:
    """--ethertype: what frames of zenjun bear."""
    return click.option(
        "--ethertype",
        metavar="NUMBER",
        default=f"{wire.ETHERTYPE:#06x}",
        show_default=True,
        callback=ethertype,
        help="EtherType of the PDUs.",
    )(f)
