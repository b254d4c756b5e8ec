"""What docs/groups.md guarantees of groups that overlap, judged only from what programs received (``multicaster.py`` recorded
it).

Each order is judged by itself. Places compare within an order, over all its groups. *Judged* of a connection at level preack is
all that it got. At level ordered it is what a program of the same station had safe in the same instance, unless the connection
lasted to the end: beyond that a station that is removed may have delivered what no other one will.
"""

from __future__ import annotations

import graphlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from . import checker
from .checker import Report, shown
from .history import History, Item, Life, Place, Sent
from .multicaster import groups_of

INSTANCE_BITS: Final = 32
"""A time of these orders has the number of its instance above these bits."""


class Sight:
    """A history of one order, and what several checks need of it."""

    def __init__(self, history: History, groups: Mapping[str, Sequence[int]]) -> None:
        """groups: stations that have members, by the group's name."""
        self.history = history
        self.context = checker.Context(history)
        self.stations = {name: frozenset(stations) for name, stations in groups.items()}
        self.lives = history.lives()
        ends: dict[tuple[int, int], Place] = {}
        for life in self.lives:
            for item in life.items if life.safe else ():
                key = (life.connection.station, _instance(item))
                ends[key] = max(ends.get(key, (0, 0, 0)), _place(item))
        self.judged = {id(life): self._judged(life, ends) for life in self.lives}
        self.joined = {id(life): _joins(life) for life in self.lives}
        """By life: the view with which its program has joined each group."""

    @staticmethod
    def _judged(life: Life, ends: Mapping[tuple[int, int], Place]) -> list[Item]:
        """What of a life is final: all that comes before something that its station had safe in the same stay, in whichever
        instance. ends: the last safe place by station and instance."""
        if life.safe or life.alive:
            return life.items
        instances = {_instance(item) for item in life.items}
        bound = max((ends.get((life.connection.station, i), (0, 0, 0)) for i in instances), default=(0, 0, 0))
        return [item for item in life.items if _place(item) <= bound]

    def of(self, life: Life) -> list[Item]:
        return self.judged[id(life)]

    def begun(self, life: Life, group: str) -> Item | None:
        """The view with which a life joined a group, if it has."""
        return self.joined[id(life)].get(group)

    def concerns(self, life: Life, name: str, place: Place) -> bool:
        """Whether a message of this name and place is for the program of a life."""
        joins = (self.begun(life, group) for group in groups_of(name))
        return any(join is not None and _place(join) < place for join in joins)


def _place(item: Item) -> Place:
    assert item.place is not None
    return item.place


def _instance(item: Item) -> int:
    return _place(item)[0] >> INSTANCE_BITS


def _joins(life: Life) -> dict[str, Item]:
    me = [life.connection.station, life.connection.client]
    out: dict[str, Item] = {}
    for item in life.items:
        if item.kind == "group" and me in [list(m[:2]) for m in item.raw["joined"]]:
            out.setdefault(item.raw["g"], item)
    return out


def _messages(items: Sequence[Item]) -> Iterator[Item]:
    return (item for item in items if item.kind == "message")


Check: TypeAlias = Callable[[Sight], Iterator[str]]


def places_grow(sight: Sight) -> Iterator[str]:
    """What a program gets has growing places, over all its groups, and messages never share one."""
    for life in sight.lives:
        for before, item in itertools.pairwise(life.items):
            again = item.kind == "message" and before.kind == "message" and item.place == before.place
            if _place(item) < _place(before) or again:
                yield f"{life}: {item.content} at {item.place} after {before.content} at {before.place}"


def no_cycle(sight: Sight) -> Iterator[str]:
    """The sequences of all programs together have no cycle: so any two agree on what both got."""
    after: defaultdict[str, set[str]] = defaultdict(set)
    for life in sight.lives:
        for before, item in itertools.pairwise(_messages(sight.of(life))):
            after[item.name].add(before.name)
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError as error:
        cycle = list(error.args[1])
        yield f"{' before '.join(cycle[:6])}{' …' if len(cycle) > 6 else ''}"


def one_place(sight: Sight) -> Iterator[str]:
    """A message has one place at all programs, and a place one message."""
    place_of: dict[str, Place] = {}
    name_at: dict[Place, str] = {}
    for life in sight.lives:
        for item in _messages(sight.of(life)):
            place = _place(item)
            if place_of.setdefault(item.name, place) != place:
                yield f"{item.name} is at {place} for {life}, elsewhere at {place_of[item.name]}"
            if name_at.setdefault(place, item.name) != item.name:
                yield f"at {place} {life} has {item.name}, others {name_at[place]}"


