"""The report: what it counts, on captures with known answers; what it looks like, in a browser that has no network."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from zenjun.proto.wire import Kind
from zenjun.tools.cli.pcap.report import message_option
from zenjun.tools.pcap.frames import lookup
from zenjun.tools.pcap.judge import api as checking
from zenjun.tools.pcap.look import clocks
from zenjun.tools.pcap.report import api as reporting
from zenjun.tools.pcap.report import figures, page, plots, summary
from zenjun.tools.pcap.report.render import Report
from zenjun.tools.pcap.report.summary import Clock, Piece, Span, Tables, bucket_for, peer_state
from zenjun.tools.pcap.spark.session import Session
from zenjun.tools.pcap.work.progress import Progress

from . import built, planted, recorded, shapes
from .browser import Browser, chromium
from .reading import Page
from .traffic import Clock as Wrong
from .traffic import Traffic, confirm, data, pdu

QUIET = Progress(quiet=True)
WIDTHS = (1280, 400)
SMALLEST_LETTERS = 8.0
"""CSS pixels, in drawings."""


def _report(session: Session, names: list[Path], work: Path, **options: Any) -> Report:
    made, _, problems = reporting.make(names, work, session, QUIET, **options)
    assert not problems
    return made


# ---- what it counts ----


def test_pieces_of_time_are_round_and_few() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        span = rng.randrange(1, 10 ** rng.randrange(1, 16))
        width = bucket_for(span)
        assert -(-span // width) <= summary.BUCKETS
        assert str(width).rstrip("0") in ("1", "2", "5")
        assert width == 1 or -(-span // (width // 10 or 1)) > summary.BUCKETS / 5


def test_peer_states_of_the_bitmaps() -> None:
    said = [peer_state(0b1001, 0b0011, station) for station in (1, 2, 3, 4)]
    assert said == ["AS", "SA", "A", "S"]
    assert peer_state(None, 1, 1) == ""


@pytest.fixture(scope="module")
def counted(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Station 1 sends 100 DATA, 7 of which do not reach station 2 and are sent again; 3 of those are lost once more and come
    from station 3, which has received everything. Station 2 confirms all in the end; that does not reach station 3."""
    ms = 1_000_000
    records: dict[int, list[built.Rec]] = {1: [], 2: [], 3: []}
    start = 1_800_000_000 * 10**9

    def send(at: int, by: int, raw: bytes, to: tuple[int, ...]) -> None:
        records[by].append(built.Rec(start + at, built.frame(raw, by), 2))
        for other in to:
            records[other].append(built.Rec(start + at + 10_000, built.frame(raw, by), 1))

    lost = {5, 20, 21, 22, 50, 80, 99}
    for edge in (0, 400 * ms):  # frames of all at both ends: losses are judged where a capture surely ran
        for station in records:
            noise = pdu(Kind.CONFIRM, station, 1, [1, 1, 1], confirm(edge), pack=[1, 1, 1], clock=station + edge)
            send(edge, station, noise, tuple(set(records) - {station}))
    for k in range(100):
        raw = pdu(Kind.DATA, 1, 1 + k, [1, 1, 1], data(b"x" * 50), clock=100 + k)
        at = (20 + 2 * k) * ms
        send(at, 1, raw, (3,) if k in lost else (2, 3))
        if k in lost:
            send(at + ms, 1, raw, (3,) if k in (20, 21, 22) else (2, 3))
        if k in (20, 21, 22):
            send(at + 2 * ms, 3, raw, (1, 2))
    send(300 * ms, 2, pdu(Kind.CONFIRM, 2, 1, [101, 1, 1], confirm(), pack=[1, 1, 1], clock=1000), (1,))
    folder = tmp_path_factory.mktemp("counted")
    for station, rows in records.items():
        built.write(folder / f"s{station}.pcapng", sorted(rows))
    made = _report(session, [folder], folder / "tables", one_clock=True)
    return made.tables


def test_losses_are_those_of_the_captures(counted: Tables) -> None:
    sums = {s: [0, 0] for s in (1, 2, 3)}
    for _, station, expected, lost in counted.losses():
        sums[station][0] += expected
        sums[station][1] += lost
    # To 2: 100 first transmissions, 7 again, 3 by station 3; 7 and 3 of them are lost. To 3: 100, 7, and the CONFIRM.
    assert sums[2] == [110, 10]
    assert sums[3] == [108, 1]
    assert sums[1] == [1, 0]  # what others sent of its own PDUs does not count, only the CONFIRM


