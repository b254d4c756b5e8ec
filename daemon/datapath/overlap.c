/* Groups that overlap (orders abcast and token): what links bring goes to the machine in proto/core/multi, what comes of it to the
 * programs and to links. While an era is not open, and without a quorum, Python does that, and delivers by the same functions here;
 * tests/model/multicast/delivering.py says them in Python. */
#include "internal.h"

#include <stdlib.h>

/* ---- the places of level preack
 * What an order delivers has its places in a line of its own: messages, and the views that begin an era. Level preack has passed a
 * message when it is released, and a view when the eras before are closed, each behind what stands before it. */

static void line_push(struct dp_line *l, uint64_t item)
{
    if (l->tail - l->head == l->cap) {
        const uint32_t cap = l->cap ? 2 * l->cap : 64;
        uint64_t *items = malloc(cap * sizeof *items);
        if (!items)
            abort(); /* as the machine does without memory */
        for (uint64_t at = l->head; at < l->tail; at++)
            items[at & (cap - 1u)] = l->items[at & (l->cap - 1u)];
        free(l->items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->tail++ & (l->cap - 1u)] = item;
}

static void let_go(struct dp *d, uint32_t order)
{
    struct dp_line *l = &d->multi.line[order];
    for (; l->head < l->tail; l->head++) {
        const uint64_t era = l->items[l->head & (l->cap - 1u)]; /* 0: a message */
        if (era ? era > d->multi.settled : !l->released)
            break;
        l->released -= !era;
        l->messages -= !era;
    }
    d->positions[ZJ_LEVELS + order] = l->head;
}

int dp_multi_release(struct dp *d, uint32_t order)
{
    if (order >= ZJ_MULTI_ORDERS || d->multi.line[order].released == d->multi.line[order].messages)
        return -EINVAL;
    d->multi.line[order].released++;
    let_go(d, order);
    return 0;
}

uint64_t dp_multi_view(struct dp *d, uint32_t order, uint64_t era)
{
    if (order >= ZJ_MULTI_ORDERS)
        return UINT64_MAX;
    const uint64_t place = d->multi.line[order].tail;
    line_push(&d->multi.line[order], era);
    let_go(d, order);
    return place;
}

void dp_multi_settled(struct dp *d, uint64_t era)
{
    d->multi.settled = era;
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++)
        let_go(d, order);
}

/* ---- delivery */

/* The client has a lower handle among the groups of a message: it gets it there. */
static int has_lower(struct dp_route *const *routes, uint32_t count, const struct dp_member *to)
{
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t i = 0; routes[k] && i < routes[k]->count; i++) {
            const struct dp_member *other = &routes[k]->members[i];
            if (other->slot == to->slot && other->ordering >= ZJ_ORDERINGS && other->handle < to->handle)
                return 1;
        }
    return 0;
}

static void deliver(struct dp *d, const struct zj_multi_event *e)
{
    struct dp_line *l = &d->multi.line[e->order];
    const struct zj_message m = {.data = e->data, .size = e->size, .clock = e->time, .position = l->tail, .client = e->client,
                                 .index = (uint16_t)e->number, .src = (uint8_t)(e->origin - 1u), .stage = ZJ_ACCEPTED};
    const int is_here = m.src == d->cfg.self, own_slot = is_here ? d->by_number[e->client] : -1;
    struct dp_route *routes[ZJ_MULTI_GROUPS];
    for (uint32_t k = 0; k < e->count; k++)
        routes[k] = route_find(d, e->groups[k]);
    line_push(l, 0);
    l->messages++;
    for (uint32_t k = 0; k < e->count; k++)
        for (uint32_t i = 0; routes[k] && i < routes[k]->count; i++) {
            struct dp_member to = routes[k]->members[i];
            struct dp_client *c = &d->clients[to.slot];
            const int own = own_slot == (int)to.slot;
            if (to.ordering < ZJ_ORDERINGS || c->closing || c->broken || (e->count > 1 && has_lower(routes, e->count, &to)))
                continue;
            if (own && to.no_self)
                continue;
            if (to.level != ZJ_ORDERED)
                to.level = (uint8_t)(ZJ_LEVELS + e->order);
            client_give(d, &to, c, &m, own);
        }
    if (is_here)
        multi_own_done(d, e->number, ZJ_ORDERED);
}