def begins_with_join(sight: Sight) -> Iterator[str]:
    """What a program gets of a group begins with the view in which it has joined."""
    for life in sight.lives:
        seen: set[str] = set()
        for item in life.items:
            group = item.raw["g"]
            if group not in seen and sight.begun(life, group) is not item:
                yield f"{life} begins group {group} with {item.content} at {item.place}, not with its own join"
            seen.add(group)


def complete(sight: Sight) -> Iterator[str]:
    """A message that any program got, every program got that was a member of one of its groups at the message's place."""
    known: dict[str, tuple[Place, Life]] = {}
    for life in sight.lives:
        for item in _messages(sight.of(life)):
            known.setdefault(item.name, (_place(item), life))
    ordered = sorted(known.items(), key=lambda entry: entry[1][0])
    for life in sight.lives:
        items = sight.of(life)
        if not items:
            continue
        have = {item.name for item in _messages(items)}
        end = _place(items[-1])
        missing = [
            (name, place, other)
            for name, (place, other) in ordered
            if place <= end and name not in have and sight.concerns(life, name, place)
        ]
        if missing:
            name, place, other = missing[0]
            yield f"{life} lacks {len(missing)} messages before {end}, first {name} at {place}, which {other} has"


def views(sight: Sight) -> Iterator[str]:
    """A view has one place at all members of its group, its members are where they may be, and it reports what has changed."""
    at: dict[tuple[str, Place], tuple[tuple[object, ...], Life]] = {}
    for life in sight.lives:
        present: dict[str, set[tuple[int, ...]]] = {}
        runs = itertools.groupby((i for i in sight.of(life) if i.kind == "group"), lambda i: (i.raw["g"], i.place))
        entries = [(key, list(run)) for key, run in runs]
        for number, ((group, place), run) in enumerate(entries):
            content = tuple(item.content for item in run)
            assert place is not None
            whole, other = at.setdefault((group, place), (content, life))
            edge = number == len(entries) - 1 or any(sight.begun(life, group) is item for item in run)
            if content != whole and not edge and other is not life:
                yield f"group {group} at {place}: {life} has {content}, {other} has {whole}"
            for item in run:
                members = {tuple(m[:2]) for m in item.raw["members"]}
                if strangers := {m for m in members if m[0] not in sight.stations[group]}:
                    yield f"{life}: group {group} has members {sorted(strangers)} at stations where it has none"
                joined, left = ({tuple(m[:2]) for m in item.raw[key]} for key in ("joined", "left"))
                if group in present and (present[group] | joined) - left != members:
                    yield f"{life}: group {group} at {place} has {sorted(members)}, after {sorted(present[group])}"
                present[group] = members


def for_its_groups(sight: Sight) -> Iterator[str]:
    """A program gets only what is sent to a group that it is a member of, on the handle of such a group."""
    for life in sight.lives:
        for item in _messages(life.items):
            group = item.raw["g"]
            if group not in groups_of(item.name) or life.connection.station not in sight.stations[group]:
                yield f"{life} got {item.name} on its handle of group {group}"


def no_duplicate(sight: Sight) -> Iterator[str]:
    """No program gets a message twice, not even in two instances."""
    yield from checker.no_duplicate(sight.context)


def no_invention(sight: Sight) -> Iterator[str]:
    """What is delivered was sent before, by the program it names, with these bytes, and was not refused."""
    yield from checker.no_invention(sight.context)


def sender_order(sight: Sight) -> Iterator[str]:
    """A program's messages come in the order of sending; one that was told to be done is not left out."""
    told = {sent.name for sent, _ in checker.told_safe(sight.history)}
    for life in sight.lives:
        last: dict[str, tuple[Sent, Place]] = {}
        for item in _messages(sight.of(life)):
            sent = sight.history.sent.get(item.name)
            if sent is None:
                continue
            sender = sent.connection
            before, since = last.get(sender.id, (None, (0, 0, 0)))
            last[sender.id] = (sent, _place(item))
            if before is None:
                continue
            if sent.number <= before.number:
                yield f"{life}: {sent.name} after {before.name}"
            for between in sender.sent[before.number : sent.number - 1]:
                if between.name in told and sight.concerns(life, between.name, since):
                    yield f"{life}: {between.name} is missing between {before.name} and {sent.name}"
                    break


