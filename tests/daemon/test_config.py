"""The option table and its reader: every mistake has a line and the allowed values, and nothing in a file makes a traceback."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.daemon import config as config_module
from zenjun.daemon.config import FILE_BYTES_MAX, MIB, OPTIONS, SECTIONS, Config, ConfigError, example, load, parse
from zenjun.daemon.config.adopted import changed, options_of, with_options, with_station, without_station
from zenjun.daemon.config.option import Nanoseconds
from zenjun.daemon.confighost import Settings
from zenjun.proto.errors import UsageError

from ..rules import rule
from ..virtual.engines import CONFIG

GOOD = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 2\ninterface = "eth0"\n'


def wrong(text: str | bytes) -> list[tuple[int, str]]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml")
    assert all(line.startswith("f.toml") for line in str(caught.value).splitlines())
    return [(p.line, p.message) for p in caught.value.problems]


def put(line: str, section: str = "cluster") -> str:
    """GOOD with one more line at the end of a section."""
    return GOOD.replace("[station]\n", f"{line}\n[station]\n") if section == "cluster" else f"{GOOD}{line}\n"


def test_smallest_file_gives_the_defaults() -> None:
    c = parse(GOOD)
    assert (c.cluster.name, c.cluster.stations, c.station.id, c.station.interface) == ("c", 3, 2, "eth0")
    for o in OPTIONS:
        if not o.required:
            assert getattr(getattr(c, o.section), o.name) == o.default
    assert c.cluster.confirm_delay_ns == 200_000
    assert c.cluster.nak_retry_max_ns == 100_000_000
    assert c.cluster.group_mac == bytes.fromhex("035a4a000001")
    assert c.station.socket_bits == 0o660
    assert (c.station.ring_bytes_for(1500), c.station.ring_bytes_for(9000)) == (8 * MIB, 64 * MIB)
    assert parse(put("ring_bytes = 1048576", "station")).station.ring_bytes_for(9000) == MIB


@pytest.mark.parametrize(("stations", "window"), [(1, 256), (2, 250), (3, 111), (5, 40), (8, 16), (64, 16)])
def test_automatic_window(stations: int, window: int) -> None:
    c = parse(GOOD.replace("stations = 3", f"stations = {stations}").replace("id = 2", "id = 1"))
    assert c.cluster.window == window


def test_every_default_and_example_is_allowed_and_explained() -> None:
    for o in OPTIONS:
        assert o.help and o.reason and o.example is not None
        assert o.problem(o.example) == ""
        assert o.unit == {"us": "µs", "ms": "ms", "bytes": "bytes", "frames": "frames"}.get(o.name.split("_")[-1], o.unit)
        for suffix, unit in (("_us", "µs"), ("_ms", "ms")):
            if o.name.endswith(suffix):
                assert o.unit == unit
                assert isinstance(getattr(SECTIONS[o.section], o.name[:-3] + "_ns"), Nanoseconds)


def test_times_are_given_in_nanoseconds() -> None:
    config = parse(example())
    factors = {"us": 1_000, "ms": 1_000_000}
    times = [o for o in OPTIONS if o.name[-3:] in ("_us", "_ms")]
    assert len(times) > 15
    for o in times:
        options = getattr(config, o.section)
        assert getattr(options, o.name[:-3] + "_ns") == getattr(options, o.name) * factors[o.name[-2:]]


@pytest.mark.parametrize("o", OPTIONS, ids=lambda o: f"{o.section}.{o.name}")
def test_bounds_of_every_option(o: config_module.Option) -> None:
    assert o.problem(1 if o.type is bool else True) and o.problem(1.5) and o.problem([None]) and o.problem({})
    if o.type is int:
        assert o.minimum is not None and o.maximum is not None
        assert (
            "expected" in o.problem(o.minimum - 1)
            and "expected" in o.problem(o.maximum + 1)
            and "expected" in o.problem(str(o.minimum))
        )
        assert o.problem(10**400)
    else:
        assert o.problem("x" * 5000) and o.problem(1)


def test_case_11_station_id() -> None:
    """No id, id 0, id above the maximum, the same id twice: refused with the line and the reason."""
    assert wrong(GOOD.replace("id = 2\n", "")) == [
        (4, "station.id is missing: expected an integer 1..64 (number of this station, 1..stations, different at each)")
    ]
    assert wrong(GOOD.replace("id = 2", "id = 0")) == [(5, "station.id is 0: expected an integer 1..64")]
    assert wrong(GOOD.replace("id = 2", "id = -378690683")) == [(5, "station.id is -378690683: expected an integer 1..64")]
    assert wrong(GOOD.replace("id = 2", "id = 65")) == [(5, "station.id is 65: expected an integer 1..64")]
    assert parse(GOOD.replace("id = 2", "id = 4")).station.id not in parse(GOOD).cluster.roster, "it waits until it is added"
    bus = put('medium = "bus"').replace("id = 2", "id = 4")
    assert wrong(bus) == [(6, "station.id is 4: expected 1..3 (cluster.stations)")]
    assert wrong(GOOD.replace("id = 2", "id = 2\nid = 3")) == [(6, "id is given a second time")]
    assert wrong(GOOD.replace("id = 2", "id = true")) == [(5, "station.id is true: expected an integer 1..64")]


def test_unknown_options_suggest() -> None:
    assert wrong(put("heartbeet_ms = 3")) == [(4, "cluster.heartbeet_ms is unknown; did you mean heartbeat_ms?")]
    assert wrong(put("mtu = 1500")) == [(4, "cluster.mtu is unknown; it belongs in [station]")]
    [(line, text)] = wrong(put("zzz = 1", "station"))
    assert line == 7 and "options of [station] are id, interface, socket" in text
    assert wrong("mtu = 9000\n" + GOOD) == [(1, "mtu stands outside a section; it belongs in [station]")]
    [(line, text)] = wrong(GOOD + "[clints]\nmax = 3\n")
    assert line == 7 and "did you mean clients?" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('medium = "hub"', '"switched" or "bus"'),
        ('group_address = "01:80:c2:00:00:0e"', "locally administered"),
        ('group_address = "02:00:00:00:00:01"', "must be odd"),
        ('group_address = "ff:ff:ff:ff:ff:ff"', "broadcast"),
        ('group_address = "33:33:00:00:00:01"', "IPv6"),
        ('group_address = "AB:00:04:01:00:01"', "DECnet"),
        ('group_address = "03:5a:4a:00:00:zz"', "an address like"),
        ("ethertype = 0x0800", "IPv4"),
        ("ethertype = 46", "1536..65535"),
        ("window_frames = 1", "0 or 4..4096"),
        ("fail_timeout_ms = 200", "at least 400 ms"),
        ("heartbeat_ms = 99999999999999999999", "5..10000 ms"),
        ("quorum = 1", "expected 0 or 2..3"),
        ("quorum = 4", "expected 0 or 2..3"),
        ("quorum = 4\nrequired_stations = [1]", "expected 0 or 1..3"),
        ("required_stations = [4]", "names station 4: expected 1..3"),
        ("required_stations = [1, 1]", "named twice"),
        ("required_stations = [0]", "0 is no station number"),
        ('required_stations = ["one"]', "a list of 0..64 integers"),
        ("required_stations = [1, true]", "a list of 0..64 integers"),
        ("message_max = 16777217", "1024..16777216 bytes"),
        ("nak_retry_max_ms = 1", "at least 2 ms"),
    ],
)
def test_cluster_values(line: str, says: str) -> None:
    [(number, text)] = wrong(put(line))
    assert says in text and number in (1, 4)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('socket = "relative.sock"', "absolute"),
        (f'socket = "/{"x" * 107}"', "1..107 bytes"),
        ("mtu = 100", "576..65535"),
        ("ring_bytes = 5", "65536"),
        ('socket_mode = "0999"', "octal"),
        ("socket_mode = 0o660", "a string of 3..4 bytes"),
        ('state_dir = "/a\\u0000b"', "cannot be printed"),
        ("realtime_priority = 100", "0..99"),
    ],
)
def test_station_values(line: str, says: str) -> None:
    [(number, text)] = wrong(put(line, "station"))
    assert says in text and number == 7


@pytest.mark.parametrize(
    ("cluster", "directory", "says"),
    [
        ("", 'profile = "unicast"', 'it needs directory.update = "seven"'),
        ('medium = "bus"', 'update = "seven"', "groups of order op"),
        ("", 'update = "seven"\ndns = "127.0.0.1:5390"', "directory.dns has to be empty"),
        ("", 'zones = ["north=1"]', 'needs directory.placement = "zoned"'),
        ("", 'placement = "zoned"\nzones = ["north=1,4"]', "directory.zones names station 4: expected 1..3"),
        ("", 'placement = "zoned"\nzones = ["north=1", "north=2"]', "a zone is named twice"),
        ("", 'placement = "zoned"\nzones = ["default=1"]', "expected NAME=STATION"),
        ("", "zones = [1]", "expected a list of 0..16 strings"),
        ("", "holders = [4]", "directory.holders names station 4: expected 1..3"),
        ("", 'holders = [1]\nupdate = "seven"', "holders and zones have to be empty"),
        ("", 'holders = [1]\ndns = "127.0.0.1:5390"', "holders and zones have to be empty"),
        ("", 'update = "eight"', 'expected "ordered" or "seven"'),
    ],
)
def test_how_names_change(cluster: str, directory: str, says: str) -> None:
    [(_, text)] = wrong(put(cluster) + f"[directory]\n{directory}\n")
    assert says in text


def test_several_problems_come_together_in_order_of_lines() -> None:
    lines = [line for line, _ in wrong('[station]\nid = 0\nfoo = 1\n[cluster]\nname = ""\nstations = 3\n[log]\nlevel = "loud"\n')]
    assert lines == [1, 2, 3, 5, 8]


def test_lines_are_found_in_dotted_and_quoted_keys() -> None:
    assert wrong('cluster.name = "c"\ncluster.stations = 65\nstation = {id = 1, interface = "e"}\n')[0][0] == 2
    assert wrong(GOOD.replace("stations = 3", '"stations" = 65'))[0][0] == 3
    assert wrong(GOOD.replace("[cluster]", "[ cluster ] # comment").replace("stations = 3", "stations=65"))[0][0] == 3
    assert wrong(GOOD.replace("\n", "\r\n").replace("stations = 3", "stations = 65"))[0][0] == 3


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (b"\n\xff\n", 2, "not UTF-8"),
        (b'[cluster]\nname = "\x00"\n', 2, "NUL"),
        ("[cluster]\nname\u00a0= 'x'\n".encode(), 2, "U+00A0"),
        ("[cluster]\nname = “x”\n".encode(), 2, "typographic"),
        (b"[cluster]\n= 3\n", 2, ""),
        (b'[cluster]\n"" = 3\n', 2, "unknown"),
        (b"[]\n", 1, ""),
        (b"[cluster]\n[cluster]\n", 2, "twice"),
        (b"\nx = " + b"9" * 5000 + b"\n", 2, ""),
        (b"\nx = " + b"[" * 20000, 2, ""),
        (b"\n" + b"a." * 20000 + b"a = 1\n", 2, ""),
        (b"\nx = 2024-02-31\n", 2, ""),
        (b"a = 1\n\n" + b"#" * (1 << 20), 3, "larger than 64 KiB"),
        (b"a = '" + b"x" * 1_000_000 + b"'\n", 1, "larger than 64 KiB"),
        (b"", 1, "section [cluster] is missing; it needs name and stations"),
    ],
)
def test_case_105_odd_files(text: bytes, line: int, says: str) -> None:
    """Empty keys, NUL, lines of a megabyte, non-breaking spaces, depth: an error with the line, in bounded time."""
    begin = time.process_time()  # not the clock's: others may have the processors
    problems = wrong(text)
    assert time.process_time() - begin < 10  # quadratic parsing of such a file takes longer
    assert any(number == line and says in message for number, message in problems), problems
    assert all(len(message) < 600 and message.isprintable() for _, message in problems)


_pieces = st.sampled_from(
    ["[cluster]", "[station]", "[[log]]", "name", "id", "stations", "=", '"', "'", '"""', "\n", "\r", "\0", "\u00a0", ".",
     ",", "#", "[", "]", "{", "}", "1", "-", "0x", "1e999", "nan", "inf", "true", "9" * 40, "2024-01-01",
     "\\u0000", "\ud800", "é", "x"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(_pieces, max_size=30).map("".join), st.text(max_size=200), st.binary(max_size=200)))
