/* One connection of a program: who may have it, its requests, answers, events. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BITS 10 /* IPC_CONNECTIONS_MAX */
#define HEAD_MIN 16  /* bytes of libqb's header of a request */

struct ipc_connection *ipc_connection_find(struct ipc *s, uint32_t number) {
    struct ipc_connection *k = &s->connections[number & (IPC_CONNECTIONS_MAX - 1)];
    return k->c && k->number == number ? k : NULL;
}

/* NULL: what libqb gives is no connection, or none that is let in. */
struct ipc_connection *ipc_connection_of(struct ipc *s, const void *c) {
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++)
        if (s->connections[slot].c && s->connections[slot].c == c)
            return &s->connections[slot];
    return NULL;
}

/* It has done what no library does: ended as soon as libqb has returned. */
void ipc_connection_break(struct ipc *s, struct ipc_connection *k) {
    k->reason = IPC_BROKEN;
    k->ending = s->broken = true;
    ipc_wake(s);
}

static struct ipc_connection *free_slot(struct ipc *s) {
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++)
        if (!s->connections[slot].c)
            return &s->connections[slot];
    return NULL;
}

/* What a program has not taken. */
static void drop_waiting(struct ipc *s, struct ipc_connection *k) {
    while (k->first) {
        struct ipc_waiting *next = k->first->next;
        free(k->first);
        k->first = next;
    }
    k->last = &k->first;
    s->waiting_bytes -= k->waiting_bytes;
    k->waiting_bytes = 0;
}

void ipc_connection_free(struct ipc *s, uint32_t slot) {
    struct ipc_connection *k = &s->connections[slot];
    drop_waiting(s, k);
    *k = (struct ipc_connection){0};
}

/* ---- libqb's callbacks */

static bool listed(const uint32_t *list, int count, uint32_t value) {
    for (int k = 0; k < count; k++)
        if (list[k] == value)
            return true;
    return false;
}

static int refuse(struct ipc *s, void *c, int reason, uid_t uid, gid_t gid, int error) {
    struct ipc_item *item = ipc_item_new(s, IPC_REFUSED);
    if (item)
        item->reason = reason, item->service = s->qb.service(c), item->uid = uid, item->gid = gid;
    return error;
}

static int32_t on_accept(void *c, uid_t uid, gid_t gid) {
    struct ipc *s = ipc_the();
    if (uid && gid && !listed(s->uids, s->uids_count, uid) && !listed(s->gids, s->gids_count, gid))
        return refuse(s, c, IPC_RIGHTS, uid, gid, -EACCES);
    if (s->qb.buffer_size(c) > IPC_BUFFER_MAX)
        return refuse(s, c, IPC_BUFFER, uid, gid, -EMSGSIZE);
    struct ipc_connection *k = free_slot(s);
    struct ipc_item *item = k ? ipc_item_new(s, IPC_OPENED) : NULL;
    if (!item)
        return refuse(s, c, IPC_TOO_MANY, uid, gid, -EMFILE);
    if (!(++s->serial << SLOT_BITS)) /* no connection has the number 0 */
        s->serial++;
    uint32_t slot = (uint32_t)(k - s->connections);
    *k = (struct ipc_connection){.c = c, .number = s->serial << SLOT_BITS | slot, .service = s->qb.service(c), .asked = s->clears};
    k->last = &k->first;
    s->qb.set(c, k);
    *item = (struct ipc_item){.kind = IPC_OPENED, .connection = k->number, .service = k->service, .uid = uid, .gid = gid};
    struct ipc_stats stats = {0};
    if (!s->qb.stats(c, &stats, 0))
        item->pid = stats.pid;
    return 0;
}

static void on_created(void *c) { (void)c; }

/* Note the end of a connection, once; the slot is free from here on. */
static void gone(struct ipc *s, struct ipc_connection *k) {
    struct ipc_item *item = ipc_item_new(s, IPC_CLOSED);
    item->connection = k->number, item->service = k->service, item->reason = k->reason;
    s->qb.set(k->c, NULL);
    ipc_connection_free(s, (uint32_t)(k - s->connections));
}

static int32_t on_closed(void *c) {
    struct ipc *s = ipc_the();
    struct ipc_connection *k = s->qb.get(c);
    if (k)
        gone(s, k);
    return 0;
}

/* Also of one that was accepted and whose memory could not be made. */
static void on_destroyed(void *c) { on_closed(c); }

static int32_t on_process(void *c, void *data, size_t size) {
    struct ipc *s = ipc_the();
    struct ipc_connection *k = s->qb.get(c);
    s->processed++;
    if (!k || k->ending)
        return 0;
    /* size is what the program's header says, in memory that the program can change: within the buffer everything is mapped */
    int32_t most = s->qb.buffer_size(c);
    if (k->head_size && most > 0 && size <= (size_t)most && ipc_say(s, k, data, size))
        return 0;
    struct ipc_item *item = NULL;
    uint8_t *bytes = NULL;
    if (size >= HEAD_MIN && size <= REQUEST_MAX && most > 0 && size <= (size_t)most && (bytes = ipc_bytes_new(s, (uint32_t)size)))
        item = ipc_item_new(s, IPC_REQUEST);
    if (!item) {
        ipc_connection_break(s, k);
        return 0;
    }
    memcpy(bytes, data, size);
    k->asked = s->clears;
    item->connection = k->number, item->service = k->service, item->size = (uint32_t)size;
    item->at = (uint64_t)(bytes - s->bytes);
    return 0;
}

