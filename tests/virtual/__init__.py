"""The virtual segment: several stations in one process, in virtual time, for every test that needs no real frames.

``segment.py`` is the medium. ``cores.py`` attaches C cores that the test drives itself, ``engines.py`` whole engines that run by
their own deadlines. A test with another kind of station attaches it as a ``Port`` (tests/proto/test_opening.py does).

tests/sim builds on none of this: it is the simulator, whose schedules and faults come from a seed. tests/link and tests/e2e use
real frames.
"""