def test_case_105_fuzz(text: str | bytes) -> None:
    try:
        assert isinstance(parse(text), Config)
    except ConfigError as error:
        assert error.problems and str(error)
        assert all(p.line >= 1 and p.message.isprintable() for p in error.problems)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([o.name for o in OPTIONS] + ["x"]),
        st.integers() | st.booleans() | st.floats() | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    ),
    st.sampled_from([*SECTIONS, "other"]),
)
def test_case_105_fuzz_values(values: dict[str, object], section: str) -> None:
    lines = [
        f"{k} = {config_module.toml_value(v).lower() if not isinstance(v, str) else config_module.toml_value(v)}"
        for k, v in values.items()
    ]
    text = "\n".join([f"[{section}]", *lines])
    try:
        parse(text)
    except ConfigError as error:
        for p in error.problems:
            named = [k for k in values if f".{k} " in p.message and "missing" not in p.message]
            assert all(lines[p.line - 2].startswith(f"{k} =") for k in named)


def test_fingerprint_covers_scope_cluster_only() -> None:
    base = parse(GOOD)
    assert parse(put("mtu = 9000", "station")).fingerprint == base.fingerprint
    assert parse(GOOD.replace("id = 2", "id = 1")).fingerprint == base.fingerprint
    assert parse(put("heartbeat_ms = 101")).fingerprint != base.fingerprint
    assert parse(put("window_frames = 111")).fingerprint == base.fingerprint, "the automatic value written out is the same"
    assert parse(put('group_address = "03:5A:4A:00:00:01"')).fingerprint == base.fingerprint
    names = {f.name for f in dataclasses.fields(SECTIONS["cluster"])}
    assert {line.split("=")[0] for line in base.cluster_text.splitlines()} == names - {
        "security",
        "quorum_timeout_ms",
        "vacant_stations",
    }
    early = parse(put("quorum_timeout_ms = 400"))
    assert early.fingerprint != base.fingerprint, "what stations that do not know the option send is what it is without it"


