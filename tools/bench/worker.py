"""``python -m zenjun.tools.bench.worker load|raw|floor|bare …``: one process at one station; C from its first line on."""

from __future__ import annotations

import sys

from ._load import ffi, lib


def main(argv: list[str]) -> int:
    """Run the named program with the other arguments; its exit status (load.h)."""
    programs = {"load": lib.zl_load_main, "raw": lib.zl_raw_main, "floor": lib.zl_floor_main, "bare": lib.zl_bare_main}
    if not argv or argv[0] not in programs:
        sys.stderr.write("usage: python -m zenjun.tools.bench.worker load|raw|floor|bare --name value ...\n")
        return 2
    strings = [ffi.new("char[]", a.encode()) for a in argv[1:]]  # owns the bytes while C runs
    return int(programs[argv[0]](len(strings), strings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
