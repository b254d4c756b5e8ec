"""Turns that the loop makes without Python, as a part of ``DataPath``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ._datapath import ffi, lib

TIME_MAX: Final = 2**64 - 1


@ffi.def_extern()  # type: ignore[untyped-decorator]
def dp_python(by: Any) -> None:
    """A turn made in C wants Python."""
    ffi.from_handle(by)()


class Unattended:
    """What ``DataPath`` has for the loop."""

    _dp: Any
    _wanted: Any
    """Handle of what is called when Python is wanted."""

    def again(self, wanted: Callable[[], None]) -> tuple[Callable[..., object], Any]:
        """What the loop is to call, and with what, when the descriptor is readable: a turn with the last deadline, without any
        Python where ``alone`` allows it and it wants nothing; else ``wanted`` is called, and its first ``turn`` is that one."""
        self._wanted = ffi.new_handle(wanted)
        lib.dp_on_want(self._dp, lib.dp_python, self._wanted)
        return lib.dp_again, self._dp

    def alone(self, yes: bool) -> None:
        """Whether turns that want nothing are not Python's business."""
        lib.dp_alone(self._dp, yes)

    @property
    def began_ns(self) -> int:
        """When the loop called what is running, with the turn that it has made itself; 0 outside of that."""
        return int(lib.dp_began(self._dp))

    @property
    def active_ns(self) -> int:
        """When a turn last had anything to do but heartbeats; 0 never."""
        return int(lib.dp_active(self._dp))

    @property
    def planned_ns(self) -> int:
        """When the next turn is due if nothing comes."""
        return int(lib.dp_planned(self._dp))

    @planned_ns.setter
    def planned_ns(self, at: int) -> None:
        lib.dp_plan(self._dp, min(at, TIME_MAX))
