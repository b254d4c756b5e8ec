"""``zenjund``: command line, composition of the parts, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import io
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from ..proto.changing import Changing
from ..proto.core import Medium
from ..proto.engine import Engine, EngineConfig
from ..proto.engineconfig import DIRECT_FROM
from ..proto.errors import UsageError
from ..proto.openpdu import INSTANCE_MAX
from ..proto.reconfiguring import Reconfiguring
from ..proto.service.groups import Groups
from ..proto.wire import cluster_id, mtu_needed
from . import config as configuration
from . import confighost
from .access import Access
from .config import Config, ConfigError
from .config.adopted import with_options
from .connections import Facts
from .datapath import DataPath, Sealing, SecretKey, guard_overhead, now_ns
from .exits import Exit
from .judging import Judging
from .key import closed_credentials, complaint, path_of
from .keyhost import KeyHost
from .keyring import Keyring, forbid_core_dumps
from .link import Limits
from .listening import Listener, SocketError
from .manager import adapted, journal_handler, passed_socket
from .metrics import MetricsServer, without_names
from .netlink import LinkMonitor
from .observe import LEVELS, Journal, Notifier, set_level, set_up
from .release import version
from .rights import Rights, RightsError, check_families, drop_all_but_net_raw, take_net_raw, take_realtime
from .runtime import Runtime
from .sessions import Sessions
from .sizing import Sizing
from .status import StatusReport
from .store import DECIDING, FIRST_START, Ran, Remembered, Store, StoreError
from .trusting import SUITES, Secret, Trusting, sealing_of, suite_of, word

FRAME_MAX_ROOM: Final = 9000
"""Buffers take frames of a jumbo MTU even if the interface's is smaller now, so that it may grow while we run, bytes."""
SLICE_NS: Final = 2_000_000
"""Longest stay in one turn of the data path with work left."""
STAY_NS: Final = 8_000_000
"""Time for which a turn waits for the next event itself while events follow each other. The loop's other work may be late by
that."""
NAK_EVEN: Final = 3
"""``EngineConfig.nak_even``. With 5 % loss a request or its answer is lost one time in ten: if the wait doubled at once, one lost
frame of 10,000 would come 40 ms late, and all that is behind it."""
POLL_OWN: Final = 3
"""``EngineConfig.poll_own``. Where the only link that data takes carries nothing any more, but the others do, whoever sends a
message every few milliseconds would ask for the others' reports only when its window is full."""
BUS_SEND_BYTES: Final = 32 * 1024
"""A bridge that forwards serially charges a frame to its sender's socket until it has been carried: so small a buffer is
back-pressure, without which frames are lost in the bridge's backlog."""

EPILOG: Final = """\
exit codes: 0 stopped, 1 bug, 2 command line, 3 configuration, 4 missing right (CAP_NET_RAW),
5 state folder, 6 client socket, 7 unfit interface, 8 refused by the cluster, 9 forced by a second signal

signals: SIGTERM, SIGINT stop (a second one at once), SIGHUP applies the options that may change while the daemon runs

examples:
  zenjun config example > /etc/zenjun/zenjund.toml
  zenjund --config /etc/zenjun/zenjund.toml --check
  sudo zenjund --config /etc/zenjun/zenjund.toml
"""


NO_CIPHER: Final = (
    "a key of 64 hexadecimal digits needs AES-256-GCM and HMAC-SHA-256 of OpenSSL (libcrypto), which does not offer them here: "
    "look at its openssl.cnf, or at OPENSSL_CONF"
)