const struct ipc_hands ipc_hands = {on_accept, on_created, on_process, on_closed, on_destroyed};

/* ---- what the server sends */

static void end(struct ipc *s, struct ipc_connection *k, int reason) {
    k->reason = reason;
    k->ending = true;
    drop_waiting(s, k);
    s->qb.disconnect(k->c); /* calls on_closed(), here or later */
}

int ipc_answer(struct ipc *s, uint32_t connection, const void *data, uint32_t size) {
    struct ipc_connection *k = ipc_connection_find(s, connection);
    if (!k || k->ending)
        return -ENOENT;
    ssize_t sent = s->qb.respond(k->c, data, size);
    if (sent != (ssize_t)size)
        end(s, k, sent == -EAGAIN || sent == -ENOBUFS ? IPC_BROKEN : IPC_BY_PROGRAM);
    return 0;
}

static bool has_no_room(ssize_t sent) { return sent == -EAGAIN || sent == -ENOBUFS || sent == -ETIMEDOUT; }

static struct ipc_connection *fullest(struct ipc *s) {
    struct ipc_connection *most = NULL;
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++)
        if (s->connections[slot].c && s->connections[slot].waiting_bytes > (most ? most->waiting_bytes : 0))
            most = &s->connections[slot];
    return most;
}

/* Where all that waits is too much, the program that has left the most makes room: not the one whose event it happens to be. */
static int keep(struct ipc *s, struct ipc_connection *k, const struct iovec parts[2]) {
    size_t size = parts[0].iov_len + parts[1].iov_len;
    if (k->waiting_bytes + size > s->queue_bytes_max)
        return -ENOSPC;
    while (s->waiting_bytes + size > QUEUES * s->queue_bytes_max) {
        struct ipc_connection *most = fullest(s);
        if (!most || most == k)
            return -ENOSPC;
        end(s, most, IPC_QUEUE);
    }
    struct ipc_waiting *w = malloc(sizeof *w + size);
    if (!w)
        return -ENOMEM;
    w->next = NULL, w->size = (uint32_t)size;
    memcpy(w->data, parts[0].iov_base, parts[0].iov_len);
    if (parts[1].iov_len)
        memcpy(w->data + parts[0].iov_len, parts[1].iov_base, parts[1].iov_len);
    *k->last = w, k->last = &w->next;
    k->waiting_bytes += size;
    s->waiting_bytes += size;
    ipc_alarm(s);
    return 0;
}

static void event_to(struct ipc *s, struct ipc_connection *k, const struct iovec parts[2]) {
    if (!k->first) {
        ssize_t sent = s->qb.event_of(k->c, parts, parts[1].iov_len ? 2 : 1);
        if (sent == (ssize_t)(parts[0].iov_len + parts[1].iov_len))
            return;
        if (!has_no_room(sent)) {
            end(s, k, IPC_BY_PROGRAM);
            return;
        }
    }
    if (keep(s, k, parts))
        end(s, k, IPC_QUEUE);
}

void ipc_event_of(struct ipc *s, const uint32_t *connections, int count, const struct iovec parts[2]) {
    for (int at = 0; at < count; at++) {
        struct ipc_connection *k = ipc_connection_find(s, connections[at]);
        if (k && !k->ending)
            event_to(s, k, parts);
    }
}

void ipc_event(struct ipc *s, const uint32_t *connections, int count, const void *data, uint32_t size) {
    ipc_event_of(s, connections, count, (struct iovec[2]){{(void *)(uintptr_t)data, size}, {NULL, 0}});
}

static void flush_one(struct ipc *s, struct ipc_connection *k) {
    while (k->first) {
        struct ipc_waiting *w = k->first;
        ssize_t sent = s->qb.event(k->c, w->data, w->size);
        if (has_no_room(sent)) {
            ipc_alarm(s);
            return;
        }
        if (sent != (ssize_t)w->size) {
            end(s, k, IPC_BY_PROGRAM);
            return;
        }
        k->first = w->next;
        if (!k->first)
            k->last = &k->first;
        k->waiting_bytes -= w->size;
        s->waiting_bytes -= w->size;
        free(w);
    }
}

void ipc_flush(struct ipc *s) {
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++)
        if (s->connections[slot].first && !s->connections[slot].ending)
            flush_one(s, &s->connections[slot]);
}

/* What has sent something that is no request is ended outside of libqb's callback. */
void ipc_end_broken(struct ipc *s) {
    if (!s->broken)
        return;
    s->broken = false;
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++) {
        struct ipc_connection *k = &s->connections[slot];
        if (k->c && k->ending && k->reason == IPC_BROKEN)
            end(s, k, IPC_BROKEN);
    }
}

void ipc_pause(struct ipc *s, uint32_t connection, int paused) {
    struct ipc_connection *k = ipc_connection_find(s, connection);
    if (k)
        ipc_watch_pause(s, k->c, paused != 0);
}

void ipc_end(struct ipc *s, uint32_t connection) {
    struct ipc_connection *k = ipc_connection_find(s, connection);
    if (k && !k->ending)
        end(s, k, IPC_ENDED);
}

uint64_t ipc_waiting(const struct ipc *s, uint32_t connection) {
    const struct ipc_connection *k = &s->connections[connection & (IPC_CONNECTIONS_MAX - 1)];
    return k->c && k->number == connection ? k->waiting_bytes : 0;
}

/* The last quarter is for what is under way and for what others send. */
int ipc_takes_events(const struct ipc *s, uint32_t connection) {
    return ipc_waiting(s, connection) < s->queue_bytes_max - s->queue_bytes_max / 4;
}
