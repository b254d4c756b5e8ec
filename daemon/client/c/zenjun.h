/* libzenjun: zenjun's totally ordered broadcast for programs in C.
 *
 * A program connects to the daemon of its machine, joins groups, sends messages to them and gets everybody's messages in one order.
 * docs/c-library.md explains the library with an example; what levels, views and events mean is in docs/client-protocol.md.
 *
 * Nothing here waits but the functions that take a time in milliseconds (0: do not wait, negative: for ever). They return early,
 * with ZENJUN_E_INTERRUPTED, after a signal handler has run. The loop of a program that waits by itself:
 *
 *     zenjun_step(z);                                     reads and writes
 *     while (zenjun_next(z, &item) > 0) ...               takes what has come
 *     poll() for zenjun_events(z) on zenjun_fd(z)
 *
 * Results are 0 or positive, errors negative (enum zenjun_error). Text handed out is UTF-8 and never NULL; a list may be empty.
 *
 * Threads: one connection is used by one thread at a time. Different connections have nothing in common, and the library has no
 * global state, starts no thread, installs no signal handler, raises no SIGPIPE and never ends the process.
 *
 * Processes: a connection belongs to the process that made it. In a forked child its calls fail with ZENJUN_E_FORKED, and
 * zenjun_close() closes the child's descriptor only.
 *
 * ABI: structs begin with `size`, the bytes that the library has filled in. Later versions add functions, kinds of items and fields
 * at the end of structs, and change nothing else; structs are always handed out by pointer. */
#ifndef ZENJUN_H
#define ZENJUN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined ZENJUN_PUBLIC /* by who compiles the library into something else */
#elif defined __GNUC__
#define ZENJUN_PUBLIC __attribute__((visibility("default")))
#else
#define ZENJUN_PUBLIC
#endif

/* generated: constants */
#define ZENJUN_GROUP_NAME_MAX 128 /* bytes */
#define ZENJUN_HANDLES_MAX 1023 /* of one connection */
#define ZENJUN_LEVELS 3
#define ZENJUN_DEFAULT (-1) /* level of delivery */

enum zenjun_level {
    ZENJUN_SENT = -1,   /* handed to the daemon */
    ZENJUN_ORDERED = 0, /* the order is fixed */
    ZENJUN_PREACK = 1,  /* every station has it and its place is final */
    ZENJUN_ACK = 2      /* every station knows that */
};

enum zenjun_order {
    ZENJUN_ORDER_TOTAL = 0,  /* one order for all */
    ZENJUN_ORDER_OP = 1,     /* each sender's order, delivered on acceptance */
    ZENJUN_ORDER_ABCAST = 2, /* only members' stations receive; one order wherever groups meet */
    ZENJUN_ORDER_TOKEN = 3   /* the same, ordered by token hosts */
};

enum zenjun_join_flag {
    ZENJUN_OPEN = 4,      /* programs that are not members may send to the group */
    ZENJUN_SEND_ONLY = 8, /* no membership, only a handle to send to an open group */
    ZENJUN_NO_SELF = 16,  /* own messages are not delivered */
    ZENJUN_DISCARD = 256  /* nothing of the group is delivered here: a member that only sends */
};

