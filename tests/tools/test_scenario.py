"""Scenario files: what is read, what is refused and how it is said, what a seed makes of it, and the verdicts."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from zenjun.tools.cli import cli, labrun
from zenjun.tools.histories.checker import CHECKS, Report
from zenjun.tools.histories.history import History, load
from zenjun.tools.histories.recorder import LEVELS, Load
from zenjun.tools.lab import Impairment, Lab
from zenjun.tools.scenario import ScenarioError, parse, ready, resolve
from zenjun.tools.scenario.expectations import judge_run
from zenjun.tools.scenario.model import KINDS, Range, Scenario
from zenjun.tools.scenario.plan import Act, plan
from zenjun.tools.scenario.reader import changed_loads

ROOT = Path(__file__).resolve().parents[2]
HEAD = 'about = "x"\nstations = 5\n'


def read(text: str, **options: Any) -> Scenario:
    """A scenario of five stations with these lines."""
    return parse(f"{HEAD}{text}" + ("" if "[expect]" in text else "\n[expect]\n"), "x", **options)


def at(*lines: str) -> str:
    return "\n[[at]]\n" + "\n".join(lines) + "\n"


# ---- what is read


def test_everything_a_file_can_say() -> None:
    scenario = parse(
        """
        about = "all of it"
        stations = 4
        seed = 9
        end = "20s"
        absent = [4]
        [network]
        medium = "switched"
        mtu = 9000
        loss = "1.5%"
        rate = "10mbit"
        burst = "1%,25%"
        [options.cluster]
        fail_timeout_ms = 1000
        quorum = 3
        [load]
        rate = 50
        burst = [2, 4]
        sizes = [0, "1k", "1k-64k"]
        levels = ["ack"]
        groups = 2
        senders = "1-2"
        [[at]]
        t = "1s-2s"
        do = "cut"
        from = [1, 2]
        to = "3-4"
        both = true
        for = "500ms"
        [[at]]
        t = "3s"
        do = "kill"
        stations = "random 2"
        [expect]
        members = [1, 2, 3]
        changes = { min = 2, max = 6 }
        removed = []
        silence_max = 4
        sent = { min = 7 }
        refused = 0
        [[expect.silent]]
        stations = 3
        from = "1s"
        until = "2s"
        """,
        "all",
    )
    assert (scenario.stations, scenario.seed, scenario.end_ms, scenario.absent) == (4, 9, 20_000, (4,))
    assert scenario.mtu == 9000 and scenario.quorum == 3 and scenario.fail_timeout_ms == 1000 and scenario.groups == 2
    assert scenario.impairment == Impairment(loss=0.015, rate_bit=10_000_000, burst=(0.01, 0.25))
    wanted = Load(50.0, (2, 4), ((0, 0), (1024, 1024), (1024, 65536)), ("ack",))
    assert scenario.loads[1] == scenario.loads[2] == wanted
    assert scenario.loads[3].rate == scenario.loads[4].rate == 0
    cut, kill = scenario.timeline
    assert (cut.t, cut.lasts, cut.stations.numbers, cut.others.numbers) == ((1000, 2000), (500, 500), (1, 2), (3, 4))
    assert cut.values == {"both": True} and kill.stations.draw == 2
    expect = scenario.expect
    assert expect.members == (1, 2, 3) and expect.removed == () and expect.silence_max == 4.0
    assert (expect.changes, expect.sent, expect.refused) == (Range(2, 6), Range(7), Range(0, 0))
    assert [str(window) for window in expect.silent] == ["3 from 1 s to 2 s"]


def test_what_is_left_out_has_a_default() -> None:
    scenario = read(at('t = "2s"', 'do = "pause"', "stations = 1", 'for = "1s-2s"'))
    assert scenario.end_ms == 5000, "a second after the last thing"
    assert scenario.expect.members == (1, 2, 3, 4, 5) and scenario.expect.sent == Range(1) and scenario.quorum == 3
    assert scenario.loads == dict.fromkeys(range(1, 6), Load())


def test_another_number_of_stations() -> None:
    text = at('t = "1s"', 'do = "kill"', 'stations = "all"')
    assert plan(read(text, stations=7), 1)[0].stations == tuple(range(1, 8))
    with pytest.raises(ScenarioError, match="station 2 does not exist: there are 1 to 1"):
        read(at('t = "1s"', 'do = "kill"', "stations = 2"), stations=1)


def test_on_a_bus_senders_wait_for_what_cannot_be_taken_back() -> None:
    scenario = read('[network]\nmedium = "bus"\n')
    assert scenario.levels == ("ack",) and set(scenario.loads[1].levels) == {"sent", "ack"}
    with pytest.raises(ScenarioError, match=r"load.levels.*allowed: sent, ack"):
        read('[network]\nmedium = "bus"\n[load]\nlevels = ["ordered"]\n')


# ---- what is refused

WRONG = [
    ("stations = ", "no TOML: .*line 3"),
    ("[nonsense]\n", r"nonsense: unknown key; allowed: about, stations, seed"),
    ("sead = 1\n", "sead: unknown key; did you mean seed?"),
    ("seed = -1\n", "seed: -1: expected an integer 0 to "),
    ("seed = true\n", "seed: true: expected an integer"),
    ("end = 5\n", "end: 5: expected a time"),
    ('end = "soon"\n', 'end: "soon": expected a time, as in "2s" or "500ms"'),
    ("absent = [6]\n", "absent: .*station 6 does not exist: there are 1 to 5"),
    ("absent = [2, 2]\n", "absent: .*a station is named twice"),
    ('needs = ["magic"]\n', "needs: .*allowed: netem"),
    ("network = 5\n", "network: 5: expected a table"),
    ('[network]\nmedium = "ring"\n', 'network.medium: "ring": allowed: switched, bus'),
    ("[network]\nmtu = 20\n", "network.mtu: 20: expected an integer 68 to 65535"),
    ("[network]\nloss = 2.0\n", "network: loss must be between 0 % and 100 %"),
    ('[network]\nloss = "many"\n', "network.loss: \"many\": 'many' is no share"),
    ("[network]\nloss = [1]\n", "network: |network.loss: "),
    ("[network]\ndelay = 5\n", 'network.delay: 5: expected a number, or text with its unit, as in "5ms"'),
    ('[network]\njitter = "5ms"\n', "network: jitter varies the delay: give a delay too"),
    ('[network]\ndelay = "5ms"\n', 'needs: "netem" is missing: network: delay needs it'),
    ('[network]\ndelya = "5ms"\n', "network.delya: unknown key; did you mean delay?"),
    ("[options.cluster]\nfail_timeuot_ms = 5\n", "options: cluster.fail_timeuot_ms is unknown; did you mean fail_timeout_ms?"),
    ("[options.cluster]\nfail_timeout_ms = 5\n", "options: cluster.fail_timeout_ms .*20..600000"),
    ("[options.cluster]\nstations = 5\n", "options.cluster.stations: the lab sets this option"),
    ("[options.clutser]\n", "options.clutser: unknown key; did you mean cluster?"),
    ("[load]\nrate = -1\n", "load.rate: -1: expected a number 0 to 10000"),
    ("[load]\nburst = [5, 1]\n", "load.burst: .*bounds grow"),
    ("[load]\nburst = [1, 2, 3]\n", "load.burst: .*two bounds"),
    ("[load]\nsizes = []\n", "load.sizes: .*expected a list of sizes"),
    ('[load]\nsizes = ["6k-1k"]\n', "load.sizes: .*sizes grow"),
    ('[load]\nsizes = ["big"]\n', "load.sizes: .*expected a number of bytes"),
    ('[load]\nlevels = ["preak"]\n', "load.levels: .*did you mean preack?"),
    ("[load]\ngroups = 9\n", "load.groups: 9: expected an integer 1 to 8"),
    ("[at]\n", r"at: write each thing on the time line as a table \[\[at\]\]"),
    (at('do = "kill"', "stations = 1"), r"at\[1\] \(kill\): t is missing"),
    (at('t = "1s"'), r"at\[1\]: expected t and do"),
    (at('t = "1s"', 'do = "kil"'), r'at\[1\]: do = "kil": did you mean kill\?'),
    (at('t = "1s"', "do = 5"), r"at\[1\]: do = 5: allowed: partition, cut"),
    (at('t = "1s"', 'do = "kill"'), r"at\[1\] \(kill\): stations is missing"),
    (at('t = "3s-1s"', 'do = "heal"'), r"at\[1\] \(heal\).t: .*times grow"),
    (at("t = 1", 'do = "heal"'), r"at\[1\] \(heal\).t: 1: expected a time, .*1s-3s"),
    (at('t = "1s"', 'do = "heal"', 'for = "1s"'), r"at\[1\] \(heal\).for: unknown key"),
    (at('t = "1s"', 'do = "kill"', "station = 1"), r"at\[1\] \(kill\).station: unknown key; did you mean stations\?"),
    (at('t = "1s"', 'do = "kill"', "stations = []"), r"stations: .*expected at least one station"),
    (at('t = "1s"', 'do = "kill"', 'stations = "random 9"'), "1 to 5 stations can be drawn"),
    (at('t = "1s"', 'do = "kill"', 'stations = "some"'), 'expected stations: 2, .*"random"'),
    (at('t = "1s"', 'do = "partition"'), "groups is missing"),
    (at('t = "1s"', 'do = "partition"', "groups = [[1], [1, 2]]"), "a station is in two groups"),
    (at('t = "1s"', 'do = "partition"', "groups = 1"), "expected a list of groups"),
    (at('t = "1s"', 'do = "cut"', "from = 1"), "to is missing"),
    (at('t = "1s"', 'do = "cut"', "from = 1", "to = 2", 'both = "yes"'), "both: .*expected true or false"),
    (at('t = "1s"', 'do = "loss"'), "share is missing"),
    (at('t = "1s"', 'do = "loss"', 'share = "1%"', "link = 2"), r"at\[1\] \(loss\).link: 2: expected an integer 1 to 1"),
    (at('t = "1s"', 'do = "kill"', "stations = 1", "link = 1"), r"at\[1\] \(kill\).link: unknown key"),
    (at('t = "1s"', 'do = "join"'), r"at\[1\] \(join\): there must be 2 links: network.links is 1"),
    ("[network]\nlinks = 5\n", "network.links: 5: expected an integer 1 to 4"),
    ('[network]\nmedium = "bus"\nlinks = 2\n', "network.links: a bus has one"),
    ("[network]\nlinks = 2\n[options.links]\ncount = 3\n", "options.links.count: the lab sets this option"),
    ('[network]\nlinks = 2\n[options.links]\nmode = "fast"\n', "options: links.mode "),
    ("[expect]\nsaid = 5\n", "expect.said: 5: expected a list of texts"),
    (at('t = "1s"', 'do = "loss"', 'share = "200%"'), r"at\[1\] \(loss\).loss: "),
    (at('t = "1s"', 'do = "impair"'), "name at least one impairment: loss, delay, jitter"),
    (at('t = "1s"', 'do = "impair"', 'corrupt = "1%"'), r'needs: "netem" is missing: at\[1\] \(impair\): corrupt needs it'),
    (at('t = "1s"', 'do = "mtu"', "stations = 1"), "mtu is missing"),
    (at('t = "1s"', 'do = "mac"', "stations = 1", 'mac = "01:00:00:00:00:00"'), "expected a locally administered address"),
    (at('t = "1s"', 'do = "random"'), r"at\[1\] \(random\): for is missing"),
    (at('t = "1s"', 'do = "random"', 'for = "2s"', 'faults = ["kil"]'), "faults: .*did you mean kill?"),
    ('end = "1s"\n' + at('t = "2s"', 'do = "heal"'), "end: 1 s is before the last thing on the time line"),
    ("[expect]\nmembers = [9]\n", "expect.members: .*station 9 does not exist"),
    ("[expect]\nchanges = { least = 2 }\n", "expect.changes: .*bounds as in { min = 2, max = 6 }"),
    ("[expect]\nchanges = { min = 3, max = 2 }\n", "expect.changes: .*min is above max"),
    ("[expect]\nchanges = -1\n", "expect.changes: -1: expected a number, or bounds"),
    ("[expect]\nsilence_max = 0\n", "expect.silence_max: 0: expected a number 1 to 1000"),
    ("[expect]\nmember = [1]\n", "expect.member: unknown key; did you mean members?"),
    ("[expect]\nsilent = 1\n", r"expect.silent: write each window as a table \[\[expect.silent\]\]"),
    ('[expect]\n[[expect.silent]]\nstations = 1\nfrom = "1s"\n', r"expect.silent\[1\]: until is missing"),
    (
        '[expect]\n[state]\njoiner = 64\nat = "1s"\n',
        r"state.joiner: 64: expected an integer 1 to .",
    ),
    ("[expect]\n[state]\njoiner = 1\n", "state: at is missing"),
    ('[expect]\n[names]\nwrong = 1\nclock = "0s"\nat = "0s"\n', 'names.clock: "0s": expected how far a clock is off'),
    ('[expect]\n[names]\nwrong = 1\nclock = "1d"\nat = "2h"\n', "names.at: "),
    ("[expect]\n[multicast]\nrate = 1\n", "multicast.groups"),
    ("[expect]\n[multicast]\ngroups = {}\n", "multicast.groups: expected 1 to 16 groups"),
    ("[expect]\n[multicast]\ngroups = { 'A.b' = [1] }\n", "multicast.groups.A.b: expected a name of 1 to 8 small letters"),
    ("[expect]\n[multicast]\ngroups = { a = [9] }\n", "multicast.groups.a: "),
    ('[expect]\n[multicast]\ngroups = { a = [1] }\norders = ["total"]\n', "multicast.orders: "),
    ('[network]\nmedium = "bus"\n[expect]\n[multicast]\ngroups = { a = [1] }\n', "multicast: on a bus no group has these orders"),
    ('[expect]\n[state]\njoiner = 1\nat = "0s"\nsize = "5G"\n', 'state.size: "5G": expected a number of bytes'),
    (
        '[expect]\n[[expect.serves]]\nstations = 1\nfrom = "1s"\nuntil = "9s"\n',
        r"expect.serves\[1\]: from before until, and until not after the end \(1 s\)",
    ),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_what_is_wrong_is_refused_and_named(text: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        read(text)


def test_what_must_be_there() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse("", "x", "file.toml")
    assert caught.value.problems == [f"scenario: {key} is missing" for key in ("about", "stations", "expect")]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(HEAD + 'sead = 1\n[load]\nrate = -1\n[[at]]\ndo = "kil"\nt = "1s"\n[expect]\nmember = 1\n', "x", "my.toml")
    assert len(caught.value.problems) == 4
    assert all(line.startswith("my.toml: ") for line in str(caught.value).splitlines())


def test_every_field_of_an_impairment_can_be_set() -> None:
    """Also one that is added to ``Impairment`` later: by its name, without its unit."""
    text = (
        '[network]\nloss = "1%"\ndelay = "5ms"\njitter = "2ms"\nreorder = "1%"\nduplicate = "1%"\ncorrupt = 0.01\n'
        'rate = "1mbit"\n'
        'burst = ["1%", "25%"]\njitter_distribution = "normal"\nreorder_correlation = "5%"\nreorder_gap = 3\nlimit = 500\n'
    )
    told = read('needs = ["netem"]\n' + text).impairment.to_json()
    assert [name for name, value in told.items() if value == Impairment().to_json()[name]] == []


# ---- plans


def test_a_plan_comes_from_the_seed() -> None:
    scenario = read(
        at('t = "1s-9s"', 'do = "kill"', 'stations = "random 2"', 'for = "1s-3s"')
        + at('t = "2s"', 'do = "random"', 'for = "10s"')
        + at('t = "500ms"', 'do = "heal"')
    )
    plans = [plan(scenario, seed) for seed in range(30)]
    assert all(plan(scenario, seed) == acts for seed, acts in enumerate(plans)) and len({str(acts) for acts in plans}) == 30
    for acts in plans:
        assert [act.begin_ms for act in acts] == sorted(act.begin_ms for act in acts)
        assert [act.number for act in acts] == list(range(1, len(acts) + 1))
        assert acts[0].do == "heal" and all((act.end_ms or 0) <= 12_000 for act in acts)
        assert any(act.do == "kill" and len(act.stations) == 2 for act in acts)
    assert len({act.begin_ms for acts in plans for act in acts}) > 30


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Act(1, "partition", 0, 500, groups=((1, 2),)), "partition 1,2 | the rest for 500 ms"),
        (Act(1, "partition", 0, groups=((1, 2), (3,))), "partition 1,2 | 3"),
        (Act(1, "cut", 0, stations=(1,), others=(2, 3)), "cut 1 unheard by 2,3"),
        (Act(1, "cut", 0, stations=(1,), others=(2,), values={"both": True}), "cut 1 and 2"),
        (Act(1, "loss", 0, stations=(1, 2), values={"loss": 0.05}), "loss 5% at 1,2"),
        (Act(1, "impair", 0, stations=(1,), values={"rate_bit": 0}), "no impairment at 1"),
        (Act(1, "expel", 0, stations=(1,), others=(2,)), "expel 1 by 2"),
        (Act(1, "cable-out", 0, 9, stations=(1,), link=2), "cable-out 1 on link 2 for 9 ms"),
        (Act(1, "join", 0), "join"),
        (Act(1, "mtu", 0, stations=(1,), values={"mtu": 1000}), "mtu 1000 at 1"),
        (Act(1, "rename", 0, stations=(1,), values={"to": "wan"}), "rename 1 to wan"),
        (
            Act(1, "load", 0, values={"rate": 60.0, "burst": (1, 3), "sizes": ((0, 0), (5, 9))}),
            "load rate 60 burst 1-3 sizes 0,5-9",
        ),
    ],
)
def test_acts_in_words(act: Act, words: str) -> None:
    assert str(act) == words


def test_changes_of_the_load() -> None:
    loads = changed_loads({1: Load(10.0), 2: Load(10.0)}, {"senders": (2,)})
    assert (loads[1].rate, loads[2].rate) == (0.0, 10.0)
    assert {load.rate for load in changed_loads(loads, {"rate": 5.0, "senders": (1, 2)}).values()} == {5.0}
    assert all(Load.parse(load.text()) == load for load in loads.values())
    assert Load().levels == LEVELS


# ---- verdicts


def history(*, instances: int = 1, removed: list[int] | None = None, messages: tuple[int, ...] = (2,)) -> History:
    """Two stations; station 1 says something at each of these seconds. Too short for the checks, long enough for what is
    expected."""
    second = 1_000_000_000
    out = History(2, 2)
    for station in (1, 2):
        records: list[dict[str, Any]] = [
            {"t": 0, "k": "connect", "c": f"{station}.p.1", "station": station, "slot": "preack", "client": 1, "level": "preack"}
        ]
        for number, t in enumerate(messages, 1):
            name = f"1.p.1.{number}.r"
            if station == 1:
                records.append({"t": t * second, "k": "send", "c": "1.p.1", "m": name, "level": "preack"})
            records.append(
                {
                    "t": t * second + 1,
                    "k": "message",
                    "c": f"{station}.p.1",
                    "m": name,
                    "p": [t, 1, 0],
                    "from": [1, 1],
                    "whole": True,
                }
            )
            if station == 1:
                records.append({"t": t * second + 2, "k": "result", "c": "1.p.1", "m": name, "r": "done"})
        for instance in range(1, instances + 1):
            view = {"instance": instance, "members": [[1, 1], [2, 1]], "joined": [], "left": removed or []}
            records.append({"t": 60 * second, "k": "view", "c": f"{station}.p.1", "p": [2**40 + instance, 1, 0], **view})
        load(out, records)
    return out


def test_what_daemons_must_have_said_is_judged() -> None:
    scenario = parse('about = "x"\nstations = 2\nend = "60s"\n[expect]\nsaid = ["a", "b"]\n', "x")
    counters = {"lost": 0, "cut": 0, "orders": 0}
    verdicts = judge_run(scenario, history(), counters, 0, {"said": {"a": [2], "b": []}}).verdicts
    assert [v.held for v in verdicts if v.name == "expect.said"] == [True, False]


def test_what_is_about_one_link_stays_on_it() -> None:
    scenario = read("[network]\nlinks = 3\n" + at('t = "1s"', 'do = "cut"', "from = 1", "to = 2", "link = 3"))
    (act,) = plan(scenario, 1)
    assert (scenario.links, act.link, str(act)) == (3, 3, "cut 1 unheard by 2 on link 3")


def judged(expect: str, told: History, counters: dict[str, int] | None = None) -> dict[str, bool]:
    scenario = parse(f'about = "x"\nstations = 2\nend = "60s"\n[expect]\n{expect}', "x")
    found = judge_run(scenario, told, counters or {"lost": 0, "cut": 0, "orders": 0}, 0)
    names = [verdict.name for verdict in found.verdicts]
    assert names[: len(CHECKS)] == list(CHECKS) and not found.held, "a stub of a history never converges"
    return {verdict.name: verdict.held for verdict in found.verdicts[len(CHECKS) :]}


@pytest.mark.parametrize(
    ("expect", "told", "held"),
    [
        ("sent = { min = 1 }", history(), True),
        ("sent = { min = 2 }", history(), False),
        ("refused = 0", history(), True),
        ("refused = 1", history(), False),
        ("orders_refused = 0", history(), True),
        ("orders_refused = 1", history(), False),
        ("changes = 2", history(instances=3), True),
        ("changes = { max = 1 }", history(instances=3), False),
        ("removed = []", history(), True),
        ("removed = []", history(removed=[2]), False),
        ("removed = [2]", history(removed=[2]), True),
        ("removed = [1, 2]", history(removed=[2]), False),
        ("silence_max = 3", history(messages=(2, 3)), True),
        ("silence_max = 2", history(messages=(2, 3)), False),
        ("lost = 0", history(), True),
        ("lost = { min = 1 }", history(), False),
        ("cut = { min = 1 }", history(), False),
        ('silent = [{ stations = [1, 2], from = "3s", until = "9s" }]', history(), True),
        ('silent = [{ stations = [2], from = "1s", until = "9s" }]', history(), False),
        ('serves = [{ stations = "all", from = "1s", until = "3s" }]', history(), True),
        ('serves = [{ stations = [1], from = "3s", until = "4s" }]', history(), False),
    ],
)
def test_what_is_expected_is_judged(expect: str, told: History, held: bool) -> None:
    verdicts = judged(expect, told)
    name = f"expect.{expect.split()[0]}"
    assert verdicts[name] is held


STATE = 'about = "x"\nstations = 3\nend = "60s"\n[state]\njoiner = 2\nat = "1s"\nsize = "1G"\ngap = "200ms"\n[expect]\n'


@pytest.mark.parametrize(
    ("found", "held"),
    [
        ({"gap_ms": 200, "joined_ms": 9, "equal": True, "messages": 5}, {"state.equal": True, "state.gap": True}),
        ({"gap_ms": 201, "joined_ms": 9, "equal": True, "messages": 5}, {"state.equal": True, "state.gap": False}),
        ({"gap_ms": 10, "joined_ms": 9, "equal": False, "messages": 5}, {"state.equal": False, "state.gap": True}),
        ({"error": "the state keeper of station 2 said nothing"}, {"state.equal": False}),
        ({}, {"state.equal": False}),
    ],
)
def test_a_joiner_with_a_state_is_judged(found: dict[str, Any], held: dict[str, bool]) -> None:
    scenario = parse(STATE, "x")
    assert scenario.joining is not None and (scenario.joining.joiner, scenario.joining.size) == (2, 1 << 30)
    verdicts = judge_run(scenario, history(), {"lost": 0, "cut": 0, "orders": 0}, 0, {"state": found}).verdicts
    assert {v.name: v.held for v in verdicts if v.name.startswith("state.")} == held


NAMES = 'about = "x"\nstations = 3\nend = "60s"\n[names]\nwrong = 2\nclock = "-2h"\nat = "1s"\nwithin = "4s"\n[expect]\n'


@pytest.mark.parametrize(
    ("found", "failed"),
    [
        ({"early_ms": 0, "late_ms": 4000, "back": 0, "named": []}, set()),
        ({"early_ms": 0, "late_ms": 4001, "back": 0, "named": []}, {"names.switched"}),
        ({"early_ms": 1, "late_ms": 0, "back": 0, "named": []}, {"names.early"}),
        ({"early_ms": 0, "late_ms": 0, "back": 1, "named": []}, {"names.once"}),
        ({"error": "station 2: never switched"}, {"names.switched"}),
        ({}, {"names.switched"}),
    ],
)
def test_a_switch_by_schedule_is_judged(found: dict[str, Any], failed: set[str]) -> None:
    scenario = parse(NAMES, "x")
    assert scenario.switching is not None and (scenario.switching.wrong, scenario.switching.clock_s) == (2, -7200)
    verdicts = judge_run(scenario, history(), {"lost": 0, "cut": 0, "orders": 0}, 0, {"names": found}).verdicts
    assert {v.name for v in verdicts if v.name.startswith("names.") and not v.held} == failed


@pytest.mark.parametrize(
    ("found", "failed"),
    [
        ({"genuine": [], "links": {}, "done": 3}, set()),
        ({"genuine": ["x"], "links": {}, "done": 3}, {"genuine"}),
        ({"genuine": [], "links": {}, "done": 0}, {"sent"}),
        ({"genuine": [], "links": {}, "done": 3, "violations": {"no_cycle": ["x"]}}, {"no_cycle"}),
        ({"error": "the recorder of station 2 ended"}, {"judged"}),
        ({}, {"judged"}),
    ],
)
def test_groups_that_overlap_are_judged(found: dict[str, Any], failed: set[str]) -> None:
    text = 'about = "x"\nstations = 3\n[multicast]\ngroups = { a = [1, 2], b = "2-3" }\norders = ["abcast"]\n[expect]\n'
    scenario = parse(text, "x")
    assert scenario.multicasting is not None and scenario.multicasting.groups == {"a": (1, 2), "b": (2, 3)}
    assert (scenario.multicasting.orders, scenario.multicasting.stations) == (("abcast",), 3)
    if "done" in found:
        figures = {"sent_done": found["done"], "at_several_stations": 1}
        found = {**found, "report": Report(found.get("violations", {}), figures)}
    verdicts = judge_run(scenario, history(), {"lost": 0, "cut": 0, "orders": 0}, 0, {"multicast": found}).verdicts
    assert {v.name for v in verdicts if v.name.startswith("multicast.") and not v.held} == {f"multicast.{f}" for f in failed}


# ---- the ready-made ones


@pytest.mark.parametrize("name", sorted(ready()))
def test_every_ready_made_scenario_is_right(name: str) -> None:
    """Its file is read without a complaint, every station is named that there is, it is short, and it says what it needs."""
    scenario = parse(ready()[name].read_text(), name)
    assert scenario.end_ms <= 30_000, "half a minute at most"
    assert len(scenario.about) > 20 and not scenario.about.endswith(".")
    acts = plan(scenario, scenario.seed)
    assert {act.do for act in acts} <= set(KINDS)
    netem = [act for act in acts if act.do == "impair" and scenario.impairment.changed(dict(act.values)).needs_netem]
    assert ("netem" in scenario.needs) == bool(netem or scenario.impairment.needs_netem)
    # The lab takes it as well.
    Lab(scenario.stations, medium=scenario.medium, links=scenario.links, mtu=scenario.mtu, options=scenario.options)


def test_what_is_installed_is_what_is_in_the_folder() -> None:
    """The package has them by a link, which ends in the wheel as files."""
    folder = ROOT / "docker" / "scenarios"
    assert {path.stem for path in folder.glob("*.toml")} == set(ready())
    assert len(ready()) >= 12
    project = (ROOT / "pyproject.toml").read_text()
    for package in ("zenjun.tools.histories", "zenjun.tools.scenario", "zenjun.tools.scenario.ready"):
        assert f'"{package}",' in project
    assert '"zenjun.tools.scenario.ready" = ["*.toml"]' in project
    assert "COPY docker/scenarios" in (ROOT / "docker" / "Dockerfile").read_text()


def test_the_manual_lists_them_all_and_every_word_of_the_format() -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", text, re.MULTILINE))
    for name, path in ready().items():
        scenario = parse(path.read_text(), name)
        needs = f" (needs {', '.join(scenario.needs)})" if scenario.needs else ""
        assert rows.get(name) == f"{scenario.about}{needs}", name
    for do, kind in KINDS.items():
        assert kind.about in text, do
        assert all(f"`{key}`" in text for key in (*kind.required, *kind.optional)), do


def test_names_and_paths(tmp_path: Path) -> None:
    assert resolve("partition-heal") == ready()["partition-heal"]
    assert resolve("./mine") == Path("mine") and resolve("mine.toml") == Path("mine.toml")
    with pytest.raises(ScenarioError, match=r"did you mean partition-heal\?"):
        resolve("partition-heel")
    with pytest.raises(ScenarioError, match="lab run --list shows them"):
        resolve("zzz")


# ---- the command, without a lab


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["lab", "run", *words], standalone_mode=False)
    shown = done.output
    if done.exception is not None:
        return int(getattr(done.exception, "exit_code", 1)), f"{shown}{getattr(done.exception, 'message', done.exception)}"
    return int(done.return_value or 0), shown


def test_the_list_names_all_and_what_they_need() -> None:
    code, text = call("--list")
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert set(lines) == set(ready())
    assert "(needs netem)" in lines["jitter-reorder"] and "needs" not in lines["partition-heal"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, BrokenPipeError])
def test_what_is_broken_off_leaves_no_folder(end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(_scenario: Scenario, _lab: object, folder: Path, _seed: int) -> None:
        assert folder.parent == tmp_path
        raise end

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(labrun, "_play", broken_off)
    code, text = call("kill-restart")
    assert code != 0 and "histories" not in text and not list(tmp_path.iterdir())


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('about = "x"\nstations = 3\nsead = 5\n[expect]\n')
    (tmp_path / "runner.jsonl").write_text("")
    for words, says in (
        ((), "no scenario: give a name"),
        (("nothing-like-it",), "no scenario of this name"),
        ((str(wrong),), "sead: unknown key; did you mean seed?"),
        ((str(tmp_path / "missing.toml"),), "No such file"),
        (("loss-1", "--name", "x", "--docker"), "leave out --docker and --keep"),
        (("loss-1", "--out", str(tmp_path)), "has the files of another run"),
        (("partition-heal", "-n", "2"), "station 3 does not exist: there are 1 to 2"),
    ):
        code, text = call(*words)
        assert code == 2 and says in text, (words, code, text)
