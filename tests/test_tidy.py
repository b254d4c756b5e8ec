"""The shape of the code as a test: layers, purity of proto/, imports, sizes. Each check catches what is planted."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from zenjun.tools import imports, rules
from zenjun.tools.imports import C_FUNCTION, LAYERS, imported

ROOT = Path(__file__).resolve().parent.parent
SHELVES = ("work", "native", "frames", "spark", "tables", "judge", "look", "report")
"""Folders of tools/pcap in the order of the work: each may import what stands before it."""
IMPURE = frozenset(
    """asyncio concurrent contextvars ctypes datetime glob io logging mmap multiprocessing os pathlib pyroute2 queue random sched
    secrets select selectors shutil signal socket socketserver ssl subprocess tempfile threading time uuid uvloop""".split()  # noqa: SIM905
)
"""Sockets, clocks, loops, randomness, logs, files: none of them under proto/."""
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
"""Python and C alike. What is longer today is named below and leaves the list when it is short enough; neither list takes in
anything new."""
LONG_FILES = frozenset(
    """tests/e2e/test_membership.py tests/link/test_clients.py tests/paper/test_to_bus.py
    tests/sim/checkers.py tests/sim/cluster.py tests/sim/test_checkers.py
    tests/tools/test_bench.py tests/tools/test_cli.py tests/core/test_membership.py
    tests/proto/test_membership.py tests/proto/test_opening.py""".split()  # noqa: SIM905
)
LONG_FILE_LINES_MAX = 900
LONG_FUNCTIONS = frozenset(
    """daemon/datapath/turn.c:turn daemon/__main__.py:compose tests/sim/options.py:draw""".split()  # noqa: SIM905
)
"""file:function"""
LONG_FUNCTION_LINES_MAX = 90

Check = Callable[[str, ast.Module, str], Iterator[str]]


def impure(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """proto/ imports no socket, clock, loop, randomness, log or file, and opens no file."""
    if not name.startswith("proto/"):
        return
    for line, module in imported(name, tree):
        if module.split(".")[0] in IMPURE:
            yield f"{name}:{line}: proto/ must not import {module}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print", "__import__")
        ):
            yield f"{name}:{node.lineno}: proto/ must not call {node.func.id}()"


def upwards(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """tools -> daemon -> proto, never back; nothing imports tests."""
    layer = name.split("/")[0]
    if layer not in LAYERS:
        return
    for line, module in imported(name, tree):
        parts = module.split(".")
        if parts[0] == "tests":
            yield f"{name}:{line}: the product must not import {module}"
        if parts[0] == "zenjun" and len(parts) > 1 and parts[1] in LAYERS and LAYERS.index(parts[1]) > LAYERS.index(layer):
            yield f"{name}:{line}: {layer}/ must not import {module}"


def unshelved(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """In tools/pcap the folders follow the work, from frames to the report, and imports never run against it."""
    parts = name.split("/")
    if parts[:2] != ["tools", "pcap"] or len(parts) < 4:
        return
    if parts[2] not in SHELVES:
        yield f"{name}:1: {parts[2]}/ has no place in SHELVES"
        return
    for line, module in imported(name, tree):
        path = module.split(".")
        if path[:3] == ["zenjun", "tools", "pcap"] and len(path) > 3 and path[3] in SHELVES[SHELVES.index(parts[2]) + 1 :]:
            yield f"{name}:{line}: {parts[2]}/ must not import {module}"


def toplevel(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """The folders are imported as zenjun.*, never by their own names, which other people's packages have too."""
    for line, module in imported(name, tree):
        if module.split(".")[0] in LAYERS:
            yield f"{name}:{line}: import zenjun.{module}, not {module}"


