"""The guarantees of docs/membership.md and docs/client-protocol.md, judged only from what programs received (``history.py``).

No check asks a daemon. ``CHECKS`` is the registry; every check yields one line per violation, and the tests have a planted
violation for each. Where programs are in several groups, the checks of one group's sequence judge each group by itself; those of
``WHOLE`` judge all together: places, instances and members are the cluster's.

*Safe* is what was delivered at preack or ack. Deliveries at level ordered are judged as far as a program of the same station in
the same instance had them safe. Beyond that a station that dies or is expelled may have delivered what no other station will.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from .history import VIEW_INDEX, Connection, History, Item, Life, Place, Sent

SHOWN_MAX: Final = 5
"""Violations of one check that are listed; the rest is counted."""
Key: TypeAlias = tuple[int, int, int, int]
"""A place, and one of two sequences: 0 changes of the cluster's members, which every connection gets, 1 messages and views of the
group, which begin at the own join. The group's views of a change share its place and follow it."""
SAID_SAFE: Final = frozenset({"preack", "ack"})


class Context:
    """A history and what several checks need of it, worked out once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.lives = history.lives()
        self._safe_ends: dict[tuple[int, int], Place] = {}
        for life in self.lives:
            if life.safe:
                for tag, item in zip(life.tags, life.items, strict=True):
                    key = (life.connection.station, tag)
                    self._safe_ends[key] = max(self._safe_ends.get(key, _place(item)), _place(item))
        self.judged = {id(life): self._judged(life) for life in self.lives}

    def _judged(self, life: Life) -> list[Item]:
        """The items of a life that are final."""
        if life.safe or life.alive:
            return life.items
        ends = [self._safe_ends[k] for tag in life.instances if (k := (life.connection.station, tag)) in self._safe_ends]
        bound = max(ends, default=(0, 0, 0))
        return [item for item in life.items if _place(item) <= bound]

    def places(self) -> dict[Key, tuple[tuple[object, ...], Life]]:
        """Everything in the order: content by place, and the connection that saw it first. Contents of one place in their
        order."""
        out: dict[Key, tuple[tuple[object, ...], Life]] = {}
        for life in self.lives:
            for key, contents in _by_key(self.judged[id(life)]):
                # The first and the last place of a life may be cut in two; the longest version is the whole one.
                if key not in out or len(out[key][0]) < len(contents):
                    out[key] = (contents, life)
        return out

    def members_of(self) -> dict[int, set[tuple[tuple[int, int], ...]]]:
        """By instance: all versions of its members that any program got, as (station, incarnation) pairs."""
        out: dict[int, set[tuple[tuple[int, int], ...]]] = defaultdict(set)
        for life in self.lives:
            for item in life.items:
                if item.kind == "view":
                    out[int(item.raw["instance"])].add(tuple(sorted((int(m[0]), int(m[1])) for m in item.raw["members"])))
        return out

    def stations_of(self) -> dict[int, set[tuple[int, ...]]]:
        """By instance: all versions of the set of its stations, including those of ``open`` and ``reopened``."""
        out: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for instance, versions in self.members_of().items():
            out[instance] |= {tuple(station for station, _ in version) for version in versions}
        for connection in self.history.connections:
            for item in connection.items:
                if item.kind == "event" and item.name in ("open", "reopened"):
                    detail = item.raw["detail"]
                    out[int(detail["instance"])].add(tuple(sorted(_station(m) for m in detail["members"])))
        return out


def _station(member: object) -> int:
    """Members are station numbers, or lists that begin with one."""
    return int(member[0]) if isinstance(member, list | tuple) else int(str(member))


def _place(item: Item) -> Place:
    assert item.place is not None
    return item.place


def _key(item: Item) -> Key:
    return (*_place(item), 0 if item.kind == "view" else 1)


def _by_key(items: list[Item]) -> Iterator[tuple[Key, tuple[object, ...]]]:
    for key, run in itertools.groupby(items, _key):
        yield key, tuple(item.content for item in run)


Check: TypeAlias = Callable[[Context], Iterator[str]]


# ---- the order ----


def places_grow(context: Context) -> Iterator[str]:
    """Within a life places never go back, and messages never share one."""
    for life in context.lives:
        for before, item in itertools.pairwise(life.items):
            again = item.kind == "message" and before.kind == "message" and item.place == before.place
            if _place(item) < _place(before) or again:
                yield f"{life}: {item.content} at {item.place} after {before.content} at {before.place}"


def begins_with_join(context: Context) -> Iterator[str]:
    """The first thing of the group in a life is the view in which its program has joined: so ranges are as long as they look."""
    for life in context.lives:
        first = next((item for item in life.items if item.kind != "view"), None)
        me = [life.connection.station, life.connection.client]
        if first is not None and not (first.kind == "group" and me in [list(m[:2]) for m in first.raw["joined"]]):
            yield f"{life} begins with {first.content} at {first.place}, not with its own join"


def one_place(context: Context) -> Iterator[str]:
    """A message has one place, at whatever station, and a place one content."""
    at: dict[str, tuple[Place, Life]] = {}
    for life in context.lives:
        for item in context.judged[id(life)]:
            if item.kind == "message":
                place, other = at.setdefault(item.name, (_place(item), life))
                if place != item.place:
                    yield f"{item.name} is at {place} for {other}, at {item.place} for {life}"
    places = context.places()
    for life in context.lives:
        entries = list(_by_key(context.judged[id(life)]))
        for number, (key, contents) in enumerate(entries):
            whole, other = places[key]
            edge = number in (0, len(entries) - 1)
            if whole != contents and not (edge and _part_of(contents, whole)):
                yield f"at {key[:3]} {life} has {contents}, {other} has {whole}"


def _part_of(part: tuple[object, ...], whole: tuple[object, ...]) -> bool:
    """The same things in the same order without a hole."""
    return any(whole[k : k + len(part)] == part for k in range(len(whole) - len(part) + 1))


def common_order(context: Context) -> Iterator[str]:
    """Any two lives agree wherever their ranges of places overlap.

    That is: what any life got at a place within another one's range, that one got too. ``one_place`` checks equality place by
    place.
    """
    places = context.places()
    orders = [sorted(key for key in places if key[3] == sequence) for sequence in (0, 1)]
    for life in context.lives:
        own = [key for key, _ in _by_key(context.judged[id(life)])]
        have = set(own)
        for sequence, order in enumerate(orders):
            begun = next((key for key in own if key[3] == 1), None) if sequence else next(iter(own), None)
            if begun is None:
                continue
            low, high = bisect.bisect_left(order, begun), bisect.bisect_right(order, max(own))
            missing = [key for key in order[low:high] if key not in have]
            if missing:
                contents, other = places[missing[0]]
                yield (
                    f"{life} has a range of {begun[:3]}..{own[-1][:3]} without {len(missing)} things of it,"
                    f" first {contents} at {missing[0][:3]}, which {other} has"
                )


def no_duplicate(context: Context) -> Iterator[str]:
    """No program gets a message twice, not even in two instances."""
    for connection in context.history.connections:
        counts = Counter(item.name for item in connection.items if item.kind == "message")
        for name, count in counts.items():
            if count > 1:
                yield f"{name} was delivered {count} times to {connection.id}"


def no_invention(context: Context) -> Iterator[str]:
    """What is delivered was sent before, by the program it names, with these bytes, and was not refused."""
    for connection in context.history.connections:
        for item in connection.items:
            if item.kind != "message":
                continue
            sent = context.history.sent.get(item.name)
            if sent is None:
                yield f"{item.name}, delivered to {connection.id}, was sent by nobody"
            elif item.t < sent.t:
                yield f"{item.name} was delivered to {connection.id} {sent.t - item.t} ns before it was sent"
            elif [sent.connection.station, sent.connection.client] != list(item.raw["from"]):
                yield f"{item.name} of {sent.connection.id} was delivered to {connection.id} as of {item.raw['from']}"
            elif sent.result == "refused":
                yield f"{item.name} was refused to its sender and delivered to {connection.id}"
            elif not item.raw["whole"]:
                yield f"{item.name} was delivered to {connection.id} with other bytes than it was sent with"


def sender_order(context: Context) -> Iterator[str]:
    """A sender's messages come in its order, and without a hole except for those reported to it as undecided or refused."""
    excused = {connection.id: _excused(connection) for connection in context.history.connections}
    for life in context.lives:
        last: dict[str, Sent] = {}
        for item in context.judged[id(life)]:
            sent = context.history.sent.get(item.name) if item.kind == "message" else None
            if sent is None:
                continue
            sender = sent.connection
            before = last.get(sender.id)
            last[sender.id] = sent
            if before is None:
                continue
            if sent.number <= before.number:
                yield f"{life}: {sent.name} after {before.name}"
            for number in range(before.number + 1, sent.number):
                if number not in excused[sender.id]:
                    yield f"{life}: {sender.sent[number - 1].name} is missing between {before.name} and {sent.name}"
                    break


