"""What SQLAlchemy's tests have to know of the dialect; a plugin of pytest beside theirs."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.testing.provision import temp_table_keyword_args, upsert

for name in ("zenjun", "zenjun.zenjun"):  # the entry points, for a checkout that is not installed
    registry.register(name, "zenjun.db.sqlalchemy", "ZenjunDialect")


@temp_table_keyword_args.for_db("zenjun")  # type: ignore[untyped-decorator]
def _temporary(config: Any, engine: Any) -> dict[str, list[str]]:
    return {"prefixes": ["TEMPORARY"]}


@upsert.for_db("zenjun")  # type: ignore[untyped-decorator]
def _upsert(config: Any, table: Any, returning: Any, *, set_lambda: Any = None, sort_by_parameter_order: bool = False) -> Any:
    statement = insert(table)
    if set_lambda is None:
        statement = statement.on_conflict_do_nothing()
    else:
        statement = statement.on_conflict_do_update(set_=set_lambda(statement.excluded))
    return statement.returning(*returning, sort_by_parameter_order=sort_by_parameter_order)
