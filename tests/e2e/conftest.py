"""How daemons are started here, and what a failed end-to-end test says about the labs that stand."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final

import pytest
from zenjun.tools.lab import forking

from . import cluster

ANEW: Final = ("test_daemon_", "test_order.py", "test_directory.py", "test_database.py", "test_flow.py")
"""How the names of files begin whose daemons are programs started anew, not forks of their lab's holder: those about starts, ends
and memory, and one of each service, so that stations hash strings differently."""
_FORK: Final = os.environ.get(forking.VARIABLE, "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ[forking.VARIABLE] = "" if item.path.name.startswith(ANEW) else _FORK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what every station says to the report of a failure."""
    report = yield
    if report.failed and call.when == "call" and (text := cluster.describe_live()):
        report.sections.append(("stations", text))
    return report
