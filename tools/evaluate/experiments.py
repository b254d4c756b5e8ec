"""What ``zenjun evaluate all`` runs: labs on this machine, recorded while something happens. Nothing is counted here.

Every run leaves one folder with the captures of its stations. A run's numbers are counted from those alone (counts.py).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...daemon.client import connect_sync
from ...daemon.client.sync import SyncConnection, SyncGroup
from ..lab import Lab, LabError
from .exchanges import Exchange, measure

PATIENCE_S: Final = 20.0
GROUP: Final = "evaluate"
MESSAGE_BYTES: Final = 100
FLOOD_BYTES: Final = 1200
"""Large enough that no two messages share a PDU."""
SETTLE_S: Final = 0.3
"""Recorded before the first and after the last message: longer than any timer that a message can set off."""


BEFORE_S: Final = 0.5
DEAD_S: Final = 1.2
AFTER_S: Final = 0.8
"""Of a stop and recovery: load before, from the death to the start of the new life, and after the return."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run in which the same was asked of the cluster all the time; by the clock that stamps the captures too."""

    begin_ns: int
    end_ns: int
    rate: float = 0.0
    """Messages offered per second, all stations together; 0: as many as go through."""
    loss: float = 0.0
    """Fraction of the frames towards each station that was dropped."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run: where the captures are, and what was asked of the cluster meanwhile."""

    name: str
    folder: Path
    stations: int
    window: int
    """Own PDUs in flight at most, at each station."""
    phases: tuple[Phase, ...]


def exchanges(n: int, each: bool, repeats: int, folder: Path) -> tuple[Path, list[Exchange]]:
    """Lone messages on a silent bus (exchanges.py). Returns the onlooker's capture, and what the plain count says of it."""
    name = f"to-{n}-{'each' if each else 'merged'}"
    counted = measure(n, each, repeats, folder / name, f"e{name}")
    return folder / name / f"station-{n + 1}.pcapng", counted


