"""What a failed end-to-end test says about the labs that stand."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from . import cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what every station says to the report of a failure."""
    report = yield
    if report.failed and call.when == "call" and (text := cluster.describe_live()):
        report.sections.append(("stations", text))
    return report
