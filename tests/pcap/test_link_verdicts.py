"""Verdicts on groups that overlap: captures of a run of the model, as it is and with what is planted in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zenjun.proto.multicast.codec import encode, encode_closed
from zenjun.proto.multicast.records import Broadcast, Closed, Data, Decide, Effect, Joined, Record, Report
from zenjun.proto.multicast.tables import Program
from zenjun.proto.wire import Flag
from zenjun.tools.dissect import Zenjun, ZenjunData, ZenjunMessage
from zenjun.tools.pcap.frames import files
from zenjun.tools.pcap.judge.judgement import ERAS, FOLLOWED, GENUINE, TIMES, Verdict
from zenjun.tools.pcap.judge.links import judge

from ..model.multicast.net import MS, Host, Net
from .built import CLUSTER, Rec, frame, write

Sent = tuple[int, int, Record]
"""From, to, what."""
A, B = 1, 2


class Recorded(Net):
    """Keeps what goes over links, and CLOSED."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Sent] = []
        self.closed: list[Closed] = []

    def transmit(self, host: Host, to: int, record: Record) -> None:
        self.records.append((host.station, to, record))
        super().transmit(host, to, record)

    def apply(self, host: Host, effects: list[Effect]) -> None:
        self.closed += [e.entry for e in effects if isinstance(e, Broadcast) and isinstance(e.entry, Closed)]
        super().apply(host, effects)


def run() -> Recorded:
    """A at 1, 2, 3 and B at 2, 3, 4; 5 in neither sends to both. Then a change, after which all say what they have delivered."""
    net = Recorded()
    joins = [Joined(Program(z, 1, 1), g, "token") for g, stations in ((A, (1, 2, 3)), (B, (2, 3, 4))) for z in stations]
    net.start(dict.fromkeys(range(1, 6), 1), joins)
    net.closed.clear()
    for k in range(6):
        net.send(1, [A])
        net.send(4, [B])
        net.send(5, [A, B])
        net.run_until((k + 1) * MS)
    net.run_until(50 * MS)
    net.append(Joined(Program(5, 1, 1), A, "token"))
    net.run_until(100 * MS)
    return net


def captures(folder: Path, records: Iterable[Sent], closed: Iterable[Closed]) -> list[files.Capture]:
    """A capture of each station, of what it sends and gets."""
    frames: defaultdict[int, list[Rec]] = defaultdict(list)
    numbers: defaultdict[tuple[int, int], int] = defaultdict(int)
    time = 0
    for source, target, record in records:
        time += 1000
        numbers[source, target] += 1
        e = encode(record)
        message = ZenjunMessage(data=e.data, group=e.group, client=e.client, type=e.type, mflags="OP")
        head: dict[str, Any] = {
            "cluster": CLUSTER,
            "incarnation": 1,
            "instance": 1,
            "flags": int(Flag.PAIR | Flag.OP),
            "ack": [1, 1],
        }
        pdu = Zenjun(src=source, target=target, seq=numbers[source, target], **head) / ZenjunData(messages=[message])
        for station in (source, target):
            frames[station].append(Rec(time, frame(pdu, source), 2 if station == source else 1))
    for k, entry in enumerate(closed):
        messages = [ZenjunMessage(data=data, type="GROUP") for data in encode_closed(entry)]
        pdu = Zenjun(cluster=CLUSTER, incarnation=1, instance=1, src=entry.station, seq=k + 1, ack=[1] * 5) / ZenjunData(
            messages=messages
        )
        for station in range(1, 6):
            frames[station].append(Rec(time + 1000 * k, frame(pdu, entry.station), 2 if station == entry.station else 1))
    made = [write(folder / f"station-{z}.pcapng", sorted(frames[z], key=lambda r: r.time_ns)) for z in range(1, 6)]
    found = files.gather(made, stations_given={str(path): z for z, path in enumerate(made, 1)})
    assert all(c.pairs for c in found)
    return found


def judged(tmp_path: Path, net: Recorded, plant: Callable[[Sent], Sent] = lambda sent: sent) -> dict[str, Verdict]:
    return judge(captures(tmp_path, [plant(sent) for sent in net.records], net.closed))


def test_a_run_is_kept(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, run())
    assert {name: v.kept for name, v in verdicts.items()} == dict.fromkeys((TIMES, FOLLOWED, GENUINE, ERAS), True)
    assert verdicts[TIMES].compared >= 40 and verdicts[FOLLOWED].compared >= 40 and verdicts[ERAS].compared >= 4


def _once(change: Callable[[Sent], Sent | None]) -> Callable[[Sent], Sent]:
    done: list[Sent] = []

    def plant(sent: Sent) -> Sent:
        changed = None if done else change(sent)
        if changed is None:
            return sent
        done.append(changed)
        return changed

    return plant


def _other_time(sent: Sent) -> Sent | None:
    source, target, record = sent
    return (source, target, replace(record, time=record.time + 1000)) if isinstance(record, Decide) and target == 4 else None


def _to_a_stranger(sent: Sent) -> Sent | None:
    source, _, record = sent
    return (source, 5, record) if isinstance(record, Decide) and record.origin == 4 else None


def _above_the_decision(sent: Sent) -> Sent | None:
    _, _, record = sent
    if not isinstance(record, Decide):
        return None
    return (3, 2, Report(record.era, record.order, record.origin, record.number, 1, record.time + 5))


@pytest.mark.parametrize(
    ("name", "change"), [(TIMES, _other_time), (FOLLOWED, _other_time), (GENUINE, _to_a_stranger), (TIMES, _above_the_decision)]
)
def test_what_is_planted_is_found(name: str, change: Callable[[Sent], Sent | None], tmp_path: Path) -> None:
    verdict = judged(tmp_path, run(), _once(change))[name]
    assert verdict.kept is False and verdict.violations[0].evidence


def test_another_digest_is_found(tmp_path: Path) -> None:
    net = run()
    last = next(c for c in reversed(net.closed) if c.digests)
    (era, group, digest), *rest = last.digests
    net.closed[net.closed.index(last)] = replace(last, digests=((era, group, digest ^ 1), *rest))
    assert judged(tmp_path, net)[ERAS].kept is False


def test_captures_without_links_have_no_such_verdicts(tmp_path: Path) -> None:
    path = write(tmp_path / "s1.pcapng", [Rec(0, frame(Zenjun(cluster=CLUSTER, src=1, incarnation=1, ack=[1, 1])), 2)])
    found = files.gather([path], stations_given={str(path): 1})
    assert judge(found) == {} and not found[0].pairs
    assert isinstance(run().records[0][2], Data)
