"""The options by which commands of the lab take impairments, with the units in which people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ..lab import impair as units

F = TypeVar("F", bound=Callable[..., Any])


class Quantity(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """A value as text, read by one of the functions of ``impair`` or another that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or the complaint about it as wrong usage."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SHARE: Final = Quantity("share", units.parse_fraction)
TIME: Final = Quantity("time", units.parse_time_ns)
RATE: Final = Quantity("rate", units.parse_rate_bit)
BURST: Final = Quantity("burst", units.parse_burst)

_OPTIONS: Final = (
    click.option("--loss", type=SHARE, help="Share of frames each station loses by itself, as in 5%."),
    click.option(
        "--burst",
        type=BURST,
        help="Loss in bursts: 5%x4 for 5% in bursts of 4 frames, or p,r[,1-h[,1-k]] of the Gilbert-Elliott model; none ends it.",
    ),
    click.option("--delay", "delay_ns", type=TIME, help="Delay of frames, as in 5ms (sch_netem)."),
    click.option("--jitter", "jitter_ns", type=TIME, help="Variation of the delay, as in 2ms (sch_netem)."),
    click.option(
        "--distribution",
        "jitter_distribution",
        type=click.Choice(units.DISTRIBUTIONS),
        help="How the delay varies (sch_netem); default: uniform.",
    ),
    click.option("--reorder", type=SHARE, help="Share of frames that overtake the delayed ones (sch_netem)."),
    click.option("--reorder-gap", type=click.IntRange(min=0), help="At most every Nth frame overtakes; 0: any (sch_netem)."),
    click.option("--reorder-correlation", type=SHARE, help="How far each throw follows the one before (sch_netem)."),
    click.option("--duplicate", type=SHARE, help="Share of frames received twice (sch_netem)."),
    click.option("--corrupt", type=SHARE, help="Share of frames with one bit wrong (sch_netem)."),
    click.option("--rate", "rate_bit", type=RATE, help="Speed of the links each way, as in 100mbit; 0 for no limit."),
    click.option(
        "--limit", type=click.IntRange(min=0), help="Frames that wait for delay or rate at most, others are dropped; 0: not set."
    ),
)


def impairment_options(function: F) -> F:
    """Gives a command one keyword argument for each impairment, None if the option was not given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
