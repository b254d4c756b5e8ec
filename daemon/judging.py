"""Several links in the daemon: feeds ``proto.links`` with what has come on each, and applies its effects to the data path."""

from __future__ import annotations

import logging
from typing import Any, Final

from ..proto.engine import Engine
from ..proto.links import Config, Effect, Judge, Mode, Moved, Said, Say, State, Use, Wired
from .config import Config as Options
from .datapath import DataPath, Heard, Spreading, Want
from .links import Links
from .observe import Journal
from .sizing import Sizing, said_of

SPREADING: Final = {
    Mode.AUTO: Spreading.AUTO,
    Mode.DUPLICATE: Spreading.ALL,
    Mode.STRIPE: Spreading.STRIPE,
    Mode.PASSIVE: Spreading.SET,
}
SAID: Final = int(Want.SAID)
LOOK_NS: Final = 25_000_000
"""Between two looks at who is heard: so late at most is a link found that has fallen silent."""
MS: Final = 1_000_000


class Judging:
    """One station's judge of its links. ``links`` is set once it exists."""

    links: Links
    sizing: Sizing | None = None
    """Who wants to know what LINKS says of frame sizes."""

    def __init__(self, options: Options, *, engine: Engine, dp: DataPath, journal: Journal) -> None:
        rows = options.link_options
        self._judge = Judge(
            Config(
                station=options.station.id,
                stations=engine.config.stations,
                links=tuple(options.interfaces),
                count=options.links.count,
                heartbeat_ns=engine.config.heartbeat_ns,
                mode=Mode(options.links.mode),
                priority={number: row.priority for number, row in rows.items()},
            )
        )
        self._engine = engine
        self._dp = dp
        self._journal = journal
        self._heard: dict[int, list[Heard]] = {}
        self._look_ns = 0
        self._deadline_ns = 0
        self._was_open: list[int] = []
        for number, row in rows.items():
            dp.link_weight(number - 1, row.rate_mbit)

    def on_configuration(self, heartbeat_ns: int) -> None:
        """The cluster's heartbeat may have changed; the number of stations cannot, with several links."""
        self._judge.on_heartbeat(heartbeat_ns)
        self._deadline_ns = 0

    def deadline_ns(self) -> int:
        """When ``serve`` is due at the latest: at once when a link has been lost or is back."""
        return self._deadline_ns if self._open() == self._was_open else 0

    def serve(self, now: int, want: int) -> None:
        """Take LINKS that have come, and judge if it is time. want: of the turn."""
        is_open = self._open()
        if not want & SAID and now < self._deadline_ns and is_open == self._was_open:
            return
        self._was_open = is_open
        self._read(now)
        doubtful = self._dp.links_doubtful()
        if doubtful:
            self._judge.on_doubt(now, [index + 1 for index in doubtful])
        self._heard = {number: self._dp.links_heard(number - 1) for number in self._judge.config.links}
        heard = {number: [row.heard_ns for row in rows] for number, rows in self._heard.items()}
        for effect in self._judge.step(now, heard, is_open, self._members()):
            self._apply(effect, now)
        if doubtful and self._judge.used is not None:  # the judge knows of them now; if it spreads nothing, nothing has changed
            self._apply(self._judge.used, now)
        # Silence is seen by looking: a little later than it begins, and not at every heartbeat of everybody.
        self._deadline_ns = min(max(self._judge.deadline_ns(), now + MS), now + 4 * LOOK_NS)

    def _open(self) -> list[int]:
        return [link.number for link in self.links if link.can_send]

    def _members(self) -> tuple[int, ...]:
        return self._engine.membership.members if self._engine.instance else ()

    def _read(self, now: int) -> None:
        while (came := self._dp.links_said()) is not None:  # bound: links x stations
            station, index, body = came
            said = Said.read(body)
            if said is not None and said.count == self._judge.config.count:
                self._judge.on_links(now, station, index + 1, said)
                if self.sizing is not None:
                    self.sizing.on_links(now, station, index, said)

    def say(self, link: int) -> None:
        """LINKS is wanted at once."""
        self._judge.on_asked(link)
        self._deadline_ns = 0

    def _apply(self, effect: Effect, now: int) -> None:
        match effect:
            case Say(link, hears):
                rows = self._dp.links_heard(link - 1)[: self._judge.config.stations]
                self._dp.links_say(link - 1, said_of(self._dp, link, self._judge.config.count, hears, rows).packed())
            case Use(mode, links):
                self._dp.links_use(SPREADING[mode], [link - 1 for link in links])
            case Moved(link, station, state, before):
                level = logging.WARNING if before is State.UP else logging.INFO
                text = f"link {link} to station {station} is {state} (was {before})"
                self._journal.event(level, "link", text, now=now, key=f"{link} {station}", link=link, station=station)
            case Wired(link, other, joined):
                text = (
                    f"link {link} is {'joined to' if joined else 'crossed with'} link {other}: see how the switches are connected"
                )
                if not other:
                    text = f"link {link} is no longer connected with another one"
                self._journal.event(
                    logging.WARNING if other else logging.INFO, "link", text, now=now, key=f"wired {link}", link=link
                )

    def status(self, number: int, now: int) -> dict[str, Any]:
        """What is known of a link, for ``links`` of docs/status.md."""
        judge = self._judge
        used = judge.used
        hold = judge.hold_until_ns(number)
        return {
            "stations": [
                {
                    "station": station,
                    "state": str(state),
                    "frames": self._frames(number, station),
                    "frames_there": self._frames_there(number, station),
                    "largest_there": self._largest_there(number, station),
                }
                for (link, station), state in sorted(judge.states.items())
                if link == number
            ],
            "data": str(used.mode) if used is not None and number in used.links else "none",
            "doubtful": number in judge.doubtful,
            "connected_with": judge.wired[number][0] if number in judge.wired else None,
            "hold_ms": max(0, hold - now) // MS,
        }

    def _frames(self, number: int, station: int) -> int:
        rows = self._heard.get(number)
        return rows[station - 1].frames if rows else 0

    def _frames_there(self, number: int, station: int) -> int | None:
        said = self._judge.said(number, station)
        return said.frames[self._judge.config.station - 1] if said is not None else None

    def _largest_there(self, number: int, station: int) -> int | None:
        said = self._judge.said(number, station)
        return said.largest[self._judge.config.station - 1] if said is not None else None
