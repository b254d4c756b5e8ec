"""The answer to a DNS question about a name (docs/directory-service.md, "DNS"). No sockets, no clock; the wire format is
dnspython's.

The zone is one domain, ``zenjun.internal`` unless configured otherwise, and this station's copy is its only source: answers are
authoritative, other domains are REFUSED, nothing is asked elsewhere. An answer is complete or truncated (TC, no records), so that
no asker takes a part of the addresses for all of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.CNAME
import dns.rdtypes.ANY.NS
import dns.rdtypes.ANY.SOA
import dns.rdtypes.ANY.TXT
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
import dns.rdtypes.IN.SRV
import dns.rrset
from dns.rdataclass import IN
from dns.rdatatype import AAAA, ANY, CNAME, NS, SOA, SRV, TXT, A

from ...proto.service.directory.entries import Entry, Target
from ...proto.service.directory.lookup import Found
from ...proto.service.directory.names import is_name, lower

UDP_PLAIN: Final = 512
"""Bytes of an answer to a question without EDNS (RFC 1035)."""
UDP_MAX: Final = 1232
"""Bytes of an answer over UDP, whatever size the asker accepts (DNS flag day 2020)."""
TCP_MAX: Final = 65535
NEGATIVE_TTL: Final = 1
"""Seconds for which it may be kept that there is nothing."""
HOST_MAX: Final = 253
"""Bytes of a host name; DNS cannot carry a longer one."""
STRING_MAX: Final = 255
"""Bytes of one string of a TXT record."""
HOSTS: Final = "addr"
"""``0a000007.addr`` is the host 10.0.0.7: what SRV records name. These names are never looked up in the directory."""
_HOST: Final = re.compile(rf"([0-9a-f]{{8}}|[0-9a-f]{{32}})\.{HOSTS}", re.ASCII)
_SERVICE: Final = re.compile(r"_([a-z0-9_-]+)\._(tcp|udp)((?:\.[a-z0-9_-]+)*)", re.ASCII)
"""``_db._tcp.plant``: the addresses of ``db.plant`` with a port and a scheme of that protocol."""
_BETWEEN: Final = re.compile(rf"{HOSTS}|station|_(?:tcp|udp)(?:\.[a-z0-9_-]+)*", re.ASCII)
"""Names that have none of their own, but others below them."""
OVER_UDP: Final = frozenset({"udp", "quic"})
"""Schemes whose ports are UDP's; all others are TCP's."""
_HOST_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.ASCII | re.IGNORECASE)

IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Unanswerable(Exception):
    """A message that gets no answer. The text is one word, the counter's."""


class Failed(Exception):
    """SERVFAIL: this copy is too old to answer, its file cannot be read, or a chain of aliases is too long."""


class Source(Protocol):
    """A copy of the directory."""

    def follow(self, name: str) -> Found:
        """Where a name leads. Raises Failed."""

    def targets(self, entry: Entry) -> Sequence[Target]:
        """Those in use, in the order of the entry's selection."""

    @property
    def serial(self) -> int:
        """Of the zone, 0 to 2^32 - 1."""


class Endpoint(NamedTuple):
    """The part of an address that DNS can carry. ip: of a literal host; host: of another one; port 0: none."""

    scheme: str
    host: str
    ip: IP | None
    port: int
    priority: int
    weight: int


@lru_cache(4096)
def endpoint(target: Target) -> Endpoint | None:
    """None for an address without a host, such as ``station:3`` or ``mac:…``."""
    try:
        parts = urlsplit(target.address)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        return None
    if not host:
        return None
    try:
        ip: IP | None = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if ip is not None and (getattr(ip, "scope_id", None) or "%" in host):
        return None  # an address with an interface means nothing elsewhere
    if ip is None and not (len(host) <= HOST_MAX and _HOST_NAME.fullmatch(host)):
        return None
    return Endpoint(parts.scheme, host, ip, port, target.priority, target.weight)


def host_label(ip: IP) -> str:
    return f"{ip.packed.hex()}.{HOSTS}"


def host_of(name: str) -> IP | None:
    """The host that a name below ``addr`` represents."""
    match = _HOST.fullmatch(name)
    return ipaddress.ip_address(bytes.fromhex(match[1])) if match else None


class _Reply:
    """A response under construction."""

    def __init__(self, message: dns.message.Message) -> None:
        self.message = message

    def add(self, section: list[dns.rrset.RRset], name: dns.name.Name, ttl: int, rdatas: Sequence[dns.rdata.Rdata]) -> None:
        """A whole set of records, in this order; none: nothing."""
        if rdatas and not any(s.name == name and s.rdtype == rdatas[0].rdtype for s in section):
            section.append(dns.rrset.from_rdata_list(name, ttl, list(rdatas)))


