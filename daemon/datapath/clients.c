/* Clients: their slots, and what Python does with them and takes from them. */
#include "internal.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SOCKET_BUFFER_BYTES (256 * 1024) /* one batch of delivery; it comes on top of queue_bytes_max */

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
    c->in_take = c->more = 0;
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

void clients_free(struct dp *d)
{
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used) {
            d->clients[i].removed = 1;
            client_close(d, &d->clients[i]);
        }
    groups_free(d);
    overlap_free(d);
    input_free(d);
    free(d->group_data);
}

/* Close the oldest of those cut off until at most `most` are left, with at most `bytes` queued together. */
static void last_words_limit(struct dp *d, uint32_t most, uint64_t bytes)
{
    for (;;) {
        struct dp_client *oldest = NULL;
        uint32_t count = 0;
        uint64_t queued = 0;
        SET_EACH(i, &d->closing) {
            struct dp_client *c = &d->clients[i];
            if (!c->last_words)
                continue;
            count++;
            queued += queue_bytes(&c->q);
            if (!oldest || c->close_at < oldest->close_at)
                oldest = c;
        }
        if (!oldest || (count <= most && queued <= bytes))
            return;
        client_close(d, oldest);
    }
}

static uint32_t slot_find(const struct dp *d)
{
    uint32_t i = 0;
    while (i < DP_CLIENTS_MAX && d->clients[i].used)
        i++;
    return i;
}

int dp_client_add(struct dp *d, int fd, uint16_t client, uint32_t *slot)
{
    if (d->by_number[client] >= 0)
        return -EEXIST;
    uint32_t i = slot_find(d);
    if (i == DP_CLIENTS_MAX) { /* rather a new client than the last words to an old one */
        last_words_limit(d, 0, 0);
        i = slot_find(d);
    }
    if (i == DP_CLIENTS_MAX)
        return -EUSERS;
    struct dp_client *c = &d->clients[i];
    uint8_t *in = dp_map(DP_INPUT_BYTES);
    struct dp_bound *handles = calloc(DP_HANDLES_MAX, sizeof *handles);
    struct epoll_event event = {.events = DP_CLIENT_EVENTS, .data.u64 = i};
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

int dp_client_bound(struct dp *d, uint32_t slot, uint32_t user)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (c->bounded)
        return -EALREADY;
    c->bounded = 1;
    c->user = user;
    c->place = rates_enter(d, user);
    return 0;
}

void dp_user_limits(struct dp *d, uint64_t queue_bytes, uint64_t input_bytes, uint64_t queue_bytes_all)
{
    d->users_queue_max = queue_bytes_all;
    d->user_queue_max = queue_bytes;
    d->user_input_max = input_bytes;
}

int dp_client_remove(struct dp *d, uint32_t slot, int hard, uint64_t deadline_ns)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    groups_leave_all(d, slot);
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
    client_start_closing(d, c, close_at);
    return 0;
}

int dp_client_cut_off(struct dp *d, uint32_t slot, uint64_t deadline_ns)
{
    const int error = dp_client_remove(d, slot, 0, deadline_ns);
    if (error)
        return error;
    struct dp_client *c = &d->clients[slot];
    if (!c->used) /* closed at once */
        return 0;
    c->last_words = 1;
    c->close_at = dp_now() + deadline_ns;
    dp_unmap(c->in, c->in_cap);
    free(c->handles);
    c->in = NULL;
    c->handles = NULL;
    c->in_cap = c->in_start = c->in_end = 0;
    queue_shrink(c);
    last_words_limit(d, DP_LAST_WORDS_MAX, d->queue_cap_max);
    return 0;
}

int dp_handle(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t may_send, uint32_t ordering, uint32_t direct)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (handle == 0 || handle >= DP_HANDLES_MAX || may_send > DP_MAY_WAIT || ordering > ZJW_ORDERING_TOKEN)
        return -EINVAL;
    c->handles[handle] = (struct dp_bound){.group = group, .bound = 1, .may_send = (uint8_t)may_send, .ordering = (uint8_t)ordering,
                                           .direct = direct && ordering >= ZJ_ORDERINGS};
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

/* ---- for Python ---- */
int dp_refuse(struct dp *d, uint32_t slot, const char *code, const char *text, uint16_t handle)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    client_refuse(d, c, code, text, handle);
    return 0;
}

