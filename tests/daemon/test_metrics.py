"""/metrics: every counter of the status, names after the conventions, text that a strict parser takes, a server that lasts."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zenjun.daemon import metrics
from zenjun.daemon.access import Access, Rule
from zenjun.daemon.config import ConfigError, parse
from zenjun.daemon.config.principals import Principals
from zenjun.daemon.datapath.datapath import COUNTERS, REFUSALS
from zenjun.daemon.listening import SocketError
from zenjun.daemon.metrics import CONTENT_TYPE, READERS_MAX, REQUEST_BYTES_MAX, MetricsServer, counter_name, openmetrics
from zenjun.daemon.observe import set_up
from zenjun.proto.core._core import ffi as core_ffi

from ..timing import in_time, lengthening

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).parents[1] / "status_example.json"
BASE_UNITS = ("seconds", "bytes", "frames", "messages", "pdus", "members")


def example() -> dict[str, Any]:
    return dict(json.loads(EXAMPLE.read_text()))


def real() -> dict[str, Any]:
    """The example with every counter that the C structures have."""
    s = example()
    core = [name for name, _ in core_ffi.typeof("struct zj_counters").fields if name != "drops"]
    datapath = [*COUNTERS, *REFUSALS]
    s["counters"] = {"core": {n: 7 + i for i, n in enumerate(core)}, "datapath": {n: 1000 + i for i, n in enumerate(datapath)}}
    return s


def samples(s: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Value by name and label values, through the strict parser."""
    out: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(openmetrics(s).decode()):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            key = (sample.name, *(v for k, v in sorted(sample.labels.items())))
            assert key not in out, key
            out[key] = sample.value
    return out


def test_every_counter_is_there_with_its_value() -> None:
    s = real()
    seen = samples(s)
    for part, values in s["counters"].items():
        for name, value in values.items():
            assert seen[f"{counter_name(part, name)}_total",] == value
            assert f"{part}_{name}" in metrics.HELP, f"no help for {part}.{name}"
    assert {k.partition("_")[0] for k in metrics.HELP} == {"core", "datapath"}
    known = {f"{part}_{name}" for part, values in s["counters"].items() for name in values}
    assert set(metrics.HELP) == known, "help for a counter that is not"
    assert seen["zenjun_dropped_frames_total", "checksum"] == 4
    assert seen["zenjun_kernel_dropped_frames_total",] == 2
    assert seen["zenjun_client_delivered_messages_total", "5", "zenjun recv"] == 12


def test_gauges_of_the_status() -> None:
    s = example()
    s["blocked"] = [{"station": 3, "reason": "silent", "since_ms": 1500}]
    seen = samples(s)
    assert seen["zenjun_state", "open"] == 1 and seen["zenjun_state", "blocked"] == 0
    assert sum(v for k, v in seen.items() if k[0] == "zenjun_state") == 1
    assert seen["zenjun_peer_state", "", "3", "silent"] == 1
    assert seen["zenjun_peer_heard_seconds", "2"] == 0.012
    assert ("zenjun_peer_heard_seconds", "1") not in seen, "null is left out"
    assert seen["zenjun_peer_missing_pdus", "2"] == 2
    assert seen["zenjun_blocked_seconds", "silent", "3"] == 1.5
    assert seen["zenjun_uptime_seconds",] == 3723
    assert seen["zenjun_window_in_flight_frames",] == 3 and seen["zenjun_window_frames",] == 111
    assert seen["zenjun_position_pdus", "preack"] == 118
    assert seen["zenjun_mtu_bytes",] == 1500 and seen["zenjun_payload_max_bytes",] == 1284
    assert seen["zenjun_client_queued_bytes", "5", "zenjun recv"] == 2048
    assert seen["zenjun_group_members", "default"] == 1
    assert seen["zenjun_memory_bytes", "core"] == 1048576
    assert seen["process_cpu_seconds_total",] > 0