class Zone:
    """Answers for one domain."""

    def __init__(self, source: Source, domain: str, station: int) -> None:
        self._source = source
        self.domain = domain
        self.origin = dns.name.from_text(domain)
        server = dns.name.from_text(f"s{station}.station", self.origin)
        self._ns = dns.rdtypes.ANY.NS.NS(IN, NS, server)
        self._server = server
        self._hostmaster = dns.name.from_text("hostmaster", self.origin)
        self.answers: Counter[str] = Counter()
        """Answers by their code: NOERROR, NXDOMAIN, …"""

    def respond(self, wire: bytes, *, tcp: bool) -> bytes:
        """The answer to a message. Raises Unanswerable: it is malformed, or an answer itself. Never raises otherwise."""
        try:
            query = dns.message.from_wire(wire)
            if query.flags & dns.flags.QR:
                raise Unanswerable("response")
            reply = _reply_to(query)
        except (dns.exception.DNSException, ValueError):
            raise Unanswerable("malformed") from None
        self._decide(query, reply)
        if tcp:
            most = TCP_MAX
        else:
            most = UDP_PLAIN if query.edns < 0 else max(UDP_PLAIN, min(query.payload, UDP_MAX))
        out = _whole(reply, most)
        self.answers[dns.rcode.to_text(reply.rcode())] += 1
        return out

    def _decide(self, query: dns.message.Message, reply: dns.message.Message) -> None:
        if query.edns > 0:
            reply.set_rcode(dns.rcode.BADVERS)
        elif query.opcode() != dns.opcode.QUERY:
            reply.set_rcode(dns.rcode.NOTIMP)
        elif len(query.question) != 1:
            reply.set_rcode(dns.rcode.FORMERR)
        else:
            question = query.question[0]
            inside = question.name.is_subdomain(self.origin) and question.rdclass == IN
            if not inside or (dns.rdatatype.is_metatype(question.rdtype) and question.rdtype != ANY):
                reply.set_rcode(dns.rcode.REFUSED)  # also AXFR, IXFR
                return
            reply.flags |= dns.flags.AA
            try:
                self._answer(_Reply(reply), question.name, question.rdtype)
            except (Failed, dns.exception.DNSException):
                # DNSException: an alias whose name is too long below the domain.
                reply.flags &= ~dns.flags.AA
                for section in (reply.answer, reply.authority, reply.additional):
                    section.clear()
                reply.set_rcode(dns.rcode.SERVFAIL)

    # ---- names of the zone

    def _answer(self, reply: _Reply, asked: dns.name.Name, rdtype: dns.rdatatype.RdataType) -> None:
        if asked == self.origin:
            self._apex(reply, asked, rdtype)
            return
        try:
            name = lower(asked.relativize(self.origin).to_text())
        except UnicodeError:
            name = ""
        ip = host_of(name)
        if ip is not None:
            reply.add(reply.message.answer, asked, 1, _of_type(rdtype, [_address(ip)]))
        elif service := _SERVICE.fullmatch(name):
            self._service(reply, asked, rdtype, service[1] + service[3], service[2])
        elif is_name(name) and not _BETWEEN.fullmatch(name):
            self._name(reply, asked, rdtype, name)
        elif not _BETWEEN.fullmatch(name):
            reply.message.set_rcode(dns.rcode.NXDOMAIN)
        answer = reply.message.answer
        if not answer or reply.message.rcode() or (answer[-1].rdtype == CNAME and rdtype not in (CNAME, ANY)):
            self._nothing(reply)

    def _apex(self, reply: _Reply, asked: dns.name.Name, rdtype: dns.rdatatype.RdataType) -> None:
        records = [*_of_type(rdtype, [self._soa()]), *(_of_type(rdtype, [self._ns]) if rdtype != ANY else ())]
        reply.add(reply.message.answer, asked, NEGATIVE_TTL, records)
        if not records:
            self._nothing(reply)

    def _soa(self) -> dns.rdtypes.ANY.SOA.SOA:
        return dns.rdtypes.ANY.SOA.SOA(
            IN, SOA, self._server, self._hostmaster, self._source.serial, 3600, 600, 86400, NEGATIVE_TTL
        )  # fmt: skip

    def _nothing(self, reply: _Reply) -> None:
        """SOA: for how long it may be kept that there is nothing (RFC 2308)."""
        reply.add(reply.message.authority, self.origin, NEGATIVE_TTL, [self._soa()])

    def _chain(self, reply: _Reply, asked: dns.name.Name, name: str, form: str = "{}") -> tuple[Entry | None, dns.name.Name]:
        """Follow aliases with a CNAME each. form: how a name of the directory is written in the zone."""
        found = self._source.follow(name)
        at = asked
        for following in found.path[1:]:
            target = dns.name.from_text(_formed(form, following), self.origin)
            reply.add(reply.message.answer, at, NEGATIVE_TTL, [dns.rdtypes.ANY.CNAME.CNAME(IN, CNAME, target)])
            at = target
        if found.entry is None:
            if found.code != "no-name":
                raise Failed(found.code)
            reply.message.set_rcode(dns.rcode.NXDOMAIN)
        return found.entry, at

    def _name(self, reply: _Reply, asked: dns.name.Name, rdtype: dns.rdatatype.RdataType, name: str) -> None:
        entry, at = self._chain(reply, asked, name)
        if entry is None or (rdtype in (CNAME, ANY) and at != asked):
            return
        targets = self._source.targets(entry)
        hosts = dict.fromkeys(e.ip for e in map(endpoint, targets) if e is not None and e.ip is not None)
        for kind, version in ((A, 4), (AAAA, 6)):
            if rdtype == kind or (rdtype == ANY and not reply.message.answer):
                reply.add(reply.message.answer, at, entry.ttl, [_address(ip) for ip in hosts if ip.version == version])
        if rdtype == TXT or (rdtype == ANY and not reply.message.answer):
            texts = [f"address={t.address}" for t in targets] + [f"{key}={value}" for key, value in entry.meta]
            reply.add(reply.message.answer, at, entry.ttl, _unique([_text(text) for text in texts]))

    def _service(self, reply: _Reply, asked: dns.name.Name, rdtype: dns.rdatatype.RdataType, name: str, protocol: str) -> None:
        if not is_name(name):
            reply.message.set_rcode(dns.rcode.NXDOMAIN)
            return
        entry, at = self._chain(reply, asked, name, "_{}._" + protocol)
        if entry is None or rdtype not in (SRV, ANY) or (rdtype == ANY and at != asked):
            return
        records: list[dns.rdata.Rdata] = []
        for e in map(endpoint, self._source.targets(entry)):
            if e is None or not e.port or ("udp" if e.scheme in OVER_UDP else "tcp") != protocol:
                continue
            if e.ip is None:
                host = dns.name.from_text(e.host)
            else:
                host = dns.name.from_text(host_label(e.ip), self.origin)
                reply.add(reply.message.additional, host, entry.ttl, [_address(e.ip)])
            records.append(dns.rdtypes.IN.SRV.SRV(IN, SRV, e.priority, e.weight, e.port, host))
        reply.add(reply.message.answer, at, entry.ttl, _unique(records))