int dp_multi_deliver(struct dp *d, const struct dp_multi_message *m)
{
    if (m->order >= ZJ_MULTI_ORDERS || m->count > ZJ_MULTI_GROUPS || m->origin < 1 || m->origin > ZJW_STATIONS_MAX)
        return -EINVAL;
    struct zj_multi_event e = {.time = m->time, .data = m->data, .size = m->size, .number = m->number, .client = m->client,
                               .origin = m->origin, .order = m->order, .count = m->count};
    memcpy(e.groups, m->groups, m->count * sizeof *e.groups);
    deliver(d, &e);
    return 0;
}

void dp_multi_finished(struct dp *d, uint32_t number) { multi_own_done(d, number, ZJ_PREACK); }

/* 1: the client has got something that others may not have. */
int overlap_is_unsafe(const struct dp *d, const struct dp_client *c)
{
    if (!d->multi.line[0].messages && !d->multi.line[1].messages)
        return 0;
    for (uint32_t i = 0; i < d->route_cap; i++)
        for (uint32_t k = 0; d->routes[i] && k < d->routes[i]->count; k++) {
            const struct dp_member *m = &d->routes[i]->members[k];
            if (m->slot == c->slot && m->ordering >= ZJ_ORDERINGS && m->level == ZJ_ORDERED)
                return 1;
        }
    return 0;
}

/* ---- the machine */

int dp_multi_drive(struct dp *d, const struct zj_multi_api *api, struct zj_multi *machine, uint32_t sends, uint64_t bytes_max)
{
    if (machine && (!api || api->version != ZJ_MULTI_API_VERSION || api->size != sizeof *api))
        return -EINVAL;
    d->multi.api = api;
    d->multi.machine = machine;
    d->multi.sends = machine && sends;
    d->multi.bytes_max = bytes_max;
    d->multi.unlinked = 0;
    return 0;
}

static void foreign_keep(struct dp *d, uint32_t source, uint32_t incarnation, const struct zj_message *r)
{
    struct dp_multi *x = &d->multi;
    if (x->foreign_count == x->foreign_cap) {
        const uint32_t cap = x->foreign_cap ? 2 * x->foreign_cap : 16;
        struct dp_record *grown = realloc(x->foreign, cap * sizeof *grown);
        if (!grown)
            abort();
        x->foreign = grown;
        x->foreign_cap = cap;
    }
    uint8_t *data = malloc(r->size ? r->size : 1);
    if (!data)
        abort();
    memcpy(data, r->data, r->size);
    x->foreign[x->foreign_count++] = (struct dp_record){.data = data, .size = r->size, .group = r->group, .incarnation = incarnation,
                                                        .client = r->client, .source = (uint8_t)source, .type = r->type};
}

int dp_multi_foreign(struct dp *d, struct dp_record *out)
{
    struct dp_multi *x = &d->multi;
    if (x->foreign_taken) /* that of the last call */
        free(x->foreign[x->foreign_taken - 1].data);
    if (x->foreign_taken == x->foreign_count) {
        x->foreign_taken = x->foreign_count = 0;
        return 0;
    }
    *out = x->foreign[x->foreign_taken++];
    return 1;
}

static uint32_t take(struct dp *d, uint32_t other)
{
    struct dp_pair *p = &d->pairs.at[other];
    struct zj_message foreign;
    uint64_t positions[ZJ_LEVELS];
    if (!p->queue)
        return 0;
    while (d->multi.api->take(d->multi.machine, p->core, p->index, other + 1, p->incarnation, &foreign, &p->malformed))
        foreign_keep(d, other + 1, p->incarnation, &foreign);
    d->api->positions(p->core, positions);
    return 1;
}

