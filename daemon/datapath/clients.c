/* Client sockets: reading in bulk, parsing, offering to the core, routing what is delivered.
 *
 * A client's frames keep their order. SENDs go to the core in turns with the other clients'; any other frame waits at the head
 * of the input until Python has taken it, and what follows it waits too. A SEND that the core refuses for now stays at the head
 * and the socket is not read further: that is the back-pressure.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#define CLIENT_EVENTS ((uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLET))
#define SOCKET_BUFFER_BYTES (256 * 1024) /* one batch of delivery; it comes on top of queue_bytes_max */

static void take_push(struct dp *d, struct dp_client *c)
{
    if (c->in_take || !(c->taking || (c->end && !c->end_told)))
        return;
    c->in_take = 1;
    d->take[(d->take_head + d->take_count++) % DP_CLIENTS_MAX] = (uint16_t)c->slot;
}

static void take_purge(struct dp *d, struct dp_client *c)
{
    if (!c->in_take)
        return;
    const uint32_t count = d->take_count;
    d->take_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t slot = d->take[(d->take_head + i) % DP_CLIENTS_MAX];
        if (slot != c->slot)
            d->take[(d->take_head + d->take_count++) % DP_CLIENTS_MAX] = slot;
    }
    c->in_take = 0;
}

static void client_end(struct dp *d, struct dp_client *c, int error)
{
    set_del(&d->work, c->slot);
    c->taking = 0;
    if (c->end)
        return;
    c->end = 1;
    c->end_error = error;
    take_push(d, c);
}

static struct dp_client *client_at(const struct dp *d, uint32_t slot)
{
    if (slot >= DP_CLIENTS_MAX || !d->clients[slot].used)
        return NULL;
    return (struct dp_client *)(uintptr_t)&d->clients[slot];
}

static struct dp_client *client_live(const struct dp *d, uint32_t slot)
{
    struct dp_client *c = client_at(d, slot);
    return c && !c->removed ? c : NULL;
}

/* ---- groups ---- */
static uint32_t route_start(const struct dp *d, uint32_t group)
{
    return (uint32_t)(((uint64_t)group * 0x9e3779b97f4a7c15ull) >> 32) & (d->route_cap - 1);
}

static struct dp_route *route_find(const struct dp *d, uint32_t group)
{
    if (!d->route_cap)
        return NULL;
    for (uint32_t i = route_start(d, group); d->routes[i]; i = (i + 1) & (d->route_cap - 1))
        if (d->routes[i]->group == group)
            return d->routes[i];
    return NULL;
}

static void route_place(struct dp *d, struct dp_route *r)
{
    uint32_t i = route_start(d, r->group);
    while (d->routes[i])
        i = (i + 1) & (d->route_cap - 1);
    d->routes[i] = r;
}

static struct dp_route *route_get(struct dp *d, uint32_t group)
{
    struct dp_route *r = route_find(d, group);
    if (r)
        return r;
    if (2 * (d->route_count + 1) > d->route_cap) {
        const uint32_t cap = d->route_cap ? d->route_cap * 2 : 64, old_cap = d->route_cap;
        struct dp_route **old = d->routes, **routes = calloc(cap, sizeof *routes);
        if (!routes)
            return NULL;
        d->routes = routes;
        d->route_cap = cap;
        for (uint32_t i = 0; i < old_cap; i++)
            if (old[i])
                route_place(d, old[i]);
        free(old);
    }
    r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->group = group;
    route_place(d, r);
    d->route_count++;
    return r;
}

static void route_drop_if_unused(struct dp *d, struct dp_route *r)
{
    if (r->count || r->need_ack)
        return;
    uint32_t hole = route_start(d, r->group);
    while (d->routes[hole] != r)
        hole = (hole + 1) & (d->route_cap - 1);
    d->routes[hole] = NULL;
    d->route_count--;
    /* Close the gap: whatever stands behind it in the same run is placed anew. */
    for (uint32_t i = (hole + 1) & (d->route_cap - 1); d->routes[i]; i = (i + 1) & (d->route_cap - 1)) {
        struct dp_route *moved = d->routes[i];
        d->routes[i] = NULL;
        route_place(d, moved);
    }
    free(r->members);
    free(r);
}

