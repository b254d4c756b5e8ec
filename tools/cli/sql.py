"""``zenjun sql``: statements on a replicated database, from the command line, a file, a pipe or a prompt."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Final, TextIO

import click

from ...daemon.database.driver import Connection, Cursor, Error, connect
from ...daemon.database.driver.connection import DURABILITIES, ISOLATIONS, READS
from ...daemon.database.driver.statements import Kind, kind_of, lines_of
from ...daemon.database.guarding import quoted
from ...daemon.terminal import json_text, printable
from .common import FAILED, Failure, plural
from .dbcommon import CODES, database_option, failures, timeout_option

FORMATS: Final = ("table", "tab", "csv", "json")
HELP: Final = """\
Statements end with a semicolon; BEGIN and COMMIT make one transaction of several.
  .tables          tables and views
  .schema [TABLE]  how they were made
  .dump            statements that make everything again
  .watch [TABLE]...    what is committed from now on, as JSON; Ctrl-C ends
  .import FILE TABLE   rows of a CSV file, whose first line names their columns
  .backup FILE     copy the database as it is now
  .help, .quit"""


@click.command(epilog=CODES)
@click.argument("name")
@click.argument("statements", nargs=-1, metavar="[STATEMENT]...")
@click.option("-c", "--command", "commands", multiple=True, metavar="STATEMENT", help="Run it; may be repeated.")
@click.option("-f", "--file", "script", type=click.File(encoding="utf-8"), help="Run the statements of a file.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="How rows are printed. [default: table on a terminal, else tab]"
)
@click.option("--csv", "as_csv", is_flag=True, help="As --format csv.")
@click.option("--json", "as_json", is_flag=True, help="As --format json: one object a row.")
@click.option("--isolation", type=click.Choice(ISOLATIONS), default=ISOLATIONS[0], show_default=True, help="Of transactions.")
@click.option("--read", type=click.Choice(READS), default=READS[0], show_default=True, help="Of this station, or the newest.")
@click.option(
    "--durability", type=click.Choice(DURABILITIES), default=DURABILITIES[1], show_default=True, help="When a commit is done."
)
@timeout_option
@database_option
def sql(
    name: str, statements: tuple[str, ...], commands: tuple[str, ...], script: TextIO | None, form: str | None, as_csv: bool,
    as_json: bool, isolation: str, read: str, durability: str, timeout: float, path: str | None,
) -> None:  # fmt: skip
    """Run SQL on a replicated database at this station. Without statements it reads them from standard input; on a terminal
    it asks for them.

    \b
    Examples:
      zenjun sql shop "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)"
      zenjun sql shop "SELECT * FROM item" --json
      zenjun sql shop -f schema.sql
      zenjun sql shop
    """
    if as_csv + as_json + (form is not None) > 1:
        raise click.UsageError("one of --format, --csv and --json")
    chosen = "csv" if as_csv else "json" if as_json else form or ("table" if sys.stdout.isatty() else "tab")
    with failures("sql"):
        connection = connect(
            name, isolation=isolation, read=read, durability=durability, timeout=timeout, autocommit=True, socket=path
        )
        shell = Shell(connection, chosen)
        try:
            given = [*statements, *commands]
            if given or script is not None:
                shell.several = len(given) > 1
                for text in given:
                    shell.run(_checked(text, "the statement"))
                if script is not None:
                    shell.run(_read(script), script.name)
            elif sys.stdin.isatty():
                shell.interact(name)
            else:
                shell.run(_read(sys.stdin), "standard input")
            shell.end()
        finally:
            connection.close()


def _read(stream: TextIO) -> str:
    """All of a file or of standard input. Raises UsageError if it is not UTF-8."""
    what = "standard input" if stream is sys.stdin else stream.name
    try:
        return _checked(stream.read(), what)
    except UnicodeDecodeError as error:
        raise _not_utf8(what, error.object[: error.start].count(b"\n")) from None


def _checked(text: str, what: str) -> str:
    """The text, if it has no bytes that were no UTF-8, which Python hands on as surrogates. Raises UsageError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _not_utf8(what, text[: error.start].count("\n")) from None
    return text


