"""Opening a database of which too few copies are left, because an operator says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...proto.service.base import Source
from ..programs import Refused
from .waiting import NotHere

if TYPE_CHECKING:
    from .site import Site


def plan_of_force(site: Site) -> dict[str, Any]:
    """What opening without enough sites would do: from which stations' copies, and which stations are not asked. Raises
    Refused: there is no reason for it, or no copy."""
    machine = site.machine
    if machine is None or not machine.members:
        raise Refused("no-quorum", f"this station is not in the order: {site.why_not()}")
    if machine.roll.active():
        raise Refused("open", f"{site.name} is open: stations {_stations(machine.roll.active())} are active")
    if not machine.roll.is_over:
        raise Refused("busy", "the stations are telling each other what they have; try again")
    if (opening := machine.roll.forced(site.sites)) is None:
        raise Refused("no-copy", "no station that is here has a copy that can be used")
    here = {station for station, _ in machine.roll.stands}
    return {
        "epoch": opening.position.epoch,
        "version": opening.position.version,
        "from": sorted({station for station, _ in opening.equal}),
        "here": sorted(here),
        "missing": sorted(site.sites.stations - here),
    }


async def force_open(site: Site, seconds: float) -> None:
    """Open the database with what the sites have that are here. Raises NotHere."""
    machine = site.machine
    if machine is None:
        raise NotHere(site.why_not())
    site.journal.warning("force", f"database {site.name}: an operator opens it: {plan_of_force(site)}")
    await site.act(machine.force)
    if not await site.until(lambda: bool(machine.roll.active()), seconds):
        raise NotHere(site.why_not())


def _stations(sites: Sequence[Source]) -> str:
    return ", ".join(str(station) for station, _ in sorted(sites))