class Failure(Exception):
    """The daemon cannot start: exit code and one line."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="zenjund",
        description="One station of a zenjun cluster: reliable, totally ordered broadcast on one Ethernet segment.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = f"${configuration.CONFIG_ENV}, else {configuration.CONFIG_PATH}"
    p.add_argument("--config", metavar="FILE", type=Path, help=f"configuration (default: {default})")
    p.add_argument("--check", action="store_true", help="check the configuration and stop")
    p.add_argument(
        "--adopt",
        metavar="FINGERPRINT",
        help="this station ran last under cluster options of this fingerprint: let it start under others, and stop; stop all "
        "stations of the cluster first (docs/changing.md)",
    )
    p.add_argument("--log-level", choices=list(LEVELS), help="instead of the configuration's log.level")
    p.add_argument("--version", action="version", version=f"zenjund {version()}")
    return p


def main(argv: list[str] | None = None) -> int:
    """Run the daemon; returns its exit code (see ``Exit``)."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 cannot show every name
        sys.stdout.reconfigure(errors="replace")
    arguments = parser().parse_args(argv)
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # without a standard error there is nowhere to report it
        faulthandler.enable()  # where it stood, when a watchdog (SIGABRT) or a fault ends it
    forbid_core_dumps()
    try:
        config = configuration.load(arguments.config)
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return Exit.CONFIG
    wrong, unseen = complaint(Path(config.station.key_file)) if arguments.check and config.station.key_file else ("", "")
    if wrong or unseen:
        sys.stderr.write(f"{config.file}: station.key_file: {wrong or unseen}\n")
    if wrong:
        return Exit.CONFIG
    if arguments.check:
        sys.stdout.write(f"{config.file}: the configuration is right\n")
        if config.station.id not in config.cluster.roster:
            sys.stdout.write(
                f"station {config.station.id} is not in its roster: it waits until it is added (zenjun cluster add)\n"
            )
        return Exit.OK
    if arguments.adopt is not None:
        return adopt(config, arguments.adopt)
    context = {"cluster": config.cluster.name, "own_station": config.station.id}
    entries = journal_handler(os.environ, context)
    journal = set_up(config.log.format, arguments.log_level or config.log.level, entries=entries)
    try:
        runtime = compose(config, arguments.log_level, journal)
    except Failure as exc:
        journal.error("exit", str(exc), code=int(exc.code))
        return exc.code
    return uvloop.run(runtime.run())


def adopt(config: Config, fingerprint: str) -> Exit:
    """``--adopt``: forget the configuration that this station ran under last, if it is the one named. Its daemon is stopped."""
    store = Store(Path(config.station.state_dir), config.cluster.name, config.station.id)
    try:
        ran = store.open().ran
        if ran is None or f"{ran.fingerprint:08x}" != fingerprint.lower():
            known = "none is noted" if ran is None else "it ran under another one: the journal of its last start names it"
            sys.stderr.write(f"zenjund: station {config.station.id} did not run under options {fingerprint}: {known}\n")
            return Exit.STATE
        store.forget_ran()
    except StoreError as exc:
        sys.stderr.write(f"zenjund: {exc}\n")
        return Exit.STATE
    finally:
        store.close()
    sys.stdout.write(f"station {config.station.id} may start under other cluster options than {fingerprint}\n")
    return Exit.OK


def check_key(config: Config, ran: Ran | None, key_mark: str) -> None:
    """Raises Failure if this station was in an instance with a key last, and has less now."""
    if ran is not None and (had := ran.options.get("key")) and _is_weaker(key_mark, had):
        raise Failure(
            Exit.CONFIG,
            f"station {config.station.id} was in the cluster with a key last ({had}), and has {key_mark or 'none'} now. "
            "If that is meant, stop all stations, then allow it at each one: zenjun key forget (docs/keys.md)",
        )


def check_ran(config: Config, ran: Ran | None, key_mark: str, journal: Journal) -> None:
    """The cluster options of the file, which count. Raises Failure if this station was in an instance under another quorum last:
    perhaps the rest of the cluster still is."""
    present = Ran(config.fingerprint_with(key_mark), config.agreed_with(key_mark))
    changes = ran.changes(present.fingerprint, present.options) if ran is not None else {}
    if ran is not None and DECIDING & changes.keys():
        raise Failure(
            Exit.CONFIG,
            f"station {config.station.id} ran under other cluster options last: {', '.join(changes.values())}. If that is meant, "
            "stop all stations of the cluster, then allow it at each one: "
            f"zenjund --adopt {ran.fingerprint:08x} (docs/changing.md)",
        )
    if changes:
        journal.warning("options", f"cluster options have changed since the last instance: {', '.join(changes.values())}")


def _is_weaker(now: str, before: str) -> bool:
    """Whether frames would prove less than before: a key that is lost, or that is not read, must not turn the protection off."""
    return not now or (before in SUITES and now not in SUITES)


