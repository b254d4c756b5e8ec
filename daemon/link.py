"""One link of this station: its interface, watched through netlink, and the packet socket that the data path opens on it.

The interface may be absent, down or too small at any time. The link is opened when it fits, closed when it does not, opened
again when it has become another one or carries more, and tried again every LINK_RETRY_S while the kernel refuses the socket. A
link knows no other link.
"""

from __future__ import annotations

import logging
import os
from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .datapath import DataPath, LinkInfo, now_ns
from .exits import Exit
from .netlink import LOOK_AGAIN_NS, Change, LinkMonitor, LinkState
from .observe import Journal, Notifier

LINK_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What frames need and may have, in bytes; the same on every link."""

    stations: int
    mtu_needed: int
    """The least MTU that carries every PDU which cannot be split."""
    frame_max: int
    """Of the largest PDU that this station will ever take."""
    overhead: int
    """Of a frame besides its PDU (``datapath.guard_overhead``)."""

    def pdu_max(self, mtu: int) -> int:
        """Bytes of the largest PDU on a link with this MTU."""
        return min(mtu - self.overhead, self.frame_max)


class Host(Protocol):
    """The daemon that a link belongs to."""

    def link_opened(self, name: str, info: LinkInfo) -> None:
        """A link has just been opened, on an interface that is called so now, or carries less than before."""

    def link_unfit(self, why: str) -> bool:
        """An interface that has never been used cannot be. True: that ends the daemon."""

    def give_up(self, code: Exit, message: str) -> None:
        """End the daemon."""

    def turn_soon(self) -> None:
        """Turn the data path and the engine when the present callback is done, unless they are turning now."""

    def later(self, seconds: float, action: Callable[[], None]) -> TimerHandle:
        """Call once, from the loop."""


class LinkDriver:
    """One link. ``fileno`` belongs in the loop, ``on_readable`` is its callback."""

    def __init__(
        self, number: int, interface: str, *, dp: DataPath, host: Host, limits: Limits, journal: Journal, notifier: Notifier
    ) -> None:
        """number: of the link, from 1; interface: its name. Raises OSError (no netlink socket)."""
        self.number = number
        self._index = number - 1
        self.interface = interface
        self._dp = dp
        self._host = host
        self.limits = limits
        """May be replaced: the next time that the link is opened, the new ones count."""
        self._journal = journal
        self._notifier = notifier
        self._monitor = LinkMonitor(interface, self._on_change)
        self.is_open = False
        self.info: LinkInfo | None = None
        """What the last opening found, also while the link is closed; None: it was never open."""
        self._retry: TimerHandle | None = None
        self._looked_ns = now_ns()
        self._unsealed = 0

    # ---- start and end

    def fileno(self) -> int:
        return self._monitor.fileno()

    def on_readable(self) -> None:
        self._monitor.on_readable()

    def start(self) -> None:
        """First look at the interface: opens the link if it fits."""
        self._monitor.start()

    def close(self) -> None:
        """Close the link and stop watching. ``fileno`` is out of the loop before."""
        if self._retry is not None:
            self._retry.cancel()
        self._monitor.close()
        self._close()

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._dp.link_close(self._index)

    # ---- the interface

    def _on_change(self, change: Change) -> None:
        for word, text in change.what:
            bad = change.state is not LinkState.UP or word == "carrier"
            self._journal.event(logging.WARNING if bad else logging.INFO, f"interface {word}", text, now=now_ns(), key=word)
        if change.reopen:
            self._close()
            if change.state is LinkState.UP:
                self._open()
            elif not self._is_hopeless(change) and change.what:
                self._notifier.status(change.what[-1][1])
        elif self.is_open and change.link is not None and self.info is not None and change.link.mtu < self.info.mtu:
            self._narrow(change.link.name, self.info._replace(mtu=change.link.mtu))
        self._host.turn_soon()

    def _is_hopeless(self, change: Change) -> bool:
        """Whether the daemon ends because no link of its can ever be used."""
        if change.state is not LinkState.UNFIT or self.info is not None:
            return False
        return self._host.link_unfit(change.link.why_not() if change.link else "")

    @property
    def state(self) -> LinkState:
        """Of the interface, as last seen."""
        return self._monitor.tracker.state

    @property
    def can_send(self) -> bool:
        """Whether frames that leave now may arrive anywhere: the link is open, and there is a carrier."""
        link = self._monitor.tracker.link
        return self.is_open and link is not None and link.has_carrier

    def _open(self) -> None:
        link = self._monitor.tracker.link
        if link is None:
            return
        try:
            opened = self._dp.link_open(link.name, self._index)
        except PermissionError:
            text = (
                "the kernel refuses the packet socket although CAP_NET_RAW is held: its user namespace does not own this network"
            )
            self._host.give_up(Exit.RIGHTS, text + " (systemd: PrivateUsers=no)")
            return
        except OSError as exc:
            text = f"cannot open a packet socket on {link.name}: {exc.strerror}; trying again"
            self._journal.event(logging.WARNING, "interface", text, now=now_ns(), key="open")
            self._notifier.status(text)
            self._try_again()
            return
        limits = self.limits
        if opened.mtu < limits.mtu_needed:
            self._dp.link_close(self._index)
            self._tell_small(link.name, opened.mtu)
            return  # a larger MTU is a change of the interface and opens it again
        self.is_open = True
        self.info = opened
        self._host.link_opened(link.name, opened)
        if limits.pdu_max(opened.mtu) < opened.mtu - limits.overhead:
            most = limits.frame_max + limits.overhead
            text = f"{link.name} carries {opened.mtu} bytes; frames stay within {most} (station.mtu, or as at the start)"
            self._journal.event(logging.INFO, "interface mtu", text, now=now_ns(), key="cut")
        if opened.ifindex != link.index:  # made again between the look and the opening: look again
            self._monitor.look()

    def _narrow(self, name: str, info: LinkInfo) -> None:
        """The interface carries less now. The socket stays, and so do the frames that wait in its ring."""
        if info.mtu < self.limits.mtu_needed:
            self._close()
            self._tell_small(name, info.mtu)
            return
        self.info = info
        self._host.link_opened(name, info)

    def _tell_small(self, name: str, mtu: int) -> None:
        text = f"{name} carries {mtu} bytes; {self.limits.stations} stations need an MTU of at least {self.limits.mtu_needed}"
        self._journal.event(logging.ERROR, "interface mtu", text, now=now_ns(), key="small")
        self._notifier.status(text)

    def _try_again(self) -> None:
        if self._retry is not None:
            return

        def again() -> None:
            self._retry = None
            self._monitor.look()
            if not self.is_open and self.state is LinkState.UP:
                self._open()

        self._retry = self._host.later(LINK_RETRY_S, again)

    # ---- errors and chores

    def on_error(self, now: int) -> None:
        """The data path has reported an error of some link: see whether it is this one's."""
        code = self._dp.link_error(self._index)
        if not code and self.is_open:
            return
        was = self.is_open
        self._close()
        self._monitor.look()  # reports what happened, and opens again if it is up under another index
        if not self.is_open and self.state is LinkState.UP:
            if was and code:
                text = f"the packet socket reports: {os.strerror(abs(code))}; opening it anew"
                self._journal.event(logging.WARNING, "interface", text, now=now, key="error")
            self._try_again()

    def tick(self, now: int) -> None:
        """Now and then: report frames of another key, and look at a closed link's interface, of which an event may be lost."""
        if self.limits.overhead:
            self._look_for_unsealed(now)
        if not self.is_open and now - self._looked_ns >= LOOK_AGAIN_NS:
            self._looked_ns = now
            self._monitor.look()

    def _look_for_unsealed(self, now: int) -> None:
        counters = self._dp.link_counters(self._index)
        unsealed = counters["rx_unsealed"] + counters["rx_version"]
        if unsealed != self._unsealed:
            self._unsealed = unsealed
            text = (
                f"frames without the seal of this cluster's key arrive on {self.interface} ({unsealed} so far): they are dropped"
            )
            self._journal.event(
                logging.WARNING, "unsealed", text + "; a station with another key, or none?", now=now, key="unsealed"
            )

    def status(self) -> dict[str, Any]:
        """A row of ``links`` of docs/status.md."""
        link = self._monitor.tracker.link
        mtu = link.mtu - self.limits.overhead if link is not None else 0
        frame_max = self.limits.frame_max
        return {
            "link": self.number,
            "name": link.name if link is not None else self.interface,
            "index": link.index if link is not None else None,
            "mac": link.mac if link is not None else None,
            "state": WORDS[self.state],
            "mtu": {"bytes": min(mtu, frame_max), "source": "configuration" if mtu > frame_max else "interface"},
            "counters": self._dp.link_counters(self._index),
        }


WORDS: Final = {LinkState.UP: "up", LinkState.DOWN: "down", LinkState.ABSENT: "absent", LinkState.UNFIT: "down"}
"""``interface.state`` of docs/status.md."""