static int route_leave(struct dp_route *r, uint32_t slot)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->members[i].slot == slot) {
            r->count--;
            memmove(&r->members[i], &r->members[i + 1], (r->count - i) * sizeof *r->members);
            return 0;
        }
    return -ENOENT;
}

int dp_join(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t level, uint32_t no_self)
{
    if (!client_live(d, slot))
        return -ENOENT;
    if (level >= ZJ_LEVELS)
        return -EINVAL;
    struct dp_route *r = route_get(d, group);
    if (!r)
        return -ENOMEM;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->members[i].slot == slot)
            return -EEXIST;
    if (r->count == r->cap) {
        const uint32_t cap = r->cap ? r->cap * 2 : 4;
        struct dp_member *members = realloc(r->members, cap * sizeof *members);
        if (!members)
            return -ENOMEM;
        r->members = members;
        r->cap = cap;
    }
    r->members[r->count++] =
        (struct dp_member){.slot = (uint16_t)slot, .handle = handle, .level = (uint8_t)level, .no_self = no_self != 0};
    return 0;
}

int dp_leave(struct dp *d, uint32_t slot, uint32_t group)
{
    struct dp_route *r = route_find(d, group);
    if (!r || route_leave(r, slot))
        return -ENOENT;
    route_drop_if_unused(d, r);
    return 0;
}

int dp_need_ack(struct dp *d, uint32_t group, uint32_t yes)
{
    struct dp_route *r = yes ? route_get(d, group) : route_find(d, group);
    if (!r)
        return yes ? -ENOMEM : 0;
    r->need_ack = yes != 0;
    route_drop_if_unused(d, r);
    return 0;
}

static void leave_all(struct dp *d, uint32_t slot)
{
    for (uint32_t i = 0; i < d->route_cap;) {
        struct dp_route *r = d->routes[i];
        if (r && route_leave(r, slot) == 0 && r->count == 0 && !r->need_ack)
            route_drop_if_unused(d, r); /* another may have moved to this place: look again */
        else
            i++;
    }
}

/* ---- slots ---- */
void clients_init(struct dp *d)
{
    memset(d->by_number, 0xff, sizeof d->by_number);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        d->clients[i].fd = -1;
    const uint64_t need = d->cfg.queue_bytes_max + d->cfg.message_max + DP_CONTROL_MAX;
    uint64_t cap = DP_OUTPUT_BYTES_MIN;
    while (cap < need)
        cap *= 2;
    d->queue_cap_max = (uint32_t)cap;
}

static void slot_free(struct dp *d, struct dp_client *c)
{
    queue_clear(d, c);
    queue_free(c);
    dp_unmap(c->in, c->in_cap);
    free(c->handles);
    set_del(&d->work, c->slot);
    set_del(&d->owning, c->slot);
    set_del(&d->closing, c->slot);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

static void orphan(struct dp *d, struct dp_client *c);
static void orphan_free(struct dp *d);

static void client_close(struct dp *d, struct dp_client *c)
{
    orphan(d, c);
    if (c->fd >= 0) {
        (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* before close, as for the link */
        close(c->fd);
        c->fd = -1;
    }
    set_del(&d->work, c->slot);
    set_del(&d->dirty, c->slot);
    set_del(&d->closing, c->slot);
    if (c->removed)
        slot_free(d, c);
}

void clients_free(struct dp *d)
{
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used) {
            d->clients[i].removed = 1;
            client_close(d, &d->clients[i]);
        }
    for (uint32_t i = 0; i < d->route_cap; i++)
        if (d->routes[i]) {
            free(d->routes[i]->members);
            free(d->routes[i]);
        }
    free(d->routes);
    orphan_free(d);
    free(d->sends.data);
    free(d->group_data);
}

int dp_client_add(struct dp *d, int fd, uint16_t client, uint32_t *slot)
{
    if (d->by_number[client] >= 0)
        return -EEXIST;
    uint32_t i = 0;
    while (i < DP_CLIENTS_MAX && d->clients[i].used)
        i++;
    if (i == DP_CLIENTS_MAX)
        return -EUSERS;
    struct dp_client *c = &d->clients[i];
    uint8_t *in = dp_map(DP_INPUT_BYTES);
    struct dp_bound *handles = calloc(DP_HANDLES_MAX, sizeof *handles);
    struct epoll_event event = {.events = CLIENT_EVENTS, .data.u64 = i};
    int error = in && handles ? 0 : -ENOMEM;
    if (!error && epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &event))
        error = -errno;
    if (error) {
        dp_unmap(in, DP_INPUT_BYTES);
        free(handles);
        return error;
    }
    const int buffer = SOCKET_BUFFER_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer); /* cut to what the system allows */
    *c = (struct dp_client){.fd = fd, .number = client, .used = 1, .slot = i, .can_read = 1, .can_write = 1, .in = in,
                            .in_cap = DP_INPUT_BYTES, .handles = handles};
    d->by_number[client] = (int16_t)i;
    set_add(&d->work, i);
    *slot = i;
    return 0;
}

