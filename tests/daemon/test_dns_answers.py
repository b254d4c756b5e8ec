"""What DNS questions get, over a few entries: records, codes, whole sets or none, and what gets no answer at all."""

from __future__ import annotations

from collections.abc import Sequence

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.query
import dns.rcode
import dns.rdatatype
import dns.update
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.daemon.directory.dnsanswer import Failed, Unanswerable, Zone
from zenjun.proto.service.directory.entries import Entry, Target
from zenjun.proto.service.directory.lookup import Found, follow

ENTRIES = (
    Entry("db", "user:root", (1, 1, 0), targets=(Target("tcp://10.0.0.7:5432"), Target("tcp://[fd00::7]:5432", 0, 3)), ttl=30),
    Entry("web.plant", "user:root", (1, 1, 0), targets=(Target("http://www.example.org:80/a"), Target("udp://10.0.0.9:53"))),
    Entry("www", "user:root", (1, 1, 0), alias="site"),
    Entry("site", "user:root", (1, 1, 0), alias="db"),
    Entry("lost", "user:root", (1, 1, 0), alias="nothing"),
    Entry("machine", "user:root", (1, 1, 0), targets=(Target("station:3/editor"), Target("mac:02:00:00:00:00:07"))),
    Entry("empty", "user:root", (1, 1, 0), meta=(("site", "Ōsaka"),)),
    Entry("many", "user:root", (1, 1, 0), targets=tuple(Target(f"tcp://10.1.0.{i}:80") for i in range(64))),
    Entry("some", "user:root", (1, 1, 0), targets=tuple(Target(f"tcp://10.1.0.{i}:80") for i in range(20))),
    Entry("long", "user:root", (1, 1, 0), alias=".".join(["a" * 60] * 4)),
    Entry("texts", "user:root", (1, 1, 0), targets=(Target("x:" + "y" * 500),)),
    Entry(
        "odd", "user:root", (1, 1, 0), targets=(Target("http://a:99999/"), Target("http://[fe80::1%25e]:1"), Target("a://a..b:1"))
    ),
    Entry("wide", "user:root", (1, 1, 0), targets=(Target("a://" + "b." * 130 + "c:1"), Target("a://b." + "c." * 120 + "d:2"))),
    Entry("0a000007.addr", "user:mallory", (1, 1, 0), targets=(Target("tcp://6.6.6.6:1"),)),
    *(Entry(f"c{i}", "user:root", (1, 1, 0), alias=f"c{i + 1}") for i in range(12)),
)


class Some:
    """A source that is a few entries."""

    serial = 77

    def __init__(self) -> None:
        self.entries = {e.name: e for e in ENTRIES}
        self.stale = False

    def follow(self, name: str) -> Found:
        if self.stale:
            raise Failed("stale")
        return follow(self.entries.get, name)

    def targets(self, entry: Entry) -> Sequence[Target]:
        return entry.targets


SOURCE = Some()
ZONE = Zone(SOURCE, "zenjun.internal", 2)


def ask(name: str, kind: str = "A", *, tcp: bool = False, edns: int = 4096, relative: bool = True) -> dns.message.Message:
    domain = dns.name.from_text("zenjun.internal") if relative else dns.name.root
    query = dns.message.make_query(dns.name.from_text(name, domain), kind, use_edns=0 if edns else False, payload=edns or None)
    reply = dns.message.from_wire(ZONE.respond(query.to_wire(), tcp=tcp))
    assert query.is_response(reply) and not reply.flags & dns.flags.RA
    return reply


def records(reply: dns.message.Message) -> list[str]:
    return [f"{s.name.to_text()} {s.ttl} {dns.rdatatype.to_text(s.rdtype)} {r.to_text()}" for s in reply.answer for r in s]


def code(reply: dns.message.Message) -> str:
    return dns.rcode.to_text(reply.rcode())


def has_soa(reply: dns.message.Message) -> bool:
    return [s.rdtype for s in reply.authority] == [dns.rdatatype.SOA]


def test_addresses_of_literal_hosts_with_the_ttl_of_the_entry() -> None:
    found = ask("db")
    assert records(found) == ["db.zenjun.internal. 30 A 10.0.0.7"]
    assert found.flags & dns.flags.AA and not found.authority
    assert records(ask("DB", "AAAA")) == ["DB.zenjun.internal. 30 AAAA fd00::7"]
    assert found.question[0].name.to_text() == "db.zenjun.internal."


def test_the_order_of_the_selection_is_kept() -> None:
    for _ in range(5):
        assert [r.rsplit(" ", 1)[1] for r in records(ask("some", edns=4096))] == [f"10.1.0.{i}" for i in range(20)]


