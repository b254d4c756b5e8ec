"""Labs on a kernel that has sch_netem: this machine's, or the User-Mode Linux kernel that tests/uml starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, uml

from ..e2e import cluster

# A hook: what every station says is in the report of a failure.
from ..e2e.conftest import pytest_runtest_makereport  # noqa: F401
from .measure import calm

NO_NETEM = "this kernel has no sch_netem"
CALM = {"cluster": {"fail_timeout_ms": 10_000}}
"""Options of the daemons: the order is tested, not the time; on one slow processor they are kept from running for long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.netem)


def needs_netem(lab: Lab) -> None:
    """Skips the test where there is none; under the User-Mode Linux kernel, where there must be one, it fails."""
    if not lab.describe()["netem"]:
        assert uml.INSIDE not in os.environ, "the User-Mode Linux kernel has no sch_netem"
        pytest.skip(f"{NO_NETEM} (tests/uml runs this under one that has it)")


@pytest.fixture(scope="module")
def wires() -> Iterator[Lab]:
    """Three stations without daemons."""
    with Lab(3) as lab:
        needs_netem(lab)
        yield lab


@pytest.fixture
def lab(wires: Lab) -> Iterator[Lab]:
    """Three stations without daemons and without impairments."""
    calm(wires)
    yield wires
    calm(wires)


@pytest.fixture(scope="module")
def cluster_of_three() -> Iterator[Lab]:
    """Three stations with daemons in one instance."""
    with Lab(3, options=CALM) as lab:
        needs_netem(lab)
        with cluster.reported(lab):
            lab.start_daemons()
            lab.wait_open(90)
            yield lab


@pytest.fixture
def segment(cluster_of_three: Lab) -> Iterator[Lab]:
    """The cluster, open and without impairments; so it must be again afterwards."""
    yield cluster_of_three
    calm(cluster_of_three)
    cluster.together(cluster_of_three, timeout_s=90)
