"""Programs that send and read while an attack goes on, and what must be as before when it is over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from zenjun.tools.lab import Lab, Station

from ..e2e.cluster import Program, compare, process_alive, programs, status

GROUP = "attacked"
PAUSE_S = 0.002
WAIT_S = 60.0


class Load:
    """Each program sends a message and reads until it has come, over and over."""

    def __init__(self, members: Sequence[Program]) -> None:
        self._members = members
        self._done = threading.Event()
        self._failed: list[BaseException] = []
        self._longest: dict[int, float] = {}
        self._sent: dict[int, list[bytes]] = {m.station: [] for m in members}
        self._threads = [threading.Thread(target=self._flow, args=(m,), daemon=True) for m in members]
        for thread in self._threads:
            thread.start()

    def _flow(self, member: Program) -> None:
        mine, looked = self._sent[member.station], 0
        try:
            while not self._done.is_set():
                begun, data = time.monotonic(), b"%d.%d" % (member.station, len(mine))
                mine.append(data)
                member.groups[GROUP].send(data, timeout=WAIT_S)
                came = False
                while not came:
                    member.read(GROUP, WAIT_S)
                    got = member.messages(GROUP)
                    came, looked = any(m.data == data for m in got[looked:]), len(got)
                self._longest[member.station] = max(self._longest.get(member.station, 0.0), time.monotonic() - begun)
                time.sleep(PAUSE_S)
        except BaseException as error:
            self._failed.append(error)

    def end(self) -> tuple[int, float]:
        """How many messages were sent, and the longest time that one took to come back, s. Everybody has got the same ones, and
        exactly those that were sent; raises AssertionError."""
        self._done.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
        assert not self._failed, self._failed
        total = sum(len(mine) for mine in self._sent.values())
        sequences = [m.read_messages(GROUP, total, WAIT_S) for m in self._members]
        sent = [(m.station, m.client, data) for m in self._members for data in self._sent[m.station]]
        compare(GROUP, sequences, sent)
        return total, max(self._longest.values())


def told(station: Station) -> tuple[object, ...]:
    """What no attack may change: the instance, the members, this life, and the numbers on the disk."""
    said = status(station)
    disk = (station.state_directory / "station.json").read_text()
    return said["state"], said["instance"], said["incarnation"], said["members"], said["membership"]["changes"], disk


@contextlib.contextmanager
def unharmed(lab: Lab, ids: Iterable[int], what: str) -> Iterator[None]:
    """While the block runs, programs at these stations send and read. Afterwards nobody has ended or changed its instance,
    members or durable numbers, and what was delivered is what was sent. How long a message took at most is printed: on a
    machine with other work it says little."""
    stations = [lab.station(number) for number in ids]
    with programs(lab, {GROUP: "preack"}, ids=[s.id for s in stations]) as members:
        before = [told(station) for station in stations]
        load = Load(members)
        try:
            yield
        finally:
            sent, longest = load.end()
        print(f"{what}: {sent} messages, the longest took {1000 * longest:.0f} ms")
        assert all(process_alive(station) for station in stations), what
        assert [told(station) for station in stations] == before, what