class Load:
    """Programs at some stations of a lab, all members of one group, that send when told to."""

    def __init__(self, lab: Lab, ids: Sequence[int]) -> None:
        self._stack = contextlib.ExitStack()
        self._members: list[tuple[SyncConnection, SyncGroup]] = []
        try:
            for number in ids:
                path = str(lab.station(number).socket_path)
                connection = self._stack.enter_context(connect_sync(path, name="load", timeout=PATIENCE_S, wait=PATIENCE_S))
                self._members.append((connection, connection.join(GROUP, receive=False)))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *what: object) -> None:
        self._stack.close()

    def steady(
        self,
        rate: float,
        seconds: float,
        events: Mapping[float, Callable[[], None]] | None = None,
        until: threading.Event | None = None,
    ) -> int:
        """Offer messages at even distances for so long, each station in turn; returns how many. All are confirmed in the end.

        events: what is done meanwhile, by seconds from the beginning, each in a thread: sending does not wait for it.
        until: ends it earlier.
        """
        begin = time.monotonic()
        due = sorted((events or {}).items())
        working: list[threading.Thread] = []
        sent = 0
        payload = bytes(MESSAGE_BYTES)
        while (now := time.monotonic() - begin) < seconds and not (until is not None and until.is_set()):
            while due and due[0][0] <= now:
                working.append(threading.Thread(target=due.pop(0)[1]))
                working[-1].start()
            for _ in range(int(now * rate) - sent):
                self._members[sent % len(self._members)][1].send(payload, "sent")
                sent += 1
            for connection, _ in self._members:
                connection.serve(0.0)
            time.sleep(max(0.0, min(0.002, (sent + 1) / rate - (time.monotonic() - begin))))
        self.flush()
        for thread in working:
            thread.join(PATIENCE_S)
        return sent

    def flood(self, messages: int) -> None:
        """Every station at once sends so many messages of ``FLOOD_BYTES``, as fast as they go through."""
        payload = bytes(FLOOD_BYTES)

        def send(group: SyncGroup) -> None:
            for _ in range(messages):
                group.send(payload, "sent")

        threads = [threading.Thread(target=send, args=(group,)) for _, group in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.flush()

    def flush(self) -> None:
        """Until everything sent so far is acknowledged: one more message of each, which stands behind all others of it."""
        for _, group in self._members:
            group.send(b"last", "ack", timeout=PATIENCE_S)


@contextlib.contextmanager
def _cluster(n: int, folder: Path, options: Mapping[str, Any] | None = None) -> Iterator[Lab]:
    """A cluster whose captures, in this folder, begin before its daemons do: so that the order is known from its first PDU on."""
    with Lab(n, name=f"e{folder.name}", options={"cluster": dict(options or {})}) as lab, lab.capture(folder):
        lab.start_daemons()
        lab.wait_open(PATIENCE_S)
        yield lab


def _window(lab: Lab) -> int:
    return int(lab.station(1).status(PATIENCE_S)["window"]["frames"])


@contextlib.contextmanager
def _phase(out: list[Phase], rate: float = 0.0, loss: float = 0.0) -> Iterator[None]:
    """Whatever is sent in the block is the phase's; the silence after it as well, so that nothing of it is missing."""
    begin = time.time_ns()
    yield
    time.sleep(SETTLE_S)
    out.append(Phase(begin, time.time_ns(), rate, loss))


def loads(n: int, rates: Sequence[float], seconds: float, flood: int, folder: Path) -> Run:
    """The same cluster under several loads, one after the other, and in the end all stations at once as fast as they may.

    flood: messages of that, of all stations together.
    """
    name = f"load-{n}"
    phases: list[Phase] = []
    with _cluster(n, folder / name) as lab, Load(lab, range(1, n + 1)) as load:
        time.sleep(SETTLE_S)
        for rate in rates:
            with _phase(phases, rate):
                load.steady(rate, seconds)
        with _phase(phases):
            load.flood(flood // n)
        return Run(name, folder / name, n, _window(lab), tuple(phases))


def losses(n: int, fractions: Sequence[float], rate: float, seconds: float, folder: Path) -> Run:
    """The same load while every station loses more and more frames."""
    name = f"loss-{n}"
    phases: list[Phase] = []
    with _cluster(n, folder / name) as lab, Load(lab, range(1, n + 1)) as load:
        time.sleep(SETTLE_S)
        for fraction in fractions:
            with _phase(phases, rate, fraction):
                lab.set_loss(fraction)
                load.steady(rate, seconds)
        return Run(name, folder / name, n, _window(lab), tuple(phases))


def window(n: int, frames: int, flood: int, folder: Path) -> Run:
    """All stations at once as fast as they may, with a window of so many frames."""
    name = f"window-{n}-{frames}"
    phases: list[Phase] = []
    with _cluster(n, folder / name, {"window_frames": frames}) as lab, Load(lab, range(1, n + 1)) as load:
        time.sleep(SETTLE_S)
        with _phase(phases):
            load.flood(flood // n)
        return Run(name, folder / name, n, _window(lab), tuple(phases))


def stop_and_recovery(n: int, rate: float, folder: Path) -> Run:
    """Station n is killed under load and, when the others have gone on without it, started again.

    The others offer so many messages a second all the while. LabError if the station does not return.
    """
    name = f"stop-{n}"
    phases: list[Phase] = []
    with _cluster(n, folder / name) as lab, Load(lab, range(1, n)) as load:

        def strike() -> None:
            lab.station(n).signal(signal.SIGKILL)

        def start() -> None:
            lab.station(n).start_daemon()
            with contextlib.suppress(LabError):
                lab.wait_open(PATIENCE_S)
                time.sleep(AFTER_S)
            over.set()

        over = threading.Event()
        time.sleep(SETTLE_S)
        with _phase(phases, rate):
            load.steady(rate, PATIENCE_S, {BEFORE_S: strike, BEFORE_S + DEAD_S: start}, over)
        members = lab.station(1).status(PATIENCE_S)["members"]
        if len(members) != n:
            raise LabError(f"station {n} has not come back: members {members}")
        return Run(name, folder / name, n, _window(lab), tuple(phases))