static uint32_t carry_out_events(struct dp *d)
{
    struct dp_multi *x = &d->multi;
    uint32_t count;
    const struct zj_multi_event *e = x->api->events(x->machine, &count);
    for (uint32_t k = 0; k < count; k++, e++) {
        if (e->kind == ZJ_MULTI_DELIVER) {
            deliver(d, e);
        } else if (e->kind == ZJ_MULTI_RELEASE) {
            (void)dp_multi_release(d, e->order);
        } else {
            dp_multi_finished(d, e->number);
            x->has_room = 1;
        }
    }
    x->api->clear(x->machine);
    return count;
}

/* Records to the queues of their links, and from these to the cores. */
static void pass_on(struct dp *d, uint64_t now, uint64_t pumped)
{
    struct dp_multi *x = &d->multi;
    uint64_t ready = x->api->ready(x->machine);
    x->unlinked = ready & ~d->pairs.open;
    ready &= d->pairs.open;
    for (uint64_t rest = ready; rest; rest &= rest - 1) {
        const uint32_t other = (uint32_t)__builtin_ctzll(rest);
        x->api->flush(x->machine, other + 1, d->pairs.at[other].queue);
    }
    for (uint64_t rest = (ready | pumped) & d->pairs.open; rest; rest &= rest - 1) {
        struct dp_pair *p = &d->pairs.at[__builtin_ctzll(rest)];
        if (!p->queue)
            continue;
        (void)x->api->pump(p->queue, p->core, now); /* a record that no link takes has been refused by multi_send and its like */
        p->waits = x->api->count(p->queue) != 0;
    }
}

static uint32_t go(struct dp *d, uint64_t now, uint64_t from)
{
    struct dp_multi *x = &d->multi;
    uint32_t work = 0;
    for (uint64_t rest = from & d->pairs.open; rest; rest &= rest - 1)
        work += take(d, (uint32_t)__builtin_ctzll(rest));
    d->pairs.news &= ~from;
    x->has_sent = 0;
    x->api->after(x->machine, now);
    work += carry_out_events(d);
    pass_on(d, now, from);
    return work;
}

uint64_t dp_multi_go(struct dp *d)
{
    if (!d->multi.machine)
        return 0;
    go(d, dp_now(), d->pairs.open);
    return d->multi.unlinked;
}

uint64_t overlap_due(const struct dp *d) { return d->multi.machine ? d->multi.api->due(d->multi.machine) : UINT64_MAX; }

uint32_t overlap_turn(struct dp *d, uint64_t now, uint32_t *more)
{
    struct dp_multi *x = &d->multi;
    if (!x->machine || !(d->pairs.news || x->has_sent || overlap_due(d) <= now))
        return 0;
    const uint32_t work = go(d, now, d->pairs.news);
    if (x->has_room && x->blocked) /* a message that has waited for that */
        *more = 1;
    if (x->sends)
        x->has_room = 0; /* else Python is told */
    return work + 1;
}

static void foreign_free(struct dp *d)
{
    struct dp_multi *x = &d->multi;
    for (uint32_t k = x->foreign_taken ? x->foreign_taken - 1 : 0; k < x->foreign_count; k++)
        free(x->foreign[k].data);
    x->foreign_taken = x->foreign_count = 0;
}

void dp_multi_clear(struct dp *d)
{
    struct dp_multi *x = &d->multi;
    sending_reset(d);
    groups_forget_overlapping(d);
    foreign_free(d);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        struct dp_line *l = &x->line[order];
        l->head = l->tail = l->released = l->messages = 0;
        d->positions[ZJ_LEVELS + order] = 0;
    }
    x->settled = x->unlinked = 0;
    x->machine = NULL;
    x->sends = x->has_sent = x->has_room = x->blocked = 0;
}

void overlap_free(struct dp *d)
{
    foreign_free(d);
    free(d->multi.foreign);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++)
        free(d->multi.line[order].items);
}
