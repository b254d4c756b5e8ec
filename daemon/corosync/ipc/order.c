/* The connection to zenjund, by libzenjun: what programs say to their groups goes out, and what comes is delivered by the lanes. All
 * else becomes an item, one at a time: nothing behind it is looked at before Python has dealt with it. */
#define _GNU_SOURCE
#include "internal.h"

#include "zenjun.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#define TEXT_MAX 256

/* An item of the connection. `size` bytes at *to are for its text. NULL: no memory. */
static struct ipc_item *order_item(struct ipc *s, int kind, uint32_t size, uint8_t **to) {
    *to = ipc_bytes_new(s, size + 1); /* NULL is not the room for nothing */
    struct ipc_item *item = *to ? ipc_item_new(s, kind) : NULL;
    if (!item)
        return NULL;
    item->connection = s->order.serial, item->size = size, item->at = (uint64_t)(*to - s->bytes);
    s->order.told = true;
    return item;
}

static struct ipc_item *item_with(struct ipc *s, int kind, const void *data, size_t size) {
    uint8_t *to;
    struct ipc_item *item = order_item(s, kind, (uint32_t)size, &to);
    if (item && size)
        memcpy(to, data, size);
    return item;
}

static struct ipc_item *item_text(struct ipc *s, int kind, const char *text) {
    return item_with(s, kind, text, strnlen(text, TEXT_MAX));
}

/* ---- what comes: each of these is true when it is dealt with here; false: Python has an item, or there is no memory for one yet */

static bool view(struct ipc *s, const struct zenjun_view *v) {
    uint8_t *to;
    struct ipc_item *item = order_item(s, IPC_VIEW, (uint32_t)(sizeof(struct ipc_source) * v->members_count), &to);
    if (!item)
        return false;
    item->clock = v->place.clock, item->station = v->place.station, item->value = v->place.index;
    for (size_t k = 0; k < v->members_count; k++) {
        struct ipc_source source = {v->members[k]->station, v->members[k]->client};
        memcpy(to + k * sizeof source, &source, sizeof source);
    }
    s->order.item = NULL;
    return false;
}

static bool event(struct ipc *s, const struct zenjun_event *e) {
    int what = e->type == ZENJUN_EVENT_BLOCKED                                       ? (e->quorum ? 0 : IPC_BLOCKED)
               : e->type == ZENJUN_EVENT_UNBLOCKED                                   ? IPC_UNBLOCKED
               : e->type == ZENJUN_EVENT_FENCED                                      ? IPC_FENCED
               : e->type == ZENJUN_EVENT_CLOSED || e->type == ZENJUN_EVENT_EXPELLED || e->type == ZENJUN_EVENT_REOPENED ? IPC_LOST
                                                                                     : 0;
    if (!what || item_text(s, what, e->name))
        s->order.item = NULL;
    return !what;
}

static bool message(struct ipc *s, const struct zenjun_item *i) {
    struct ipc_order *o = &s->order;
    const uint8_t *data = i->data;
    int64_t rest = ipc_lanes_take(s, i->place.station, i->client, i->own, data, (uint32_t)i->length, &o->at);
    if (rest == IPC_ALL)
        return true;
    if (rest == -ENOMEM) { /* of one message: it is tried again */
        ipc_wake(s);
        return false;
    }
    struct ipc_item *item = rest >= 0                     ? item_with(s, IPC_TOLD, data + o->at, (size_t)rest)
                            : rest == IPC_MALFORMED_REST ? item_text(s, IPC_MALFORMED, "")
                                                         : item_text(s, IPC_BUG, "own messages come back in their order");
    if (!item) {
        if (rest >= 0 && data[0] == BUNDLE)
            o->at -= LENGTH;
        return false;
    }
    item->station = i->place.station, item->client = i->client;
    if (rest >= 0)
        o->at += (uint32_t)rest;
    if (rest < 0 || o->at >= i->length)
        o->item = NULL;
    return false;
}

/* Take what libzenjun has read. False: Python is to go on. */
static bool take(struct ipc *s) {
    struct ipc_order *o = &s->order;
    for (;;) {
        if (!o->item) {
            int found = zenjun_next(o->z, &o->item);
            o->at = 0;
            if (found < 0) {
                const char *reason = zenjun_reason(o->z);
                item_text(s, IPC_LOST, *reason ? reason : zenjun_strerror(found));
            }
            if (found <= 0)
                return !found;
            s->heard++;
        }
        const struct zenjun_item *i = o->item;
        bool done = true;
        if (i->kind == ZENJUN_MESSAGE)
            done = message(s, i);
        else if (i->kind == ZENJUN_VIEW)
            done = view(s, i->view);
        else if (i->kind == ZENJUN_EVENT)
            done = event(s, i->event);
        else if (i->kind == ZENJUN_REFUSED) {
            if (item_text(s, IPC_LOST, i->refusal->message))
                o->item = NULL;
            done = false;
        }
        if (!done)
            return false;
        o->item = NULL;
    }
}

