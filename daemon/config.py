"""The daemon's options: one table, and a reader that names file, line and allowed values for whatever is wrong.

The table is the fields of the four section classes below. From it come the TOML reader, the bounds, ``zenjun config example``,
docs/config.md and the fingerprint of the options that must be equal in the whole cluster (scope *cluster*: that section).
A new option is one field with a reason to exist.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from ..proto.wire import ETHERTYPE, GROUP_MAC, MESSAGE_MAX, MTU_MIN, STATIONS_MAX
from .config_source import FILE_BYTES_MAX, ConfigError, Problem, Source, quoted, shown

__all__ = [
    "FILE_BYTES_MAX",
    "MIB",
    "OPTIONS",
    "SECTIONS",
    "ClientOptions",
    "ClusterOptions",
    "Config",
    "ConfigError",
    "LogOptions",
    "Option",
    "Problem",
    "StationOptions",
    "example",
    "find",
    "load",
    "markdown",
    "parse",
    "toml_value",
]

CONFIG_PATH: Final = "/etc/zenjun/zenjund.toml"
CONFIG_ENV: Final = "ZENJUN_CONFIG"
LIVE: Final = " Taken over by a reload."
"""Behind what the texts say of an option with ``live``; the others need a restart."""
SUN_PATH_MAX: Final = 107
IFNAME_MAX: Final = 15
NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
KIB: Final = 1024
MIB: Final = 1024 * 1024
RING_BYTES: Final = 8 * MIB
RING_BYTES_JUMBO: Final = 64 * MIB
JUMBO_MTU: Final = 4000
"""Above it a ring slot takes a larger block, so that the same number of frames needs a larger ring."""
TAKEN_ETHERTYPES: Final = {
    0x0800: "IPv4", 0x0806: "ARP", 0x8100: "802.1Q", 0x86DD: "IPv6", 0x8808: "flow control", 0x8809: "LACP", 0x88A8: "802.1ad",
    0x88CC: "LLDP",
}  # fmt: skip
TAKEN_ADDRESSES: Final = {
    "33:33:": "is a multicast address of IPv6: other machines take or send frames there",
    "cf:00:00:00:00:00": "is the address of the Ethernet loopback test",
    "ab:00:0": "is a multicast address of DECnet",
    "03:00:00:00:00:01": "is the address of NetBIOS",
}
"""Prefixes of group addresses that have both bits and belong to a protocol, in lower case, and why not to take them."""

Scope = Literal["cluster", "station"]


# ---- the table


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    section: str
    name: str
    type: type
    unit: str
    default: Any
    """None: required."""
    minimum: int | None
    maximum: int | None
    choices: tuple[str, ...]
    note: str
    """What else is asked of a value, for people."""
    check: Callable[[Any], str] | None
    """Gives what is wrong with a value of the right type, or an empty string."""
    example: Any
    help: str
    reason: str
    """Why it can be set at all."""
    live: bool
    """A change is taken over on SIGHUP; otherwise it needs a restart."""

    @property
    def scope(self) -> Scope:
        return "cluster" if self.section == "cluster" else "station"

    @property
    def required(self) -> bool:
        return self.default is None

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        if self.choices:
            words = " or ".join(f'"{c}"' for c in self.choices)
        elif self.type is list:
            words = f"a list of {self.minimum}..{self.maximum} integers"
        elif self.type is int:
            words = f"an integer {self.minimum}..{self.maximum}" + (f" {self.unit}" if self.unit else "")
        else:
            words = f"a string of {self.minimum}..{self.maximum} bytes"
        return f"{words} ({self.note})" if self.note else words

    def problem(self, value: object) -> str:
        """What is wrong with a value, in words that end a sentence, or an empty string."""
        value = list(value) if isinstance(value, tuple) else value
        if type(value) is not self.type:  # bool is no int here
            return f"is {shown(value)}: {self.allowed} is wanted"
        if self.choices and value not in self.choices:
            return f"is {shown(value)}: {self.allowed} is wanted" + _did_you_mean(str(value), self.choices)
        if isinstance(value, list):
            if any(type(item) is not int for item in value):
                return f"is {shown(value)}: {self.allowed} is wanted"
            size = len(value)
        else:
            size = value if isinstance(value, int) else len(str(value).encode())
        if self.minimum is not None and self.maximum is not None and not self.minimum <= size <= self.maximum:
            return f"is {shown(value)}: {self.allowed} is wanted"
        wrong = self.check(value) if self.check else ""
        return f"is {shown(value)}: {wrong}" if wrong else ""


def _option(
    default: Any = None,
    *,
    help: str,
    reason: str,
    unit: str = "",
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    note: str = "",
    check: Callable[[Any], str] | None = None,
    example: Any = None,
    live: bool = False,
) -> Any:
    row = {
        "unit": unit, "default": default, "minimum": low, "maximum": high, "choices": choices, "note": note, "check": check,
        "example": default if example is None else example, "help": help, "reason": reason, "live": live,
    }  # fmt: skip
    return field(metadata=row) if default is None else field(default=default, metadata=row)


def _check_stations(value: list[int]) -> str:
    if len(set(value)) != len(value):
        return "a station is named twice"
    return next((f"{k} is no station number" for k in value if not 1 <= k <= STATIONS_MAX), "")


def _check_ethertype(value: int) -> str:
    taken = TAKEN_ETHERTYPES.get(value)
    return f"EtherType 0x{value:04x} belongs to {taken}" if taken else ""


def _check_group_address(value: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", value):
        return "an address like 03:5a:4a:00:00:01 is wanted"
    first = int(value[:2], 16)
    if not first & 1:
        return "a multicast address is wanted: its first byte must be odd"
    if value.lower() == "ff:ff:ff:ff:ff:ff":
        return "the broadcast address disturbs every machine on the segment; take a multicast address"
    if not first & 2:
        # This also keeps out 01:80:c2:00:00:0x, which bridges do not forward (case 107).
        return "a locally administered address is wanted (first byte 03, 07, 0b, …); 01:… addresses belong to somebody"
    return next((f"{value} {why}" for prefix, why in TAKEN_ADDRESSES.items() if value.lower().startswith(prefix)), "")


def _check_text(value: str) -> str:
    return "" if value.isprintable() else "it has characters that cannot be printed"


def _check_interface(value: str) -> str:
    if "/" in value or value in (".", "..") or any(c.isspace() or not c.isprintable() for c in value):
        return "that cannot be the name of an interface"
    return ""


def _check_path(value: str) -> str:
    if not value.startswith("/"):
        return "an absolute path is wanted"
    return "it has characters that cannot be printed" if not value.isprintable() else ""


def _check_mtu(value: int) -> str:
    return f"0 or {MTU_MIN}..65535 bytes is wanted" if 0 < value < MTU_MIN else ""


def _check_ring(value: int) -> str:
    return f"0 or {64 * KIB}..{1024 * MIB} bytes is wanted" if 0 < value < 64 * KIB else ""


def _check_window(value: int) -> str:
    return "0 or 4..4096 is wanted" if 0 < value < 4 else ""


def _check_mode(value: str) -> str:
    return "" if re.fullmatch(r"0?[0-7]{3}", value) else 'three octal digits are wanted, like "0660"'


def _check_listen(value: str) -> str:
    if not value or value.startswith("/"):
        return _check_path(value) if value else ""
    try:
        host, port = loopback(value)
    except ValueError:
        return "an absolute path or an address like 127.0.0.1:9461 or [::1]:9461 is wanted"
    if not host.is_loopback:
        return f"{host} can be reached from other machines; only a loopback address is taken: put a proxy with rules before it"
    return "" if 0 < port < 65536 else "a port 1..65535 is wanted"


def loopback(value: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Address and port of ``metrics.listen``. Raises ValueError."""
    host, _, port = value.rpartition(":")
    return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """[cluster]: equal at all stations; a station whose options differ is not admitted, and both sides say so."""

    name: str = _option(
        low=1, high=64, check=_check_text, example="demo",
        help="name of the cluster; clusters of different names share a segment without hearing each other",
        reason="several clusters on one segment",
    )  # fmt: skip
    stations: int = _option(
        low=1, high=STATIONS_MAX, example=3,
        help="number of stations that may be members, n: the schema",
        reason="stations are numbered, and what is a majority depends on it",
    )  # fmt: skip
    quorum: int = _option(
        0, unit="stations", low=0, high=STATIONS_MAX, note="0: the majority; less only with required_stations",
        help="an instance needs so many stations; fewer wait until others are back",
        reason="of two parts of a cluster that do not hear each other at most one may go on",
    )  # fmt: skip
    required_stations: tuple[int, ...] = _option(
        (), low=0, high=STATIONS_MAX, check=_check_stations, note="station numbers",
        help="an instance needs all of these; with quorum = 1 and one required station two stations can do with that one",
        reason="a cluster of two has no majority without both; one of them can be given the casting vote",
    )  # fmt: skip
    medium: str = _option(
        "switched", low=1, high=16, choices=("switched", "bus"),
        help="how the segment orders frames: \"switched\" is any LAN; \"bus\" brings all to all, own ones too, in one order",
        reason="on a bus the order of arrival is the order; a daemon refuses a bus that does not return its frames",
    )  # fmt: skip
    ethertype: int = _option(
        ETHERTYPE, low=0x0600, high=0xFFFF, check=_check_ethertype, note="none in general use",
        help="EtherType of our frames; the default 0x88b5 is the one IEEE keeps for local experiments",
        reason="another program on the segment may use the default",
    )  # fmt: skip
    group_address: str = _option(
        GROUP_MAC, low=17, high=17, check=_check_group_address, note="a locally administered multicast address",
        help="address our frames are sent to: locally administered, multicast",
        reason="several clusters on one segment can be kept apart by hardware",
    )  # fmt: skip
    window_frames: int = _option(
        0, unit="frames", low=0, high=4096, check=_check_window, note="0 or at least 4",
        help="own frames under way at most, W; 0: 1000 / n² but at least 16 and at most 256",
        reason="a switch with small buffers wants less, a fast one with few stations takes more",
    )  # fmt: skip
    message_max: int = _option(
        MESSAGE_MAX, unit="bytes", low=1 * KIB, high=MESSAGE_MAX,
        help="largest message of a program",
        reason="bounds the memory in which messages larger than a PDU are put together: of each station twice what has come of "
        "its present one, no more than this",
    )  # fmt: skip
    confirm_delay_us: int = _option(
        200, unit="µs", low=0, high=100_000,
        help="longest time a confirmation waits for the receive ring to drain, so that one covers many frames",
        reason="latency against frames",
    )  # fmt: skip
    nak_delay_us: int = _option(
        200, unit="µs", low=0, high=100_000,
        help="a gap counts as re-ordering for so long before the missing frames are asked for",
        reason="networks with several paths re-order more",
    )  # fmt: skip
    nak_retry_ms: int = _option(
        2, unit="ms", low=1, high=1_000,
        help="first wait for an answer to such a request; doubles each time",
        reason="must exceed the round trip of the segment",
    )  # fmt: skip
    nak_retry_max_ms: int = _option(
        100, unit="ms", low=1, high=10_000,
        help="longest wait between such requests",
        reason="how fast an overloaded segment is left in peace",
    )  # fmt: skip
    poll_delay_ms: int = _option(
        5, unit="ms", low=1, high=1_000,
        help="without progress for so long while something is pending, the others are asked for news; doubles each time",
        reason="finds a lost last frame; must exceed confirm_delay_us and the round trip",
    )  # fmt: skip
    poll_delay_max_ms: int = _option(
        200, unit="ms", low=1, high=10_000,
        help="longest wait between such questions",
        reason="how fast an overloaded segment is left in peace",
    )  # fmt: skip
    retransmit_gap_ms: int = _option(
        1, unit="ms", low=0, high=1_000,
        help="the same frame is not sent again twice within this time",
        reason="many stations may ask for the same frame at once",
    )  # fmt: skip
    heartbeat_ms: int = _option(
        200, unit="ms", low=5, high=10_000,
        help="an idle station says that it is there this often",
        reason="idle traffic against how fast a failure is seen",
    )  # fmt: skip
    fail_timeout_ms: int = _option(
        400, unit="ms", low=20, high=600_000,
        help="a station that gives no sign of life for so long is removed, if the rest has quorum; at least 2 heartbeats",
        reason="how fast a failure is seen against false alarms on a loaded machine",
    )  # fmt: skip
    probe_interval_ms: int = _option(
        10, unit="ms", low=1, high=10_000,
        help="a station not heard for 1.25 heartbeats is asked so often whether it is there, lest lost frames remove it",
        reason="more questions before fail_timeout_ms are safer on a lossy segment",
    )  # fmt: skip
    adopt_timeout_ms: int = _option(
        300, unit="ms", low=1, high=600_000,
        help="what others say of a station is believed after so long, even if it is not seen here",
        reason="one station with a bad link must not hold up all others",
    )  # fmt: skip
    give_up_timeout_ms: int = _option(
        2_000, unit="ms", low=50, high=600_000,
        help="a station that cannot agree with enough others on who stays leaves after so long and tries to get back in",
        reason="how long a part without quorum waits for the others before it takes part in opening anew",
    )  # fmt: skip
    progress_timeout_ms: int = _option(
        2_000, unit="ms", low=100, high=600_000,
        help="a station whose acknowledgements stand still for so long while others' move is deaf, and removed",
        reason="as fail_timeout_ms, for a station that sends but does not receive",
    )  # fmt: skip
    recover_interval_ms: int = _option(
        100, unit="ms", low=5, high=10_000,
        help="how often a station asks the members of an instance to let it in; then after twice, then four times that",
        reason="how fast a station is back against traffic while it is out",
    )  # fmt: skip
    open_interval_ms: int = _option(
        50, unit="ms", low=5, high=5_000,
        help="how often a station that is not in an instance says so",
        reason="how fast a cluster opens against traffic while it waits",
    )  # fmt: skip
    own_timeout_ms: int = _option(
        20, unit="ms", low=1, high=10_000,
        help="medium \"bus\": own frames that have not come back for so long are lost, and all stations go back to what all have",
        reason="must exceed the round trip of the segment under load",
    )  # fmt: skip
    confirm: str = _option(
        "merged", low=1, high=16, choices=("merged", "each"),
        help="\"each\", only on a bus, for measuring: every reception is answered at once by a frame of its own",
        reason="shows the worst case of the TO paper, n² frames a message",
    )  # fmt: skip
    open_window_ms: int = _option(
        400, unit="ms", low=20, high=60_000,
        help="how long a proposal to open may take before it is given up; at least 4 open_interval_ms",
        reason="slow machines need longer",
    )  # fmt: skip

    @property
    def window(self) -> int:
        """W in frames, with 0 resolved: clamp(1000 / n², 16, 256)."""
        return self.window_frames or max(16, min(256, 1000 // (self.stations * self.stations)))

    @property
    def group_mac(self) -> bytes:
        return bytes.fromhex(self.group_address.replace(":", ""))

    @property
    def confirm_delay_ns(self) -> int:
        return self.confirm_delay_us * NS_PER_US

    @property
    def nak_delay_ns(self) -> int:
        return self.nak_delay_us * NS_PER_US

    @property
    def nak_retry_ns(self) -> int:
        return self.nak_retry_ms * NS_PER_MS

    @property
    def nak_retry_max_ns(self) -> int:
        return self.nak_retry_max_ms * NS_PER_MS

    @property
    def poll_delay_ns(self) -> int:
        return self.poll_delay_ms * NS_PER_MS

    @property
    def poll_delay_max_ns(self) -> int:
        return self.poll_delay_max_ms * NS_PER_MS

    @property
    def retransmit_gap_ns(self) -> int:
        return self.retransmit_gap_ms * NS_PER_MS

    @property
    def heartbeat_ns(self) -> int:
        return self.heartbeat_ms * NS_PER_MS

    @property
    def fail_timeout_ns(self) -> int:
        return self.fail_timeout_ms * NS_PER_MS

    @property
    def probe_interval_ns(self) -> int:
        return self.probe_interval_ms * NS_PER_MS

    @property
    def adopt_timeout_ns(self) -> int:
        return self.adopt_timeout_ms * NS_PER_MS

    @property
    def give_up_timeout_ns(self) -> int:
        return self.give_up_timeout_ms * NS_PER_MS

    @property
    def recover_interval_ns(self) -> int:
        return self.recover_interval_ms * NS_PER_MS

    @property
    def progress_timeout_ns(self) -> int:
        return self.progress_timeout_ms * NS_PER_MS

    @property
    def own_timeout_ns(self) -> int:
        return self.own_timeout_ms * NS_PER_MS

    @property
    def open_interval_ns(self) -> int:
        return self.open_interval_ms * NS_PER_MS

    @property
    def open_window_ns(self) -> int:
        return self.open_window_ms * NS_PER_MS


@dataclass(frozen=True, kw_only=True)
class StationOptions:
    """[station]: this machine's own."""

    id: int = _option(
        low=1, high=STATIONS_MAX, example=1,
        help="number of this station, 1..stations, different at each",
        reason="stations are told apart by it, not by their address",
    )  # fmt: skip
    interface: str = _option(
        low=1, high=IFNAME_MAX, check=_check_interface, example="eth0",
        help="network interface on the segment",
        reason="machines have several",
    )  # fmt: skip
    socket: str = _option(
        "/run/zenjun/zenjund.sock", low=1, high=SUN_PATH_MAX, check=_check_path, note="an absolute path",
        help="Unix socket that programs connect to; one handed over by the service manager takes its place",
        reason="several daemons on one machine",
    )  # fmt: skip
    socket_mode: str = _option(
        "0660", low=3, high=4, check=_check_mode, note="octal digits",
        help="permissions of that socket, octal: who may connect may send and receive",
        reason="policy of the machine",
    )  # fmt: skip
    socket_group: str = _option(
        "", low=0, high=32, check=_check_text,
        help="group that owns that socket; empty: the daemon's own",
        reason="policy of the machine",
    )  # fmt: skip
    state_dir: str = _option(
        "/var/lib/zenjun", low=1, high=4096, check=_check_path, note="an absolute path",
        help="folder for the instance number, which must survive a crash; while it is the default, $STATE_DIRECTORY counts",
        reason="several daemons on one machine",
    )  # fmt: skip
    key_file: str = _option(
        "", low=0, high=4096, check=lambda value: _check_path(value) if value else "", note="empty or an absolute path",
        help="file with the cluster's key (zenjun config key makes one): every frame bears a seal, others are dropped; empty: "
        "the credential zenjun.key of the service manager if there is one, else no key",
        reason="others on the segment must not be able to speak for a station",
    )  # fmt: skip
    mtu: int = _option(
        0, unit="bytes", low=0, high=65535, check=_check_mtu, note=f"0 or at least {MTU_MIN}",
        help="largest frame to send, Ethernet header excluded; 0: what the interface says",
        reason="a switch between the stations may take less than their interfaces",
    )  # fmt: skip
    ring_bytes: int = _option(
        0, unit="bytes", low=0, high=1024 * MIB, check=_check_ring, note=f"0 or at least {64 * KIB}",
        help=f"receive ring; 0: {RING_BYTES // MIB} MiB, or {RING_BYTES_JUMBO // MIB} MiB for an MTU above {JUMBO_MTU}",
        reason="bounds how long the daemon may sleep without losing frames",
    )  # fmt: skip
    rest_us: int = _option(
        50, unit="µs", low=0, high=10_000,
        help="rest between batches under load, so that one wake-up serves many frames; 0: never",
        reason="latency against processor time",
    )  # fmt: skip
    linger_us: int = _option(
        150, unit="µs", low=0, high=10_000,
        help="how long to wait for the answer to what was just sent before going to sleep",
        reason="latency against processor time",
    )  # fmt: skip
    realtime_priority: int = _option(
        0, low=0, high=99,
        help="SCHED_RR priority; 0: normal scheduling. Needs CAP_SYS_NICE; without it the daemon warns and goes on",
        reason="loaded machines",
    )  # fmt: skip
    drain_timeout_ms: int = _option(
        2_000, unit="ms", low=0, high=60_000, live=True,
        help="when stopping: longest time to get out what programs have sent",
        reason="service managers kill after a time of their own",
    )  # fmt: skip

    @property
    def socket_bits(self) -> int:
        """Permissions of the socket as a number."""
        return int(self.socket_mode, 8)

    @property
    def rest_ns(self) -> int:
        return self.rest_us * NS_PER_US

    @property
    def linger_ns(self) -> int:
        return self.linger_us * NS_PER_US

    @property
    def drain_timeout_ns(self) -> int:
        return self.drain_timeout_ms * NS_PER_MS

    def ring_bytes_for(self, mtu: int) -> int:
        """Bytes of the receive ring for an interface of this MTU, with 0 resolved."""
        return self.ring_bytes or (RING_BYTES_JUMBO if mtu > JUMBO_MTU else RING_BYTES)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """[clients]: programs connected to this daemon."""

    max: int = _option(
        64, low=1, high=256, live=True,
        help="programs connected at once",
        reason="bounds the memory for their queues",
    )  # fmt: skip
    queue_bytes_max: int = _option(
        64 * MIB, unit="bytes", low=64 * KIB, high=1024 * MIB,
        help="what may wait for one slow program before it is disconnected; its own sends are held from half of it on",
        reason="memory against patience",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """[log]: lines on standard error."""

    level: str = _option(
        "info", low=1, high=16, choices=("debug", "info", "warning", "error"), live=True,
        help="lowest level that is written",
        reason="looking for a fault",
    )  # fmt: skip
    format: str = _option(
        "text", low=1, high=16, choices=("text", "json"),
        help="lines for people (in systemd's journal: entries with fields of their own), or one JSON object a line",
        reason="log collectors",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """[metrics]: what monitoring reads, over HTTP."""

    listen: str = _option(
        "", low=0, high=SUN_PATH_MAX, check=_check_listen, note="empty, an absolute path, or address:port of the loopback",
        example="127.0.0.1:9461",
        help="where GET /metrics is answered (OpenMetrics): a Unix socket, or a port of this machine's own; empty: nowhere",
        reason="not everybody wants it, and who may connect may read the names of groups and programs",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete, checked configuration."""

    cluster: ClusterOptions
    station: StationOptions
    clients: ClientOptions
    log: LogOptions
    metrics: MetricsOptions = MetricsOptions()
    file: str = "(none)"

    @property
    def fingerprint(self) -> int:
        """CRC-32 of the options of scope cluster as they are in force; stations with different ones open no cluster together."""
        return self.fingerprint_with("")

    def fingerprint_with(self, key_mark: str) -> int:
        """The same for a cluster with a key (``key.mark``), so that a station without one is told why it is not admitted."""
        return zlib.crc32((self.cluster_text + (f"key={key_mark}\n" if key_mark else "")).encode())

    @property
    def cluster_text(self) -> str:
        """What the fingerprint covers: one ``name=value`` line per option of scope cluster, automatic values resolved."""
        values = {o.name: getattr(self.cluster, o.name) for o in OPTIONS if o.scope == "cluster"}
        values["window_frames"] = self.cluster.window
        values["required_stations"] = ",".join(map(str, sorted(self.cluster.required_stations)))
        values["group_address"] = self.cluster.group_address.lower()
        return "".join(f"{name}={value}\n" for name, value in sorted(values.items()))

    def agreed_with(self, key_mark: str) -> dict[str, str]:
        """What the fingerprint covers, by name."""
        options = dict(line.split("=", 1) for line in self.cluster_text.splitlines())
        return {**options, "key": key_mark} if key_mark else options

    def values(self) -> dict[str, dict[str, Any]]:
        """Every option by section and name."""
        return {s: {o.name: getattr(getattr(self, s), o.name) for o in OPTIONS if o.section == s} for s in SECTIONS}


SECTIONS: Final[dict[str, Any]] = {
    "cluster": ClusterOptions,
    "station": StationOptions,
    "clients": ClientOptions,
    "log": LogOptions,
    "metrics": MetricsOptions,
}


def _table() -> Iterator[Option]:
    types: dict[str, type] = {"int": int, "str": str, "tuple[int, ...]": list}
    for section, options in SECTIONS.items():
        for f in dataclasses.fields(options):
            row = cast(dict[str, Any], dict(f.metadata))
            yield Option(section=section, name=f.name, type=types[str(f.type)], **row)


OPTIONS: Final[tuple[Option, ...]] = tuple(_table())


# ---- reading


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
    sections = {name: _section(source, name, tree, problems) for name in SECTIONS}
    for name in tree:
        if name not in SECTIONS:
            problems.append(Problem(source.line(name, None), _unknown_section(name, tree[name])))
    if not problems:
        config = Config(file=file, **sections)
        problems += _together(source, config)
    if problems:
        raise ConfigError(file, tuple(sorted(problems, key=lambda p: p.line)))
    return config


def _section(source: Source, name: str, tree: Mapping[str, Any], problems: list[Problem]) -> Any:
    """The options of one section; problems are added to the list, and then the result is worthless."""
    given = tree.get(name, {})
    rows = {o.name: o for o in OPTIONS if o.section == name}
    required = [o for o in rows.values() if o.required]
    if name not in tree and required:
        problems.append(Problem(1, f"section [{name}] is missing; it needs {' and '.join(o.name for o in required)}"))
        return None
    if not isinstance(given, dict):
        problems.append(Problem(source.line(name, None), f"{name} is {shown(given)}: a section [{name}] is wanted"))
        return None
    values: dict[str, Any] = {}
    for key, value in given.items():
        row = rows.get(key)
        if row is None:
            problems.append(Problem(source.line(name, key), _unknown_option(name, key)))
        elif problem := row.problem(value):
            problems.append(Problem(source.line(name, key), f"{name}.{key} {problem}"))
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    for row in required:
        if row.name not in given:
            text = f"{name}.{row.name} is missing: {row.allowed} is wanted ({row.help})"
            problems.append(Problem(source.line(name, None), text))
    return None if problems else SECTIONS[name](**values)


def _together(source: Source, config: Config) -> Iterator[Problem]:
    """What only shows when several options are looked at together."""
    c, s = config.cluster, config.station
    if s.id > c.stations:
        yield Problem(source.line("station", "id"), f"station.id is {s.id}: 1..{c.stations} is wanted (cluster.stations)")
    for k in c.required_stations:
        if k > c.stations:
            line = source.line("cluster", "required_stations")
            yield Problem(line, f"cluster.required_stations names station {k}: 1..{c.stations} is wanted (cluster.stations)")
    if c.quorum > c.stations or (0 < c.quorum <= c.stations // 2 and not c.required_stations):
        low = 1 if c.required_stations else c.stations // 2 + 1
        why = "of two parts of the cluster only one may go on; name required_stations for less"
        yield Problem(
            source.line("cluster", "quorum"), f"cluster.quorum is {c.quorum}: 0 or {low}..{c.stations} is wanted ({why})"
        )
    at_least = (
        ("fail_timeout_ms", 2 * c.heartbeat_ms, "2 × heartbeat_ms"),
        ("open_window_ms", 4 * c.open_interval_ms, "4 × open_interval_ms"),
        ("nak_retry_max_ms", c.nak_retry_ms, "nak_retry_ms"),
        ("poll_delay_max_ms", c.poll_delay_ms, "poll_delay_ms"),
    )
    for name, bound, why in at_least:
        value = getattr(c, name)
        if value < bound:
            line = source.line("cluster", name)
            yield Problem(line, f"cluster.{name} is {value} ms: at least {bound} ms is wanted ({why})")


def _unknown_section(name: str, value: object) -> str:
    homes = [o.section for o in OPTIONS if o.name == name]
    if homes and not isinstance(value, dict):
        return f"{quoted(name)} stands outside a section; it belongs in [{homes[0]}]"
    what = f"section [{quoted(name)}]" if isinstance(value, dict) else quoted(name)
    return f"{what} is unknown; sections are {', '.join(f'[{s}]' for s in SECTIONS)}" + _did_you_mean(name, tuple(SECTIONS))


def _unknown_option(section: str, name: str) -> str:
    here = tuple(o.name for o in OPTIONS if o.section == section)
    homes = [o.section for o in OPTIONS if o.name == name]
    text = f"{section}.{quoted(name)} is unknown"
    if homes:
        return f"{text}; it belongs in [{homes[0]}]"
    return text + (_did_you_mean(name, here) or f"; options of [{section}] are {', '.join(here)}")


def _did_you_mean(name: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name[:64], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def toml_value(value: object) -> str:
    """A value of an option as TOML."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return str(value)


def example() -> str:
    """A configuration file with every option explained: required ones set, the others commented out at their default."""
    out = [
        "# Configuration of zenjund, the zenjun daemon. Check it with: zenjun config check FILE",
        "# Options that are commented out show their default.",
    ]
    for section in SECTIONS:
        same = "must be equal at all stations" if section == "cluster" else "may differ at each station"
        out += ["", f"[{section}]  # {same}"]
        for o in OPTIONS:
            if o.section == section:
                out += ["", f"# {sentence(o.help)}", f"# {sentence(o.allowed)}{LIVE if o.live else ''}"]
                value = f"0x{o.default:04x}" if o.name == "ethertype" else toml_value(o.example if o.required else o.default)
                out.append(f"{'' if o.required else '#'}{o.name} = {value}")
    return "\n".join(out) + "\n"


def markdown() -> str:
    """docs/config.md."""
    out = [
        "# Configuration",
        "",
        "<!-- Made from daemon/config.py by `python -m zenjun.tools.generate`; a test fails when it is stale. -->",
        "",
        f"`zenjund` reads one TOML file: `--config FILE`, else the file named by `${CONFIG_ENV}`, else `{CONFIG_PATH}`.",
        "`zenjun config example` prints one to start from, `zenjun config check FILE` checks one without starting anything.",
        "An unknown option, a wrong type or a value out of bounds is an error that names file, line and the allowed values.",
        "",
        "Options of `[cluster]` must be equal at all stations: a CRC-32 of them travels in the OPEN frames, and a station whose",
        "options differ is not admitted; both sides name it. All others may differ. Options without a default are required.",
        "A change needs a restart, unless the option says that a reload (SIGHUP, `systemctl reload`) takes it over.",
    ]
    for section, options in SECTIONS.items():
        doc = str(options.__doc__).split(": ", 1)[1].rstrip(".")
        out += [
            "",
            f"## `[{section}]`",
            "",
            f"{sentence(doc)}",
            "",
            "| option | default | allowed | meaning | why it can be set |",
        ]
        out.append("|---|---|---|---|---|")
        for o in OPTIONS:
            if o.section == section:
                default = "" if o.required else f"`{f'0x{o.default:04x}' if o.name == 'ethertype' else toml_value(o.default)}`"
                note = f". *{LIVE.strip()[:-1]}*" if o.live else ""
                out.append(f"| `{o.name}` | {default} | {o.allowed} | {o.help}{note} | {o.reason} |")
    return "\n".join(out) + "\n"


def sentence(text: str) -> str:
    """Words as a sentence."""
    return text[0].upper() + text[1:] + "."
