"""corosync.conf, as far as the stand-in uses it: the nodelist, votes, who may connect, and the keys that libcmap shows of it.

The language is corosync's: sections in braces, ``key: value``, comments with ``#`` at the beginning of a line. What corosync
takes and the stand-in does not need is kept as a key; what cannot be is a ``Problem`` with its line.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import pwd
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ...proto.service.corosync.messages import FINGERPRINT_BYTES, VERSION
from ...proto.service.corosync.ring import Nodes
from ...proto.service.corosync.votequorum import VOTES_MAX, Config
from ...proto.wire import STATIONS_MAX
from ..config import ConfigError
from ..config.options import LINKS_MAX
from ..config.source import Problem
from .maps import STRING, U8, U16, U32, U64, VALUE_MAX, Type, Value, is_name

PATH: Final = Path("/etc/corosync/corosync.conf")
PATH_ENV: Final = "COROSYNC_MAIN_CONFIG_FILE"
"""corosync's own variable."""
UIDGID_FOLDER: Final = "uidgid.d"
FILE_BYTES_MAX: Final = 1 << 20
PROVIDER: Final = "corosync_votequorum"
QUEUE_BYTES_MAX: Final = 64 << 20
MESSAGE_BYTES: Final = (1 << 20) + (64 << 10)
"""libcpg's largest message, and our header."""
U32_MAX: Final = 0xFFFFFFFF
MOST: Final = {"zenjun_station": STATIONS_MAX, "quorum_votes": VOTES_MAX, "queue_bytes_max": 1 << 48}
"""Of numbers that the stand-in uses; the others have 32 bits."""
DIGITS_MAX: Final = 15
_LEVEL: Final = "\0"
"""The key of a line that is the beginning of a section."""
TYPES: Final[dict[str, Type]] = {
    **dict.fromkeys(
        """totem.version totem.token totem.token_retransmit totem.token_warning totem.hold totem.join totem.send_join
        totem.token_retransmits_before_loss_const totem.token_coefficient totem.consensus totem.merge totem.downcheck
        totem.fail_recv_const totem.seqno_unchanged_const totem.heartbeat_failures_allowed totem.max_network_delay
        totem.window_size totem.max_messages totem.miss_count_const totem.netmtu totem.threads totem.nodeid
        totem.knet_pmtud_interval totem.knet_mtu totem.knet_compression_threshold quorum.expected_votes quorum.votes
        quorum.last_man_standing_window quorum.leaving_timeout quorum.sync_timeout quorum.device.timeout
        quorum.device.sync_timeout quorum.device.votes node.nodeid node.quorum_votes""".split(),  # noqa: SIM905
        U32,
    ),
    **dict.fromkeys(
        """quorum.two_node quorum.wait_for_all quorum.auto_tie_breaker quorum.last_man_standing
        quorum.allow_downscale""".split(),  # noqa: SIM905
        U8,
    ),
    "totem.config_version": U64,
    "interface.mcastport": U16,
    "interface.ttl": U8,
    "interface.knet_link_priority": U8,
    "interface.knet_ping_interval": U32,
    "interface.knet_ping_timeout": U32,
    "interface.knet_ping_precision": U32,
    "interface.knet_pong_count": U32,
}
"""Types in libcmap of what is no text; ``node`` and ``interface`` stand for any of them."""
SECTIONS: Final = frozenset(
    [
        "totem",
        "interface",
        "logging",
        "logger_subsys",
        "quorum",
        "device",
        "model",
        "net",
        "disk",
        "heuristics",
        "nodelist",
        "node",
        "uidgid",
        "qb",
        "resources",
        "system",
        "memory_used",
        "nozzle",
        "zenjun",
    ]
)
"""Of corosync.conf(5), corosync-qdevice(8), and the stand-in's own."""
TOTEM_NUMBERS: Final = frozenset({"version", "token", "token_coefficient", "consensus", "join", "merge", "hold", "netmtu"})
"""Numbers of section ``totem`` that are shown in libcmap and do nothing else here; a wrong one is misspelt."""


class Line(NamedTuple):
    """``key: value``, and the sections around it, outermost first."""

    number: int
    sections: tuple[str, ...]
    key: str
    value: str
    begun: int = 0
    """The line where its section begins: two sections of one name are two."""


def ring_of(key: str) -> int | None:
    """The number of the ring that a node's key has an address for, from 0; None: it is another key."""
    number = key.removeprefix("ring").removesuffix("_addr")
    return int(number) if key == f"ring{number}_addr" and number.isdigit() else None


