"""Tests of daemon/ without a segment: configuration, state folder, log, metrics, rights."""