/* ---- what goes */

/* False: libzenjun takes no more now. What it will never take ends the connection, for nothing behind it would ever go out; that the
 * connection has ended already is read. */
static bool send_own(struct ipc *s) {
    const uint8_t *bytes;
    uint32_t size, count;
    static const uint8_t mark = BUNDLE;
    while (s->order.handle && (count = ipc_own_next(s, &bytes, &size))) {
        struct iovec parts[2] = {{(void *)(uintptr_t)&mark, 1}, {(void *)(uintptr_t)bytes, size}};
        struct iovec one = {(void *)(uintptr_t)(bytes + LENGTH), size - LENGTH};
        int error = zenjun_send(s->order.z, s->order.handle, count > 1 ? parts : &one, count > 1 ? 2 : 1, ZENJUN_SENT, NULL);
        if (error == ZENJUN_E_TOO_LARGE || error == ZENJUN_E_BAD_HANDLE || error == ZENJUN_E_INVALID)
            item_text(s, IPC_LOST, zenjun_strerror(error));
        if (error)
            return false;
        ipc_own_sent(s, size);
    }
    return true;
}

/* ---- the descriptor */

static void watch(struct ipc *s) {
    struct ipc_order *o = &s->order;
    short wanted = zenjun_events(o->z);
    struct epoll_event e = {.data.u64 = MARK_ORDER};
    e.events = (uint32_t)((wanted & POLLIN ? EPOLLIN : 0) | (wanted & POLLOUT ? EPOLLOUT : 0));
    if (o->watched == (int)e.events)
        return;
    if (!epoll_ctl(s->outer, o->watched < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, zenjun_fd(o->z), &e))
        o->watched = (int)e.events;
}

void ipc_order_turn(struct ipc *s) {
    struct ipc_order *o = &s->order;
    if (!o->z || o->told)
        return;
    if (o->welcomed && !take(s))
        return;
    bool all = send_own(s);
    int error = zenjun_step(o->z);
    const struct zenjun_welcome *w = zenjun_welcome(o->z);
    if (w && !o->welcomed) {
        struct ipc_item *item = item_text(s, IPC_WELCOME, "");
        if (item) {
            item->station = w->station, item->client = w->client, item->value = w->mtu, item->clock = w->message_max;
            o->welcomed = true;
        } else {
            ipc_wake(s);
        }
    } else if (w || error) {
        take(s);
    }
    if (!o->told && !error && !all && !(zenjun_events(o->z) & POLLOUT))
        ipc_wake(s); /* all that waited in libzenjun has gone out, and more waits here */
    if (!error)
        watch(s);
}

int ipc_order_open(struct ipc *s, const char *socket, const char *name, uint32_t serial) {
    ipc_order_close(s);
    int error = zenjun_open(socket, name, &s->order.z);
    if (error)
        return error;
    s->order.serial = serial;
    snprintf(s->order.socket, sizeof s->order.socket, "%s", socket);
    s->order.watched = -1;
    ipc_wake(s);
    return 0;
}

const char *ipc_order_error(int error) { return zenjun_strerror(error); }

int ipc_order_join(struct ipc *s, const char *group) {
    struct ipc_order *o = &s->order;
    ipc_wake(s);
    return o->z ? zenjun_join(o->z, group, ZENJUN_PREACK, ZENJUN_ORDER_TOTAL, 0, NULL, &o->handle) : 0;
}

static void end_asking(struct ipc_order *o) {
    if (o->asking)
        zenjun_close(o->asking, 0);
    o->asking = NULL, o->asked = false;
}

/* On a connection of its own: zenjund does not read one whose message has no room, and while a member that has died is in the
 * instance, that is as long as it takes to give it up. That is no hang. */
void ipc_order_ask(struct ipc *s, const char *group) {
    struct ipc_order *o = &s->order;
    const struct zenjun_item *i;
    int found, error;
    if (!o->z || !o->welcomed || (!o->asking && zenjun_open(o->socket, "zenjun-corosync-watch", &o->asking)))
        return;
    error = zenjun_step(o->asking);
    while ((found = zenjun_next(o->asking, &i)) > 0)
        if (i->kind == ZENJUN_REPLY || i->kind == ZENJUN_REFUSED)
            o->asked = false, s->heard++;
    if (error || found < 0) { /* zenjund has ended it, or refuses it, so it is there: that it has died the other connection tells */
        end_asking(o);
        s->heard++;
        return;
    }
    if (zenjun_welcome(o->asking) && !o->asked && !zenjun_members(o->asking, group, NULL))
        o->asked = !zenjun_step(o->asking);
}

uint64_t ipc_order_heard(const struct ipc *s) { return s->heard; }

void ipc_order_close(struct ipc *s) {
    end_asking(&s->order);
    if (s->order.z) {
        epoll_ctl(s->outer, EPOLL_CTL_DEL, zenjun_fd(s->order.z), NULL);
        zenjun_close(s->order.z, 0);
    }
    s->order = (struct ipc_order){.watched = -1};
}
