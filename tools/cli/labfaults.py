"""``zenjun lab partition``, ``cut``, ``heal``, ``loss``, ``impair``, ``hold``, ``link``: faults of the network."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

import click

from ..lab import Station, backends
from .impairments import SHARE, impairment_options
from .labcommon import STATIONS, chosen_stations, link_option, name_option, stations_option


@click.command()
@name_option
@link_option()
@click.argument("groups", nargs=-1, required=True, type=STATIONS)
def partition(name: str, on: int | None, groups: tuple[list[int] | None, ...]) -> None:
    """Let only stations of the same group hear each other. Stations not named form one more group.

    \b
    Examples:
      zenjun lab partition 1,2 3
      zenjun lab partition 1          (cuts station 1 off)
      zenjun lab partition 1 --link 2
    """
    attached = backends.attach(name)
    attached.partition([list(attached.stations) if group is None else group for group in groups], link=on)


@click.command()
@name_option
@click.argument("sender", type=int)
@click.argument("receiver", type=int)
@click.option("--both", is_flag=True, help="Cut the other direction too.")
@link_option()
def cut(name: str, sender: int, receiver: int, both: bool, on: int | None) -> None:
    """Drop what one station sends to another, until healed.

    \b
    Examples:
      zenjun lab cut 1 2
      zenjun lab cut 1 2 --both
    """
    if sender == receiver:
        raise click.UsageError(f"station {sender} has no link to itself that could be cut: name two stations")
    attached = backends.attach(name)
    attached.cut(sender, receiver, link=on)
    if both:
        attached.cut(receiver, sender, link=on)


@click.command()
@name_option
@link_option()
def heal(name: str, on: int | None) -> None:
    """End all partitions and cuts (losses stay).

    \b
    Example:
      zenjun lab heal
    """
    backends.attach(name).heal(link=on)


@click.command()
@name_option
@stations_option()
@link_option()
@click.argument("share", type=SHARE)
def loss(name: str, stations: list[int] | None, on: int | None, share: float) -> None:
    """Drop a share of the frames towards stations, each losing by itself.

    \b
    Examples:
      zenjun lab loss 5%
      zenjun lab loss 20% -s 3
      zenjun lab loss 0%
    """
    backends.attach(name).impair(stations, link=on, loss=share)


@click.command()
@name_option
@stations_option()
@link_option()
@impairment_options
def impair(name: str, stations: list[int] | None, on: int | None, **impairments: Any) -> None:
    """Change impairments of stations; those not named stay as they are.

    \b
    Examples:
      zenjun lab impair --rate 100mbit
      zenjun lab impair -s 2 --delay 5ms --jitter 2ms --distribution normal
      zenjun lab impair --burst 5%x4
      zenjun lab impair --loss 0% --rate 0 --burst none
    """
    changes = {key: value for key, value in impairments.items() if value is not None}
    if not changes:
        raise click.UsageError("name at least one impairment, as in --rate 100mbit")
    backends.attach(name).impair(stations, link=on, **changes)


@click.command()
@name_option
@impairment_options
def hold(name: str, **impairments: Any) -> None:
    """Impair the containers of a lab, also those that are started again later, until Ctrl-C; then end all faults.

    Looks every half second, and waits for a lab that is not up yet: the service "faults" of docker/compose.yml.

    \b
    Example:
      zenjun lab hold --name zenjun --loss 5%
    """
    from ..lab.containers import hold as keep

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep(name, {key: value for key, value in impairments.items() if value is not None}, click.echo)


_LINK_ACTIONS: Final[dict[str, Callable[[Station, int], None]]] = {
    "down": Station.link_down,
    "up": Station.link_up,
    "cable-out": Station.cable_out,
    "cable-in": Station.cable_in,
    "delete": Station.delete_interface,
    "create": Station.create_interface,
}


@click.command()
@name_option
@stations_option(required=True)
@link_option("Which interface: of this link.", default=1)
@click.option("--mtu", type=click.IntRange(68, 65535), help="Change the MTU, bytes.")
@click.option("--port-mtu", type=click.IntRange(68, 65535), help="Change the MTU of the hub's end, bytes.")
@click.option("--rename", metavar="NAME", help="Give the interface another name.")
@click.option("--mac", help="Change the MAC address.")
@click.argument("action", required=False, type=click.Choice(list(_LINK_ACTIONS)))
def link(name: str, stations: list[int] | None, on: int, action: str | None, **changes: Any) -> None:
    """Do things to the interface of stations.

    down, up: the interface itself; cable-out, cable-in: the other end; delete, create: as when a card is exchanged.

    \b
    Examples:
      zenjun lab link -s 2 down
      zenjun lab link -s 2 --link 2 cable-out
      zenjun lab link -s 2 --mtu 9000
    """
    chosen = chosen_stations(backends.attach(name), stations)
    mtu, port_mtu, rename, mac = (changes[key] for key in ("mtu", "port_mtu", "rename", "mac"))
    if action is None and all(value is None for value in changes.values()):
        raise click.UsageError("nothing to do: give an action or an option")
    for station in chosen:
        if action is not None:
            _LINK_ACTIONS[action](station, on)
        if mtu is not None or port_mtu is not None:
            station.set_mtu(mtu or int(station.interface_of(on)["mtu"]), port_mtu, on)
        if rename is not None:
            station.rename_interface(rename, on)
        if mac is not None:
            station.set_mac(mac, on)