def compose(config: Config, log_level: str | None, journal: Journal) -> Runtime:
    """Take what the daemon needs, give up the other rights, and join the parts. Raises Failure with the exit code.

    Order: rights before anything that could fail for want of them with a worse message; files (state, socket) while we may still
    have root's powers over them; then only CAP_NET_RAW is left.
    """
    with contextlib.ExitStack() as undo:
        try:
            given = passed_socket(os.environ, os.getpid())
            if given is not None:
                undo.callback(given.close)
            adapt = partial(adapted, environ=dict(os.environ), socket_path=given.getsockname() if given is not None else "")
            config = adapt(config)
            take_net_raw()
            check_families()
            store = Store(Path(config.station.state_dir), config.cluster.name, config.station.id)
            remembered = store.open()
            undo.callback(store.close)
            ring = Keyring(path_of(config.station.key_file, os.environ), store.path.parent)
            key = ring.newest
            suite, sealing = _sealing(config, key)
            overhead = guard_overhead(key or b"", sealing)
            mtu, frame_max = _frame_sizes(config, overhead)
            engine, settings, changing = make_engine(config, remembered, store, frame_max, _mark(key, suite), journal)
            settings.one_width = _one_width(config, suite)
            if settings.one_width and engine.config.outside and config.station.id > config.cluster.stations:
                most = f"expected 1..{config.cluster.stations} (cluster.stations)"
                raise UsageError(f"station.id is {config.station.id}: {most}; none is added above, since {settings.one_width}")
            limits = Limits(engine.config.stations, mtu_needed(engine.config.stations) + overhead, frame_max, overhead)
            dp = _datapath(config, engine, mtu, key, sealing)
            undo.callback(dp.close)
            listener = Listener(Path(config.station.socket), config.station.socket_bits, config.station.socket_group, given)
            undo.callback(listener.close)
            metrics = MetricsServer(config.metrics.listen, config.station.socket_bits, config.station.socket_group, journal)
            undo.callback(metrics.close)
        except RightsError as exc:
            raise Failure(Exit.RIGHTS, str(exc)) from exc
        except StoreError as exc:
            raise Failure(Exit.STATE, str(exc)) from exc
        except SocketError as exc:
            raise Failure(Exit.SOCKET, str(exc)) from exc
        except UsageError as exc:
            raise Failure(Exit.CONFIG, str(exc)) from exc
        except (MemoryError, OSError) as exc:
            raise Failure(Exit.BUG, f"cannot start: {exc}") from exc
        _tell_what_is_missing(config, remembered, ring, journal)
        groups_max = with_options(config, changing.options).cluster.groups_max
        rights, groups = _rights(config, journal), Groups(config.station.id, groups_max)
        facts = _facts(config, engine.config.stations)
        report = StatusReport(config, engine, dp, groups, rights, version(), _id(key) or None)
        clients = _sessions(config, dp, groups, facts, journal, report, engine)
        runtime = Runtime(
            engine=engine,
            dp=dp,
            clients=clients,
            store=store,
            listener=listener,
            journal=journal,
            notifier=Notifier(os.environ, os.getpid()),
            interfaces=config.interfaces,
            limits=limits,
            drain_timeout_ns=config.station.drain_timeout_ns,
            reload=lambda: reload(),
            metrics=metrics,
            by_links=_by_links(config, limits, engine, dp, journal),
            keys=_keys(config, ring, suite, engine, dp, journal),
            configs=_configs(engine, changing, settings, store, dp, journal),
        )
        clients.requests.admin = runtime.admin
        report.runtime, report.clients = runtime, clients
        metrics.status = _shown(report, clients)
        reload = _reloader(config, adapt, log_level, journal, *_live(clients, runtime, log_level))
        undo.pop_all()
        journal.info(
            "start",
            f"zenjund {version()}: station {config.station.id} of {facts.stations} of cluster {config.cluster.name!r} "
            f"on {', '.join(config.interfaces.values())}",
            pid=os.getpid(),
            incarnation=remembered.incarnation + 1,
            socket=config.station.socket,
        )
        return runtime