def test_example_is_a_configuration() -> None:
    c = parse(example())
    assert (c.cluster.name, c.station.id) == ("demo", 1)
    everything = "\n".join(line[1:] if line[:1] == "#" and line[1:2] != " " else line for line in example().splitlines())
    full = parse(everything)
    assert full.values() == c.values()
    assert all(f"{o.name} = " in everything for o in OPTIONS)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "z.toml"
    with pytest.raises(ConfigError, match=r"z\.toml: cannot be read: No such file"):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    file.write_text(GOOD)
    monkeypatch.setenv("ZENJUN_CONFIG", str(file))
    assert load().file == str(file)
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load()
    monkeypatch.delenv("ZENJUN_CONFIG")
    assert str(config_module.find()) == "/etc/zenjun/zenjund.toml"


LINKED = GOOD.replace('interface = "eth0"\n', "") + "[links]\ncount = 2\n"


def link(number: int, interface: str) -> str:
    return f'[[link]]\nnumber = {number}\ninterface = "{interface}"\n'


def test_links() -> None:
    assert parse(GOOD).interfaces == {1: "eth0"}
    assert parse(GOOD + "[links]\ncount = 2\n" + link(2, "eth1")).interfaces == {1: "eth0", 2: "eth1"}
    assert parse(LINKED + link(2, "b") + link(1, "a")).interfaces == {1: "a", 2: "b"}
    assert parse(LINKED + link(2, "b")).interfaces == {2: "b"}, "a station may lack a link"