def test_retransmissions_by_source_and_others(counted: Tables) -> None:
    rows = counted.retransmissions()
    assert (sum(own for _, src, own, _ in rows), sum(other for *_, other in rows)) == (7, 3)
    assert {src for _, src, _, _ in rows} == {1}
    often = counted.most_sent()
    assert [(r.src, r.seq, r.times, r.others) for r in often[:3]] == [(1, 21, 3, 1), (1, 22, 3, 1), (1, 23, 3, 1)]
    assert len(often) == 7


def test_kinds_and_rates_count_each_transmission_once(counted: Tables) -> None:
    kinds = {(sender, Kind(kind).name): n for sender, kind, n, _ in counted.kinds()}
    assert kinds == {(1, "DATA"): 107, (3, "DATA"): 3, (1, "CONFIRM"): 2, (2, "CONFIRM"): 3, (3, "CONFIRM"): 2}
    rates = counted.rates()
    assert sum(n for *_, what, n, _ in rates if what == "data") == 110
    assert len({b for b, *_ in rates}) <= summary.BUCKETS


def test_silences_and_pauses(counted: Tables) -> None:
    who, begin, length = counted.silences()[0]
    assert who in (1, 2, 3) and begin >= counted.span.first_ns
    assert {s for s, _, _ in counted.silences()} == {1, 2, 3}
    assert counted.silences()[0][2] >= 300_000_000  # station 2 between its first CONFIRM and its second
    assert counted.capture_gaps()[0][2] < length


def test_time_of_a_clock_is_the_same_in_sql_and_here(spark: Any) -> None:
    rng = random.Random(5)
    for pieces in (
        (),
        (Piece(10**18, 12_345),),
        (Piece(10**18, -5 * 10**9, 37.25), Piece(10**18 + 10**9, 250, -1.5), Piece(10**18 + 3 * 10**9, 7)),
    ):
        clock = Clock(pieces)
        times = [10**18 + rng.randrange(-(10**9), 5 * 10**9) for _ in range(50)]
        values = ", ".join(f"({t}L)" for t in times)
        rows = spark.sql(f"SELECT t, t - {clock.sql('t')} AS common FROM VALUES {values} AS x(t)").collect()
        assert all(abs(row.common - clock.common(row.t)) <= 1 for row in rows)


def test_clocks_of_machines_are_aligned(tmp_path: Path) -> None:
    """Offsets of seconds and drift are gone from the common clock, to what is said to be known; a clock that was set too."""
    wrong = {1: Wrong(), 2: Wrong(3_000_000_000, 40.0), 3: Wrong(-7_000_000, -20.0, ((10**9, 5_000_000),))}
    traffic = Traffic(wrong, lambda a, b, chance: chance.randint(50_000, 300_000)).run()
    files = [lookup.Capture(str(built.write(tmp_path / f"s{s}.pcapng", r)), s) for s, r in traffic.records.items()]
    found = clocks.estimate(files, reference=1)
    spans = {s: (r[0].time_ns, r[-1].time_ns) for s, r in traffic.records.items()}
    made = summary.clocks_of(found, spans)
    assert len(made[2].pieces) <= 2 and len(made[3].pieces) > 1
    for station in (2, 3):
        for true in range(100_000_000, 1_900_000_000, 100_000_000):
            if station == 3 and abs(true - 10**9) < 150_000_000:
                continue  # when exactly a clock was set is known to some PDUs
            error = abs(made[station].common(wrong[station].reads(true)) - wrong[1].reads(true))
            assert error <= made[station].worst_ns
        unsure = made[station].uncertainty_ns
        assert unsure is not None and unsure < 2_000_000