def test_members_quorum_and_changes() -> None:
    seen = samples(example())
    assert (seen["zenjun_members",], seen["zenjun_quorum_members",], seen["zenjun_quorum",]) == (3, 2, 1)
    assert seen["zenjun_membership_changes_total",] == 4 and seen["zenjun_membership_age_seconds",] == 65
    assert seen["zenjun_membership_proposed_instance",] == 4295
    assert seen["zenjun_membership_moves_total", "stop_seen", "A"] == 2
    assert seen["zenjun_membership_waiting_seconds", "2", "told", "3"] == 1.2
    s = example()
    s["members"], s["quorum"]["have"] = [], False
    assert samples(s)["zenjun_members",] == 0 and samples(s)["zenjun_quorum",] == 0


def test_sessions_and_keys_by_their_ids() -> None:
    s = example()
    s["sessions"] = {
        "security": "encrypt", "frames": 12, "key": "1a2b3c4d", "keys": ["5e6f7a8b", "1a2b3c4d"], "age_s": 30,
        "stations": {
            "2": {"proven": True, "reads_own": False, "key": "5e6f7a8b", "keys": ["5e6f7a8b"]},
            "3": {"proven": False, "reads_own": False, "key": None, "keys": []},
        },
    }  # fmt: skip
    seen, own = samples(s), str(s["station"])
    assert seen["zenjun_session_age_seconds",] == 30 and seen["zenjun_session_sealed_frames",] == 12
    assert [seen["zenjun_session_proven", station] for station in "23"] == [1, 0]
    assert seen["zenjun_session_reads_own", "2"] == 0
    keys = {(name, *labels) for name, *labels in seen if name.startswith("zenjun_key_")}
    assert keys == {
        ("zenjun_key_sealing", "1a2b3c4d", own), ("zenjun_key_sealing", "5e6f7a8b", "2"), ("zenjun_key_read", "1a2b3c4d", own),
        ("zenjun_key_read", "5e6f7a8b", own), ("zenjun_key_read", "5e6f7a8b", "2"),
    }  # fmt: skip
    s["sessions"] = None
    assert not [name for name, *_ in samples(s) if name.startswith(("zenjun_key_", "zenjun_session_"))]


def test_every_state_of_the_status_has_a_sample() -> None:
    """A word that is no state here would make all samples of that station 0: it would be in no state at all."""
    text = (ROOT / "docs" / "status.md").read_text()
    words = set[str]()
    for begin in ("| `state` | string | `self`", "| `waiting` | list |"):
        (line,) = [line for line in text.splitlines() if line.startswith(begin)]
        words |= set(re.findall(r"`([a-z ]+)`", line)) - {"state", "waiting", "membership"}
    assert words == set(metrics.PEER_STATES)
    (line,) = [line for line in text.splitlines() if line.startswith("| `state` | string | `opening`")]
    assert set(re.findall(r"`([a-z ]+)`", line)) - {"state"} == set(metrics.STATES)
    for word in metrics.PEER_STATES:
        s = example()
        s["peers"][2]["state"] = word
        assert [k[3] for k, v in samples(s).items() if k[0] == "zenjun_peer_state" and k[2] == "3" and v] == [word]


def test_names_follow_the_conventions() -> None:
    for family in text_string_to_metric_families(openmetrics(real()).decode()):  # type: ignore[no-untyped-call]
        assert re.fullmatch(r"(zenjun|process|python)(_[a-z][a-z0-9]*)*", family.name), family.name
        assert family.documentation, family.name
        assert not family.name.endswith(("_total", "_count", "_info")), family.name
        assert not re.search(r"_(ms|us|ns|kb|mib|percent)(_|$)", family.name), family.name
        for unit in ("bytes", "seconds"):
            assert f"_{unit}_" not in family.name, f"{family.name}: the unit goes last"
        if family.unit:
            assert family.unit in BASE_UNITS and family.name.endswith(family.unit)
    assert counter_name("core", "message_bytes_sent") == "zenjun_core_message_sent_bytes"
    assert counter_name("datapath", "client_bytes_in") == "zenjun_datapath_client_in_bytes"


def test_names_of_programs_and_groups_cannot_break_the_text() -> None:
    s = example()
    odd = 'a"b\\c\nd} 1\n# EOF'
    s["clients"][0]["name"] = odd
    s["groups"][0]["name"] = odd
    assert samples(s)["zenjun_group_members", odd] == 1
    assert samples(s)["zenjun_client_queued_bytes", "5", odd] == 2048