def test_only_the_number_of_links_is_the_clusters() -> None:
    one, two = parse(GOOD), parse(LINKED + link(1, "a") + link(2, "b"))
    assert parse(GOOD + "[links]\ncount = 1\n").fingerprint == one.fingerprint
    assert two.fingerprint not in (one.fingerprint, parse(LINKED.replace("count = 2", "count = 3") + link(1, "a")).fingerprint)
    assert two.fingerprint == parse(LINKED + link(1, "other")).fingerprint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + link(1, "b"), "two links have number 1 .station.interface is number 1."),
        (LINKED + link(2, "a") + link(2, "b"), "two links have number 2: expected one interface for each"),
        (LINKED + link(1, "a") + link(2, "a"), 'two links have the interface "a"'),
        (GOOD + link(2, "b"), "link.number is 2: expected 1..1 .links.count."),
        (LINKED + link(5, "b"), "link.number is 5: expected an integer 1..4"),
        (LINKED + "[[link]]\nnumber = 1\n", "link.interface is missing: expected a string"),
        (LINKED + link(1, "a") + "speed = 3\n", "link.speed is unknown; options of .link. are number, interface"),
        (LINKED + "[link]\nnumber = 1\n", "link is not a list of tables: write ..link.. for each interface"),
        (LINKED + 5 * link(1, "a"), "there are 5 tables ..link..: expected at most 4"),
        (LINKED, "station.interface is missing"),
        (put('medium = "bus"') + "[links]\ncount = 2\n", 'links.count is more than 1: cluster.medium = "bus" has one link'),
    ],
)
def test_links_that_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text)


