/* FIFO order: a message is delivered as soon as its PDU has been accepted, so in its source's order only. The papers call this the
 * order-preserving (OP) service. */
#include <stdlib.h>

#include "order.h"

struct fifo {
    struct entry *ring;       /* PDUs with such messages in the order of acceptance */
    struct entry *later;      /* of a later instance than the own one, rule 4a */
    uint64_t head, tail;      /* of the ring, whose length is the log's */
    uint32_t later_count;
    struct cursor cur;        /* in the PDU at the head */
    int silent;               /* it stands before the event with which this station joined */
};

static struct fifo *state(const zj_core *c) { return c->order.side[ZJ_FIFO]; }

static int create(zj_core *c)
{
    struct fifo *f = core_reserve(c, sizeof *f);
    if (!f)
        return -1;
    c->order.side[ZJ_FIFO] = f;
    f->ring = core_reserve(c, (c->order.mask + 1) * sizeof *f->ring);
    f->later = core_reserve(c, (c->order.mask + 1) * sizeof *f->later);
    return f->ring && f->later ? 0 : -1;
}

static void destroy(zj_core *c)
{
    struct fifo *f = state(c);
    if (!f)
        return;
    free(f->ring);
    free(f->later);
    free(f);
}

static void reset(zj_core *c)
{
    struct fifo *f = state(c);
    f->head = f->tail = 0;
    f->later_count = 0;
    f->cur.inside = 0;
}

static void ring_put(zj_core *c, struct fifo *f, struct entry e) { f->ring[f->tail++ & c->order.mask] = e; }

/* Every PDU in the rings holds a buffer of its stream, so they are never full. */
static void accepted(zj_core *c, uint32_t h, uint64_t seq)
{
    struct fifo *f = state(c);
    const struct entry e = {.seq = seq, .src = h};
    order_hold(c, h, seq, ZJ_FIFO);
    if (meta_of(c, &c->st[h], seq)->instance <= c->instance || faulty(c, ZJ_FAULT_FUTURE))
        ring_put(c, f, e);
    else
        f->later[f->later_count++] = e;
}

static void instance(zj_core *c)
{
    struct fifo *f = state(c);
    uint32_t left = 0;
    for (uint32_t i = 0; i < f->later_count; i++) { /* bound: buffers */
        const struct entry e = f->later[i];
        if (meta_of(c, &c->st[e.src], e.seq)->instance <= c->instance)
            ring_put(c, f, e);
        else
            f->later[left++] = e;
    }
    f->later_count = left;
}

/* A joiner gets its view before anything else. */
static int ready(const zj_core *c)
{
    const struct fifo *f = state(c);
    return f->cur.inside || (f->head != f->tail && !c->views.joining);
}

static void begin(zj_core *c, struct fifo *f)
{
    const struct entry *e = &f->ring[f->head & c->order.mask];
    const struct meta *m = meta_of(c, &c->st[e->src], e->seq);
    cursor_set(c, &f->cur, e->src, e->seq);
    /* Where the order is silent because this station joined later, so is this. */
    const uint64_t joined = c->views.join_clock;
    f->silent = joined && (m->clock < joined || (m->clock == joined && e->src <= c->views.join_src));
}

static void end(zj_core *c, struct fifo *f)
{
    const struct entry *e = &f->ring[f->head++ & c->order.mask];
    order_release(c, e->src, e->seq, ZJ_FIFO);
    f->cur.inside = 0;
    c->progress++;
}

static int next(zj_core *c, struct zj_message *out)
{
    struct fifo *f = state(c);
    while (ready(c)) { /* bound: messages in the accepted PDUs */
        if (!f->cur.inside)
            begin(c, f);
        if (f->cur.at == f->cur.end) {
            end(c, f);
            continue;
        }
        const uint8_t *fragment = message_read(&f->cur, out);
        if (f->cur.ordering != ZJ_FIFO)
            continue;
        if (fragment)
            switch (assemble(c, &c->st[f->cur.src].parts[ZJ_FIFO], fragment, out, 1)) {
            case PART: continue;
            case STARVED: message_unread(&f->cur, out); return 0;
            }
        if (f->silent)
            continue;
        out->stage = ZJ_ACCEPTED;
        out->position = ZJ_NEVER;
        c->count.messages_delivered++;
        c->count.message_bytes_delivered += out->size;
        return 1;
    }
    return 0;
}

/* Not on a bus: what has been accepted there may be taken back by a reset. */
const struct order_ops fifo_ops = {
    .create = create, .destroy = destroy, .reset = reset, .accepted = accepted, .instance = instance, .ready = ready, .next = next,
    .media = 1u << ZJ_SWITCHED,
};
