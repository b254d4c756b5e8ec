"""The only table of the paper on token-host ordering, counted in captures of real daemons: messages for one multicast.

Group G is at stations 1..N; if n > 1, each of the stations 1..n is in a group of its own besides, so that n stations of G have
tokens. Station N + 1 sends to G from outside, station N from inside, one message at a time. Each station's capture is read for
what that station itself has sent: records DATA, REPORT and DECIDE of each message, by the message's name. HELD, STABLE, CONFIRM,
NAK and what is sent again have no counterpart in the paper and are counted apart.

The paper counts messages between stations, and a frame may have several records. So a record must have a frame of its own: what
shares one with another DATA, REPORT or DECIDE makes the run void. From inside records are counted: a proposer that is the sender
reports in the frame of its DATA.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ...daemon.client import Order, SyncConnection, SyncGroup, connect_sync
from ...proto import wire
from ...proto.multicast.records import Data, Decide, Held, Id, Report, Stable, Timed
from ..lab import Lab, LabError
from ..pcap.frames.links import LinkRecord, records, sent_by
from ..pcap.frames.pdu import decode
from .exchanges import PATIENCE_S, QUIET
from .results import markdown

SIZES: Final = tuple(range(2, 9))
SETTLE_S: Final = 0.06
"""Longer than HELD and STABLE wait for another record (``SETTLE_NS`` of proto/multicast/member.py)."""
NAMES: Final[dict[str, Order]] = {"a": "abcast", "t": "token"}


class Setting(NamedTuple):
    """What one message is sent to, and from where."""

    order: str
    stations: int
    """N: of the group."""
    tokens: int
    """n: stations of the group that have a token; 1 for ``abcast``, which has none."""
    inside: bool

    @property
    def printed(self) -> int:
        """The paper's number; from inside, what its rules give: a station sends nothing to itself."""
        if self.order == "abcast":
            return 3 * self.stations - (3 if self.inside else 0)
        return 2 * self.stations + self.tokens - (3 if self.inside else 2)

    @property
    def parts(self) -> Count:
        """DATA, REPORT and DECIDE that the number consists of."""
        n, own = self.stations, int(self.inside)
        if self.order == "abcast":
            return Count(n - own, n - own, n - own)
        return Count(n - own, self.tokens - 1, n - 1)


class Count(NamedTuple):
    """Messages of one multicast between stations."""

    data: int
    reports: int
    decisions: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass
class Counted:
    """What the captures of a lab have."""

    messages: dict[tuple[Setting, int], Count] = field(default_factory=dict)
    """By setting and number of the message."""
    apart: Counter[str] = field(default_factory=Counter)
    """Frames and records that are no part of the paper's count."""
    shared: list[str] = field(default_factory=list)
    """Frames with more than one counted record."""
    strangers: list[str] = field(default_factory=list)
    """Records between stations that have nothing to do with their message."""

    def problems(self, repeats: int, settings: Sequence[Setting]) -> list[str]:
        """Everything that is not exactly as the paper says."""
        out = [*self.shared, *self.strangers]
        for setting in settings:
            for k in range(repeats):
                found = self.messages.get((setting, k))
                if found != setting.parts:
                    out.append(f"{setting}, message {k}: {found}, expected {setting.parts}")
        return out


def settings(sizes: Sequence[int]) -> list[Setting]:
    """All rows of the table, from outside and from inside."""
    each = [(order, n, t) for n in sizes for order, most in (("abcast", 1), ("token", n)) for t in range(1, most + 1)]
    return [Setting(order, n, t, inside) for order, n, t in each for inside in (False, True)]


# ---- counting


def count(files: Mapping[int, Path], cluster: int) -> Counted:
    """Count what each station's capture says that the station itself has sent. files: by station."""
    out = Counted()
    setting_of: dict[Id, tuple[Setting, int]] = {}
    sent: list[tuple[LinkRecord, tuple[LinkRecord, ...]]] = []
    for station, path in files.items():
        seen: set[bytes] = set()
        for mac, pdu in sent_by(station, path, cluster):
            plain = decode(pdu)
            assert plain is not None
            if plain["kind"] != "DATA":
                out.apart[plain["kind"]] += 1
                continue
            out.apart["to the group address"] += mac == bytes.fromhex(wire.GROUP_MAC.replace(":", ""))
            if (name := _name(pdu)) in seen:
                out.apart["sent again"] += 1
                continue
            seen.add(name)
            found = records(plain)
            counted = tuple(r for r in found if isinstance(r.record, (Data, Report, Decide)))
            for r in found:
                if isinstance(r.record, (Held, Stable)):
                    out.apart[r.name] += 1
                elif isinstance(r.record, Data) and (what := _setting(r.record.content)) is not None:
                    setting_of[r.record.id] = what
            sent += [(r, counted) for r in counted]
    _sum(out, setting_of, sent)
    return out


def _name(pdu: bytes) -> bytes:
    """What two copies of a PDU have in common, and no other PDU of its station has."""
    fields = dict(zip((f.name for f in wire.HEADER.fields), wire.HEADER.struct.unpack_from(pdu), strict=True))
    return struct.pack(">BIII", fields["target"], fields["incarnation"], fields["instance"], fields["seq"])


def _setting(content: bytes) -> tuple[Setting, int] | None:
    """The setting and number that a message's text says, None: it is another one."""
    try:
        order, stations, tokens, inside, number = content.decode().split("/")
        return Setting(NAMES[order], int(stations), int(tokens), inside == "1"), int(number)
    except (ValueError, KeyError):
        return None


