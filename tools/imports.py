"""Which file imports which, and which C file calls which: the picture of rooms in docs/architecture.md, and the search for
cycles.

    python -m zenjun.tools.imports             rooms (folders) with what each one imports or calls; then the cycles, if any
    python -m zenjun.tools.imports --files     the same for single files

Everything is read as text: nothing here imports what it looks at. An import counts anywhere in a file, except where only type
checkers read it. A C file calls another one when it names a function of that file before a parenthesis. tests/test_tidy.py fails
on a cycle of Python modules, and on one of the C files of a folder in ``ACYCLIC_C``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parent.parent
LAYERS: Final = ("proto", "daemon", "tools")
"""From the bottom: each may import the ones before it."""
ACYCLIC_C: Final = ("daemon/datapath", "tools/pcap/native")
"""Folders whose C files form a hierarchy. The files of ``proto/core`` do not: they are the methods of one struct."""
C_FUNCTION: Final = re.compile(r"^(?=[A-Za-z_])[^;{}#=]*?\b(\w+)\([^;{}]*\)\n?\s*\{$(.*?)^\}", re.MULTILINE | re.DOTALL)
_C_ONE_LINE: Final = re.compile(r"^(?=[A-Za-z_])[^;{}#=\n]*?\b(\w+)\([^;{}]*\)\s*\{[^\n]*\}$", re.MULTILINE)
_CALL: Final = re.compile(r"\b(\w+)(?=\s*\()")
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_BLOCK: Final = re.compile(r"(<!-- generated: imports-diagram -->\n).*?(<!-- end -->)", re.DOTALL)

Graph: TypeAlias = dict[str, set[str]]
"""What each one needs; every name that is needed is a key, too."""


def sources(root: Path = ROOT, suffix: str = "py") -> dict[str, str]:
    """The text of every Python file of the product by its path below the checkout (``suffix`` c: of every C file but cffi's)."""
    paths = (path for layer in LAYERS for path in (root / layer).rglob(f"*.{suffix}") if "__pycache__" not in path.parts)
    return {str(p.relative_to(root)): p.read_text() for p in sorted(paths) if suffix == "py" or not p.name.startswith("_")}


def imported(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything imported; relative imports resolved by the file's place."""
    package = ("zenjun", *Path(name).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def _without_guarded(tree: ast.Module) -> ast.Module:
    """Without what only type checkers read."""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    return tree


@cache
def _needs(name: str, text: str) -> frozenset[str]:
    """Dotted names that a file needs when it runs. Cached: one process asks for the same files again and again, and parsing them
    is what takes the time."""
    return frozenset(target for _, target in imported(name, _without_guarded(ast.parse(text))))


def python_graph(files: Mapping[str, str]) -> Graph:
    """Which file imports which. A package is left out where one of its modules is imported as well."""
    by_module = {"zenjun." + name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in files}
    graph: Graph = {}
    for module, name in by_module.items():
        needs = set(_needs(name, files[name])) & by_module.keys() - {module}
        needs -= {package for package in needs if any(target.startswith(f"{package}.") for target in needs)}
        graph[name] = {by_module[target] for target in needs}
    return graph


def c_graph(files: Mapping[str, str]) -> Graph:
    """Which C file calls a function of which other one. A name that several files have does not count."""
    texts = {name: _COMMENT.sub("", text) for name, text in files.items()}
    own: dict[str, set[str]] = {}
    shared: dict[str, set[str]] = {}
    for name, text in texts.items():
        for match in (*C_FUNCTION.finditer(text), *_C_ONE_LINE.finditer(text)):
            own.setdefault(name, set()).add(match[1])
            if not match[0].startswith("static"):
                shared.setdefault(match[1], set()).add(name)
    home = {function: min(names) for function, names in shared.items() if len(names) == 1}
    calls = {name: set(_CALL.findall(text)) - own.get(name, set()) for name, text in texts.items()}
    return {name: {home[function] for function in called if function in home} for name, called in calls.items()}


def cycles(graph: Graph) -> list[list[str]]:
    """The sets of names that need each other, sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    far = {name: reached(name) for name in graph}
    rings = {frozenset(n for n in far[m] if m in far[n]) for m in graph if m in far[m]}
    return sorted(sorted(ring) for ring in rings)


def _room(name: str) -> str:
    """The folder of a file, no deeper than two; the Python face of the C core belongs to ``proto``."""
    folder = "/".join(Path(name).parent.parts[:2])
    return "proto" if folder == "proto/core" else folder


def rooms(graph: Graph) -> Graph:
    """The same between folders, without what is not imported by others: single files in ``tools/`` and the short names."""
    out: Graph = {}
    for name, needs in graph.items():
        if (here := _room(name)) not in ("tools", "daemon/short"):
            out.setdefault(here, set()).update({_room(other) for other in needs} - {here, "tools"})
    return dict(sorted(out.items()))


def _without_shortcuts(graph: Graph) -> Graph:
    """Without the arrows that a longer way stands for. Only for a graph without cycles."""

    def leads(start: str, target: str) -> bool:
        return any(other == target or leads(other, target) for other in graph[start])

    return {
        room: {target for target in needs if not any(leads(other, target) for other in needs - {target})}
        for room, needs in graph.items()
    }


def diagram(files: Mapping[str, str]) -> str:
    """The rooms of the product for Mermaid: one box for each layer, an arrow from each room to those that it imports."""
    graph = _without_shortcuts(rooms(python_graph(files)))
    lines = ["```mermaid", "graph TD"]
    for layer in reversed(LAYERS):
        lines.append(f'    subgraph {layer}_layer["{layer}/"]')
        lines += [f'        {room.replace("/", "_")}["{room}"]' for room in graph if room.split("/")[0] == layer]
        lines.append("    end")
    for room, needs in graph.items():
        lines += [f"    {room.replace('/', '_')} --> {other.replace('/', '_')}" for other in sorted(needs)]
    return "\n".join([*lines, "```"])


def refresh(text: str, root: Path = ROOT) -> str:
    """docs/architecture.md with the picture of today's imports."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{diagram(sources(root))}\n\n{match[2]}", text)


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Command line: see the module's text. 1: there is a cycle where there must be none."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.imports", description="Imports and calls, and their cycles.")
    parser.add_argument("--files", action="store_true", help="files in place of folders")
    options = parser.parse_args(argv)
    python, calls = python_graph(sources(root)), c_graph(sources(root, "c"))
    for graph in (python, calls) if options.files else (rooms(python),):
        for name, needs in sorted(graph.items()):
            sys.stdout.write(f"{name}: {' '.join(sorted(needs)) or '-'}\n")
    found = cycles(python) + [ring for ring in cycles(calls) if ring[0].startswith(ACYCLIC_C)]
    for ring in found:
        sys.stdout.write(f"cycle: {' '.join(ring)}\n")
    sys.stdout.write("no cycle\n" if not found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
