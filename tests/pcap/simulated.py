"""Captures of simulated clusters: every frame that a station of a random schedule sent or that arrived at it, and what it did."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from zenjun.proto import wire
from zenjun.tools.lab.capture import PcapngWriter

from ..sim.cluster import Simulation

EPOCH_NS = 1_700_000_000_000_000_000
IN, OUT = 0b00101, 0b00010
"""Direction flags of pcapng."""
_HEAD = bytes.fromhex(wire.GROUP_MAC.replace(":", ""))


def capture(simulation: Simulation, folder: Path) -> dict[int, Path]:
    """Run it, recording; gives a pcapng file for each station, 1..n. Raises what the run raises."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {s.index + 1: folder / f"station-{s.index + 1}.pcapng" for s in simulation.stations}
    writers: dict[int, PcapngWriter] = {}
    handles = []
    for number, path in files.items():
        handles.append(path.open("wb"))
        writers[number] = PcapngWriter(handles[-1], "simulated")
        writers[number].interface("sim", "")
    clock, network = simulation.clockwork, simulation.network
    send, arrive = network.send, network._receive

    def write(station: int, pdu: bytes, mac: bytes, flags: int) -> None:
        data = (_HEAD + mac + wire.ETHERTYPE.to_bytes(2, "big") + pdu).ljust(60, b"\0")
        writers[station + 1].frame(0, EPOCH_NS + clock.now, data, len(data), flags)

    def sending(src: int, pdu: bytes, mac: bytes) -> None:
        write(src, pdu, mac, OUT)
        send(src, pdu, mac)

    def arriving(station: int, pdu: bytes, mac: bytes) -> None:
        write(station, pdu, mac, IN)
        arrive(station, pdu, mac)

    patched: Any = network
    patched.send, patched._receive = sending, arriving
    try:
        simulation.run()
    finally:
        for handle in handles:
            handle.close()
    return files


def simulation(seed: int, **changes: Any) -> Simulation:
    """A random schedule on a switched medium, with such options changed."""
    return Simulation(seed, change=lambda o: dataclasses.replace(o, **changes) if changes else o)
