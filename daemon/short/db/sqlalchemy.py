"""SQLAlchemy's dialect for replicated databases: ``create_engine("zenjun://shop")``.

It is the one for SQLite, with this driver below it, and keeps its name: what a model says of ``sqlite`` (variants,
``sqlite_where``, ``ON CONFLICT``) holds here as well. Integer keys that the database picks are AUTOINCREMENT unless the table has
``sqlite_autoincrement=False``. A transaction that collides with another one is ``OperationalError``, whose ``orig`` is a
``SerializationError``; docs/database-service.md has the loop that repeats it.

    zenjun://NAME[?isolation=…&read=…&durability=…&timeout=…&socket=…&at_least=…]        arguments of ``zenjun.db.connect``

Isolation levels: SERIALIZABLE, SNAPSHOT, AUTOCOMMIT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import exc, types
from sqlalchemy.dialects.sqlite.base import SQLiteDDLCompiler, SQLiteDialect
from sqlalchemy.engine import reflection
from sqlalchemy.pool import QueuePool
from sqlalchemy.schema import Column, PrimaryKeyConstraint

LEVELS: Final = ("SERIALIZABLE", "SNAPSHOT", "AUTOCOMMIT")
ARGUMENTS: Final[dict[str, Callable[[str], Any]]] = {
    "isolation": str, "read": str, "durability": str, "timeout": float, "socket": str, "at_least": str,
}  # fmt: skip


class ZenjunDDLCompiler(SQLiteDDLCompiler):
    """AUTOINCREMENT unless a table refuses it."""

    def get_column_specification(self, column: Column[Any], **options: Any) -> str:
        text = super().get_column_specification(column, **options)  # type: ignore[no-untyped-call]
        return f"{text} PRIMARY KEY AUTOINCREMENT" if _picks_key(column) else text

    def visit_primary_key_constraint(self, constraint: PrimaryKeyConstraint, **options: Any) -> Any:
        if any(map(_picks_key, constraint.columns)):
            return None  # it stands at the column
        return super().visit_primary_key_constraint(constraint, **options)  # type: ignore[no-untyped-call]


def _picks_key(column: Column[Any]) -> bool:
    """The key of a table that says nothing of ``sqlite_autoincrement`` and leaves the choice of keys to SQLite, which does so for
    the type INTEGER."""
    table = column.table
    return (
        "sqlite_autoincrement" not in list(table.kwargs)  # ``in`` alone finds defaults, too
        and table.dialect_options["sqlite"]["with_rowid"]
        and column is table.autoincrement_column
        and len(table.primary_key.columns) == 1
        and type(column.type) is types.Integer
        and column.computed is None
        and not column.foreign_keys
        and not any(column.dialect_options["sqlite"][option] for option in ("on_conflict_primary_key", "on_conflict_not_null"))
        and not table.primary_key.dialect_options["sqlite"]["on_conflict"]
    )


class ZenjunDialect(SQLiteDialect):
    """The entry point ``zenjun`` of ``sqlalchemy.dialects``."""

    driver = "zenjun"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    returns_native_bytes = True
    ddl_compiler = ZenjunDDLCompiler

    @classmethod
    def import_dbapi(cls) -> Any:
        from zenjun import db

        return db

    @classmethod
    def get_pool_class(cls, url: Any) -> type[QueuePool]:
        return QueuePool

    def create_connect_args(self, url: Any) -> tuple[list[str], dict[str, Any]]:
        """ArgumentError: it is no URL of this form."""
        if url.username or url.password or url.port or bool(url.host) == bool(url.database):
            raise exc.ArgumentError(f"{url}: the form is zenjun://NAME?OPTION=VALUE, NAME a database of this station")
        if unknown := sorted(set(url.query) - set(ARGUMENTS)):
            raise exc.ArgumentError(f"{url}: no such option: {', '.join(unknown)} (of {', '.join(ARGUMENTS)})")
        options: dict[str, Any] = {}
        for name, value in url.query.items():
            try:
                options[name] = ARGUMENTS[name](value)
            except (TypeError, ValueError):
                raise exc.ArgumentError(f"{url}: {name} cannot be {value!r}") from None
        return [url.host or url.database], options

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        return tuple(self.loaded_dbapi.sqlite_version_info)

    def get_isolation_level_values(self, dbapi_connection: Any) -> Any:
        return list(LEVELS)

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else dbapi_connection.isolation.upper()

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        if level != "AUTOCOMMIT":
            dbapi_connection.isolation = level.lower()

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def on_connect(self) -> Callable[[Any], None]:
        def connect(connection: Any) -> None:
            with suppress(self.loaded_dbapi.NotSupportedError):  # of another station's copy: without functions of the program
                connection.create_function("regexp", 2, _regexp, deterministic=True)
                connection.create_function("floor", 1, math.floor, deterministic=True)

        return connect

    @reflection.cache
    def get_table_names(
        self, connection: Any, schema: str | None = None, sqlite_include_internal: bool = False, **kw: Any
    ) -> list[str]:
        """``sqlite_include_internal``: with the tables of SQLite and of the database process."""
        names = super().get_table_names(connection, schema, sqlite_include_internal, **kw)  # type: ignore[no-untyped-call]
        return [name for name in names if sqlite_include_internal or not name.startswith("zenjun_")]

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """The driver connects to the process again by itself; what stays lost is a connection that has been closed."""
        return isinstance(e, self.loaded_dbapi.ProgrammingError) and str(e) == "the connection is closed"


def _regexp(pattern: str, text: str | None) -> bool | None:
    return None if text is None else re.search(pattern, text) is not None


dialect = ZenjunDialect