enum zenjun_error {
    ZENJUN_E_AGAIN = -1,                  /* no room now, or no welcome from the daemon yet: step, and try again */
    ZENJUN_E_TIMEOUT = -2,                /* the time is over */
    ZENJUN_E_INTERRUPTED = -3,            /* a signal handler has run */
    ZENJUN_E_INVALID = -4,                /* an argument is out of bounds */
    ZENJUN_E_NO_MEMORY = -5,              /* there is no memory */
    ZENJUN_E_SYSTEM = -6,                 /* the operating system reports an error */
    ZENJUN_E_NOT_REACHABLE = -7,          /* no daemon answers at the socket */
    ZENJUN_E_PERMISSION = -8,             /* the socket may not be used by this user */
    ZENJUN_E_DISCONNECTED = -9,           /* the daemon has closed the connection */
    ZENJUN_E_FORKED = -10,                /* the connection belongs to the process that made it */
    ZENJUN_E_UNDECIDED = -11,             /* the instance has ended: the message may or may not have been delivered */
    ZENJUN_E_INBOX_FULL = -12,            /* so much is unread that no answer can come before some of it is taken */
    ZENJUN_E_HANDLES = -13,               /* all handles of this connection are in use */
    ZENJUN_E_OTHER = -14,                 /* the daemon reports an error that this version of the library does not know */
    ZENJUN_E_VERSION = -101,              /* no common version; the connection is closed */
    ZENJUN_E_PROTOCOL = -102,             /* a malformed or unexpected frame; the connection is closed */
    ZENJUN_E_TOO_LARGE = -103,            /* a message above message_max, or one that cannot be sent */
    ZENJUN_E_BAD_HANDLE = -104,           /* the handle is not joined, or in use, or out of bounds */
    ZENJUN_E_NOT_MEMBER = -105,           /* the handle is not for sending */
    ZENJUN_E_GROUPS = -122,               /* SEND_TO without handles, with more than 16, or with groups of another order than abcast or token */
    ZENJUN_E_CLOSED_GROUP = -106,         /* the group is not open to programs that are not in it */
    ZENJUN_E_NAME = -107,                 /* no group name (1-128 bytes of UTF-8), or joined already */
    ZENJUN_E_NAME_COLLISION = -108,       /* another group with members, or another one of this station, has the same number */
    ZENJUN_E_ORDER_MISMATCH = -109,       /* the group's first member requested another order */
    ZENJUN_E_TOO_MANY_GROUPS = -110,      /* the programs of one user may hold at most 4,096 groups at a station, or clients.groups_per_user; the cluster may have cluster.groups_max */
    ZENJUN_E_UNKNOWN_ORDER = -111,        /* the daemon has no order of delivery with this number */
    ZENJUN_E_LEVEL = -112,                /* the group's order has no such level */
    ZENJUN_E_BUS_LEVEL = -113,            /* medium *bus*: JOIN with another level than ack, or order op */
    ZENJUN_E_SLOW_RECEIVER = -114,        /* the client's queue exceeds clients.queue_bytes_max; the connection is closed */
    ZENJUN_E_BUSY = -115,                 /* the daemon serves clients.max programs already, or lacks memory; the connection is closed */
    ZENJUN_E_TOO_MANY_CONNECTIONS = -123, /* the programs of one user may have clients.connections_per_user connections; the connection is closed */
    ZENJUN_E_TOO_MANY_BYTES = -124,       /* the programs of one user, or of all users, take more memory than clients.queue_bytes_per_user, queue_bytes_users or input_bytes_per_user allows; the connection is closed */
    ZENJUN_E_CLOSING = -116,              /* the daemon is stopping; the connection is closed */
    ZENJUN_E_FENCED = -117,               /* the order at this station differs from another station's */
    ZENJUN_E_NOT_PERMITTED = -118,        /* the user of this program may not do that: commands are for operators, groups named zenjun.* for root and the user that the daemon runs as, others as [[access]] says */
    ZENJUN_E_UNKNOWN_REQUEST = -119,      /* the daemon has no request of this kind */
    ZENJUN_E_TOO_MANY_REQUESTS = -120,    /* 64 requests of this connection have no answer yet, or the id is one of theirs */
    ZENJUN_E_REFUSED = -121               /* the operator's command cannot be executed; message gives the reason */
};
/* end */

enum zenjun_kind {       /* of items */
    ZENJUN_MESSAGE = 1,  /* of a group */
    ZENJUN_VIEW = 2,     /* members of a group from here on: item->view */
    ZENJUN_EVENT = 3,    /* something that concerns the whole cluster: item->event */
    ZENJUN_DONE = 4,     /* own messages have reached a level: item->done */
    ZENJUN_REPLY = 5,    /* the answer to a request: item->reply */
    ZENJUN_REFUSED = 6,  /* a join or a message was refused: item->refusal */
    ZENJUN_READY = 7     /* a handle joined with ZENJUN_SEND_ONLY is there */
};

enum zenjun_event_type {
    ZENJUN_EVENT_OTHER = 0, /* one that this version of the library does not know: see name and json */
    ZENJUN_EVENT_OPEN = 1,
    ZENJUN_EVENT_VIEW = 2,
    ZENJUN_EVENT_BLOCKED = 3,
    ZENJUN_EVENT_UNBLOCKED = 4,
    ZENJUN_EVENT_CLOSED = 5,
    ZENJUN_EVENT_EXPELLED = 6,
    ZENJUN_EVENT_REOPENED = 7,
    ZENJUN_EVENT_FENCED = 8,
    ZENJUN_EVENT_CLOSING = 9
};

enum zenjun_setting {
    ZENJUN_INBOX_MAX = 1, /* bytes read and not yet taken above which reading stops, and the daemon feels it; 8 MiB. While a call
                             waits for an answer reading goes on up to 8 times as much */
    ZENJUN_OUTPUT_MAX = 2 /* bytes not yet written above which sends fail with ZENJUN_E_AGAIN; 1 MiB */
};