def _sum(
    out: Counted, setting_of: Mapping[Id, tuple[Setting, int]], sent: Sequence[tuple[LinkRecord, tuple[LinkRecord, ...]]]
) -> None:
    totals: dict[tuple[Setting, int], list[int]] = {}
    for r, together in sent:
        names = [r.record.id] if isinstance(r.record, Data) else r.record.ids() if isinstance(r.record, Timed) else []
        for name in names:
            what = setting_of.get(name)
            if what is None:
                continue
            setting, number = what
            kind = 0 if isinstance(r.record, Data) else 1 if isinstance(r.record, Report) else 2
            totals.setdefault(what, [0, 0, 0])[kind] += 1
            if len(together) > 1 and not setting.inside:
                out.shared.append(f"{setting}, message {number}: {r} shares a frame")
            concerned = {*range(1, setting.stations + 1), name.origin}
            if not {r.source, r.target} <= concerned:
                out.strangers.append(f"{setting}, message {number}: {r} from {r.source} to {r.target}")
    out.messages |= {what: Count(*three) for what, three in totals.items()}


# ---- the lab


def measure(sizes: Sequence[int], repeats: int, folder: Path, name: str | None = None) -> Counted:
    """Send ``repeats`` messages in each setting, in one lab of a station more than the largest group. LabError."""
    n = max(sizes) + 1
    with Lab(n, name=name, options={"cluster": {**QUIET, "own_timeout_ms": 5000}}) as lab:
        lab.start_daemons()
        lab.wait_open(3 * PATIENCE_S)
        with contextlib.ExitStack() as stack:
            at = {
                k: stack.enter_context(
                    connect_sync(str(lab.station(k).socket_path), name="evaluate", timeout=PATIENCE_S, wait=PATIENCE_S)
                )
                for k in range(1, n + 1)
            }
            with lab.capture(folder) as files:
                for size in sizes:
                    for letter in NAMES:
                        _play(lab, at, letter, size, repeats)
        return count(files, wire.cluster_id(f"lab-{lab.name}"))


def _play(lab: Lab, at: Mapping[int, SyncConnection], letter: str, size: int, repeats: int) -> None:
    """All settings of one order with a group of this size."""
    order = NAMES[letter]
    with contextlib.ExitStack() as stack:
        members = {k: _joined(stack, at[k], f"g{letter}{size}", order) for k in range(1, size + 1)}
        outside = at[size + 1].join(f"g{letter}{size}", order=order, send_only=True)
        stack.callback(outside.leave)
        for tokens in range(1, (size if letter == "t" else 1) + 1):
            for k in range(1, tokens + 1) if tokens == 2 else (tokens,) if tokens > 2 else ():
                _joined(stack, at[k], f"alone{letter}{size}-{k}", order)
            _settle(lab)
            for inside, connection, group in ((0, at[size + 1], outside), (1, at[size], members[size])):
                for number in range(repeats):
                    text = f"{letter}/{size}/{tokens}/{inside}/{number}".encode()
                    connection.send(text, [group], "ordered", timeout=PATIENCE_S)
                    _settle(lab)


def _joined(stack: contextlib.ExitStack, connection: SyncConnection, name: str, order: Order) -> SyncGroup:
    group = connection.join(name, "ordered", order=order, open_group=True, timeout=PATIENCE_S)
    stack.callback(group.leave)
    return group


def _settle(lab: Lab) -> None:
    """Until all stations are in one era, nothing is unfinished, and nobody has sent anything for a while."""
    deadline = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        told = [s.status(PATIENCE_S) for s in lab.stations.values()]
        multicast = [t["multicast"] for t in told]
        done = all(m["eras"] == 1 and m["unfinished"] == 0 for m in multicast) and len({tuple(m["era"]) for m in multicast}) == 1
        frames = [t["counters"]["datapath"]["tx_frames"] for t in told]
        if done and frames == last:
            return
        last = frames
    raise LabError("the segment does not become silent")


# ---- the table


def table(counted: Counted, sizes: Sequence[int], repeats: int, inside: bool) -> str:
    """Markdown, as the paper has it: all totals that were counted, one number where every run gave the same."""
    heads = ["N", "abcast", *(("token, n = " if n == 1 else "") + str(n) for n in range(1, max(sizes) + 1))]
    rows: list[list[object]] = []
    for size in sizes:
        cells = [_cell(counted, Setting("abcast", size, 1, inside), repeats)]
        cells += [_cell(counted, Setting("token", size, n, inside), repeats) for n in range(1, size + 1)]
        rows.append([size, *cells, *[""] * (len(heads) - 1 - len(cells))])
    return markdown(heads, rows)


def _cell(counted: Counted, setting: Setting, repeats: int) -> str:
    found = {counted.messages[setting, k].total for k in range(repeats) if (setting, k) in counted.messages}
    text = "–".join(str(n) for n in sorted({min(found), max(found)})) if found else "none"
    return text if found == {setting.printed} else f"{text} (paper: {setting.printed})"


def block(counted: Counted, sizes: Sequence[int], repeats: int) -> str:
    """Both tables, and what was counted apart."""
    apart = ", ".join(f"{name} {number}" for name, number in sorted(counted.apart.items()) if number)
    return (
        f"Sender outside the group (the paper's table):\n\n{table(counted, sizes, repeats, False)}\n\n"
        f"Sender inside:\n\n{table(counted, sizes, repeats, True)}\n\n"
        f"{repeats} messages in each cell. Counted apart: {apart}."
    )