/* The SEND at the head of a client's input, as the core wants it. */
static struct zj_offer head_offer(const struct dp *d, const struct dp_client *c)
{
    const uint8_t *p = c->in + c->in_start;
    const uint32_t level = p[5] & DP_SEND_LEVEL, group = c->handles[get16(p + 6)].group;
    const struct dp_route *r = level == ZJ_ACK ? NULL : route_find(d, group);
    return (struct zj_offer){.data = p + DP_HEADER, .size = get32(p), .done = c->offered, .group = group, .client = c->number,
                             .type = ZJW_TYPE_USER, .need_ack = level == ZJ_ACK || (r && r->need_ack)};
}

/* The client is read no more: keep what the core has begun to take. */
static void orphan(struct dp *d, struct dp_client *c)
{
    if (!c->offered || d->orphan.map)
        return;
    d->orphan = (struct dp_orphan){.map = c->in, .cap = c->in_cap, .m = head_offer(d, c)};
    c->in = NULL;
    c->in_cap = c->in_start = c->in_end = c->offered = 0;
}

static void orphan_free(struct dp *d)
{
    dp_unmap(d->orphan.map, d->orphan.cap);
    d->orphan = (struct dp_orphan){0};
}

/* From here on only what is queued is written. */
static void start_closing(struct dp *d, struct dp_client *c, uint64_t close_at)
{
    orphan(d, c);
    set_del(&d->work, c->slot);
    c->taking = 0;
    c->closing = 1;
    c->close_at = close_at;
    set_add(&d->closing, c->slot);
    set_add(&d->dirty, c->slot);
}

int dp_client_remove(struct dp *d, uint32_t slot, int hard, uint64_t deadline_ns)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    leave_all(d, slot);
    take_purge(d, c);
    d->by_number[c->number] = -1;
    c->removed = 1;
    c->end_told = 1;
    c->taking = 0;
    if (hard || c->fd < 0 || c->broken) {
        client_close(d, c);
        return 0;
    }
    const uint64_t close_at = dp_now() + deadline_ns;
    if (c->closing) {
        c->close_at = min64(c->close_at, close_at);
        return 0;
    }
    queue_cut(d, c, 1);
    start_closing(d, c, close_at);
    return 0;
}

int dp_client_level(struct dp *d, uint32_t slot, uint32_t level)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (level >= ZJ_LEVELS)
        return -EINVAL;
    c->notify[level] = UINT64_MAX;
    set_add(&d->owning, slot);
    return 0;
}

int dp_handle(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t may_send)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (handle == 0 || handle >= DP_HANDLES_MAX)
        return -EINVAL;
    c->handles[handle] = (struct dp_bound){.group = group, .bound = 1, .may_send = may_send != 0};
    return 0;
}

int dp_handle_drop(struct dp *d, uint32_t slot, uint16_t handle)
{
    struct dp_client *c = client_live(d, slot);
    if (!c || handle == 0 || handle >= DP_HANDLES_MAX || !c->handles[handle].bound)
        return -ENOENT;
    c->handles[handle] = (struct dp_bound){0};
    return 0;
}

/* ---- errors to the client ---- */
#define ERROR_BYTES 512u

static uint32_t error_frame(uint8_t out[ERROR_BYTES], const char *code, const char *message, uint16_t handle, uint64_t send)
{
    char *body = (char *)out + DP_HEADER;
    const size_t room = ERROR_BYTES - DP_HEADER;
    int n = send ? snprintf(body, room, "{\"code\":\"%s\",\"message\":\"%s\",\"handle\":%u,\"send\":%llu}", code, message,
                            (unsigned)handle, (unsigned long long)send)
                 : snprintf(body, room, "{\"code\":\"%s\",\"message\":\"%s\"}", code, message);
    if (n < 0 || (size_t)n >= room)
        n = 0;
    put_header(out, (uint32_t)n, DP_F_ERROR, (uint8_t)(send ? 0u : DP_ERROR_CLOSES), handle);
    return DP_HEADER + (uint32_t)n;
}