@dataclass
class Node:
    """A section ``node`` of the nodelist."""

    line: int
    values: dict[str, Line] = field(default_factory=dict)

    def text(self, key: str, default: str = "") -> str:
        return self.values[key].value if key in self.values else default

    @property
    def id(self) -> int:
        return int(self.text("nodeid", "0"))

    @property
    def station(self) -> int:
        return int(self.text("zenjun_station", self.text("nodeid", "0")))

    @property
    def votes(self) -> int:
        return int(self.text("quorum_votes", "1"))

    @property
    def address(self) -> str:
        return self.text("ring0_addr")


@dataclass
class Conf:
    """What a file says."""

    path: Path
    lines: list[Line]
    nodes: list[Node]
    uids: frozenset[int]
    gids: frozenset[int]
    warnings: list[tuple[int, str]] = field(default_factory=list)
    """Line and text: what is not as in corosync, but works."""

    def get(self, *path: str) -> str:
        """The last value of a key, named with its sections; empty: there is none."""
        found = self.line(*path)
        return found.value if found else ""

    def line(self, *path: str) -> Line | None:
        return next((x for x in reversed(self.lines) if (*x.sections, x.key) == path), None)

    def number(self, *path: str, default: int = 0) -> int:
        return int(self.get(*path) or default)

    def is_on(self, *path: str) -> bool:
        return self.number(*path) == 1

    @property
    def is_realtime(self) -> bool:
        """corosync's ``system.sched_rr``."""
        return self.get("system", "sched_rr") != "no"

    @property
    def alone_after_ms(self) -> int:
        return self.number("zenjun", "alone_after_ms")

    @property
    def queue_bytes_max(self) -> int:
        return self.number("zenjun", "queue_bytes_max", default=QUEUE_BYTES_MAX)

    def quorum(self) -> Config:
        """Votequorum's options."""
        return Config(
            votes={node.id: node.votes for node in self.nodes},
            expected=self.number("quorum", "expected_votes"),
            two_node=self.is_on("quorum", "two_node"),
            wait_for_all=self.is_on("quorum", "wait_for_all") if self.get("quorum", "wait_for_all") else None,
            auto_tie_breaker=self.is_on("quorum", "auto_tie_breaker"),
            last_man_standing=self.is_on("quorum", "last_man_standing"),
            allow_downscale=self.is_on("quorum", "allow_downscale"),
            device=any(x.sections[:2] == ("quorum", "device") for x in self.lines),
        )

    def ring_nodes(self, station: int) -> Nodes:
        """For the ring, seen from a station that is in the nodelist. The fingerprint covers what must be equal everywhere, or
        the nodes of a ring would disagree: how the stand-ins' messages are written, nodes, stations, and the options of quorum
        but for votes, which may be set."""
        quorum = self.quorum()
        deciding = (quorum.two_node, quorum.waits_for_all, quorum.auto_tie_breaker)
        text = repr((VERSION, sorted((node.id, node.station) for node in self.nodes), deciding))
        mark = hashlib.sha256(text.encode()).digest()[:FINGERPRINT_BYTES]
        return Nodes(self.node_of(station).id, {node.station: node.id for node in self.nodes}, mark)

    def node_of(self, station: int) -> Node:
        return next(node for node in self.nodes if node.station == station)

    def keys(self) -> Iterator[tuple[str, Value]]:
        """What libcmap shows of it, as far as a key can be named so: programs have buffers for the longest name and value."""
        return ((name, value) for name, value in self._keys() if is_name(name.encode()) and len(value.data) <= VALUE_MAX)

    def _keys(self) -> Iterator[tuple[str, Value]]:
        for position, node in enumerate(self.nodes):
            for line in node.values.values():
                yield f"nodelist.node.{position}.{line.key}", _value(f"node.{line.key}", line.value)
        for x in self.lines:
            path = ".".join((*x.sections, x.key))
            if x.sections[:2] == ("nodelist", "node") or x.sections[:1] == ("uidgid",):
                continue
            if x.sections == ("totem", "interface"):
                yield f"totem.interface.{self._link(x)}.{x.key}", _value(f"interface.{x.key}", x.value)
            else:
                yield path, _value(path, x.value)
        for uid in sorted(self.uids):
            yield f"uidgid.config.uid.{uid}", U8.pack(1)
        for gid in sorted(self.gids):
            yield f"uidgid.config.gid.{gid}", U8.pack(1)

    def _link(self, of: Line) -> str:
        """The link whose section ``interface`` a line is in."""
        same = (x for x in self.lines if x.begun == of.begun and x.key in ("linknumber", "ringnumber"))
        return next((x.value for x in same), "0")


