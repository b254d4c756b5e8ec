"""What a checker raises."""

from __future__ import annotations


class Violation(AssertionError):
    """A property is broken: by whom, and how."""

    def __init__(self, checker: str, text: str, stations: tuple[int, ...] = ()) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text
        self.stations = stations

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str, tuple[int, ...]]]:
        """As an exception it would be made again, between processes, from its message alone."""
        return (Violation, (self.checker, self.text, self.stations))
