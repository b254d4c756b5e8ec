"""A program that was cut off for not reading learns why, however late: by both clients, by `zenjun recv`, when sending."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from zenjun.daemon.client import SlowReceiver, connect

from .cluster import Program, cluster, datapath, wait_for
from .daemon_common import program

pytestmark = pytest.mark.lab

LATE_S = 6.0
"""Longer than the daemon waits for those who say goodbye (5 s)."""


def test_a_slow_receiver_learns_why_whenever_it_reads() -> None:
    with (
        cluster(2, options={"clients": {"queue_bytes_max": 1 << 18}}) as lab,
        program(lab.station(2), "sender") as sender,
        asyncio.Runner() as runner,
    ):
        station = lab.station(1)
        command = [str(Path(sys.executable).with_name("zenjun")), "recv", "-g", "g", "--socket", str(station.socket_path)]
        stopped = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            reader = Program(station, {"g": "preack"}, "reader")
            writer = Program(station, {"g": "preack"}, "writer")

            async def join() -> object:
                return await (await connect(str(station.socket_path), name="async")).join("g")

            many = sender.join("g", receive=False, no_self=True)
            group = runner.run(join())
            with program(station) as observer:
                wait_for(lambda: len(observer.members("g")) == 5, "all have joined")
            stopped.send_signal(signal.SIGSTOP)
            many.send_many([b"%06d" % k + bytes(5000) for k in range(400)])
            wait_for(lambda: datapath(station)["slow_disconnects"] == 4, "they are cut off")
            time.sleep(LATE_S)
            stopped.send_signal(signal.SIGCONT)
            _, error = stopped.communicate(timeout=60)
            assert stopped.returncode == 5 and b"the limit (queue_bytes_max) is 262144" in error, error
            with pytest.raises(SlowReceiver, match="queue_bytes_max"):
                reader.read_messages("g", 400, 10)
            numbers = [int(m.data[:6]) for m in reader.messages("g")]
            assert numbers == list(range(len(numbers))) and len(numbers) < 400, "what came before is whole"
            with pytest.raises(SlowReceiver, match="queue_bytes_max"):
                writer.groups["g"].send(b"what has become of me?", timeout=10)

            async def read() -> None:
                while True:
                    await group.recv_items(timeout=10)  # type: ignore[attr-defined]

            with pytest.raises(SlowReceiver, match="queue_bytes_max"):
                runner.run(read())
        finally:
            if stopped.poll() is None:
                stopped.kill()
                stopped.wait()
