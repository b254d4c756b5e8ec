"""The Debian package and its units under a real systemd: PID 1 of a container that belongs to the tests."""