# ---- [[access]]


def test_tables_of_rights_are_taken_in_the_order_of_the_file() -> None:
    c = parse(GOOD + '[[access]]\ngroups = "a.*"\nsend = ["user:root", "group:0"]\n[[access]]\ngroups = "b"\nreceive = []\n')
    assert [(t.groups, t.send, t.receive) for t in c.access] == [
        ("a.*", ("user:root", "group:0"), ("all",)),
        ("b", ("all",), ()),
    ]
    assert c.values()["access"]["tables"][1] == {"groups": "b", "send": ("all",), "receive": ()}
    assert parse(GOOD).access == () and parse(GOOD).clients.closed is False


@pytest.mark.parametrize(
    ("table", "line", "text"),
    [
        ('send = ["all"]\n', 10, "access.groups is missing"),
        ('groups = "x"\nsend = ["root"]\n', 12, "'root' names no user"),
        ('groups = "x"\nreceive = ["user:nobody-of-this-name"]\n', 12, "there is no user 'nobody-of-this-name' on this machine"),
        ('groups = "x"\nsend = ["group:no-such-group"]\n', 12, "there is no group 'no-such-group'"),
        ('groups = "x"\nsend = ["user:4294967295"]\n', 12, "there is no user '4294967295'"),
        ('groups = "x"\nsend = "all"\n', 12, "expected a list"),
        ('groups = ""\n', 11, "access.groups is"),
        ('groups = "zenjun.db"\n', 11, "groups named zenjun.*"),
        ('groups = "x"\nwrite = []\n', 12, "access.write is unknown"),
    ],
)
def test_a_mistake_in_a_table_of_rights_has_its_line(table: str, line: int, text: str) -> None:
    """In the second table: a file may have many."""
    ((at, message),) = wrong(GOOD + "\n[[access]]\n" + 'groups = "first"\n[[access]]\n' + table)
    assert at == line and text in message


