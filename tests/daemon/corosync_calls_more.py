"""The rest of the libraries' functions, for ``corosync_calls.py``: contexts, descriptors, mapped messages, types of keys, quorum
devices."""

from __future__ import annotations

import os
import stat
from typing import Any, Final, Protocol

TYPES: Final = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float": "float",
    "double": "double",
}
"""Of libcmap's keys, and C's name of each."""
CDEF: Final = (
    "".join(
        f"int cmap_set_{t}(uint64_t, const char*, {c}); int cmap_get_{t}(uint64_t, const char*, {c}*);" for t, c in TYPES.items()
    )
    + "".join(
        f"int {lib}_context_get(uint64_t, void**); int {lib}_context_set(uint64_t, void*); int {lib}_fd_get(uint64_t, int*);"
        for lib in ("cpg", "quorum", "votequorum", "cmap")
    )
    + """
int cpg_initialize(uint64_t*, void*);
int votequorum_finalize(uint64_t); int votequorum_qdevice_poll(uint64_t, const char*, unsigned, ring_id);
int votequorum_qdevice_master_wins(uint64_t, const char*, unsigned);
int votequorum_qdevice_update(uint64_t, const char*, const char*);
int cmap_initialize(uint64_t*); int cmap_set_string(uint64_t, const char*, const char*);
int cmap_get_string(uint64_t, const char*, char**);
int corosync_cfg_fd_get(uint64_t, int*);
"""
)
NONE: Final = 0xDEAD
"""No handle."""
ONE: Final = 1
"""Of a dispatch: wait for one callback."""


class Calls(Protocol):
    ffi: Any

    def say(self, what: str, *values: Any) -> None: ...

    def name(self, text: bytes) -> Any: ...

    def callback(self, signature: str, what: str, kept: Any) -> Any: ...


def more(calls: Calls) -> None:
    cpg(calls)
    quorum(calls)
    votequorum(calls)
    cmap(calls)
    cfg(calls)


def common(calls: Calls, library: str, lib: Any, handle: int) -> None:
    """What all but libcfg have."""
    ffi, say = calls.ffi, calls.say
    context, number = ffi.new("void**"), ffi.new("int*", -1)
    get, put, fd = (getattr(lib, f"{library}_{what}") for what in ("context_get", "context_set", "fd_get"))
    say(f"{library}_context_set", put(handle, ffi.cast("void*", 0x1234)), put(NONE, ffi.NULL))
    say(f"{library}_context_get", get(handle, context), int(ffi.cast("uintptr_t", context[0])), get(NONE, context))
    say(f"{library}_fd_get", fd(handle, number), is_socket(number[0]), fd(NONE, number))


def is_socket(fd: int) -> bool:
    return fd >= 0 and stat.S_ISSOCK(os.fstat(fd).st_mode)


def cpg(calls: Calls) -> None:
    ffi, lib, say = calls.ffi, calls.ffi.dlopen("libcpg.so.4"), calls.say
    handle, buffer = ffi.new("uint64_t*"), ffi.new("void**")
    signature = "void(uint64_t, cpg_name*, uint32_t, uint32_t, char*, size_t)"
    deliver = calls.callback(
        signature, "deliver, mapped", lambda group, node, pid, data, n: [node, n, bytes(ffi.buffer(data, n)[:20]).decode()]
    )
    say("cpg_initialize", lib.cpg_initialize(handle, ffi.new("void*[2]", [deliver])))
    common(calls, "cpg", lib, handle[0])
    say("cpg_zcb_alloc", code := lib.cpg_zcb_alloc(handle[0], 4096, buffer), buffer[0] != ffi.NULL)
    if code == 1:
        say("cpg_zcb_mcast_joined, not joined", lib.cpg_zcb_mcast_joined(handle[0], 2, buffer[0], 100))
        say("cpg_join", lib.cpg_join(handle[0], calls.name(b"mapped")))
        say("cpg_dispatch", lib.cpg_dispatch(handle[0], ONE))
        for text in (b"", b"in a file", b"x" * 4096):
            ffi.memmove(buffer[0], text, len(text))
            say("cpg_zcb_mcast_joined", lib.cpg_zcb_mcast_joined(handle[0], 2, buffer[0], len(text)))
            say("cpg_dispatch", lib.cpg_dispatch(handle[0], ONE))
        say("cpg_zcb_free", lib.cpg_zcb_free(handle[0], buffer[0]))
    say("cpg_finalize", lib.cpg_finalize(handle[0]), lib.cpg_finalize(handle[0]))


