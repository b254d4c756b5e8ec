/* What the files of the server share. */
#ifndef ZENJUN_COROSYNC_IPC_INTERNAL_H
#define ZENJUN_COROSYNC_IPC_INTERNAL_H

#include "ipc.h"

struct zenjun;
struct zenjun_item;

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#define IPC_SERVICES_MAX 8

/* A message of a process group, as proto/service/corosync/messages.py has it: format, kind, pid, length of the name, name, part,
 * length, data. */
#define MSG_PID 2
#define MSG_NAME_LENGTH 6
#define MSG_NAME 7
#define MSG_NAME_MAX 128
#define MSG_WHOLE 5 /* bytes behind the name: the part, 0, and the length */
#define HEAD_MAX (MSG_NAME + MSG_NAME_MAX)
#define KIND_LIST 3
#define BUNDLE 2 /* in place of the format: several messages, each behind its length */
#define LENGTH 4 /* bytes of that */
#define BUNDLE_BYTES (32u << 10) /* messages that are sent together, up to here */
#define UNSENT_MAX (4u << 20) /* bytes that zenjund does not take yet: no more is read of programs */
#define WAY_MAX (4 << 20) /* WAITING_BYTES_MAX and MESSAGE_BYTES of proto/service/corosync/cpg.py */
#define MESSAGE_BYTES 256
#define PACE_NS 2000000 /* longest time that programs are not read for since own messages are under way: a flood comes by the batch */
#define PACE_MESSAGES 8u /* under way, from which it is a flood: Pacemaker's few messages are read at once */
#define PACE_BYTES (16u << 10) /* in a turn, above which programs are read on: large messages are a batch each */
#define IPC_LANES 256
#define IPC_ALL (-1000) /* ipc_lanes_take() */
#define IPC_MALFORMED_REST (-1001)

/* In epoll's data, besides descriptors. */
#define MARK_WAKE UINT64_MAX
#define MARK_ALARM (UINT64_MAX - 1)
#define MARK_PROGRAMS (UINT64_MAX - 2)
#define MARK_PACE (UINT64_MAX - 3)
#define MARK_ORDER (UINT64_MAX - 4)

#define QUEUES 4 /* queues of queue_bytes_max that all programs' events may fill together */
#define REQUEST_MAX (2u << 20) /* no library sends more than 1 MiB at once */
#define TURN_BYTES (8u << 20) /* that all programs together are read in a turn, and what the last of them has sent */
#define BYTES_KEPT (4u << 20) /* of the buffer for requests, between turns */

typedef void (*ipc_job_fn)(void *data);
typedef int32_t (*ipc_ready_fn)(int32_t fd, int32_t events, void *data);

/* Structs of libqb's interface (qb/qbipcs.h): its layout, our names. */
struct ipc_polls {
    int32_t (*job_add)(int priority, void *data, ipc_job_fn run);
    int32_t (*add)(int priority, int32_t fd, int32_t events, void *data, ipc_ready_fn run);
    int32_t (*mod)(int priority, int32_t fd, int32_t events, void *data, ipc_ready_fn run);
    int32_t (*del)(int32_t fd);
};
struct ipc_hands {
    int32_t (*accept)(void *c, uid_t uid, gid_t gid);
    void (*created)(void *c);
    int32_t (*process)(void *c, void *data, size_t size);
    int32_t (*closed)(void *c);
    void (*destroyed)(void *c);
};
struct ipc_stats {
    int32_t pid;
    uint64_t counts[5];
    int32_t flow_control;
    uint64_t flow_control_count;
};

struct ipc_qb {
    void *library;
    void *(*create)(const char *name, int32_t service, int type, struct ipc_hands *hands);
    void (*destroy)(void *service);
    int32_t (*run)(void *service);
    void (*polls_set)(void *service, struct ipc_polls *polls);
    ssize_t (*respond)(void *c, const void *data, size_t size);
    ssize_t (*event)(void *c, const void *data, size_t size);
    ssize_t (*event_of)(void *c, const struct iovec *parts, size_t count);
    void (*disconnect)(void *c);
    int32_t (*service)(void *c);
    void (*set)(void *c, void *context);
    void *(*get)(void *c);
    int32_t (*stats)(void *c, struct ipc_stats *stats, int32_t clear);
    int32_t (*buffer_size)(void *c);
    void (*rate)(void *service, int rate);
};

struct ipc_job {
    ipc_job_fn run;
    void *data;
};

enum ipc_whose {
    IPC_SERVICE,   /* a service's: somebody wants to connect */
    IPC_HANDSHAKE, /* somebody has connected and not yet said who it is */
    IPC_TURNED_OUT, /* one of those, too many: libqb closes it in the next turn */
    IPC_CONNECTION
};

struct ipc_watch {
    ipc_ready_fn run; /* NULL: not watched */
    void *data;
    int32_t events;
    uint32_t turn; /* how often this descriptor was watched */
    enum ipc_whose whose;
    uint32_t since; /* IPC_HANDSHAKE: the lowest number has waited longest */
    bool paused;
};

struct ipc_waiting { /* an event that has no room yet */
    struct ipc_waiting *next;
    uint32_t size;
    uint8_t data[];
};

