"""A stand-in without zenjund, alone on node 1, and what is run beside it.

``python -m tests.daemon.corosync_alone FOLDER COMMAND…``, in namespaces of its own (``corosyncs.alone``). The stand-in's log is
FOLDER/log. The exit code is the command's, or 99 if the stand-in does not start or does not end in order.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from zenjun.daemon.corosync.ipc import owner

ZENJUND: Final = """[cluster]
name = "lab"
stations = 1
[station]
id = 1
interface = "eth0"
socket = "{0}/z.sock"
state_dir = "{0}/state"
"""
COROSYNC: Final = """totem {
  version: 2
  cluster_name: lab
  transport: udpu
}
quorum {
  provider: corosync_votequorum
}
logging {
  to_stderr: yes
}
nodelist {
  node {
    ring0_addr: 127.0.0.1
    name: node1
    nodeid: 1
  }
}
"""
WAIT_S: Final = 60.0


def command(folder: Path) -> list[str]:
    """The stand-in's command line; its files are made."""
    (folder / "z.toml").write_text(ZENJUND.format(folder))
    if not (folder / "corosync.conf").exists():
        (folder / "corosync.conf").write_text(COROSYNC)
    config = ["--config", str(folder / "z.toml"), "--corosync-conf", str(folder / "corosync.conf")]
    return [sys.executable, "-m", "zenjun.daemon.corosync", *config]


def main(folder: Path, argv: list[str]) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with (folder / "log").open("ab") as log:
        standin = subprocess.Popen(command(folder), stdout=log, stderr=log)
    deadline = time.monotonic() + WAIT_S
    while owner("votequorum") != standin.pid:
        if standin.poll() is not None or time.monotonic() > deadline:
            return 99
        time.sleep(0.02)
    code = subprocess.run(argv, check=False).returncode
    standin.terminate()
    return code if standin.wait(WAIT_S) == 0 else 99


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
