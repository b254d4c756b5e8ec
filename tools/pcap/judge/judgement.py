"""What is promised, and what came of judging it: verdicts with the frames that prove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from .evidence import Where

SHOWN_MAX: Final = 5
"""Violations of one guarantee that are reported in full; the rest are counted."""

ORDER, SENDER, CAUSE, LOSS, DUPLICATE, INVENTION, VIEWS, DIGESTS = (
    "order",
    "sender_order",
    "causality",
    "loss",
    "duplicates",
    "invention",
    "views",
    "digests",
)
TIMES, FOLLOWED, GENUINE, ERAS = "group_times", "group_order", "genuine", "group_views"
OF_LINKS: Final = frozenset({TIMES, FOLLOWED, GENUINE, ERAS})
"""On groups that overlap; judged where captures have frames of links."""
TITLES: Final = {
    ORDER: ("the same total order at all stations", "PDUs in common"),
    SENDER: ("each sender's order", "PDUs"),
    CAUSE: ("no cause behind its effect", "PDUs"),
    LOSS: ("nothing lost", "PDUs in common"),
    DUPLICATE: ("nothing twice, one content for each number", "PDUs"),
    INVENTION: ("nothing that was never sent", "PDUs of captured sources"),
    VIEWS: ("view events at one place, with the same members", "view events in common"),
    DIGESTS: ("digests equal: said, and derived", "digests"),
    TIMES: ("one time for each message to groups that overlap", "decisions"),
    FOLLOWED: ("such messages in the order of their times", "decisions to followers"),
    GENUINE: ("such messages concern only whom they are sent to", "records"),
    ERAS: ("the same messages of a group between its views", "digests of groups"),
}
"""Verdict → (what is promised, what is counted)."""

FindFrames = Callable[[], Iterable[Where]]
"""Frames that prove something; looked for only if they will be shown."""


@dataclass
class Violation:
    """One guarantee broken: what happened, in a sentence, and the frames around it."""

    text: str
    evidence: list[Where] = field(default_factory=list)


@dataclass
class Verdict:
    """On one guarantee. ``kept``: None if there was nothing to compare."""

    name: str
    compared: int = 0
    violations: list[Violation] = field(default_factory=list)
    more: int = 0
    """Violations beyond those that are reported."""
    unseen: bool = False
    """Not all that differs has been looked into."""

    @property
    def kept(self) -> bool | None:
        return False if self.violations else True if self.compared and not self.unseen else None

    def add(self, text: str, find_frames: FindFrames) -> None:
        """Add a violation; not reported if there are many."""
        if any(v.text == text for v in self.violations):
            return
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(Violation(text, list(find_frames())))
        else:
            self.more += 1


@dataclass
class Judgement:
    """All verdicts. notes: what keeps them from being complete, one line each."""

    verdicts: dict[str, Verdict]
    stations: list[int]
    rows: int = 0
    """PDUs in the orders of all stations."""
    notes: list[str] = field(default_factory=list)
    captures: list[dict[str, Any]] = field(default_factory=list)
    """What was judged: ``station`` and ``path`` of each file, in the order of their times, and the source of the station
    (``told``: given, frames or path; empty if it is no longer known)."""

    @property
    def kept(self) -> bool | None:
        """False: something is broken; None: there was nothing to judge."""
        states = [v.kept for v in self.verdicts.values()]
        return False if False in states else True if True in states else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kept": self.kept,
            "stations": self.stations,
            "pdus": self.rows,
            "verdicts": {
                name: {
                    "promise": TITLES[name][0],
                    "kept": v.kept,
                    "compared": v.compared,
                    "unit": TITLES[name][1],
                    "violations": len(v.violations) + v.more,
                    "told": [{"text": x.text, "frames": [w.as_dict() for w in x.evidence]} for x in v.violations],
                }
                for name, v in self.verdicts.items()
            },
            "notes": self.notes,
            "captures": self.captures,
        }