struct ipc_connection {
    void *c; /* NULL: the slot is free */
    uint32_t number;
    int32_t service;
    int32_t reason;
    bool ending; /* nothing of it is passed on, and nothing sent to it */
    struct ipc_waiting *first, **last;
    uint64_t waiting_bytes;
    uint32_t head_size; /* 0: its messages are requests like others */
    uint8_t head[HEAD_MAX];
    uint64_t asked; /* `clears` when it had an item last: what comes behind that is an item as well */
    int64_t way_bytes; /* of its messages that have no place yet */
};

struct ipc_lane { /* who hears the whole messages of a process */
    struct ipc_lane *next;
    uint32_t station, client; /* the source */
    uint32_t node, sender; /* sender: its own connection, if it is here, or 0 */
    uint32_t head_size;
    uint8_t head[HEAD_MAX];
    int count;
    uint32_t hearers[];
};

struct ipc_own { /* own.c */
    uint8_t *bytes;
    uint64_t size, base, back, sent, freed, end;
    uint32_t count;
};

struct ipc_order { /* order.c */
    struct zenjun *z;
    const struct zenjun_item *item; /* a part of it has been dealt with */
    uint32_t at; /* where the next part begins */
    uint32_t handle; /* of the group, 0: not joined */
    uint32_t serial;
    int watched; /* for what; -1: not yet */
    bool welcomed;
    char socket[108]; /* zenjund's */
    struct zenjun *asking; /* ipc_order_ask()'s own connection */
    bool asked; /* and there is no answer yet */
    bool told; /* Python has an item of it, and has not cleared the items yet */
};

struct ipc {
    struct ipc_qb qb;
    struct ipc_hands hands;
    struct ipc_polls polls;
    void *services[IPC_SERVICES_MAX];
    int services_count;
    int outer; /* epoll: programs, the connection to zenjund, waking */
    int poll; /* epoll: programs */
    int wake, alarm, pace;
    bool paced; /* programs are not read */
    uint64_t queue_bytes_max;
    uint64_t waiting_bytes; /* of all connections */
    uint32_t *uids, *gids;
    int uids_count, gids_count;
    struct ipc_job *jobs;
    uint32_t jobs_count, jobs_max;
    struct ipc_watch *watches; /* by descriptor */
    uint32_t watches_max;
    struct ipc_item *items;
    uint32_t items_count, items_max;
    uint8_t *bytes;
    uint64_t bytes_count, bytes_max;
    uint32_t serial;
    bool broken; /* a connection is to be ended */
    bool starting; /* a service */
    uint32_t handshakes, handshakes_ever;
    uint32_t first; /* where the next turn begins among those that are ready */
    uint64_t processed; /* requests that libqb has passed on */
    uint64_t clears;
    uint32_t said_bytes; /* of messages to process groups, in this turn */
    bool sending; /* the machines would send such a message on at once */
    bool has_lanes;
    uint64_t heard; /* items that have come of connections to zenjund */
    struct ipc_own own;
    struct ipc_order order;
    struct ipc_lane *lanes[IPC_LANES];
    struct ipc_connection connections[IPC_CONNECTIONS_MAX];
};

extern const struct ipc_hands ipc_hands;

void ipc_wake(struct ipc *s);
void ipc_alarm(struct ipc *s);
void ipc_watch_pause(struct ipc *s, const void *data, bool paused);
struct ipc_item *ipc_item_new(struct ipc *s, int kind);
uint8_t *ipc_bytes_new(struct ipc *s, uint32_t size);
void ipc_flush(struct ipc *s);
void ipc_end_broken(struct ipc *s);
void ipc_connection_free(struct ipc *s, uint32_t slot);
struct ipc_connection *ipc_connection_of(struct ipc *s, const void *c);
struct ipc_connection *ipc_connection_find(struct ipc *s, uint32_t number);
/* An event of two parts. */
void ipc_event_of(struct ipc *s, const uint32_t *connections, int count, const struct iovec parts[2]);
bool ipc_say(struct ipc *s, struct ipc_connection *k, const void *request, size_t size);
void ipc_connection_break(struct ipc *s, struct ipc_connection *k);
struct ipc *ipc_the(void);

static inline uint32_t ipc_big(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}
static inline void ipc_put_big(uint8_t *at, uint32_t value) {
    for (int k = 0; k < 4; k++)
        at[k] = (uint8_t)(value >> (24 - 8 * k));
}

/* ---- own.c. Room for a message behind the others; NULL: no memory. */
uint8_t *ipc_own_push(struct ipc *s, uint32_t size);
/* The next of those that may go out, as a bundle without its mark: how many. */
uint32_t ipc_own_next(const struct ipc *s, const uint8_t **bytes, uint32_t *size);
void ipc_own_sent(struct ipc *s, uint32_t size);
/* ---- lanes.c. A message of the group, from *at on: IPC_ALL: done with all; the length of a message there (behind its length, if it
 * stands in a bundle) that the machines have to see; IPC_MALFORMED_REST; -ENOMEM, to be tried again; -EINVAL: an own message that is
 * none. */
int64_t ipc_lanes_take(struct ipc *s, uint32_t station, uint32_t client, int own, const void *data, uint32_t size, uint32_t *at);
/* ---- order.c */
void ipc_order_turn(struct ipc *s);

#endif