/* A SEND is not for us; the connection stays. */
static void refuse(struct dp *d, struct dp_client *c, const char *code, const char *message, uint16_t handle)
{
    uint8_t frame[ERROR_BYTES];
    const uint32_t size = error_frame(frame, code, message, handle, ++c->sends);
    (void)queue_urgent(d, c, frame, size, NULL, 0); /* when full, the client has unread errors enough */
}

/* The client's own fault: tell it why, tell Python, close. */
void client_fail(struct dp *d, struct dp_client *c, const char *code, const char *message, int error, int keep_released)
{
    if (c->closing)
        return;
    uint8_t frame[ERROR_BYTES];
    const uint32_t size = error_frame(frame, code, message, 0, 0);
    queue_cut(d, c, keep_released);
    (void)queue_append(d, c, frame, size, NULL, 0, ZJ_ORDERED, 0);
    client_end(d, c, error);
    start_closing(d, c, dp_now() + DP_CLOSE_NS);
}

static void client_slow(struct dp *d, struct dp_client *c)
{
    if (c->closing)
        return;
    char text[160];
    snprintf(text, sizeof text, "%llu bytes were waiting to be read, the limit (queue_bytes_max) is %llu",
             (unsigned long long)queue_bytes(&c->q), (unsigned long long)d->cfg.queue_bytes_max);
    d->counters.slow_disconnects++;
    client_fail(d, c, "slow-receiver", text, DP_E_SLOW, 0);
}

static void client_nomem(struct dp *d, struct dp_client *c)
{
    client_fail(d, c, "busy", "the daemon has no memory left for this connection", -ENOMEM, 0);
}

/* ---- input ---- */
void clients_event(struct dp *d, uint32_t slot, uint32_t events)
{
    struct dp_client *c = client_at(d, slot);
    if (!c || c->fd < 0)
        return;
    if (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
        c->hung_up = 1;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP | EPOLLERR)) {
        c->can_read = 1;
        if (!c->closing && !c->end)
            set_add(&d->work, slot);
    }
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
        c->can_write = 1;
        if (queue_writable(&c->q) || c->closing)
            set_add(&d->dirty, slot);
    }
}

/* A large message has gone: give its memory back. Not where it is consumed, for dp_take's data lies there until the next turn. */
static void input_shrink(struct dp_client *c)
{
    if (c->in_cap == DP_INPUT_BYTES || c->in_start < c->in_end)
        return;
    if (mremap(c->in, c->in_cap, DP_INPUT_BYTES, 0) != MAP_FAILED)
        c->in_cap = DP_INPUT_BYTES;
}

/* Make room for `need` bytes from in_start on, and for a read worth its system call. */
static int input_room(struct dp_client *c, uint32_t need)
{
    const uint32_t have = c->in_end - c->in_start;
    if (c->in_start && (c->in_cap - c->in_start < need || c->in_cap - c->in_end < c->in_cap / 4)) {
        memmove(c->in, c->in + c->in_start, have);
        c->in_start = 0;
        c->in_end = have;
    }
    if (c->in_cap >= need)
        return 0;
    const uint32_t cap = (need + 4095u) & ~4095u;
    uint8_t *in = mremap(c->in, c->in_cap, cap, MREMAP_MAYMOVE);
    if (in == MAP_FAILED)
        return -ENOMEM;
    c->in = in;
    c->in_cap = cap;
    return 0;
}

static void input_consumed(struct dp_client *c, uint32_t bytes)
{
    c->in_start += bytes;
    if (c->in_start == c->in_end)
        c->in_start = c->in_end = 0;
}

