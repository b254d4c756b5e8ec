/* Routing: which clients take delivery of which group, and which groups need level ack. */
#include "internal.h"

#include <stdlib.h>

static uint32_t route_start(const struct dp *d, uint32_t group)
{
    return (uint32_t)(((uint64_t)group * 0x9e3779b97f4a7c15ull) >> 32) & (d->route_cap - 1);
}

struct dp_route *route_find(const struct dp *d, uint32_t group)
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
    if (r->count || r->need_ack || r->need_preack)
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

int dp_join(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t level, uint32_t no_self, uint32_t ordering)
{
    if (!client_live(d, slot))
        return -ENOENT;
    if (level >= ZJ_LEVELS || ordering > ZJW_ORDERING_TOKEN || (ordering == ZJ_FIFO && level != ZJ_ORDERED) ||
        (ordering >= ZJ_ORDERINGS && level > ZJ_PREACK))
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
    r->members[r->count++] = (struct dp_member){
        .slot = (uint16_t)slot, .handle = handle, .level = (uint8_t)level, .no_self = no_self != 0,
        .ordering = (uint8_t)ordering};
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

/* Messages to the group need this level, or do not any more. */
static int need(struct dp *d, uint32_t group, uint32_t level, uint32_t yes)
{
    struct dp_route *r = yes ? route_get(d, group) : route_find(d, group);
    if (!r)
        return yes ? -ENOMEM : 0;
    *(level == ZJ_ACK ? &r->need_ack : &r->need_preack) = yes != 0;
    route_drop_if_unused(d, r);
    return 0;
}

int dp_need_ack(struct dp *d, uint32_t group, uint32_t yes) { return need(d, group, ZJ_ACK, yes); }

int dp_need_preack(struct dp *d, uint32_t group, uint32_t yes) { return need(d, group, ZJ_PREACK, yes); }

void groups_leave_all(struct dp *d, uint32_t slot)
{
    for (uint32_t i = 0; i < d->route_cap;) {
        struct dp_route *r = d->routes[i];
        if (r && route_leave(r, slot) == 0 && r->count == 0 && !r->need_ack && !r->need_preack)
            route_drop_if_unused(d, r); /* another may have moved to this place: look again */
        else
            i++;
    }
}

void groups_forget_overlapping(struct dp *d)
{
    for (uint32_t i = 0; i < d->route_cap;) {
        struct dp_route *r = d->routes[i];
        uint32_t kept = 0;
        for (uint32_t k = 0; r && k < r->count; k++)
            if (r->members[k].ordering < ZJ_ORDERINGS)
                r->members[kept++] = r->members[k];
        if (r) {
            r->count = kept;
            r->need_preack = 0;
        }
        if (r && !r->count && !r->need_ack)
            route_drop_if_unused(d, r); /* another may have moved to this place: look again */
        else
            i++;
    }
}

/* An instance has ended: nothing given on acceptance waits for its place any more. */
void groups_reset(struct dp *d)
{
    for (uint32_t i = 0; i < d->route_cap; i++)
        if (d->routes[i])
            d->routes[i]->fifo_open = 0;
}

void groups_free(struct dp *d)
{
    for (uint32_t i = 0; i < d->route_cap; i++)
        if (d->routes[i]) {
            free(d->routes[i]->members);
            free(d->routes[i]);
        }
    free(d->routes);
}
