"""The tables: their documentation is what the schema says."""

from __future__ import annotations

from zenjun.tools.pcap.tables import schema


def test_documentation_is_fresh() -> None:
    text = schema.PAGE.read_text()
    assert schema.refresh(text) == text, "python -m zenjun.tools.pcap.tables.schema --write"
    for name in schema.TABLES:
        assert f"<!-- generated: {name} -->" in text


def test_every_table_has_both_schemas() -> None:
    for name, table in schema.TABLES.items():
        assert len(schema.arrow(name, station=True)) == len(table.columns) == len(schema.spark(name).split("`")) // 2
        assert ("station" not in schema.arrow(name).names) == table.partitioned
