/* The server side of libqb's IPC for a loop that is not libqb's: corosync's local services (docs/corosync.md).
 *
 * libqb is loaded when the server is made (libqb.so.100), so that zenjun is built without it. Its callbacks end here: Python asks for
 * one turn, copies what has come in, and writes answers and events by the number of a connection. A program's memory is shared with
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
    IPC_SAID = 5     /* a message for its process group: `size` bytes at `at`, as the group of the stand-ins has it */
};

enum ipc_reason {
    IPC_BY_PROGRAM = 0, /* it has closed the connection, or has ended */
    IPC_RIGHTS = 1,     /* neither root nor in the lists */
    IPC_TOO_MANY = 2,   /* IPC_CONNECTIONS_MAX, or no memory */
    IPC_BUFFER = 3,     /* it wants a buffer above IPC_BUFFER_MAX */
    IPC_QUEUE = 4,      /* its events exceed queue_bytes_max */
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
    uint32_t size;       /* IPC_REQUEST */
    uint64_t at;         /* IPC_REQUEST: offset in ipc_bytes() */
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

/* Read what programs ask, at most one batch of libqb's of each, and write events that had no room. The number of items since the last
 * ipc_clear(). */
int ipc_turn(struct ipc *s);
const struct ipc_item *ipc_items(const struct ipc *s);
const uint8_t *ipc_bytes(const struct ipc *s);
void ipc_clear(struct ipc *s);

/* Answer a request: 0; -ENOENT: there is no such connection. A program that has no room for an answer has sent requests without
 * reading, and is disconnected. */
int ipc_answer(struct ipc *s, uint32_t connection, const void *data, uint32_t size);

/* The same event to several connections. What has no room waits, in its order. Numbers of connections that have ended are left out; a
 * connection whose events exceed queue_bytes_max is ended. */
void ipc_event(struct ipc *s, const uint32_t *connections, int count, const void *data, uint32_t size);

/* Stop or start reading a program's requests: while stopped, the program's buffer fills, and its library says so. */
void ipc_pause(struct ipc *s, uint32_t connection, int paused);

/* What is written here without Python: messages of process groups, whole ones. ipc_route: a connection's requests for them become
 * IPC_SAID, beginning with `head` (proto/service/corosync/messages.py); size 0: they are IPC_REQUEST. -EINVAL: such a head there is
 * not. ipc_deliver: such a message, of a node, as an event of libcpg to several connections; -EINVAL: it is none.
 * ipc_deliver_all: those of a bundle (`at`: where the length of the first one is) as long as they are whole and begin with `head`; where
 * the next one begins, or -ENOMEM. */
int ipc_route(struct ipc *s, uint32_t connection, const void *head, uint32_t size);
int ipc_deliver(struct ipc *s, const uint32_t *connections, int count, uint32_t node, const void *message, uint32_t size);
int64_t ipc_deliver_all(struct ipc *s, const uint32_t *connections, int count, uint32_t node, const void *head, uint32_t head_size,
                        const void *bundle, uint32_t size, uint32_t at);

/* End a connection. IPC_CLOSED follows. */
void ipc_end(struct ipc *s, uint32_t connection);

/* Bytes of events that wait for a program; 0 for a number without a connection. */
uint64_t ipc_waiting(const struct ipc *s, uint32_t connection);

#endif
