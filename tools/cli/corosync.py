"""``zenjun corosync``: the stand-in for corosync on this machine (docs/corosync.md)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import click

from ...daemon import config as options
from ...daemon.client import ClientError
from ...daemon.config.options import LINKS_MAX
from ...daemon.corosync.conf import MESSAGE_BYTES, Conf, check, load, path_of, ring_of
from ...daemon.corosync.ipc import SERVICES, owner
from ...daemon.terminal import json_text
from ...proto.service.corosync.messages import GROUP
from .common import FAILED, OK, Failure, daemon, socket_option
from .lazy import Overview

SERVICE: Final = "corosync.service"
FOLDER: Final = Path("/etc/systemd/system/corosync.service.d")
NAME: Final = "zenjun.conf"
CODES: Final = "Exit codes: 0 done, 1 failed or something is wrong, 2 wrong usage."
DROP_IN: Final = """# Made by `zenjun corosync enable`; `zenjun corosync disable` removes it. docs/corosync.md.
[Unit]
Description=zenjun-corosync, which serves corosync's programs from zenjun
Wants=zenjund.service
After=zenjund.service

[Service]
Type=notify
NotifyAccess=main
ExecStart=
ExecStart=/usr/sbin/zenjun-corosync --config /etc/zenjun/zenjund.toml --daemon-socket /run/zenjun/zenjund.sock
# As zenjund's. Not by StateDirectory=, which would give the folder to root.
Environment=STATE_DIRECTORY=/var/lib/zenjun
ExecStop=
TimeoutStopSec=10s
# One that hangs is ended: until then the others believe that its node is well.
WatchdogSec=10s
# Ended by a program or by another node: not a failure, and not to be started again.
SuccessExitStatus=8
StandardError=journal

# Pacemaker refuses a provider that is not root.
User=root
# SYS_NICE: it runs ahead of the programs, as corosync does, so that they see all of a change at once.
CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE CAP_SYS_NICE
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX
ProtectHome=yes
ProtectSystem=full
RestrictNamespaces=yes
LockPersonality=yes
"""
"""What makes corosync.service start the stand-in. Shared memory and the network namespace stay the host's: libqb uses both."""
HEARTBEAT_MS, QUORUM_TIMEOUT_MS, PROBE_MS = 40, 150, 10
STOP_MS: Final = 200
"""By how much a node that is cut off is ahead of the others, if nothing else is said: what it takes longer for, not what a stop
takes. Then a node that dies is given up after 400 ms."""
STOP_MS_MAX: Final = 60_000


def times(stop_ms: int) -> tuple[str, ...]:
    """Lines for three nodes and more: the programs of a node that is cut off hear of it this long before the others are told that
    it has left (rule M11). Two nodes have no majority that would go on: each is alone at once."""
    return (
        f"# A node that is cut off has {stop_ms} ms to stop its resources before the others start them (docs/corosync.md).",
        f"heartbeat_ms = {HEARTBEAT_MS}",
        f"fail_timeout_ms = {QUORUM_TIMEOUT_MS + HEARTBEAT_MS + PROBE_MS + stop_ms}",
        f"quorum_timeout_ms = {QUORUM_TIMEOUT_MS}",
        f"probe_interval_ms = {PROBE_MS}",
    )


folder_option = click.option(
    "--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True, help="Where the drop-in for the service is."
)
conf_option = click.option(
    "--corosync-conf",
    "conf_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="[default: $COROSYNC_MAIN_CONFIG_FILE or /etc/corosync/corosync.conf]",
)


@click.group(cls=Overview, epilog=CODES)
def corosync() -> None:
    """Run corosync's programs on zenjun: Debian's own, unchanged.

    \b
    Examples:
      zenjun corosync check
      zenjun corosync enable
      zenjun corosync status
    """


def _systemctl(*words: str) -> tuple[int, str]:
    """Exit code and first line. Raises Failure where systemd does not run."""
    try:
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise Failure("systemctl is not here: start zenjun-corosync by other means", command="corosync") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"systemctl {' '.join(words)} has not answered for 60 s", command="corosync") from None
    if "not been booted with systemd" in done.stderr:
        raise Failure("systemd does not run here: start zenjun-corosync by other means", command="corosync")
    return done.returncode, (done.stdout or done.stderr).strip().partition("\n")[0]


def _stopped() -> None:
    """Raises Failure while the service runs: programs would lose their ring."""
    state = _systemctl("is-active", SERVICE)[1]
    if state not in ("inactive", "failed", "unknown"):
        raise Failure(f"{SERVICE} is {state}: stop it first (systemctl stop pacemaker corosync)", command="corosync")


