"""What stands on top of the daemon: command line, lab, benchmarks, decoding of frames."""