def _not_utf8(what: str, lines_before: int) -> click.UsageError:
    return click.UsageError(f"line {lines_before + 1} of {what} is not UTF-8 (iconv converts files)")


class Shell:
    """Runs statements and commands with a dot, and prints what comes."""

    def __init__(self, connection: Connection, form: str) -> None:
        self.connection = connection
        self.form = form
        self.several = False
        """More texts than one come."""
        self._number = 0
        """Of the statement under way."""

    def run(self, text: str, source: str = "") -> None:
        """All statements and commands of a text; the first that fails ends it, and its error says which it was, if there are
        several. source: the file."""
        found = list(_lines_of(text))
        for line, statement in found:
            self._number += 1
            try:
                if statement.startswith("."):
                    self.command(statement)
                else:
                    self.print(self.connection.execute(statement))
            except Error as error:
                if self.several or len(found) > 1:
                    where = f"line {line} of {source}" if source else f"statement {self._number}"
                    error.args = (f"{printable(where)}: {error}",)
                raise

    def end(self) -> None:
        """Raises Failure if a transaction is open: nothing of it is committed."""
        if self.connection.in_transaction:
            raise Failure("the transaction has no COMMIT: nothing of it is kept", FAILED, "sql")

    # ---- the prompt

    def interact(self, name: str) -> None:
        """Ask for statements until the end of the input. What fails is told, and the prompt stays."""
        self._edit()
        click.echo(f"zenjun sql: {name}, {'.help'} for help, Ctrl-D ends")
        text = ""
        while True:
            mark = "*" if self.connection.in_transaction else ">"
            try:
                line = input(f"{name}{mark} " if not text else f"{' ' * len(name)}. ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo()
                text = ""
                continue
            text += line + "\n"
            if text.strip() in (".quit", ".exit"):
                return
            if not (text.lstrip().startswith(".") or _is_complete(text)):
                continue
            self._number = 0
            try:
                self.run(text)
            except (Error, Failure) as error:
                click.echo(f"{type(error).__name__}: {error}", err=True)
            except KeyboardInterrupt:
                click.echo("interrupted", err=True)
            text = ""

    def _edit(self) -> None:
        """Line editing, the history of former calls, completion of keywords and names, where Python has them."""
        try:
            import readline
        except ImportError:
            return
        import atexit

        history = Path("~/.local/state/zenjun/sql_history").expanduser()
        try:
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(0o600)
            readline.read_history_file(history)
            readline.set_history_length(1000)
            atexit.register(readline.write_history_file, history)
        except OSError:
            pass  # a home that cannot be written has no history
        found: list[str] = []

        def complete(word: str, number: int) -> str | None:
            nonlocal found
            if number == 0:
                found = [w for w in self._words() if w.lower().startswith(word.lower())]
            return found[number] if number < len(found) else None

        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")

    def _words(self) -> Iterator[str]:
        import apsw

        yield from sorted(apsw.keywords)
        try:
            tables = self.connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
            columns = self.connection.execute("SELECT c.name FROM sqlite_schema s, pragma_table_info(s.name) c").fetchall()
        except Error:
            return
        yield from sorted({str(word) for (word,) in [*tables, *columns]})

    # ---- commands with a dot

    def command(self, text: str) -> None:
        """Raises Failure."""
        word, *arguments = text.split()
        if word == ".help":
            click.echo(HELP)
        elif word == ".tables":
            query = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            for (name,) in self.connection.execute(f"{query} AND name NOT LIKE 'zenjun_%' ORDER BY name"):
                click.echo(printable(name))
        elif word == ".schema" and len(arguments) <= 1:
            query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'zenjun_%'"
            of = (" AND tbl_name = ?", arguments) if arguments else ("", [])
            for (statement,) in self.connection.execute(f"{query}{of[0]} ORDER BY rowid", of[1]):
                click.echo(printable(statement, keep="\n\t") + ";")
        elif word == ".dump" and not arguments:
            for line in self.connection.iterdump():
                click.echo(line)
        elif word == ".backup" and len(arguments) == 1:
            self.connection.backup(arguments[0])
        elif word == ".watch":
            for change in self.connection.watch(*arguments):
                click.echo(json_text(change._asdict(), default=_json))
        elif word == ".import" and len(arguments) == 2:
            click.echo(plural(self.load(Path(arguments[0]), arguments[1]), "row"))
        else:
            raise Failure(f"{printable(text)}: .help shows what there is", FAILED, "sql")

    def load(self, file: Path, table: str) -> int:
        """Insert the rows of a CSV file whose first line names columns, in one transaction; returns how many."""
        try:
            with file.open(newline="", encoding="utf-8") as lines:
                rows = csv.reader(lines)
                columns = next(rows, [])
                self._check_columns(file, table, columns)
                names = ", ".join(quoted(column) for column in columns)
                marks = ", ".join("?" * len(columns))
                return self.connection.executemany(f"INSERT INTO {quoted(table)}({names}) VALUES({marks})", rows).rowcount
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise Failure(f"{file}: {error}", FAILED, "sql") from error

    def _check_columns(self, file: Path, table: str, columns: list[str]) -> None:
        """Raises Failure: the first line is none with names. sqlite3 takes it for a row, if the table is there."""
        found = self.connection.execute("SELECT lower(name) FROM pragma_table_xinfo(?)", (table,)).fetchall()
        if not found:
            raise Failure(f"there is no table {printable(table)}: make it first", FAILED, "sql")
        wrong = next((column for column in columns if (column.lower(),) not in found), None)
        if wrong is not None or not columns:
            names = ", ".join(str(name) for (name,) in found)
            text = f"the first line of the file names columns, and {table} has no {wrong!r}" if columns else "the file is empty"
            raise Failure(f"{file}: {printable(text)} (it has {printable(names)}); nothing is imported", FAILED, "sql")

    # ---- rows

    def print(self, cursor: Cursor) -> None:
        """The rows of a statement; of one without rows how many it changed, on a terminal."""
        if cursor.description is None:
            if cursor.rowcount >= 0 and self.form == "table":
                click.echo(f"{plural(cursor.rowcount, 'row')} changed")
            return
        columns = [str(column[0]) for column in cursor.description]
        if self.form == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([_plain(value) for value in row] for row in cursor)
        elif self.form == "json":
            for row in cursor:
                click.echo(json_text({c: _json(v) for c, v in zip(columns, row, strict=True)}))
        elif self.form == "tab":
            for row in cursor:
                click.echo("\t".join(printable(_plain(value)) for value in row))
        else:
            _table(columns, cursor)


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a text, and its commands, which are lines that begin with a dot where no statement has begun; each with
    its line from 1."""
    begun, first = "", 1
    for number, line in enumerate(StringIO(text), 1):
        if line.lstrip().startswith(".") and _is_complete(begun):
            yield from ((first + at - 1, statement) for at, statement in lines_of(begun))
            yield number, line.strip()
            begun, first = "", number + 1
        else:
            begun += line
    yield from ((first + at - 1, statement) for at, statement in lines_of(begun))


def _table(columns: list[str], rows: Iterable[Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from .output import Output

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    kept = list(rows)
    for i, column in enumerate(columns):
        numbers = bool(kept) and all(isinstance(row[i], int | float | None) for row in kept)
        table.add_column(Text(printable(column)), justify="right" if numbers else "left", overflow="fold")
    for row in kept:
        table.add_row(*(Text("NULL", "dim") if value is None else Text(printable(_plain(value))) for value in row))
    Output(highlight=False).print(table)


def _plain(value: Any) -> Any:
    return "" if value is None else value.hex() if isinstance(value, bytes) else value


def _json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _is_complete(text: str) -> bool:
    import apsw

    return kind_of(text) is Kind.EMPTY or bool(apsw.complete(text))
