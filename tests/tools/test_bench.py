"""The benchmark: the load client in C against a daemon of the test's own that can be told to cheat, the figures, the tables."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon.config import load as load_config
from zenjun.tools.bench import failover as failover_module
from zenjun.tools.bench import plan as plan_module
from zenjun.tools.bench.cell import BenchError, Cell, Client, problems, run_window, summary
from zenjun.tools.bench.failover import Failover
from zenjun.tools.bench.measure import cpu_ns
from zenjun.tools.bench.plan import Plan
from zenjun.tools.bench.systems import System, worker
from zenjun.tools.bench.table import Results, aims, markdown, number, render
from zenjun.tools.cli.bench import bench
from zenjun.tools.lab.files import to_toml

from ..timing import in_time, until_enough

load = pytest.importorskip("zenjun.tools.bench._load", reason="the C modules are not built")

STATIONS = 3
CELL = Cell(STATIONS, STATIONS, 64, "preack", "throughput", 0.0, 1500, 0.3, 0.1, 5.0)

Tamper = Callable[[int, int, bytes], list[bytes]]
"""(member, place in the order, message) → what that member is given instead."""


class Relay:
    """Orders messages by arrival and hands them to all members: docs/client-protocol.md as far as the load client uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: list[asyncio.StreamWriter] = []
        self.tamper: Tamper | None = None
        self.refuse: dict[str, str] | None = None
        self.cut_at: int | None = None
        """Close the first member's connection at this place in the order."""
        self.members_wanted = 0
        self.flags: set[int] = set()
        self.order = 0
        self.senders: set[asyncio.StreamWriter] = set()
        self.numbers: dict[asyncio.StreamWriter, int] = {}
        self.held: list[tuple[asyncio.StreamWriter, bytes]] | None = None
        """What waits for ``release``, if anything is to wait."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.odd_names = ['plain "quoted" [bracket', "back\\slash ]]", "三"]

    @staticmethod
    def frame(kind: int, body: bytes | dict[str, Any], flags: int = 0, handle: int = 1) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return struct.pack("<IBBH", len(data), kind, flags, handle) + data

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size, kind, flags, handle = struct.unpack("<IBBH", await reader.readexactly(8))
                self.take(kind, flags, handle, await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if writer in self.members:
                self.members.remove(writer)
            writer.close()

    def take(self, kind: int, flags: int, handle: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == 1:
            assert body[:8] == b"ZENJ\x03\x00\x03\x00"
            if self.refuse is not None:
                writer.write(self.frame(70, self.refuse, flags=1, handle=0))
                writer.close()
            else:
                self.numbers[writer] = len(self.numbers) + 1
                welcome = {"version": 3, "station": self.numbers[writer], "stations": 3, "cluster": "bench", "client": 1}
                welcome |= {"message_max": 1 << 24, "queue_bytes_max": 1 << 24, "instance": 7}
                writer.write(self.frame(65, welcome, handle=0))
        elif kind == 2:
            assert (body, handle) == (b"\0\0\0\0bench", 1)
            self.flags.add(flags)
            self.members.append(writer)
            names = [[self.numbers[m], 1, self.odd_names[k % 3]] for k, m in enumerate(self.members)]
            view = {"group": "bench", "members": names, "joined": [names[-1]], "left": [], "reason": "join", "instance": 7}
            for m in self.members:
                m.write(self.frame(67, view | {"clock": 1, "station": 1, "index": 0}))
        elif kind == 4:
            self.flags.add(flags)
            self.senders.add(writer)
            if self.held is not None:
                self.held.append((writer, body))
                return
            place, self.order = self.order, self.order + 1
            if self.cut_at == place:
                # Closing would first wait for the queue, and for this loop to come round, which is late on a busy machine.
                self.members[0].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            for k, m in enumerate(self.members):
                for message in [body] if self.tamper is None else self.tamper(k, place, body):
                    m.write(self.frame(66, struct.pack("<QHHBBH", place, 0, 1, 1, 0, 0) + message, int(m is writer)))
        elif kind == 6:
            writer.close()
        else:
            raise AssertionError(f"frame type {kind}")

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """From any thread: do it in the relay's thread after so many seconds."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, action)

    def hold(self) -> None:
        self.held = []

    def release(self) -> None:
        held, self.held = self.held or [], None
        for writer, body in held:
            self.take(4, 1, 1, body, writer)

    def silent_one_died(self) -> None:
        """The only member that has not sent is no member any more, its station neither."""
        (victim,) = (m for m in self.members if m not in self.senders)
        self.members.remove(victim)
        victim.close()
        names = [[self.numbers[m], 1, self.odd_names[k % 3]] for k, m in enumerate(self.members)]
        view = {"group": "bench", "members": names, "joined": [], "left": [[self.numbers[victim], 1, "x"]], "reason": "death"}
        for m in self.members:
            m.write(self.frame(67, view | {"clock": 2, "station": 1, "index": 0, "instance": 8}))
        self.stations([1, 2])

    def stations(self, numbers: list[int]) -> None:
        for m in self.members:
            members = [[k, 100 + k, f'host, "{k}" [4, 5]'] for k in numbers]
            m.write(self.frame(68, {"event": "view", "instance": 8, "members": members, "joined": [], "left": []}, handle=0))


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    made = Relay(tmp_path / "sock")
    made.loop = loop = asyncio.new_event_loop()
    up = threading.Event()

    async def main() -> None:
        server = await asyncio.start_unix_server(made.serve, made.path, limit=1 << 22)
        up.set()
        async with server:
            await server.serve_forever()

    def body() -> None:
        asyncio.set_event_loop(loop)
        try:
            task = loop.create_task(main())
            made.stop = lambda: loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            for left in asyncio.all_tasks(loop):
                left.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    thread = threading.Thread(target=body)
    thread.start()
    assert up.wait(60)
    yield made
    made.stop()  # type: ignore[attr-defined]
    thread.join(60)
    assert not thread.is_alive()