def _value(path: str, text: str) -> Value:
    kind = TYPES.get(path, STRING)
    if kind is STRING:
        return STRING.pack(text)
    with contextlib.suppress(ValueError, struct.error):
        return kind.pack(int(text))
    return STRING.pack(text)


def path_of(environ: dict[str, str]) -> Path:
    """Where corosync.conf is."""
    return Path(environ.get(PATH_ENV) or PATH)


def load(path: Path) -> Conf:
    """Read the file, and uidgid.d beside it. Raises ConfigError with all problems of the language and the nodelist; of a file in
    uidgid.d, only if the others are good."""
    problems: list[Problem] = []
    lines = list(_lines(_read(path), problems))
    uids, gids = set[int](), set[int]()
    _users(lines, uids, gids, problems)
    try:
        extra = sorted(p for p in (path.parent / UIDGID_FOLDER).iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError:
        extra = []
    nodes = _nodes(lines)
    problems += _checked(Conf(path, lines, nodes, frozenset(), frozenset()))
    _raise(path, problems)
    for file in extra:
        _users(_lines(_read(file), problems), uids, gids, problems)
        _raise(file, problems)
    conf = Conf(path, lines, nodes, frozenset(uids), frozenset(gids))
    conf.warnings += _warnings(conf)
    return conf


def _raise(path: Path, problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(str(path), tuple(sorted(problems, key=lambda problem: problem.line)))


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), (Problem(0, error.strerror or str(error)),)) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), (Problem(0, f"larger than {FILE_BYTES_MAX} bytes"),))
    return data.decode("utf-8", "replace")


def _lines(text: str, problems: list[Problem]) -> Iterator[Line]:
    """Keys with their sections; a section itself is a line with the key ``_LEVEL``."""
    sections: list[str] = []
    begun: list[int] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.endswith("{"):
            sections.append(line[:-1].strip())
            begun.append(number)
            yield Line(number, tuple(sections), _LEVEL, "")
        elif line == "}":
            if not sections:
                problems.append(Problem(number, "a closing brace without an opening one"))
            else:
                sections.pop()
                begun.pop()
        elif ":" in line:
            key, _, value = line.partition(":")
            yield Line(number, tuple(sections), key.strip(), value.strip(), begun[-1] if begun else 0)
        else:
            problems.append(Problem(number, "expected 'key: value', 'section {' or '}'"))
    problems += [Problem(line, f"section {name!r} is not closed") for name, line in zip(sections, begun, strict=True)]


def _nodes(lines: list[Line]) -> list[Node]:
    nodes: list[Node] = []
    for x in lines:
        if x.sections == ("nodelist", "node"):
            if x.key == _LEVEL:
                nodes.append(Node(x.number))
            else:
                nodes[-1].values[x.key] = x
    lines[:] = [x for x in lines if x.key != _LEVEL]
    return nodes


def _users(lines: Iterable[Line], uids: set[int], gids: set[int], problems: list[Problem]) -> None:
    """What sections ``uidgid`` say."""
    for x in lines:
        if x.sections == ("uidgid",) and x.key != _LEVEL:
            _user(x, uids, gids, problems)


def _user(x: Line, uids: set[int], gids: set[int], problems: list[Problem]) -> None:
    """A line of a section ``uidgid``: a name or a number."""
    if x.value.isdigit() and (said := _no_number(x.value, U32_MAX)):
        problems.append(Problem(x.number, f"{x.key}: {said}"))
        return
    try:
        if x.key == "uid":
            uids.add(int(x.value) if x.value.isdigit() else pwd.getpwnam(x.value).pw_uid)
        elif x.key == "gid":
            gids.add(int(x.value) if x.value.isdigit() else grp.getgrnam(x.value).gr_gid)
        else:
            problems.append(Problem(x.number, f"expected uid or gid, not {x.key!r}"))
    except (KeyError, ValueError):  # the latter for a zero byte
        problems.append(Problem(x.number, f"there is no {'user' if x.key == 'uid' else 'group'} {x.value!r}"))


def _no_number(value: str, most: int) -> str:
    """Why it is none; empty: it is one."""
    if not (value.isascii() and value.isdigit()):
        return f"expected a number, not {value!r}"
    return f"expected at most {most}, not {value}" if len(value) > DIGITS_MAX or int(value) > most else ""