/* 1: something came; 0: nothing now, or the end. */
static int input_read(struct dp *d, struct dp_client *c)
{
    if (!c->can_read || c->eof)
        return 0;
    for (;;) {
        const uint32_t room = c->in_cap - c->in_end;
        const ssize_t n = recv(c->fd, c->in + c->in_end, room, MSG_DONTWAIT);
        d->counters.client_reads++;
        if (n > 0) {
            c->in_end += (uint32_t)n;
            d->counters.client_bytes_in += (uint64_t)n;
            if ((uint32_t)n < room && !c->hung_up)
                c->can_read = 0; /* an edge will tell of more */
            return 1;
        }
        if (n == 0) {
            c->eof = 1;
            return 0;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN) {
            c->can_read = 0;
            return 0;
        }
        if (errno == ECONNRESET && !c->hung_up) {
            c->hung_up = 1; /* it closed with our frames unread; what it sent before can still be read */
            continue;
        }
        c->eof = 1;
        c->end_error = errno == ECONNRESET ? 0 : -errno;
        return 0;
    }
}

enum head { HEAD_NONE, HEAD_PART, HEAD_SEND, HEAD_CONTROL, HEAD_BAD };

/* What stands at the head of the input; consumes refused frames. *size: body bytes. */
static enum head input_head(struct dp *d, struct dp_client *c, uint32_t *size)
{
    for (;;) {
        const uint32_t have = c->in_end - c->in_start;
        if (c->skip) {
            const uint32_t run = c->skip < have ? c->skip : have;
            c->skip -= run;
            input_consumed(c, run);
            if (c->skip)
                return HEAD_NONE;
            continue;
        }
        if (have < DP_HEADER)
            return HEAD_PART;
        const uint8_t *p = c->in + c->in_start;
        const uint8_t type = p[4], flags = p[5];
        const uint16_t handle = get16(p + 6);
        *size = get32(p);
        if (*size > DP_FRAME_MAX || (type != DP_F_SEND && *size > DP_CONTROL_MAX))
            return HEAD_BAD;
        if (type == DP_F_SEND && !c->offered) {
            const struct dp_bound *b = handle < DP_HANDLES_MAX ? &c->handles[handle] : NULL;
            if ((flags & DP_SEND_LEVEL) >= ZJ_LEVELS)
                return HEAD_BAD;
            const char *code = NULL;
            char text[128];
            if (*size > d->cfg.message_max) {
                code = "too-large";
                snprintf(text, sizeof text, "a message of %u bytes; message_max is %u", (unsigned)*size,
                         (unsigned)d->cfg.message_max);
            } else if (!b || !b->bound) {
                code = "bad-handle";
                snprintf(text, sizeof text, "no group is joined as handle %u", (unsigned)handle);
            } else if (!b->may_send) {
                code = "not-member";
                snprintf(text, sizeof text, "handle %u is not for sending", (unsigned)handle);
            }
            if (code) { /* refused by its header alone: the body is never collected */
                refuse(d, c, code, text, handle);
                c->skip = *size;
                input_consumed(c, DP_HEADER);
                continue;
            }
        }
        if (have - DP_HEADER < *size)
            return HEAD_PART;
        return type == DP_F_SEND ? HEAD_SEND : HEAD_CONTROL;
    }
}

/* 1: taken; 0: refused for now. */
static int offer(struct dp *d, struct dp_client *c, uint32_t size)
{
    const uint8_t *p = c->in + c->in_start;
    const uint32_t level = p[5] & DP_SEND_LEVEL;
    struct zj_offer m = head_offer(d, c);
    const int taken = d->api->offer(d->core, &m);
    c->offered = m.done;
    if (taken == 0)
        return 0;
    c->offered = 0;
    if (taken > 0) {
        c->sends++;
        c->sent++;
        if (p[5] & DP_SEND_NOTIFY && c->notify[level] < c->sent)
            c->notify[level] = c->sent;
    } else {
        char text[96];
        snprintf(text, sizeof text, "a message of %u bytes cannot be sent", (unsigned)size);
        refuse(d, c, "too-large", text, get16(p + 6));
    }
    input_consumed(c, DP_HEADER + size);
    return 1;
}

static int must_pause(const struct dp *d, const struct dp_client *c)
{
    return queue_bytes(&c->q) > d->cfg.queue_bytes_max / 2 || c->q.urgent.size - c->q.urgent.off > DP_URGENT_PAUSE_BYTES;
}

enum served { SERVED_DRY, SERVED_BLOCKED, SERVED_QUANTUM };

/* Serve one client until it has nothing, the core has no room, or its quantum is over; a quantum that the core's lack of room
 * cuts short goes on the next time, or one client could have all the room for ever. *taken counts messages and reads. */
