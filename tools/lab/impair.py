"""Impairments of a station's link, and the units in which people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeAlias

RATE_BIT_MIN: Final = 64_000
RATE_BIT_MAX: Final = 32_000_000_000
DELAY_NS_MAX: Final = 60_000_000_000
LIMIT_MAX: Final = 1_000_000
GAP_MAX: Final = 1_000_000
DISTRIBUTIONS: Final = ("uniform", "normal", "pareto", "paretonormal")
"""How the delay varies around its mean, in units of the jitter: evenly between -1 and 1, or with a tail (distributions.py)."""

_TIME_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_RATE_BIT: Final = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


Burst: TypeAlias = tuple[float, float, float, float]
"""The Gilbert-Elliott model as netem writes it: p, r, 1-h, 1-k (see ``Impairment.burst``)."""


def burst_loss(burst: Sequence[float]) -> float:
    """The share of frames that the model loses in the long run."""
    p, r, bad, good = burst
    in_bad = p / (p + r) if p else 0.0
    return in_bad * bad + (1 - in_bad) * good


@dataclass(frozen=True)
class Impairment:
    """What happens to the frames that a station receives (and, for the rate, also to those it sends).

    The shares are fractions 0..1 of the frames; times are nanoseconds.

    loss: each frame judged by itself. burst: the Gilbert-Elliott model, () for none: a station is in a good or a bad state;
    with each frame it goes from good to bad with probability p, back with r, and loses frames of the bad state with 1-h
    (default 1), of the good one with 1-k (default 0). Both together are two losses one after the other.
    jitter_distribution: how the delay varies, see ``DISTRIBUTIONS``; frames whose delay ends earlier overtake the others.
    reorder: share of frames sent at once while the others are delayed; reorder_gap: at most every Nth frame, 0 for
    any; reorder_correlation: how far each throw follows the one before. rate_bit: bits per second or 0 for no limit. limit:
    frames that wait for delay or rate at most, 0 for the lab's own bounds; further ones are dropped.

    Raises ValueError for values out of range.
    """

    loss: float = 0.0
    delay_ns: int = 0
    jitter_ns: int = 0
    reorder: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    rate_bit: int = 0
    burst: tuple[float, ...] = ()
    jitter_distribution: str = "uniform"
    reorder_correlation: float = 0.0
    reorder_gap: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "reorder", "duplicate", "corrupt", "reorder_correlation"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{_words(name)} must be between 0 % and 100 %, not {value:.4%}")
        for name in ("delay_ns", "jitter_ns"):
            if not 0 <= getattr(self, name) <= DELAY_NS_MAX:
                raise ValueError(f"{name.removesuffix('_ns')} must be between 0 and 60 s")
        for name, most in (("limit", LIMIT_MAX), ("reorder_gap", GAP_MAX)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{_words(name)} must be between 0 and {most} frames")
        if self.rate_bit and not RATE_BIT_MIN <= self.rate_bit <= RATE_BIT_MAX:
            raise ValueError("rate must be between 64kbit and 32gbit")
        if self.burst:
            object.__setattr__(self, "burst", _check_burst(self.burst))
        elif self.burst != ():
            object.__setattr__(self, "burst", ())  # an empty list, from JSON or TOML
        if self.jitter_distribution not in DISTRIBUTIONS:
            raise ValueError(f"jitter distribution must be one of {', '.join(DISTRIBUTIONS)}, not {self.jitter_distribution!r}")
        if self.jitter_ns and not self.delay_ns:
            raise ValueError("jitter varies the delay: give a delay too")
        if self.jitter_distribution != "uniform" and not self.jitter_ns:
            raise ValueError("a jitter distribution says how the delay varies: give a jitter too")
        if self.reorder and not self.delay_ns:
            raise ValueError("reorder sends some frames at once and the others after the delay: give a delay too")
        if (self.reorder_gap or self.reorder_correlation) and not self.reorder:
            raise ValueError("gap and correlation say which frames are reordered: give reorder too")

    @property
    def needs_netem(self) -> list[str]:
        """Names of what is asked for that only sch_netem can do."""
        names = {"delay": self.delay_ns, "jitter": self.jitter_ns, "reorder": self.reorder}
        names |= {"duplicate": self.duplicate, "corrupt": self.corrupt}
        names["limit without rate"] = self.limit and not self.rate_bit
        return [name for name, value in names.items() if value]

    @property
    def all_burst(self) -> tuple[float, ...]:
        """``burst`` and ``loss`` as one model: a frame gets through only when neither of the two takes it."""
        if not self.burst:
            return ()
        p, r, bad, good = self.burst
        return (p, r, 1 - (1 - bad) * (1 - self.loss), 1 - (1 - good) * (1 - self.loss))

    @property
    def mean_loss(self) -> float:
        """The share of frames lost in the long run."""
        return burst_loss(self.all_burst) if self.burst else self.loss

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Impairment:
        """From a JSON object; unknown members are refused with TypeError."""
        return cls(**data)

    def changed(self, changes: dict[str, Any]) -> Impairment:
        """A copy with some values replaced; a name that does not exist raises ValueError.

        A value that only modifies another one ends with it.
        """
        known = {f.name for f in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"no such impairment: {', '.join(unknown)}")
        values = {**asdict(self), **changes}
        for name, dependent in _DEPENDENT.items():
            if name in changes and not changes[name]:
                values |= {key: value for key, value in dependent.items() if key not in changes}
        return Impairment(**values)

    def describe(self) -> str:
        """In a few words, empty when there is none."""
        words: list[str] = []
        for name in ("loss", "reorder", "duplicate", "corrupt"):
            if value := getattr(self, name):
                words.append(f"{name} {100 * value:.4g}%")
        if self.reorder_gap:
            words.append(f"reorder gap {self.reorder_gap}")
        if self.reorder_correlation:
            words.append(f"reorder correlation {100 * self.reorder_correlation:.4g}%")
        if self.burst:
            model = " ".join(f"{100 * value:.4g}%" for value in self.burst)
            words.append(f"burst {model} (loses {100 * burst_loss(self.burst):.4g}%)")
        if self.delay_ns:
            jitter = f"±{format_time(self.jitter_ns)}" if self.jitter_ns else ""
            shape = f" {self.jitter_distribution}" if self.jitter_distribution != "uniform" else ""
            words.append(f"delay {format_time(self.delay_ns)}{jitter}{shape}")
        if self.rate_bit:
            words.append(f"rate {format_rate(self.rate_bit)}")
        if self.limit:
            words.append(f"limit {self.limit}")
        return ", ".join(words)


_DEPENDENT: Final[dict[str, dict[str, Any]]] = {
    "jitter_ns": {"jitter_distribution": "uniform"},
    "delay_ns": {
        "jitter_ns": 0,
        "jitter_distribution": "uniform",
        "reorder": 0.0,
        "reorder_gap": 0,
        "reorder_correlation": 0.0,
    },
    "reorder": {"reorder_gap": 0, "reorder_correlation": 0.0},
}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _check_burst(values: Sequence[float]) -> Burst:
    if not 2 <= len(values) <= 4:
        raise ValueError("burst is two to four shares: p, r, 1-h, 1-k")
    p, r, bad, good = (*map(float, values), *(1.0, 0.0)[len(values) - 2 :])
    if not all(0.0 <= value <= 1.0 for value in (p, r, bad, good)):
        raise ValueError("each share of burst must be between 0 % and 100 %")
    if r == 0.0:
        raise ValueError("burst with r = 0 % would never leave the bad state: use loss")
    return (p, r, bad, good)


def parse_fraction(text: str) -> float:
    """``5%`` or ``0.05`` → 0.05. Raises ValueError."""
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text!r} is no share: write 5% or 0.05") from None
    value = value / 100 if percent else value
    if not 0.0 <= value <= 1.0:
        hint = f" (did you mean {text}%?)" if 1 < value <= 100 and not percent else ""
        raise ValueError(f"{text!r} is not between 0% and 100%{hint}")
    return value


def parse_burst(text: str) -> tuple[float, ...]:
    """``1%,25%`` or ``1%,25%,80%,0.1%`` → (p, r, 1-h, 1-k); ``5%x4`` → the model that loses 5 % in bursts of 4 frames on
    average; ``none`` → (). Raises ValueError."""
    if text.strip() in ("none", "0"):
        return ()
    mean_text, times, length_text = text.partition("x")
    if times:
        mean = parse_fraction(mean_text)
        try:
            length = float(length_text)
        except ValueError:
            length = 0.0
        if not 1 <= length < 1e6 or not 0 < mean < 1:
            raise ValueError(f"{text!r} is no burst loss: write 5%x4 for 5% in bursts of 4 frames")
        if (p := mean / (1 - mean) / length) > 1:
            raise ValueError(f"bursts of {length:g} frames cannot make up a loss of {mean:.4g}: they would have to touch")
        return _check_burst((p, 1 / length))
    return _check_burst([parse_fraction(part) for part in re.split(r"[,\s]+", text.strip())])


def parse_time_ns(text: str) -> int:
    """``5ms``, ``200us``, ``1.5s``, and ``0`` without a unit → nanoseconds. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*", text)
    if not match and text.strip() == "0":
        return 0
    if not match:
        raise ValueError(f"{text!r} is no time: write a number with ns, us, ms or s, as in 5ms")
    return round(float(match[1]) * _TIME_NS[match[2]])


def parse_rate_bit(text: str) -> int:
    """``100mbit``, ``1gbit`` → bits per second. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(bit|kbit|mbit|gbit|)\s*", text.lower())
    if not match:
        raise ValueError(f"{text!r} is no rate: write a number with kbit, mbit or gbit, as in 100mbit")
    return round(float(match[1]) * _RATE_BIT[match[2]])


def format_time(time_ns: int) -> str:
    """Nanoseconds in the largest unit that keeps the number at or above one."""
    for unit in ("s", "ms", "us"):
        if time_ns >= _TIME_NS[unit]:
            return f"{time_ns / _TIME_NS[unit]:.4g}{unit}"
    return f"{time_ns}ns"


def format_rate(rate_bit: int) -> str:
    """Bits per second in the largest unit that keeps the number at or above one."""
    for unit in ("gbit", "mbit", "kbit"):
        if rate_bit >= _RATE_BIT[unit]:
            return f"{rate_bit / _RATE_BIT[unit]:.4g}{unit}"
    return f"{rate_bit}bit"
