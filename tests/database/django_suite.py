"""``python -m tests.database.django_suite FOLDER LABEL...``: Django's own tests on the backend ``zenjun.db.django``.

FOLDER is the source of the Django release that is installed, which has the tests:

    pip download --no-deps --no-binary :all: "django==$(python -m django --version)" && tar xzf django-*.tar.gz
    python -m tests.database.django_suite django-*/ basic lookup queries transactions constraints migrations schema

There is one station (``station.Station``): what is committed is certified and applied, by the code of the database process, in
the program's own process.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.errors import error_of

from .station import Station

SETTINGS = """
DATABASES = {
    "default": {"ENGINE": "zenjun.db.django", "NAME": "one"},
    "other": {"ENGINE": "zenjun.db.django", "NAME": "two"},
}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
"""


class Stations:
    """The databases of one station."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.databases: dict[str, Station] = {}

    def ask(self, name: str, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "create":
            if name in self.databases:
                raise error_of("exists", f"there is a database {name!r} already")
            self.databases[name] = Station.new(self.folder, name)
            return {}
        if name not in self.databases:
            raise error_of("no-database", f"there is no database {name!r}")
        if do == "drop":
            station = self.databases.pop(name)
            station.rows.close()
            station.files.remove()
            return {}
        return self.databases[name].ask(do, **arguments)

    def replace_process(self) -> None:
        """Have programs of this process use it."""
        from zenjun.db.django.creation import DatabaseCreation

        def ask(connection: Connection, do: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
            return self.ask(connection.name, do, **arguments)

        Connection._ask = ask  # type: ignore[method-assign, assignment]

        def ask_for_all(creation: DatabaseCreation, do: str, name: str) -> None:
            self.ask(name, do)

        DatabaseCreation._ask = ask_for_all  # type: ignore[method-assign, assignment]


def main(folder: Path, labels: list[str]) -> None:
    tests = (folder / "tests").resolve()
    with tempfile.TemporaryDirectory() as beside:
        (Path(beside) / "zenjun_settings.py").write_text(SETTINGS)
        sys.path[:0] = [beside, str(tests)]
        os.chdir(tests)
        Stations(Path(beside)).replace_process()
        sys.argv = [str(tests / "runtests.py"), "--settings=zenjun_settings", "--parallel=1", "--noinput", *labels]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