static enum served serve(struct dp *d, struct dp_client *c, int only_partial, uint32_t *taken)
{
    for (;;) {
        if (c->quantum >= DP_QUANTUM_BYTES) {
            c->quantum = 0;
            return SERVED_QUANTUM;
        }
        if (c->taking || c->closing || c->end)
            return SERVED_DRY;
        if (!c->paused && must_pause(d, c))
            c->paused = 1;
        if (c->paused && !c->offered)
            return SERVED_DRY; /* clients_write() takes it up again */
        uint32_t size = 0;
        const enum head head = input_head(d, c, &size);
        switch (head) {
        case HEAD_BAD:
            client_fail(d, c, "protocol", "a frame with a size or a level beyond the limit", DP_E_PROTOCOL, 1);
            return SERVED_DRY;
        case HEAD_CONTROL:
            c->taking = 1;
            take_push(d, c);
            return SERVED_DRY;
        case HEAD_SEND:
            if ((d->hold || only_partial) && !c->offered)
                return SERVED_BLOCKED;
            if (!offer(d, c, size))
                return SERVED_BLOCKED;
            ++*taken;
            c->quantum += size + DP_QUANTUM_MESSAGE;
            continue;
        case HEAD_NONE:
            size = 0;
            break;
        case HEAD_PART:
            break;
        }
        input_shrink(c);
        if (!c->can_read && !c->eof) {
            c->quantum = 0;
            return SERVED_DRY;
        }
        if (input_room(c, DP_HEADER + size)) {
            client_nomem(d, c);
            return SERVED_DRY;
        }
        if (input_read(d, c)) {
            ++*taken;
            c->quantum += DP_QUANTUM_READ;
            continue;
        }
        if (c->eof) /* all before it has been taken; what is left is less than a frame */
            client_end(d, c, c->end_error);
        return SERVED_DRY;
    }
}

/* Python's messages first: they are few, and joins and leaves must not wait behind data. 1: all taken. */
static int offer_pending(struct dp *d, uint32_t *taken)
{
    struct dp_pending *s = &d->sends;
    while (s->count) {
        struct zj_offer m;
        memcpy(&m, s->data + s->head, sizeof m);
        m.data = s->data + s->head + sizeof m;
        m.done = s->offered;
        const int result = d->api->offer(d->core, &m);
        s->offered = m.done;
        if (result == 0)
            return 0;
        s->offered = 0;
        s->head += (uint32_t)((sizeof m + m.size + 7u) & ~7u);
        s->count--;
        ++*taken;
    }
    s->head = s->tail = 0;
    return 1;
}

/* Messages and reads done. *more: stopped by the bound on one pass. */
uint32_t clients_offer(struct dp *d, uint32_t *more)
{
    uint32_t taken = 0, rounds = 0;
    if (d->orphan.map && d->api->offer(d->core, &d->orphan.m)) {
        orphan_free(d);
        taken++;
    }
    const int only_partial = !offer_pending(d, &taken);
    struct dp_set todo = d->work;
    while (set_any(&todo)) {
        uint32_t i = set_next(&todo, d->turn);
        if (i == DP_CLIENTS_MAX)
            i = set_next(&todo, 0);
        switch (serve(d, &d->clients[i], only_partial, &taken)) {
        case SERVED_DRY:
            set_del(&d->work, i);
            set_del(&todo, i);
            break;
        case SERVED_BLOCKED:
            set_del(&todo, i);
            continue; /* keeps its turn: the next room is its */
        case SERVED_QUANTUM:
            rounds++;
            break;
        }
        d->turn = i + 1 == DP_CLIENTS_MAX ? 0 : i + 1;
        if (rounds >= 16) {
            *more = 1;
            break;
        }
    }
    return taken;
}

int dp_send(struct dp *d, uint16_t client, uint32_t group, uint8_t type, uint8_t need_ack, const uint8_t *data, uint32_t size)
{
    struct dp_pending *s = &d->sends;
    const struct zj_offer m = {.size = size, .group = group, .client = client, .type = type, .need_ack = need_ack};
    const uint64_t need = (sizeof m + size + 7u) & ~7ull;
    if (size > d->cfg.message_max)
        return -EMSGSIZE;
    if (s->tail - s->head + need > DP_SEND_MAX_BYTES)
        return -ENOBUFS;
    if (s->tail + need > s->cap && s->head) {
        memmove(s->data, s->data + s->head, s->tail - s->head);
        s->tail -= s->head;
        s->head = 0;
    }
    if (s->tail + need > s->cap) {
        uint32_t cap = s->cap ? s->cap : 16 * 1024;
        while (cap < s->tail + need)
            cap *= 2;
        uint8_t *grown = realloc(s->data, cap);
        if (!grown)
            return -ENOMEM;
        s->data = grown;
        s->cap = cap;
    }
    memcpy(s->data + s->tail, &m, sizeof m);
    if (size)
        memcpy(s->data + s->tail + sizeof m, data, size);
    s->tail += (uint32_t)need;
    s->count++;
    return 0;
}

