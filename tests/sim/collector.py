"""Python's collector of cycles, kept away from a run: it would go through all that is alive time and again, and find nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def once(run: Callable[[], Result]) -> Result:
    """``run()`` without the collector; what it leaves behind is collected once, after it. Not to be nested: the outer one ends
    with the inner one, which costs time and nothing else."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return run()
    finally:
        gc.collect(1)
        if was_on:
            gc.enable()