@pytest.mark.parametrize("name", ["web.plant", "machine", "empty", "odd", "s3.station", "station", "addr", "_tcp", "_udp.plant"])
def test_a_name_without_such_an_address_is_there_all_the_same(name: str) -> None:
    found = ask(name, "AAAA")
    assert (code(found), records(found)) == ("NOERROR", [])
    assert has_soa(found)


@pytest.mark.parametrize(
    "name", ["nothing", "db.db", "_nothing._tcp", "*", "a\\.b", "ä", "\\000", "s65.station", "g0.addr", "_db", "_._tcp"]
)
def test_what_is_not_there_is_nxdomain_with_soa(name: str) -> None:
    found = ask(name)
    assert code(found) == "NXDOMAIN" and has_soa(found) and not found.answer
    soa = found.authority[0]
    assert (soa.name.to_text(), soa[0].serial, soa[0].minimum) == ("zenjun.internal.", 77, 1)


def test_services_are_the_addresses_with_ports_and_their_hosts_come_along() -> None:
    found = ask("_db._tcp", "SRV")
    assert records(found) == [
        "_db._tcp.zenjun.internal. 30 SRV 0 1 5432 0a000007.addr.zenjun.internal.",
        "_db._tcp.zenjun.internal. 30 SRV 0 3 5432 fd000000000000000000000000000007.addr.zenjun.internal.",
    ]
    glue = {s.name.to_text(): s[0].to_text() for s in found.additional}
    assert glue["0a000007.addr.zenjun.internal."] == "10.0.0.7" and len(glue) == 2
    assert records(ask("_web._tcp.plant", "SRV")) == ["_web._tcp.plant.zenjun.internal. 1 SRV 0 1 80 www.example.org."]
    assert [r.split()[-1] for r in records(ask("_web._udp.plant", "SRV"))] == ["0a000009.addr.zenjun.internal."]
    assert (code(ask("_db._udp", "SRV")), records(ask("_db._udp", "SRV"))) == ("NOERROR", [])


def test_a_host_that_no_name_can_be_is_left_out() -> None:
    assert [r.split()[5] for r in records(ask("_wide._tcp", "SRV"))] == ["2"]


def test_nobody_can_take_the_name_of_a_host() -> None:
    assert records(ask("0a000007.addr")) == ["0a000007.addr.zenjun.internal. 1 A 10.0.0.7"]
    assert [r.split()[-1] for r in records(ask("fd000000000000000000000000000007.addr", "AAAA"))] == ["fd00::7"]


def test_aliases_are_cnames_and_their_end_decides_the_code() -> None:
    assert records(ask("www")) == [
        "www.zenjun.internal. 1 CNAME site.zenjun.internal.",
        "site.zenjun.internal. 1 CNAME db.zenjun.internal.",
        "db.zenjun.internal. 30 A 10.0.0.7",
    ]
    assert len(records(ask("_www._tcp", "SRV"))) == 4
    assert records(ask("_www._tcp", "SRV"))[1] == "_site._tcp.zenjun.internal. 1 CNAME _db._tcp.zenjun.internal."
    for kind in ("CNAME", "ANY"):
        assert [r.split()[2] for r in records(ask("www", kind))] == ["CNAME", "CNAME"]
    nothing = ask("www", "MX")
    assert code(nothing) == "NOERROR" and len(nothing.answer) == 2 and has_soa(nothing)
    lost = ask("lost")
    assert code(lost) == "NXDOMAIN" and len(records(lost)) == 1 and has_soa(lost)
    # Too many aliases, and one whose name is too long below the domain.
    for name in ("c0", "long"):
        failed = ask(name)
        assert (code(failed), records(failed)) == ("SERVFAIL", [])


def test_texts_are_addresses_and_meta() -> None:
    assert 'empty.zenjun.internal. 1 TXT "site=\\197\\140saka"' in records(ask("empty", "TXT"))
    assert [r.split(" ", 3)[3] for r in records(ask("machine", "TXT"))] == [
        '"address=station:3/editor"',
        '"address=mac:02:00:00:00:00:07"',
    ]
    long = ask("texts", "TXT").answer[0][0]
    assert [len(s) for s in long.strings] == [255, 255] and b"".join(long.strings) == b"address=x:" + b"y" * 500


def test_any_gets_one_set() -> None:
    assert [r.split()[2] for r in records(ask("db", "ANY"))] == ["A"]
    assert [r.split()[2] for r in records(ask("machine", "ANY"))] == ["TXT", "TXT"]
    assert len(records(ask("_db._tcp", "ANY"))) == 2


