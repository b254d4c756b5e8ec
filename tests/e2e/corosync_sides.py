"""The same calls at a node of three, on stand-ins and on corosync: ``python -m tests.e2e.corosync_sides``.

Calls ``tests.daemon.corosync_calls`` with Debian's libraries at node 1 of each, and prints what differs, each line with the side
that has it: ``-`` corosync, ``+`` the stand-in. Exit code 1: something differs that is not in ``OTHERWISE`` of
``tests/daemon/test_corosync_calls.py``.
"""

from __future__ import annotations

import difflib
import json
import sys

from ..daemon.test_corosync_calls import OTHERWISE
from .pacemaker_common import Stack, nodes_of, wait_for


def answers(stack: Stack) -> list[str]:
    with nodes_of(3, stack, pacemaker=False, options={"fail_timeout_ms": 2000}) as up:
        for node in up.lab.stations:
            wait_for(lambda node=node: "Nodes:            3" in up.run(node, "corosync-quorumtool").stdout, "a ring")  # type: ignore[misc]
        done = up.run(1, sys.executable, "-m", "tests.daemon.corosync_calls", timeout_s=200)
        assert done.returncode == 0, done.stderr + up.words()
        return done.stdout.splitlines()


def main() -> int:
    wanted = answers("corosync")
    expected = [json.dumps(OTHERWISE[line][0]) if line in OTHERWISE else line for line in wanted]
    found = answers("zenjun")
    differs = list(difflib.unified_diff(expected, found, "corosync", "stand-in", lineterm="", n=0))
    print(
        "\n".join(differs) or f"{len(found)} results and events at three nodes, {len(OTHERWISE)} of them otherwise for a reason"
    )
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