def _counted(connection: Connection) -> list[Sent]:
    """As the daemon counts: without what it refused."""
    return [sent for sent in connection.sent if sent.result != "refused"]


def _breaks(connection: Connection) -> Iterator[tuple[Item, int, int]]:
    """(reopened event, number of the first undecided message as the daemon counts, how many)."""
    for item in connection.items:
        if item.kind == "event" and item.name == "reopened":
            detail = item.raw["detail"]
            yield item, int(detail["first"]), int(detail["undecided"])


def _excused(connection: Connection) -> set[int]:
    """Numbers of messages that may be missing."""
    counted = _counted(connection)
    out = {sent.number for sent in connection.sent if sent.result == "refused"}
    for _, first, count in _breaks(connection):
        out |= {sent.number for sent in counted[first - 1 : first - 1 + count]}
    return out


# ---- instances ----


def same_members(context: Context) -> Iterator[str]:
    """An instance number has one set of members, with one incarnation each."""
    for instance, versions in sorted(context.members_of().items()):
        if len(versions) > 1:
            yield f"instance {instance} has members {' and '.join(map(str, sorted(versions)))}"
    for instance, sets in sorted(context.stations_of().items()):
        if len(sets) > 1:
            yield f"instance {instance} has stations {' and '.join(map(str, sorted(sets)))}"