def _formed(form: str, name: str) -> str:
    """``db.plant`` in the form ``_{}._tcp``: ``_db._tcp.plant``."""
    if form == "{}":
        return name
    first, _, rest = name.partition(".")
    return form.format(first) + (f".{rest}" if rest else "")


def _reply_to(query: dns.message.Message) -> dns.message.Message:
    reply = dns.message.make_response(query, our_payload=UDP_MAX)
    reply.flags &= ~(dns.flags.RA | dns.flags.CD | dns.flags.AD)
    return reply


def _whole(reply: dns.message.Message, most: int) -> bytes:
    """The bytes of an answer: whole, without the glue, or truncated to nothing."""
    for _ in range(2):
        try:
            return reply.to_wire(max_size=most, want_shuffle=False)
        except dns.exception.TooBig:
            reply.additional = []
    reply.answer, reply.authority = [], []
    reply.flags |= dns.flags.TC
    return reply.to_wire(max_size=most)


def _of_type(rdtype: dns.rdatatype.RdataType, records: Sequence[dns.rdata.Rdata]) -> list[dns.rdata.Rdata]:
    return [r for r in records if rdtype in (r.rdtype, ANY)]


def _unique(records: Sequence[dns.rdata.Rdata]) -> list[dns.rdata.Rdata]:
    return list(dict.fromkeys(records))


def _address(ip: IP) -> dns.rdata.Rdata:
    if ip.version == 4:
        return dns.rdtypes.IN.A.A(IN, A, str(ip))
    return dns.rdtypes.IN.AAAA.AAAA(IN, AAAA, str(ip))


def _text(text: str) -> dns.rdata.Rdata:
    data = text.encode("utf-8", "surrogatepass")
    return dns.rdtypes.ANY.TXT.TXT(IN, TXT, [data[at : at + STRING_MAX] for at in range(0, len(data), STRING_MAX)])
