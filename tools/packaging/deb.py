"""``tools/package deb``: a Debian package for this machine's architecture and Python.

The payload is a virtual environment at /usr/lib/zenjun on the system's interpreter, with zenjun and what it imports from PyPI
inside, so that the package does not depend on the versions that a Debian release happens to have. Everything around it (units,
users, folders, scripts, dependencies on libraries) is debhelper's work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from email.utils import formatdate
from importlib import metadata
from pathlib import Path
from typing import Final

from ...daemon import config
from .manpages import pages

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
PREFIX: Final = Path("/usr/lib/zenjun")
NEEDED: Final = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "gcc": "gcc", "git": "git"}
SOURCES: Final = ("proto", "daemon", "tools", "pyproject.toml", "setup.py", "README.md", "LICENSE")
UNITS: Final = (
    "zenjund.service", "zenjund.socket", "zenjund@.service", "zenjund@.socket", "zenjun-directory.service",
    "zenjun-directory@.service", "zenjun-db.service", "zenjun-db@.service",
)  # fmt: skip
LAUNCHER: Final = "#!{python} -I\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
SCRIPTS: Final = {
    "usr/bin/zenjun": "zenjun.tools.command",
    "usr/sbin/zenjund": "zenjun.daemon.__main__",
    "usr/sbin/zenjun-directory": "zenjun.daemon.directory.__main__",
    "usr/sbin/zenjun-db": "zenjun.daemon.database.__main__",
    "usr/sbin/zenjun-corosync": "zenjun.daemon.corosync.__main__",
}
MAINTAINER: Final = "The zenjun authors <zenjun@localhost>"
BUILD_S: Final = 600


class PackageError(Exception):
    """The package cannot be made; one line for the person who wanted it."""


def build(out: Path, work: Path) -> Path:
    """Make the package in ``out`` and return its path; ``work`` is emptied first. Raises PackageError."""
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise PackageError(f"{program} is not installed: apt-get install {package}")
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "zenjun"
    payload = tree / "payload"
    payload.mkdir(parents=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", _commit_time())
    site = _environment(payload, work)
    _scripts(payload)
    _texts(payload, site)
    _debian(tree)
    os.environ["DEB_BUILD_OPTIONS"] = "noautodbgsym"
    _run(["dpkg-buildpackage", "-b", "-us", "-uc", "-nc", "-d"], cwd=tree)
    made = list(work.glob("zenjun_*.deb"))
    if len(made) != 1:
        raise PackageError(f"dpkg-buildpackage made {[p.name for p in made]}: one package was expected")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(made[0], out / made[0].name))


def _environment(payload: Path, work: Path) -> Path:
    """The virtual environment with everything installed; returns its site-packages."""
    python = _system_python()
    sources = work / "sources"
    sources.mkdir()
    for name in SOURCES:
        origin = ROOT / name
        if origin.is_dir():
            # Objects of the checkout are not taken over: they were built for whoever works there.
            shutil.copytree(origin, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.o"))
        else:
            shutil.copy2(origin, sources / name)
    builder = work / "builder"
    _run([str(python), "-m", "venv", str(builder)])
    pip = [str(builder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "-w", str(work / "wheels"), str(sources)])
    prefix = payload / PREFIX.relative_to("/")
    version = f"python{python.name.removeprefix('python')}"
    site = prefix / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    wheel = next((work / "wheels").glob("zenjun-*.whl"))
    _run([*pip, "install", "--no-compile", "--target", str(site), f"{wheel}[dns,db]"])
    shutil.rmtree(site / "bin", ignore_errors=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3").symlink_to(python)
    # The system's packages stand behind ours: python3-scapy for `zenjun sniff`.
    (prefix / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = true\n")
    return site


def _system_python() -> Path:
    """The interpreter that Debian's python3 is, with its version in its name."""
    found = Path("/usr/bin/python3").resolve()
    if not found.exists() or not found.name.startswith("python3."):
        raise PackageError("this system has no /usr/bin/python3: apt-get install python3 python3-venv python3-dev")
    if tuple(map(int, found.name.removeprefix("python").split("."))) < (3, 11):
        raise PackageError(f"{found.name} is too old: zenjun needs Python 3.11")
    return found


def _scripts(payload: Path) -> None:
    for name, module in SCRIPTS.items():
        script = payload / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(LAUNCHER.format(python=PREFIX / "bin" / "python3", module=module))
        script.chmod(0o755)


