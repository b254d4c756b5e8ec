"""The import name that docs/captures-tools.md gives to programs; the code is in frames/lookup.py."""

from .frames.lookup import Capture, Frame, Notes, Selection, captures, frames, merged

__all__ = ["Capture", "Frame", "Notes", "Selection", "captures", "frames", "merged"]