def test_a_capture_with_every_frame_twice_is_announced(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded with -i any at a station whose interface is a bridge: at the bridge and at its port. What is counted twice is
    neither lost nor sent again, so the page says that the counts are too high, and so does the command."""
    traffic = Traffic({1: Wrong(), 2: Wrong()}, lambda a, b, chance: 100_000, duration_ns=10**9, repeats=0.0).run()
    folder = tmp_path / "captures"
    folder.mkdir()
    for station, records in traffic.records.items():
        built.write(folder / f"s{station}.pcapng", records)
    once = _report(session, [folder], tmp_path / "once", one_clock=True)
    assert once.remarks == [] and "several interfaces" not in once.html()
    twice = shapes.section() + shapes.interface() * 2
    for record in traffic.records[2]:
        for number in (0, 1):
            twice += shapes.enhanced(record.time_ns + 1000 * number, record.data, number=number, flags=record.direction)
    (folder / "s2.pcapng").write_bytes(twice)
    made, _, _ = reporting.make([folder], tmp_path / "twice", session, Progress(), one_clock=True)
    text = made.html()
    warning = "s2.pcapng: PDUs were captured on several interfaces (-i any?)"
    assert warning in text and text.index(warning) < text.index("Loss and retransmission")
    assert warning in capsys.readouterr().err
    assert Page(text).problems() == []


def test_receipts_belong_to_the_transmission_before_them() -> None:
    class Row:
        flags, target, wire, itself, covers, knows = 0, 0, 60, True, False, False

        def __init__(self, station: int, at: int, direction: int) -> None:
            self.station, self.at, self.direction = station, at, direction
            self.kind, self.src, self.seq, self.check = Kind.DATA, 1, 7, 99

    rows = [Row(1, 0, 2), Row(3, 10, 1), Row(1, 50, 2), Row(2, 60, 1), Row(3, 61, 1), Row(3, 70, 2), Row(2, 80, 1), Row(1, 90, 1)]
    shown = figures.arrows(rows, [1, 2, 3])
    assert [(a.sender, a.receiver, a.at_ns, a.until_ns) for a in shown] == [
        (1, 2, 0, None), (1, 3, 0, 10), (1, 2, 50, 60), (1, 3, 50, 61), (3, 1, 70, 90), (3, 2, 70, 80),
    ]  # fmt: skip


# ---- the page ----


@pytest.fixture(scope="module")
def switched(session: Session, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A lossy lab in which a station went away and came back: its report, and the page in a file."""
    folder = tmp_path_factory.mktemp("switched")
    files = recorded.captures()
    made = _report(session, list(files.values()), folder / "tables")
    path = folder / "report.html"
    page.write(made.html(), path)
    return made, path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.mark.lab
def test_the_page_says_what_was_asked_for(switched: tuple[Report, Path]) -> None:
    _, path = switched
    text = path.read_text()
    assert Page(text).problems() == []
    assert text.index("Verdicts") < text.index("Latency by level") < text.index("What stands out")
    for words in (
        "all guarantees kept", "Who was a member", "Throughput", "Loss and retransmission", "Control PDUs against data",
        "Slowest DATA PDUs", "PDUs sent most often", "Longest silences", "How instance 2 came about", "Differences between two",
    ):  # fmt: skip
        assert words in text, words
    assert len(text) < 3_000_000
    page_of = Page(text)
    assert any(target.startswith("#message-") for target in page_of.links) and page_of.drawings >= 2 * 8


@pytest.mark.lab
def test_the_same_tables_give_the_same_page(switched: tuple[Report, Path], session: Session) -> None:
    made, path = switched
    again = Report(Tables(session.spark, made.tables.folder, made.tables.clocks), made.verdicts)
    assert again.html() == path.read_text()


@pytest.mark.lab
def test_a_message_can_be_chosen(switched: tuple[Report, Path], session: Session) -> None:
    made, _ = switched
    one = made.tables.slowest(50)[-1]
    chosen = Report(
        Tables(session.spark, made.tables.folder, made.tables.clocks), made.verdicts, message=(one.src, one.seq, None)
    )
    assert f"DATA {one.src}:{one.seq}, asked for" in chosen.html()
    nothing = Report(Tables(session.spark, made.tables.folder), made.verdicts, message=(1, 10**9, None))
    with pytest.raises(page.NoSuchMessage, match="1:1000000000"):
        nothing.html()


@pytest.mark.lab
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(switched: tuple[Report, Path], browser: Browser, width: int, scheme: str) -> None:
    _, path = switched
    browser.open(path, width, scheme)
    assert faults(browser, path) == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
    shown = browser.evaluate("[...document.querySelectorAll('.wide,.narrow')].filter(e => e.offsetParent).map(e => e.className)")
    assert set(shown) == {"wide" if width == 1280 else "narrow"}
    assert browser.evaluate(_LEAST_CONTRAST) >= 4.5


def faults(browser: Browser, path: Path) -> list[str]:
    """What is wrong with the page that is open."""
    out = [f"asks for {url}" for url in browser.requests if url != path.absolute().as_uri()]
    out += [f"complaint: {text}" for text in browser.complaints]
    wide, window = browser.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    if wide > window:
        out.append(f"{wide} pixels wide in a window of {window}")
    least = browser.evaluate(_LEAST_LETTERS)
    if least < SMALLEST_LETTERS:
        out.append(f"letters of {least:.1f} pixels in a drawing")
    return out


_LEAST_LETTERS = """Math.min(99, ...[...document.querySelectorAll("svg text")].filter(t => t.getClientRects().length)
    .map(t => { const m = t.getScreenCTM(); return parseFloat(getComputedStyle(t).fontSize) * Math.hypot(m.a, m.b) }))"""
_LEAST_CONTRAST = """(() => {
    const lights = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
        .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
    const paper = lights(getComputedStyle(document.body).backgroundColor);
    const ratio = c => { const l = lights(c); return (Math.max(l, paper) + 0.05) / (Math.min(l, paper) + 0.05) };
    return Math.min(...[...document.querySelectorAll("p,h1,h2,h3,td,th,a,figcaption,summary,.good,.bad,.unsure")]
        .map(e => ratio(getComputedStyle(e).color)), ...[...document.querySelectorAll("svg text")]
        .map(e => ratio(getComputedStyle(e).fill)));
})()"""


def test_what_is_wrong_with_a_page_is_seen(browser: Browser, tmp_path: Path) -> None:
    """Each fault that the tests above look for, planted."""
    good = page.page("t", "", [("a", "A", page.section("a", "A", page.table("c", ("x",), [(1,)])))])
    assert Page(good).problems() == []
    pages = {
        "wide": (good.replace("</main>", '<div style="width:2000px">x</div></main>'), "2000 pixels|20.. pixels wide"),
        "image": (good.replace("</main>", '<img alt="" src="http://example.org/x.png"></main>'), "complaint: .*example.org"),
        "script": (good.replace("</main>", "<script>1</script></main>"), "complaint: .*inline script"),
        "tiny": (
            good.replace("</main>", '<svg viewBox="0 0 2000 9"><text y="9" font-size="6">x</text></svg></main>'),
            "letters of",
        ),
    }
    for name, (text, said) in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text)
        browser.open(path, 400, "light")
        assert any(re.search(said, fault) for fault in faults(browser, path)), (name, faults(browser, path))
    bare = good.replace(page.POLICY, "").replace("</main>", '<img alt="" src="http://example.org/x.png"></main>')
    (tmp_path / "bare.html").write_text(bare)
    browser.open(tmp_path / "bare.html", 400, "light")
    assert "asks for http://example.org/x.png" in faults(browser, tmp_path / "bare.html")
    for fault, said in (
        (good.replace("<h2", "<h4").replace("</h2", "</h4"), "h4 follows h1"),
        (good.replace('href="#a"', 'href="#b"'), "nothing is at #b"),
        (good.replace(' scope="col"', ""), "1 tables have no heads"),
        (good.replace("</main>", "<svg></svg></main>"), "1 drawings have no title"),
        (good.replace("</main>", '<p id="a"></p></main>'), "a stands for two things"),
        (good.replace("</main>", '<a href="https://example.org">x</a></main>'), "would ask for https://example.org"),
        (good.replace("default-src", "script-src"), "no content security policy"),
    ):
        assert any(said in problem for problem in Page(fault).problems()), said


