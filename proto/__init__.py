"""The protocol without I/O: wire format, C core, engine, groups. Knows no socket, clock, loop, randomness or log."""
