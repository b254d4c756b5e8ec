"""Messages to groups that overlap (docs/multicast.md): a machine without I/O, fed by the main order and by links."""
