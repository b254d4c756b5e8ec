"""Loss and cuts on the bridge, as nftables rules of the bridge family.

The forward hook runs once for every port a frame goes out of, so each receiver loses by a throw of its own, and a cut is a
pair (port in, port out). Frames die before they reach the station: a capture there shows what the station really received.
While nothing is dropped the chain does not exist and costs nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from .errors import LabError, LabUnsupported

SCALE: Final = 1_000_000
"""Losses are rounded to this many parts."""
CYCLE: Final = 1 << 15
"""Frames towards a station after which its losses in bursts come again in the same order."""
TABLE: Final = "zenjun"
"""Name of the table, of the bridge family, in a namespace of the lab's own."""
_TIMEOUT_S: Final = 10.0


def port_name(station: int, link: int = 1) -> str:
    """The bridge port that a station's cable of a link is plugged into."""
    return f"s{station}" if link == 1 else f"s{station}l{link}"


def ruleset(
    stations: Iterable[int],
    losses: Mapping[int, float],
    cuts: Iterable[tuple[int, int]],
    *,
    bursts: Mapping[int, Sequence[float]] | None = None,
    table: str = TABLE,
    port: Callable[[int], str] = port_name,
    only: Iterable[int] = (),
) -> str:
    """The whole ruleset as one nft transaction; counters of earlier rulesets go on counting.

    losses: fraction of the frames towards a station that is dropped. bursts: for stations with burst loss, p, r, 1-h and 1-k
    of the Gilbert-Elliott model. cuts: pairs (a, b), frames from a to b are dropped.
    port: the bridge port of a station. only: all stations, when ports may come to the bridge by themselves: until they are
    known, they and the stations exchange nothing but IP while there are cuts.
    """
    table = f"bridge {table}"
    lines = [f"add table {table}"]
    for station in stations:
        lines += [f"add counter {table} lost_{station}", f"add counter {table} cut_{station}"]
    lines += [
        f"add chain {table} forward {{ type filter hook forward priority 0; policy accept; }}",
        f"flush chain {table} forward",
    ]
    sources: dict[int, list[int]] = {}
    for a, b in sorted(cuts):
        sources.setdefault(b, []).append(a)
    rules = []
    for b, from_ in sources.items():
        names = ", ".join(f'"{port(a)}"' for a in from_)
        rules.append(f'add rule {table} forward oifname "{port(b)}" iifname {{ {names} }} counter name cut_{b} drop')
    if sources and (known := ", ".join(f'"{port(s)}"' for s in only)):
        other = "ether type != { ip, arp, ip6 }"
        rules.append(f"add rule {table} forward {other} oifname {{ {known} }} iifname != {{ {known} }} drop")
        rules.append(f"add rule {table} forward {other} iifname {{ {known} }} oifname != {{ {known} }} drop")
    for station, loss in losses.items():
        if throw := _throw(loss):
            rules.append(f'add rule {table} forward oifname "{port(station)}" {throw.lstrip()}counter name lost_{station} drop')
    for station, model in (bursts or {}).items():
        if places := burst_places(model, random.Random()):
            throw = f"numgen inc mod {CYCLE} {{ {', '.join(f'{a}-{b}' if a < b else str(a) for a, b in places)} }}"
            rules.append(f'add rule {table} forward oifname "{port(station)}" {throw} counter name lost_{station} drop')
    lines += rules or [f"delete chain {table} forward"]
    return "\n".join(lines) + "\n"


def burst_places(model: Sequence[float], chance: random.Random) -> list[tuple[int, int]]:
    """Which of ``CYCLE`` frames one behind the other the Gilbert-Elliott model loses, which begins in its good state: the first
    and the last one of each run. They are drawn before and not by the kernel, which has no place for the state but a set that
    rules change: with one, frames at full speed (Linux 6.18) met stretches of a thousand and more in which no burst began."""
    p, r, bad, good = model
    is_bad, runs = False, list[tuple[int, int]]()
    for at in range(CYCLE):
        if chance.random() < (bad if is_bad else good):
            if runs and runs[-1][1] == at - 1:
                runs[-1] = runs[-1][0], at
            else:
                runs.append((at, at))
        if chance.random() < (r if is_bad else p):
            is_bad = not is_bad
    return runs


def _throw(share: float) -> str:
    """A match of this share of the frames, empty for none of them; always with a blank at the end."""
    parts = round(share * SCALE) or (1 if share > 0 else 0)
    if not parts:
        return ""
    return " " if parts >= SCALE else f"numgen random mod {SCALE} < {parts} "


def _nft(arguments: list[str], text: str | None, purpose: str) -> str:
    # Administrators' folders are often missing from the search path of ordinary users.
    program = shutil.which("nft", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise LabUnsupported(f"{purpose} needs the program nft, which is not installed: install the package nftables")
    try:
        done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{purpose}: nft did not run: {error}") from error
    if done.returncode != 0:
        why = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise LabUnsupported(
            f"{purpose} needs nftables for bridges (CONFIG_NF_TABLES_BRIDGE, CONFIG_NFT_NUMGEN), which this kernel refused: {why}"
        )
    return done.stdout


def apply(text: str, purpose: str) -> None:
    """Load a ruleset in the calling process's network namespace, all of it or nothing. Raises LabUnsupported, LabError."""
    _nft(["-f", "-"], text, purpose)


def remove(table: str) -> None:
    """Take a table away with all it drops and counts; no error when it is not there. Raises LabUnsupported, LabError."""
    _nft(["-f", "-"], f"add table bridge {table}\ndelete table bridge {table}\n", "removing the rules")


def read_counters(table: str = TABLE) -> dict[str, int]:
    """Frames counted so far by name (``lost_1``, ``cut_1``, ...). Raises LabUnsupported, LabError."""
    listing = json.loads(_nft(["-j", "list", "counters", "table", "bridge", table], None, "reading counters"))
    counters = (item["counter"] for item in listing["nftables"] if "counter" in item)
    return {counter["name"]: int(counter["packets"]) for counter in counters}
