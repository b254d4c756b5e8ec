/* View events on their way to their places in the main order, and the views that have begun there. */
#include "order.h"

void view_reset(zj_core *c)
{
    c->views.head = c->views.tail = c->views.count = 0;
    c->views.base = 0;
    c->views.joining = 0;
    c->views.join_clock = 0;
}

void view_begin(zj_core *c, uint32_t instance, uint32_t hash)
{
    c->order.digest = digest_view(c->views.count ? c->order.digest : DIGEST_START, hash);
    c->views.base = c->order.position;
    c->views.past[c->views.count++ % ZJ_VIEWS] =
        (struct view){.base = c->order.position, .seed = c->order.digest, .instance = instance, .hash = hash};
}

uint32_t views_known(const zj_core *c) { return c->views.count < ZJ_VIEWS ? c->views.count : ZJ_VIEWS; }

/* The k-th from the last one, which is 0. */
const struct view *view_back(const zj_core *c, uint32_t k) { return &c->views.past[(c->views.count - 1 - k) % ZJ_VIEWS]; }

const struct view *view_at(const zj_core *c, uint64_t position)
{
    for (uint32_t k = 0; k < views_known(c); k++)
        if (view_back(c, k)->base <= position)
            return view_back(c, k);
    return NULL;
}

const struct view *view_of(const zj_core *c, uint32_t hash)
{
    for (uint32_t k = 0; k < views_known(c); k++)
        if (view_back(c, k)->hash == hash)
            return view_back(c, k);
    return NULL;
}

int event_push(zj_core *c, const struct zj_commit *change, const uint32_t *incarnations, uint64_t left)
{
    if (c->views.tail - c->views.head == ZJ_EVENTS)
        return 0;
    struct event *e = &c->views.events[c->views.tail++ % ZJ_EVENTS];
    e->clock = change->place_clock;
    e->src = change->place_src;
    e->changed = change->joined | left;
    e->joined = change->joined != 0;
    e->instance = change->instance;
    e->hash = change->view;
    e->size = ZJW_SIZEOF_VIEW + 4 * c->n;
    put32(e->data + ZJW_VIEW_VINSTANCE, change->instance);
    put32(e->data + ZJW_VIEW_HASH, change->view);
    put64(e->data + ZJW_VIEW_OPERATIONAL, change->members);
    put64(e->data + ZJW_VIEW_JOINED, change->joined);
    put64(e->data + ZJW_VIEW_LEFT, left);
    for (uint32_t h = 0; h < c->n; h++)
        put32(e->data + ZJW_SIZEOF_VIEW + 4 * h, change->members >> h & 1 ? incarnations[h] : 0);
    c->progress++;
    return 1;
}

const struct event *event_next(const zj_core *c) { return &c->views.events[c->views.head % ZJ_EVENTS]; }

void view_take(zj_core *c, struct zj_message *out)
{
    const struct event *e = event_next(c);
    c->views.head++;
    for (uint32_t h = 0; h < c->n; h++) /* what of a message came before its source's life ended will not be completed */
        if (e->changed >> h & 1)
            assembly_forget(c, &c->st[h].parts[ZJ_TOTAL]);
    if (e->joined) /* a joiner knows nothing of the order before: all start the digest again */
        c->order.digest = DIGEST_START;
    view_begin(c, e->instance, e->hash);
    if (e->instance == c->release.instance && c->release.at)
        c->release.at = c->order.position;
    for (uint32_t h = 0; c->views.joining && h < c->n; h++)
        c->st[h].before_join = c->st[h].ordered;
    if (c->flush.view == e->hash) {
        c->flush.view = 0;
        c->flush.to = c->order.position + c->flush.count;
    }
    c->views.joining = 0;
    c->progress++;
    *out = (struct zj_message){.data = e->data, .size = e->size, .clock = e->clock, .position = c->order.position - 1,
                               .index = 0xffff, .src = (uint8_t)c->self, .type = ZJW_TYPE_VIEW, .view_src = (uint8_t)e->src};
}
