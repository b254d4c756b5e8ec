"""Captures what Debian's libcpg, libquorum, libvotequorum, libcmap and libcfg write, and what they make of what our codec writes.

``python -m tests.daemon.corosync_capture > tests/daemon/corosync-captured.json``, with the libraries and libqb where the loader
finds them (LD_LIBRARY_PATH), in a network namespace of its own (``unshare -n``): libqb's names are abstract sockets. Run by hand;
``test_corosync_codec.py`` reads what it has written. libqb's server side is called through cffi, one process of two: this one
serves, its child calls every function and tells what its callbacks were called with.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections import deque
from typing import Any, Final

from zenjun.daemon.corosync.codec import Request, addresses, answer, event, map_changed, request, shutdown_asked
from zenjun.daemon.corosync.mapped import MappedFile
from zenjun.daemon.corosync.programs import bytes_of
from zenjun.daemon.corosync.table import LINK_BYTES
from zenjun.proto.service.base import Effect
from zenjun.proto.service.corosync import results
from zenjun.proto.service.corosync.messages import Mcast, Part, Process, Reason
from zenjun.proto.service.corosync.results import Address, Code, RingId

GROUP: Final = b"pacemakerd\0"
PID: Final = 4711
RING: Final = RingId(1, 0x1_0002_0003)
CONTEXT: Final = 0x1122334455667788
MEMBERS: Final = (Address(1, 4711), Address(2, 7), Address(9, 0xFFFFFFFF))
LEFT: Final = (Address(3, 8, Reason.NODEDOWN), Address(4, 9, Reason.PROCDOWN))
JOINED: Final = (Address(1, 4711, Reason.NODEUP),)
PROCESS: Final = Process(GROUP, 7)

EFFECTS: Final[dict[str, list[Effect]]] = {
    "cpg": [
        results.Confchg(0, GROUP, MEMBERS, LEFT, JOINED),
        results.Totem(0, RING, (1, 2, 9)),
        results.Deliver(0, 2, Mcast(PROCESS, Part.WHOLE, 5, b"hello")),
        results.Deliver(0, 2, Mcast(PROCESS, Part.FIRST, 9, b"one")),
        results.Deliver(0, 2, Mcast(PROCESS, Part.MIDDLE, 9, b"two")),
        results.Deliver(0, 2, Mcast(PROCESS, Part.LAST, 9, b"end")),
    ],
    "quorum": [results.Quorum(0, True, RING, (1, 2, 9))],
    "quorum V1": [results.Nodelist(0, RING, (1, 2, 9), (2, 9), (5,)), results.Quorum(0, True, RING, (1, 2, 9))],
    "votequorum": [
        results.VotesNodelist(0, RING, (1, 2, 9)),
        results.VotesQuorum(0, True, ((1, True), (2, True), (5, False), (9, True))),
        results.VotesExpected(0, 5),
    ],
}
"""What the server sends to each kind of program, when it joins or tracks."""
INFO: Final[dict[str, int | bytes]] = {
    "node": 1,
    "state": 1,
    "votes": 2,
    "expected": 3,
    "highest": 4,
    "total": 5,
    "quorum": 6,
    "flags": 7,
    "device": 8,
    "name": b"Qdevice",
}
LINK: Final = struct.pack("<4BI256s256s", 1, 1, 0, 0, 1500, b"10.0.0.1", b"10.0.0.2")
ANSWERS: Final[dict[tuple[str, str], bytes]] = {
    ("cpg", "membership"): answer("cpg", "membership", Code.OK, {"count": 3}, addresses(MEMBERS)),
    ("cpg", "local_get"): answer("cpg", "local_get", Code.OK, {"node": 9}),
    ("cpg", "iteration_initialize"): answer("cpg", "iteration_initialize", Code.OK, {"iteration": 77}),
    ("cpg", "iteration_next"): answer("cpg", "iteration_next", Code.OK, {"group": GROUP, "node": 2, "pid": 7}),
    ("quorum", "getquorate"): answer("quorum", "getquorate", Code.OK, {"quorate": 1}),
    ("quorum", "gettype"): answer("quorum", "gettype", Code.OK, {"type": 1}),
    ("quorum", "model_gettype"): answer("quorum", "model_gettype", Code.OK, {"type": 1}),
    ("votequorum", "getinfo"): answer("votequorum", "getinfo", Code.OK, INFO),
    ("cmap", "get"): answer("cmap", "get", Code.OK, {"length": 6, "type": 11}, b"value\0"),
    ("cmap", "iter_init"): answer("cmap", "iter_init", Code.OK, {"iteration": 78}),
    ("cmap", "iter_next"): answer("cmap", "iter_next", Code.OK, {"key": b"totem.cluster_name", "length": 6, "type": 11}),
    ("cfg", "ring_status"): answer(
        "cfg", "ring_status", Code.OK, {"count": 1}, b"10.0.0.1".ljust(16 * 128, b"\0") + b"OK".ljust(16 * 512, b"\0")
    ),
    ("cfg", "node_addresses"): answer(
        "cfg", "node_addresses", Code.OK, {"family": 2, "count": 1}, bytes([10, 0, 0, 2]).ljust(16, b"\0")
    ),
    ("cfg", "local_get"): answer("cfg", "local_get", Code.OK, {"node": 9}),
    ("cfg", "node_status"): answer(
        *("cfg", "node_status", Code.OK),
        {"version": 1, "node": 2, "reachable": 1, "remote": 1, "external": 0, "wire_min": 3, "wire_max": 4, "wire": 5},
        LINK.ljust(8 * LINK_BYTES, b"\0"),
    ),
    ("cmap", "track_add"): answer("cmap", "track_add", Code.OK, {"track": 79}),
}

CHANGES: Final = (
    map_changed(0x77, b"a.key", 4, (11, b"new\0"), None),
    map_changed(0x77, b"a.key", 2, (11, b"newer\0"), (11, b"new\0")),
    map_changed(0x77, b"a.key", 1, None, (6, b"\1\0\0\0")),
)
"""What a program that tracks a key hears; 0x77 is replaced by what it has given."""

LIBRARIES: Final = """
typedef struct { uint32_t length; char value[128]; } cpg_name;
typedef struct { uint32_t nodeid, pid, reason; } cpg_address;
typedef struct { uint32_t nodeid; uint64_t seq; } ring_id;
typedef struct { cpg_name group; uint32_t nodeid, pid; } description;
typedef struct { int model; void *deliver, *confchg, *totem; unsigned flags; } cpg_v1;
typedef struct { int model; void *quorum, *nodelist; } quorum_model;
typedef struct { void *quorum, *expected, *nodelist; } votequorum_callbacks;
typedef struct { unsigned numbers[9]; char name[255]; } info;
struct iovec { void *base; size_t length; };
int cpg_model_initialize(uint64_t*, int, void*, void*); int cpg_finalize(uint64_t);
int cpg_join(uint64_t, cpg_name*); int cpg_leave(uint64_t, cpg_name*); int cpg_dispatch(uint64_t, int);
int cpg_mcast_joined(uint64_t, int, struct iovec*, unsigned); int cpg_local_get(uint64_t, unsigned*);
int cpg_zcb_alloc(uint64_t, size_t, void**); int cpg_zcb_mcast_joined(uint64_t, int, void*, size_t);
int cpg_zcb_free(uint64_t, void*);
int cpg_membership_get(uint64_t, cpg_name*, cpg_address*, int*);
int cpg_iteration_initialize(uint64_t, int, cpg_name*, uint64_t*); int cpg_iteration_next(uint64_t, description*);
int cpg_iteration_finalize(uint64_t);
int quorum_model_initialize(uint64_t*, int, void*, uint32_t*, void*); int quorum_initialize(uint64_t*, void*, uint32_t*);
int quorum_getquorate(uint64_t, int*); int quorum_trackstart(uint64_t, unsigned); int quorum_trackstop(uint64_t);
int quorum_dispatch(uint64_t, int); int quorum_finalize(uint64_t);
int votequorum_initialize(uint64_t*, votequorum_callbacks*); int votequorum_getinfo(uint64_t, unsigned, info*);
int votequorum_setexpected(uint64_t, unsigned); int votequorum_setvotes(uint64_t, unsigned, unsigned);
int votequorum_trackstart(uint64_t, uint64_t, unsigned); int votequorum_trackstop(uint64_t);
int votequorum_dispatch(uint64_t, int);
typedef struct { int type; size_t length; const void *data; } value;
int cmap_initialize_map(uint64_t*, int); int cmap_finalize(uint64_t); int cmap_dispatch(uint64_t, int);
int cmap_set(uint64_t, const char*, const void*, size_t, int); int cmap_get(uint64_t, const char*, void*, size_t*, int*);
int cmap_delete(uint64_t, const char*); int cmap_inc(uint64_t, const char*); int cmap_dec(uint64_t, const char*);
int cmap_iter_init(uint64_t, const char*, uint64_t*); int cmap_iter_next(uint64_t, uint64_t, char*, size_t*, int*);
int cmap_iter_finalize(uint64_t, uint64_t); int cmap_track_delete(uint64_t, uint64_t);
int cmap_track_add(uint64_t, const char*, int32_t, void*, void*, uint64_t*);
typedef struct { uint8_t enabled, connected, dynamic; unsigned mtu; char source[256], target[256]; } link;
typedef struct { int version; unsigned node; uint8_t numbers[6]; link links[8]; } status;
typedef struct { int length; uint8_t address[28]; } address;
int corosync_cfg_initialize(uint64_t*, void*); int corosync_cfg_dispatch(uint64_t, int); int corosync_cfg_finalize(uint64_t);
int corosync_cfg_ring_status_get(uint64_t, char***, char***, unsigned*);
int corosync_cfg_kill_node(uint64_t, unsigned, const char*);
int corosync_cfg_node_status_get(uint64_t, unsigned, int, status*); int corosync_cfg_trackstart(uint64_t, uint8_t);
int corosync_cfg_trackstop(uint64_t); int corosync_cfg_try_shutdown(uint64_t, int);
int corosync_cfg_replyto_shutdown(uint64_t, int); int corosync_cfg_local_get(uint64_t, unsigned*);
int corosync_cfg_get_node_addrs(uint64_t, unsigned, size_t, int*, address*); int corosync_cfg_reload_config(uint64_t);
int corosync_cfg_reopen_log_files(uint64_t);
int votequorum_qdevice_register(uint64_t, const char*); int votequorum_qdevice_unregister(uint64_t, const char*);
"""
SERVER: Final = """
typedef struct { void *job_add, *add, *mod, *del; } polls;
typedef struct { void *accept, *created, *process, *closed, *destroyed; } hands;
void *qb_ipcs_create(const char*, int32_t, int, hands*); void qb_ipcs_poll_handlers_set(void*, polls*);
int32_t qb_ipcs_run(void*); ssize_t qb_ipcs_response_send(void*, const void*, size_t);
ssize_t qb_ipcs_event_send(void*, const void*, size_t); int32_t qb_ipcs_service_id_get(void*);
"""
INSTANCES: Final[list[int]] = []
"""What programs have given when they began to track keys."""
MAPPED: Final = b"in a file"
FILES: Final[list[tuple[str, MappedFile]]] = []
"""Path, and the file, that the program has given for its messages; its number is 76."""
SERVICES: Final = {0: "cmap", 1: "cfg", 2: "cpg", 3: "quorum", 5: "votequorum"}


def sent() -> list[str]:
    """What the libraries have to understand, in hexadecimal: events, then answers."""
    out = [event(e, model=1 if kind == "quorum V1" else 0, context=CONTEXT) for kind, effects in EFFECTS.items() for e in effects]
    return [
        message.rstrip(b"\0").hex() + f"|{len(message)}" for message in (*out, *CHANGES, shutdown_asked(1), *ANSWERS.values())
    ]


def told(service: str, found: Request, model: int) -> tuple[list[bytes], bytes | None]:
    """What follows a request: events, and the answer; None: the program waits for none."""
    events: list[bytes] = []
    name = found.name
    if name == "track_delete":
        return [], answer("cmap", name, Code.OK, {"instance": INSTANCES[-1]})
    if name == "track_add":
        INSTANCES.append(int(found.values["instance"]))
        events = [change.replace(struct.pack("<Q", 0x77), struct.pack("<Q", INSTANCES[-1])) for change in CHANGES]
    if name == "map":
        path = bytes_of(found, "path")
        FILES.append((path.decode(), MappedFile(path, os.getuid(), 76)))
    if name == "mcast_mapped" and FILES[-1][1].message() != MAPPED:
        raise OSError("another message is in the file")
    if name == "trackstart" and service == "cfg":
        return [shutdown_asked(1)], answer("cfg", name)
    if name in ("join", "trackstart"):
        events = [event(e, model=model, context=CONTEXT) for e in EFFECTS[service + (" V1" if model else "")]]
    if name == "mcast":
        return events, None
    return events, ANSWERS.get((service, name)) or answer(service, "status" if service == "votequorum" else name)


def serve(child: int) -> list[list[str]]:
    """Answer everything until the child ends; what it has asked: service, name, bytes."""
    from cffi import FFI

    ffi: Any = FFI()
    ffi.cdef(SERVER)
    qb = ffi.dlopen("libqb.so.100")
    poll, jobs, ready = select.epoll(), deque[Any](), dict[int, Any]()
    asked: list[list[str]] = []
    models: dict[int, int] = {}

    def key(connection: Any) -> int:
        return int(ffi.cast("uintptr_t", connection))

    def added(priority: int, data: Any, function: Any) -> int:
        jobs.append((ffi.cast("void(*)(void*)", function), data))
        return 0

    def watch(priority: int, fd: int, events: int, data: Any, function: Any) -> int:
        (poll.modify if fd in ready else poll.register)(fd, events)
        ready[fd] = (ffi.cast("int32_t(*)(int32_t, int32_t, void*)", function), data)
        return 0

    def forget(fd: int) -> int:
        if ready.pop(fd, None) is not None:
            poll.unregister(fd)
        return 0

    def process(connection: Any, data: Any, size: int) -> int:
        service, message = SERVICES[qb.qb_ipcs_service_id_get(connection)], bytes(ffi.buffer(data, size))
        found = request(service, message)
        assert found is not None, (service, message.hex())
        asked.append([service, found.name, message.hex()])
        if found.name in ("gettype", "model_gettype"):
            models[key(connection)] = int(found.values.get("model", 0))
        model = models.get(key(connection), 0) if service == "quorum" else 0
        events, reply = told(service, found, model)
        for message in events:  # before the answer, so that the program finds them when it dispatches
            qb.qb_ipcs_event_send(connection, message, len(message))
        if reply is not None:
            qb.qb_ipcs_response_send(connection, reply, len(reply))
        return 0

    keep = [
        ffi.callback("int32_t(int, void*, void*)", added),
        ffi.callback("int32_t(int, int32_t, int32_t, void*, void*)", watch),
        ffi.callback("int32_t(int32_t)", forget),
        ffi.callback("int32_t(void*, uint32_t, uint32_t)", lambda *_: 0),
        ffi.callback("void(void*)", lambda _: None),
        ffi.callback("int32_t(void*, void*, size_t)", process),
        ffi.callback("int32_t(void*)", lambda _: 0),
    ]
    as_void = [ffi.cast("void*", function) for function in keep]
    handlers = ffi.new("hands*", [as_void[3], as_void[4], as_void[5], as_void[6], as_void[4]])
    polls = ffi.new("polls*", [as_void[0], as_void[1], as_void[1], as_void[2]])
    for number, name in SERVICES.items():
        service = qb.qb_ipcs_create(name.encode(), number, 4, handlers)
        qb.qb_ipcs_poll_handlers_set(service, polls)
        if qb.qb_ipcs_run(service):
            raise OSError(f"cannot serve {name}")
    os.write(child, b"!")
    while os.waitpid(-1, os.WNOHANG) == (0, 0):
        while jobs:
            function, data = jobs.popleft()
            function(data)
        for fd, events in poll.poll(0.05):
            if fd in ready and ready[fd][0](fd, events, ready[fd][1]) < 0:
                forget(fd)
    return asked


class Caller:
    """Calls every function, and keeps what the libraries return and call back."""

    def __init__(self) -> None:
        from cffi import FFI

        self.ffi: Any = FFI()
        self.ffi.cdef(LIBRARIES)
        self.heard: list[Any] = []
        self.keep: list[Any] = []

    def callback(self, signature: str, name: str) -> Any:
        function = self.ffi.callback(signature, lambda *arguments: self.heard.append([name, *self.plain(arguments[1:])]))
        self.keep.append(function)
        return self.ffi.cast("void*", function)

    def plain(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Lists follow their length; bytes too."""
        out: list[Any] = []
        for k, value in enumerate(arguments):
            kind = self.ffi.typeof(value) if isinstance(value, self.ffi.CData) else None
            if kind is None:
                out.append(value)
            elif kind.cname == "ring_id":
                out.append([value.nodeid, value.seq])
            elif kind.cname == "cpg_name *":
                out.append(bytes(self.ffi.buffer(value.value, value.length)).hex())
            elif kind.cname == "cpg_address *":
                out.append([[a.nodeid, a.pid, a.reason] for a in value[0 : arguments[k + 1]]])
            elif kind.cname == "uint32_t *":
                out.append(list(value[0 : arguments[k - 1]]))
            elif kind.cname == "uint64_t *":
                out.append([[v & 0xFFFFFFFF, v >> 32] for v in value[0 : arguments[k - 1]]])
            else:
                out.append(bytes(self.ffi.buffer(value, arguments[k + 1])).hex())
        return out

    def cpg(self) -> None:
        ffi, lib = self.ffi, self.ffi.dlopen("libcpg.so.4")
        deliver = self.callback("void(uint64_t, const cpg_name*, uint32_t, uint32_t, void*, size_t)", "deliver")
        lists = "const cpg_address*, size_t, const cpg_address*, size_t, const cpg_address*, size_t"
        confchg = self.callback(f"void(uint64_t, const cpg_name*, {lists})", "confchg")
        totem = self.callback("void(uint64_t, ring_id, uint32_t, const uint32_t*)", "totem")
        handle = ffi.new("uint64_t*")
        name = ffi.new("cpg_name*", [len(GROUP), GROUP])
        data = ffi.new("cpg_v1*", [1, deliver, confchg, totem, 1])
        self.ok(lib.cpg_model_initialize(handle, 1, data, ffi.NULL))
        self.ok(lib.cpg_join(handle[0], name))
        self.ok(lib.cpg_dispatch(handle[0], 2))
        text = ffi.new("char[]", b"hello, world")
        self.ok(lib.cpg_mcast_joined(handle[0], 2, ffi.new("struct iovec[]", [[text, 5], [text + 5, 7]]), 2))
        large = ffi.new("char[]", 2_100_000)
        self.ok(lib.cpg_mcast_joined(handle[0], 2, ffi.new("struct iovec[]", [[large, 2_100_000]]), 1))
        mapped = ffi.new("void**")
        self.ok(lib.cpg_zcb_alloc(handle[0], 100, mapped))
        ffi.memmove(mapped[0], MAPPED, len(MAPPED))
        self.ok(lib.cpg_zcb_mcast_joined(handle[0], 2, mapped[0], len(MAPPED)))
        self.ok(lib.cpg_zcb_free(handle[0], mapped[0]))
        found, count, node = ffi.new("cpg_address[384]"), ffi.new("int*"), ffi.new("unsigned*")
        self.ok(lib.cpg_membership_get(handle[0], name, found, count))
        self.heard.append(["membership", [[a.nodeid, a.pid, a.reason] for a in found[0 : count[0]]]])
        self.ok(lib.cpg_local_get(handle[0], node))
        iteration, one = ffi.new("uint64_t*"), ffi.new("description*")
        self.ok(lib.cpg_iteration_initialize(handle[0], 2, name, iteration))
        self.ok(lib.cpg_iteration_next(iteration[0], one))
        group = bytes(ffi.buffer(one.group.value, one.group.length)).hex()
        self.heard += [["local_get", node[0]], ["iteration_next", group, one.nodeid, one.pid]]
        self.ok(lib.cpg_iteration_finalize(iteration[0]))
        self.ok(lib.cpg_leave(handle[0], name))
        self.ok(lib.cpg_finalize(handle[0]))

    def quorum(self) -> None:
        ffi, lib = self.ffi, self.ffi.dlopen("libquorum.so.5")
        v0 = self.callback("void(uint64_t, uint32_t, uint64_t, uint32_t, uint32_t*)", "quorum_v0")
        v1 = self.callback("void(uint64_t, uint32_t, ring_id, uint32_t, const uint32_t*)", "quorum_v1")
        lists = "uint32_t, const uint32_t*, uint32_t, const uint32_t*, uint32_t, const uint32_t*"
        nodelist = self.callback(f"void(uint64_t, ring_id, {lists})", "nodelist")
        handle, kind, quorate = ffi.new("uint64_t*"), ffi.new("uint32_t*"), ffi.new("int*")
        for model, data in ((0, [0, v0, ffi.NULL]), (1, [1, v1, nodelist])):
            self.ok(lib.quorum_model_initialize(handle, model, ffi.new("quorum_model*", data), kind, ffi.NULL))
            self.ok(lib.quorum_getquorate(handle[0], quorate))
            self.heard.append(["quorate", kind[0], quorate[0]])
            self.ok(lib.quorum_trackstart(handle[0], 3))
            self.ok(lib.quorum_dispatch(handle[0], 2))
            self.ok(lib.quorum_trackstop(handle[0]))
            self.ok(lib.quorum_finalize(handle[0]))

    def votequorum(self) -> None:
        ffi, lib = self.ffi, self.ffi.dlopen("libvotequorum.so.8")
        quorum = self.callback("void(uint64_t, uint64_t, uint32_t, uint32_t, uint64_t*)", "votes_quorum")
        expected = self.callback("void(uint64_t, uint64_t, uint32_t)", "votes_expected")
        nodelist = self.callback("void(uint64_t, uint64_t, ring_id, uint32_t, uint32_t*)", "votes_nodelist")
        handle, info = ffi.new("uint64_t*"), ffi.new("info*")
        self.ok(lib.votequorum_initialize(handle, ffi.new("votequorum_callbacks*", [quorum, expected, nodelist])))
        self.ok(lib.votequorum_getinfo(handle[0], 1, info))
        self.heard.append(["info", *info.numbers, ffi.string(info.name).decode()])
        self.ok(lib.votequorum_setexpected(handle[0], 5))
        self.ok(lib.votequorum_setvotes(handle[0], 2, 3))
        self.ok(lib.votequorum_trackstart(handle[0], CONTEXT, 3))
        self.ok(lib.votequorum_dispatch(handle[0], 2))
        self.ok(lib.votequorum_trackstop(handle[0]))
        self.ok(lib.votequorum_qdevice_register(handle[0], b"Qdevice"))
        self.ok(lib.votequorum_qdevice_unregister(handle[0], b"Qdevice"))

    def cmap(self) -> None:
        ffi, lib = self.ffi, self.ffi.dlopen("libcmap.so.4")

        def changed(_: int, track: int, event: int, key: Any, new: Any, old: Any, data: Any) -> None:
            values = [[v.type, bytes(ffi.buffer(v.data, v.length)).hex() if v.length else ""] for v in (new, old)]
            self.heard.append(["changed", event, ffi.string(key).decode(), *values])

        function = ffi.callback("void(uint64_t, uint64_t, int32_t, const char*, value, value, void*)", changed)
        handle, number, track = ffi.new("uint64_t*"), ffi.new("uint64_t*"), ffi.new("uint64_t*")
        self.ok(lib.cmap_initialize_map(handle, 1))
        self.ok(lib.cmap_set(handle[0], b"a.key", b"value\0", 6, 11))
        buffer, length, kind = ffi.new("char[256]"), ffi.new("size_t*", 256), ffi.new("int*")
        self.ok(lib.cmap_get(handle[0], b"a.key", buffer, length, kind))
        self.heard.append(["get", ffi.string(buffer).decode(), length[0], kind[0]])
        self.ok(lib.cmap_inc(handle[0], b"a.number"))
        self.ok(lib.cmap_dec(handle[0], b"a.number"))
        self.ok(lib.cmap_iter_init(handle[0], b"totem.", number))
        self.ok(lib.cmap_iter_next(handle[0], number[0], buffer, length, kind))
        self.heard.append(["iter_next", ffi.string(buffer).decode(), length[0], kind[0]])
        self.ok(lib.cmap_iter_finalize(handle[0], number[0]))
        self.ok(lib.cmap_track_add(handle[0], b"a.key", 7, ffi.cast("void*", function), ffi.NULL, track))
        self.ok(lib.cmap_dispatch(handle[0], 2))
        self.ok(lib.cmap_track_delete(handle[0], track[0]))
        self.ok(lib.cmap_delete(handle[0], b"a.key"))
        self.ok(lib.cmap_finalize(handle[0]))

    def cfg(self) -> None:
        ffi, lib = self.ffi, self.ffi.dlopen("libcfg.so.7")
        callbacks = ffi.new("void*[1]", [self.callback("void(uint64_t, int)", "shutdown")])
        handle, count, node = ffi.new("uint64_t*"), ffi.new("unsigned*"), ffi.new("unsigned*")
        self.ok(lib.corosync_cfg_initialize(handle, callbacks))
        names, texts = ffi.new("char***"), ffi.new("char***")
        self.ok(lib.corosync_cfg_ring_status_get(handle[0], names, texts, count))
        self.heard.append(["ring_status", count[0], ffi.string(names[0][0]).decode(), ffi.string(texts[0][0]).decode()])
        found, number, status = ffi.new("address[8]"), ffi.new("int*"), ffi.new("status*")
        self.ok(lib.corosync_cfg_get_node_addrs(handle[0], 2, 8, number, found))
        self.heard.append(["node_addresses", number[0], bytes(found[0].address)[4:8].hex()])
        self.ok(lib.corosync_cfg_node_status_get(handle[0], 2, 1, status))
        link = status.links[0]
        addresses = [ffi.string(text).decode() for text in (link.source, link.target)]
        self.heard.append(["node_status", status.node, *status.numbers, link.enabled, link.connected, link.mtu, *addresses])
        self.ok(lib.corosync_cfg_local_get(handle[0], node))
        self.heard.append(["local_get", node[0]])
        self.ok(lib.corosync_cfg_trackstart(handle[0], 0))
        self.ok(lib.corosync_cfg_dispatch(handle[0], 2))
        self.ok(lib.corosync_cfg_replyto_shutdown(handle[0], 1))
        self.ok(lib.corosync_cfg_trackstop(handle[0]))
        self.ok(lib.corosync_cfg_try_shutdown(handle[0], 2))
        self.ok(lib.corosync_cfg_kill_node(handle[0], 3, b"enough"))
        self.ok(lib.corosync_cfg_reload_config(handle[0]))
        self.ok(lib.corosync_cfg_reopen_log_files(handle[0]))
        self.ok(lib.corosync_cfg_finalize(handle[0]))

    def ok(self, code: int) -> None:
        if code != Code.OK:
            raise OSError(f"error {code} of a library, after {self.heard}")


def main() -> None:
    go, back = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go[0], 1)
        caller = Caller()
        try:
            for call in (caller.cpg, caller.quorum, caller.votequorum, caller.cmap, caller.cfg):
                call()
        finally:
            os.write(back[1], json.dumps(caller.heard).encode())
            os._exit(0)
    asked = serve(go[1])
    os.close(back[1])
    heard = json.loads(b"".join(iter(lambda: os.read(back[0], 65536), b"")))
    asked = [[service, name, text.rstrip("0") + f"|{len(text) // 2}"] for service, name, text in asked]
    parts = {"sent": sent(), "asked": asked, "heard": heard}
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(line) for line in part) + "\n]" for name, part in parts.items()]
    print(f'{{"pid": {child}, "instance": {INSTANCES[-1]}, "path": "{FILES[-1][0]}",\n' + ",\n".join(lines) + "}")


if __name__ == "__main__":
    main()
