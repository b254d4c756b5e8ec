"""What Django imports for the ENGINE ``zenjun.db.django``."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Self

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.client import BaseDatabaseClient
from django.db.backends.sqlite3._functions import register
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLiteWrapper
from django.db.backends.sqlite3.base import SQLiteCursorWrapper
from django.db.backends.sqlite3.features import DatabaseFeatures as SQLiteFeatures
from django.db.backends.sqlite3.introspection import DatabaseIntrospection as SQLiteIntrospection
from django.db.backends.sqlite3.operations import DatabaseOperations as SQLiteOperations
from django.db.backends.sqlite3.schema import DatabaseSchemaEditor as SQLiteSchemaEditor
from django.utils.dateparse import parse_date, parse_datetime, parse_time
from zenjun import db as Database

from .creation import DatabaseCreation

OPTIONS: Final = ("isolation", "read", "durability", "timeout", "at_least", "max_stale", "socket")
_convert: Final[Callable[..., str]] = SQLiteCursorWrapper.convert_query
"""Of ``%s`` and ``%(name)s`` to ``?`` and ``:name``; it uses nothing of its cursor."""


def _parser(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: parse(value if isinstance(value, str) else str(value))


CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": lambda value: value in (1, "1"),
    "date": _parser(parse_date),
    "time": _parser(parse_time),
    "datetime": _parser(parse_datetime),
    "timestamp": _parser(parse_datetime),
}
"""By the first word of a column's declared type, as Django has them for ``sqlite3``."""


def adapted(value: Any) -> Any:
    """A parameter as SQLite takes it."""
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _adapted(parameters: Any) -> Any:
    if isinstance(parameters, Mapping):
        return {name: adapted(value) for name, value in parameters.items()}
    return [adapted(value) for value in parameters]


class Cursor:
    """A cursor with Django's parameters and values."""

    def __init__(self, cursor: Database.Cursor) -> None:
        self._cursor = cursor
        self._converters: list[tuple[int, Callable[[Any], Any]]] = []

    def execute(self, query: str, params: Any = None) -> Self:
        if params is None:
            self._cursor.execute(query)
        else:
            names = list(params) if isinstance(params, Mapping) else None
            self._cursor.execute(_convert(None, query, param_names=names), _adapted(params))
        self._converters = [
            (i, CONVERTERS[kind])
            for i, column in enumerate(self._cursor.description or ())
            if (kind := str(column[1] or "").partition("(")[0].partition(" ")[0].lower()) in CONVERTERS
        ]
        return self

    def executemany(self, query: str, param_list: Iterable[Any]) -> Self:
        many = [_adapted(params) for params in param_list]
        names = list(many[0]) if many and isinstance(many[0], Mapping) else None
        self._cursor.executemany(_convert(None, query, param_names=names), many)
        self._converters = []
        return self

    def _converted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._converters:
            return row
        values = list(row)
        for i, convert in self._converters:
            if values[i] is not None:
                values[i] = convert(values[i])
        return tuple(values)

    def fetchone(self) -> tuple[Any, ...] | None:
        row = self._cursor.fetchone()
        return None if row is None else self._converted(row)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return [self._converted(row) for row in self._cursor.fetchmany(size)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [self._converted(row) for row in self._cursor.fetchall()]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(self._converted, self._cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class DatabaseFeatures(SQLiteFeatures):
    """As SQLite, but for what one station cannot do alone."""

    supports_sequence_reset = False
    test_db_allows_multiple_connections = True
    can_clone_databases = False
    uses_savepoints = True


class DatabaseOperations(SQLiteOperations):
    """As SQLite. Automatic ids come from blocks, which do not begin again."""

    def sequence_reset_by_name_sql(self, style: Any, sequences: Any) -> list[str]:
        return []


class DatabaseIntrospection(SQLiteIntrospection):
    """Without the tables of the database process."""

    def get_table_list(self, cursor: Any) -> list[Any]:
        return [table for table in super().get_table_list(cursor) if not table.name.startswith("zenjun_")]


class DatabaseSchemaEditor(SQLiteSchemaEditor):
    """As SQLite: each migration is a transaction that has the database alone, without foreign keys until its end."""

    def __enter__(self) -> Self:
        mode, self.connection.transaction_mode = self.connection.transaction_mode, "EXCLUSIVE"
        try:
            entered: Self = super().__enter__()
        finally:
            self.connection.transaction_mode = mode
        return entered

    def quote_value(self, value: Any) -> str:
        return str(super().quote_value(adapted(value)))


class DatabaseClient(BaseDatabaseClient):
    """``manage.py dbshell``."""

    executable_name = "zenjun"

    @classmethod
    def settings_to_cmd_args_env(cls, settings_dict: Mapping[str, Any], parameters: Iterable[str]) -> tuple[list[str], Any]:
        socket = settings_dict["OPTIONS"].get("socket")
        return [cls.executable_name, "sql", settings_dict["NAME"], *parameters], {"ZENJUN_DB": socket} if socket else None


class DatabaseWrapper(SQLiteWrapper):
    """A connection."""

    display_name = "zenjun"
    Database = Database
    SchemaEditorClass = DatabaseSchemaEditor
    client_class = DatabaseClient
    creation_class = DatabaseCreation
    features_class = DatabaseFeatures
    introspection_class = DatabaseIntrospection
    ops_class = DatabaseOperations

    def get_connection_params(self) -> dict[str, Any]:
        name, options = self.settings_dict["NAME"], self.settings_dict["OPTIONS"]
        if not name:
            raise ImproperlyConfigured("NAME in DATABASES is the name of a database of this station")
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise ImproperlyConfigured(f"OPTIONS in DATABASES: no such option: {', '.join(unknown)} (of {', '.join(OPTIONS)})")
        self.transaction_mode = None
        return {"name": str(name), **options}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Database.Connection:
        connection = Database.connect(**conn_params, autocommit=True)
        register(connection)
        return connection

    def create_cursor(self, name: Any = None) -> Cursor:
        return Cursor(self.connection.cursor())

    def close(self) -> None:
        self.validate_thread_sharing()
        BaseDatabaseWrapper.close(self)

    def _set_autocommit(self, autocommit: bool) -> None:
        with self.wrap_database_errors:
            self.connection.autocommit = autocommit

    def is_in_memory_db(self) -> bool:
        return False
