"""The databases that ``zenjun bench database`` measures, at all stations of a lab that is up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ...daemon.database.driver.service import Service as DatabaseProcess
from ...daemon.database.errors import Error
from ..lab import Lab, LabError
from ..lab.network import ip_address
from .cell import BenchError
from .names_systems import START_S, _version, etcd_argv, etcd_missing, etcd_version

PEERS: Final = ("etcd", "dqlite", "postgresql", "mariadb")
POSTGRES: Final = Path("/usr/lib/postgresql/15/bin")
AS_POSTGRES: Final = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
SYNCED: Final = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_local_state_comment'"
GALERA: Final = Path("/usr/lib/galera/libgalera_smm.so")


class System:
    """One database. Its folder is another user's, so it is below a folder that everybody may enter."""

    name: str
    kind: str
    durabilities: tuple[str, ...] = ("majority-disk",)
    is_counted = True
    """``pids`` are all of its processes, so that their CPU can be read."""
    has_scan = True
    """It computes a sum of rows."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start it everywhere, empty, and return when it takes updates. Raises BenchError."""
        raise NotImplementedError

    def target(self, station: int) -> str:
        """Where a program at this station writes."""
        raise NotImplementedError

    def local(self, station: int) -> str:
        """Where it reads without another station."""
        return self.target(station)

    def version(self) -> str:
        raise NotImplementedError

    def pids(self, station: int) -> list[int]:
        return [self.processes[station].pid] if station in self.processes else []

    def kill(self, station: int) -> None:
        """All that runs at a station, at once, with what it has started."""
        for pid in self.pids(station):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End its processes; safe at any time."""
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        self.processes = {}

    # ---- for those of other users

    def run(self, station: int, argv: list[str], limit_s: float = START_S) -> str:
        """Run a program at a station and return its output. Raises BenchError."""
        output = self.folder / "output"
        with output.open("ab") as errors:
            process = self.lab.station(station).spawn(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
            try:
                found, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise BenchError(f"{argv[0]} does not end: see {output}") from None
        if process.returncode:
            raise BenchError(f"{' '.join(argv)[:200]}: exit status {process.returncode}: {output.read_text()[-300:]}")
        return str(found.decode()).strip()

    def spawn(self, station: int, argv: list[str]) -> None:
        with (self.folder / f"output-{station}").open("ab") as output:
            self.processes[station] = self.lab.station(station).spawn(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def until(self, what: str, station: int, argv: list[str], wanted: str) -> None:
        """Run a program until it prints this. Raises BenchError."""
        deadline = time.monotonic() + START_S
        found = ""
        while time.monotonic() < deadline:
            try:
                found = self.run(station, argv)
            except BenchError as error:
                found = str(error)
            if found == wanted:
                return
            time.sleep(0.2)
        raise BenchError(f"{what} after {START_S:g} s: {found[-300:]}")


class OurDatabase(System):
    """zenjun-db and zenjund."""

    name = kind = "zenjun"
    durabilities = ("majority-disk", "memory")

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(lab, folder)
        self._beside: dict[int, int] = {}

    def start(self) -> None:
        try:
            for station in self.lab.stations.values():
                shutil.rmtree(station.state_directory / "db", ignore_errors=True)
                station.start_daemon({})
            self.lab.wait_open(START_S)
            for number, station in self.lab.stations.items():
                self._beside[number] = station.start_database()
            deadline = time.monotonic() + START_S
            while True:
                try:
                    process = DatabaseProcess(self.target(1), timeout=START_S)
                    break
                except Error:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            process.ask("create", timeout=START_S, db="bench")
            process.close()
        except (LabError, Error) as error:
            raise BenchError(str(error)) from error

    def end_database(self, station: int) -> None:
        """Kill the database process of a station."""
        pid = self._beside.pop(station)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def start_database(self, station: int) -> None:
        self._beside[station] = self.lab.station(station).start_database()

    def stop(self) -> None:
        for number in list(self._beside):
            self.end_database(number)
        for station in self.lab.stations.values():
            with contextlib.suppress(LabError):
                station.stop_daemon(5.0)

    def pids(self, station: int) -> list[int]:
        daemon = self.lab.station(station).daemon
        return [*([self._beside[station]] if station in self._beside else []), *([daemon.pid] if daemon is not None else [])]

    def target(self, station: int) -> str:
        return str(self.lab.station(station).directory / "db.sock")

    def file(self, station: int, name: str = "bench") -> str:
        """What sqlite3 reads."""
        return str((self.lab.station(station).state_directory / "db" / f"{name}.db").resolve())

    def version(self) -> str:
        return _version()


class Etcd(System):
    """etcd with its defaults, a member at each station: keys in place of rows."""

    name = kind = "etcd"
    has_scan = False

    def start(self) -> None:
        self.folder.mkdir()
        for number in self.lab.stations:
            self.spawn(number, etcd_argv(number, list(self.lab.stations), self.folder / f"data-{number}"))
        put = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", self.target(1), "put", "ready", "1"]
        self.until("etcd takes no put", 1, put, "OK")

    def target(self, station: int) -> str:
        return f"{ip_address(station)}:2379"

    def version(self) -> str:
        return etcd_version()

    @staticmethod
    def missing() -> str | None:
        return etcd_missing()


class Dqlite(System):
    """dqlite by the server that Debian has, the demonstration of its Go client: one table of keys and values, by HTTP."""

    name = kind = "dqlite"
    has_scan = False

    def start(self) -> None:
        self.folder.mkdir()
        for number in self.lab.stations:
            argv = ["dqlite-demo", "--dir", str(self.folder / f"data-{number}"), "--api", self.target(number)]
            argv += ["--db", f"{ip_address(number)}:9001", *(["--join", f"{ip_address(1)}:9001"] if number > 1 else [])]
            self.spawn(number, argv)
            self.until(f"dqlite-demo of station {number} takes nothing", number, self._put(number), "done")

    def _put(self, number: int) -> list[str]:
        put = f"c = h.HTTPConnection('{self.target(number)}', timeout=5); c.request('PUT', '/ready', '1')"
        return [sys.executable, "-c", f"import http.client as h; {put}; print(c.getresponse().read().decode())"]

    def target(self, station: int) -> str:
        return f"{ip_address(station)}:8001"

    def version(self) -> str:
        return f"dqlite-demo {_first_line('dpkg-query', '-W', '-f', '${Version}', 'go-dqlite')}"

    @staticmethod
    def missing() -> str | None:
        return None if shutil.which("dqlite-demo") else "not installed: dqlite-demo (Debian: apt-get install go-dqlite)"


class Postgres(System):
    """A primary at station 1, and a standby at each other one, of which one has every commit on its disk."""

    name = kind = "postgresql"
    is_counted = False  # a process for each client

    def start(self) -> None:
        self.folder.mkdir()
        shutil.chown(self.folder, "postgres")
        others = [number for number in self.lab.stations if number > 1]
        self._as_postgres(1, "initdb", "-A", "trust", "-U", "postgres", "-N", "-D", str(self._data(1)))
        names = ", ".join(f"s{number}" for number in others)
        with (self._data(1) / "postgresql.conf").open("a") as file:
            file.write(
                f"unix_socket_directories = ''\nsynchronous_commit = on\nsynchronous_standby_names = 'ANY 1 ({names})'\n"
                "max_connections = 300\n"
            )
        with (self._data(1) / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        self._serve(1)
        self.until("PostgreSQL does not answer", 1, self._psql("SELECT 1"), "1")
        for number in others:
            uri = f"host={ip_address(1)} user=postgres application_name=s{number}"
            self._as_postgres(number, "pg_basebackup", "-d", uri, "-R", "-c", "fast", "-N", "-D", str(self._data(number)))
            self._serve(number)
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        self.until("PostgreSQL's standbys are not there", 1, self._psql(query), str(len(others)))

    def _data(self, number: int) -> Path:
        return self.folder / f"data-{number}"

    def _as_postgres(self, number: int, program: str, *arguments: str) -> str:
        return self.run(number, [*AS_POSTGRES, str(POSTGRES / program), *arguments])

    def _serve(self, number: int) -> None:
        self.spawn(number, [*AS_POSTGRES, str(POSTGRES / "postgres"), "-D", str(self._data(number)), "-h", ip_address(number)])

    def _psql(self, query: str) -> list[str]:
        return ["psql", "-h", ip_address(1), "-U", "postgres", "-d", "postgres", "-Atc", query]

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGQUIT)  # with its processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        super().stop()

    def target(self, station: int) -> str:
        return f"{ip_address(1)}:5432"

    def local(self, station: int) -> str:
        return f"{ip_address(station)}:5432"

    def version(self) -> str:
        return _first_line(str(POSTGRES / "postgres"), "--version")

    @staticmethod
    def missing() -> str | None:
        if not (POSTGRES / "postgres").exists() or shutil.which("psql") is None:
            return "not installed: PostgreSQL 15 (Debian: apt-get install postgresql-15)"
        return None if find_spec("psycopg2") else "not installed: psycopg2 (pip install psycopg2-binary)"


class MariaDb(System):
    """MariaDB with Galera, a node at each station; each commit is on the disk of the node that is written to."""

    name = kind = "mariadb"

    def start(self) -> None:
        self.folder.mkdir()
        shutil.chown(self.folder, "mysql")
        for number in self.lab.stations:
            argv = ["mariadb-install-db", "--no-defaults", "--user=mysql", "--auth-root-authentication-method=normal"]
            self.run(number, [*argv, f"--datadir={self._data(number)}"], 2 * START_S)
            self._serve(number)
            self.until(f"MariaDB of station {number} is not synced", number, self._client(number, SYNCED), "Synced")
        users = "CREATE DATABASE bench; CREATE USER bench@'%'; GRANT ALL ON bench.* TO bench@'%'"
        self.run(1, self._client(1, users))

    def _data(self, number: int) -> Path:
        return self.folder / f"data-{number}"

    def _serve(self, number: int) -> None:
        members = ",".join(ip_address(k) for k in self.lab.stations)
        options = [
            "--no-defaults", "--user=mysql", f"--datadir={self._data(number)}", f"--socket={self.folder}/{number}.sock",
            f"--pid-file={self.folder}/{number}.pid", f"--bind-address={ip_address(number)}", "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2", "--innodb-flush-log-at-trx-commit=1", "--max-connections=300", "--wsrep-on=ON",
            f"--wsrep-provider={GALERA}", f"--wsrep-cluster-address=gcomm://{members}", "--wsrep-sst-method=rsync",
            f"--wsrep-node-address={ip_address(number)}", f"--wsrep-node-name=n{number}", "--wsrep-cluster-name=bench",
        ]  # fmt: skip
        self.spawn(number, ["mariadbd", *options, *(["--wsrep-new-cluster"] if number == 1 else [])])

    def _client(self, number: int, query: str) -> list[str]:
        return ["mariadb", "--no-defaults", "-u", "root", f"--socket={self.folder}/{number}.sock", "-Ne", query]

    def target(self, station: int) -> str:
        return f"{ip_address(station)}:3306"

    def version(self) -> str:
        return _first_line("mariadbd", "--version")

    @staticmethod
    def missing() -> str | None:
        if shutil.which("mariadbd") is None or not GALERA.exists():
            return "not installed: MariaDB with Galera (Debian: apt-get install mariadb-server galera-4 rsync)"
        return None if find_spec("pymysql") else "not installed: PyMySQL (pip install PyMySQL)"


def _first_line(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False).stdout.split("\n", 1)[0].strip()


SYSTEMS: Final[dict[str, Any]] = {"etcd": Etcd, "dqlite": Dqlite, "postgresql": Postgres, "mariadb": MariaDb}
