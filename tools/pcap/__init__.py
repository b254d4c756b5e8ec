"""Captures analysed in Spark: whether the cluster kept its guarantees, and what that cost (docs/captures.md).

In a notebook: ``zenjun.tools.pcap.register(spark)``, then ``spark.read.format("zenjun-pcap").load("frames")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the data source ``zenjun-pcap`` known to a session. Raises ImportError without ``zenjun[spark]``."""
    from .tables import source

    source.register(spark)
