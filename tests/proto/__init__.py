"""Tests of proto/: engine, agreements, codec of the wire table, groups; no sockets, no clocks."""
