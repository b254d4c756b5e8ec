"""Messages to groups that overlap, in plain Python: the rules of docs/multicast.md, a world to run them in, and checks.

The rules are written from the page's sentences, slow and without a clever line, so that they can be checked by reading:
``tables.py`` (T, O2), ``ordering.py`` (O, S), ``main.py`` and ``station.py`` (E). They do no I/O; time is an argument. The main
order and the links between stations, which they stand on, are abstract here (``world.py``): both are reliable and slow.

``python -m tests.model.multicast FIRST COUNT`` runs many seeds and prints those that fail.
"""
