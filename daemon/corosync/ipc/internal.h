/* What the files of the server share. */
#ifndef ZENJUN_COROSYNC_IPC_INTERNAL_H
#define ZENJUN_COROSYNC_IPC_INTERNAL_H

#include "ipc.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define IPC_SERVICES_MAX 8
#define HEAD_MAX (7 + 128) /* of a message of a process group: format, kind, pid, length of the name, name */
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
};

struct ipc {
    struct ipc_qb qb;
    struct ipc_hands hands;
    struct ipc_polls polls;
    void *services[IPC_SERVICES_MAX];
    int services_count;
    int poll, wake, alarm;
    uint64_t queue_bytes_max;
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
    uint8_t *event; /* one is written here */
    uint32_t event_max;
    uint64_t processed; /* requests that libqb has passed on */
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
bool ipc_say(struct ipc *s, struct ipc_connection *k, const void *request, size_t size);
void ipc_connection_break(struct ipc *s, struct ipc_connection *k);
struct ipc *ipc_the(void);

#endif
