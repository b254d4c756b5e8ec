/* The server side of libqb's IPC for a loop that is not libqb's: corosync's local services (docs/corosync.md).
 *
 * libqb is loaded when the server is made (libqb.so.100), so that zenjun is built without it. Its callbacks end here: Python asks for
 * one turn, copies what has come in, and writes answers and events by the number of a connection. Messages between programs and zenjund
 * do not pass through Python (own.c, lanes.c, order.c). A program's memory is shared with
 * libqb, hence everything is copied out of it before anybody looks at it. */
#ifndef ZENJUN_COROSYNC_IPC_H
#define ZENJUN_COROSYNC_IPC_H

#include <stdint.h>

#define IPC_CONNECTIONS_MAX 1024
#define IPC_BUFFER_MAX 16777216 /* bytes of one direction; a program that wants more is refused */
#define IPC_NAME_MAX 64

enum ipc_kind {
    IPC_OPENED = 1,  /* a program has connected to a service */
    IPC_REQUEST = 2, /* `size` bytes at `at` */
    IPC_CLOSED = 3,  /* the connection has ended; its number is not used again before 2^22 others */
    IPC_REFUSED = 4, /* a program was not let in: `reason` */
    IPC_SAID = 5,    /* a message for its process group: `size` bytes at `at`, as the group of the stand-ins has it */
    /* Of the connection to zenjund; `connection` is its serial number. At most one of these at a time, the last of the items. */
    IPC_WELCOME = 6,   /* `station`, `client`; `value`, the MTU; `clock`, bytes of the largest message */
    IPC_VIEW = 7,      /* of the group, at the place `clock`, `station`, `value`: struct ipc_source of each member */
    IPC_TOLD = 8,      /* a message of `station`, `client` that has no lane */
    IPC_MALFORMED = 9, /* the rest of a message of `station`, `client` cannot be read */
    IPC_BLOCKED = 10,  /* without quorum */
    IPC_UNBLOCKED = 11,
    IPC_FENCED = 12,
    IPC_LOST = 13, /* the connection or its order has ended: why, as text */
    IPC_BUG = 14   /* what cannot be, as text */
};

enum ipc_reason {
    IPC_BY_PROGRAM = 0, /* it has closed the connection, or has ended */
    IPC_RIGHTS = 1,     /* neither root nor in the lists */
    IPC_TOO_MANY = 2,   /* IPC_CONNECTIONS_MAX, or no memory */
    IPC_BUFFER = 3,     /* it wants a buffer above IPC_BUFFER_MAX */
    IPC_QUEUE = 4,      /* its events exceed queue_bytes_max, or all together four times that, and it has the most */
    IPC_BROKEN = 5,     /* a message that is none, or it does not take its answers */
    IPC_ENDED = 6       /* ipc_end() */
};

struct ipc_item {
    int32_t kind;
    uint32_t connection; /* number, 1 or more; 0 with IPC_REFUSED */
    int32_t service;     /* number given to ipc_serve() */
    int32_t reason;      /* IPC_CLOSED, IPC_REFUSED: enum ipc_reason */
    int32_t pid;         /* IPC_OPENED: of the program, as the kernel says; 0: not known */
    uint32_t uid, gid;   /* IPC_OPENED, IPC_REFUSED */
    uint32_t size;       /* of what is in ipc_bytes() */
    uint64_t at;         /* offset there */
    uint64_t clock;
    uint32_t station, client, value;
};

struct ipc_source {
    uint32_t station, client;
};

struct ipc;

/* A server without services. library: what dlopen() takes. NULL: see ipc_why(), which is for all servers of this thread. */
struct ipc *ipc_create(const char *library, uint64_t queue_bytes_max);
const char *ipc_why(void);
/* Ends all connections and services. Items that come of it are lost. */
void ipc_destroy(struct ipc *s);

/* Serve under a name. 0, or a negative errno: EADDRINUSE if another process serves it. */
int ipc_serve(struct ipc *s, const char *name, int service);

/* Who may connect besides uid 0 and gid 0; replaces the former lists. 0, or -ENOMEM. */
int ipc_allow(struct ipc *s, const uint32_t *uids, int uids_count, const uint32_t *gids, int gids_count);

/* The descriptor that is readable while ipc_turn() has something to do. */
int ipc_fd(const struct ipc *s);

/* Read what programs ask, at most a batch of each, write events that had no room, and read and write the connection to zenjund. The number of items since the last
 * ipc_clear(). */