def _texts(payload: Path, site: Path) -> None:
    """Manual pages, completions, an example configuration, and whose work is inside."""
    for name, text in pages().items():
        folder = payload / "usr/share/man" / f"man{name.rsplit('.', 1)[1]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    documents = payload / "usr/share/doc/zenjun"
    (documents / "examples").mkdir(parents=True)
    shutil.copy2(HERE / "realtime.conf", documents / "examples")
    (documents / "docs").mkdir()
    shutil.copy2(ROOT / "README.md", documents)
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.svg")]:
        shutil.copy2(page, documents / "docs")
    for part in ("adr", "examples"):  # the pages refer to them
        shutil.copytree(ROOT / "docs" / part, documents / "docs" / part, ignore=shutil.ignore_patterns("__pycache__"))
    (documents / "examples" / "zenjund.toml").write_text(config.example())
    (documents / "copyright").write_text(_copyright(site))
    folder = payload / "usr/share/bash-completion/completions"
    folder.mkdir(parents=True)
    text = subprocess.run(
        [sys.executable, "-c", "from zenjun.tools.command import main; main()", "completion", "bash"],
        capture_output=True, text=True, check=True, timeout=BUILD_S,
    ).stdout  # fmt: skip
    (folder / "zenjun").write_text(text)


def _copyright(site: Path) -> str:
    """Debian's machine-readable form: zenjun's licence, and for each package inside what its own metadata says."""
    out = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: zenjun",
        "",
        "Files: *",
        "Copyright: the zenjun authors",
        "License: Apache-2.0",
    ]
    for found in sorted(metadata.distributions(path=[str(site)]), key=lambda d: d.metadata["Name"].lower()):
        name = found.metadata["Name"]
        if name == "zenjun":
            continue
        about = found.metadata.json
        licence = str(about.get("license_expression") or about.get("license") or "").strip().splitlines()
        trove = [c.rsplit(" :: ", 1)[1] for c in about.get("classifier", ()) if c.startswith("License :: ")]
        folder = PREFIX / "lib" / site.parent.name / "site-packages" / f"{Path(str(found._path)).name}"  # type: ignore[attr-defined]
        out += [
            "",
            f"Files: {folder}/*",
            f"Copyright: the authors of {name} {found.version}",
            f"License: {(licence or trove or ['see the file'])[0].replace(' ', '-')}",
            f"Comment: {name}, from PyPI, with its own licence file in that folder.",
        ]
    out += ["", "License: Apache-2.0", " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."]
    return "\n".join(out) + "\n"


def _debian(tree: Path) -> None:
    """The debian/ folder: what is kept in the repository, the units, and the version."""
    shutil.copytree(HERE / "debian", tree / "debian")
    units = tree / "payload/lib/systemd/system"
    units.mkdir(parents=True)
    for name in UNITS:
        shutil.copy2(HERE / name, units / name)
    for name in ("zenjun.sysusers", "zenjun.tmpfiles"):
        shutil.copy2(HERE / name, tree / "debian" / name)
    shutil.copy2(ROOT / "CHANGELOG.md", tree)
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    entry = f"zenjun ({version()}-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}\n"
    (tree / "debian" / "changelog").write_text(entry)
    name = _system_python().name
    minor = int(name.rsplit(".", 1)[1])
    (tree / "python-depends").write_text(f"{name}, python3 (>= 3.{minor}~), python3 (<< 3.{minor + 1}~)\n")


def version() -> str:
    """The package's version, from pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _commit_time() -> str:
    """When the sources were last changed: the same sources give the same package."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int(time.time()))


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        raise PackageError(f"{' '.join(command)}: not finished within {BUILD_S} s") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise PackageError(f"{' '.join(command)}: exit code {done.returncode}\n{last}")


def main(argv: Sequence[str]) -> int:
    """Command line of tools/package."""
    p = argparse.ArgumentParser(prog="tools/package", description="Make a package of this checkout.")
    p.add_argument("kind", choices=["deb"], help="deb: for this machine's Debian or Ubuntu")
    p.add_argument("--out", type=Path, default=ROOT / "out" / "packages", help="where it goes (default: out/packages)")
    arguments = p.parse_args(argv)
    try:
        made = build(arguments.out.resolve(), ROOT / "out" / "package-build")
    except PackageError as error:
        sys.stderr.write(f"tools/package: {error}\n")
        return 1
    sys.stdout.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
