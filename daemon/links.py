"""The links of this station as a set: open if one of them is, and as wide as the narrowest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..proto.wire import mtu_needed
from .datapath import DataPath, LinkInfo
from .link import Host, Limits, LinkDriver
from .netlink import LinkState
from .observe import Journal, Notifier


class Links:
    """One ``LinkDriver`` for each interface; the data path has as many links."""

    def __init__(
        self, interfaces: Mapping[int, str], *, dp: DataPath, host: Host, limits: Limits, journal: Journal, notifier: Notifier
    ) -> None:
        """interfaces: by the number of their link, from 1. Raises OSError (no netlink socket)."""
        self._limits = limits
        self._links = [
            LinkDriver(number, name, dp=dp, host=host, limits=limits, journal=journal, notifier=notifier)
            for number, name in interfaces.items()
        ]

    def __iter__(self) -> Iterator[LinkDriver]:
        return iter(self._links)

    def readers(self) -> list[tuple[int, Callable[[], None]]]:
        """Descriptors for the loop and their callbacks."""
        return [(link.fileno(), link.on_readable) for link in self._links]

    def start(self) -> None:
        for link in self._links:
            link.start()

    def close(self) -> None:
        """The descriptors are out of the loop before."""
        for link in self._links:
            link.close()

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent and received on at least one link."""
        return any(link.is_open for link in self._links)

    @property
    def are_open(self) -> bool:
        """Whether frames can be sent and received on each."""
        return all(link.is_open for link in self._links)

    @property
    def are_unfit(self) -> bool:
        """Whether no link was ever open and no interface could carry one."""
        return all(link.info is None and link.state is LinkState.UNFIT for link in self._links)

    @property
    def infos(self) -> list[LinkInfo]:
        """What the last openings found, in the order of the links; a link that was never open is left out."""
        return [link.info for link in self._links if link.info is not None]

    @property
    def mtu(self) -> int:
        """The least MTU, in bytes, of the links that were opened, 0 before. That of a closed one counts: its loss changes no
        frame size."""
        return min((info.mtu for info in self.infos), default=0)

    @property
    def pdu_max(self) -> int:
        """Bytes of the largest PDU that every link carries."""
        return self._limits.pdu_max(self.mtu)

    @property
    def names(self) -> str:
        """The configured interfaces, human-readable."""
        return ", ".join(link.interface for link in self._links)

    def on_configuration(self, stations: int) -> None:
        """Numbers of stations are up to this now."""
        needed = mtu_needed(stations) + self._limits.overhead
        self._limits = replace(self._limits, stations=stations, mtu_needed=needed)
        for link in self._links:
            link.limits = self._limits

    def on_error(self, now: int) -> None:
        """The data path has reported an error of at least one link."""
        for link in self._links:
            link.on_error(now)

    def tick(self, now: int) -> None:
        """Chores, about once a second while a link is closed."""
        for link in self._links:
            link.tick(now)

    def status(self) -> list[dict[str, Any]]:
        """``LinkDriver.status`` of each."""
        return [link.status() for link in self._links]
