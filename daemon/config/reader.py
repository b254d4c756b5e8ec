"""Reading a configuration: whatever is wrong with it is named with file, line and the allowed values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...proto.service.database.zones import parse_zone as parse_database_zone
from ...proto.service.directory.parts import parse_zone
from .option import Option, did_you_mean
from .options import (
    ACCESS_OPTIONS,
    LINK_OPTIONS,
    LINKS_MAX,
    OPTIONS,
    SECTIONS,
    Config,
    LinkOptions,
)
from .programs import ACCESS_MAX, AccessOptions
from .source import FILE_BYTES_MAX, ConfigError, Problem, Source, quoted, shown

CONFIG_PATH: Final = "/etc/zenjun/zenjund.toml"
LINK: Final = "link"
"""The tables [[link]], one for each interface."""
ACCESS: Final = "access"
"""The tables [[access]], one for each pattern of names of groups."""
CONFIG_ENV: Final = "ZENJUN_CONFIG"


def find(path: str | os.PathLike[str] | None = None) -> Path:
    """The file to read: the one given, else $ZENJUN_CONFIG, else /etc/zenjun/zenjund.toml."""
    return Path(path if path is not None else os.environ.get(CONFIG_ENV) or CONFIG_PATH)


def load(path: str | os.PathLike[str] | None = None) -> Config:
    """Read and check a configuration file (see ``find``). Raises ConfigError, and nothing else, for whatever is in it."""
    file = find(path)
    try:
        with file.open("rb") as f:
            data = f.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(str(file), (Problem(0, f"cannot be read: {error.strerror or error}"),)) from None
    return parse(data, str(file))


def parse(data: bytes | str, file: str = "(string)") -> Config:
    """Check the text of a configuration file. Raises ConfigError."""
    source = Source(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, file)
    tree = source.tree()
    problems: list[Problem] = []
    link = tuple(LinkOptions(**v) for v in _tables(source, LINK, tree, LINK_OPTIONS, LINKS_MAX, "interface", problems))
    access = tuple(AccessOptions(**v) for v in _tables(source, ACCESS, tree, ACCESS_OPTIONS, ACCESS_MAX, "pattern", problems))
    sections = {name: _section(source, name, tree, problems) for name in SECTIONS}
    for name in tree:
        if name not in SECTIONS and name not in (LINK, ACCESS):
            problems.append(Problem(source.line(name, None), _unknown_section(name, tree[name])))
    if not problems:
        config = Config(file=file, link=link, access=access, **sections)
        problems += _together(source, config)
    if problems:
        raise ConfigError(file, tuple(sorted(problems, key=lambda p: p.line)))
    return config


def _section(source: Source, name: str, tree: Mapping[str, Any], problems: list[Problem]) -> Any:
    """The options of one section; problems are added to the list, and then the result is worthless."""
    given = tree.get(name, {})
    rows = {o.name: o for o in OPTIONS if o.section == name}
    required = [o for o in rows.values() if o.required and not (tree.get(LINK) and _in_link(o))]
    if name not in tree and required:
        problems.append(Problem(1, f"section [{name}] is missing; it needs {' and '.join(o.name for o in required)}"))
        return None
    if not isinstance(given, dict):
        problems.append(Problem(source.line(name, None), f"{name} is {shown(given)}: expected a section [{name}]"))
        return None
    values: dict[str, Any] = {"interface": ""} if "interface" in rows and not any(map(_in_link, required)) else {}
    values |= _values(source, name, given, rows, problems)
    for row in required:
        if row.name not in given:
            text = f"{name}.{row.name} is missing: expected {row.allowed} ({row.help})"
            problems.append(Problem(source.line(name, None), text))
    return None if problems else SECTIONS[name](**values)


def _values(
    source: Source, name: str, given: Mapping[str, Any], rows: Mapping[str, Option], problems: list[Problem], number: int = 0
) -> dict[str, Any]:
    """The values of a table that may be as they are. number: of the table among those of its name, from 0."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        row = rows.get(key)
        if row is None:
            problems.append(Problem(source.line(name, key, number), _unknown_option(name, key, tuple(rows))))
        elif problem := row.problem(value):
            problems.append(Problem(source.line(name, key, number), f"{name}.{key} {problem}"))
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return values


