"""Impairments of a station's link, and the units in which people write them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

RATE_BIT_MIN: Final = 64_000
RATE_BIT_MAX: Final = 32_000_000_000
DELAY_NS_MAX: Final = 60_000_000_000

_TIME_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_RATE_BIT: Final = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@dataclass(frozen=True)
class Impairment:
    """What happens to the frames that a station receives (and, for the rate, also to those it sends).

    The shares are fractions 0..1 of the frames, each frame judged by itself; times are nanoseconds; rate_bit is bits per
    second or 0 for no limit. Raises ValueError for values out of range.
    """

    loss: float = 0.0
    delay_ns: int = 0
    jitter_ns: int = 0
    reorder: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    rate_bit: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "reorder", "duplicate", "corrupt"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be between 0 % and 100 %, not {value:.4%}")
        for name in ("delay_ns", "jitter_ns"):
            if not 0 <= getattr(self, name) <= DELAY_NS_MAX:
                raise ValueError(f"{name.removesuffix('_ns')} must be between 0 and 60 s")
        if self.rate_bit and not RATE_BIT_MIN <= self.rate_bit <= RATE_BIT_MAX:
            raise ValueError("rate must be between 64kbit and 32gbit")
        if self.jitter_ns and not self.delay_ns:
            raise ValueError("jitter varies the delay: give a delay too")
        if self.reorder and not self.delay_ns:
            raise ValueError("reorder sends some frames at once and the others after the delay: give a delay too")

    @property
    def needs_netem(self) -> list[str]:
        """Names of what is asked for that only sch_netem can do."""
        names = {"delay": self.delay_ns, "jitter": self.jitter_ns, "reorder": self.reorder}
        names |= {"duplicate": self.duplicate, "corrupt": self.corrupt}
        return [name for name, value in names.items() if value]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Impairment:
        """From a JSON object; unknown members are refused with TypeError."""
        return cls(**data)

    def changed(self, changes: dict[str, Any]) -> Impairment:
        """A copy with some values replaced; a name that does not exist raises ValueError."""
        known = {f.name for f in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"no such impairment: {', '.join(unknown)}")
        return Impairment(**{**asdict(self), **changes})

    def describe(self) -> str:
        """In a few words, empty when there is none."""
        words: list[str] = []
        for name in ("loss", "reorder", "duplicate", "corrupt"):
            if value := getattr(self, name):
                words.append(f"{name} {100 * value:.4g}%")
        if self.delay_ns:
            jitter = f"±{format_time(self.jitter_ns)}" if self.jitter_ns else ""
            words.append(f"delay {format_time(self.delay_ns)}{jitter}")
        if self.rate_bit:
            words.append(f"rate {format_rate(self.rate_bit)}")
        return ", ".join(words)


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


def parse_time_ns(text: str) -> int:
    """``5ms``, ``200us``, ``1.5s`` → nanoseconds. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*", text)
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