def _shown(report: StatusReport, clients: Sessions) -> Callable[[], Mapping[str, Any]]:
    """What the metrics are made of."""

    def status() -> Mapping[str, Any]:
        whole = report.status(now_ns())
        return whole if clients.access.shows_names else without_names(whole)

    return status


def _tell_what_is_missing(config: Config, remembered: Remembered, ring: Keyring, journal: Journal) -> None:
    """State that is lost, and a key that may be there and cannot be read."""
    if remembered.lost:
        text = f"{remembered.lost}; this life has incarnation {remembered.incarnation + 1}, from the clock"
        level = logging.INFO if remembered.lost == FIRST_START else logging.WARNING
        journal.event(level, "state", text, folder=config.station.state_dir)
    if ring.keys and not ring.vault.is_locked:
        journal.warning("key", "the kernel does not lock the keys in memory (RLIMIT_MEMLOCK): they may be swapped out")
    if ring.path is None and (closed := closed_credentials(os.environ)):
        journal.warning("key", f"the credentials in {closed} cannot be read: this station has no key")


def _by_links(
    config: Config, limits: Limits, engine: Engine, dp: DataPath, journal: Journal
) -> tuple[Judging | None, Sizing | None]:
    """Who judges several links, and who finds out frame sizes: not on a bus, which is one cable."""
    judging = Judging(config, engine=engine, dp=dp, journal=journal) if config.links.count > 1 else None
    if config.cluster.medium == "bus":
        return judging, None
    sizing = Sizing(config, limits, engine=engine, dp=dp, journal=journal)
    if judging is not None:
        judging.sizing, sizing.answer_by = sizing, judging.say
    return judging, sizing


def _interface_mtu(name: str) -> int:
    """MTU of the interface now, 0 if it does not exist yet. Raises OSError."""
    monitor = LinkMonitor(name, lambda change: None)
    try:
        monitor.start()
        link = monitor.tracker.link
        return link.mtu if link is not None else 0
    finally:
        monitor.close()


def _frame_sizes(config: Config, overhead: int) -> tuple[int, int]:
    """What the interfaces have now for a PDU, at most, and bytes of the largest PDU that there will be buffers for. overhead: of
    a frame, not PDU. Raises OSError."""
    mtu = max(0, max(map(_interface_mtu, config.interfaces.values())) - overhead)
    if config.station.mtu:
        return mtu, config.station.mtu - overhead
    return mtu, min(65535, max(mtu, FRAME_MAX_ROOM))


def _one_width(config: Config, suite: int) -> str:
    if config.links.count > 1:
        return "links.count is more than 1"
    return "the cluster has a key of 64 hexadecimal digits" if suite else ""


def _configs(
    engine: Engine, changing: Changing, settings: confighost.Settings, store: Store, dp: DataPath, journal: Journal
) -> confighost.ConfigHost | None:
    """Where the medium is no bus."""
    if engine.config.medium == Medium.BUS:
        return None
    both = Reconfiguring(engine, changing, settings)
    configs = confighost.ConfigHost(both, settings, store, engine=engine, dp=dp, journal=journal)
    configs.tell_file()
    if engine.config.outside:
        journal.warning(
            "configuration",
            f"station {settings.file.station.id} is not in the roster: it waits until it is added (zenjun cluster add)",
        )
    return configs


def make_engine(
    config: Config, remembered: Remembered, store: Store, frame_max: int, key_mark: str, journal: Journal
) -> tuple[Engine, confighost.Settings, Changing]:
    """Under what this station has taken over while the cluster ran, else under its file. Raises Failure, UsageError."""
    settings, changing, wanted = confighost.make(config, _engine_config(config, frame_max, key_mark), store, key_mark)
    check_key(config, remembered.ran, key_mark)
    if not (changing.stand.number or changing.stand.ballot):
        check_ran(config, remembered.ran, key_mark, journal)
    store.present = Ran(wanted.fingerprint, with_options(config, changing.options).agreed_with(key_mark))
    # A file of a daemon that believed every number it received: this one starts all the same, and reports that they are used up.
    engine = Engine(wanted, incarnation=remembered.incarnation + 1, instance=min(remembered.instance, INSTANCE_MAX))
    return engine, settings, changing