def same_view(context: Context) -> Iterator[str]:
    """An instance begins at one place for all that continue to it, and its event reports what has changed."""
    at: dict[int, tuple[Place, Life]] = {}
    for life in context.lives:
        previous: set[tuple[int, int]] | None = None
        for item in context.judged[id(life)]:
            if item.kind != "view":
                continue
            instance = int(item.raw["instance"])
            place, other = at.setdefault(instance, (_place(item), life))
            if place != item.place:
                yield f"the view of instance {instance} is at {item.place} for {life}, at {place} for {other}"
            members = {(int(m[0]), int(m[1])) for m in item.raw["members"]}
            if previous is not None:
                joined, left = {s for s, _ in members - previous}, {s for s, _ in previous - members}
                if (joined, left) != (set(item.raw["joined"]), set(item.raw["left"])):
                    yield (
                        f"{life}: the view of instance {instance} says joined {item.raw['joined']}, left {item.raw['left']};"
                        f" the members say {sorted(joined)} and {sorted(left)}"
                    )
            previous = members


def quorate(context: Context) -> Iterator[str]:
    """No instance works without a quorum."""
    for instance, sets in sorted(context.stations_of().items()):
        for stations in sets:
            if len(stations) < context.history.quorum:
                yield f"instance {instance} has only stations {stations}, {context.history.quorum} are needed"


def one_instance_at_a_time(context: Context) -> Iterator[str]:
    """Instances follow each other in the order: what is safe in one precedes all that is safe in the next.

    Two instances at the same time, each with a quorum, would have mixed places.
    """
    low: dict[int, tuple[Place, Life]] = {}
    high: dict[int, tuple[Place, Life]] = {}
    for life in context.lives:
        if not life.safe:
            continue
        for tag, item in zip(life.tags, life.items, strict=True):
            if item.kind == "message":
                low[tag] = min(low.get(tag, (_place(item), life)), (_place(item), life), key=lambda x: x[0])
                high[tag] = max(high.get(tag, (_place(item), life)), (_place(item), life), key=lambda x: x[0])
    for before, after in itertools.pairwise(sorted(low)):
        if high[before][0] >= low[after][0]:
            yield (
                f"instance {before} goes on to {high[before][0]} for {high[before][1]},"
                f" instance {after} begins at {low[after][0]} for {low[after][1]}"
            )


def numbers_grow(context: Context) -> Iterator[str]:
    """For a program instance numbers only grow, and a station that comes back is a new incarnation."""
    programs = defaultdict(list)
    for connection in sorted(context.history.connections, key=lambda c: c.t):
        programs[connection.station, connection.slot, connection.group].append(connection)
    for connections in programs.values():
        last = 0
        for connection in connections:
            fresh = True
            for item in connection.items:
                if item.kind == "view" or (item.kind == "event" and item.name in ("open", "reopened")):
                    instance = int(item.raw["instance"] if item.kind == "view" else item.raw["detail"]["instance"])
                    # A joiner is told the number twice: that it is in, and at the place where it begins.
                    if instance < last or (instance == last and not fresh and item.kind != "view"):
                        yield f"{connection.id} is told of instance {instance} after {last}"
                    last, fresh = instance, False
    joiners = {item.raw["instance"]: item.raw["joined"] for life in context.lives for item in life.items if item.kind == "view"}
    known: dict[int, tuple[int, int]] = {}
    for instance, versions in sorted(context.members_of().items()):
        members = dict(next(iter(versions)))
        for station, incarnation in members.items():
            seen_in, before = known.get(station, (instance, incarnation))
            joined = station in joiners.get(instance, ())
            if incarnation < before or (joined and seen_in < instance and incarnation == before):
                yield f"station {station} has incarnation {incarnation} in instance {instance}, {before} in {seen_in}"
            known[station] = (instance, incarnation)