def test_the_domain_itself() -> None:
    assert [r.split()[2] for r in records(ask("@", "SOA"))] == ["SOA"]
    assert records(ask("@", "NS")) == ["zenjun.internal. 1 NS s2.station.zenjun.internal."]
    assert code(ask("@")) == "NOERROR" and has_soa(ask("@"))


def test_other_domains_classes_and_transfers_are_refused() -> None:
    for name, kind in (("example.org", "A"), ("internal", "A"), ("7.0.0.10.in-addr.arpa", "PTR"), (".", "NS")):
        found = ask(name, kind, relative=False)
        assert code(found) == "REFUSED" and not found.flags & dns.flags.AA and not found.authority
    assert code(ask("@", "AXFR", tcp=True)) == "REFUSED"
    chaos = dns.message.make_query("version.bind", "TXT", "CH")
    assert code(dns.message.from_wire(ZONE.respond(chaos.to_wire(), tcp=False))) == "REFUSED"


def test_an_answer_is_whole_or_truncated_to_nothing() -> None:
    whole = ask("many", tcp=True)
    assert len(records(whole)) == 64
    cut = ask("many", edns=0)
    assert cut.flags & dns.flags.TC and not cut.answer
    assert len(records(ask("some", edns=1232))) == 20
    # Without room for the hosts they are left out, and asked for.
    services = ask("_some._tcp", "SRV", edns=1232)
    assert len(records(services)) == 20 and not services.additional and not services.flags & dns.flags.TC
    for edns in (0, 512, 4096):
        query = dns.message.make_query("many.zenjun.internal", "TXT", use_edns=0 if edns else False, payload=edns or None)
        assert len(ZONE.respond(query.to_wire(), tcp=False)) <= min(edns or 512, 1232)


def test_edns_of_a_later_version_and_other_operations() -> None:
    query = dns.message.make_query("db.zenjun.internal", "A", use_edns=0)
    query.use_edns(1, payload=1232)
    assert code(dns.message.from_wire(ZONE.respond(query.to_wire(), tcp=False))) == "BADVERS"
    status = dns.message.make_query("db.zenjun.internal", "A")
    status.set_opcode(dns.opcode.STATUS)
    assert code(dns.message.from_wire(ZONE.respond(status.to_wire(), tcp=False))) == "NOTIMP"
    update = dns.update.UpdateMessage("zenjun.internal")
    update.add("x", 1, "A", "1.2.3.4")
    assert code(dns.message.from_wire(ZONE.respond(update.to_wire(), tcp=False))) == "NOTIMP"
    empty = dns.message.Message()
    assert code(dns.message.from_wire(ZONE.respond(empty.to_wire(), tcp=False))) == "FORMERR"


def test_a_copy_that_is_too_old_says_servfail() -> None:
    SOURCE.stale = True
    try:
        found = ask("db")
    finally:
        SOURCE.stale = False
    assert (code(found), records(found), bool(found.flags & dns.flags.AA)) == ("SERVFAIL", [], False)


@pytest.mark.parametrize("wire", [b"", b"\0" * 11, b"\xff" * 40, b"\0" * 5 + b"\1" + b"\0" * 6])
def test_malformed_messages_get_no_answer(wire: bytes) -> None:
    with pytest.raises(Unanswerable, match="malformed"):
        ZONE.respond(wire, tcp=False)


def test_an_answer_gets_no_answer() -> None:
    query = dns.message.make_query("db.zenjun.internal", "A")
    with pytest.raises(Unanswerable, match="response"):
        ZONE.respond(dns.message.make_response(query).to_wire(), tcp=False)


QUERIES = [
    dns.message.make_query(f"{name}.zenjun.internal", kind, use_edns=edns, want_dnssec=bool(edns)).to_wire()
    for name, kind, edns in (("db", "A", 0), ("_db._tcp", "SRV", False), ("www", "TXT", 0))
]


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda q, at, b: q[:at] + b + q[at + len(b) :],
            st.sampled_from(QUERIES),
            st.integers(0, 60),
            st.binary(min_size=1, max_size=4),
        ),
    )
)
def test_no_bytes_raise_anything_else(wire: bytes) -> None:
    for tcp in (False, True):
        try:
            answer = ZONE.respond(wire, tcp=tcp)
        except Unanswerable:
            continue
        assert 12 <= len(answer) <= (65535 if tcp else 1232)
        assert answer[:2] == wire[:2] and answer[2] & 0x80
