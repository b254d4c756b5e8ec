"""What a checker raises."""

from __future__ import annotations


class Violation(AssertionError):
    """A property is broken: by whom, and how."""

    def __init__(self, checker: str, text: str, stations: tuple[int, ...] = ()) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text
        self.stations = stations