int dp_clients(const struct dp *d)
{
    int count = 0;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        count += d->clients[i].used;
    return count;
}

void dp_hold(struct dp *d, uint32_t yes) { d->hold = yes != 0; }

/* Whole SENDs in a client's input. */
static int unsent(const struct dp_client *c)
{
    int count = 0;
    uint64_t at = (uint64_t)c->in_start + c->skip;
    while (at + DP_HEADER <= c->in_end) {
        const uint8_t *p = c->in + at;
        const uint64_t end = at + DP_HEADER + get32(p);
        if (end > c->in_end)
            break;
        count += p[4] == DP_F_SEND;
        at = end;
    }
    return count;
}

int dp_unsent(const struct dp *d)
{
    int count = (int)d->sends.count + (d->orphan.map != NULL);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used && !d->clients[i].closing)
            count += unsent(&d->clients[i]);
    return count;
}

int dp_take(struct dp *d, struct dp_take *out)
{
    while (d->take_count) {
        struct dp_client *c = &d->clients[d->take[d->take_head]];
        d->take_head = (d->take_head + 1) % DP_CLIENTS_MAX;
        d->take_count--;
        c->in_take = 0;
        if (c->taking) {
            uint8_t *p = c->in + c->in_start;
            const uint32_t size = get32(p);
            *out = (struct dp_take){
                .data = p + DP_HEADER, .size = size, .slot = c->slot, .type = p[4], .flags = p[5], .handle = get16(p + 6)};
            c->taking = 0;
            input_consumed(c, DP_HEADER + size); /* the bytes stay until the next read */
            set_add(&d->work, c->slot);
            return 1;
        }
        if (c->used && c->end && !c->end_told) {
            c->end_told = 1;
            *out = (struct dp_take){.slot = c->slot, .error = c->end_error};
            return 1;
        }
    }
    return 0;
}

/* ---- output ---- */
int dp_client_put(struct dp *d, uint32_t slot, uint8_t type, uint8_t flags, uint16_t handle, const uint8_t *body, uint32_t size,
                  uint64_t position, uint32_t level, uint32_t urgent)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (c->closing || c->broken)
        return -EPIPE;
    if (level >= ZJ_LEVELS || size > DP_FRAME_MAX)
        return -EINVAL;
    uint8_t head[DP_HEADER];
    put_header(head, size, type, flags, handle);
    if (urgent)
        return queue_urgent(d, c, head, sizeof head, body, size);
    if (queue_bytes(&c->q) > d->cfg.queue_bytes_max) {
        client_slow(d, c);
        return -EPIPE;
    }
    d->api->positions(d->core, d->positions); /* an instance may have begun since the last turn */
    return queue_append(d, c, head, sizeof head, body, size, level, position);
}

static void give(struct dp *d, const struct dp_member *to, struct dp_client *c, const struct zj_message *m, int own)
{
    uint8_t head[DP_HEADER + DP_MESSAGE_HEADER];
    if (queue_bytes(&c->q) > d->cfg.queue_bytes_max) {
        client_slow(d, c);
        return;
    }
    put_header(head, DP_MESSAGE_HEADER + m->size, DP_F_MESSAGE, own ? DP_MESSAGE_OWN : 0, to->handle);
    put64(head + DP_HEADER, m->clock);
    put16(head + DP_HEADER + 8, m->index);
    put16(head + DP_HEADER + 10, m->client);
    head[DP_HEADER + 12] = (uint8_t)(m->src + 1); /* stations count from 1 outside the core */
    memset(head + DP_HEADER + 13, 0, 3);
    if (queue_append(d, c, head, sizeof head, m->data, m->size, to->level, m->position))
        client_nomem(d, c);
    else
        c->delivered++;
}

