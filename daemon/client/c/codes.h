/* Generated from tools/clientlibrary.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */
#ifndef ZENJUN_CODES_H
#define ZENJUN_CODES_H

struct code { int number; const char *name, *text; };

static const struct code codes[] = {
    {-1, "again", "no room now, or no welcome from the daemon yet: step, and try again"},
    {-2, "timeout", "the time is over"},
    {-3, "interrupted", "a signal handler has run"},
    {-4, "invalid", "an argument is out of bounds"},
    {-5, "no-memory", "there is no memory"},
    {-6, "system", "the operating system reports an error"},
    {-7, "not-reachable", "no daemon answers at the socket"},
    {-8, "permission", "the socket may not be used by this user"},
    {-9, "disconnected", "the daemon has closed the connection"},
    {-10, "forked", "the connection belongs to the process that made it"},
    {-11, "undecided", "the instance has ended: the message may or may not have been delivered"},
    {-12, "inbox-full", "so much is unread that no answer can come before some of it is taken"},
    {-13, "handles", "all handles of this connection are in use"},
    {-14, "other", "the daemon reports an error that this version of the library does not know"},
    {-101, "version", "no common version; the connection is closed"},
    {-102, "protocol", "a malformed or unexpected frame; the connection is closed"},
    {-103, "too-large", "a message above message_max, or one that cannot be sent"},
    {-104, "bad-handle", "the handle is not joined, or in use, or out of bounds"},
    {-105, "not-member", "the handle is not for sending"},
    {-122, "groups", "SEND_TO without handles, with more than 16, or with groups of another order than abcast or token"},
    {-106, "closed-group", "the group is not open to programs that are not in it"},
    {-107, "name", "no group name (1-128 bytes of UTF-8), or joined already"},
    {-108, "name-collision", "another group with members, or another one of this station, has the same number"},
    {-109, "order-mismatch", "the group's first member requested another order"},
    {-110, "too-many-groups", "the programs of one user may hold at most 4,096 groups at a station, or clients.groups_per_user; the cluster may have cluster.groups_max"},
    {-111, "unknown-order", "the daemon has no order of delivery with this number"},
    {-112, "level", "the group's order has no such level"},
    {-113, "bus-level", "medium *bus*: JOIN with another level than ack, or order op"},
    {-114, "slow-receiver", "the client's queue exceeds clients.queue_bytes_max; the connection is closed"},
    {-115, "busy", "the daemon serves clients.max programs already, or lacks memory; the connection is closed"},
    {-123, "too-many-connections", "the programs of one user may have clients.connections_per_user connections; the connection is closed"},
    {-124, "too-many-bytes", "the programs of one user, or of all users, take more memory than clients.queue_bytes_per_user, queue_bytes_users or input_bytes_per_user allows; the connection is closed"},
    {-116, "closing", "the daemon is stopping; the connection is closed"},
    {-117, "fenced", "the order at this station differs from another station's"},
    {-118, "not-permitted", "the user of this program may not do that: commands are for operators, groups named zenjun.* for root and the user that the daemon runs as, others as [[access]] says"},
    {-119, "unknown-request", "the daemon has no request of this kind"},
    {-120, "too-many-requests", "64 requests of this connection have no answer yet, or the id is one of theirs"},
    {-121, "refused", "the operator's command cannot be executed; message gives the reason"},
};

#endif
