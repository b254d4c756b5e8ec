"""``zenjund``: the protocol on real interfaces and sockets; and, in ``client``, the library that programs import."""