/* Place in the total order: compares by clock, station, index, and is equal at all stations. */
struct zenjun_place {
    uint64_t clock;
    uint32_t station;
    uint32_t index;
};

/* One program in a group. (station, client) is unique. */
struct zenjun_member {
    size_t size;
    uint32_t station; /* 1..n */
    uint32_t client;  /* the number that its daemon gave it */
    const char *name; /* of the program */
};

/* One station. What a list does not tell is 0 or "". */
struct zenjun_station {
    size_t size;
    uint32_t station;     /* 1..n */
    int member;           /* 1: it is in the instance */
    uint64_t incarnation; /* which life of its daemon */
    const char *host;
    const char *reason;     /* event `blocked`: why it is waited for */
    const char *state;      /* zenjun_stations(): docs/status.md */
    const char *peer_state; /* zenjun_stations(): the letters that our daemon keeps for it */
};

struct zenjun_view {
    size_t size;
    const char *group;
    const char *reason; /* join, leave, death, open */
    struct zenjun_place place;
    uint64_t instance;
    const struct zenjun_member *const *members; /* sorted */
    size_t members_count;
    const struct zenjun_member *const *joined;
    size_t joined_count;
    const struct zenjun_member *const *left;
    size_t left_count;
    int here; /* 1: this connection is in the group; 0: it has left, and this is the last item of the handle */
};

struct zenjun_event {
    size_t size;
    int type; /* enum zenjun_event_type */
    int quorum;  /* blocked: 0 nothing is sent or delivered until the stations are heard again */
    int unsafe;  /* expelled, reopened: something was delivered at level ordered that those who went on may not have */
    int admitted; /* open, reopened: the members of a running instance have let this station in */
    const char *name;
    const char *json; /* the event as the daemon sent it */
    const char *reason;
    uint64_t instance;
    uint64_t undecided;   /* expelled, reopened: own messages of which it is not known whether they were delivered */
    uint64_t undecided_first; /* the number of the first of them; 0: none */
    uint64_t forgotten;   /* messages held back for our level of delivery that will not come */
    struct zenjun_place place; /* view */
    uint32_t station;     /* closed, expelled: whose doing it was, 0: nobody's */
    uint32_t reserved;
    const struct zenjun_station *const *stations; /* blocked: waited for; open, reopened, view: of the instance */
    size_t stations_count;
    const struct zenjun_station *const *joined; /* view */
    size_t joined_count;
    const struct zenjun_station *const *left; /* view */
    size_t left_count;
};

struct zenjun_reply {
    size_t size;
    uint32_t id; /* of the request */
    int error;   /* 0, or the error, with its reason in `message` */
    const char *message; /* a line for people, or "" */
    const char *json;    /* the answer as the daemon sent it */
    const struct zenjun_member *const *members; /* zenjun_members(); zenjun_stations(): stations, with the name of the host */
    size_t members_count;
    const struct zenjun_station *const *stations; /* zenjun_stations(): all of the roster */
    size_t stations_count;
};

struct zenjun_refusal {
    size_t size;
    int error;
    uint32_t reserved;
    const char *code;    /* the protocol's word for it */
    const char *message; /* a line for people */
    uint64_t number;     /* of the message that was refused; 0: it was a join, and the handle is free again */
};

/* One thing that has come. Valid until the next zenjun_next(), zenjun_recv(), zenjun_step(), zenjun_wait*() or zenjun_close() of its
 * connection; sending and joining leave it alone. */
struct zenjun_item {
    size_t size;
    int kind;        /* enum zenjun_kind */
    uint32_t handle; /* of the group, 0: of none */
    void *context;   /* what zenjun_join() was given for the handle */
    /* ZENJUN_MESSAGE */
    const void *data; /* not aligned */
    size_t length;
    struct zenjun_place place; /* place.station is the sender's */
    uint32_t client;           /* the sender's number at its station */
    int own;                   /* 1: this connection sent it */
    /* the others; NULL where they do not apply */
    const struct zenjun_view *view;
    const struct zenjun_event *event;
    const struct zenjun_reply *reply;
    const struct zenjun_refusal *refusal;
    uint64_t done[ZENJUN_LEVELS]; /* ZENJUN_DONE: number of the last own message that has reached each level */
};

