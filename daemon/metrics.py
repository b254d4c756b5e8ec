"""The status as OpenMetrics text (docs/metrics.md), and the small HTTP server that gives it out, for zenjund and others.

Every counter of docs/status.md is there under a name made from its own by rule, so that a new one needs nothing here. Names
follow Prometheus: prefix, what is counted, base unit, ``_total`` for counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import ipaddress
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .config import loopback
from .listening import SocketError, listen
from .observe import Journal

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Families: TypeAlias = "Callable[[Mapping[str, Any]], Iterable[Metric]]"
"""Makes the metric families of a status object."""

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_S: Final = 5.0
"""A reader that has not asked, or not taken its answer, by then is cut off."""
READERS_MAX: Final = 8
SWITCH_S: Final = 0.0005
"""How long a thread beside the loop, as the one that writes an answer, may keep the interpreter from it; Python's own is ten
times that."""
STATES: Final = ("opening", "open", "blocked", "fenced", "draining", "no link")
PEER_STATES: Final = (
    "self", "up", "joining", "silent", "deaf", "left", "restarted", "expelled", "told", "fenced", "out", "never seen",
)  # fmt: skip
"""Those of docs/status.md; ``zenjun_peer_state`` is 1 for one of them."""
LINK_STATES: Final = ("up", "down", "absent")
HELP: Final = {
    "core_rx_frames": "Valid frames received",
    "core_rx_bytes": "Bytes of valid frames received",
    "core_rx_data": "Data PDUs received",
    "core_rx_confirm": "Confirmations received",
    "core_rx_nak": "Requests for missing PDUs received",
    "core_rx_duplicate": "PDUs received more than once",
    "core_rx_repaired": "Missing PDUs that came after all",
    "core_rx_out_of_order": "PDUs received before an earlier one of the same station",
    "core_tx_data": "Data PDUs sent, each counted once",
    "core_tx_bytes": "Bytes of PDUs sent",
    "core_tx_confirm": "Confirmations sent",
    "core_tx_direct": "Confirmations sent to one station alone",
    "core_tx_poll": "Questions for news sent while something was pending without progress",
    "core_tx_nak": "Requests for missing PDUs sent",
    "core_tx_retransmit": "PDUs sent again on request",
    "core_tx_relay": "PDUs of other stations sent on request",
    "core_tx_heartbeat": "Heartbeats sent",
    "core_messages_sent": "Messages of programs here put into PDUs",
    "core_message_bytes_sent": "Bytes of messages of programs here put into PDUs",
    "core_messages_delivered": "Messages delivered in the order",
    "core_message_bytes_delivered": "Bytes of messages delivered in the order",
    "core_pdus_delivered": "PDUs delivered in the order",
    "core_naks_suppressed": "Requests not made because another station had just asked",
    "core_retransmits_suppressed": "PDUs not sent again because they had just been",
    "core_lost_noticed": "PDUs noticed to be missing",
    "core_polls_answered": "Questions for news answered",
    "core_window_closed": "Times the send window was full with messages waiting",
    "core_rx_own": "Bus: own PDUs that came back and were accepted",
    "core_tx_reset": "Bus: RST and RSTC PDUs sent",
    "core_resets": "Bus: resets taken part in",
    "core_memory_refused": "Times that the order had to wait because the system had no memory for a message",
    "core_pdus_cut": "Bus: PDUs taken out of the receipt log by resets",
    "core_digests_compared": "Digests of the order compared with another station's",
    "datapath_rx_batches": "Batches of frames taken from the receive ring",
    "datapath_rx_frames": "Frames taken from the receive ring",
    "datapath_rx_kernel_drops": "Frames the kernel dropped because the receive ring was full",
    "datapath_rx_truncated": "Frames longer than a slot of the receive ring",
    "datapath_rx_losing": "Ring slots that told of frames dropped before them",
    "datapath_rx_unsealed": "Frames without the seal of the cluster's key",
    "datapath_rx_size": "Key of 32 bytes: frames too short for what they say they carry",
    "datapath_rx_version": "Key of 32 bytes: frames without an envelope",
    "datapath_rx_suite": "Key of 32 bytes: frames that are sealed otherwise than this cluster's",
    "datapath_rx_own": "Key of 32 bytes: frames with this station's own number",
    "datapath_rx_unproven": "Key of 32 bytes: frames of a session that is not proven here: recorded, or of a station that starts",
    "datapath_rx_late": "Key of 32 bytes: frames from before the proof of their session, or below the window",
    "datapath_rx_replayed": "Key of 32 bytes: frames that had come before",
    "datapath_rx_tag": "Key of 32 bytes: frames with a wrong tag: damaged, forged, or of another key",
    "datapath_rx_spoofed": "Key of 32 bytes: PDUs that only another station than the frame's sender may send",
    "datapath_rx_reordered": "Key of 32 bytes: unsequenced PDUs that came after a later one of their sender",
    "datapath_rx_hello": "Key of 32 bytes: HELLO frames with a right tag",
    "datapath_rx_links": "LINKS frames with a right tag or checksum",
    "datapath_rx_probe": "PROBE frames with a right tag or checksum",
    "datapath_rx_piece": "PIECE frames with a right tag or checksum",
    "datapath_rx_pieced": "PDUs that came in pieces and were put together",
    "datapath_rx_piece_bad": "Pieces out of place, or that made up no PDU of a stream",
    "datapath_tx_pieced": "PDUs sent in pieces, being larger than what passes now",
    "datapath_rx_double": "Second copies, which had come on another link a moment before",
    "datapath_tx_batches": "System calls that sent frames",
    "datapath_tx_frames": "Frames sent",
    "datapath_tx_bytes": "Bytes of frames sent",
    "datapath_tx_busy": "Times the interface's send queue was full",
    "datapath_tx_too_long": "Frames refused as larger than the interface's MTU",
    "datapath_tx_errors": "Frames the kernel refused for other reasons",
    "datapath_turns": "Turns of the data path's loop",
    "datapath_rests": "Rests between batches under load",
    "datapath_lingers": "Waits for an answer to what was just sent",
    "datapath_waits": "Waits for the next event inside a turn, while events come",
    "datapath_client_throttles": "Times that a program was not read further because its user had sent too much",
    "datapath_client_reads": "Reads from programs' sockets",
    "datapath_client_writes": "Writes to programs' sockets",
    "datapath_client_bytes_in": "Bytes read from programs",
    "datapath_client_bytes_out": "Bytes written to programs",
    "datapath_slow_disconnects": "Programs disconnected because they read too slowly",
}
"""What counters count; one that is not here is explained by its name."""
LINK_HELP: Final = {"tx_missed": "Frames that another link took while this one waited for room or had failed"}
"""Of counters that only a link has; its others are explained as those of all links together."""


def counter_name(part: str, name: str) -> str:
    """``zenjun_core_message_sent_bytes`` from ("core", "message_bytes_sent"): the unit goes last; the writer adds ``_total``."""
    words = name.split("_")
    if "bytes" in words:
        words.remove("bytes")
        words.append("bytes")
    return "_".join(("zenjun", part, *words))


def families(s: Mapping[str, Any]) -> Iterator[Metric]:
    """The metric families of a status object. Members that are missing or null are left out."""
    yield from _station(s)
    yield from _membership(s)
    yield from _counters(s)
    yield from _sessions(s.get("station"), s.get("sessions") or {})
    yield from _links(s.get("links") or ())
    yield from _peers(s.get("peers") or ())
    yield from _programs(s)


def _station(s: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily

    link, window, positions = (s.get(name) or {} for name in ("interface", "window", "positions"))
    yield InfoMetricFamily(
        "zenjun", "Which daemon this is",
        {k: str(s.get(k)) for k in ("version", "cluster", "station", "host")} | {"interface": str(link.get("name"))},
    )  # fmt: skip
    yield one_of("zenjun_state", "State of the cluster as this station sees it", STATES, s.get("state"))
    yield one_of("zenjun_interface_state", "State of the network interface", LINK_STATES, link.get("state"))
    plain = (
        ("zenjun_stations", "Stations that the cluster is configured for", s.get("stations"), ""),
        ("zenjun_instance", "Number of the instance this station is in, or was in last", s.get("instance"), ""),
        ("zenjun_incarnation", "Number of this life of the daemon", s.get("incarnation"), ""),
        ("zenjun_uptime_seconds", "Time since the daemon started", _seconds(s.get("uptime_ms")), "seconds"),
        ("zenjun_window_frames", "Own PDUs that may be under way", window.get("frames"), "frames"),
        ("zenjun_window_in_flight_frames", "Own PDUs under way: not everyone has them", window.get("in_flight"), "frames"),
        ("zenjun_window_room_frames", "Own PDUs that may be sent now", window.get("room"), "frames"),
        ("zenjun_logical_clock", "Logical clock", positions.get("clock"), ""),
        ("zenjun_realtime", "Whether real-time scheduling was granted", (s.get("rights") or {}).get("realtime"), ""),
    )
    frames = s.get("frame_sizes") or {}
    sizes_found = (
        ("zenjun_frame_limit_bytes", "Largest frame that is sent whole", frames.get("limit"), "bytes"),
        ("zenjun_frame_base_bytes", "Frame that is believed to pass without a proof", frames.get("base"), "bytes"),
        ("zenjun_frame_holes", "Times that frames were found to pass no more", frames.get("holes"), ""),
    )
    for name, text, value, unit in (*plain, *sizes_found):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value), unit=unit)
    sizes = (("mtu", "MTU in use"), ("header_bytes", "Header of a PDU with one message"), ("frame_max", "Largest PDU"),
             ("payload_max", "Largest message that travels in one frame"))  # fmt: skip
    for name, text in sizes:
        if (value := (link.get(name) or {}).get("bytes")) is not None:
            yield GaugeMetricFamily(f"zenjun_{name.removesuffix('_bytes')}_bytes", text, value=float(value), unit="bytes")
    yield labelled(
        GaugeMetricFamily("zenjun_position_pdus", "PDUs of the order in this instance that have reached a level",
                          labels=["level"], unit="pdus"),
        (((level,), positions.get(level)) for level in ("ordered", "preack", "ack")),
    )  # fmt: skip
    yield labelled(
        GaugeMetricFamily("zenjun_blocked_seconds", "How long delivery has been waiting for a station",
                          labels=["station", "reason"], unit="seconds"),
        (((b["station"], b["reason"]), _seconds(b.get("since_ms"))) for b in s.get("blocked") or ()),
    )  # fmt: skip
    yield labelled(
        GaugeMetricFamily(
            "zenjun_memory_bytes", "Memory reserved: messages as they need it, others at the start", labels=["part"], unit="bytes"
        ),
        (((part,), n) for part, n in (s.get("memory_bytes") or {}).items()),
    )


def _membership(s: Mapping[str, Any]) -> Iterator[Metric]:
    """The members of the instance, whether they are a quorum, and the changes."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    quorum, membership = s.get("quorum") or {}, s.get("membership") or {}
    members = s.get("members")
    plain = (
        ("zenjun_members", "Stations in this one's instance; 0: it is in none", None if members is None else len(members), ""),
        ("zenjun_quorum_members", "Stations that an instance must have", quorum.get("needed"), "members"),
        ("zenjun_quorum", "Whether this station's instance has its quorum, without those it waits for", quorum.get("have"), ""),
        ("zenjun_membership_proposed_instance", "Number of the instance that is being agreed on; 0: none",
         membership.get("proposed"), ""),
        ("zenjun_membership_age_seconds", "Time since the members changed last; 0: in no instance",
         _seconds(membership.get("last_change_ms")), "seconds"),
    )  # fmt: skip
    for name, text, value, unit in plain:
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value), unit=unit)
    if (changes := membership.get("changes")) is not None:
        yield CounterMetricFamily("zenjun_membership_changes", "Changes of members agreed on", value=float(changes))
    for name, text in (
        ("near_misses", "Members that had not been heard for a while, were asked, and were heard again in time"),
        ("late", "Deadlines of this station that were served too late: it gets too little of its processor"),
    ):
        if (count := membership.get(name)) is not None:
            yield CounterMetricFamily(f"zenjun_membership_{name}", text, value=float(count))
    moves = CounterMetricFamily(
        "zenjun_membership_moves", "Changes of the peer states that this station keeps", labels=["letter", "cause"]
    )
    for move, n in (membership.get("moves") or {}).items():
        state, _, cause = move.partition(" ")
        moves.add_metric([state.upper(), cause], float(n))
    yield moves
    yield labelled(
        GaugeMetricFamily("zenjun_membership_waiting_seconds", "How long a change of a station's membership has been under way",
                          labels=["by", "station", "reason"], unit="seconds"),
        (((w["station"], w["for"], w["reason"]), _seconds(w.get("since_ms"))) for w in membership.get("waiting") or ()),
    )  # fmt: skip