@corosync.command(epilog=CODES)
@folder_option
def enable(folder: Path) -> None:
    """Have corosync.service start the stand-in instead of corosync. Refused while the service runs.

    \b
    Example:
      systemctl stop pacemaker corosync && zenjun corosync enable && systemctl start corosync pacemaker
    """
    _stopped()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(DROP_IN)
    except OSError as error:
        raise Failure(f"{folder / NAME}: {error.strerror}", command="corosync enable") from None
    _systemctl("daemon-reload")
    click.echo(f"{SERVICE} starts zenjun-corosync ({folder / NAME})")


@corosync.command(epilog=CODES)
@folder_option
def disable(folder: Path) -> None:
    """Have corosync.service start corosync again. Refused while the service runs.

    \b
    Example:
      systemctl stop pacemaker corosync && zenjun corosync disable
    """
    _stopped()
    try:
        (folder / NAME).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise Failure(f"{folder / NAME}: {error.strerror}", command="corosync disable") from None
    _systemctl("daemon-reload")
    click.echo(f"{SERVICE} starts corosync")


@corosync.command(epilog=CODES)
@folder_option
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def status(folder: Path, path: str | None, as_json: bool) -> None:
    """Show what serves corosync's programs here, and which stations have a stand-in. The ring: corosync-quorumtool.

    \b
    Examples:
      zenjun corosync status
      zenjun corosync status --json | jq .pid
    """
    pid = owner("cmap")
    found: dict[str, Any] = {"enabled": (folder / NAME).exists(), "pid": pid, "command": _command(pid), "services": _served()}
    try:
        with daemon(path, "corosync status", 5.0) as connection:
            found["stations"] = sorted({member.station for member in connection.members(GROUP)})
    except ClientError as error:
        found["stations"] = None
        found["zenjund"] = str(error)
    if as_json:
        click.echo(json_text(found))
        return
    click.echo(f"{SERVICE} starts {'zenjun-corosync' if found['enabled'] else 'corosync'}")
    click.echo(
        f"process {pid} serves {', '.join(_served())}: {found['command']}" if pid else "no process serves corosync's programs"
    )
    if found["stations"] is None:
        click.echo(f"zenjund does not say which stations have a stand-in: {found['zenjund']}")
    else:
        click.echo(f"stand-ins in the order: stations {', '.join(map(str, found['stations'])) or 'none'}")


def _served() -> list[str]:
    return [name for name in SERVICES if owner(name)]


