"""The tables: what Arrow and Spark are told of them."""

from __future__ import annotations

from zenjun.tools.pcap.tables import schema


def test_every_table_has_both_schemas() -> None:
    for name, table in schema.TABLES.items():
        assert len(schema.arrow(name, station=True)) == len(table.columns) == len(schema.spark(name).split("`")) // 2
        assert ("station" not in schema.arrow(name).names) == table.partitioned