def causal(sight: Sight) -> Iterator[str]:
    """What a program had got at preack before it sent a message comes before that message."""
    place_of = {item.name: _place(item) for life in sight.lives for item in _messages(sight.of(life))}
    for life in sight.lives:
        if not life.safe:
            continue
        got = list(_messages(life.items))
        k = 0
        for sent in life.connection.sent:
            while k < len(got) and got[k].t < sent.t:
                k += 1
            if k and sent.name in place_of and place_of[sent.name] < _place(got[k - 1]):
                before = got[k - 1]
                yield f"{sent.name} is at {place_of[sent.name]}; its sender {life} had {before.name} at {before.place} before"


def acknowledged(sight: Sight) -> Iterator[str]:
    """What was confirmed to its sender at preack, every program has that was a member before and got what was sent later."""
    told = sorted(checker.told_safe(sight.history), key=lambda entry: entry[0].t)
    for life in sight.lives:
        have = {item.name for item in _messages(sight.of(life))}
        latest = max((sight.history.sent[name].t for name in have if name in sight.history.sent), default=0)
        for sent, when in told:
            if when >= latest or sent.name in have:
                continue
            joins = [join for group in groups_of(sent.name) if (join := sight.begun(life, group)) is not None]
            if any(join.t < sent.t for join in joins):
                yield f"{sent.name} was told to be safe and is missing for {life}, which has what was sent later"


def undecided(sight: Sight) -> Iterator[str]:
    """What is counted as undecided was never confirmed at preack, and nothing else was left without a result."""
    yield from checker.undecided(sight.context)


def no_breakdown(sight: Sight) -> Iterator[str]:
    """No connection ends because of a violation of the protocol, and no station is fenced."""
    yield from checker.no_breakdown(sight.context)


def convergence(sight: Sight) -> Iterator[str]:
    """After the last fault every member gets a last message of every program."""
    rounds = [mark for mark in sight.history.marked("multicast") if mark.get("complete")]
    if not rounds:
        yield "not every member got the last message of every program within the time allowed"
        return
    kind = f"l{rounds[-1]['round']}"
    said = {name for name in sight.history.sent if name.split(".")[4] == kind}
    there = [life for life in sight.lives if life.alive]
    wanted = {s for stations in sight.stations.values() for s in stations} & set(sight.history.last)
    for station in sorted(wanted - {life.connection.station for life in there}):
        yield f"station {station} has no program at the end"
    for life in there:
        have = {item.name for item in _messages(life.items)}
        if missing := said - have:
            yield f"{life} ends without {sorted(missing)[:3]}"


CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (
        places_grow, no_cycle, one_place, begins_with_join, complete, views, for_its_groups, no_duplicate, no_invention,
        sender_order, causal, acknowledged, undecided, no_breakdown, convergence,
    )
}  # fmt: skip


def about(check: str) -> str:
    """What a check is for, in one sentence."""
    return (CHECKS[check].__doc__ or "").strip().splitlines()[0]


def judge(history: History, groups: Mapping[str, Sequence[int]]) -> Report:
    """Run all checks on each order. groups: stations with members, by name."""
    report = Report()
    found: defaultdict[str, list[str]] = defaultdict(list)
    for order, part in history.by_group().items():
        sight = Sight(part, groups)
        for name, check in CHECKS.items():
            found[name] += [f"{order}: {line}" for line in check(sight)]
        for name, value in figures(sight).items():
            report.figures[name] = report.figures.get(name, 0) + value
    for name, lines in found.items():
        if lines:
            report.violations[name] = shown(lines)
    return report


def figures(sight: Sight) -> dict[str, int]:
    """How much happened: a run in which nothing did proves nothing."""
    history = sight.history
    results = Counter(sent.result or "untold" for sent in history.sent.values())
    got: defaultdict[str, set[int]] = defaultdict(set)
    for life in sight.lives:
        for item in _messages(sight.of(life)):
            got[item.name].add(life.connection.station)
    return {
        "connections": len(history.connections),
        "lives": len(sight.lives),
        "instances": len({_instance(item) for life in sight.lives for item in life.items}),
        "views": sum(item.kind == "group" for life in sight.lives for item in life.items),
        "sent": len(history.sent),
        **{f"sent_{result}": count for result, count in sorted(results.items())},
        "sent_to_several": sum(len(groups_of(name)) > 1 for name in history.sent),
        "delivered_safe": sum(1 for life in sight.lives if life.safe for _ in _messages(life.items)),
        "delivered_all": sum(1 for life in sight.lives for _ in _messages(life.items)),
        "at_several_stations": sum(len(stations) > 1 for stations in got.values()),
        "ordered_not_judged": sum(len(life.items) - len(sight.of(life)) for life in sight.lives),
    }


__all__ = ["CHECKS", "Sight", "about", "judge"]