/* What the daemon says about itself. */
struct zenjun_welcome {
    size_t size;
    uint32_t station;
    uint32_t stations; /* of the roster */
    uint32_t client;   /* own number */
    uint32_t version;  /* of the protocol */
    uint64_t message_max;     /* bytes of the largest message */
    uint64_t queue_bytes_max; /* bytes that the daemon queues for a program before it disconnects it */
    uint64_t instance;        /* 0: the cluster was not open */
    uint32_t mtu;
    uint32_t payload_max; /* bytes of the largest message that travels in one frame */
    const char *cluster;
    const char *medium; /* `switched`, or `bus`, which has level ack only */
};

/* The state of a connection, as last heard. */
struct zenjun_facts {
    size_t size;
    uint64_t sent;                /* number of the last message that zenjun_send() has taken */
    uint64_t done[ZENJUN_LEVELS]; /* as in items, but of what has been read, not of what has been taken */
    uint64_t unread;              /* bytes read and not yet taken */
    uint64_t unwritten;           /* bytes not yet written */
    uint64_t instance;            /* 0: the cluster has not been open */
    int quorum; /* 1: this station is in an instance that has its quorum. If not, what was delivered may not be the latest */
    int fenced; /* 1: nothing is delivered any more */
    int ended;  /* 0, or why the connection has ended */
    uint32_t reserved;
};

struct zenjun; /* a connection */

/* ---- connecting */

/* Connect to the daemon. socket: its path, NULL: $ZENJUN_SOCKET, else /run/zenjun/zenjund.sock. name: of this program, for other
 * members and for the daemon's log; NULL: none. Nothing can be joined or sent before zenjun_welcome() gives something.
 * Errors: NOT_REACHABLE (another try may succeed), PERMISSION, INVALID (the path is too long), NO_MEMORY, SYSTEM. */
ZENJUN_PUBLIC int zenjun_open(const char *socket, const char *name, struct zenjun **z);

/* The same, and wait for the daemon's welcome, at most `timeout_ms`. While no daemon can be reached, or it is stopping or has no
 * room, try again for `patience_ms`. Errors: also TIMEOUT, INTERRUPTED, and those with which the daemon refuses. Then *z is NULL; who
 * wants the daemon's words for it uses zenjun_open(), zenjun_wait() and zenjun_reason(). */
ZENJUN_PUBLIC int zenjun_connect(const char *socket, const char *name, int patience_ms, int timeout_ms, struct zenjun **z);

/* Say goodbye, wait at most `ms` until the daemon confirms that everything sent has gone out, and free the connection in any case.
 * What has not been taken is dropped. 0: it has confirmed. NULL is closed already. */
ZENJUN_PUBLIC int zenjun_close(struct zenjun *z, int ms);

/* Change a limit. INVALID for an unknown one, and for 0. */
ZENJUN_PUBLIC int zenjun_set(struct zenjun *z, int setting, uint64_t value);

/* NULL before it has come; the same pointer from then on. */
ZENJUN_PUBLIC const struct zenjun_welcome *zenjun_welcome(const struct zenjun *z);

/* Valid until the next call with this connection. */
ZENJUN_PUBLIC const struct zenjun_facts *zenjun_facts(struct zenjun *z);

/* ---- reading and writing */

/* The descriptor, for poll() and its like: for waiting only. */
ZENJUN_PUBLIC int zenjun_fd(const struct zenjun *z);

/* What to wait for: POLLIN, POLLOUT, both; 0: so much is unread that nothing is read before some of it is taken. Items that have
 * been read already do not make the descriptor readable: take all of them before waiting. */
ZENJUN_PUBLIC short zenjun_events(const struct zenjun *z);

/* Write what is queued and read what has come, without waiting. 0, or why the connection has ended; what came before that can still
 * be taken. */
ZENJUN_PUBLIC int zenjun_step(struct zenjun *z);

/* The next item: 1. 0: nothing has come. Negative: the connection has ended, and everything has been taken. */
ZENJUN_PUBLIC int zenjun_next(struct zenjun *z, const struct zenjun_item **item);

/* The next item, waiting for it: 0, TIMEOUT, INTERRUPTED, or why the connection has ended. */
ZENJUN_PUBLIC int zenjun_recv(struct zenjun *z, const struct zenjun_item **item, int ms);

/* Wait until zenjun_next() may have something, or zenjun_welcome() has: 0, TIMEOUT, INTERRUPTED, or why the connection has ended. */
ZENJUN_PUBLIC int zenjun_wait(struct zenjun *z, int ms);

/* ---- groups */

