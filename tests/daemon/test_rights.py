"""Capabilities, read back from the kernel in a child process each time, since they cannot be regained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.daemon.rights import CAP_NET_RAW, HOW_TO_GRANT, capabilities

PRELUDE = """
import os, sys
from zenjun.daemon import rights
from zenjun.daemon.rights import *
def status():
    return dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
"""


def in_child(code: str, *, namespace: bool = True) -> list[str]:
    """Lines printed by ``code`` in a fresh interpreter, by default with all capabilities in a user namespace of its own."""
    before = ["unshare", "-Urn"] if namespace else []
    done = subprocess.run(
        [*before, sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode and done.stderr.startswith("unshare:"):
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sets_match_what_the_kernel_shows() -> None:
    shown = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.startswith("Cap"):
            shown[key] = int(value, 16)
    have = capabilities()
    assert (have.effective, have.permitted, have.inheritable) == (shown["CapEff"], shown["CapPrm"], shown["CapInh"])


def test_only_net_raw_is_kept_case_99() -> None:
    lines = in_child("""
take_net_raw()
drop_all_but_net_raw()
s = status()
for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"):
    print(key, s[key])
import socket
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
print("packet socket opens")
try:
    os.setuid(1)
except OSError as exc:
    print("setuid refused")
print(open("/proc/self/status").read().count("Threads:\\t1"))
""")
    only = f"{1 << CAP_NET_RAW:016x}"
    none = f"{0:016x}"
    assert lines == [
        f"CapInh {none}", f"CapPrm {only}", f"CapEff {only}", f"CapBnd {only}", f"CapAmb {none}", "NoNewPrivs 1",
        "packet socket opens", "setuid refused", "1",
    ]  # fmt: skip


def test_an_executed_program_gains_nothing() -> None:
    lines = in_child("""
take_net_raw()
drop_all_but_net_raw()
sys.stdout.flush()
os.execv("/bin/sh", ["sh", "-c", "grep -E 'CapPrm|CapEff' /proc/self/status"])
""")
    assert all(int(line.split()[1], 16) & ~(1 << CAP_NET_RAW) == 0 for line in lines) and len(lines) == 2


def test_missing_right_is_one_line_with_two_ways_to_grant_it() -> None:
    lines = in_child("""
rights._set(Capabilities(0, 0, 0))
try:
    take_net_raw()
except RightsError as exc:
    print(exc)
""")
    assert len(lines) == 1 and "setcap cap_net_raw+ep " in lines[0] and "AmbientCapabilities=CAP_NET_RAW" in lines[0]
    assert "\n" not in HOW_TO_GRANT and "{python}" not in lines[0]


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ("rights._libc.prctl(24, CAP_NET_RAW, 0, 0, 0)", "--cap-add NET_RAW"),  # as docker --cap-drop
        ("rights._libc.prctl(38, 1, 0, 0, 0)", "no-new-privileges"),  # as docker --security-opt
    ],
)
def test_in_a_container_the_engine_has_to_grant_it(taken: str, named: str) -> None:
    """There is no point in setcap or sudo where the bounding set lacks the right, or where nothing can be gained."""
    lines = in_child(f"""
{taken}
rights._set(Capabilities(0, 0, 0))
try:
    take_net_raw()
except RightsError as exc:
    print(exc)
""")
    assert len(lines) == 1 and named in lines[0] and "--cap-add NET_RAW" in lines[0] and "setcap cap_net_raw" not in lines[0]
    assert "AmbientCapabilities=CAP_NET_RAW" in lines[0]


def test_permitted_is_made_effective() -> None:
    lines = in_child("""
have = capabilities()
rights._set(Capabilities(0, have.permitted, 0))
take_net_raw()
print(hex(capabilities().effective))
""")
    assert lines == [hex(1 << CAP_NET_RAW)]


def test_realtime_refused_is_a_reason_not_an_error_case_101() -> None:
    # In a user namespace CAP_SYS_NICE does not reach the scheduler, and RLIMIT_RTPRIO 0 closes the other way.
    lines = in_child("""
import resource
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
have = capabilities()
nice = 1 << CAP_SYS_NICE
rights._set(Capabilities(have.effective & ~nice, have.permitted & ~nice, 0))
print(take_realtime(10))
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
print(take_realtime(1000) is not None)
""")
    assert lines[0] not in ("None", "") and lines[1:] == ["True", "True"]


def test_dropping_without_rights_is_harmless() -> None:
    lines = in_child("""
rights._set(Capabilities(0, 0, 0))
drop_all_but_net_raw()
s = status()
print(int(s["CapPrm"], 16), s["NoNewPrivs"])
""")
    assert lines == ["0 1"]


FILTER = """
import ctypes, errno, platform, struct
def forbid(family):
    # As RestrictAddressFamilies= of systemd: socket() of the family fails with EAFNOSUPPORT.
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    steps = ((0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, family),
             (0x06, 0, 0, 0x00050000 | errno.EAFNOSUPPORT), (0x06, 0, 0, 0x7fff0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())
"""


@pytest.mark.parametrize("family", ["AF_PACKET", "AF_NETLINK", "AF_UNIX"])
def test_a_family_that_is_not_allowed_is_exit_code_4(tmp_path: Path, family: str) -> None:
    """Nothing to restart for: it says what to allow. Before, a missing AF_NETLINK was a bug, and AF_PACKET was tried for ever."""
    (tmp_path / "z.toml").write_text(
        f'[cluster]\nname = "x"\nstations = 1\n[station]\nid = 1\ninterface = "eth0"\n'
        f'state_dir = "{tmp_path / "state"}"\nsocket = "{tmp_path / "sock"}"\n'
    )
    lines = in_child(f"""{FILTER}
import socket
from zenjun.daemon.__main__ import main
forbid(socket.{family})
os.dup2(1, 2)
print(main(["--config", {str(tmp_path / "z.toml")!r}]))
""")
    assert lines[-1] == "4" and len(lines) == 2, lines
    assert f"sockets of the family {family} are not allowed here" in lines[0]
    assert "RestrictAddressFamilies= must name AF_UNIX AF_NETLINK AF_PACKET" in lines[0]
    assert not (tmp_path / "state").exists(), "nothing was touched"