def test_new_and_missing_members_are_no_error() -> None:
    s = example()
    s["counters"]["core"]["brand_new_bytes_lost"] = 3
    s["counters"]["membership"] = {"views": 2}
    s["peers"][0]["votes"] = 4
    s["surprise"] = {"x": [1]}
    seen = samples(s)
    assert seen["zenjun_core_brand_new_lost_bytes_total",] == 3 and seen["zenjun_membership_views_total",] == 2
    assert seen["zenjun_peer_votes", "1"] == 4
    assert samples({})["zenjun_clients",] == 0


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("/run/zenjun/m.sock", ""), ("127.0.0.1:9461", ""), ("[::1]:9461", ""), ("127.8.0.1:1", ""), ("", ""),
        ("0.0.0.0:9461", "can be reached from other machines"), ("[::]:9461", "can be reached"),
        ("192.0.2.1:9461", "can be reached"), ("localhost:9461", "expected"), ("127.0.0.1", "expected"),
        ("127.0.0.1:0", "a port"), ("127.0.0.1:65536", "a port"), ("127.0.0.1:x", "expected"), ("m.sock", "expected"),
    ],
)  # fmt: skip
def test_where_it_may_listen(value: str, wrong: str) -> None:
    text = f'[cluster]\nname = "c"\nstations = 1\n[station]\nid = 1\ninterface = "e"\n[metrics]\nlisten = "{value}"\n'
    if wrong:
        with pytest.raises(ConfigError, match=wrong):
            parse(text)
    else:
        assert parse(text).metrics.listen == value


def served(where: str, program: Callable[[MetricsServer], Coroutine[Any, Any, None]], **status: Any) -> None:
    """Run a program against a server in one loop, with a deadline."""

    async def run() -> None:
        server = MetricsServer(where, 0o600, "", set_up("text", "error"))
        server.status = lambda: {**example(), **status}
        await server.start()
        try:
            async with asyncio.timeout(120):
                await program(server)
        finally:
            server.close()
            server.close()

    asyncio.run(run())


