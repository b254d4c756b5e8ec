"""What a stand-in for corosync decides: rings, process groups and quorum, without I/O (docs/corosync.md).

``standin.StandIn``
    One node's stand-in, which is what a host drives: events of its zenjund and requests of local programs go in, effects come
    out. It connects the parts below in the order in which programs must hear of a change.
``ring.Ring``
    Which nodes belong together, and the processes of each: rounds, leavers, rings of one.
``cpg.Cpg``
    The handles of local programs in process groups: joins, messages, notices of changes.
``votequorum.Votequorum``
    Votes, and whether the ring has quorum.
``tracking.Trackers``
    Who has asked to hear of quorum, through libquorum and through libvotequorum.
``messages``
    What the stand-ins say to each other.

The host connects to zenjund as a member of the group ``messages.GROUP`` at level *preack*, implements ``Connect`` and
``Disconnect``, keeps what ``Store`` says (a barrier), and passes to programs whatever names a handle.
"""