def _counters(s: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily

    for part, counters in (s.get("counters") or {}).items():
        for name, value in counters.items():
            full = counter_name(part, name)
            text = HELP.get(f"{part}_{name}", name.replace("_", " "))
            yield CounterMetricFamily(full, text, value=float(value), unit="bytes" if full.endswith("_bytes") else "")
    yield labelled(
        CounterMetricFamily("zenjun_dropped_frames", "Frames received and dropped, by reason", labels=["reason"], unit="frames"),
        (((reason,), n) for reason, n in (s.get("drops") or {}).items()),
    )
    lost = (s.get("kernel") or {}).get("drops")
    if lost is not None:
        yield CounterMetricFamily(
            "zenjun_kernel_dropped_frames", "Frames lost because the receive ring was full", value=float(lost), unit="frames"
        )


def _sessions(station: object, sessions: Mapping[str, Any]) -> Iterator[Metric]:
    """Who is believed, and which keys are in use, by their ids; nothing where frames do not prove their sender."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    if not sessions:
        return
    others: Mapping[str, Mapping[str, Any]] = sessions.get("stations") or {}
    for name, text, value, unit in (
        ("zenjun_session_age_seconds", "Age of the session that this station seals under", sessions.get("age_s"), "seconds"),
        ("zenjun_session_sealed_frames", "Frames sealed under it", sessions.get("frames"), "frames"),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value), unit=unit)
    for name, text in (
        ("proven", "Whether this station reads the frames of another one"),
        ("reads_own", "Whether another station has said that it reads this one's frames"),
    ):
        rows = (((number,), about.get(name)) for number, about in others.items())
        yield labelled(GaugeMetricFamily(f"zenjun_session_{name}", text, labels=["station"]), rows)
    everybody = {str(station): sessions, **others}
    yield labelled(
        GaugeMetricFamily("zenjun_key_sealing", "1 for the id of the key that a station seals with", labels=["station", "key"]),
        (((number, about["key"]), 1) for number, about in everybody.items() if about.get("key")),
    )
    yield labelled(
        GaugeMetricFamily("zenjun_key_read", "1 for the id of each key that a station reads", labels=["station", "key"]),
        (((number, key), 1) for number, about in everybody.items() for key in about.get("keys") or ()),
    )


def _links(links: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """State and counters of each link."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    rows = [((str(link.get("link")), str(link.get("name"))), link) for link in links]
    yield labelled(
        GaugeMetricFamily("zenjun_link_up", "Whether the interface of a link can be used", labels=["link", "interface"]),
        ((labels, link.get("state") == "up") for labels, link in rows),
    )
    names = dict.fromkeys(name for _, link in rows for name in link.get("counters") or ())
    for name in names:
        full = counter_name("link", name)
        text = LINK_HELP.get(name) or HELP.get(f"datapath_{name}", name.replace("_", " "))
        yield labelled(
            CounterMetricFamily(full, text, labels=["link", "interface"], unit="bytes" if full.endswith("_bytes") else ""),
            ((labels, (link.get("counters") or {}).get(name)) for labels, link in rows),
        )


def _peers(peers: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """A gauge for each number that is known of a station."""
    from prometheus_client.metrics_core import GaugeMetricFamily, StateSetMetricFamily

    peers = list(peers)
    states = StateSetMetricFamily("zenjun_peer_state", "State of a station as seen here", labels=["station", "host"])
    for p in peers:
        labels = [str(p.get("station")), p.get("host") or ""]
        states.add_metric(labels, {state: state == p.get("state") for state in PEER_STATES})
    yield states
    texts = {
        "heard_ms": "Time since the last valid PDU directly from the station", "incarnation": "Its life",
        "req": "Next sequence number expected from it", "top": "One past its highest PDU known to exist",
        "base": "Its lowest PDU still kept here", "min_al": "Everyone has its PDUs below",
        "acked": "Everyone knows that of its PDUs below", "ordered": "Next of its PDUs to be delivered",
        "gaps": "PDUs of it that are missing here", "free_buffers": "Receive buffers it last advertised",
        "frame_max": "Largest PDU it takes", "clock": "Logical clock it is known to have passed",
    }  # fmt: skip
    units = {"heard_ms": ("heard", "seconds"), "gaps": ("missing", "pdus"), "frame_max": ("frame_max", "bytes")}
    names = dict.fromkeys(
        k for p in peers for k, v in p.items() if isinstance(v, int) and not isinstance(v, bool) and k != "station"
    )
    for name in names:
        base, unit = units.get(name, (name, ""))
        family = GaugeMetricFamily(
            "_".join(filter(None, ("zenjun_peer", base, unit))), texts.get(name, name.replace("_", " ")),
            labels=["station"], unit=unit,
        )  # fmt: skip
        values = ((p.get("station"), p.get(name)) for p in peers)
        yield labelled(family, (((st,), _seconds(v) if name.endswith("_ms") else v) for st, v in values))


def _programs(s: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    clients, groups = s.get("clients") or (), s.get("groups") or ()
    labels = ["client", "program"]
    gauges = (("queued_bytes", "Bytes that wait for a program", "bytes"),
              ("unsent_bytes", "Bytes of a program that wait for the send window", "bytes"),
              ("paused", "Whether a program is not being read now", ""),
              ("throttled", "Whether a program is not being read now for the rate of its user", ""))  # fmt: skip
    for name, text, unit in gauges:
        yield labelled(
            GaugeMetricFamily(f"zenjun_client_{name}", text, labels=labels, unit=unit),
            (((c.get("client"), c.get("name")), c.get(name)) for c in clients),
        )
    for name, text in (("sent", "Messages a program has sent"), ("delivered", "Messages delivered to a program")):
        yield labelled(
            CounterMetricFamily(f"zenjun_client_{name}_messages", text, labels=labels, unit="messages"),
            (((c.get("client"), c.get("name")), c.get(name)) for c in clients),
        )
    yield labelled(
        CounterMetricFamily("zenjun_client_done_messages", "Messages of a program that have reached a level",
                            labels=[*labels, "level"], unit="messages"),
        (((c.get("client"), c.get("name"), level), n) for c in clients
         for level, n in zip(("ordered", "preack", "ack"), c.get("done") or (), strict=False)),
    )  # fmt: skip
    yield GaugeMetricFamily("zenjun_clients", "Programs connected here", value=len(clients))
    yield labelled(
        CounterMetricFamily("zenjun_refusals", "Connections and requests of programs that were refused", labels=["reason"]),
        (((reason,), n) for reason, n in (s.get("refusals") or {}).items()),
    )
    yield GaugeMetricFamily("zenjun_groups", "Groups with members in the whole cluster", value=s.get("group_count", len(groups)))
    yield labelled(
        GaugeMetricFamily("zenjun_group_members", "Members of a group in the whole cluster", labels=["group"]),
        (((g.get("name"),), len(g.get("members") or ())) for g in groups),
    )


def one_of(name: str, text: str, states: Iterable[str], state: object) -> Metric:
    """A set of states, 1 for the present one."""
    from prometheus_client.metrics_core import StateSetMetricFamily

    return StateSetMetricFamily(name, text, value={word: word == state for word in states})


def labelled(family: Any, samples: Iterable[tuple[tuple[object, ...], Any]]) -> Metric:
    """The family with a sample for each (labels, value); value None: without it."""
    for labels, value in samples:
        if value is not None:
            family.add_metric([str(label) for label in labels], float(value))
    return family  # type: ignore[no-any-return]


def _seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, (int, float)) else None


def _process() -> Iterator[Metric]:
    """This process, under the names that Prometheus's client libraries share.

    prometheus_client's own collector gives nothing where /proc has processes only (systemd's ProcSubset=pid).
    """
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    yield CounterMetricFamily("process_cpu_seconds", "Processor time used", value=time.process_time(), unit="seconds")
    with contextlib.suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()
        for name, text, value in (("virtual", "Address space", pages[0]), ("resident", "Memory in use", pages[1])):
            size = int(value) * resource.getpagesize()
            yield GaugeMetricFamily(f"process_{name}_memory_bytes", text, value=size, unit="bytes")
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        yield GaugeMetricFamily("process_open_fds", "Open descriptors", value=used)
    yield GaugeMetricFamily(
        "process_max_fds", "Descriptors that may be open", value=resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )


class _Collector:
    """What prometheus_client asks for when it writes the text."""

    def __init__(self, status: Mapping[str, Any], made: Families) -> None:
        self._status = status
        self._made = made

    def collect(self) -> Iterator[Metric]:
        yield from self._made(self._status)
        yield from _process()


def openmetrics(status: Mapping[str, Any], made: Families = families) -> bytes:
    """The answer to GET /metrics: the status by ``made``, and this process's processor time, memory and descriptors."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status, made))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


class MetricsServer:
    """Answers GET /metrics on one listening socket, in the process's loop; without one it does nothing."""

    def __init__(
        self, where: str, mode: int, group: str, journal: Journal, made: Families = families, option: str = "metrics.listen"
    ) -> None:
        """Listen at ``where``, as ``option`` says (empty: nowhere). made: the families of a status, in a thread. Raises
        SocketError."""
        self.status: Callable[[], Mapping[str, Any]] = dict
        """Gives the status; called once per scrape."""
        self._made = made
        self._option = option
        self._journal = journal
        self._path: Path | None = None
        self._server: asyncio.AbstractServer | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._socket = self._listen(where, mode, group) if where else None

    def _listen(self, where: str, mode: int, group: str) -> socket.socket:
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise SocketError(f"{self._option} is set, but prometheus-client is not installed") from None
        if where.startswith("/"):
            self._path = Path(where)
            return listen(self._path, mode, group, "socket for metrics")
        address, port = loopback(where)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as exc:  # no such family here, or not allowed (RestrictAddressFamilies= of systemd)
            raise SocketError(f"cannot listen for metrics at {where}: {exc.strerror}") from exc
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(address), port))
            sock.listen(READERS_MAX)
        except OSError as exc:
            sock.close()
            raise SocketError(f"cannot listen for metrics at {where}: {exc.strerror}") from exc
        return sock

    async def start(self) -> None:
        """Serve from now on."""
        if self._socket is None:
            return
        sys.setswitchinterval(SWITCH_S)
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._serve, sock=self._socket, limit=REQUEST_BYTES_MAX)
        else:
            self._server = await asyncio.start_server(self._serve, sock=self._socket, limit=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Stop at once, and remove the socket's file. Harmless when repeated."""
        if self._socket is None:
            return
        if self._server is not None:
            self._server.close()
        for task in self._readers:
            task.cancel()
        self._socket.close()
        self._socket = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            if task is not None and len(self._readers) < READERS_MAX:
                self._readers.add(task)
                async with asyncio.timeout(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a reader's own affair
        except asyncio.CancelledError:
            pass  # by ``close``; the streams' own callback would take it for an error
        finally:
            if task is not None:
                self._readers.discard(task)
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        """The whole answer to one request; the connection ends with it.

        The status is taken here, between two turns; the text, which takes longer, is made in a thread meanwhile.
        """
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.split(" ")[0].split("?")[0]
        if not rest.endswith((" HTTP/1.1", " HTTP/1.0")):
            return _response(http.HTTPStatus.BAD_REQUEST, b"HTTP/1.1 is spoken here\n")
        if self._path is None and not is_loopback(head):
            text = b"ask this machine by a loopback address: a web page elsewhere may have sent you here\n"
            return _response(http.HTTPStatus.MISDIRECTED_REQUEST, text)
        if path != "/metrics":
            return _response(http.HTTPStatus.NOT_FOUND, b"/metrics is what there is\n")
        if method not in ("GET", "HEAD"):
            return _response(http.HTTPStatus.METHOD_NOT_ALLOWED, b"GET it\n", ["Allow: GET, HEAD"])
        try:
            body = await asyncio.to_thread(openmetrics, self.status(), self._made)
        except Exception as exc:  # monitoring must not end what it watches
            self._journal.event(logging.ERROR, "metrics", f"cannot be made: {type(exc).__name__}: {exc}", now=_now())
            return _response(http.HTTPStatus.INTERNAL_SERVER_ERROR, b"the log says why\n")
        return _response(http.HTTPStatus.OK, body, kind=CONTENT_TYPE, head_only=method == "HEAD")


def is_loopback(head: bytes) -> bool:
    """Whether a request names this machine by its loopback, or (HTTP/1.0) by nothing: a name that another one's DNS leads here
    would let web pages read the answer in a browser on this machine."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        if name.strip().lower() != "host":
            continue
        host = value.strip().lower()
        host = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        if host == "localhost":
            continue
        try:
            if not ipaddress.ip_address(host).is_loopback:
                return False
        except ValueError:
            return False
    return True


def without_names(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status for readers who may see neither the names of groups nor of programs; their numbers stay."""
    groups, clients = status.get("groups") or (), status.get("clients") or ()
    shown = [{**client, "name": "", "groups": []} for client in clients]
    return {**status, "groups": [], "group_count": len(groups), "clients": shown}


def _now() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def _response(
    code: http.HTTPStatus, body: bytes, more: Iterable[str] = (), kind: str = "text/plain; charset=utf-8", head_only: bool = False
) -> bytes:
    lines = (
        f"HTTP/1.1 {code.value} {code.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *more,
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + (b"" if head_only else body)
