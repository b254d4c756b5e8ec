"""Captures read by a person: frames, one message, two captures, clocks; no Spark."""