def _in_link(option: Option) -> bool:
    """Whether [[link]] has it in place of its section."""
    return (option.section, option.name) == ("station", "interface")


def _tables(
    source: Source, name: str, tree: Mapping[str, Any], options: tuple[Option, ...], most: int, each: str, problems: list[Problem]
) -> list[dict[str, Any]]:
    """The values of the tables [[name]] that may be as they are. each: what there is one for."""
    given = tree.get(name, [])
    line = source.line(name, None)
    if not isinstance(given, list) or not all(isinstance(table, dict) for table in given):
        problems.append(Problem(line, f"{name} is not a list of tables: write [[{name}]] for each {each}"))
        return []
    if len(given) > most:
        problems.append(Problem(line, f"there are {len(given)} tables [[{name}]]: expected at most {most}"))
        return []
    rows = {o.name: o for o in options}
    found = []
    for number, table in enumerate(given):
        before = len(problems)
        values = _values(source, name, table, rows, problems, number)
        for row in options:
            if row.required and row.name not in table:
                text = f"{name}.{row.name} is missing: expected {row.allowed} ({row.help})"
                problems.append(Problem(source.line(name, None, number), text))
        if len(problems) == before:
            found.append(values)
    return found


def _links(source: Source, config: Config) -> Iterator[Problem]:
    """What does not go together with links."""
    count, line = config.links.count, source.line(LINK, None)
    if count > 1 and config.cluster.medium == "bus":
        yield Problem(source.line("links", "count"), 'links.count is more than 1: cluster.medium = "bus" has one link')
    numbers = [link.number for link in config.link] + ([1] if config.station.interface else [])
    names = list(config.interfaces.values())
    for number in sorted({n for n in numbers if numbers.count(n) > 1}):
        also = " (station.interface is number 1)" if number == 1 and config.station.interface else ""
        yield Problem(line, f"two links have number {number}{also}: expected one interface for each")
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield Problem(line, f"two links have the interface {shown(name)}: expected one link for each")
    for number in numbers:
        if number > count:
            yield Problem(line, f"link.number is {number}: expected 1..{count} (links.count)")


