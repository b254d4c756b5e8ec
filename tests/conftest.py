"""What all tests share: the option that rewrites expected texts, and the seed of the simulation, printed first."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from .again import Notes
from .stalls import LONG_S, Finding, Sleeper

# As with the simulation: a run that judges a change takes the same examples every time, all others look for new ones.
# Nor is it judged by how long an example takes: what only computes gives way to real daemons (tests/lanes.py).
hypothesis.settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if os.environ.get("ZENJUN_NO_SKIP") == "1":
    hypothesis.settings.load_profile("same")

# Who runs the tests in the background of a shell hands down that Ctrl-C is ignored; programs that the tests start must heed it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Labs start their daemons as forks unless the environment, or a folder's conftest.py, says otherwise (tools/lab/forking.py).
os.environ.setdefault("ZENJUN_LAB_FORK", "1")

NO_DOCKER = "Docker cannot be had here"
"""How the reason begins when tests that need containers cannot run; it is shown in large letters."""
NO_UML = "User-Mode Linux cannot be had here"
"""The same for tests under a kernel that has sch_netem."""
# What a machine may honestly lack. Everything else that is skipped under ZENJUN_NO_SKIP=1 (which tools/test sets) is a failure:
# a test that silently does not run is no test. What is skipped is listed at the end of the run either way (-ra).
MAY_BE_MISSING = (
    "this kernel has no sch_netem",
    "this kernel has sch_netem",
    "the other tests run without root already",
    "an ordinary user can read neither this checkout nor a Python for it",
    "real-time scheduling is refused here",
    "this machine has no IPv6",
    "the kernel has no time namespaces",
    "the kernel has no macvlan",
    "the kernel has no bonds",
    NO_DOCKER,
    NO_UML,
    "docker compose is not installed",
    "docker-compose is not installed",
    "corosync",
    "etcd: not installed",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        chance = _is_of_time(item) and not item.get_closest_marker("judge") and not call.excinfo.errisinstance(Finding)
        report.may_be_chance = chance  # type: ignore[attr-defined]
    if report.skipped and os.environ.get("ZENJUN_NO_SKIP") == "1" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
        if not reason.startswith(MAY_BE_MISSING):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped ({reason}); ZENJUN_NO_SKIP=1 makes that a failure"
    return report


_NOTES = Notes()
"""What has failed, after its second attempt where it had one."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _NOTES.add(report.nodeid, report.longreprtext, getattr(report, "may_be_chance", False))


_COSTS: defaultdict[str, float] = defaultdict(float)
"""Seconds of processor time by file, those of programs that have ended by then among them."""
COSTLY_S = 20.0
COSTLY_FILES = 6


def _processor_s() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = _processor_s()
    result = yield
    _COSTS[item.path.name] += _processor_s() - before
    return result


CLOCKED = frozenset(
    ["attacks", "client", "daemon", "database", "e2e", "jepsen", "lab", "link", "pcap", "service", "tools", "uml"]
)
"""Folders of tests that wait for processes, threads or sockets. What only computes comes to the same on any machine."""
AFTER_S = 0.3
"""After a failure, before the sleeper's notes are read: the test may have its processor again sooner than the sleeper."""
_SLEEPER: list[Sleeper] = []
_STALLED: dict[str, float] = {}
"""Seconds of the longest stall during each test that had one, by test."""


def _is_of_time(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("lab") or item.get_closest_marker("docker")
    return marked is not None or item.path.parent.name in CLOCKED


def _unstalled(item: pytest.Item) -> Generator[None, object, object]:
    """A test of real daemons, or another one of time, that fails on a machine that stalls meanwhile says so first (stalls.py).
    What a judge of histories finds counts on any machine, and so does a ``Finding``."""
    if not _is_of_time(item) or item.get_closest_marker("judge"):
        return (yield)
    if not _SLEEPER:
        _SLEEPER.append(Sleeper())
    begun = time.monotonic()
    try:
        return (yield)
    except Finding:
        raise
    except (Exception, pytest.fail.Exception) as error:
        time.sleep(AFTER_S)
        if late := _SLEEPER[0].longest_s(begun):
            said = (
                f"not within its time: this machine stalled for {1000 * late:.0f} ms meanwhile; {type(error).__name__}: {error}"
            )
            raise AssertionError(said) from error
        raise
    finally:
        if late := _SLEEPER[0].longest_s(begun):
            _STALLED[item.nodeid] = max(late, _STALLED.get(item.nodeid, 0.0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _unstalled(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _unstalled(item))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED and _NOTES.write():
        session.exitstatus = pytest.ExitCode.OK
    while _SLEEPER:
        _SLEEPER.pop().close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests cost, which the clock does not tell where several run beside each other. In large letters, that tests that
    need containers, or another kernel, did not run."""
    if _NOTES.told:
        terminalreporter.section("WHAT FAILED IS RUN ONCE MORE, ALONE, WHEN ALL LANES HAVE ENDED", sep="!", red=True, bold=True)
    if (total := sum(_COSTS.values())) > COSTLY_S:
        dearest = sorted(_COSTS.items(), key=lambda item: -item[1])[:COSTLY_FILES]
        most = ", ".join(f"{seconds:.0f} {name}" for name, seconds in dearest)
        terminalreporter.line(f"processor time {total:.0f} s: {most}")
    if _STALLED:
        terminalreporter.line(
            f"this machine stalled for over {1000 * LONG_S:.0f} ms during {len(_STALLED)} tests of daemons and of time, "
            f"for {1000 * max(_STALLED.values()):.0f} ms at most"
        )
    reasons = {str(r.longrepr[2]) for r in terminalreporter.stats.get("skipped", ()) if isinstance(r.longrepr, tuple)}
    for lack, what in ((NO_DOCKER, "CONTAINERS"), (NO_UML, "USER-MODE LINUX (SCH_NETEM)")):
        for reason in sorted(r for r in reasons if lack in r):
            terminalreporter.section(f"TESTS THAT NEED {what} DID NOT RUN", sep="!", red=True, bold=True)
            terminalreporter.line(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the texts that scenarios and snapshots expect anew")
    parser.addoption("--rule", metavar="NAME", help="run only the tests that show this rule (docs/rules.md)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if name := config.getoption("--rule"):
        others = [item for item in items if not any(name in mark.args for mark in item.iter_markers("rule"))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_report_header() -> str:
    """The same rule as ``tests/sim/runner.py``: the environment, else the commit."""
    seed = os.environ.get("ZENJUN_SIM_SEED")
    if seed:
        return f"zenjun: ZENJUN_SIM_SEED={seed}"
    root = Path(__file__).resolve().parent.parent
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"zenjun: simulation seeds from commit {head}" if head else "zenjun: simulation seeds from 1"