@pytest.mark.lab
def test_a_violation_comes_first_with_the_frames_around_it(session: Session, browser: Browser, tmp_path: Path) -> None:
    """A message that station 2 received otherwise than station 1 had sent it."""
    files = recorded.captures()
    chosen = [p.key for p in planted.pdus(files[1]) if p["kind"] == Kind.DATA and p["src"] == 1 and p.direction == planted.OUT][
        10
    ]

    def change(one: planted.Pdu) -> list[planted.Pdu] | None:
        if not one.sequenced or one.key != chosen:
            return None
        one.bytes[-1] ^= 1
        return [one]

    names = []
    for station, path in files.items():
        names.append(tmp_path / "captures" / path.name)
        assert planted.rewrite(path, names[-1], change if station == 2 else lambda _: None) > 0 or station != 2
    made = _report(session, names, tmp_path / "tables")
    page.write(made.html(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert Page(text).problems() == []
    assert text.index("guarantees violated") < text.index("Captures of stations") and "first divergence" in text
    assert f"DATA {chosen[0]}" in text or f"{chosen[0]}:{chosen[2]}" in text
    browser.open(tmp_path / "report.html", 400, "dark")
    assert faults(browser, tmp_path / "report.html") == []


@pytest.mark.lab
def test_a_reset_is_drawn(session: Session, browser: Browser, tmp_path: Path) -> None:
    """On a bus, where lost frames end in resets."""
    made = _report(session, list(recorded.captures("bus").values()), tmp_path / "tables", one_clock=True)
    page.write(made.html(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert Page(text).problems() == []
    assert made.tables.resets() and "Reset 1 of instance" in text and "RST of" in text and "by one clock" in text
    browser.open(tmp_path / "report.html", 1280, "light")
    assert faults(browser, tmp_path / "report.html") == []


# ---- drawings ----


def test_drawings_are_xml_and_have_no_colours_of_their_own() -> None:
    span = Span(0, 10**9, 100, 10**7)
    rates = [(b, s, "data", b % 7, 100) for b in range(100) for s in range(1, 30)]
    text = plots.figure(figures.throughput(span, rates, []), "x", "Title <&>", 'Words "and" more', 2.0)
    assert text == plots.figure(figures.throughput(span, rates, []), "x", "Title <&>", 'Words "and" more', 2.0)
    root = ET.fromstring(text)
    assert len({e.get("id") for e in root.iter() if e.get("id")}) == len([e for e in root.iter() if e.get("id")])
    assert "#fe" not in text and "#fdfd" not in text and "#000" not in text and "var(--c1)" in text
    assert "all stations" in text  # too many lines are one
    alone = plots.standalone(figures.throughput(span, rates[:50], []), "y", "T", "D", 2.0)
    ET.fromstring(alone)
    assert "prefers-color-scheme:dark" in alone and alone.count("<style") == 1


# ---- the command ----


@pytest.mark.parametrize(
    ("text", "expected"), [("2:17", (2, 17, None)), ("2.1000:17", (2, 17, 1000)), ("2:17:3", (2, 17, None)), (None, None)]
)
def test_names_of_messages(text: str | None, expected: Any) -> None:
    assert message_option(None, None, text) == expected  # type: ignore[arg-type]


def test_what_is_no_name_of_a_message() -> None:
    for text in ("", "2", "2:", ":3", "a:1", "1:2:3:4"):
        with pytest.raises(click.BadParameter):
            message_option(None, None, text)  # type: ignore[arg-type]


def test_the_command(tmp_path: Path) -> None:
    """From captures to a page; a folder of tables instead gives the same guarantees."""
    from . import simulated

    simulated.capture(simulated.simulation(11), tmp_path / "captures")
    command = [sys.executable, "-c", "import sys; from zenjun.tools.cli import main; sys.exit(main())", "pcap", "report"]
    out, work = tmp_path / "report.html", tmp_path / "tables"
    done = subprocess.run(
        [*command, "--one-clock", "--work", str(work), "--title", "A <run>", str(tmp_path / "captures"), "--out", str(out)],
        capture_output=True, text=True, timeout=700,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all guarantees kept" in done.stderr.splitlines()[-1]
    text = out.read_text()
    assert "<title>A &lt;run&gt;</title>" in text and Page(text).problems() == []
    assert checking.is_tables(work)
    nowhere = [*command, str(tmp_path / "captures"), "--out", str(tmp_path / "no" / "r.html")]
    wrong = subprocess.run(nowhere, capture_output=True, text=True, timeout=400)
    assert wrong.returncode == 2 and "is no folder that can be written to" in wrong.stderr and "looking" not in wrong.stderr
    wrong = subprocess.run([*command, str(tmp_path / "nothing"), "--out", str(out)], capture_output=True, text=True, timeout=400)
    assert wrong.returncode == 2 and "nothing" in wrong.stderr.splitlines()[-1] and "Traceback" not in wrong.stderr
