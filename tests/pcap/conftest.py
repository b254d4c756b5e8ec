"""One Spark session for the whole run: starting it costs more than all that the tests do with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.tools import pcap
from zenjun.tools.pcap.spark.session import Session


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """Spark on two cores of this machine. Do not close it."""
    with Session("local[2]", heap="1g", small=True, conf={"spark.sql.shuffle.partitions": "4"}) as made:
        yield made


@pytest.fixture(scope="session")
def spark(session: Session) -> Any:
    """Its SparkSession, with the data source registered."""
    pcap.register(session.spark)
    return session.spark
