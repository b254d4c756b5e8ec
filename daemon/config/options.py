"""The daemon's options: one table, which is the fields of the six section classes below.

From it come the reader of TOML and its bounds (``reader``), ``zenjun config example`` and docs/config.md (``render``), and the
fingerprint of the options that must be equal in the whole cluster (scope *cluster*: that section). A new option is one field with
a reason to exist.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from ...proto.service.database.zones import ZONES_MAX
from ...proto.service.directory.parts import PARTS_MAX
from ...proto.service.groups import GROUPS_MAX
from ...proto.wire import ETHERTYPE, GROUP_MAC, MESSAGE_MAX, MTU_MIN, STATIONS_MAX
from .option import (
    KIB,
    MIB,
    Nanoseconds,
    Option,
    check_database_zones,
    check_dns,
    check_domain,
    check_ethertype,
    check_group_address,
    check_interface,
    check_listen,
    check_mode,
    check_mtu,
    check_path,
    check_ring,
    check_stations,
    check_text,
    check_window,
    check_zones,
    option,
)
from .principals import WRITTEN, check_principals
from .programs import ACCESS_MAX, AccessOptions, ClientOptions

SUN_PATH_MAX: Final = 107
LINKS_MAX: Final = 4
"""Links of a cluster; ``DP_LINKS_MAX`` of the data path."""
IFNAME_MAX: Final = 15
RING_BYTES: Final = 8 * MIB
RING_BYTES_JUMBO: Final = 64 * MIB
JUMBO_MTU: Final = 4000
"""Above it a ring slot takes a larger block, so that the same number of frames needs a larger ring."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """[cluster]: equal at all stations; a station whose options differ is not admitted, and both sides report that."""

    name: str = option(
        low=1, high=64, check=check_text, example="demo",
        help="name of the cluster; clusters of different names share a segment without hearing each other",
        reason="several clusters on one segment",
    )  # fmt: skip
    stations: int = option(
        low=1, high=STATIONS_MAX, example=3,
        help="number of stations that may be members, n",
        reason="stations are numbered, and what is a majority depends on it",
    )  # fmt: skip
    quorum: int = option(
        0, unit="stations", low=0, high=STATIONS_MAX, note="0: the majority; less only with required_stations",
        help="least number of stations of an instance; fewer wait until others are back",
        reason="of two parts of a cluster that do not hear each other, at most one may continue",
    )  # fmt: skip
    required_stations: tuple[int, ...] = option(
        (), low=0, high=STATIONS_MAX, check=check_stations, note="station numbers",
        help="stations that every instance must have; with quorum = 1 and one of them, two stations work with that one alone",
        reason="a cluster of two has no majority without both; one of them can be given the casting vote",
    )  # fmt: skip
    vacant_stations: tuple[int, ...] = option(
        (), low=0, high=STATIONS_MAX, check=check_stations, note="station numbers",
        help="numbers up to stations that no station has: they count for no quorum",
        reason="a station was taken away (zenjun cluster remove) that had not the highest number",
    )  # fmt: skip
    security: str = option(
        "auto", low=1, high=16, choices=("auto", "authenticate", "encrypt"),
        help="with a key of 64 hexadecimal digits: \"authenticate\", every frame proves who sends it now (also \"auto\"); "
        "\"encrypt\", its content is hidden as well. With \"auto\" a key of 32 digits seals frames, and no key does nothing",
        reason="what is not hidden can be read by tools; a file that lost its key must not turn the protection off",
    )  # fmt: skip
    medium: str = option(
        "switched", low=1, high=16, choices=("switched", "bus"),
        help="how the segment orders frames: \"switched\" is any LAN; a \"bus\" delivers every frame to "
        "all stations, its source too, in one order",
        reason="on a bus the order of arrival is the order; a daemon refuses a bus that does not return its frames",
    )  # fmt: skip
    ethertype: int = option(
        ETHERTYPE, low=0x0600, high=0xFFFF, check=check_ethertype, note="none in general use",
        help="EtherType of the frames; IEEE reserves the default 0x88b5 for local experiments",
        reason="another program on the segment may use the default",
    )  # fmt: skip
    group_address: str = option(
        GROUP_MAC, low=17, high=17, check=check_group_address, note="a locally administered multicast address",
        help="destination address of the frames: multicast, locally administered",
        reason="several clusters on one segment can be kept apart by hardware",
    )  # fmt: skip
    window_frames: int = option(
        0, unit="frames", low=0, high=4096, check=check_window, note="0 or at least 4",
        help="maximum number of own frames in flight, W; 0: 1000 / n², but at least 16 and at most 256",
        reason="a switch with small buffers needs fewer, a fast one with few stations takes more",
    )  # fmt: skip
    message_max: int = option(
        MESSAGE_MAX, unit="bytes", low=1 * KIB, high=MESSAGE_MAX,
        help="largest message of a program",
        reason="limits the memory for messages larger than a PDU: for each station twice what has arrived of its present one, at "
        "most this",
    )  # fmt: skip
    groups_max: int = option(
        GROUPS_MAX, unit="groups", low=16, high=65_536,
        help="groups that there may be at a time; one more is refused, at the same place of the order everywhere",
        reason="each station keeps all of them in memory; the programs of many users together may want too many",
    )  # fmt: skip
    confirm_delay_us: int = option(
        200, unit="µs", low=1, high=100_000,
        help="longest time a confirmation waits for the receive ring to drain, so that one covers many frames",
        reason="latency against frames",
    )  # fmt: skip
    nak_delay_us: int = option(
        200, unit="µs", low=1, high=100_000,
        help="time for which a gap counts as re-ordering; then the missing frames are requested",
        reason="networks with several paths re-order more",
    )  # fmt: skip
    nak_retry_ms: int = option(
        2, unit="ms", low=1, high=1_000,
        help="time until such a request is repeated; the fourth time and from then on it doubles",
        reason="must exceed the round trip of the segment",
    )  # fmt: skip
    nak_retry_max_ms: int = option(
        100, unit="ms", low=1, high=10_000,
        help="longest time between such requests",
        reason="how fast the load on an overloaded segment falls",
    )  # fmt: skip
    poll_delay_ms: int = option(
        5, unit="ms", low=1, high=1_000,
        help="time without progress, while something is pending, after which the other stations are polled; doubles each time",
        reason="finds a lost last frame; must exceed confirm_delay_us and the round trip",
    )  # fmt: skip
    poll_delay_max_ms: int = option(
        200, unit="ms", low=1, high=10_000,
        help="longest time between such polls",
        reason="how fast the load on an overloaded segment falls",
    )  # fmt: skip
    retransmit_gap_ms: int = option(
        1, unit="ms", low=1, high=1_000,
        help="shortest time between two repetitions of one frame",
        reason="many stations may request the same frame at once",
    )  # fmt: skip
    heartbeat_ms: int = option(
        200, unit="ms", low=5, high=10_000,
        help="interval at which an idle station sends a CONFIRM",
        reason="idle traffic against how fast a failure is detected",
    )  # fmt: skip
    fail_timeout_ms: int = option(
        400, unit="ms", low=20, high=600_000,
        help="time without a frame after which a station is removed, if the rest has quorum; at least 2 heartbeats",
        reason="how fast a failure is detected against false alarms on a loaded machine",
    )  # fmt: skip
    quorum_timeout_ms: int = option(
        0, unit="ms", low=0, high=600_000, note="0, or at least 2 × heartbeat_ms",
        help="time without a frame from enough stations after which a station says that it has no quorum; 0: fail_timeout_ms",
        reason="a station that is cut off has stopped before the others go on: by fail_timeout_ms, less this, less heartbeat_ms",
    )  # fmt: skip
    probe_interval_ms: int = option(
        10, unit="ms", low=1, high=10_000,
        help="interval at which a station is polled that was not heard for 1.25 heartbeats, so that lost frames do not remove it",
        reason="more polls before fail_timeout_ms are safer on a lossy segment",
    )  # fmt: skip
    adopt_timeout_ms: int = option(
        300, unit="ms", low=1, high=600_000,
        help="time after which reports of other members about a station are accepted, even if it looks different from here",
        reason="one station with a bad link must not delay all others",
    )  # fmt: skip
    give_up_timeout_ms: int = option(
        2_000, unit="ms", low=50, high=600_000,
        help="time without an agreement on the members after which a station leaves the instance and asks to join again",
        reason="how long a part without quorum waits for the others before it opens a new instance with them",
    )  # fmt: skip
    progress_timeout_ms: int = option(
        2_000, unit="ms", low=100, high=600_000,
        help="time for which a station's acknowledgements may stand still while others' advance; then it is removed",
        reason="as fail_timeout_ms, for a station that sends but does not receive",
    )  # fmt: skip
    recover_interval_ms: int = option(
        100, unit="ms", low=5, high=10_000,
        help="time after which a station asks the members again to admit it; then twice, then four times that",
        reason="how fast a station is back against traffic while it is outside",
    )  # fmt: skip
    open_interval_ms: int = option(
        50, unit="ms", low=5, high=5_000,
        help="interval at which a station sends OPEN while it is in no instance",
        reason="how fast a cluster opens against traffic while it waits",
    )  # fmt: skip
    own_timeout_ms: int = option(
        20, unit="ms", low=1, high=10_000,
        help="medium \"bus\": time after which an own frame that has not come back is lost, and a reset begins",
        reason="must exceed the round trip of the segment under load",
    )  # fmt: skip
    confirm: str = option(
        "merged", low=1, high=16, choices=("merged", "sender", "each"),
        help="\"sender\": with at least 4 members, who owes a confirmation to one station only sends it to that one, which then "
        "tells all; only on a switched segment with one link. \"each\" answers every reception at once with a frame of its own; "
        "only on a bus, for measurements",
        reason="\"sender\" wakes fewer stations, and the others know one hop later. \"each\" shows the worst case of the TO "
        "paper, n² frames a message",
    )  # fmt: skip
    open_window_ms: int = option(
        400, unit="ms", low=20, high=60_000,
        help="time unit of an opening: a newcomer listens for one, a station heard within one is present, a proposal has four; "
        "at least 4 open_interval_ms",
        reason="slow machines need longer",
    )  # fmt: skip

    @property
    def window(self) -> int:
        """W in frames, with 0 resolved: clamp(1000 / n², 16, 256)."""
        return self.window_frames or max(16, min(256, 1000 // (self.stations * self.stations)))

    @property
    def roster(self) -> frozenset[int]:
        """Numbers of the stations that may be members."""
        return frozenset(range(1, self.stations + 1)) - set(self.vacant_stations)

    @property
    def group_mac(self) -> bytes:
        return bytes.fromhex(self.group_address.replace(":", ""))

    def times_ns(self) -> dict[str, Any]:
        """All options that are times, in nanoseconds, as ``EngineConfig`` names them."""
        return {name: getattr(self, name) for name, option in vars(type(self)).items() if isinstance(option, Nanoseconds)}

    confirm_delay_ns = Nanoseconds("confirm_delay_us")
    nak_delay_ns = Nanoseconds("nak_delay_us")
    nak_retry_ns = Nanoseconds("nak_retry_ms")
    nak_retry_max_ns = Nanoseconds("nak_retry_max_ms")
    poll_delay_ns = Nanoseconds("poll_delay_ms")
    poll_delay_max_ns = Nanoseconds("poll_delay_max_ms")
    retransmit_gap_ns = Nanoseconds("retransmit_gap_ms")
    heartbeat_ns = Nanoseconds("heartbeat_ms")
    fail_timeout_ns = Nanoseconds("fail_timeout_ms")
    quorum_timeout_ns = Nanoseconds("quorum_timeout_ms")
    probe_interval_ns = Nanoseconds("probe_interval_ms")
    adopt_timeout_ns = Nanoseconds("adopt_timeout_ms")
    give_up_timeout_ns = Nanoseconds("give_up_timeout_ms")
    recover_interval_ns = Nanoseconds("recover_interval_ms")
    progress_timeout_ns = Nanoseconds("progress_timeout_ms")
    own_timeout_ns = Nanoseconds("own_timeout_ms")
    open_interval_ns = Nanoseconds("open_interval_ms")
    open_window_ns = Nanoseconds("open_window_ms")


@dataclass(frozen=True, kw_only=True)
class LinksOptions:
    """[links]: redundant links, equal at all stations; see [[link]] for the interfaces of a station."""

    count: int = option(
        1, low=1, high=LINKS_MAX,
        help="links (segments, numbered from 1) of the cluster; a station may lack some of them",
        reason="a switch, a cable or an interface may fail without a change of members",
    )  # fmt: skip
    mode: str = option(
        "auto", low=1, high=16, choices=("auto", "duplicate", "stripe", "passive"),
        help="what data takes: \"auto\", all links, or under load one link a frame; \"duplicate\", all links; \"stripe\", one "
        "link a frame; \"passive\", the link of least priority that reaches all members. All else takes all links",
        reason="losses and delays of one link against the rate of several",
    )  # fmt: skip

    @property
    def text(self) -> str:
        """What the fingerprint covers of them. Nothing for one link: what its stations send stays as it was."""
        return f"links.count={self.count}\nlinks.mode={self.mode}\n" if self.count > 1 else ""


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """[[link]]: one interface of this station, in a table of its own for each."""

    number: int = option(
        low=1, high=LINKS_MAX, example=2,
        help="number of the link: interfaces of one number are on one segment, those of different numbers are not",
        reason="stations name the same segment by it, whatever their interfaces are called",
    )  # fmt: skip
    interface: str = option(
        low=1, high=IFNAME_MAX, check=check_interface, example="eth1",
        help="network interface on that segment",
        reason="machines have several",
    )  # fmt: skip
    priority: int = option(
        0, low=0, high=255,
        help="with links.mode = \"passive\": the link of the least priority is used",
        reason="one of the networks is the better one",
    )  # fmt: skip
    rate_mbit: int = option(
        0, unit="Mbit/s", low=0, high=1_000_000,
        help="rate of the link, by which data is spread; 0: 1000 Mbit/s",
        reason="links of different rates",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StationOptions:
    """[station]: this machine's own."""

    id: int = option(
        low=1, high=STATIONS_MAX, example=1,
        help="number of this station, 1..stations, different at each",
        reason="stations are identified by it, not by their address",
    )  # fmt: skip
    interface: str = option(
        low=1, high=IFNAME_MAX, check=check_interface, example="eth0",
        help="network interface on the segment; short for a [[link]] of number 1, and left out where there is one",
        reason="machines have several",
    )  # fmt: skip
    socket: str = option(
        "/run/zenjun/zenjund.sock", low=1, high=SUN_PATH_MAX, check=check_path, note="an absolute path",
        help="Unix socket that programs connect to; one handed over by the service manager takes its place",
        reason="several daemons on one machine",
    )  # fmt: skip
    socket_mode: str = option(
        "0660", low=3, high=4, check=check_mode, note="octal digits",
        help="permissions of that socket, octal: a process that may connect can send and receive",
        reason="policy of the machine",
    )  # fmt: skip
    socket_group: str = option(
        "", low=0, high=32, check=check_text,
        help="group that owns that socket; empty: the daemon's own",
        reason="policy of the machine",
    )  # fmt: skip
    operators: tuple[str, ...] = option(
        (), low=0, high=ACCESS_MAX, check=check_principals, note=WRITTEN, live=True,
        help="users who may do what an operator does besides root and the daemon's own: expel, leave, key, the whole status",
        reason="a monitoring program, or people on duty, need not be root",
    )  # fmt: skip
    state_dir: str = option(
        "/var/lib/zenjun", low=1, high=4096, check=check_path, note="an absolute path",
        help="folder for the instance number, which must survive a crash; while it is the default, $STATE_DIRECTORY counts",
        reason="several daemons on one machine",
    )  # fmt: skip
    key_file: str = option(
        "", low=0, high=4096, check=lambda value: check_path(value) if value else "", note="empty or an absolute path",
        help="file with the cluster's key (zenjun key new makes one): every frame carries a seal, others are dropped; empty: "
        "the credential zenjun.key of the service manager if there is one, else no key",
        reason="other hosts on the segment must not be able to send frames as a station",
    )  # fmt: skip
    mtu: int = option(
        0, unit="bytes", low=0, high=65535, check=check_mtu, note=f"0 or at least {MTU_MIN}",
        help="largest frame to send, Ethernet header excluded; 0: the MTU of the interface",
        reason="a switch between the stations may take less than their interfaces",
    )  # fmt: skip
    ring_bytes: int = option(
        0, unit="bytes", low=0, high=1024 * MIB, check=check_ring, note=f"0 or at least {64 * KIB}",
        help=f"receive ring; 0: {RING_BYTES // MIB} MiB, or {RING_BYTES_JUMBO // MIB} MiB for an MTU above {JUMBO_MTU}",
        reason="bounds how long the daemon may sleep without losing frames",
    )  # fmt: skip
    rest_us: int = option(
        50, unit="µs", low=0, high=10_000,
        help="pause between batches under load, so that one wake-up serves many frames; 0: none",
        reason="latency against processor time",
    )  # fmt: skip
    linger_us: int = option(
        150, unit="µs", low=0, high=10_000,
        help="time to wait for the answer to what was just sent before the process sleeps",
        reason="latency against processor time",
    )  # fmt: skip
    realtime_priority: int = option(
        0, low=0, high=99,
        help="SCHED_RR priority; 0: normal scheduling. Needs CAP_SYS_NICE; without it the daemon warns and continues",
        reason="loaded machines",
    )  # fmt: skip
    drain_timeout_ms: int = option(
        2_000, unit="ms", low=0, high=60_000, live=True,
        help="when stopping: longest time to deliver what programs have sent",
        reason="service managers kill after a time of their own",
    )  # fmt: skip

    @property
    def socket_bits(self) -> int:
        """Permissions of the socket as a number."""
        return int(self.socket_mode, 8)

    rest_ns = Nanoseconds("rest_us")
    linger_ns = Nanoseconds("linger_us")
    drain_timeout_ns = Nanoseconds("drain_timeout_ms")

    def ring_bytes_for(self, mtu: int) -> int:
        """Bytes of the receive ring for an interface of this MTU, with 0 resolved."""
        return self.ring_bytes or (RING_BYTES_JUMBO if mtu > JUMBO_MTU else RING_BYTES)


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """[log]: lines on standard error."""

    level: str = option(
        "info", low=1, high=16, choices=("debug", "info", "warning", "error"), live=True,
        help="lowest level that is written",
        reason="looking for a fault",
    )  # fmt: skip
    format: str = option(
        "text", low=1, high=16, choices=("text", "json"),
        help="human-readable lines (in systemd's journal: entries with fields of their own), or one JSON object per line",
        reason="log collectors",
    )  # fmt: skip
    audit: str = option(
        "refused", low=1, high=16, choices=("refused", "all"), live=True,
        help="of what programs do: \"refused\", what they may not do; \"all\", connections, joins and commands as well; with "
        "user, process and result, at most 5 lines in 10 s of a user and result, others are counted",
        reason="who did what, where programs of several users share a station",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """[metrics]: what monitoring reads, over HTTP."""

    listen: str = option(
        "", low=0, high=SUN_PATH_MAX, check=check_listen, note="empty, an absolute path, or address:port of the loopback",
        example="127.0.0.1:9461",
        help="where GET /metrics is answered (OpenMetrics): a Unix socket, or a port of this machine's own; empty: nowhere",
        reason="not every site needs it, and any process that may connect can read the names of groups and programs",
    )  # fmt: skip
    names: str = option(
        "auto", low=1, high=16, choices=("auto", "yes", "no"), live=True,
        help="whether the answer names groups and programs; \"auto\": unless [[access]] or clients.closed limits who sees them",
        reason="a port has no permissions: every process of the machine can read it",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DirectoryOptions:
    """[directory]: zenjun-directory at this station; zenjund does not read it."""

    socket: str = option(
        "", low=0, high=SUN_PATH_MAX, check=lambda value: check_path(value) if value else "", note="empty or an absolute path",
        help="Unix socket that programs ask for names at; empty: directory.sock beside the daemon's socket",
        reason="several daemons on one machine",
    )  # fmt: skip
    stale_max_s: int = option(
        3_600, unit="s", low=0, high=86_400,
        help="time for which a station without quorum answers from its copy, marked as stale; 0: not at all",
        reason="an old address is better than none for some, and worse for others",
    )  # fmt: skip
    metrics: str = option(
        "", low=0, high=SUN_PATH_MAX, check=check_listen, note="empty, an absolute path, or address:port of the loopback",
        example="127.0.0.1:9462",
        help="where zenjun-directory answers GET /metrics (OpenMetrics); not the same place as metrics.listen; empty: nowhere",
        reason="not every site needs it, and any process that may connect can read the names of zones",
    )  # fmt: skip
    dns: str = option(
        "", low=0, high=64, check=check_dns, note="empty or address:port of the loopback", example="127.0.0.1:5390",
        help="where DNS questions are answered over UDP and TCP, from this station's copy; empty: nowhere (needs dnspython)",
        reason="programs that know nothing of zenjun look names up by DNS",
    )  # fmt: skip
    dns_domain: str = option(
        "zenjun.internal", low=1, high=128, check=check_domain, note="labels of a-z 0-9 -, joined by dots",
        help="domain below which the names are: db is db.zenjun.internal; questions about others are refused",
        reason="a site may have a domain of its own for this",
    )  # fmt: skip
    update: str = option(
        "ordered", low=1, high=16, choices=("ordered", "seven"),
        help="how names change: \"ordered\", one message in the total order; \"seven\", under locks; the same at all stations "
        "(docs/directory-seven.md)",
        reason="for look-ups that never return an old address during a change, at a cost; and for study",
    )  # fmt: skip
    placement: str = option(
        "full", low=1, high=16, choices=("full", "zoned"),
        help="where names are kept: \"full\", all of them at the holders; \"zoned\", those of each of `zones` at its own; "
        "the same at all stations",
        reason="a station need not keep, nor write to its disk, names that it does not use",
    )  # fmt: skip
    holders: tuple[int, ...] = option(
        (), low=0, high=STATIONS_MAX, check=check_stations, note="station numbers; none: all stations",
        help="stations that keep the names outside `zones`; the others ask them; the same at all stations",
        reason="in a large cluster some stations use names only now and then",
    )  # fmt: skip
    zones: tuple[str, ...] = option(
        (), low=0, high=PARTS_MAX, check=check_zones, note="each NAME=STATION,STATION,...",
        help="with placement = \"zoned\": zones with holders of their own, as in [\"north=1,2,3\"], which keep the names that "
        "end in .north; the same at all stations",
        reason="the names of a plant are kept where it is",
    )  # fmt: skip
    profile: str = option(
        "broadcast", low=1, high=16, choices=("broadcast", "unicast"),
        help="with update = \"seven\": \"unicast\" sends REQ, DATA and CONF to each manager by itself, as the paper counts them",
        reason="the paper's 5(m - 1) messages can be counted instead of computed",
    )  # fmt: skip
    dns_rate: int = option(
        500, unit="answers/s", low=1, high=1_000_000,
        help="most DNS answers a second; questions above it are dropped",
        reason="a flood of questions must leave time for the names themselves; this many take up to half a core",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """[database]: zenjun-db at this station; zenjund does not read it."""

    socket: str = option(
        "", low=0, high=SUN_PATH_MAX, check=lambda value: check_path(value) if value else "", note="empty or an absolute path",
        help="Unix socket that programs use databases at; empty: db.sock beside the daemon's socket",
        reason="several daemons on one machine",
    )  # fmt: skip
    metrics: str = option(
        "", low=0, high=SUN_PATH_MAX, check=check_listen, note="empty, an absolute path, or address:port of the loopback",
        example="127.0.0.1:9463",
        help="where zenjun-db answers GET /metrics (OpenMetrics); not the same place as other metrics; empty: nowhere",
        reason="not every site needs it, and any process that may connect can read the names of databases",
    )  # fmt: skip
    zones: tuple[str, ...] = option(
        (), low=0, high=ZONES_MAX, check=check_database_zones, note="each NAME=STATION,STATION,...",
        help="stations that share copies, as in [\"north=2,1,3\"]: the first ones of each zone have a database, the "
        "others use it there; a station in none is a zone of its own; the same at all stations",
        reason="in a large cluster not every station need keep every database, nor write it to its disk",
    )  # fmt: skip
    scrub_hours: int = option(
        24, unit="h", low=0, high=8760,
        help="time from one comparison of all rows with the other stations to the next; 0: only by zenjun db scrub",
        reason="it reads each file from its beginning to its end",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete, checked configuration."""

    cluster: ClusterOptions
    station: StationOptions
    clients: ClientOptions
    log: LogOptions
    metrics: MetricsOptions = MetricsOptions()
    directory: DirectoryOptions = DirectoryOptions()
    database: DatabaseOptions = DatabaseOptions()
    links: LinksOptions = LinksOptions()
    access: tuple[AccessOptions, ...] = ()
    """The tables [[access]], in the order of the file."""
    link: tuple[LinkOptions, ...] = ()
    """The tables [[link]]; ``interfaces`` has them with ``station.interface``."""
    file: str = "(none)"

    @property
    def interfaces(self) -> dict[int, str]:
        """This station's interfaces by the number of their link, in the order of the numbers."""
        found = {link.number: link.interface for link in self.link}
        return dict(sorted({1: self.station.interface, **found}.items() if self.station.interface else found.items()))

    @property
    def link_options(self) -> dict[int, LinkOptions]:
        """The same with all that [[link]] says of each; what ``station.interface`` names has the defaults."""
        given = {link.number: link for link in self.link}
        return {
            number: given.get(number) or LinkOptions(number=number, interface=name) for number, name in self.interfaces.items()
        }

    @property
    def fingerprint(self) -> int:
        """CRC-32 of the options of scope cluster in effect; stations with different ones open no cluster together."""
        return self.fingerprint_with("")

    def fingerprint_with(self, key_mark: str) -> int:
        """The same for a cluster with a key (``key.mark``), so that a station without one learns why it is not admitted."""
        return zlib.crc32((self.cluster_text + (f"key={key_mark}\n" if key_mark else "")).encode())

    @property
    def cluster_text(self) -> str:
        """What the fingerprint covers: one ``name=value`` line per option of scope cluster, automatic values resolved."""
        values = {o.name: getattr(self.cluster, o.name) for o in OPTIONS if o.section == "cluster"}
        del values["security"]  # it comes with the key: what is sent without one stays as it was
        if not self.cluster.quorum_timeout_ms:  # as with stations that do not know the option
            del values["quorum_timeout_ms"]
        numbers = ",".join(map(str, sorted(values.pop("vacant_stations"))))
        vacant = f"vacant_stations={numbers}\n" if numbers else ""  # what a cluster without one sends stays as it was
        values["window_frames"] = self.cluster.window
        values["required_stations"] = ",".join(map(str, sorted(self.cluster.required_stations)))
        values["group_address"] = self.cluster.group_address.lower()
        return "".join(f"{name}={value}\n" for name, value in sorted(values.items())) + vacant + self.links.text

    def agreed_with(self, key_mark: str) -> dict[str, str]:
        """What the fingerprint covers, by name."""
        options = dict(line.split("=", 1) for line in self.cluster_text.splitlines())
        return {**options, "key": key_mark} if key_mark else options

    def values(self) -> dict[str, dict[str, Any]]:
        """Every option by section and name; those of [[link]] by number and name, as in ``link1.interface``; all of [[access]]
        as one, ``access.tables``."""
        links: dict[str, dict[str, Any]] = {f"link{number}": dataclasses.asdict(row) for number, row in self.link_options.items()}
        tables = {"access": {"tables": [dataclasses.asdict(row) for row in self.access]}}
        return (
            links | tables | {s: {o.name: getattr(getattr(self, s), o.name) for o in OPTIONS if o.section == s} for s in SECTIONS}
        )


SECTIONS: Final[dict[str, Any]] = {
    "cluster": ClusterOptions,
    "links": LinksOptions,
    "station": StationOptions,
    "clients": ClientOptions,
    "log": LogOptions,
    "metrics": MetricsOptions,
    "directory": DirectoryOptions,
    "database": DatabaseOptions,
}


def _rows(section: str, options: type) -> Iterator[Option]:
    types: dict[str, type] = {"int": int, "str": str, "bool": bool, "tuple[int, ...]": list, "tuple[str, ...]": list}
    for f in dataclasses.fields(options):
        row = cast(dict[str, Any], dict(f.metadata))
        item = str if "str" in str(f.type) else int
        yield Option(section=section, name=f.name, type=types[str(f.type)], item=item, **row)


OPTIONS: Final[tuple[Option, ...]] = tuple(row for section, options in SECTIONS.items() for row in _rows(section, options))
LINK_OPTIONS: Final[tuple[Option, ...]] = tuple(_rows("link", LinkOptions))
"""Of each [[link]]."""
ACCESS_OPTIONS: Final[tuple[Option, ...]] = tuple(_rows("access", AccessOptions))
"""Of each [[access]]."""
