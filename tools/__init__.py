"""Tools above the daemon: command line, lab, benchmarks, decoding of frames."""
