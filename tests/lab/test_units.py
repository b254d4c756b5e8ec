"""Units, rules and files of the lab, without any network."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import statistics
import struct
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from zenjun.tools.cli.impairments import impairment_options
from zenjun.tools.lab import Impairment, Lab, LabError, distributions, files, filters, impair, qdiscs

from ..netem import bounds


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0), ("100%", 1.0), (" 0.1 % ", 0.001)])
def test_shares(text: str, value: float) -> None:
    assert impair.parse_fraction(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "hint"), [("5", "did you mean 5%?"), ("101%", "between"), ("-1%", "between"), ("x%", "no share")]
)
def test_wrong_shares_say_how_to_write_them(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint.replace("?", r"\?")):
        impair.parse_fraction(text)


def test_nan_is_no_share() -> None:
    with pytest.raises(ValueError, match="between"):
        impair.parse_fraction("nan")


@pytest.mark.parametrize(("text", "ns"), [("5ms", 5_000_000), ("200us", 200_000), ("1.5s", 1_500_000_000), ("7 ns", 7)])
def test_times(text: str, ns: int) -> None:
    assert impair.parse_time_ns("0") == 0, "as for a rate: no unit is needed to say none"
    assert impair.parse_time_ns(text) == ns
    with pytest.raises(ValueError, match="no time"):
        impair.parse_time_ns(text.strip("nmus "))


@pytest.mark.parametrize(("text", "bit"), [("100mbit", 10**8), ("1Gbit", 10**9), ("64kbit", 64_000), ("0", 0)])
def test_rates(text: str, bit: int) -> None:
    assert impair.parse_rate_bit(text) == bit


def test_formats_read_back() -> None:
    assert impair.parse_time_ns(impair.format_time(2_500_000)) == 2_500_000
    assert impair.parse_rate_bit(impair.format_rate(250_000)) == 250_000


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("1%,25%", (0.01, 0.25, 1.0, 0.0)),
        ("1% 25% 80%", (0.01, 0.25, 0.8, 0.0)),
        ("0.01, 0.25, 0.8, 0.001", (0.01, 0.25, 0.8, 0.001)),
        ("20%x4", (0.0625, 0.25, 1.0, 0.0)),
        ("none", ()),
        ("0", ()),
    ],
)
def test_bursts(text: str, model: tuple[float, ...]) -> None:
    assert impair.parse_burst(text) == pytest.approx(model)


def test_a_burst_by_mean_and_length_has_them() -> None:
    model = impair.parse_burst("5%x4")
    assert (impair.burst_loss(model), 1 / model[1]) == pytest.approx((0.05, 4))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1%", "two to four"),
        ("1%,2%,3%,4%,5%", "two to four"),
        ("1%,0%", "never leave"),
        ("1%x", "write 5%x4"),
        ("5%x0.5", "write 5%x4"),
        ("0%x4", "write 5%x4"),
        ("90%x2", "have to touch"),
        ("1%,abc", "no share"),
        ("1,25", "did you mean 25%"),
    ],
)
def test_wrong_bursts_say_how_to_write_them(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        impair.parse_burst(text)


@pytest.mark.parametrize(
    "bad",
    [
        {"loss": 1.1},
        {"loss": -0.1},
        {"delay_ns": -1},
        {"jitter_ns": 5},
        {"reorder": 0.1},
        {"rate_bit": 1},
        {"delay_ns": 10**12},
        {"burst": (0.1,)},
        {"burst": (0.1, 0.0)},
        {"burst": (0.1, 0.5, 1.5)},
        {"jitter_distribution": "flat", "delay_ns": 2, "jitter_ns": 1},
        {"jitter_distribution": "normal"},
        {"reorder_gap": 5},
        {"reorder_correlation": 0.5},
        {"limit": -1},
        {"limit": 10**9},
        {"delay_ns": 1, "reorder": 0.1, "reorder_correlation": 1.5},
    ],
)
def test_impairments_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Impairment(**bad)


def test_impairments_survive_json() -> None:
    wanted = Impairment(
        burst=(0.1, 0.5), loss=0.1, delay_ns=5, jitter_ns=2, jitter_distribution="pareto", reorder=0.1, reorder_gap=3, limit=9
    )
    assert Impairment.from_json(json.loads(json.dumps(wanted.to_json()))) == wanted
    assert Impairment.from_json(json.loads(json.dumps(Impairment().to_json()))) == Impairment()


def test_options_of_commands_are_the_impairments() -> None:
    """Every one has an option, and what people write arrives in the units of ``Impairment``."""
    given: dict[str, Any] = {}

    @click.command()
    @impairment_options
    def take(**values: Any) -> None:
        given.update(values)

    words = "--loss 1% --burst 5%x4 --delay 25ms --jitter 10ms --distribution pareto --reorder 25% --reorder-gap 5 "
    words += "--reorder-correlation 50% --duplicate 2% --corrupt 3% --rate 10mbit --limit 100"
    done = CliRunner().invoke(take, words.split())
    assert done.exit_code == 0, done.output
    assert given.keys() == {field.name for field in dataclasses.fields(Impairment)}
    assert Impairment(**given) == Impairment(
        loss=0.01,
        burst=impair.parse_burst("5%x4"),
        delay_ns=25_000_000,
        jitter_ns=10_000_000,
        jitter_distribution="pareto",
        reorder=0.25,
        reorder_gap=5,
        reorder_correlation=0.5,
        duplicate=0.02,
        corrupt=0.03,
        rate_bit=10_000_000,
        limit=100,
    )


def test_what_depends_on_another_impairment_ends_with_it() -> None:
    late = Impairment(delay_ns=5, jitter_ns=2, jitter_distribution="normal", reorder=0.1, reorder_gap=3, reorder_correlation=0.1)
    assert late.changed({"reorder": 0.0}).reorder_gap == 0
    assert late.changed({"jitter_ns": 0}).jitter_distribution == "uniform"
    assert late.changed({"delay_ns": 0}) == Impairment()
    with pytest.raises(ValueError, match="give a delay too"):
        late.changed({"delay_ns": 0, "jitter_ns": 1})


def test_loss_and_burst_together_are_one_model() -> None:
    both = Impairment(loss=0.2, burst=(0.1, 0.3, 0.5, 0.1))
    assert both.all_burst == pytest.approx((0.1, 0.3, 0.6, 0.28))
    assert both.mean_loss == pytest.approx(0.25 * 0.6 + 0.75 * 0.28)
    assert Impairment(loss=0.2).mean_loss == 0.2


@pytest.mark.parametrize(("name", "mean", "deviation"), [("normal", 0, 1), ("pareto", 0, 0.82), ("paretonormal", 0, 0.85)])
def test_tables_of_distributions(name: str, mean: float, deviation: float) -> None:
    """Growing numbers of 16 bits, with the mean and the deviation that are documented, in units of the jitter."""
    table = distributions.table(name)
    assert list(table) == sorted(table) and len(table) <= 16384 and max(map(abs, table)) < 2**15
    scaled = [value / distributions.SCALE for value in table]
    assert statistics.mean(scaled) == pytest.approx(mean, abs=0.04)
    assert statistics.pstdev(scaled) == pytest.approx(deviation, abs=0.01)
    assert distributions.table("uniform") == ()


def test_netem_options_are_what_the_kernel_reads() -> None:
    """struct tc_netem_qopt, then every attribute, so that a change leaves nothing of before."""
    plain = qdiscs.netem_options(Impairment(loss=0.5, delay_ns=64_000, duplicate=1.0))
    assert struct.unpack_from("=6I", plain) == (1000, 10_000, 2**31, 0, 2**32 - 1, 0)
    assert _attributes(plain[24:]).keys() == {1, 3, 4, 10, 11}
    burst = qdiscs.netem_options(Impairment(burst=(0.25, 0.5, 0.75, 0.0), loss=0.0, limit=7))
    assert struct.unpack_from("=6I", burst) == (0, 7, 0, 0, 0, 0)
    model = _attributes(_attributes(burst[24:])[5])[2]
    assert [value / 2**32 for value in struct.unpack("=4I", model)] == pytest.approx([0.25, 0.5, 0.25, 0.0])
    late = _attributes(qdiscs.netem_options(Impairment(delay_ns=10**9, jitter_ns=7, jitter_distribution="normal"))[24:])
    assert len(late[2]) == 2 * distributions.SIZE
    assert struct.unpack("=q", late[10]) == (10**9,) and struct.unpack("=q", late[11]) == (7,)


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while data:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x7FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def test_impairment_names_what_needs_netem() -> None:
    assert Impairment(loss=0.1, rate_bit=10**6).needs_netem == []
    assert Impairment(delay_ns=1, jitter_ns=1, duplicate=0.1).needs_netem == ["delay", "jitter", "duplicate"]
    assert Impairment(loss=0.05, delay_ns=5_000_000, jitter_ns=10**6).describe() == "loss 5%, delay 5ms±1ms"


def test_ruleset_of_nothing_removes_the_hook() -> None:
    assert filters.ruleset([1], {}, []).endswith("delete chain bridge zenjun forward\n")


def test_ruleset_throws_for_each_receiver() -> None:
    text = filters.ruleset([1, 2], {1: 0.05, 2: 1.0}, [(1, 2), (3, 2)])
    assert 'oifname "s1" numgen random mod 1000000 < 50000 counter name lost_1 drop' in text
    assert 'oifname "s2" counter name lost_2 drop' in text
    assert 'oifname "s2" iifname { "s1", "s3" } counter name cut_2 drop' in text


def test_ruleset_of_bursts_is_what_was_drawn() -> None:
    text = filters.ruleset([1, 2], {2: 0.5}, [], bursts={1: (0.1, 0.25, 1.0, 0.0)})
    (rule,) = [line for line in text.splitlines() if 'oifname "s1"' in line]
    found = re.fullmatch(
        rf'add rule bridge zenjun forward oifname "s1" numgen inc mod {filters.CYCLE} {{ (.*) }} counter name lost_1 drop', rule
    )
    assert found is not None
    runs = [tuple(map(int, each.partition("-")[::2])) if "-" in each else (int(each),) * 2 for each in found[1].split(", ")]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(runs)) and runs[-1][1] < filters.CYCLE
    lost = [False] * filters.CYCLE
    for first, last in runs:
        lost[first : last + 1] = [True] * (last + 1 - first)
    bounds.check_bursts(lost, 0.1, 0.25, 2000)
    again = filters.ruleset([1, 2], {2: 0.5}, [], bursts={1: (0.1, 0.25, 1.0, 0.0)})
    assert rule not in again.splitlines(), "each time other frames"


@pytest.mark.parametrize(
    ("model", "share"),
    [
        ((0.1, 0.25, 0.8, 0.05), (0.25 * 0.05 + 0.1 * 0.8) / 0.35),
        ((0.0, 1.0, 1.0, 0.0), 0.0),
        ((0.5, 0.5, 1.0, 1.0), 1.0),
    ],
)
def test_a_state_loses_its_share(model: tuple[float, ...], share: float) -> None:
    """Seeds, so that it comes out the same: the shares are far from those of other models."""
    for seed in range(5):
        lost = sum(last + 1 - first for first, last in filters.burst_places(model, random.Random(seed)))
        assert lost / filters.CYCLE == pytest.approx(share, abs=0.02)


def test_a_tiny_loss_is_not_rounded_to_none() -> None:
    assert "< 1 counter" in filters.ruleset([1], {1: 1e-9}, [])


def test_toml_reads_back() -> None:
    tables = {"a b": {"x": 1, "y": 2.5, "text": 'say "ü"\n\\ \x7f', "on": True, "list": [1, 2], "path": Path("/x")}, "empty": {}}
    expected = {**tables, "a b": {**tables["a b"], "path": "/x"}}
    assert tomllib.loads(files.to_toml(tables)) == expected


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "x" * 33, "a b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(LabError, match="no name for a lab"):
        files.check_name(name)


def test_a_folder_too_deep_for_sockets_is_refused_by_size(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="allow 107"):
        Lab(3, directory=tmp_path / ("d" * 100))


@pytest.mark.parametrize(("arguments", "text"), [((0,), "1 to 64"), ((65,), "1 to 64")])
def test_bad_sizes(arguments: tuple[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Lab(*arguments)


def test_labs_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("ZENJUN_LAB_HOME", str(tmp_path / "home"))
    with pytest.raises(LabError, match="does not belong"):
        files.make_home()


def test_ports_that_come_by_themselves_stay_outside_while_there_are_cuts() -> None:
    """Those of containers: until their cuts can be set they exchange nothing but IP with the stations."""
    given: dict[str, Any] = {"table": "t", "port": lambda station: f"veth{station}", "only": [1, 2, 3]}
    text = filters.ruleset([2], {}, [(1, 2)], **given)
    assert 'oifname "veth2" iifname { "veth1" } counter name cut_2 drop' in text
    assert 'ether type != { ip, arp, ip6 } oifname { "veth1", "veth2", "veth3" } iifname != {' in text
    assert 'ether type != { ip, arp, ip6 } iifname { "veth1", "veth2", "veth3" } oifname != {' in text
    assert "ether type" not in filters.ruleset([2], {2: 0.5}, [], **given), "without cuts nobody is kept out"