void clients_deliver(struct dp *d, const struct zj_message *m)
{
    const int own_slot = m->src == d->cfg.self ? d->by_number[m->client] : -1;
    const struct dp_route *r = route_find(d, m->group);
    for (uint32_t i = 0; r && i < r->count; i++) {
        const struct dp_member *to = &r->members[i];
        struct dp_client *c = &d->clients[to->slot];
        const int own = own_slot == (int)to->slot;
        if (c->closing || c->broken || (own && to->no_self))
            continue;
        give(d, to, c, m, own);
    }
    if (own_slot >= 0) {
        struct dp_client *c = &d->clients[own_slot];
        if (!c->closing && queue_own(d, c, m->position))
            client_nomem(d, c);
    }
}

/* Positions have moved: release what they allow, then count. */
void clients_release(struct dp *d)
{
    d->api->positions(d->core, d->positions);
    SET_EACH(i, &d->marked)
        queue_release(d, &d->clients[i]);
    SET_EACH(i, &d->owning)
        queue_done(d, &d->clients[i]);
}

static void ask_writable(struct dp *d, struct dp_client *c, uint8_t yes)
{
    if (c->out_armed == yes)
        return;
    struct epoll_event event = {.events = CLIENT_EVENTS | (yes ? (uint32_t)EPOLLOUT : 0), .data.u64 = c->slot};
    if (epoll_ctl(d->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0)
        c->out_armed = yes;
}

void clients_write(struct dp *d, uint64_t now)
{
    SET_EACH(i, &d->dirty) {
        struct dp_client *c = &d->clients[i];
        if (!c->can_write)
            continue;
        const int result = queue_write(d, c);
        if (result == -EAGAIN) {
            c->can_write = 0;
            ask_writable(d, c, 1);
        } else {
            set_del(&d->dirty, i);
            if (result == 0) {
                ask_writable(d, c, 0);
            } else { /* it reads no more; what it has sent still counts, up to its end */
                c->broken = c->hung_up = c->can_read = 1;
                queue_clear(d, c);
                if (!c->closing && !c->end)
                    set_add(&d->work, i);
            }
            if (c->closing && !queue_writable(&c->q))
                client_close(d, c);
        }
        if (c->used && c->paused && !must_pause(d, c)) {
            c->paused = 0;
            if (!c->closing && !c->end)
                set_add(&d->work, i);
        }
    }
    SET_EACH(i, &d->closing)
        if (d->clients[i].close_at <= now)
            client_close(d, &d->clients[i]);
}

uint64_t clients_due(const struct dp *d)
{
    uint64_t due = UINT64_MAX;
    SET_EACH(i, &d->closing)
        due = min64(due, d->clients[i].close_at);
    return due;
}

void clients_tidy(struct dp *d, uint64_t now)
{
    if (now < d->tidy_at)
        return;
    d->tidy_at = now + DP_TIDY_NS;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used)
            queue_tidy(&d->clients[i]);
}

int dp_reset(struct dp *d, uint64_t undecided[DP_CLIENTS_MAX])
{
    d->group_waits = 0;
    d->sends.offered = 0;
    orphan_free(d);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) {
        struct dp_client *c = &d->clients[i];
        if (undecided)
            undecided[i] = 0;
        if (!c->used)
            continue;
        queue_forget(d, c);
        if (undecided)
            undecided[i] = c->sent - c->done[ZJ_PREACK];
        /* Counts go on behind the undecided ones, so that a number means the same message at both ends. */
        for (uint32_t level = 0; level < ZJ_LEVELS; level++)
            c->done[level] = c->sent;
        c->own[0].head = c->own[0].tail = c->own[1].head = c->own[1].tail = 0;
        c->offered = 0; /* pieces already sent belong to a message that nobody will see: all of it goes again */
        set_add(&d->owning, i);
    }
    memset(d->positions, 0, sizeof d->positions);
    return 0;
}

int dp_client_info(const struct dp *d, uint32_t slot, struct dp_client_info *out)
{
    const struct dp_client *c = client_at(d, slot);
    if (!c)
        return -ENOENT;
    *out = (struct dp_client_info){.queued_bytes = queue_bytes(&c->q), .unsent_bytes = c->in_end - c->in_start, .sent = c->sent,
                                   .delivered = c->delivered, .client = c->number, .closing = c->closing, .paused = c->paused};
    memcpy(out->done, c->done, sizeof out->done);
    return 0;
}
