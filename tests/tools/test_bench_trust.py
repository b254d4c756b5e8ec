"""``zenjun bench trust``: its plan and table. The runs themselves need a lab and minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from zenjun.tools.bench.systems import Corosync
from zenjun.tools.bench.trust import CUTS, PARTS, TrustPlan, render
from zenjun.tools.cli.bench import bench

HEAD: dict[str, Any] = {
    "bench": "trust", "version": "zenjun 1", "stations": 3, "machine": "m", "load": 1.5, "repeat": 1, "ok": True, "problems": [],
}  # fmt: skip


def key(system: str, rate: float, **more: Any) -> dict[str, Any]:
    return {
        **HEAD,
        "system": system,
        "what": "key",
        "mode": "throughput",
        "size": 64,
        "messages_per_s": rate,
        "per_cpu_s": 2 * rate,
        **more,
    }


def gap(what: str, ms: float, **more: Any) -> dict[str, Any]:
    return {**HEAD, "system": "zenjun", "what": what, "gap_ms": ms, "gap_before_ms": 2.0, "changes": 0, **more}


CUT = {"mode": "auto", "rate": 1000.0, "cut": "switch"}
ROWS = [
    key("zenjun", 100.0), key("zenjun-authenticate", 95.0), key("zenjun-encrypt", 80.0),
    key("zenjun", 50.0, repeat=2), key("zenjun-authenticate", 47.0, repeat=2), key("zenjun-encrypt", 45.0, repeat=2, ok=False),
    gap("cut", 4.0, **CUT), gap("cut", 6.0, **{**CUT, "cut": "one-way"}), gap("cut", 1.0, **{**CUT, "cut": "cable"}, ok=False),
    gap("rotate", 19.0, changes_of_key=10, loss=0.05),
    {**HEAD, "system": "zenjun", "what": "mtu", "where": "switch", "ok": False},
]  # fmt: skip


def lines_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")][2:]


def test_a_plan_counts_its_lines() -> None:
    assert TrustPlan(parts=("key",), repeat=2).runs() == 2 * 9
    assert TrustPlan(parts=("key",), repeat=1, peers=("corosync",)).runs() == 15
    assert TrustPlan(repeat=1).runs() == 9 + 9 + 6 + 3 * len(CUTS) + 1 + 2
    assert TrustPlan(parts=PARTS, cuts=("switch",), repeat=1, peers=("corosync",)).runs() == 15 + 15 + 12 + 5 + 1 + 2


def test_ratios_are_those_within_a_turn_and_each_has_its_verdict() -> None:
    told = {(line[0], line[1]): line[2:] for line in lines_of(render(ROWS))}
    throughput = "throughput, 64 B, key against none"
    assert told[throughput, "zenjun-authenticate"][2:] == ["0.94 (0.94–0.95)", "≥ 0.93", "yes", "0"]
    assert told[throughput, "zenjun-encrypt"][2:] == ["0.80 (0.80–0.80)", "≥ 0.88", "**no**", "1"], "what failed does not count"
    assert told["the same for each CPU-second, 64 B", "zenjun-authenticate"] == [
        "142 msg", "150 msg", "0.94 (0.94–0.95)", "–", "–", "0",
    ]  # fmt: skip
    assert told["link cut (switch), auto, 1000 msg/s", "zenjun"][-2:] == ["yes", "0"]
    assert told["link cut (one-way), auto, 1000 msg/s", "zenjun"][-2:] == ["**no**", "0"], "above its bound of 5 ms"
    assert told["link cut (cable), auto, 1000 msg/s", "zenjun"][-2:] == ["**no**", "1"], "a failed run reaches nothing"
    assert told["10 changes of the key, flat out, 5% loss", "zenjun"][-2] == "yes"
    assert told["MTU 9000 → 1500, switch, flat out", "zenjun"] == ["–", "–", "–", "≤ 100 ms, no change of members", "**no**", "1"]


def test_two_links_are_compared_with_one_of_the_same_size() -> None:
    def rate(links: int, size: int, value: float, loss: float = 0.0) -> dict[str, Any]:
        about = {"what": "rate", "links": links, "size": size, "loss": loss, "mbit": 200, "megabytes_per_s": value}
        return {**HEAD, "system": "zenjun", **about}

    some = [rate(1, 1300, 10), rate(2, 1300, 19), rate(2, 1300, 15, 0.01), rate(1, 65536, 20), rate(2, 65536, 30)]
    assert [line[4:7] for line in lines_of(render(some))] == [
        ["1.90 (1.90–1.90)", "≥ 1.8", "yes"],
        ["1.50 (1.50–1.50)", "≥ 1.6", "**no**"],
        ["1.50 (1.50–1.50)", "≥ 1.8", "**no**"],
    ]


def test_two_links_and_a_key_are_compared_with_corosyncs() -> None:
    some = [{**key(name, rate), "what": "both"} for name, rate in (("zenjun-encrypt", 80.0), ("corosync-no-rr-crypto", 40.0))]
    assert lines_of(render(some)) == [
        [
            "two links, throughput, 64 B, against corosync-no-rr-crypto", "zenjun-encrypt", "80 msg/s", "40 msg/s",
            "2.00 (2.00–2.00)", "–", "–", "0",
        ],
    ]  # fmt: skip


def test_saved_lines_give_the_same_table(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    result = CliRunner().invoke(bench, ["table", str(file)])
    assert result.exit_code == 0 and result.output.strip() == render(ROWS).strip()
    assert render([]) == "No runs.\n"


def test_wrong_parts_are_named() -> None:
    result = CliRunner().invoke(bench, ["trust", "--parts", "key,speed"])
    assert result.exit_code == 2 and "each must be one of key, both, rate, cut, rotate, mtu" in result.output


def test_corosync_with_two_links_and_crypto(tmp_path: Path) -> None:
    """What its configuration says; a key of its own, which nobody else can read."""

    class Two:
        links = 2
        stations = dict.fromkeys((1, 2, 3))

        def station(self, _number: int) -> Any:
            return type("Station", (), {"interface": {"name": "eth0"}})()

    system = Corosync(Two(), real_time=False, client=tmp_path, folder=tmp_path, crypto=True, link_mode="rr")  # type: ignore[arg-type]
    text = system._configuration(tmp_path)
    assert system.name == "corosync-no-rr-crypto"
    assert "ring0_addr: 10.90.0.2\n    ring1_addr: 10.90.1.2\n" in text and "link_mode: rr" in text
    assert f"crypto_cipher: aes256\n  crypto_hash: sha256\n  keyfile: {system._key()}" in text
    assert system._key().stat().st_mode & 0o777 == 0o400 and system._key().stat().st_size == 256