def _together(source: Source, config: Config) -> Iterator[Problem]:
    """What only shows when several options are looked at together."""
    c, s = config.cluster, config.station
    for name in ("required_stations", "vacant_stations"):
        for k in getattr(c, name):
            if k > c.stations:
                yield Problem(
                    source.line("cluster", name), f"cluster.{name} names station {k}: expected 1..{c.stations} (cluster.stations)"
                )
    for k in sorted(set(c.required_stations) & set(c.vacant_stations)):
        line = source.line("cluster", "required_stations")
        yield Problem(line, f"cluster.required_stations names station {k}, and so does cluster.vacant_stations")
    count = len(c.roster)
    if not count:
        yield Problem(source.line("cluster", "vacant_stations"), "cluster.vacant_stations leaves no station")
    if c.quorum > count or (0 < c.quorum <= count // 2 and not c.required_stations):
        low = 1 if c.required_stations else count // 2 + 1
        why = "of two parts of the cluster only one may go on; name required_stations for less"
        yield Problem(source.line("cluster", "quorum"), f"cluster.quorum is {c.quorum}: expected 0 or {low}..{count} ({why})")
    if c.vacant_stations and c.medium == "bus":
        yield Problem(
            source.line("cluster", "vacant_stations"), 'cluster.vacant_stations: there are none where cluster.medium = "bus"'
        )
    if s.id > c.stations and (c.medium == "bus" or config.links.count > 1):  # none is added above while these run
        yield Problem(source.line("station", "id"), f"station.id is {s.id}: expected 1..{c.stations} (cluster.stations)")
    yield from _links(source, config)
    yield from _seven(source, config)
    yield from _zoned(source, config)
    yield from _database(source, config)
    at_least: list[tuple[str, int, str]] = [
        ("fail_timeout_ms", 2 * c.heartbeat_ms, "2 × heartbeat_ms"),
        ("open_window_ms", 4 * c.open_interval_ms, "4 × open_interval_ms"),
        ("nak_retry_max_ms", c.nak_retry_ms, "nak_retry_ms"),
        ("poll_delay_max_ms", c.poll_delay_ms, "poll_delay_ms"),
    ]
    if c.quorum_timeout_ms:
        at_least.append(("quorum_timeout_ms", 2 * c.heartbeat_ms, "2 × heartbeat_ms"))
        if c.quorum_timeout_ms > c.fail_timeout_ms:
            line = source.line("cluster", "quorum_timeout_ms")
            text = f"expected at most {c.fail_timeout_ms} ms (fail_timeout_ms)"
            yield Problem(line, f"cluster.quorum_timeout_ms is {c.quorum_timeout_ms} ms: {text}")
    for name, bound, why in at_least:
        value = getattr(c, name)
        if value < bound:
            line = source.line("cluster", name)
            yield Problem(line, f"cluster.{name} is {value} ms: expected at least {bound} ms ({why})")


def _seven(source: Source, config: Config) -> Iterator[Problem]:
    """What does not go together with how names change."""
    d = config.directory
    if d.update == "ordered":
        if d.profile != "broadcast":
            text = f'directory.profile is "{d.profile}": it needs directory.update = "seven"'
            yield Problem(source.line("directory", "profile"), text)
        return
    line = source.line("directory", "update")
    if config.cluster.medium == "bus":
        yield Problem(line, 'directory.update is "seven": it needs groups of order op, which cluster.medium = "bus" has not')
    if d.dns:
        yield Problem(line, 'directory.update is "seven": directory.dns has to be empty, for DNS answers cannot wait for a lock')


def _zoned(source: Source, config: Config) -> Iterator[Problem]:
    """What does not go together with where names are kept."""
    d, stations = config.directory, config.cluster.stations
    if d.zones and d.placement != "zoned":
        yield Problem(source.line("directory", "zones"), 'directory.zones needs directory.placement = "zoned"')
    named = [("holders", d.holders), *(("zones", parse_zone(text)[1]) for text in d.zones)]
    for option, found in named:
        for k in found:
            if k > stations:
                text = f"directory.{option} names station {k}: expected 1..{stations} (cluster.stations)"
                yield Problem(source.line("directory", option), text)
    if not (d.zones or d.holders):
        return
    line = source.line("directory", "zones" if d.zones else "holders")
    if d.update == "seven":
        yield Problem(line, 'directory.update is "seven": every station keeps all names, and holders and zones have to be empty')
    if d.dns:
        yield Problem(line, "directory.dns answers from a station that keeps all names: holders and zones have to be empty")


def _database(source: Source, config: Config) -> Iterator[Problem]:
    """Zones of databases name stations that there are."""
    for text in config.database.zones:
        for k in parse_database_zone(text)[1]:
            if k > config.cluster.stations:
                problem = f"database.zones names station {k}: expected 1..{config.cluster.stations} (cluster.stations)"
                yield Problem(source.line("database", "zones"), problem)


def _unknown_section(name: str, value: object) -> str:
    homes = [o.section for o in OPTIONS if o.name == name]
    if homes and not isinstance(value, dict):
        return f"{quoted(name)} stands outside a section; it belongs in [{homes[0]}]"
    what = f"section [{quoted(name)}]" if isinstance(value, dict) else quoted(name)
    return f"{what} is unknown; sections are {', '.join(f'[{s}]' for s in SECTIONS)}" + did_you_mean(name, tuple(SECTIONS))


def _unknown_option(section: str, name: str, here: tuple[str, ...]) -> str:
    homes = [o.section for o in OPTIONS if o.name == name]
    text = f"{section}.{quoted(name)} is unknown"
    if homes:
        return f"{text}; it belongs in [{homes[0]}]"
    return text + (did_you_mean(name, here) or f"; options of [{section}] are {', '.join(here)}")
