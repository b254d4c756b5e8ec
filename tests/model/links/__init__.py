"""Runs of ``proto/links``: stations on several links that fail, one way or both, flap, lose and delay, in virtual time."""