def quorum(calls: Calls) -> None:
    ffi, lib, say = calls.ffi, calls.ffi.dlopen("libquorum.so.5"), calls.say
    handle, kind = ffi.new("uint64_t*"), ffi.new("uint32_t*")
    say("quorum_initialize", lib.quorum_initialize(handle, ffi.new("void*[1]"), kind), kind[0])
    common(calls, "quorum", lib, handle[0])
    say("quorum_finalize", lib.quorum_finalize(handle[0]), lib.quorum_finalize(handle[0]))


def votequorum(calls: Calls) -> None:
    ffi, lib, say = calls.ffi, calls.ffi.dlopen("libvotequorum.so.8"), calls.say
    handle = ffi.new("uint64_t*")
    say("votequorum_initialize", lib.votequorum_initialize(handle, ffi.new("votequorum_callbacks*")))
    common(calls, "votequorum", lib, handle[0])
    h, ring = handle[0], ffi.new("ring_id*")
    say("votequorum_qdevice_poll, none", lib.votequorum_qdevice_poll(h, b"device", 1, ring[0]))
    say("votequorum_qdevice_master_wins, none", lib.votequorum_qdevice_master_wins(h, b"device", 1))
    say("votequorum_qdevice_update, none", lib.votequorum_qdevice_update(h, b"device", b"other"))
    say("votequorum_qdevice_unregister, none", lib.votequorum_qdevice_unregister(h, b"device"))
    say("votequorum_qdevice_register", lib.votequorum_qdevice_register(h, b"device"))
    say("votequorum_qdevice_unregister", lib.votequorum_qdevice_unregister(h, b"device"))
    say("votequorum_finalize", lib.votequorum_finalize(h), lib.votequorum_finalize(h))


def cmap(calls: Calls) -> None:
    ffi, lib, say = calls.ffi, calls.ffi.dlopen("libcmap.so.4"), calls.say
    handle, text = ffi.new("uint64_t*"), ffi.new("char**")
    say("cmap_initialize", lib.cmap_initialize(handle))
    common(calls, "cmap", lib, handle[0])
    h = handle[0]
    for kind, c in TYPES.items():
        key, value = f"types.{kind}".encode(), ffi.new(f"{c}*")
        code = getattr(lib, f"cmap_set_{kind}")(h, key, 7)
        say(f"cmap_set_{kind}", code, getattr(lib, f"cmap_get_{kind}")(h, key, value), value[0])
        say(f"cmap_get_{kind}, another type", getattr(lib, f"cmap_get_{kind}")(h, b"totem.cluster_name", value))
        say(f"cmap_get_{kind}, none", getattr(lib, f"cmap_get_{kind}")(h, b"types.none", value))
    say("cmap_set_string", lib.cmap_set_string(h, b"types.text", b"words"), lib.cmap_set_string(h, b"types.int8", b"words"))
    say("cmap_get_string", lib.cmap_get_string(h, b"types.text", text), ffi.string(text[0]).decode())
    say("cmap_get_string, another type", lib.cmap_get_string(h, b"types.uint8", text))
    say("cmap_finalize", lib.cmap_finalize(h), lib.cmap_finalize(h))


def cfg(calls: Calls) -> None:
    ffi, lib, say = calls.ffi, calls.ffi.dlopen("libcfg.so.7"), calls.say
    handle, number = ffi.new("uint64_t*"), ffi.new("int*", -1)
    say("corosync_cfg_initialize", lib.corosync_cfg_initialize(handle, ffi.new("void*[1]")))
    say("corosync_cfg_fd_get", lib.corosync_cfg_fd_get(handle[0], number), is_socket(number[0]))
    say("corosync_cfg_reopen_log_files", lib.corosync_cfg_reopen_log_files(handle[0]))
    say("corosync_cfg_finalize", lib.corosync_cfg_finalize(handle[0]), lib.corosync_cfg_finalize(handle[0]))