def _facts(config: Config, stations: int) -> Facts:
    return Facts(
        cluster=config.cluster.name,
        station=config.station.id,
        stations=stations,
        message_max=config.cluster.message_max,
        queue_bytes_max=config.clients.queue_bytes_max,
        clients_max=config.clients.max,
        medium=config.cluster.medium,
    )


def _engine_config(config: Config, frame_max: int, key_mark: str) -> EngineConfig:
    """By the file."""
    c = config.cluster
    return EngineConfig(
        cluster=c.name,
        stations=c.stations,
        station=config.station.id,
        window_frames=c.window,
        frame_max=frame_max,
        message_max=c.message_max,
        seed=secrets.randbits(64),
        host_name=socket.gethostname(),
        fingerprint=config.fingerprint,
        boot=secrets.randbits(64),
        quorum=c.quorum,
        required=tuple(sorted(c.required_stations)),
        medium=Medium[c.medium.upper()],
        answer_each=c.confirm == "each",
        direct_from=DIRECT_FROM if c.confirm == "sender" and config.links.count == 1 else 0,
        vacant=tuple(sorted(c.vacant_stations)),
        nak_even=NAK_EVEN,
        poll_own=POLL_OWN,
        tagged=key_mark in SUITES,
        **c.times_ns(),
    )


def _sessions(
    config: Config, dp: DataPath, groups: Groups, facts: Facts, journal: Journal, report: StatusReport, engine: Engine
) -> Sessions:
    """Raises Failure for users that have gone since the configuration was read."""
    try:
        access = Access.of(config)
    except ValueError as exc:
        raise Failure(Exit.CONFIG, str(exc)) from exc
    clients = Sessions(
        dp,
        groups,
        facts,
        journal,
        report.status,
        lambda yes: engine.core.want_ack(yes),
        host_of=lambda station: engine.opening.host_of(station),
        config=engine.config if facts.medium == "switched" else None,
        access=access,
    )
    clients.audit.everything = config.log.audit == "all"
    return clients


def _sealing(config: Config, key: SecretKey | None) -> tuple[int, Sealing | None]:
    """The suite, 0 for none, and the data path's part of it. Raises UsageError."""
    c = config.cluster
    suite = suite_of(c.security, key.size if key is not None else 0, c.medium)
    if config.links.count > 1 and key and not suite:
        raise UsageError(
            "links.count is more than 1: it needs no key, or one of 64 hexadecimal digits; this station has one of 32"
        )
    return suite, sealing_of(key, c.name, c.stations, suite, c.fail_timeout_ns) if key is not None and suite else None


def _id(key: SecretKey | None) -> str:
    """What may be shown of a key; "": there is none."""
    return f"{key.id:08x}" if key is not None else ""


def _mark(key: SecretKey | None, suite: int) -> str:
    """What all stations must have in common: of a key that makes seals its mark; of keys that change while the cluster runs only
    what is done with them; "": no key."""
    return word(suite) if suite else _id(key)


def _keys(config: Config, ring: Keyring, suite: int, engine: Engine, dp: DataPath, journal: Journal) -> KeyHost | None:
    """Where frames prove their sender."""
    if not suite:
        return None
    secret = Secret(ring.keys, config.cluster.name, suite, tuple(ring.retired))
    trusting = Trusting(secret, engine=engine, dp=dp, journal=journal, pause_ns=engine.config.fail_timeout_ns)
    return KeyHost(trusting, ring, engine=engine, dp=dp, journal=journal)


def _datapath(config: Config, engine: Engine, mtu: int, key: SecretKey | None, sealing: Sealing | None) -> DataPath:
    make = partial(
        DataPath,
        engine.core,
        station_index=config.station.id - 1,
        ethertype=config.cluster.ethertype,
        cluster=cluster_id(config.cluster.name),
        links=config.links.count,
        group_mac=config.cluster.group_mac,
        ring_bytes=config.station.ring_bytes_for(mtu),
        send_bytes=BUS_SEND_BYTES if config.cluster.medium == "bus" else 0,
        message_max=config.cluster.message_max,
        queue_bytes_max=config.clients.queue_bytes_max,
        rest_ns=config.station.rest_ns,
        linger_ns=config.station.linger_ns,
        slice_ns=SLICE_NS,
        stay_ns=STAY_NS,
        key=b"" if sealing is not None or key is None else key,
        sealing=sealing._replace(stations=engine.config.stations) if sealing is not None else None,
        stations=engine.config.stations,
        frame_max=engine.config.frame_max,
    )
    try:
        return make()
    except OSError as exc:
        if exc.errno != errno.ENOTSUP:
            raise
        raise UsageError(NO_CIPHER) from exc