async def ask(where: str, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers and body of the answer; empty when the connection ends without one."""
    if where.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(where)
    else:
        reader, writer = await asyncio.open_connection(*where.rsplit(":", 1))
    writer.write(request)
    try:
        data = await reader.read()
    except ConnectionResetError:  # cut off with our request unread
        data = b""
    writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "m"

    async def program(server: MetricsServer) -> None:
        assert path.stat().st_mode & 0o777 == 0o600
        line, headers, body = await ask(str(path), GET)
        assert line == "HTTP/1.1 200 OK" and headers["Content-Type"] == CONTENT_TYPE
        assert int(headers["Content-Length"]) == len(body) and body.endswith(b"# EOF\n")
        assert (await ask(str(path), GET.replace(b"GET", b"HEAD")))[2] == b""
        assert (await ask(str(path), GET.replace(b"metrics", b"metrics?x=1")))[0] == "HTTP/1.1 200 OK"
        assert (await ask(str(path), GET.replace(b"metrics", b"")))[0] == "HTTP/1.1 404 Not Found"
        line, headers, _ = await ask(str(path), GET.replace(b"GET", b"POST"))
        assert line == "HTTP/1.1 405 Method Not Allowed" and headers["Allow"] == "GET, HEAD"
        assert (await ask(str(path), b"\x16\x03\x01\r\n\r\n"))[0] == "HTTP/1.1 400 Bad Request"

    served(str(path), program)
    assert not path.exists()


def test_a_loopback_port_is_served() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"

    async def program(server: MetricsServer) -> None:
        assert (await ask(where, GET))[0] == "HTTP/1.1 200 OK"
        for host in (b"127.0.0.1:9461", b"[::1]:9461", b"127.8.0.1", b"LOCALHOST:1"):
            assert (await ask(where, GET.replace(b"localhost", host)))[0] == "HTTP/1.1 200 OK", host
        for host in (b"example.org", b"example.org:9461", b"192.0.2.1:9461", b"", b"localhost.example.org", b"[2001:db8::1]:1"):
            line, _, body = await ask(where, GET.replace(b"localhost", host))
            assert line.startswith("HTTP/1.1 421 ") and b"zenjun_" not in body, host
        twice = GET.replace(b"Accept: */*", b"host: example.org")
        assert (await ask(where, twice))[0].startswith("HTTP/1.1 421 ")
        with pytest.raises(SocketError, match=f"cannot listen for metrics at {where}: Address already in use"):
            MetricsServer(where, 0o600, "", set_up("text", "error"))

    served(where, program)


def test_bad_readers_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "m")

    async def program(server: MetricsServer) -> None:
        for seconds in lengthening(1.0, 5):  # from the first connection on: all must be there before it is over
            monkeypatch.setattr(metrics, "REQUEST_S", seconds)
            begun = time.monotonic()
            idle = [await asyncio.open_unix_connection(path) for _ in range(READERS_MAX)]
            while len(server._readers) < READERS_MAX and time.monotonic() - begun < seconds:
                await asyncio.sleep(0.005)
            answer = await ask(path, GET)
            if time.monotonic() - begun < seconds:
                break
            assert [await reader.read() for reader, _ in idle] == [b""] * READERS_MAX
            for _, writer in idle:
                writer.close()
        else:
            in_time(False, f"{READERS_MAX + 1} connections in {seconds:g} s")
        assert answer == ("", {}, b""), "one too many"
        assert [await reader.read() for reader, _ in idle] == [b""] * READERS_MAX
        for _, writer in idle:
            writer.close()
        assert (await ask(path, b"GET /" + b"x" * 10 * REQUEST_BYTES_MAX))[0] == ""
        assert (await ask(path, GET))[0] == "HTTP/1.1 200 OK", "it goes on"
        while server._readers:  # who has its answer is not forgotten at the same moment
            await asyncio.sleep(0.005)

    served(path, program)


def test_a_status_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    async def program(server: MetricsServer) -> None:
        server.status = lambda: {"peers": 7}
        assert (await ask(str(tmp_path / "m"), GET))[0] == "HTTP/1.1 500 Internal Server Error"

    served(str(tmp_path / "m"), program)


def test_off_it_is_nothing() -> None:
    async def program(server: MetricsServer) -> None:
        assert server._socket is None and server._server is None

    served("", program)


def queries(node: Any) -> list[str]:
    """Every expression of a dashboard."""
    if isinstance(node, dict):
        own = [str(node["expr"])] if "expr" in node else []
        return own + [q for value in node.values() for q in queries(value)]
    return [q for value in node for q in queries(value)] if isinstance(node, list) else []


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    board = json.loads((ROOT / "docker" / "grafana-dashboard.json").read_text())
    s = real()
    s["blocked"] = [{"station": 3, "reason": "silent", "since_ms": 1500}]
    names = {key[0] for key in samples(s)} | {"up"}
    asked = queries(board)
    assert len(asked) > 15
    for query in asked:
        for name in re.findall(r"\b(?:zenjun|process)_\w+", re.sub(r"\{[^}]*\}|by \([^)]*\)", "", query)):
            assert name in names, query
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


def test_names_of_groups_and_programs_can_be_left_out() -> None:
    s = example()
    assert s["groups"] and s["clients"]
    seen = samples(metrics.without_names(s))
    assert seen["zenjun_groups",] == len(s["groups"]) and seen["zenjun_clients",] == len(s["clients"])
    assert not [key for key in seen if key[0] == "zenjun_group_members"]
    names = {c["name"] for c in s["clients"]} | {g["name"] for g in s["groups"]}
    assert not [key for key in seen if names & set(key[1:])]
    assert samples(s)["zenjun_groups",] == len(s["groups"])


def test_when_the_names_are_shown() -> None:
    rules = (Rule("x", Principals(), Principals()),)
    for shown, open_station, limited in (("auto", True, False), ("yes", True, True), ("no", False, False)):
        for access, result in ((Access(), open_station), (Access(rules), limited), (Access(closed=True), limited)):
            access.names_shown = shown
            assert access.shows_names is result
