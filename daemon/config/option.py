"""A row of the table of options, and the checks of single values that types and bounds cannot express.

The result of a check follows "section.option is value: " in the message.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, overload

from ...proto.service.database.zones import parse_zone as parse_database_zone
from ...proto.service.directory.parts import parse_zone
from ...proto.wire import MTU_MIN, STATIONS_MAX
from .source import shown

KIB: Final = 1024
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
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
    item: Any = int
    """Of the values in a list."""

    @property
    def scope(self) -> Scope:
        return "cluster" if self.section in ("cluster", "links") else "station"

    @property
    def required(self) -> bool:
        return self.default is None

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        if self.choices:
            words = " or ".join(f'"{c}"' for c in self.choices)
        elif self.type is list:
            words = f"a list of {self.minimum}..{self.maximum} {'strings' if self.item is str else 'integers'}"
        elif self.type is bool:
            words = "true or false"
        elif self.type is int:
            words = f"an integer {self.minimum}..{self.maximum}" + (f" {self.unit}" if self.unit else "")
        else:
            words = f"a string of {self.minimum}..{self.maximum} bytes"
        return f"{words} ({self.note})" if self.note else words

    def problem(self, value: object) -> str:
        """What is wrong with a value, in words that end a sentence, or an empty string."""
        value = list(value) if isinstance(value, tuple) else value
        if type(value) is not self.type:  # bool is no int here
            return f"is {shown(value)}: expected {self.allowed}"
        if self.choices and value not in self.choices:
            return f"is {shown(value)}: expected {self.allowed}" + did_you_mean(str(value), self.choices)
        if isinstance(value, bool):
            return ""
        if isinstance(value, list):
            if any(type(item) is not self.item for item in value):
                return f"is {shown(value)}: expected {self.allowed}"
            size = len(value)
        else:
            size = value if isinstance(value, int) else len(str(value).encode())
        if self.minimum is not None and self.maximum is not None and not self.minimum <= size <= self.maximum:
            return f"is {shown(value)}: expected {self.allowed}"
        wrong = self.check(value) if self.check else ""
        return f"is {shown(value)}: {wrong}" if wrong else ""


def option(
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
    """A field of a section. low, high: bounds of an integer, of a string's bytes, of a list's length; default None: required."""
    row = {
        "unit": unit, "default": default, "minimum": low, "maximum": high, "choices": choices, "note": note, "check": check,
        "example": default if example is None else example, "help": help, "reason": reason, "live": live,
    }  # fmt: skip
    return field(metadata=row) if default is None else field(default=default, metadata=row)


def did_you_mean(name: str, names: tuple[str, ...]) -> str:
    """The end of a message about a name that is unknown: the one of *names* that is most like it, if any is."""
    close = difflib.get_close_matches(name[:64], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


# ---- checks


def check_stations(value: list[int]) -> str:
    if len(set(value)) != len(value):
        return "a station is named twice"
    return next((f"{k} is no station number" for k in value if not 1 <= k <= STATIONS_MAX), "")


def check_database_zones(value: list[str]) -> str:
    if problem := check_zones(value, parse_database_zone):
        return problem
    found = [station for text in value for station in parse_database_zone(text)[1]]
    return next((f"station {k} is in two zones" for k in found if found.count(k) > 1), "")


def check_zones(value: list[str], parse: Callable[[str], tuple[str, tuple[int, ...]]] = parse_zone) -> str:
    zones = []
    for text in value:
        try:
            zone, stations = parse(text)
        except ValueError as error:
            return str(error)
        zones.append(zone)
        if problem := check_stations(list(stations)):
            return f"{text}: {problem}"
    return "a zone is named twice" if len(set(zones)) != len(zones) else ""


def check_ethertype(value: int) -> str:
    taken = TAKEN_ETHERTYPES.get(value)
    return f"EtherType 0x{value:04x} belongs to {taken}" if taken else ""


def check_group_address(value: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", value):
        return "expected an address like 03:5a:4a:00:00:01"
    first = int(value[:2], 16)
    if not first & 1:
        return "expected a multicast address: its first byte must be odd"
    if value.lower() == "ff:ff:ff:ff:ff:ff":
        return "the broadcast address disturbs every machine on the segment; take a multicast address"
    if not first & 2:
        # This also keeps out 01:80:c2:00:00:0x, which bridges do not forward (case 107).
        return "expected a locally administered address (first byte 03, 07, 0b, …); 01:… addresses are assigned to others"
    return next((f"{value} {why}" for prefix, why in TAKEN_ADDRESSES.items() if value.lower().startswith(prefix)), "")


def check_text(value: str) -> str:
    return "" if value.isprintable() else "it has characters that cannot be printed"


def check_pattern(value: str) -> str:
    if not value.isprintable():
        return "it has characters that cannot be printed"
    return "groups named zenjun.* are for root and the daemon's own user always" if value.startswith("zenjun.") else ""


def check_interface(value: str) -> str:
    if "/" in value or value in (".", "..") or any(c.isspace() or not c.isprintable() for c in value):
        return "that cannot be the name of an interface"
    return ""


def check_path(value: str) -> str:
    if not value.startswith("/"):
        return "expected an absolute path"
    return "it has characters that cannot be printed" if not value.isprintable() else ""


def check_mtu(value: int) -> str:
    return f"expected 0 or {MTU_MIN}..65535 bytes" if 0 < value < MTU_MIN else ""


def check_ring(value: int) -> str:
    return f"expected 0 or {64 * KIB}..{1024 * MIB} bytes" if 0 < value < 64 * KIB else ""


def check_user_bytes(value: int) -> str:
    return f"expected 0 or at least {MIB} bytes" if 0 < value < MIB else ""


def check_rate_bytes(value: int) -> str:
    return f"expected 0 or at least {KIB} bytes/s" if 0 < value < KIB else ""


def check_window(value: int) -> str:
    return "expected 0 or 4..4096" if 0 < value < 4 else ""


def check_mode(value: str) -> str:
    return "" if re.fullmatch(r"0?[0-7]{3}", value) else 'expected three octal digits, like "0660"'


def check_listen(value: str) -> str:
    if not value or value.startswith("/"):
        return check_path(value) if value else ""
    try:
        host, port = loopback(value)
    except ValueError:
        return "expected an absolute path or an address like 127.0.0.1:9461 or [::1]:9461"
    if not host.is_loopback:
        return f"{host} can be reached from other machines; only a loopback address is taken: put a proxy with rules before it"
    return "" if 0 < port < 65536 else "expected a port 1..65535"


def check_dns(value: str) -> str:
    return "expected an address like 127.0.0.1:5390 or [::1]:5390" if value.startswith("/") else check_listen(value)


def check_domain(value: str) -> str:
    label = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    return (
        ""
        if re.fullmatch(rf"{label}(?:\.{label})*", value, re.ASCII)
        else "expected a domain like zenjun.internal, in lower case"
    )


NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000


class Nanoseconds:
    """An option that is a time, in nanoseconds; the option's name ends in its own unit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._factor = {"us": NS_PER_US, "ms": NS_PER_MS}[name.rpartition("_")[2]]

    @overload
    def __get__(self, options: None, owner: type) -> Nanoseconds: ...
    @overload
    def __get__(self, options: object, owner: type) -> int: ...
    def __get__(self, options: object, owner: type) -> Nanoseconds | int:
        return self if options is None else int(getattr(options, self._name)) * self._factor


def loopback(value: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Address and port of ``metrics.listen``. Raises ValueError."""
    host, _, port = value.rpartition(":")
    return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)