def _rights(config: Config, journal: Journal) -> Rights:
    """Real-time scheduling if it is configured and granted; after that no capability but CAP_NET_RAW."""
    rights = Rights(net_raw=True, realtime_wanted=config.station.realtime_priority > 0)
    if rights.realtime_wanted:
        refused = take_realtime(config.station.realtime_priority)
        rights.realtime = refused is None
        if refused is not None:
            text = f"the kernel refuses real-time priority {config.station.realtime_priority} ({refused}); going on without it"
            journal.warning("rights", text)
    try:
        drop_all_but_net_raw()
    except OSError as exc:
        raise Failure(Exit.RIGHTS, f"cannot give up capabilities: {exc.strerror}") from exc
    return rights


Live = Mapping[tuple[str, str], Callable[[Any], None]]
RIGHTS: Final = (
    ("access", "tables"),
    ("clients", "closed"),
    ("clients", "connections_per_user"),
    ("clients", "groups_per_user"),
    ("clients", "input_bytes_per_user"),
    ("clients", "queue_bytes_per_user"),
    ("clients", "queue_bytes_users"),
    ("clients", "rate_bytes_per_user"),
    ("clients", "rate_per_user"),
    ("station", "operators"),
)
"""Options that a reload takes over together: they say what programs may do."""


def _live(clients: Sessions, runtime: Runtime, log_level: str | None) -> tuple[Live, Callable[[Config], None]]:
    """What a reload takes over: the function that sets each such option, and the one that sets all of ``RIGHTS``."""
    live: Live = {
        ("station", "drain_timeout_ms"): lambda ms: runtime.stopping.set_drain_timeout(ms * configuration.NS_PER_MS),
        ("clients", "max"): lambda most: setattr(clients, "clients_max", most),
        ("metrics", "names"): lambda when: setattr(clients.access, "names_shown", when),
        ("log", "level"): lambda level: set_level(log_level or level),
        ("log", "audit"): lambda what: setattr(clients.audit, "everything", what == "all"),
        **dict.fromkeys(RIGHTS, lambda _: None),
    }

    def rights_changed(new: Config) -> None:
        clients.access.change(Access.of(new))
        clients.review()
        runtime.turn_soon()

    return live, rights_changed


def _reloader(
    config: Config,
    adapt: Callable[[Config], Config],
    log_level: str | None,
    journal: Journal,
    live: Live,
    rights_changed: Callable[[Config], None],
) -> Callable[[], None]:
    """Handle SIGHUP: apply the options that may change, and name the others that have changed. live: for each such option, the
    function that sets it; rights_changed sets all of ``RIGHTS``."""
    running = {(section, name): value for section, options in config.values().items() for name, value in options.items()}

    def reload() -> None:
        try:
            new_config = adapt(configuration.load(config.file))
            values = new_config.values()
        except ConfigError as exc:
            journal.error("reload", f"the configuration is wrong, nothing is changed: {exc}")
            return
        taken, later = [], []
        for (section, name), old in running.items():
            if (new := values[section][name]) == old:
                continue
            if (section, name) in live:
                live[section, name](new)
                running[section, name] = new
                taken.append(f"{section}.{name}")
            else:
                later.append(f"{section}.{name}")
        if any(f"{section}.{name}" in taken for section, name in RIGHTS):
            try:
                rights_changed(new_config)
            except ValueError as exc:
                journal.error("reload", f"the rights of programs stay as they were: {exc}")
        level = f"log level {log_level} stays, by --log-level" if log_level else f"log level {running['log', 'level']}"
        now = f"; taken over: {', '.join(taken)}" if taken else ""
        restart = f"; changed but in force only after a restart: {', '.join(later)}" if later else ""
        journal.event(logging.WARNING if later else logging.INFO, "reload", f"configuration read again: {level}{now}{restart}")

    return reload


if __name__ == "__main__":
    sys.exit(main())
