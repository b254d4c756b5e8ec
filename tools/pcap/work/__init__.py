"""What long work owes the person who waits: progress, temporary folders that go with the process, Ctrl-C at the right time."""