int dp_client_hold(struct dp *d, uint32_t slot, uint32_t yes)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    c->held = yes != 0;
    if (yes && !c->taking && !c->end)
        take_purge(d, c);
    if (!yes && !c->closing && !c->end)
        set_add(&d->work, slot);
    return 0;
}

/* A message that Python is given may be followed by others, which it takes in the same turn: looked for when the client's turn comes
 * again, for what Python makes of one decides whether it wants the next. */
int dp_take(struct dp *d, struct dp_take *out)
{
    const uint64_t now = d->take_count ? dp_now() : 0;
    while (d->take_count) {
        struct dp_client *c = &d->clients[d->take[d->take_head]];
        d->take_head = (d->take_head + 1) % DP_CLIENTS_MAX;
        d->take_count--;
        c->in_take = 0;
        if (c->more && input_has_message(d, c, now))
            c->taking = 1;
        c->more = 0;
        if (c->taking) {
            uint8_t *p = c->in + c->in_start;
            const uint32_t size = frame_size(p);
            *out = (struct dp_take){
                .data = p + DP_HEADER, .size = size, .slot = c->slot, .type = frame_type(p), .flags = frame_flags(p),
                .handle = frame_handle(p)};
            c->taking = 0;
            sending_taken(d, c);
            input_consume(c, DP_HEADER + size); /* the bytes stay until the next read */
            set_add(&d->work, c->slot);
            c->more = (uint8_t)is_message(out->type);
            if (c->more) {
                rates_count(d, c, size, now);
                take_push(d, c);
            }
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

int dp_clients(const struct dp *d)
{
    int count = 0;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        count += d->clients[i].used && !d->clients[i].last_words;
    return count;
}

/* 1: the client has got something that preack has not reached. */
static uint32_t is_unsafe(const struct dp *d, const struct dp_client *c)
{
    if (c->ordered_end > d->positions[ZJ_PREACK] || overlap_is_unsafe(d, c))
        return 1;
    for (uint32_t i = 0; i < d->route_cap; i++) {
        const struct dp_route *r = d->routes[i];
        if (!r || !r->fifo_open || (r->fifo_placed && r->fifo_position < d->positions[ZJ_PREACK]))
            continue;
        for (uint32_t k = 0; k < r->count; k++)
            if (r->members[k].slot == c->slot && r->members[k].ordering == ZJ_FIFO)
                return 1;
    }
    return 0;
}

static struct dp_lost what_is_lost(const struct dp *d, const struct dp_client *c, uint64_t forgotten)
{
    return (struct dp_lost){.undecided = c->sent - c->done[ZJ_PREACK], .forgotten = forgotten, .unsafe = is_unsafe(d, c)};
}

int dp_lost(struct dp *d, struct dp_lost lost[DP_CLIENTS_MAX])
{
    clients_release(d);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) {
        const struct dp_client *c = &d->clients[i];
        lost[i] = c->used ? what_is_lost(d, c, queue_embargoed(d, c)) : (struct dp_lost){0};
    }
    return 0;
}

int dp_reset(struct dp *d, struct dp_lost lost[DP_CLIENTS_MAX])
{
    d->group_waits = 0;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) {
        struct dp_client *c = &d->clients[i];
        if (lost)
            lost[i] = (struct dp_lost){0};
        if (!c->used)
            continue;
        const uint64_t forgotten = queue_forget(d, c);
        if (lost)
            lost[i] = what_is_lost(d, c, forgotten);
        c->ordered_end = 0;
        /* Counts go on behind the undecided ones, so that a number means the same message at both ends. */
        queue_forget_own(d, c);
    }
    groups_reset(d);
    dp_multi_clear(d);
    input_reset(d);
    memset(d->positions, 0, sizeof d->positions);
    return 0;
}

int dp_client_info(const struct dp *d, uint32_t slot, struct dp_client_info *out)
{
    if (!client_used(d, slot))
        return -ENOENT;
    const struct dp_client *c = &d->clients[slot];
    *out = (struct dp_client_info){.queued_bytes = queue_bytes(&c->q), .unsent_bytes = c->in_end - c->in_start, .sent = c->sent,
                                   .delivered = c->delivered, .client = c->number, .closing = c->closing, .paused = c->paused,
                                   .throttled = (uint8_t)set_has(&d->late, slot)};
    memcpy(out->done, c->done, sizeof out->done);
    return 0;
}
