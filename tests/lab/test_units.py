"""Units, rules and files of the lab, without any network."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from zenjun.tools.lab import Impairment, Lab, LabError, files, filters, impair


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
    "bad",
    [{"loss": 1.1}, {"loss": -0.1}, {"delay_ns": -1}, {"jitter_ns": 5}, {"reorder": 0.1}, {"rate_bit": 1}, {"delay_ns": 10**12}],
)
def test_impairments_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Impairment(**bad)  # type: ignore[arg-type]


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
    given = {"table": "t", "port": lambda station: f"veth{station}", "only": [1, 2, 3]}
    text = filters.ruleset([2], {}, [(1, 2)], **given)
    assert 'oifname "veth2" iifname { "veth1" } counter name cut_2 drop' in text
    assert 'ether type != { ip, arp, ip6 } oifname { "veth1", "veth2", "veth3" } iifname != {' in text
    assert 'ether type != { ip, arp, ip6 } iifname { "veth1", "veth2", "veth3" } oifname != {' in text
    assert "ether type" not in filters.ruleset([2], {2: 0.5}, [], **given), "without cuts nobody is kept out"
