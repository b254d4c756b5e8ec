"""Nodes with Debian's Pacemaker, unchanged, above stand-ins for corosync or above corosync itself.

A node is a station of a lab with mount, UTS, IPC and pid namespaces of its own. Its root is the machine's with the unpacked
packages above it (``corosyncs.pacemaker``); what it writes is in memory. Everything of a node is in its pid namespace: when the
first process is killed, nothing of the node goes on, as with a machine that loses power.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pytest
from zenjun.tools.lab import Lab, Station

from .. import corosyncs

Stack: TypeAlias = Literal["zenjun", "corosync"]
DEADLINE_S: Final = 120.0
STATE: Final = "/var/lib/pacemaker/dummy.state"
"""There while the Dummy runs at the node."""
LOG: Final = "/var/log/pacemaker/pacemaker.log"
USER: Final = 890
"""Pacemaker's own, hacluster, and its group."""

NODE: Final = r"""
set -eu
mount --make-rprivate /
over=$1/node lab=$2 packages=$3
mkdir -p "$over"
mount -t tmpfs tmpfs "$over"
mkdir -p "$over/lab" "$over/etc" "$over/etc.work" "$over/var" "$over/var.work"
mount --bind "$lab" "$over/lab"
mount -t overlay -o "lowerdir=$packages/usr:/usr" overlay /usr
mount -t overlay -o "lowerdir=$packages/etc:/etc,upperdir=$over/etc,workdir=$over/etc.work" overlay /etc
mount -t overlay -o "lowerdir=$packages/var:/var,upperdir=$over/var,workdir=$over/var.work" overlay /var
at=$over/lab
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p "$lab"
[ -e "$lab/lock" ] || mount --bind "$at" "$lab"
hostname "node$4"
grep -q ^haclient: /etc/group || echo "haclient:x:$5:" >>/etc/group
grep -q ^hacluster: /etc/passwd || echo "hacluster:x:$5:$5::/var/lib/pacemaker:/usr/sbin/nologin" >>/etc/passwd
mkdir -p /run/lock /run/resource-agents /run/crm /var/lib/corosync /var/log/corosync /var/log/pacemaker /etc/corosync
cd /var/lib/pacemaker
mkdir -p cib pengine cores blackbox
cp "$1/corosync.conf" /etc/corosync/corosync.conf
cp "$1/cib.xml" /var/lib/pacemaker/cib/cib.xml
chown -R hacluster:haclient /var/lib/pacemaker /var/log/pacemaker /run/crm
chmod 600 /var/lib/pacemaker/cib/cib.xml
touch "$1/ready"
while :; do sleep 5 & wait; done
"""
"""Arguments: the station's folder, the lab's, the packages', the node's number, the user's."""
COROSYNC: Final = """totem {{
  version: 2
  cluster_name: lab
  transport: udpu
  {totem}
}}
quorum {{
  provider: corosync_votequorum
  {quorum}
}}
logging {{
  to_stderr: yes
  to_syslog: no
}}
nodelist {{
{nodes}
}}
"""
ONE: Final = "  node {{\n    ring0_addr: 10.77.0.{0}\n    name: node{0}\n    nodeid: {0}\n  }}"
CIB: Final = """<cib crm_feature_set="3.6.0" validate-with="pacemaker-3.0" epoch="1" num_updates="0" admin_epoch="1">
 <configuration>
  <crm_config>
   <cluster_property_set id="o">
    <nvpair id="o1" name="stonith-enabled" value="false"/>
    <nvpair id="o2" name="no-quorum-policy" value="{policy}"/>
    <nvpair id="o3" name="dc-deadtime" value="5s"/>
   </cluster_property_set>
  </crm_config>
  <nodes/>
  <resources>
   <primitive id="d" class="ocf" provider="pacemaker" type="Dummy">
    <instance_attributes id="d1"><nvpair id="d2" name="state" value="{state}"/></instance_attributes>
    <operations><op id="d3" name="monitor" interval="10s"/></operations>
   </primitive>{more}
  </resources>
  <constraints/>
 </configuration>
 <status/>
</cib>
"""


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S, every_s: float = 0.01) -> None:
    """Until the condition is true. Pacemaker's programs, which most conditions start, cost more than a look at a file."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)


class Cluster:
    """Nodes of a lab that run Pacemaker and one Dummy."""

    def __init__(
        self,
        lab: Lab,
        stack: Stack,
        *,
        quorum: str = "",
        totem: str = "",
        policy: str = "stop",
        more: str = "",
        pacemaker: bool = True,
    ) -> None:
        """quorum, totem: lines for those sections of corosync.conf. policy: Pacemaker's without quorum. more: resources beside
        the Dummy, as XML. pacemaker: start it."""
        self.lab, self.stack, self.pacemaker = lab, stack, pacemaker
        self.inits: dict[int, int] = {}
        """The first process of each node that runs, as this process sees it."""
        self.started: list[subprocess.Popen[Any]] = []
        nodes = "\n".join(ONE.format(number) for number in lab.stations)
        for number, station in lab.stations.items():
            (station.directory / "corosync.conf").write_text(COROSYNC.format(quorum=quorum, totem=totem, nodes=nodes))
            (station.directory / "cib.xml").write_text(CIB.format(state=STATE, policy=policy, more=more))
            station.write_config()
            station.run(["ip", "address", "add", f"10.77.0.{number}/24", "dev", "eth0"], check=True)

    def log(self, node: int, name: str) -> Path:
        return self.lab.station(node).directory / f"{name}.log"

    def start(self, *nodes: int) -> None:
        """Switch these nodes on, with everything."""
        for node in nodes:
            station = self.lab.station(node)
            (station.directory / "ready").unlink(missing_ok=True)
            script = ["sh", "-c", NODE, "sh"]
            folders = [str(station.directory), str(self.lab.directory), str(corosyncs.pacemaker())]
            spaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
            with self.log(node, "node").open("ab") as log:
                outer = station.spawn([*spaces, *script, *folders, str(node), str(USER)], stdout=log, stderr=log)
            self.started.append(outer)
            wait_for((station.directory / "ready").exists, f"node {node}")
            self.inits[node] = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
        for node in nodes:
            self._start_stack(self.lab.station(node))
        for node in nodes:
            wait_for(partial(self._serves, node), f"corosync at node {node}")
            if self.pacemaker:
                self.spawn(node, "pacemakerd", "env", f"PCMK_logfile={LOG}", "pacemakerd")

    def _serves(self, node: int) -> bool:
        """corosync's services answer, with quorum or without."""
        return self.run(node, "corosync-quorumtool").returncode in (0, 2)

    def _start_stack(self, station: Station) -> None:
        if self.stack == "corosync":
            self.spawn(station.id, "corosync", "corosync", "-f")
            return
        config = ["--config", str(station.config_path)]
        self.spawn(station.id, "zenjund", sys.executable, "-m", "zenjun.daemon", *config)
        self.spawn(station.id, "corosync", sys.executable, "-m", "zenjun.daemon.corosync", *config)

    def _command(self, node: int, argv: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.inits[node]), "-m", "-u", "-i", "-n", "-p", "-r", "--", *argv]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ.get('PATH', '')}", "LC_ALL": "C"}

    def spawn(self, node: int, name: str, *argv: str) -> subprocess.Popen[Any]:
        """A program in a node, which goes on; what it says is in the node's log of this name."""
        with self.log(node, name).open("ab") as log:
            done = subprocess.Popen(
                self._command(node, argv),
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=corosyncs.ROOT,
                start_new_session=True,
            )
        self.started.append(done)
        return done

    def run(self, node: int, *argv: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A program in a node, to its end."""
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": timeout_s, "check": False}
        return subprocess.run(self._command(node, argv), env=self._environment(), **options)

    def kill(self, node: int) -> None:
        """The node loses power."""
        os.kill(self.inits.pop(node), signal.SIGKILL)

    def holds(self, node: int) -> bool:
        """The Dummy runs there."""
        init = self.inits.get(node)
        return init is not None and Path(f"/proc/{init}/root{STATE}").exists()

    def holders(self) -> list[int]:
        return [node for node in self.lab.stations if self.holds(node)]

    def until_holder(self, among: Sequence[int] | None = None, timeout_s: float = DEADLINE_S) -> int:
        """Wait until exactly one node has the Dummy, and it is one of these; which it is."""
        chosen = list(self.lab.stations) if among is None else list(among)
        wait_for(lambda: len(found := self.holders()) == 1 and found[0] in chosen, f"the Dummy at one of {chosen}", timeout_s)
        return self.holders()[0]

    def monitor(self, node: int) -> str:
        """What crm_mon shows; empty: it cannot be asked."""
        done = self.run(node, "crm_mon", "-1")
        return done.stdout if done.returncode == 0 else ""

    def online(self, node: int) -> list[int]:
        """Nodes that are online, as a node's Pacemaker sees it."""
        for line in self.monitor(node).splitlines():
            words = line.split()
            if "Online:" in words:
                return sorted(int(word[4:]) for word in words if word.startswith("node"))
        return []

    def leader(self, node: int) -> int:
        """The node that decides (DC); 0: there is none."""
        for line in self.monitor(node).splitlines():
            if "Current DC: node" in line:
                return int(line.partition("Current DC: node")[2].split()[0])
        return 0

    def until_online(self, *nodes: int) -> None:
        """Wait until all of these see each other, and one of them decides."""

        def agreed() -> bool:
            return all(self.online(node) == sorted(nodes) and self.leader(node) for node in nodes)

        wait_for(agreed, f"{nodes} online", DEADLINE_S, every_s=0.5)

    def place(self, node: int) -> None:
        """Move the Dummy there, and leave it free to move again."""
        if self.holders() != [node]:
            self.run(node, "crm_resource", "-r", "d", "--move", "--node", f"node{node}")
            self.until_holder([node])
            self.run(node, "crm_resource", "-r", "d", "--clear")
        wait_for(lambda: self.idle(node), "nothing to do for Pacemaker", DEADLINE_S, every_s=0.3)

    def idle(self, node: int) -> bool:
        leader = self.leader(node)
        return bool(leader) and "S_IDLE" in self.run(node, "crmadmin", "-S", f"node{leader}").stdout

    def words(self) -> str:
        """The end of what each process has said."""
        found = []
        for node in self.lab.stations:
            paths = [self.log(node, name) for name in ("node", "zenjund", "corosync", "pacemakerd")]
            if node in self.inits:
                paths.append(Path(f"/proc/{self.inits[node]}/root{LOG}"))
            for path in paths:
                with contextlib.suppress(OSError):
                    lines = path.read_text(errors="replace").splitlines()[-12:]
                    found.append(f"{path.name} of node {node}:\n    " + "\n    ".join(lines))
        return "\n".join(found)


def available() -> None:
    """Skips the test where Pacemaker cannot be run: its daemons change users."""
    corosyncs.pacemaker()
    if os.geteuid() != 0:
        pytest.skip("corosync: Pacemaker needs several users, and this one is not root")


@contextlib.contextmanager
def nodes_of(
    nodes: int,
    stack: Stack,
    *,
    options: dict[str, Any] | None = None,
    station: dict[str, Any] | None = None,
    **conf: Any,
) -> Iterator[Cluster]:
    """Nodes that have been switched on. options, station: of zenjund, in ``[cluster]`` and ``[station]``."""
    with Lab(nodes, options={"cluster": options or {}, "station": station or {}}) as lab:
        up = Cluster(lab, stack, **conf)
        try:
            up.start(*lab.stations)
            yield up
        except BaseException as error:
            error.add_note(up.words())
            raise
        finally:
            for node in list(up.inits):
                up.kill(node)
            for process in up.started:
                process.kill()
                process.wait(20)


@contextlib.contextmanager
def pacemakers(nodes: int, stack: Stack = "zenjun", *, options: dict[str, Any] | None = None, **conf: Any) -> Iterator[Cluster]:
    """A cluster that has started its Dummy."""
    with nodes_of(nodes, stack, options=options, **conf) as up:
        up.until_online(*up.lab.stations)
        up.until_holder()
        yield up


def failover_s(up: Cluster, node: int) -> float:
    """Kill the node that has the Dummy; seconds until another one has it."""
    others = [number for number in up.lab.stations if number != node]
    began = time.monotonic()
    up.kill(node)
    while not any(up.holds(other) for other in others):
        assert time.monotonic() - began < DEADLINE_S, "not taken over\n" + up.words()
        time.sleep(0.002)
    return time.monotonic() - began