@dataclass
class OneMachine:
    """A cluster without a lab: every client connects to the same relay. Stands for its own daemon where one is asked for."""

    relay: Relay
    interface: str = "lo"
    spawned: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def daemon_pids(self) -> list[int]:
        return [os.getpid()]

    def spawn_client(self, station: int, cell: Cell) -> subprocess.Popen[bytes]:
        argv = [*worker("load"), *cell.client_arguments(station), "--target", str(self.relay.path)]
        pipe = subprocess.PIPE
        self.spawned.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe))
        return self.spawned[-1]

    def counters(self) -> Mapping[str, int]:
        return {"retransmissions": self.relay.order}


def measure(relay: Relay, cell: Cell = CELL) -> dict[str, Any]:
    cluster = OneMachine(relay)
    try:
        return summary(cell, run_window(cluster, cell))
    finally:
        assert all(p.poll() is not None for p in cluster.spawned), "run_window left a client behind"


def caught(relay: Relay, cell: Cell = CELL) -> dict[str, Any]:
    """A run in which something went wrong: a busy machine gets longer ones until the place has come at which it does."""
    return until_enough(lambda seconds: measure(relay, replace(cell, seconds=seconds)), lambda got: not got["ok"], 0.2)


def undisturbed(measured: Callable[[], dict[str, Any]], right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A rate that is right, of up to five measured: a machine that stands still as a window begins or ends is not what is
    measured. All must have gone well."""
    for _ in range(5):
        got = measured()
        assert got["ok"], got.get("problems", got)
        if right(got):
            return got
    pytest.fail(f"five times not what it should be: {got}")


# The client


@pytest.mark.parametrize("size", [33, 64, 1300, 65536, 1 << 20])
def test_throughput_is_delivered_in_order_everywhere(relay: Relay, size: int) -> None:
    def measured(seconds: float) -> dict[str, Any]:
        before = relay.order
        got = measure(relay, replace(CELL, size=size, seconds=seconds))
        assert got["ok"] and got["retransmissions"] == relay.order - before, got  # of the system's counters, over the run
        return got

    got = until_enough(measured, lambda got: got["messages_per_s"] > 2, 0.3 if size < 1 << 16 else 1.5)
    assert got["megabytes_per_s"] == pytest.approx(got["messages_per_s"] * size / 1e6, rel=0.01, abs=0.001), "as rounded"
    assert got["latency"]["p50_us"] <= got["latency"]["p99_us"] <= got["latency"]["max_us"] * 1.01
    assert got["cpu"]["clients_cores"] > 0 and got["cpu"]["daemons_s_per_million"] > 0
    assert relay.flags == {0, 1}, "JOIN carries level preack only; SEND asks for no report"


def test_levels_go_into_join_and_send(relay: Relay) -> None:
    assert measure(relay, replace(CELL, level="ack"))["ok"]
    assert relay.flags == {0, 2}


def test_one_at_a_time_has_one_message_in_flight(relay: Relay) -> None:
    waiting = 0

    def watch(member: int, place: int, message: bytes) -> list[bytes]:
        nonlocal waiting
        waiting = max(waiting, place)
        return [message]

    relay.tamper = watch
    got = measure(relay, replace(CELL, mode="closed", seconds=0.2))
    assert got["ok"], got["problems"]
    # in flight never more than one: the time of all round trips fills the window
    per_message = 1e6 / got["messages_per_s"]
    assert got["round_trip_p50_us"] < 1.5 * per_message


def test_rate_offers_a_thousand_messages_per_second_in_turns(relay: Relay) -> None:
    got = undisturbed(
        lambda: measure(relay, replace(CELL, mode="rate", seconds=1.0)),
        lambda got: got["messages_per_s"] == pytest.approx(1000, rel=0.1),
    )
    assert got["latency_from_due"]["p50_us"] >= 0
    assert got["round_trip_p50_us"] is None


def test_idle_sends_nothing(relay: Relay) -> None:
    got = measure(relay, replace(CELL, mode="idle", seconds=0.2))
    assert got["ok"] and relay.order == 0
    assert got["cpu"]["daemons_s_per_million"] is None
    assert got["cpu"]["clients_cores"] < 0.2


def test_only_the_senders_asked_for_send(relay: Relay) -> None:
    ids = set()

    def watch(member: int, place: int, message: bytes) -> list[bytes]:
        ids.add(struct.unpack_from("=H", message, 4)[0])
        return [message]

    relay.tamper = watch
    assert measure(relay, replace(CELL, senders=2))["ok"]
    assert ids == {1, 2}


def lose(member: int, place: int, message: bytes) -> list[bytes]:
    return [] if member == 2 and place == 57 else [message]


def repeat(member: int, place: int, message: bytes) -> list[bytes]:
    return [message, message] if member == 0 and place == 57 else [message]


def truncate(member: int, place: int, message: bytes) -> list[bytes]:
    return [message[:-1]] if member == 0 and place == 9 else [message]


def damage(member: int, place: int, message: bytes) -> list[bytes]:
    seq = struct.unpack_from("=Q", message, 8)[0]
    return [message[:40] + b"?" + message[41:]] if member == 0 and seq == 0 else [message]


def foreign(member: int, place: int, message: bytes) -> list[bytes]:
    return [message, b"not one of ours, but long enough to have a header"] if member == 0 and place == 3 else [message]


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lose, "'seq': 1"),
        (repeat, "'seq': 1"),
        (truncate, "'size': 1"),
        (damage, "'body': "),
        (foreign, "'foreign': 1"),
    ],
)
def test_a_cheating_system_fails_the_cell(relay: Relay, tamper: Tamper, says: str) -> None:
    relay.tamper = tamper
    got = caught(relay)
    assert says in "; ".join(got["problems"])


def test_a_different_order_at_one_station_fails_the_cell(relay: Relay) -> None:
    """Two messages of different senders swapped: each sender's sequence is complete and in order at every station."""
    held: list[bytes] = []
    done = False

    def cross(member: int, place: int, message: bytes) -> list[bytes]:
        nonlocal done
        if member != 1 or place < 50 or done:
            return [message]
        if struct.unpack_from("=H", message, 4)[0] == 1:
            held.append(message)
            return []
        done = bool(held)
        return [message, *held]

    relay.tamper = cross
    got = caught(relay, replace(CELL, mode="rate"))  # senders alternate
    assert "the sequences differ" in "; ".join(got["problems"])


def test_a_connection_that_breaks_is_reported_with_its_station(relay: Relay) -> None:
    relay.cut_at = 200
    got = caught(relay, replace(CELL, drain_s=0.3))
    assert any("the connection broke" in p for p in got["problems"])


def test_what_never_arrives_ends_the_cell_at_its_deadline(relay: Relay) -> None:
    relay.tamper = lambda member, place, message: [] if place >= 50 else [message]
    begin = time.monotonic()
    got = caught(relay, replace(CELL, drain_s=0.3))
    in_time(time.monotonic() - begin < 60, "the end")
    assert got["problems"] == ["not all messages had arrived 0.3 s after the window"]


def test_a_refusal_is_passed_on_in_the_daemons_words(relay: Relay) -> None:
    relay.refuse = {"code": "busy", "message": "256 clients are enough"}
    with pytest.raises(BenchError, match="256 clients are enough"):
        measure(relay)


def test_a_client_that_dies_is_named() -> None:
    argv = [sys.executable, "-c", "import sys; sys.stderr.write('no such luck'); sys.exit(1)"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    client = Client(2, process)
    try:
        with pytest.raises(BenchError, match="client 2 ended before READY: no such luck"):
            client.line("READY", time.monotonic() + 60)
    finally:
        client.end(0.5)


def test_silence_ends_at_the_deadline_and_the_process_is_ended() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    client = Client(1, process)
    try:
        with pytest.raises(BenchError, match="no READY in time"):
            client.line("READY", time.monotonic() + 0.05)
    finally:
        client.end(0.5)
    assert process.poll() is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--size", "32"],
        ["--size", "16777217"],
        ["--id", "4", "--stations", "3"],
        ["--senders", "2", "--stations", "1"],
        ["--mode", "idle", "--senders", "1"],
        ["--mode", "sideways"],
        ["--mode", "rate", "--rate", "0"],
        ["--inflight", "0"],
        ["--level", "3"],
        ["--stations", "65"],
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([*worker("load"), *arguments], capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (2, b"load: wrong arguments\n")


def test_the_client_ends_with_its_parent(relay: Relay, tmp_path: Path) -> None:
    """A bench that is killed leaves no client behind."""
    argv = [*worker("load"), *CELL.client_arguments(1), "--target", str(relay.path)]
    script = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({argv!r}, stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    deadline = time.monotonic() + 60
    while not relay.members:
        in_time(time.monotonic() < deadline, "the client has joined")
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except OSError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the client still runs")


@given(st.integers(0, 2**63))
def test_histogram_slots_are_off_by_less_than_a_percent(value: int) -> None:
    slot = load.lib.zl_slot_of(value)
    assert abs(load.lib.zl_value_of(slot) - value) <= max(0, value * 0.008)
    assert load.lib.zl_slot_of(load.lib.zl_value_of(slot)) == slot


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_histogram_slots_keep_the_order(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert load.lib.zl_slot_of(low) <= load.lib.zl_slot_of(high)


def test_cpu_time_is_exact_and_zero_for_nobody() -> None:
    before = cpu_ns(os.getpid())
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert cpu_ns(os.getpid()) - before >= 19_000_000
    assert cpu_ns(2**22 + 1) == 0


# Verdicts


def result(station: int, **changes: Any) -> dict[str, Any]:
    base = {
        "id": station,
        "broken": False,
        "events": [],
        "bad": {"seq": 0, "size": 0, "body": 0, "foreign": 0},
        "ends": 3,
        "digest": "aa",
        "delivered": 30,
        "sent": 10,
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"digest": "bb"}, "the sequences differ"),
        ({"delivered": 29}, "the sequences differ"),
        ({"ends": 2}, "not all messages had arrived"),
        ({"sent": 11}, "not every message sent was delivered"),
        ({"broken": True, "events": ["error x"]}, "station 2: the connection broke: error x"),
    ],
)
def test_verdicts(changes: dict[str, Any], says: str | None) -> None:
    found = problems(CELL, [result(1), result(2, **changes), result(3)])
    assert found == [] if says is None else says in found[0]


# Plan and tables


def test_a_disturbed_cell_is_run_again_and_the_quietest_run_counts() -> None:
    def runs(*foreign: float | None) -> Callable[[], dict[str, Any]]:
        left = iter(foreign)

        def run() -> dict[str, Any]:
            cores = next(left)
            return {"ok": cores is not None, "cpu": {"foreign_cores": cores}}

        return run

    plan = Plan(tries=3, quiet_cores=0.2)
    assert plan_module.quietest(plan, runs(0.1)) == {"ok": True, "cpu": {"foreign_cores": 0.1}, "tries": 1}
    assert plan_module.quietest(plan, runs(0.9, 0.2))["tries"] == 2
    assert plan_module.quietest(plan, runs(0.9, 0.4, 0.6)) == {"ok": True, "cpu": {"foreign_cores": 0.4}, "tries": 3}
    assert plan_module.quietest(plan, runs(0.9, None)) == {"ok": False, "cpu": {"foreign_cores": None}, "tries": 2}


def test_every_system_runs_every_cell_and_they_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    class NoLab:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.numbers: dict[int, Any] = {}

        def __enter__(self) -> NoLab:
            return self

        def __exit__(self, *args: object) -> None:
            pass

        def set_loss(self, fraction: float) -> None:
            pass

    class Fake:
        peer = False

        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None:
            calls.append((self.name, 0))

        def stop(self) -> None:
            pass

        def version(self) -> str:
            return ""

        def level(self, cell: Cell) -> str:
            return cell.level

    def window(system: Fake, cell: Cell) -> Any:
        raise BenchError("nothing there")

    monkeypatch.setattr(plan_module, "Lab", NoLab)
    monkeypatch.setattr(plan_module, "Zenjun", lambda lab: Fake("zenjun"))

    class FakeCorosync(Fake):
        def __init__(self, lab: Any, real_time: bool, **_: Any) -> None:
            super().__init__(f"corosync {real_time}")

        @staticmethod
        def build_client(folder: Path) -> Path:
            return folder

    monkeypatch.setattr(plan_module, "Corosync", FakeCorosync)
    monkeypatch.setattr(plan_module, "Raw", lambda lab: Fake("raw"))

    class FakeFloor(Fake):
        def __init__(self, lab: Any, folder: Path) -> None:
            super().__init__("floor")

    monkeypatch.setattr(plan_module, "Floor", FakeFloor)
    monkeypatch.setattr(plan_module, "run_window", window)
    lines: list[dict[str, Any]] = []
    plan = Plan(peers=("corosync",), raw=True, floor=True, repeat=2, losses=(0.0, 0.01))
    plan_module.run(plan, lines.append)
    assert len(lines) == plan.cells()
    assert all(line["problems"] == ["nothing there"] and not line["ok"] for line in lines)
    ours = [line for line in lines if line["system"] == "zenjun"]
    assert {(line["mode"], line["loss"]) for line in ours} >= {("throughput", 0.01), ("rate", 0.0), ("idle", 0.0)}
    assert ("idle", 0.01) not in {(line["mode"], line["loss"]) for line in ours}
    # who begins changes from round to round
    firsts = [calls[0][0], calls[9][0]]
    assert len(set(firsts)) == 2
    assert sum(1 for line in lines if line["system"] == "raw") == 2
    assert {(line["mode"], line["loss"]) for line in lines if line["system"] == "floor"} == {("rate", 0.0), ("closed", 0.0)}


def line(system: str, mode: str, size: int, **figures: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "system": system,
        "version": "1",
        "stations": 3,
        "senders": 3,
        "size": size,
        "mode": mode,
        "loss": 0.0,
        "mtu": 1500,
        "window_s": 1.0,
        "repeat": 1,
        "machine": "m",
        "ok": True,
        "latency": None,
    }
    return {**base, **figures}


def cpu(seconds: float, cores: float = 1.0) -> dict[str, float]:
    return {"daemons_s_per_million": seconds, "daemons_cores": cores}


ROWS = [
    line("zenjun", "throughput", 64, messages_per_s=700_000, cpu=cpu(2.0), frames={"data_per_s": 50_000}),
    line("zenjun", "throughput", 64, messages_per_s=500_000, cpu=cpu(2.0), frames={"data_per_s": 50_000}),
    line("zenjun", "throughput", 64, messages_per_s=600_000, cpu=cpu(2.0), frames={"data_per_s": 50_000}),
    line("corosync", "throughput", 64, messages_per_s=50_000, cpu=cpu(5.0)),
    line("corosync-no-rr", "throughput", 64, messages_per_s=100_000, cpu=cpu(9.0)),
    line("zenjun", "throughput", 64, loss=0.01, messages_per_s=300_000, cpu=cpu(2.0)),
    line("corosync", "throughput", 64, loss=0.01, messages_per_s=1_000, cpu=cpu(5.0)),
    line(
        "zenjun", "throughput", 65536, messages_per_s=4_000, megabytes_per_s=262.0, cpu=cpu(2.0), frames={"data_per_s": 190_000}
    ),
    line("corosync", "throughput", 65536, messages_per_s=1_000, megabytes_per_s=65.5, cpu=cpu(5.0)),
    line("zenjun", "closed", 64, senders=1, round_trip_p50_us=90.0, cpu=cpu(1.0)),
    line("corosync", "closed", 64, senders=1, round_trip_p50_us=200.0, cpu=cpu(1.0)),
    line("zenjun", "rate", 64, loss=0.01, latency={"p50_us": 100.0, "p99_us": 21_000.0, "p999_us": 30_000.0}, cpu=cpu(1.0, 0.1)),
    line("raw", "throughput", 1500, frames_per_s=350_000, frames={"data_per_s": 350_000}),
]


def test_aims_compare_with_the_best_peer_of_each_figure() -> None:
    found = {a.what: a for a in aims(Results(ROWS), 3)}
    throughput = found["throughput, 64 B"]
    assert (throughput.ours, throughput.reached, throughput.met) == ("600,000 msg/s", "6.00 ×", True)
    assert "corosync-no-rr" in throughput.other
    work = found["daemons' CPU per million messages, 64 B"]
    assert (work.reached, work.met) == ("0.40 ×", False)
    assert "(corosync)" in work.other
    assert found["throughput, 64 KiB"].met and "MB/s" in found["throughput, 64 KiB"].ours
    assert found["one at a time, p50, 64 B"].met
    kept = found["throughput kept at 1.00% loss, 64 B"]
    assert (kept.reached, kept.met, kept.other) == ("50.0%", False, "2.0% (corosync)")
    late = found["p99 latency at 1,000 msg/s and 1.00% loss, 64 B"]
    assert (late.reached, late.met) == ("21 ms", False)
    assert found["data frames/s against bare AF_PACKET, 64 B"].met is False
    assert found["data frames/s against bare AF_PACKET, 64 KiB"].met is True


def test_tables_show_every_cell_and_name_machine_and_command() -> None:
    text = render(ROWS, "zenjun bench --table")
    assert "zenjun bench --table" in text and "Machine: m." in text
    assert text.count("\n| throughput |") == 8
    assert "**missed**" in text and "| met |" in text
    widths = {row.count("|") for row in text.splitlines() if row.startswith("| throughput |")}
    assert len(widths) == 1
    assert render([]) == "No cells.\n"


def test_failed_cells_are_marked_and_do_not_break_the_tables() -> None:
    row = line("zenjun", "throughput", 64, ok=False)
    text = render([row])
    assert "1, 1 failed" in text


@given(st.floats(0, 1e9))
def test_numbers_are_short(value: float) -> None:
    assert len(number(value)) <= 13
    assert number(None) == "–"


def test_markdown() -> None:
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |\n"


# Failover


class Mortal(OneMachine):
    """A system whose third station can be killed: deliveries stop for ``dead_s``, and it is back ``back_s`` after its start."""

    name = "mortal"
    dead_s, back_s = 0.2, 0.1
    """A timer of the relay may be late, and so may be who measures; neither is early."""
    returns: tuple[int, ...] = (1, 2, 3)

    def kill(self, station: int) -> None:
        assert station == STATIONS
        self.relay.later(0, self.relay.hold)
        self.relay.later(self.dead_s, self.told)

    def told(self) -> None:
        self.relay.silent_one_died()
        self.relay.release()

    def restart(self, station: int) -> None:
        assert station == STATIONS
        self.relay.later(self.back_s / 2, lambda: self.relay.stations([1, 2]))
        self.relay.later(self.back_s, lambda: self.relay.stations(list(self.returns)))


def fail_over(relay: Relay) -> dict[str, Any]:
    system = Mortal(relay)
    try:
        return failover_module.measure(cast(System, system), Failover(STATIONS).cell())
    finally:
        assert all(p.poll() is not None for p in system.spawned), "measure left a client behind"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("STEADY_S", 0.3), ("SETTLE_S", 0.1), ("TOLD_S", 15.0), ("BACK_S", 15.0), ("WARM_S", 0.1)):
        monkeypatch.setattr(failover_module, name, seconds)


@pytest.mark.usefixtures("hasty")
def test_failover_measures_what_the_survivors_are_told_and_how_long_deliveries_stop(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds, so that what a busy machine adds is not taken for what is measured."""
    monkeypatch.setattr(Mortal, "dead_s", 2.0)
    monkeypatch.setattr(Mortal, "back_s", 1.0)
    got = fail_over(relay)
    assert got["ok"], got["problems"]
    assert got["told_ms"] >= 2000 and len(got["told_ms_by_station"]) == 2
    # from the last delivery before the kill to the first after the release
    assert got["gap_ms"]["killed"] >= 1900
    assert got["back_ms"] >= 1000, "views without the station do not count"
    in_time(max(got["told_ms"], got["gap_ms"]["killed"]) < 3500 and got["back_ms"] < 2500, str(got))
    in_time(got["gap_ms"]["before"] < 1500 and got["gap_ms"]["restarted"] < 1500, str(got))
    assert got["delivered"] == relay.order - 2, "the END markers of two senders are no messages"
    assert any("host" in e for e in got["events"])


@pytest.mark.usefixtures("hasty")
def test_a_survivor_that_is_removed_is_named(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: Mortal) -> None:
        relay.silent_one_died()
        first = next(m for m in relay.members)
        first.write(relay.frame(68, {"event": "expelled", "instance": 8, "reason": "x"}, handle=0))
        relay.release()

    monkeypatch.setattr(Mortal, "told", told)
    got = fail_over(relay)
    assert not got["ok"] and len(got["problems"]) == 1 and "was removed though it was alive" in got["problems"][0]


@pytest.mark.usefixtures("hasty")
def test_survivors_that_differ_fail_the_run(relay: Relay) -> None:
    relay.tamper = lambda member, place, message: [] if member < 2 and place == 300 else [message]
    got = fail_over(relay)
    assert not got["ok"] and any("wrong messages" in p for p in got["problems"])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("attribute", "value", "says"), [("dead_s", 60.0, "no GROUP"), ("returns", (1, 2), "no STATIONS")])
def test_what_is_never_told_ends_at_its_deadline(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, says: str
) -> None:
    monkeypatch.setattr(Mortal, attribute, value)
    monkeypatch.setattr(failover_module, {"dead_s": "TOLD_S", "returns": "BACK_S"}[attribute], 1.0)
    with pytest.raises(BenchError, match=f"client 1: {says} in time"):
        fail_over(relay)


def test_the_lowest_setting_is_a_valid_configuration(tmp_path: Path) -> None:
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"name": "x", "stations": 3, **failover_module.FAST["cluster"]},
        "station": {"id": 1, "interface": "eth0", **failover_module.FAST["station"]},
    }
    file = tmp_path / "z.toml"
    file.write_text(to_toml(tables))
    assert load_config(file).cluster.fail_timeout_ms == 30


def killed(system: str, told: float, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "bench": "failover", "system": system, "version": "v", "stations": 3, "rate": 1000.0, "size": 64, "machine": "m",
        "repeat": 1, "told_ms": told, "back_ms": 900.0, "gap_ms": {"before": 2.0, "killed": told, "restarted": 3.0},
        "ok": True, "problems": [],
    }  # fmt: skip
    return {**row, **changes}


def test_failover_table(tmp_path: Path) -> None:
    broken = {k: v for k, v in killed("zenjun", 0, ok=False).items() if k not in ("told_ms", "back_ms", "gap_ms")}
    rows = [killed("corosync", 8000.0), killed("zenjun", 400.0), killed("zenjun", 500.0), killed("zenjun", 420.0), broken]
    text = failover_module.render(rows)
    assert "| zenjun | 3 | 420 (400–500) | 420 (400–500) | 900 (900–900) | 3 (3–3) | 2 (2–2) | 4, 1 failed |" in text
    assert text.index("| zenjun |") < text.index("| corosync | 3 | 8,000 | 8,000 | 900 | 3 | 2 | 1 |")
    assert failover_module.render([broken]).count("–") >= 5 and failover_module.render([]) == "No runs.\n"
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in [*rows, *ROWS]))
    done = CliRunner().invoke(bench, ["table", str(file)])
    assert done.exit_code == 0 and "throughput, 64 B" in done.output and "death told" in done.output


# Command line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "10"], "each must be between 33"),
        (["--size", "x"], "not a list of whole numbers"),
        (["--loss", "60%"], "between 0% and 50%"),
        (["--loss", "much"], "percentages like 1%"),
        (["--mode", "fast"], "each must be one of throughput"),
        (["--senders", "4"], "from 1 to 3"),
        (["--option", "window"], "table.option=value"),
        (["--raw", "-n", "9"], "at most 8 stations"),
        (["--peers", "spread"], "each must be one of corosync"),
        (["failover", "-n", "2"], "3<=x<=16"),
        (["failover", "--peers", "spread"], "each must be one of corosync"),
        (["failover", "--rate", "1"], "10<=x<=100000"),
        (["failover", "--option", "x"], "table.option=value"),
    ],
)
def test_wrong_options_say_what_is_allowed(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
    assert says in done.output


def test_the_table_command_reads_saved_lines(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    done = CliRunner().invoke(bench, ["table", str(file)])
    assert done.exit_code == 0
    assert "throughput, 64 B" in done.output
    file.write_text("{}\nnonsense\n")
    done = CliRunner().invoke(bench, ["table", str(file)])
    assert done.exit_code == 1
    assert "line 2" in done.output
