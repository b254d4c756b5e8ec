"""DLM and sbd above stand-ins for corosync, in two User-Mode Linux guests: ``python -m tests.uml.dlm``, as root, by hand.

Debian's dlm_controld, dlm_tool and sbd, unchanged, and dlm.ko and softdog.ko of Debian's user-mode-linux. Both nodes join a
lockspace; one guest is killed; the other must wait for its fencing, and go on after ``dlm_tool fence_ack``. Then sbd watches the
stand-in, which is killed: the watchdog must end the guest. Prints what happened. Exit code 1: something else did. Needs apt, and
Debian's Pacemaker in ``.venv/pacemaker`` (``tests/corosync-packages``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from .. import corosyncs
from ..e2e.pacemaker_common import ONE

PACKAGES: Final = "dlm-controld libdlm3 libdlmcontrol3 sbd libpils2 libplumb2 libstonith1 liblrm2".split()  # noqa: SIM905
GUEST: Final = Path(__file__).with_name("dlm_guest.sh")
DEADLINE_S: Final = 400.0
CONF: Final = "totem {{\n  version: 2\n  cluster_name: dlm\n  transport: udpu\n}}\nquorum {{\n  provider: corosync_votequorum\n  two_node: 1\n}}\nnodelist {{\n{}\n}}\n"  # noqa: E501
ZENJUND: Final = """[cluster]
name = "dlm"
stations = 2
heartbeat_ms = 200
fail_timeout_ms = 2000
[station]
id = @node@
interface = "eth0"
socket = "/run/z/zenjund.sock"
state_dir = "/run/z/state"
"""


class Guests:
    """Two of them, on a bridge in this process's network namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernels: dict[int, subprocess.Popen[bytes]] = {}
        self.asked = 0

    def prepare(self) -> None:
        debs, unpacked = self.folder / "debs", self.folder / "packages"
        debs.mkdir()
        subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", *PACKAGES], cwd=debs, check=True, timeout=200)
        for deb in debs.iterdir():
            subprocess.run(["dpkg-deb", "-x", deb, unpacked], check=True)
        found = [unpacked, corosyncs.pacemaker()]
        libraries = sorted(
            {str(path.parent) for top in found for path in top.rglob("lib*.so.*") if "heartbeat" not in path.parts}
        )
        programs = [str(top / "usr" / "sbin") for top in found]
        path = ":".join([*programs, str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        names = {"PATH": path, "PYTHONPATH": os.environ["PYTHONPATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        lines = [f"export {name}={value}" for name, value in names.items()] + [f"libraries={':'.join(libraries)}"]
        (self.folder / "environment").write_text("\n".join(lines) + "\n")
        (self.folder / "corosync.conf").write_text(CONF.format("\n".join(ONE.format(node) for node in (1, 2))))
        (self.folder / "zenjund.toml").write_text(ZENJUND)

    def start(self) -> None:
        subprocess.run("ip link add br0 type bridge && ip link set br0 up", shell=True, check=True)
        for node in (1, 2):
            tap = f"ip tuntap add dev tap{node} mode tap && ip link set tap{node} master br0 up"
            subprocess.run(tap, shell=True, check=True)
            arguments = f"mem=700M rootfstype=hostfs ro init={GUEST} node={node} shared={self.folder} tree={corosyncs.ROOT} quiet"
            arguments += f" loglevel=3 panic=-1 uml_dir={self.folder} umid=guest{node} con=null con0=null,fd:1"
            arguments += f" vec0:transport=tap,ifname=tap{node},depth=128,gro=0"
            console = (self.folder / f"console{node}.log").open("wb")
            environment = {"PATH": os.defpath, "HOME": str(self.folder), "TMPDIR": "/dev/shm"}
            self.kernels[node] = subprocess.Popen(
                ["linux.uml", *arguments.split()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                start_new_session=True,
            )
        for node in (1, 2):
            self.wait((self.folder / f"ready{node}").exists, f"node {node} has DLM")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            ended = [node for node, kernel in self.kernels.items() if kernel.poll() not in (None, -signal.SIGKILL)]
            if condition():
                return
            if ended or time.monotonic() > deadline:
                why = f"guest {ended[0]} has ended" if ended else f"not within {DEADLINE_S:g} s"
                raise SystemExit(f"{why}: {what}; logs: {self.folder}")
            time.sleep(0.2)

    def run(self, node: int, command: str) -> str:
        """In a guest, with Debian's libraries; what it says."""
        self.asked += 1
        path = self.folder / f"do{node}.{self.asked:02}.sh"
        path.with_suffix(".new").write_text(command + "\n")
        path.with_suffix(".new").rename(path)
        self.wait(path.with_suffix(".done").exists, command)
        return path.with_suffix(".out").read_text(errors="replace")

    def kill(self, node: int) -> None:
        """With all that runs in it."""
        os.killpg(self.kernels[node].pid, signal.SIGKILL)
        self.kernels[node].wait(20)

    def close(self) -> None:
        for node, kernel in self.kernels.items():
            if kernel.poll() is None:
                self.kill(node)


def joined(guests: Guests, node: int, command: str) -> bool:
    return "test" in guests.run(node, command)


def play(guests: Guests) -> None:
    for node in (1, 2):  # dlm_controld answers before it takes a join
        join = "dlm_tool ls | grep -q test || timeout 60 dlm_tool join test; dlm_tool ls"
        guests.wait(partial(joined, guests, node, join), f"node {node} joins a lockspace")
    guests.wait(lambda: "members       1 2" in guests.run(1, "dlm_tool ls"), "a lockspace of both")
    print("both nodes are in the lockspace", flush=True)
    guests.kill(2)
    guests.wait(lambda: "wait fencing" in guests.run(1, "dlm_tool ls"), "node 1 waits for the fencing of node 2")
    print("node 2 was killed: node 1 waits for its fencing", flush=True)
    began = time.monotonic()
    guests.run(1, "dlm_tool fence_ack 2")

    def alone() -> bool:
        said = guests.run(1, "dlm_tool ls")
        return "wait fencing" not in said and "members       1 \n" in said

    guests.wait(alone, "node 1 goes on alone")
    print(f"after dlm_tool fence_ack node 1 went on, {time.monotonic() - began:.1f} s", flush=True)
    guests.run(1, "setsid sbd -P -w /dev/watchdog1 -n node1 watch </dev/null >/dev/null 2>&1 & sleep 8")
    guests.wait(lambda: "sbd:cluster" in guests.run(1, "corosync-cpgtool"), "sbd's watcher in its process group")
    print("sbd watches the stand-in", flush=True)
    guests.run(1, "pkill -KILL -f zenjun.daemon.corosync")
    console = guests.folder / "console1.log"
    guests.wait(lambda: b"Initiating system reboot" in console.read_bytes(), "the watchdog ends node 1")
    print("the stand-in was killed: the watchdog has ended node 1", flush=True)


def main(argv: list[str]) -> int:
    if not argv:
        made = Guests(Path(tempfile.mkdtemp(prefix="zenjun-dlm-")))
        made.prepare()  # outside of the namespace: it fetches packages
        again = ["unshare", "--net", sys.executable, "-m", "tests.uml.dlm", str(made.folder)]
        return subprocess.run(again, check=False).returncode
    guests = Guests(Path(argv[0]))
    try:
        guests.start()
        play(guests)
    finally:
        guests.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