def test_other_mistakes_with_rights() -> None:
    assert "write [[access]] for each pattern" in wrong(GOOD + '[access]\ngroups = "x"\n')[0][1]
    assert "at most 64" in wrong(GOOD + '[[access]]\ngroups = "x"\n' * 65)[0][1]
    assert "true or false" in wrong(GOOD + "[clients]\nclosed = 1\n")[0][1]
    assert "0 or at least 1024 bytes/s" in wrong(GOOD + "[clients]\nrate_bytes_per_user = 1000\n")[0][1]
    assert "0..1000000" in wrong(GOOD + "[clients]\nrate_per_user = -1\n")[0][1]
    assert "names no user" in wrong(put('operators = ["wheel"]', "station"))[0][1]


def test_a_station_that_is_required_is_not_removed() -> None:
    """Nor may one be required that is not there: the cluster could never open again."""
    file = parse(GOOD)
    options = changed(file, options_of(file.cluster), required_stations=(3,))
    with pytest.raises(UsageError, match="station 3 is required: zenjun cluster set required_stations first"):
        without_station(file, options, 3)
    less = without_station(file, options, 1)
    assert with_options(file, less).cluster.roster == {2, 3} and with_options(file, less).cluster.vacant_stations == (1,)
    for required in ((1,), (4,)):
        with pytest.raises(UsageError, match=f"required_stations names station {required[0]}"):
            changed(file, less, required_stations=required)
    assert with_options(file, with_station(file, less, 5)).cluster.roster == {2, 3, 5}
    with pytest.raises(UsageError, match=r"quorum is 3: expected 0 or 1\.\.2"):
        changed(file, less, quorum=3)


def test_the_highest_station_number_stays_where_frames_are_sealed_or_links_are_several() -> None:
    """There no core of another width takes over while the cluster runs; stations below it and options change all the same."""
    file = parse(GOOD)
    chosen, options = Settings(file, CONFIG, ""), options_of(file.cluster)
    chosen.stations = 3
    above, below = with_station(file, options, 4), without_station(file, options, 1)
    assert not chosen.unfit(above) and not chosen.unfit(below)
    chosen.one_width = "links.count is more than 1"
    for other in (above, without_station(file, options, 3)):
        assert (
            chosen.unfit(other) == "the highest station number cannot change while the cluster runs: links.count is more than 1"
        )
    assert not chosen.unfit(below) and not chosen.unfit(changed(file, options, heartbeat_ms=100))
    assert "station.id is 4: expected 1..3" in wrong(LINKED.replace("id = 2", "id = 4") + link(1, "a"))[0][1]


@pytest.mark.parametrize(
    "options",
    [
        b'{"confirm_delay_us":0,"stations":3}',
        b'{"nak_delay_us":0,"stations":3}',
        b'{"retransmit_gap_ms":0,"stations":3}',
        b'{"heartbeat_ms":400,"stations":3}',
        b'{"stations":"\xed\xa0\x80","stations":3}',
        '{"stations":3}'.encode("utf-16"),
        b'{"\\ud800":1,"stations":3}',
    ],
)
@rule("V1")
def test_what_no_engine_takes_is_no_next_configuration(options: bytes) -> None:
    """In force, it would end the daemon at every station, and again at each start."""
    chosen = Settings(parse(GOOD), CONFIG, "")
    chosen.stations = 3
    assert chosen.unfit(options)
    chosen.unfit(options).encode(errors="replace")
    assert not chosen.unfit(b'{"heartbeat_ms":100,"stations":3}')
