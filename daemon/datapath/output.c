/* Output: messages to the queues of the clients, positions, writing. */
#include "internal.h"

#include <sys/epoll.h>

/* 1: the client has been cut off, because its user's programs, or those of all users, take too much memory. */
static int cut_off(struct dp *d, struct dp_client *c, int error)
{
    if (error != -EDQUOT && error != -EUSERS)
        return 0;
    client_many(d, c, error == -EDQUOT ? "clients.queue_bytes_per_user" : "clients.queue_bytes_users");
    return 1;
}

int dp_client_put(struct dp *d, uint32_t slot, uint8_t type, uint8_t flags, uint16_t handle, const uint8_t *body, uint32_t size,
                  uint64_t position, uint32_t level, uint32_t urgent)
{
    struct dp_client *c = client_live(d, slot);
    if (!c)
        return -ENOENT;
    if (c->closing || c->broken)
        return -EPIPE;
    if (level >= ZJ_LEVELS + ZJ_MULTI_ORDERS || size > DP_FRAME_MAX)
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
    const int error = queue_append(d, c, head, sizeof head, body, size, level, position);
    return cut_off(d, c, error) ? -EPIPE : error;
}

void client_give(struct dp *d, const struct dp_member *to, struct dp_client *c, const struct zj_message *m, int own)
{
    uint8_t head[DP_HEADER + DP_MESSAGE];
    if (queue_bytes(&c->q) > d->cfg.queue_bytes_max) {
        client_slow(d, c);
        return;
    }
    put_header(head, DP_MESSAGE + m->size, DP_F_MESSAGE, own ? DP_MESSAGE_OWN : 0, to->handle);
    uint8_t *key = head + DP_HEADER;
    put64(key + DP_MESSAGE_CLOCK, m->clock);
    put16(key + DP_MESSAGE_INDEX, m->index);
    put16(key + DP_MESSAGE_CLIENT, m->client);
    key[DP_MESSAGE_STATION] = (uint8_t)(m->src + 1); /* stations count from 1 outside the core */
    memset(key + DP_MESSAGE_PAD, 0, DP_MESSAGE - DP_MESSAGE_PAD);
    const int error = queue_append(d, c, head, sizeof head, m->data, m->size, to->level, m->position);
    if (error) {
        if (!cut_off(d, c, error))
            client_no_memory(d, c);
        return;
    }
    c->delivered++;
    if (to->level == ZJ_ORDERED && m->stage == ZJ_DELIVERED)
        c->ordered_end = m->position + 1;
}

static void count_own(struct dp *d, const struct zj_message *m, int own_slot)
{
    struct dp_client *c = &d->clients[own_slot];
    if (!c->closing && queue_count_own(d, c, m->position))
        client_no_memory(d, c);
}

/* 1 if the place (clock, src) is not before the last one given on acceptance. */
static int fifo_reaches(const struct dp_route *r, const struct zj_message *m)
{
    return !r->fifo_open || m->clock > r->fifo_clock || (m->clock == r->fifo_clock && m->src >= r->fifo_src);
}

void clients_deliver(struct dp *d, const struct zj_message *m)
{
    const int own_slot = m->src == d->cfg.self ? d->by_number[m->client] : -1;
    const struct dp_route *r = route_find(d, m->group);
    for (uint32_t i = 0; r && i < r->count; i++) {
        const struct dp_member *to = &r->members[i];
        struct dp_client *c = &d->clients[to->slot];
        const int own = own_slot == (int)to->slot;
        if (c->closing || c->broken || (own && to->no_self) || to->ordering >= ZJ_ORDERINGS)
            continue;
        client_give(d, to, c, m, own);
    }
    if (own_slot >= 0)
        count_own(d, m, own_slot);
}

/* A message in FIFO order has been accepted: its delivery. Its place, and with it its counts, come later. Members
 * of a group in total order get none: for them it would stand anywhere. */
void clients_accept(struct dp *d, const struct zj_message *m)
{
    const int own_slot = m->src == d->cfg.self ? d->by_number[m->client] : -1;
    struct dp_route *r = route_find(d, m->group);
    for (uint32_t i = 0; r && i < r->count; i++) {
        const struct dp_member *to = &r->members[i];
        struct dp_client *c = &d->clients[to->slot];
        const int own = own_slot == (int)to->slot;
        if (to->ordering != ZJ_FIFO || c->closing || c->broken || (own && to->no_self))
            continue;
        client_give(d, to, c, m, own);
        if (fifo_reaches(r, m)) {
            r->fifo_open = 1;
            r->fifo_placed = 0;
            r->fifo_clock = m->clock;
            r->fifo_src = m->src;
        }
    }
}

/* The place in the total order of a message that has been delivered on acceptance. */
void clients_placed(struct dp *d, const struct zj_message *m)
{
    const int own_slot = m->src == d->cfg.self ? d->by_number[m->client] : -1;
    struct dp_route *r = route_find(d, m->group);
    if (r && r->fifo_open && fifo_reaches(r, m)) {
        r->fifo_placed = 1;
        r->fifo_position = m->position;
    }
    if (own_slot >= 0)
        count_own(d, m, own_slot);
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
    struct epoll_event event = {.events = DP_CLIENT_EVENTS | (yes ? (uint32_t)EPOLLOUT : 0), .data.u64 = c->slot};
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
        if (c->used && c->paused && !input_must_pause(d, c)) {
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