int ipc_turn(struct ipc *s);
const struct ipc_item *ipc_items(const struct ipc *s);
const uint8_t *ipc_bytes(const struct ipc *s);
void ipc_clear(struct ipc *s);

/* Answer a request: 0; -ENOENT: there is no such connection. A program that has no room for an answer has sent requests without
 * reading, and is disconnected. */
int ipc_answer(struct ipc *s, uint32_t connection, const void *data, uint32_t size);

/* The same event to several connections. What has no room waits, in its order. Numbers of connections that have ended are left out; a
 * connection whose events exceed queue_bytes_max is ended; the one with the most, if all together exceed four times that. */
void ipc_event(struct ipc *s, const uint32_t *connections, int count, const void *data, uint32_t size);

/* Stop or start reading a program's requests: while stopped, the program's buffer fills, and its library says so. */
void ipc_pause(struct ipc *s, uint32_t connection, int paused);

/* What is written here without Python: messages of process groups, whole ones. ipc_route: a connection's requests for them begin with
 * `head` (proto/service/corosync/messages.py) and go to zenjund at once, as long as ipc_lanes_clear() said so and there is room; else
 * they become IPC_SAID. size 0: they are IPC_REQUEST. -EINVAL: such a head there is not. ipc_deliver: such a message, of a node, as
 * an event of libcpg to several connections; -EINVAL: it is none. */
int ipc_route(struct ipc *s, uint32_t connection, const void *head, uint32_t size);
int ipc_deliver(struct ipc *s, const uint32_t *connections, int count, uint32_t node, const void *message, uint32_t size);

/* Messages of this source that are whole and begin with `head` are of `node` and go to these connections; sender: the connection that
 * sends them, 0: it is not here. Until ipc_lanes_clear(), which also says whether what programs say goes out at once. 0, -EINVAL,
 * -ENOMEM. */
int ipc_lane(struct ipc *s, uint32_t station, uint32_t client, const void *head, uint32_t size, uint32_t node, const uint32_t *hearers,
             int count, uint32_t sender);
void ipc_lanes_clear(struct ipc *s, int sending);

/* Own messages that have no place yet, in their order, those of programs that went out at once among them. Behind ipc_own_add() a
 * message waits for ipc_own_free(), the oldest first; then the next turn sends it. ipc_own_back: the oldest one has come back.
 * -EINVAL: it is another. ipc_own_bytes: all of them, each behind its length (big-endian, 4 bytes). */
int ipc_own_add(struct ipc *s, const void *data, uint32_t size);
int ipc_own_free(struct ipc *s, const void *data, uint32_t size);
int ipc_own_back(struct ipc *s, const void *data, uint32_t size);
void ipc_own_clear(struct ipc *s);
uint32_t ipc_own_count(const struct ipc *s);
uint64_t ipc_own_bytes(const struct ipc *s, const uint8_t **bytes);
int ipc_own_has_room(const struct ipc *s);

/* Bytes of a connection's messages that have no place yet (rule Y19); 0 for a number without a connection. */
int64_t ipc_way_bytes(const struct ipc *s, uint32_t connection);
void ipc_way_add(struct ipc *s, uint32_t connection, int64_t bytes);

/* The connection to zenjund, one at a time. ipc_order_open: 0, or an error of libzenjun; IPC_WELCOME or IPC_LOST follow. Then
 * ipc_order_join(), before which nothing is sent. ipc_order_close: nothing of it becomes an item any more. */
int ipc_order_open(struct ipc *s, const char *socket, const char *name, uint32_t serial);
int ipc_order_join(struct ipc *s, const char *group);
void ipc_order_close(struct ipc *s);
/* Have zenjund answer, unless it has not answered the last time; and how often anything has come of it. */
void ipc_order_ask(struct ipc *s, const char *group);
uint64_t ipc_order_heard(const struct ipc *s);
const char *ipc_order_error(int error);

/* End a connection. IPC_CLOSED follows. */
void ipc_end(struct ipc *s, uint32_t connection);

/* Bytes of events that wait for a program; 0 for a number without a connection. */
uint64_t ipc_waiting(const struct ipc *s, uint32_t connection);

/* 0: so many events wait for a program that what it sends itself, and gets back, would end its connection (rule Y19). */
int ipc_takes_events(const struct ipc *s, uint32_t connection);

#endif
