"""``zenjun demo``: the guarantee shown in seconds: a lab with frame loss, all stations broadcast, the sequences are compared."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from ...daemon.client import ClientError, Message, connect_sync
from ..lab import Lab, LabError
from .common import TIMED_OUT, Failure
from .labcommon import exit_code_of
from .output import Output

WORDS = ("apple", "birch", "cloud", "delta", "ember", "fjord", "grain", "heron", "inlet", "jetty", "knoll", "larch")
STEP_TIMEOUT_S = 60.0
FAIL_TIMEOUT_MS: Final = 1500
"""A demonstration runs where other things do, too: a station that is kept from running is not removed for that at once."""


@dataclass
class Seen:
    """What one station's program received."""

    messages: list[tuple[int, bytes]] = field(default_factory=list)
    digest: str = ""
    first: float = 0.0
    last: float = 0.0


def _loss(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    try:
        fraction = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a percentage like 5% nor a fraction") from None
    if not 0 <= fraction <= 0.5:
        raise click.BadParameter("between 0% and 50%")
    return fraction


def _at_once(stations: list[int], work: Callable[[int], None]) -> None:
    """Run ``work`` for every station in its own thread; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(station: int) -> None:
        try:
            work(station)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(s,), name=f"station-{s}", daemon=True) for s in stations]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + STEP_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise Failure(f"not finished after {STEP_TIMEOUT_S:.0f} s", TIMED_OUT, "demo")


def _exchange(
    lab: Lab, group: str, payloads: Callable[[int], Iterator[bytes]], stations: Sequence[int], total: int, keep: int
) -> dict[int, Seen]:
    """Each of ``stations`` sends its payloads, all at once, and receives the ``total`` of all; the first ``keep`` are kept."""
    seen = {s: Seen() for s in stations}
    ready = threading.Barrier(2 * len(stations))

    def receive(station: int) -> None:
        with connect_sync(str(lab.stations[station].socket_path), name="demo-receiver", wait=5, timeout=STEP_TIMEOUT_S) as c:
            members = c.join(group)
            ready.wait(STEP_TIMEOUT_S)
            count, hasher, mine = 0, hashlib.sha256(), seen[station]
            while count < total:
                batch: list[Message] = members.recv_batch(STEP_TIMEOUT_S)
                mine.first = mine.first or time.monotonic()
                for m in batch:
                    hasher.update(b"%d %d " % (m.station, len(m.data)) + m.data)
                if len(mine.messages) < keep:
                    mine.messages += [(m.station, m.data) for m in batch[: keep - len(mine.messages)]]
                count += len(batch)
            mine.last = time.monotonic()
            mine.digest = hasher.hexdigest()

    def send(station: int) -> None:
        with connect_sync(str(lab.stations[station].socket_path), name="demo-sender", wait=5, timeout=STEP_TIMEOUT_S) as c:
            members = c.join(group, receive=False)
            ready.wait(STEP_TIMEOUT_S)
            if keep:
                for data in payloads(station):  # one at a time, so that the stations' words mix
                    members.send(data)
            else:
                members.send_many(payloads(station))

    def work(role: int) -> None:
        try:
            (receive if role < 1000 else send)(role % 1000)
        except BaseException:
            ready.abort()  # the others must not wait for this one
            raise

    _at_once([*stations, *(1000 + s for s in stations)], work)
    return seen


def _counts(lab: Lab) -> dict[str, Any]:
    """Sums over the stations' status: frames the receivers lost, frames repeated."""
    lost = repeated = frames = 0
    for station in lab.stations.values():
        with connect_sync(str(station.socket_path), name="demo", wait=5, timeout=10) as c:
            counters = c.status()["counters"]["core"]
            repeated += counters["tx_retransmit"] + counters["tx_relay"]
            lost += counters["lost_noticed"]
            frames += counters["tx_data"]
    return {"lost": lost, "repeated": repeated, "frames": frames}


@click.command()
@click.option("-n", "--stations", type=click.IntRange(2, 8), default=3, show_default=True, help="How many.")
@click.option("--loss", default="5%", show_default=True, callback=_loss, help="Frames lost at random at every station's input.")
@click.option(
    "--docker", is_flag=True, help="Containers instead of namespaces, faults included (docs/docker.md); from a checkout."
)
@click.option(
    "--messages", type=click.IntRange(100, 1_000_000), default=50_000, show_default=True, help="Per station, in the second part."
)
def demo(stations: int, loss: float, docker: bool, messages: int) -> None:
    """Show what zenjun is for, on this machine, in a lab of its own.

    \b
    Examples:
      zenjun demo
      zenjun demo -n 5 --loss 10%
      zenjun demo --docker -n 5

    Exit codes: 0 all stations saw the same, 1 they did not or something failed, 4 not in time, 6 this machine cannot make a
    lab, 130 interrupted.
    """
    console = Output(highlight=False)
    try:
        if docker:
            from . import demo_docker

            if stations > demo_docker.STATIONS_MAX:
                raise click.BadParameter(f"the compose file has {demo_docker.STATIONS_MAX} stations", param_hint="--stations")
            if not demo_docker.show(
                console, stations, loss, FAIL_TIMEOUT_MS, _show_words, lambda c, lab: _show_bulk(c, lab, messages)
            ):
                sys.exit(1)
            return
        console.print(f"Starting {stations} stations on one bridge, each losing {loss:.0%} of the frames that reach it …")
        with Lab(stations, loss=loss, options={"cluster": {"fail_timeout_ms": FAIL_TIMEOUT_MS}}) as lab:
            lab.start_daemons()
            lab.wait_open(20)
            same = _show_words(console, lab) and _show_bulk(console, lab, messages)
        console.print("The lab is gone again.")
    except LabError as error:
        raise Failure(str(error), exit_code_of(error), "demo") from error
    except ClientError as error:
        raise Failure(str(error), command="demo") from error
    if not same:
        sys.exit(1)


def _show_words(console: Console, lab: Lab, some: Sequence[int] = ()) -> bool:
    """Every station, or some, broadcast a few words."""
    stations = sorted(some or lab.stations)
    each = 4

    def words(station: int) -> Iterator[bytes]:
        for k in range(each):
            yield WORDS[((station - 1) * each + k) % len(WORDS)].encode()

    seen = _exchange(lab, "words", words, stations, each * len(stations), 10_000)
    console.print(f"Each station broadcast {each} words at the same time; what the programs received:")
    table = Table()
    table.add_column("", justify="right")
    for s in stations:
        table.add_column(f"at station {s}")
    for row in range(each * len(stations)):
        cells = [f"{seen[s].messages[row][0]}: {seen[s].messages[row][1].decode()}" for s in stations]
        table.add_row(str(row + 1), *cells)
    console.print(table)
    same = len({seen[s].digest for s in stations}) == 1
    console.print("[green]identical[/green] at all stations" if same else "[red]DIFFERENT[/red]: this is a bug, please report it")
    return same


def _show_bulk(console: Console, lab: Lab, messages: int) -> bool:
    stations = sorted(lab.stations)
    before = _counts(lab)

    def payloads(station: int) -> Iterator[bytes]:
        for k in range(messages):
            yield b"%d:%d:" % (station, k) + b"x" * 48

    total = messages * len(stations)
    seen = _exchange(lab, "bulk", payloads, stations, total, 0)
    after = _counts(lab)
    console.print(f"Then {messages:,} messages of about 56 bytes from each, all at once:")
    table = Table()
    for title in ("station", "received", "messages/s", "SHA-256 of the sequence"):
        table.add_column(title, justify="right" if title != "SHA-256 of the sequence" else "left")
    for s in stations:
        span = max(seen[s].last - seen[s].first, 1e-6)
        table.add_row(str(s), f"{total:,}", f"{total / span:,.0f}", seen[s].digest[:32] + "…")
    console.print(table)
    same = len({seen[s].digest for s in stations}) == 1
    console.print(
        f"{after['lost'] - before['lost']:,} losses noticed, repaired by "
        f"{after['repeated'] - before['repeated']:,} repetitions; "
        f"{after['frames'] - before['frames']:,} data frames carried {total:,} messages (this program is Python; "
        "`zenjun bench` measures the daemons)."
    )
    console.print("[green]identical[/green] at all stations" if same else "[red]DIFFERENT[/red]: this is a bug, please report it")
    return same
