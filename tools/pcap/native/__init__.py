"""Captures in C: walked, decoded, observed. ``Reader`` reads a file; ``ffi`` and ``lib`` are the C module itself."""

from ._pcap import ffi, lib
from .reader import CHUNK_BYTES, RECORD_BYTES_MAX, CaptureDamage, Reader, compression_of

__all__ = ["CHUNK_BYTES", "RECORD_BYTES_MAX", "CaptureDamage", "Reader", "compression_of", "ffi", "lib"]
