"""What each program loads at its start, which is most of what a start costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    line = [sys.executable, "-c", f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(line, capture_output=True, text=True, timeout=240, check=True).stdout))


def test_the_daemon_loads_of_pyroute2_what_it_uses() -> None:
    found = loaded("import zenjun.daemon.__main__")
    assert "zenjun.daemon.netlink" in found and not [name for name in found if name.startswith("pyroute2")]


def test_the_whole_of_pyroute2_can_be_had_as_well() -> None:
    """Before and after, and what the daemon has of it goes on working."""
    look = "m = LinkMonitor('lo', lambda change: None); m.look(); m.close(); assert m.tracker.link and m.tracker.link.index == 1"
    for before, after in (("from pyroute2 import IPRoute", "pass"), ("pass", "from pyroute2 import IPRoute")):
        code = f"{before}\nfrom zenjun.daemon.netlink import LinkMonitor\n{after}\n{look}\n"
        found = loaded(code + "with IPRoute() as ip: assert ip.get_links('all')[0].get_attr('IFLA_IFNAME') == 'lo'")
        assert "pyroute2.iproute" in found


@pytest.mark.parametrize("program", ["directory", "database", "corosync"])
def test_programs_beside_the_daemon_do_not_load_it(program: str) -> None:
    found = loaded(f"import zenjun.daemon.{program}.__main__")
    assert not found & {"zenjun.daemon.__main__", "zenjun.proto.engine", "zenjun.daemon.netlink"}