def asserts(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """proto/ states invariants with ``invariant()``: -O deletes asserts."""
    if name.startswith("proto/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                yield f"{name}:{node.lineno}: assert; use invariant()"


def long_functions(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    """A smell, not a law: what concern wants to leave?"""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            allowed = LONG_FUNCTION_LINES_MAX if f"{name}:{node.name}" in LONG_FUNCTIONS else FUNCTION_LINES_MAX
            if lines > allowed:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines, more than {allowed}"


def long_file(name: str, tree: ast.Module, text: str) -> Iterator[str]:
    lines = text.count("\n")
    allowed = LONG_FILE_LINES_MAX if name in LONG_FILES else FILE_LINES_MAX
    if lines > allowed:
        yield f"{name}:1: {lines} lines, more than {allowed}"


CHECKS: tuple[Check, ...] = (impure, upwards, unshelved, toplevel, asserts, long_functions, long_file)


def violations(name: str, text: str) -> list[str]:
    tree = ast.parse(text, filename=name)
    return [message for check in CHECKS for message in check(name, tree, text)]


def python_files() -> list[Path]:
    return sorted(p for layer in (*LAYERS, "tests") for p in (ROOT / layer).rglob("*.py") if "__pycache__" not in p.parts)


def test_the_whole_tree_is_tidy() -> None:
    found = [message for p in python_files() for message in violations(str(p.relative_to(ROOT)), p.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("proto/x.py", "x = 1\nimport socket\n", "proto/x.py:2: proto/ must not import socket"),
        ("proto/x.py", "from time import monotonic_ns\n", "proto/x.py:1: proto/ must not import time"),
        ("proto/x.py", "def f():\n    import asyncio.events\n", "proto/x.py:2: proto/ must not import asyncio.events"),
        ("proto/core/x.py", "import random\n", "proto/core/x.py:1: proto/ must not import random"),
        ("proto/x.py", "import logging\nimport os\n", "proto/x.py:2: proto/ must not import os"),
        (
            "proto/wire.py",
            "def main():\n    import pathlib\n",
            "proto/wire.py:2: proto/ must not import pathlib",
        ),
        ("proto/x.py", "f = open('x')\n", "proto/x.py:1: proto/ must not call open()"),
        ("proto/x.py", "from ..daemon import config\n", "proto/x.py:1: proto/ must not import zenjun.daemon"),
        ("proto/core/x.py", "from ... import tools\n", "proto/core/x.py:1: proto/ must not import zenjun.tools"),
        ("daemon/x.py", "\nimport zenjun.tools.lab\n", "daemon/x.py:2: daemon/ must not import zenjun.tools.lab"),
        (
            "daemon/client/x.py",
            "from ...tools.cli import main\n",
            "daemon/client/x.py:1: daemon/ must not import zenjun.tools.cli",
        ),
        ("tools/x.py", "from tests.sim import cluster\n", "tools/x.py:1: the product must not import tests.sim"),
        (
            "tools/pcap/frames/x.py",
            "from ..tables import schema\n",
            "tools/pcap/frames/x.py:1: frames/ must not import zenjun.tools.pcap.tables",
        ),
        ("tools/pcap/odds/x.py", "", "tools/pcap/odds/x.py:1: odds/ has no place in SHELVES"),
        ("tools/x.py", "import daemon.config\n", "tools/x.py:1: import zenjun.daemon.config, not daemon.config"),
        ("tests/x.py", "from proto import wire\n", "tests/x.py:1: import zenjun.proto, not proto"),
        ("proto/x.py", "def f(x):\n    assert x\n", "proto/x.py:2: assert; use invariant()"),
        (
            "tools/x.py",
            "async def f():\n" + "    pass\n" * FUNCTION_LINES_MAX,
            f"tools/x.py:1: f has {FUNCTION_LINES_MAX + 1} lines, more than {FUNCTION_LINES_MAX}",
        ),
        ("tests/x.py", "\n" * (FILE_LINES_MAX + 1), f"tests/x.py:1: {FILE_LINES_MAX + 1} lines, more than {FILE_LINES_MAX}"),
    ],
)
def test_a_planted_violation_is_caught(name: str, text: str, expected: str) -> None:
    assert expected in violations(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proto/x.py", "from .timers import Timers\nfrom . import wire\nimport struct\n"),
        ("proto/core/x.py", "from ..errors import invariant\nfrom ._core import ffi\n"),
        ("daemon/x.py", "import asyncio\nfrom ..proto.engine import Engine\n"),
        ("tools/cli/x.py", "from ...daemon.client import connect\nfrom ..lab import lab\n"),
        ("tools/pcap/judge/x.py", "from ..tables import schema\nfrom . import blocks\n"),
    ],
)
def test_what_is_allowed_is_not_caught(name: str, text: str) -> None:
    assert violations(name, text) == []


# ---- sizes of C, and the exceptions


GENERATED_C = ("_core.c", "_datapath.c", "_ipc.c", "_load.c", "_pcap.c", "_vfs.c")


def c_files() -> dict[str, str]:
    """Our own, of all layers and of the tests."""
    return {
        str(p.relative_to(ROOT)): p.read_text()
        for layer in (*LAYERS, "tests")
        for p in (ROOT / layer).rglob("*.[ch]")
        if p.name not in GENERATED_C
    }


def c_functions(text: str) -> dict[str, int]:
    """Function → its lines, from its name to its closing brace; both stand as everywhere here."""
    return {match[1]: match[0].count("\n") + 1 for match in C_FUNCTION.finditer(text)}


def long_c(files: dict[str, str]) -> list[str]:
    out = []
    for name, text in files.items():
        lines = text.count("\n")
        allowed = LONG_FILE_LINES_MAX if name in LONG_FILES else FILE_LINES_MAX
        if lines > allowed:
            out.append(f"{name}:1: {lines} lines, more than {allowed}")
        for function, count in c_functions(text).items():
            allowed = LONG_FUNCTION_LINES_MAX if f"{name}:{function}" in LONG_FUNCTIONS else FUNCTION_LINES_MAX
            if count > allowed:
                out.append(f"{name}: {function} has {count} lines, more than {allowed}")
    return out


def test_no_c_file_or_function_is_too_long() -> None:
    files = c_files()
    assert sum(len(c_functions(text)) for text in files.values()) > 300, "functions are found"
    assert not long_c(files)


def test_long_c_is_caught() -> None:
    text = "static int f(int a,\n             int b)\n{\n" + "    a++;\n" * FUNCTION_LINES_MAX + "}\n"
    assert long_c({"proto/core/x.c": text}) == [
        f"proto/core/x.c: f has {FUNCTION_LINES_MAX + 4} lines, more than {FUNCTION_LINES_MAX}"
    ]
    text = "\n" * (FILE_LINES_MAX + 1)
    assert long_c({"proto/core/x.c": text}) == [f"proto/core/x.c:1: {FILE_LINES_MAX + 1} lines, more than {FILE_LINES_MAX}"]


def sizes(text: str, name: str) -> dict[str, int]:
    """Function → lines, of a Python or a C file."""
    if not name.endswith(".py"):
        return c_functions(text)
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {n.name: (n.end_lineno or n.lineno) - n.lineno + 1 for n in functions}


def needless(files: dict[str, str], long_files: Iterable[str], long_functions: Iterable[str]) -> list[str]:
    """Exceptions that nothing needs any more."""
    out = [name for name in long_files if files.get(name, "").count("\n") <= FILE_LINES_MAX]
    for entry in long_functions:
        name, _, function = entry.rpartition(":")
        if sizes(files.get(name, ""), name).get(function, 0) <= FUNCTION_LINES_MAX:
            out.append(entry)
    return out


def test_every_exception_is_needed() -> None:
    files = c_files() | {str(p.relative_to(ROOT)): p.read_text() for p in python_files()}
    assert needless(files, sorted(LONG_FILES), sorted(LONG_FUNCTIONS)) == [], "take them off the lists"


def test_a_needless_exception_is_caught() -> None:
    files = {"tools/x.py": "def f():\n    pass\n", "proto/core/x.c": "int g(void)\n{\n}\n"}
    found = needless(files, ["tools/x.py", "gone.py"], ["tools/x.py:f", "proto/core/x.c:g", "gone.py:f"])
    assert found == ["tools/x.py", "gone.py", "tools/x.py:f", "proto/core/x.c:g", "gone.py:f"]


# ---- who needs whom


def test_no_modules_import_each_other() -> None:
    graph = imports.python_graph(imports.sources(ROOT))
    assert len(graph) > 250 and imports.cycles(graph) == []


def test_a_cycle_of_modules_is_caught() -> None:
    files = {
        "tools/cli/a.py": "from . import b\n",
        "tools/cli/b.py": "def f():\n    from .c import g\n",
        "tools/cli/c.py": "from .a import h\n",
        "tools/cli/d.py": "from . import a\nif TYPE_CHECKING:\n    from . import e\n",
        "tools/cli/e.py": "from . import d\n",
    }
    assert imports.cycles(imports.python_graph(files)) == [["tools/cli/a.py", "tools/cli/b.py", "tools/cli/c.py"]]


@pytest.mark.parametrize("folder", imports.ACYCLIC_C)
def test_no_c_files_call_each_other(folder: str) -> None:
    files = {name: text for name, text in imports.sources(ROOT, "c").items() if str(Path(name).parent) == folder}
    graph = imports.c_graph(files)
    assert sum(len(needs) for needs in graph.values()) > 10 and imports.cycles(graph) == []


def test_a_cycle_of_c_files_is_caught() -> None:
    files = {
        "x/a.c": "int a(void)\n{\n    return b(1);\n}\n",
        "x/b.c": "int b(int k)\n{\n    return helper(k);\n}\n\nint twice(int k) { return 2 * k; }\n",
        "x/c.c": "/* a() */\nstatic int b(void)\n{\n    return 0;\n}\n\nint helper(int k)\n{\n    return b() + twice(k);\n}\n",
    }
    assert imports.c_graph(files) == {"x/a.c": {"x/b.c"}, "x/b.c": {"x/c.c"}, "x/c.c": {"x/b.c"}}
    assert imports.cycles(imports.c_graph(files)) == [["x/b.c", "x/c.c"]]


def test_the_files_of_the_data_path_are_listed_from_the_bottom_up() -> None:
    """internal.h says what each file is for, in an order in which each calls only those before it."""
    listed = re.findall(r"^ \* (\w+\.c) ", (ROOT / "daemon/datapath/internal.h").read_text(), re.MULTILINE)
    graph = imports.c_graph({n: text for n, text in imports.sources(ROOT, "c").items() if n.startswith("daemon/datapath/")})
    assert sorted(f"daemon/datapath/{name}" for name in listed) == sorted(graph)
    for name, needs in graph.items():
        assert all(listed.index(Path(other).name) < listed.index(Path(name).name) for other in needs), name


def test_the_picture_of_imports_has_no_cycle() -> None:
    assert imports.cycles(imports.rooms(imports.python_graph(imports.sources(ROOT)))) == []


TESTED_ELSEWHERE = frozenset({"netem"})
"""Folders whose tests tests/uml runs, under a kernel of its own."""


def strays(folders: dict[str, set[str]], script: str) -> list[str]:
    """Folders with tests that tools/test does not run, or that are no packages. folders: name → its files."""
    out = []
    for name, files in sorted(folders.items()):
        if any(file.startswith("test_") and file.endswith(".py") for file in files):
            if "__init__.py" not in files:
                out.append(f"tests/{name}: no __init__.py")
            if name not in TESTED_ELSEWHERE and not re.search(rf"\btests/{name}\b", script):
                out.append(f"tests/{name}: not in tools/test")
    return out


def test_every_folder_of_tests_is_run() -> None:
    folders = {p.name: {f.name for f in p.iterdir()} for p in (ROOT / "tests").iterdir() if p.is_dir()}
    assert len(folders) > 15 and strays(folders, (ROOT / "tools" / "test").read_text()) == []


def test_a_folder_that_is_not_run_is_caught() -> None:
    folders = {"a": {"__init__.py", "test_x.py"}, "b": {"test_y.py"}, "c": {"data.txt"}, "netem": {"__init__.py", "test_z.py"}}
    assert strays(folders, "pytest tests/b") == ["tests/a: not in tools/test", "tests/b: no __init__.py"]


# ---- rules of the protocols, and the tests that show them


def unruly(stated: Iterable[str], marked: Iterable[str]) -> list[str]:
    """Rules that no page states, and rules that no test shows."""
    stated, marked = set(stated), set(marked)
    return sorted(f"{name}: stated in no page" for name in marked - stated) + sorted(
        f"{name}: shown by no test" for name in stated - marked
    )


def test_every_rule_is_stated_and_shown() -> None:
    stated = rules.stated(ROOT)
    assert len(stated) > 30, "rules are found"
    assert unruly(stated, [*rules.marked(ROOT), *rules.broken(ROOT)]) == []
    assert set(stated) <= set(rules.marked(ROOT))


def test_a_rule_that_is_not_stated_or_not_shown_is_caught() -> None:
    text = '@rule("M4a", "M77")\n@pytest.mark.slow\ndef test_x():\n    pass\n'
    assert list(rules.marks("tests/x.py", text)) == [("M4a", "tests/x.py::test_x"), ("M77", "tests/x.py::test_x")]
    assert unruly(["M4a", "M5"], [name for name, _ in rules.marks("tests/x.py", text)]) == [
        "M77: stated in no page",
        "M5: shown by no test",
    ]


def test_the_index_of_rules_is_fresh() -> None:
    assert rules.page(ROOT) == (ROOT / "docs" / "rules.md").read_text(), "run: python -m zenjun.tools.generate"


def test_the_walk_sees_the_files() -> None:
    names = {str(p.relative_to(ROOT)) for p in python_files()}
    assert {"proto/engine.py", "proto/core/__init__.py", "tests/test_tidy.py"} <= names
