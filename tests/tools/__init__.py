"""Tests of tools/ but for captures (tests/pcap) and labs (tests/lab)."""