def _command(pid: int) -> str:
    """The process's command line; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() if pid else ""
    except OSError:
        return ""


@corosync.command("check", epilog=CODES)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@conf_option
def check_(file: Path | None, conf_path: Path | None) -> int:
    """Check corosync.conf, and that zenjund's configuration FILE fits it; default $ZENJUN_CONFIG, else /etc/zenjun/zenjund.toml.

    What cannot be, and what has another meaning here, is one line each, with file and line.

    \b
    Example:
      zenjun corosync check /etc/zenjun/zenjund.toml
    """
    if file is not None and file.suffix == ".conf" and conf_path is None:
        said = f"{file} is taken for zenjund's configuration: give corosync's as --corosync-conf {file}"
        raise click.UsageError(said)
    where = conf_path or path_of(dict(os.environ))
    wrong: list[str] = []
    try:
        conf = load(where)
    except options.ConfigError as error:
        raise Failure(str(error), command="corosync check") from None
    try:
        config = options.load(file)
    except options.ConfigError as error:
        wrong.append(f"{where}: good in itself. {len(conf.nodes)} nodes")
        wrong.append(f"{error}. What goes with corosync.conf, prints: zenjun corosync config")
    else:
        cluster = config.cluster
        for problem in check(conf, cluster.stations, config.station.id, cluster.message_max, cluster.medium):
            wrong.append(f"{where}:{problem.line}: {problem.message}" if problem.line else f"{where}: {problem.message}")
        cipher = conf.get("totem", "crypto_cipher")
        if _is_on(cipher) and config.station.key_file and cluster.security != "encrypt":
            conf.warnings.append((0, f"crypto_cipher is {cipher}, but zenjund does not hide content (cluster.security)"))
        rings = _rings(conf)
        if rings > config.links.count:
            text = f"{rings} rings, but zenjund has {config.links.count} link (links.count): the others are not used"
            conf.warnings.append((0, text))
        if _is_on(cipher) and not config.station.key_file:
            text = f"crypto_cipher is {cipher}, but zenjund has no key (station.key_file): nothing would be authenticated"
            wrong.append(f"{where}: {text}")
    if (pid := owner("cmap")) and "zenjun" not in _command(pid):
        wrong.append(f"process {pid} serves corosync's programs: {_command(pid)}")
    for line, text in conf.warnings:
        click.echo(f"{where}:{line}: warning: {text}" if line else f"{where}: warning: {text}", err=True)
    for text in wrong:
        click.echo(text, err=True)
    if wrong:
        return FAILED
    click.echo(f"{where}: good. {len(conf.nodes)} nodes; this one is {conf.node_of(config.station.id).id}")
    return OK


@corosync.command("config", epilog=CODES)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@conf_option
@click.option(
    "--stop-time",
    "stop_ms",
    metavar="MS",
    type=click.IntRange(STOP_MS, STOP_MS_MAX),
    default=STOP_MS,
    show_default=True,
    help="How long a node that is cut off has to stop its resources before the others start them. Every failover waits for it.",
)
def config_(file: Path | None, conf_path: Path | None, stop_ms: int) -> None:
    """Print the zenjund.toml that goes with corosync.conf, for this machine. FILE is the same as --corosync-conf FILE.

    \b
    Examples:
      zenjun corosync config > zenjund.toml
      zenjun corosync config --stop-time 2500     no fencing: time for Pacemaker to stop
    """
    try:
        conf = load(conf_path or file or path_of(dict(os.environ)))
    except options.ConfigError as error:
        raise Failure(str(error), command="corosync config") from None
    click.echo(configuration(conf, _interfaces(), stop_ms))


def configuration(conf: Conf, interfaces: dict[str, str], stop_ms: int = STOP_MS) -> str:
    """The text. interfaces: name by address. stop_ms: as ``times``."""
    here = next((node for node in conf.nodes if node.address in interfaces), None)
    lines = [
        "[cluster]",
        f"name = {json.dumps(conf.get('totem', 'cluster_name') or 'corosync')}",
        f"stations = {max(node.station for node in conf.nodes)}",
        f"# message_max: at least {MESSAGE_BYTES}; the default is larger",
        *(times(stop_ms) if len(conf.nodes) > 2 else []),
        *_differs(conf),
        *(['security = "encrypt"  # corosync encrypts'] if _is_on(conf.get("totem", "crypto_cipher")) else []),
        "",
        "[station]",
        "# realtime_priority = 1: zenjund does not wait for busy programs either, as corosync; needs a drop-in (docs/service.md)",
    ]
    if here is None:
        lines += [
            "# no address of this machine is in the nodelist: enter its station and its interface",
            "id = 0",
            'interface = ""',
        ]
    else:
        lines += [f"# node {here.id}, {here.address}", f"id = {here.station}", f'interface = "{interfaces[here.address]}"']
    if _is_on(conf.get("totem", "crypto_cipher")) or _is_on(conf.get("totem", "crypto_hash")):
        lines.append('key_file = "/etc/zenjun/zenjund.key"  # as corosync\'s: zenjun key new, the same file at all stations')
    if (rings := min(_rings(conf), LINKS_MAX)) > 1:
        lines += ["", "[links]", f"count = {rings}"]
        for number in range(2, rings + 1):
            address = here.text(f"ring{number - 1}_addr") if here is not None else ""
            lines += ["", "[[link]]", f"number = {number}"]
            if address in interfaces:
                lines.append(f'interface = "{interfaces[address]}"')
            else:
                lines += [f"# the interface with {address or 'the address of this ring'}", 'interface = ""']
    return "\n".join(lines)


def _is_on(crypto: str) -> bool:
    return crypto not in ("", "none")


def _rings(conf: Conf) -> int:
    """How many the nodes have addresses of."""
    return max([1, *(ring + 1 for node in conf.nodes for key in node.values if (ring := ring_of(key)) is not None)])


def _differs(conf: Conf) -> list[str]:
    """Where somebody has chosen how long corosync waits."""
    token = conf.get("totem", "token")
    if not token.isdigit():
        return []
    return [
        f"# corosync waited {token} ms for a silent node (totem.token), and for more nodes longer; zenjund waits fail_timeout_ms"
    ]


def _interfaces() -> dict[str, str]:
    """This machine's interfaces by address; empty if ip is not here."""
    try:
        text = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, timeout=10, check=True).stdout
        return {a["local"]: link["ifname"] for link in json.loads(text) for a in link.get("addr_info", ()) if "local" in a}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return {}