def _checked(conf: Conf) -> Iterable[Problem]:
    """What makes a start impossible."""
    numbers = [("quorum", name) for name in ("expected_votes", "two_node", "wait_for_all", "auto_tie_breaker")]
    numbers += [("quorum", "last_man_standing"), ("quorum", "allow_downscale")]
    numbers += [("zenjun", "alone_after_ms"), ("zenjun", "queue_bytes_max")]
    found = [x for path in numbers if (x := conf.line(*path))]
    for node in conf.nodes:
        found += [x for key in ("nodeid", "zenjun_station", "quorum_votes") if (x := node.values.get(key))]
    if wrong := [Problem(x.number, f"{x.key}: {said}") for x in found if (said := _no_number(x.value, MOST.get(x.key, U32_MAX)))]:
        return wrong
    problems = []
    if not conf.nodes:
        problems.append(Problem(0, "there is no nodelist: the stand-in needs the nodes, as zenjund needs its stations"))
    for node in conf.nodes:
        if node.id == 0:
            said = "nodeid 0" if "nodeid" in node.values else "node without nodeid"
            problems.append(Problem(node.line, f"{said}: expected one from 1, equal to the station or with zenjun_station"))
        elif not 1 <= node.station <= STATIONS_MAX:
            text = f"node {node.id} would be station {node.station}, but stations are 1 to {STATIONS_MAX}: give it zenjun_station"
            problems.append(Problem(node.line, text))
        elif [n.id for n in conf.nodes].count(node.id) > 1:
            problems.append(Problem(node.line, f"nodeid {node.id} is there twice"))
        elif [n.station for n in conf.nodes].count(node.station) > 1:
            problems.append(Problem(node.line, f"station {node.station} is there twice"))
        if not node.address:
            problems.append(Problem(node.line, f"node {node.id} has no ring0_addr"))
    provider = conf.line("quorum", "provider")
    if provider is None or provider.value != PROVIDER:
        problems.append(Problem(provider.number if provider else 0, f"quorum.provider: expected {PROVIDER}"))
    for name, reason in conf.quorum().problems():
        x = conf.line("quorum", name)
        at = next((y.number for y in conf.lines if y.sections[:2] == ("quorum", "device")), 0) if x is None else x.number
        problems.append(Problem(at, f"{name if '.' in name else 'quorum.' + name} is not supported here: {reason}"))
    return problems


def _warnings(conf: Conf) -> Iterator[tuple[int, str]]:
    for node in conf.nodes:
        for key, x in node.values.items():
            if (ring := ring_of(key)) is not None and ring >= LINKS_MAX:
                yield x.number, f"{key} is not used: zenjund has at most {LINKS_MAX} links"
    unknown: set[int] = set()
    for x in conf.lines:
        name = next((name for name in x.sections if name not in SECTIONS), None)
        if name is not None and x.begun not in unknown:
            unknown.add(x.begun)
            yield x.begun, f"section {name!r} has no meaning, neither here nor for corosync"
        if x.sections == ("totem",) and x.key in TOTEM_NUMBERS and (said := _no_number(x.value, U32_MAX)):
            yield x.number, f"{x.key}: {said}"
        if x.key.startswith("knet_"):
            yield x.number, f"{x.key} has no meaning here"
    votes = sorted((node.votes for node in conf.nodes), reverse=True)
    minority = sum(votes[: (len(votes) - 1) // 2])
    if len(votes) > 2 and 2 * minority > sum(votes):
        line = max(conf.nodes, key=lambda node: node.votes).line
        yield line, "a minority of stations has the majority of votes: without the others each of them is alone, without quorum"


def check(conf: Conf, stations: int, station: int, message_max: int, medium: str) -> Iterable[Problem]:
    """What does not fit zenjund's configuration."""
    problems = []
    for node in conf.nodes:
        if not 1 <= node.station <= stations:
            text = f"node {node.id} is station {node.station}, but zenjund's cluster has stations 1 to {stations}"
            problems.append(Problem(node.line, text))
    if not any(node.station == station for node in conf.nodes):
        problems.append(Problem(0, f"no node of the nodelist is at this station, {station} (nodeid, or zenjun_station)"))
    if message_max < MESSAGE_BYTES:
        problems.append(Problem(0, f"zenjund's cluster.message_max is {message_max}, expected at least {MESSAGE_BYTES}"))
    if medium != "switched":
        problems.append(Problem(0, f"zenjund's cluster.medium is {medium}, expected switched"))
    return problems
