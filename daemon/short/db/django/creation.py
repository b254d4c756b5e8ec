"""Databases for a project's tests: ``manage.py test`` makes one for all stations, and drops it."""

from __future__ import annotations

import sys
from typing import Any, Final

from django.db.backends.base.creation import BaseDatabaseCreation

CREATE_S: Final = 60.0
"""To wait for all stations."""


class DatabaseCreation(BaseDatabaseCreation):
    """It needs the rights of ``zenjun db create``: root or the user of the daemon."""

    @staticmethod
    def is_in_memory_db(database_name: Any) -> bool:
        return False

    def _ask(self, do: str, name: str) -> None:
        from zenjun.daemon.database.driver.service import Service

        service = Service(self.connection.settings_dict["OPTIONS"].get("socket"))
        try:
            service.ask(do, timeout=CREATE_S, db=name)
        finally:
            service.close()

    def _create_test_db(self, verbosity: int, autoclobber: bool, keepdb: bool = False) -> str:
        from zenjun.db import Error

        name = str(self._get_test_db_name())
        try:
            self._ask("create", name)
        except Error as error:
            if "already" not in str(error):
                self.log(f"Got an error creating the test database: {error}")
                sys.exit(2)
            if keepdb:
                return name
            if not autoclobber and input(f"Type 'yes' to delete the test database '{name}', or 'no' to cancel: ") != "yes":
                self.log("Tests cancelled.")
                sys.exit(1)
            if verbosity >= 1:
                self.log(f"Destroying old test database for alias {self._get_database_display_str(verbosity, name)}...")
            self._ask("drop", name)
            self._ask("create", name)
        return name

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        self._ask("drop", test_database_name)