/* Become a member of a group. level: of delivery, ZENJUN_DEFAULT for preack (order op: on acceptance; medium bus: ack). flags: of
 * enum zenjun_join_flag. context: handed out with each item of the handle. *handle: what the group is called from now on.
 *
 * The first item of the handle is a view that has this program; it waits until the cluster is open. Messages can be sent before;
 * they come behind it. A refusal is an item. Errors: AGAIN, NAME, LEVEL, INVALID, HANDLES, and why the connection has ended. */
ZENJUN_PUBLIC int zenjun_join(struct zenjun *z, const char *group, int level, int order, unsigned flags, void *context,
                              uint32_t *handle);

/* Wait until the daemon has answered the join: 0, the error, TIMEOUT, INTERRUPTED, INBOX_FULL, or why the connection has ended. The
 * view or the refusal is an item all the same. */
ZENJUN_PUBLIC int zenjun_wait_joined(struct zenjun *z, uint32_t handle, int ms);

/* Leave a group. Messages come until the view that says so (view->here is 0); only then the group can be joined again. Nothing more
 * comes of a handle joined with ZENJUN_SEND_ONLY, or before the cluster has been open. */
ZENJUN_PUBLIC int zenjun_leave(struct zenjun *z, uint32_t handle);

/* ---- sending */

/* Queue one message, the parts one behind the other (n 0..1024, together at most message_max bytes). level: how far its progress is
 * reported, by ZENJUN_DONE and zenjun_wait_sent(); ZENJUN_SENT: not at all. *number (may be NULL): messages of a connection are
 * numbered from 1. It is written by zenjun_step() and the functions that wait. Errors: AGAIN (step, and try again), BAD_HANDLE,
 * TOO_LARGE, FENCED, INVALID, NO_MEMORY, and why the connection has ended. A refusal by the daemon is an item. */
ZENJUN_PUBLIC int zenjun_send(struct zenjun *z, uint32_t handle, const struct iovec *parts, int n, int level, uint64_t *number);

/* The same to several groups at once, all of order abcast or all of order token: count 1..16 handles. A program that is in several
 * of the groups gets the message once, on its lowest handle. n: 0..1023. Errors: as above, INVALID for another count, GROUPS if the
 * daemon has no such orders; what it says of the groups' orders is an item. */
ZENJUN_PUBLIC int zenjun_send_to(struct zenjun *z, const uint32_t *handles, int count, const struct iovec *parts, int n, int level,
                                 uint64_t *number);

/* Wait until an own message, sent with this level or a higher one, has reached it (ZENJUN_SENT: until everything queued has been
 * written). Those before it have reached it, too. What comes meanwhile is kept, to be taken later.
 * 0; UNDECIDED (this station's instance has ended: it may or may not have been delivered); the error of a refused one; FENCED;
 * TIMEOUT (it may still be delivered); INTERRUPTED; INBOX_FULL; INVALID; why the connection has ended. */
ZENJUN_PUBLIC int zenjun_wait_sent(struct zenjun *z, uint64_t number, int level, int ms);

/* ---- requests; the answers are items. *id may be NULL. AGAIN: 64 have no answer that was taken yet */

/* The daemon's status: reply->json, docs/status.md. */
ZENJUN_PUBLIC int zenjun_status(struct zenjun *z, uint32_t *id);
/* The members of a group as this daemon knows them. */
ZENJUN_PUBLIC int zenjun_members(struct zenjun *z, const char *group, uint32_t *id);
/* All stations of the cluster. */
ZENJUN_PUBLIC int zenjun_stations(struct zenjun *z, uint32_t *id);
/* As an operator, have the others go on without a station. */
ZENJUN_PUBLIC int zenjun_expel(struct zenjun *z, uint32_t station, uint32_t *id);
/* As an operator, have this station leave: its daemon says goodbye and ends. */
ZENJUN_PUBLIC int zenjun_leave_cluster(struct zenjun *z, uint32_t *id);

/* ---- errors */

/* What an error means, in English; a line without a full stop. */
ZENJUN_PUBLIC const char *zenjun_strerror(int error);
/* Its name: the protocol's code, or the library's word, as "timeout". */
ZENJUN_PUBLIC const char *zenjun_error_name(int error);
/* Why the connection has ended, in more words than zenjun_strerror(); "" if there are none. Valid until zenjun_close(). */
ZENJUN_PUBLIC const char *zenjun_reason(const struct zenjun *z);
/* Of the library, "1.0.0". */
ZENJUN_PUBLIC const char *zenjun_version(void);

#ifdef __cplusplus
}
#endif

#endif
