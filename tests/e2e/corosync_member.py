"""A program of Debian's libcpg: ``python -m tests.e2e.corosync_member GROUP``.

Lines of standard input: ``send COUNT SIZE LABEL``, ``leave``, ``join``, ``ahead COUNT SIZE`` (send, and take nothing until there
is no room for more), ``many COUNT`` (so many more connections, each alone in a group of its own, with a message to itself). Lines
of standard output, JSON: ["change", members, left, joined], ["message", node, pid, label, size], ["ring", node, seq, nodes],
["many", connections whose message has come], ["ahead", sent, come], ["error", what, code].
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, Final

from cffi import FFI

DECLARATIONS: Final = """
typedef struct { uint32_t length; char value[128]; } cpg_name;
typedef struct { uint32_t nodeid, pid, reason; } cpg_address;
typedef struct { uint32_t nodeid; uint64_t seq; } ring_id;
typedef struct { int model; void *deliver, *confchg, *totem; unsigned flags; } cpg_v1;
struct iovec { void *base; size_t length; };
int cpg_model_initialize(uint64_t*, int, void*, void*); int cpg_join(uint64_t, cpg_name*); int cpg_leave(uint64_t, cpg_name*);
int cpg_dispatch(uint64_t, int); int cpg_mcast_joined(uint64_t, int, struct iovec*, unsigned); int cpg_fd_get(uint64_t, int*);
"""
OK, TRY_AGAIN = 1, 6
ALL: Final = 2
"""Of cpg_dispatch: all that is there."""
AGREED: Final = 2
V1: Final = 1
MANY_S: Final = 60.0
INITIAL: Final = 1


def say(*words: Any) -> None:
    print(json.dumps(words), flush=True)


def library() -> Any:
    return FFI()


class Program:
    def __init__(self, group: str) -> None:
        self.came = 0
        """Messages."""
        self.ffi = library()
        self.ffi.cdef(DECLARATIONS)
        self.lib: Any = self.ffi.dlopen("libcpg.so.4")
        lists = "cpg_address*, size_t, cpg_address*, size_t, cpg_address*, size_t"
        self.keep = [
            self.ffi.callback("void(uint64_t, cpg_name*, uint32_t, uint32_t, char*, size_t)", self.on_message),
            self.ffi.callback(f"void(uint64_t, cpg_name*, {lists})", self.on_change),
            self.ffi.callback("void(uint64_t, ring_id, uint32_t, uint32_t*)", self.on_ring),
        ]
        model = self.ffi.new("cpg_v1*", [V1, *(self.ffi.cast("void*", f) for f in self.keep), INITIAL])
        handle, number = self.ffi.new("uint64_t*"), self.ffi.new("int*")
        self.name = self.ffi.new("cpg_name*", [len(group), group.encode()])
        self.check("initialize", self.lib.cpg_model_initialize(handle, V1, model, self.ffi.NULL))
        self.handle = handle[0]
        self.check("fd_get", self.lib.cpg_fd_get(self.handle, number))
        self.fd = int(number[0])
        self.check("join", self.lib.cpg_join(self.handle, self.name))

    def check(self, what: str, code: int) -> None:
        if code != OK:
            say("error", what, code)

    def on_message(self, _: int, group: Any, node: int, pid: int, data: Any, size: int) -> None:
        self.came += 1
        label, _bar, rest = bytes(self.ffi.buffer(data, size)).partition(b"|")
        intact = rest == b"." * len(rest)
        say("message", node, pid, label.decode() if intact else "damaged", size)

    def on_change(self, _: int, group: Any, *lists: Any) -> None:
        say("change", *([[a.nodeid, a.pid, a.reason] for a in lists[k][0 : lists[k + 1]]] for k in (0, 2, 4)))

    def on_ring(self, _: int, ring: Any, count: int, nodes: Any) -> None:
        say("ring", ring.nodeid, ring.seq, list(nodes[0:count]))

    def send(self, count: int, size: int, label: str) -> None:
        for k in range(count):
            message = f"{label}{k}|".encode().ljust(size, b".")
            data = self.ffi.new("char[]", message)
            part = self.ffi.new("struct iovec[]", [[data, len(message)]])
            while (code := self.lib.cpg_mcast_joined(self.handle, AGREED, part, 1)) == TRY_AGAIN:
                self.dispatch()
                time.sleep(0.001)
            self.check("mcast", code)
            self.dispatch()

    def ahead(self, count: int, size: int) -> None:
        """Send, and take nothing, until the library has said for half a second that there is no room. Then take all."""
        data, number = self.ffi.new("char[]", b"ahead|".ljust(size, b".")), 0
        part, since = self.ffi.new("struct iovec[]", [[data, size]]), time.monotonic()
        while number < count and time.monotonic() - since < 0.5:
            code = self.lib.cpg_mcast_joined(self.handle, AGREED, part, 1)
            if code == OK:
                number, since = number + 1, time.monotonic()
            elif code == TRY_AGAIN:
                time.sleep(0.01)
            else:
                self.check("mcast", code)
                break
        end, self.came = time.monotonic() + MANY_S, 0
        while self.came < number and time.monotonic() < end:
            self.dispatch()
            time.sleep(0.001)
        say("ahead", number, self.came)

    def many(self, count: int) -> None:
        """Their messages are under way at the same time."""
        heard, text = set[int](), b"m" * 100
        deliver = self.ffi.callback(
            "void(uint64_t, cpg_name*, uint32_t, uint32_t, char*, size_t)",
            lambda handle, _group, _node, _pid, data, size: (
                heard.add(handle) if bytes(self.ffi.buffer(data, size)) == text else None
            ),
        )
        model = self.ffi.new("cpg_v1*", [V1, self.ffi.cast("void*", deliver), self.ffi.NULL, self.ffi.NULL, 0])
        self.keep += [deliver, model]
        handles = []
        for k in range(count):
            name = f"{k} of many".encode()
            handle = self.ffi.new("uint64_t*")
            self.check("initialize", self.lib.cpg_model_initialize(handle, V1, model, self.ffi.NULL))
            self.check("join", self.lib.cpg_join(handle[0], self.ffi.new("cpg_name*", [len(name), name])))
            handles.append(int(handle[0]))
        data = self.ffi.new("char[]", text)
        part = self.ffi.new("struct iovec[]", [[data, len(text)]])
        for each in handles:
            self.check("mcast", self.lib.cpg_mcast_joined(each, AGREED, part, 1))
        end = time.monotonic() + MANY_S
        while len(heard) < count and time.monotonic() < end:
            for each in handles:
                self.lib.cpg_dispatch(each, ALL)
            time.sleep(0.01)
        say("many", len(heard))

    def dispatch(self) -> None:
        code = self.lib.cpg_dispatch(self.handle, ALL)
        if code not in (OK, TRY_AGAIN):
            say("error", "dispatch", code)
            sys.exit(1)

    def run(self) -> None:
        text = ""
        os.set_blocking(0, False)
        while True:
            ready, _, _ = select.select([0, self.fd], [], [])
            if self.fd in ready:
                self.dispatch()
            if 0 in ready:
                data = os.read(0, 4096)
                if not data:
                    return
                *lines, text = (text + data.decode()).split("\n")
                for line in lines:
                    self.command(*line.split())

    def command(self, word: str, *words: str) -> None:
        if word == "send":
            self.send(int(words[0]), int(words[1]), words[2])
        elif word == "ahead":
            self.ahead(int(words[0]), int(words[1]))
        elif word == "many":
            self.many(int(words[0]))
        elif word == "leave":
            self.check("leave", self.lib.cpg_leave(self.handle, self.name))
        else:
            self.check("join", self.lib.cpg_join(self.handle, self.name))


if __name__ == "__main__":
    Program(sys.argv[1]).run()