# ---- what senders were told ----


def acknowledged(context: Context) -> Iterator[str]:
    """What was confirmed to its sender as safe, every program has that was there and continued.

    A message that was sent after that, at any station of the instance, follows it in the order, by causality. So a life that
    began before the message was sent, and that got something sent after the confirmation, must have it.
    """
    told = list(told_safe(context.history))
    for life in context.lives:
        have = {item.name for item in context.judged[id(life)] if item.kind == "message"}
        joined = next((item for item in life.items if item.kind == "group"), None)
        if joined is None:
            continue
        begun = joined.t
        latest = max((context.history.sent[n].t for n in have if n in context.history.sent), default=0)
        for sent, when in told:
            if begun < sent.t and when < latest and sent.name not in have:
                yield f"{sent.name} was told to be safe and is missing for {life}, which has what was sent later"


def told_safe(history: History) -> Iterator[tuple[Sent, int]]:
    """(message, when its sender knew it to be at preack at least)."""
    for connection in history.connections:
        told: dict[str, tuple[Sent, int]] = {}
        for sent in connection.sent:
            safe = (sent.result == "done" and sent.level in SAID_SAFE) or (
                sent.result == "undecided" and sent.reached == "preack"
            )
            if safe:
                told[sent.name] = (sent, sent.t_result)
        counted = _counted(connection)
        end = 0
        for item, first, count in _breaks(connection):
            for sent in counted[end : first - 1]:
                told.setdefault(sent.name, (sent, item.t))
            end = first - 1 + count
        yield from told.values()


def undecided(context: Context) -> Iterator[str]:
    """Counts of undecided messages are right: those within were never confirmed as safe, and no others were left without a
    result."""
    for connection in context.history.connections:
        counted = _counted(connection)
        within: set[str] = set()
        for item, first, count in _breaks(connection):
            instance = item.raw["detail"]["instance"]
            if first < 1 or first - 1 + count > len(counted):
                yield f"{connection.id} has sent {len(counted)} messages; reopened says {count} from {first} on are undecided"
                continue
            for sent in counted[first - 1 : first - 1 + count]:
                within.add(sent.name)
                if sent.result == "done" and sent.level in SAID_SAFE:
                    yield f"{sent.name} was told done at {sent.level}, and undecided when instance {instance} began"
        for sent in connection.sent:
            if sent.result == "undecided" and sent.reached != "preack" and sent.name not in within:
                yield f"{sent.name} was told undecided, but no event counts it as that"


# ---- life and death ----


def no_breakdown(context: Context) -> Iterator[str]:
    """No daemon fences itself or ends by itself, and no connection breaks for another reason than the daemon's death."""
    for mark in context.history.marked("died"):
        yield f"the daemon of station {mark['station']} ended by itself with {mark['code']}: {mark.get('log', '')}"
    for connection in context.history.connections:
        for item in connection.items:
            if item.kind == "event" and item.name == "fenced":
                yield f"{connection.id} is fenced: {item.raw['detail']}"
        if connection.error in ("ProtocolError", "Fenced", "SlowReceiver", "VersionMismatch"):
            yield f"{connection.id} ended with {connection.error}: {connection.end}"


def convergence(context: Context) -> Iterator[str]:
    """After the last fault all programs are in one instance of all stations and get the last message of every program."""
    history = context.history
    if not history.marked("converged"):
        yield "the stations did not come together after the last fault within the time allowed"
        return
    rounds = [mark for mark in history.marked("round") if mark["complete"]]
    if not rounds:
        yield "not everybody got everybody's last message within the time allowed"
        return
    suffix = f".l{rounds[-1]['number']}"
    everybody = history.last
    wanted = {(station, slot) for station in everybody for slot in history.slots}
    alive = {k: life for life in context.lives if (k := (life.connection.station, life.connection.slot)) in wanted and life.alive}
    for station, slot in sorted(wanted - alive.keys()):
        yield f"station {station}'s program at {slot} is not there at the end"
    instances = {life.tags[-1] for life in alive.values()}
    if len(instances) > 1:
        yield f"the run ends in instances {sorted(instances)}"
    for instance in instances:
        if (sets := context.stations_of().get(instance, set())) and sets != {everybody}:
            yield f"the run ends in instance {instance} with stations {sorted(sets)}"
    for life in alive.values():
        have = {
            (sent.connection.station, sent.connection.slot)
            for item in life.items
            if item.kind == "message" and item.name.endswith(suffix) and (sent := history.sent.get(item.name)) is not None
        }
        if wanted - have:
            yield f"{life} ends without the last message of {sorted(wanted - have)}"


CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (
        places_grow, begins_with_join, one_place, common_order, no_duplicate, no_invention, sender_order, same_members, same_view,
        quorate, one_instance_at_a_time, numbers_grow, acknowledged, undecided, no_breakdown, convergence,
    )
}  # fmt: skip


WHOLE: Final = frozenset({"same_members", "same_view", "quorate", "one_instance_at_a_time", "numbers_grow", "no_breakdown"})
"""Checks of the whole cluster; ``one_place`` looks at both, since all groups share the places."""


def about(check: str) -> str:
    """What a check is for, in one sentence."""
    return (CHECKS[check].__doc__ or "").strip().splitlines()[0]


@dataclass(slots=True)
class Report:
    """What the checks found, and how much they had to look at."""

    violations: dict[str, list[str]] = field(default_factory=dict)
    """By check, at most ``SHOWN_MAX`` each and a count of the rest."""
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        lines = [f"  {name}: {value}" for name, value in self.figures.items()]
        for check, found in self.violations.items():
            lines += [f"VIOLATED {check}: {line}" for line in found]
        return "\n".join(lines)


def shown(found: list[str]) -> list[str]:
    """At most ``SHOWN_MAX`` lines, and a count of the rest."""
    return found if len(found) <= SHOWN_MAX else [*found[:SHOWN_MAX], f"and {len(found) - SHOWN_MAX} more"]


def judge(history: History) -> Report:
    """Run all checks."""
    context = Context(history)
    groups = {name: Context(part) for name, part in history.by_group().items()}
    report = Report()
    for name, check in CHECKS.items():
        if name in WHOLE or len(groups) < 2:
            found = list(check(context))
        else:
            found = [f"group {group}: {line}" for group, part in groups.items() for line in check(part)]
        if name == "one_place" and len(groups) > 1:
            found += _shared_places(context)
        if found:
            report.violations[name] = shown(found)
    report.figures = figures(context)
    return report


def _shared_places(context: Context) -> Iterator[str]:
    """Two messages of different groups at one place: every message has a place of its own."""
    at: dict[Place, tuple[str, Life]] = {}
    for life in context.lives:
        for item in context.judged[id(life)]:
            if item.kind == "message":
                name, other = at.setdefault(_place(item), (item.name, life))
                if name != item.name:
                    yield f"at {item.place} {life} has {item.name}, {other} has {name}"


def figures(context: Context) -> dict[str, int]:
    """How much happened: a run in which nothing did proves nothing."""
    history = context.history
    results = Counter(sent.result or "untold" for sent in history.sent.values())
    safe = sum(item.kind == "message" for life in context.lives if life.safe for item in life.items)
    events = Counter(item.name for c in history.connections for item in c.items if item.kind == "event")
    instances = {tag for life in context.lives for tag in life.tags}
    exempt = sum(len(life.items) - len(context.judged[id(life)]) for life in context.lives)
    return {
        "connections": len(history.connections),
        "lives": len(context.lives),
        "instances": len(instances),
        "views": sum(item.kind == "view" for life in context.lives for item in life.items),
        "sent": len(history.sent),
        **{f"sent_{result}": count for result, count in sorted(results.items())},
        "delivered_safe": safe,
        "delivered_all": sum(item.kind == "message" for c in history.connections for item in c.items),
        "ordered_not_judged": exempt,
        **{f"event_{name}": count for name, count in sorted(events.items())},
        "longest_silence_ms": longest_silence_ms(context),
    }


def longest_silence_ms(context: Context) -> int:
    """Longest time in which no program got a message at a safe level, before the last fault ended."""
    healed = history_end(context)
    times = sorted(
        item.t for life in context.lives if life.safe for item in life.items if item.kind == "message" and item.t <= healed
    )
    return max((b - a for a, b in itertools.pairwise(times)), default=0) // 1_000_000


def history_end(context: Context) -> int:
    """When the last fault ended; the last record if none is marked."""
    marks = context.history.marked("healed")
    if marks:
        return int(marks[-1]["t"])
    return max((item.t for life in context.lives for item in life.items), default=0)


__all__ = ["CHECKS", "VIEW_INDEX", "WHOLE", "Report", "about", "judge"]
