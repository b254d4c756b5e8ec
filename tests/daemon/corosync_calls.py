"""Calls the functions of Debian's corosync libraries, good and bad arguments, and prints what they return: a line of JSON each.

``python -m tests.daemon.corosync_calls``, where a server is: corosync itself, alone on node 1, to store what it answers
(``corosync-answers.txt``), or the stand-in, to compare (``test_corosync_calls.py``). What differs between two runs of one server
(pids, ring numbers) is left out.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any, Final

from cffi import FFI

from .corosync_calls_more import CDEF, more
from .corosync_capture import LIBRARIES

ONE: Final = 1
"""Of a dispatch: wait for one callback."""
GROUP: Final = b"a-group"
MORE: Final = """
int cpg_flow_control_state_get(uint64_t, int*); int cpg_max_atomic_msgsize_get(uint64_t, uint32_t*);
"""


class Calls:
    def __init__(self) -> None:
        self.ffi: Any = FFI()
        self.ffi.cdef(LIBRARIES + MORE + CDEF)
        self.keep: list[Any] = []
        self.pid = os.getpid()

    def say(self, what: str, *values: Any) -> None:
        print(json.dumps([what, *values]), flush=True)

    def name(self, text: bytes) -> Any:
        return self.ffi.new("cpg_name*", [len(text), text])

    def callback(self, signature: str, what: str, kept: Any) -> Any:
        function = self.ffi.callback(signature, lambda *arguments: self.say(what, *kept(*arguments[1:])))
        self.keep.append(function)
        return self.ffi.cast("void*", function)

    def addresses(self, found: Any, count: int) -> list[list[Any]]:
        return [[a.nodeid, "own" if a.pid == self.pid else a.pid, a.reason] for a in found[0:count]]

    # ---- libcpg

    def cpg(self) -> None:
        ffi, lib, say = self.ffi, self.ffi.dlopen("libcpg.so.4"), self.say
        lists = "cpg_address*, size_t, cpg_address*, size_t, cpg_address*, size_t"
        text = "void(uint64_t, cpg_name*, uint32_t, uint32_t, char*, size_t)"
        deliver = self.callback(text, "deliver", lambda group, node, pid, data, n: [node, n])
        confchg = self.callback(
            f"void(uint64_t, cpg_name*, {lists})",
            "confchg",
            lambda group, *x: [self.addresses(x[k], x[k + 1]) for k in (0, 2, 4)],
        )
        totem = self.callback("void(uint64_t, ring_id, uint32_t, uint32_t*)", "totem", lambda ring, n, nodes: [list(nodes[0:n])])
        model = ffi.new("cpg_v1*", [1, deliver, confchg, totem, 1])
        handles = ffi.new("uint64_t[2]")
        number, size, node = ffi.new("int*"), ffi.new("uint32_t*"), ffi.new("unsigned*")
        for k in (0, 1):
            say("cpg_model_initialize", lib.cpg_model_initialize(handles + k, 1, model, ffi.NULL))
        handle = handles[0]
        group = self.name(GROUP)
        say("cpg_leave, not joined", lib.cpg_leave(handle, group))
        say("cpg_join", lib.cpg_join(handle, group))
        for _ in ("confchg", "totem"):
            say("cpg_dispatch", lib.cpg_dispatch(handle, ONE))
        say("cpg_join again", lib.cpg_join(handle, group))
        say("cpg_join, same process", lib.cpg_join(handles[1], group))
        say("cpg_join, no name", lib.cpg_join(handles[1], self.name(b"")))
        for message in (b"", b"one", b"x" * 5000):
            data = ffi.new("char[]", message)
            say("cpg_mcast_joined", lib.cpg_mcast_joined(handle, 2, ffi.new("struct iovec[]", [[data, len(message)]]), 1))
            say("cpg_dispatch", lib.cpg_dispatch(handle, ONE))
        found, count = ffi.new("cpg_address[384]"), ffi.new("int*")
        say("cpg_membership_get", lib.cpg_membership_get(handle, group, found, count), self.addresses(found, count[0]))
        code = lib.cpg_membership_get(handle, self.name(b"none"), found, count)
        say("cpg_membership_get, no group", code, count[0])
        say("cpg_local_get", lib.cpg_local_get(handle, node), node[0])
        say("cpg_flow_control_state_get", lib.cpg_flow_control_state_get(handle, number), number[0])
        say("cpg_max_atomic_msgsize_get", lib.cpg_max_atomic_msgsize_get(handle, size), size[0])
        iteration, one = ffi.new("uint64_t*"), ffi.new("description*")
        for kind in (1, 2, 3, 4):
            code = lib.cpg_iteration_initialize(handle, kind, group, iteration)
            say("cpg_iteration_initialize", kind, code)
            while code == 1:
                code = lib.cpg_iteration_next(iteration[0], one)
                pid = "own" if one.pid == self.pid else one.pid
                say("cpg_iteration_next", code, *([one.nodeid, pid] if code == 1 and kind != 1 else []))
            if kind < 4:
                say("cpg_iteration_finalize", lib.cpg_iteration_finalize(iteration[0]))
        say("cpg_leave", lib.cpg_leave(handle, group))
        say("cpg_dispatch", lib.cpg_dispatch(handle, ONE))
        say("cpg_leave again", lib.cpg_leave(handle, group))
        say("cpg_finalize", lib.cpg_finalize(handle), lib.cpg_finalize(handles[1]))

    # ---- libquorum, libvotequorum

    def quorum(self) -> None:
        ffi, lib, say = self.ffi, self.ffi.dlopen("libquorum.so.5"), self.say
        v0 = self.callback(
            "void(uint64_t, uint32_t, uint64_t, uint32_t, uint32_t*)", "quorum V0", lambda on, seq, n, x: [on, list(x[0:n])]
        )
        v1 = self.callback(
            "void(uint64_t, uint32_t, ring_id, uint32_t, uint32_t*)", "quorum V1", lambda on, ring, n, x: [on, list(x[0:n])]
        )
        lists = "uint32_t, uint32_t*, uint32_t, uint32_t*, uint32_t, uint32_t*"
        nodes = self.callback(
            f"void(uint64_t, ring_id, {lists})", "nodelist", lambda ring, *x: [list(x[k + 1][0 : x[k]]) for k in (0, 2, 4)]
        )
        handle, kind, quorate = ffi.new("uint64_t*"), ffi.new("uint32_t*"), ffi.new("int*")
        for model, data in ((0, [0, v0, ffi.NULL]), (1, [1, v1, nodes])):
            code = lib.quorum_model_initialize(handle, model, ffi.new("quorum_model*", data), kind, ffi.NULL)
            say("quorum_model_initialize", model, code, kind[0])
            say("quorum_getquorate", lib.quorum_getquorate(handle[0], quorate), quorate[0])
            say("quorum_trackstop, not tracking", lib.quorum_trackstop(handle[0]))
            for flags in (1, 2, 2, 4, 0):
                say("quorum_trackstart", flags, lib.quorum_trackstart(handle[0], flags))
                say("quorum_dispatch", lib.quorum_dispatch(handle[0], 2))
            say("quorum_trackstop", lib.quorum_trackstop(handle[0]), lib.quorum_trackstop(handle[0]))
            say("quorum_finalize", lib.quorum_finalize(handle[0]))

    def votequorum(self) -> None:
        ffi, lib, say = self.ffi, self.ffi.dlopen("libvotequorum.so.8"), self.say
        signature = "void(uint64_t, uint64_t, uint32_t, uint32_t, uint64_t*)"
        quorum = self.callback(
            signature, "votes quorum", lambda context, on, n, x: [context, on, [[v & 0xFFFFFFFF, v >> 32] for v in x[0:n]]]
        )
        expected = self.callback("void(uint64_t, uint64_t, uint32_t)", "votes expected", lambda context, n: [context, n])
        nodes = self.callback(
            "void(uint64_t, uint64_t, ring_id, uint32_t, uint32_t*)",
            "votes nodelist",
            lambda context, ring, n, x: [context, list(x[0:n])],
        )
        handle, info = ffi.new("uint64_t*"), ffi.new("info*")
        callbacks = ffi.new("votequorum_callbacks*", [quorum, expected, nodes])
        say("votequorum_initialize", lib.votequorum_initialize(handle, callbacks))
        for node in (0, 1, 7):
            code = lib.votequorum_getinfo(handle[0], node, info)
            say("votequorum_getinfo", node, code, *(list(info.numbers[0:8]) if code == 1 else []))
        say("votequorum_trackstop, not tracking", lib.votequorum_trackstop(handle[0]))
        for flags in (1, 2, 2):
            say("votequorum_trackstart", flags, lib.votequorum_trackstart(handle[0], 99, flags))
            say("votequorum_dispatch", lib.votequorum_dispatch(handle[0], 2))
        for number in (0, 1, 2, 3, 5, 6):
            say("votequorum_setexpected", number, lib.votequorum_setexpected(handle[0], number))
        for node, votes in ((1, 1), (9, 1), (1, 5)):
            say("votequorum_setvotes", node, votes, lib.votequorum_setvotes(handle[0], node, votes))
        say("votequorum_getinfo", lib.votequorum_getinfo(handle[0], 1, info), list(info.numbers[0:8]))
        say("votequorum_trackstop", lib.votequorum_trackstop(handle[0]), lib.votequorum_trackstop(handle[0]))

    # ---- libcmap

    def cmap(self) -> None:
        ffi, lib, say = self.ffi, self.ffi.dlopen("libcmap.so.4"), self.say

        def changed(_: int, track: int, event: int, key: Any, new: Any, old: Any, data: Any) -> None:
            values = [[v.type, bytes(ffi.buffer(v.data, v.length)).hex()[:40] if v.length else ""] for v in (new, old)]
            say("changed", event, ffi.string(key).decode(), *values)

        self.keep.append(ffi.callback("void(uint64_t, uint64_t, int32_t, const char*, value, value, void*)", changed))
        function = ffi.cast("void*", self.keep[-1])
        handle, number, track = ffi.new("uint64_t*"), ffi.new("uint64_t*"), ffi.new("uint64_t*")
        for which in (0, 1, 2):
            say("cmap_initialize_map", which, lib.cmap_initialize_map(handle, which))
        lib.cmap_initialize_map(handle, 0)
        h = handle[0]
        for flags in (0, 7, 16, 15):
            say("cmap_track_add", flags, lib.cmap_track_add(h, b"my.", flags, function, ffi.NULL, track))
        say("cmap_track_add, no key", lib.cmap_track_add(h, ffi.NULL, 15, function, ffi.NULL, number))
        say("cmap_track_delete", lib.cmap_track_delete(h, number[0]), lib.cmap_track_delete(h, 12345))
        self._set(lib, h)
        say("cmap_dispatch", lib.cmap_dispatch(h, 2))
        self._get(lib, h)
        for call in (lib.cmap_inc, lib.cmap_dec):
            for key in (b"my.u8", b"my.text", b"my.none", b"nodelist.local_node_pos"):
                say("cmap_inc, cmap_dec", key.decode(), call(h, key))
        for key in (b"my.u8", b"my.u8", b"x", b"nodelist.node.0.nodeid", b"runtime.members.1.status"):
            say("cmap_delete", key.decode(), lib.cmap_delete(h, key))
        say("cmap_iter_init", lib.cmap_iter_init(h, b"my.", number))
        buffer, length, kind = ffi.new("char[256]"), ffi.new("size_t*"), ffi.new("int*")
        while (code := lib.cmap_iter_next(h, number[0], buffer, length, kind)) == 1:
            say("cmap_iter_next", ffi.string(buffer).decode(), length[0], kind[0])
        say("cmap_iter_next", code)
        say("cmap_iter_finalize", lib.cmap_iter_finalize(h, number[0]), lib.cmap_iter_finalize(h, 999))
        say("cmap_dispatch", lib.cmap_dispatch(h, 2))
        say("cmap_finalize", lib.cmap_finalize(h))

    def _set(self, lib: Any, h: int) -> None:
        say = self.say
        for key, data, kind in (
            *((b"my.u8", b"\7", 2), (b"my.u8", b"\7", 2), (b"my.u8", b"\x08", 2), (b"my.u8", b"\7\7", 2), (b"my.u8", b"", 2)),
            *((b"my.text", b"value\0", 11), (b"my.text", b"other", 11), (b"my.text", b"a\0b\0", 11), (b"my.empty", b"", 11)),
            *(
                (b"my.binary", b"\0\1\2", 12),
                (b"my.type", b"\0", 99),
                (b"my.big", b"x" * 16384, 12),
                (b"my.bigger", b"x" * 16385, 12),
            ),
            *((b"x", b"\0", 2), (b"bad key", b"\0", 2), (b"my." + b"k" * 252, b"\0", 2), (b"my." + b"k" * 253, b"\0", 2)),
            *((b"nodelist.node.0.name", b"x\0", 11), (b"totem.cluster_name", b"x\0", 11), (b"totem.token", b"\0\0\1\0", 6)),
            *((b"runtime.config.totem.token", b"\0\0\1\0", 6), (b"uidgid.gid.77", b"\1", 2), (b"uidgid.config.gid.7", b"\1", 2)),
            *((b"logging.debug", b"on\0", 11), (b"internal_configuration.service.0.ver", b"\0\0\0\0", 6)),
        ):
            code = lib.cmap_set(h, key, data, len(data), kind)
            say("cmap_set", key.decode()[:20], len(data), kind, code)

    def _get(self, lib: Any, h: int) -> None:
        ffi, say = self.ffi, self.say
        for key in (
            b"my.u8",
            b"my.text",
            b"my.empty",
            b"my.binary",
            b"my.none",
            b"x",
            b"nodelist.node.0.nodeid",
            b"totem.version",
        ):
            for room in (0, 2, 256):
                buffer, length, kind = ffi.new("char[256]"), ffi.new("size_t*", room), ffi.new("int*")
                code = lib.cmap_get(h, key, buffer if room else ffi.NULL, length, kind)
                good = [length[0], kind[0], bytes(ffi.buffer(buffer, length[0])).hex() if room else ""]
                say("cmap_get", key.decode(), room, code, *(good if code == 1 else []))

    # ---- libcfg

    def cfg(self) -> None:
        ffi, lib, say = self.ffi, self.ffi.dlopen("libcfg.so.7"), self.say
        callbacks = ffi.new("void*[1]", [self.callback("void(uint64_t, int)", "shutdown", lambda flags: [flags])])
        handles, count, node = ffi.new("uint64_t[2]"), ffi.new("unsigned*"), ffi.new("unsigned*")
        for k in (0, 1):
            say("corosync_cfg_initialize", lib.corosync_cfg_initialize(handles + k, callbacks))
        h = handles[0]
        say("corosync_cfg_local_get", lib.corosync_cfg_local_get(h, node), node[0])
        found, number, status = ffi.new("address[8]"), ffi.new("int*"), ffi.new("status*")
        for which in (0, 1, 9):
            code = lib.corosync_cfg_get_node_addrs(h, which, 8, number, found)
            text = [number[0], found[0].length, bytes(found[0].address)[4:8].hex()] if code == 1 else []
            say("corosync_cfg_get_node_addrs", which, code, *text)
        for which, version in ((1, 1), (9, 1), (1, 7)):
            code = lib.corosync_cfg_node_status_get(h, which, version, status)
            good = [status.node, *status.numbers, status.links[0].enabled] if code == 1 else []
            say("corosync_cfg_node_status_get", which, version, code, *good[:4])
        names, texts = ffi.new("char***"), ffi.new("char***")
        code = lib.corosync_cfg_ring_status_get(h, names, texts, count)
        say("corosync_cfg_ring_status_get", code, count[0], ffi.string(names[0][0]).decode())
        say("corosync_cfg_kill_node, unknown", lib.corosync_cfg_kill_node(h, 9, b"enough"))
        say("corosync_cfg_trackstop", lib.corosync_cfg_trackstop(handles[1]))
        say("corosync_cfg_trackstart", lib.corosync_cfg_trackstart(handles[1], 0), lib.corosync_cfg_trackstart(handles[1], 0))
        say("corosync_cfg_replyto_shutdown, none", lib.corosync_cfg_replyto_shutdown(handles[1], 1))
        say("corosync_cfg_reload_config", lib.corosync_cfg_reload_config(h))
        self._refuse(lib, handles)

    def _refuse(self, lib: Any, handles: Any) -> None:
        """Somebody wants an end, and a program says no."""
        asked: list[int] = []
        thread = threading.Thread(target=lambda: asked.append(lib.corosync_cfg_try_shutdown(handles[0], 0)))
        thread.start()
        self.say("corosync_cfg_dispatch", lib.corosync_cfg_dispatch(handles[1], ONE))
        self.say("corosync_cfg_replyto_shutdown", lib.corosync_cfg_replyto_shutdown(handles[1], 0))
        thread.join()
        self.say("corosync_cfg_try_shutdown", asked[0])


def main() -> None:
    calls = Calls()
    for part in (calls.cpg, calls.quorum, calls.votequorum, calls.cmap, calls.cfg):
        part()
    more(calls)


if __name__ == "__main__":
    main()
