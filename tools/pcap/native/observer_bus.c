/* The observer on a bus: the order is that of arrival, own frames among the others when they come back, and what is handed out
 * is what
 * is acknowledged. A place is instance << 32 plus the number in the instance, so that a capture which does not show an instance
 * from its
 * beginning, or has a hole in it, knows no place there: nothing is told from then on. */
#include "observer_int.h"

/* The log from `acked` on: what has been accepted, and may still go out in a reset. */
static struct entry *entry_at(const struct zo_observer *o, uint64_t k) { return &o->log[k & (o->log_cap - 1)]; }

static void raise(struct zo_observer *o, struct stream *s, uint32_t j, uint64_t v)
{
    if (v <= s->al[j])
        return;
    s->al[j] = v;
    levels_row(o, s);
}

static void lose_places(struct zo_observer *o)
{
    o->bus_blind = 1;
    o->exact = 0;
}

static void hand_out(struct zo_observer *o, const struct entry *e)
{
    struct slot *q = slot_of(e->s, e->seq);
    if (!q)
        return;
    q->clock = ((uint64_t)o->shown.instance << 32) + (o->position - o->base) + 1;
    o->covered = q->clock;
    q->ordered = q->acked = o->now;
    q->preack = q->preack == NO_TIME ? o->now : q->preack;
    order_take(o, e->s, q);
}

static void bus_levels(struct zo_observer *o)
{
    for (uint64_t k = o->preack; k < o->bus_tail && !o->bus_blind; k++, o->preack++) {
        const struct entry *e = entry_at(o, k);
        if (e->seq >= e->s->min_al)
            break;
        slot_at(e->s, e->seq)->preack = o->now;
    }
    while (o->acked < o->preack && !o->bus_blind) {
        const struct entry e = *entry_at(o, o->acked);
        if (e.seq >= e.s->acked)
            break;
        o->tail = o->acked; /* order_take puts the entry where it lies already */
        hand_out(o, &e);
        o->acked = o->tail;
    }
}

static void bus_accept(struct zo_observer *o, struct stream *s, struct slot *q)
{
    if (!o->bus_blind && !log_room(o))
        lose_places(o);
    if (o->bus_blind) {
        s->req++;
        return;
    }
    *entry_at(o, o->bus_tail++) = (struct entry){.s = s, .seq = s->req};
    q->accepted = o->now;
    s->req++;
    raise(o, s, s->src, s->req);
}

/* Reset: what not everybody has goes out of the log. */
static void truncate_to(struct zo_observer *o, const struct zp_pdu *p)
{
    uint64_t keep = o->acked;
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        uint64_t v = s ? widen(s->req, be32(p->ack + 4 * h)) : 0;
        if (s && v > s->req) /* it has what its capture has not shown */
            lose_places(o);
    }
    for (uint64_t k = o->acked; k < o->bus_tail; k++) {
        struct entry e = *entry_at(o, k);
        if (e.seq < widen(e.s->req, be32(p->ack + 4 * e.s->src))) {
            *entry_at(o, keep++) = e;
            continue;
        }
        struct slot *q = slot_of(e.s, e.seq);
        if (q) {
            row_transmission(o, e.s, q);
            q->state = EMPTY;
        }
    }
    o->bus_tail = keep;
    o->preack = o->acked;
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        uint64_t v = s ? widen(s->req, be32(p->ack + 4 * h)) : 0;
        if (s && v < s->req)
            s->req = v;
    }
}

/* All have seen that all have the same log: it is acknowledged as a whole. */
static void complete(struct zo_observer *o)
{
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        for (uint32_t j = 0; s && j < o->n; j++)
            s->al[j] = s->pack[j] = s->req;
        if (s)
            levels_row(o, s);
    }
    bus_levels(o);
}

static int lacks(const struct zo_observer *o, const struct zp_pdu *p)
{
    for (uint32_t h = 0; h < o->n; h++) {
        const struct stream *s = o->cur[h];
        if (s && widen(s->req, be32(p->ack + 4 * h)) > s->req)
            return 1;
    }
    return 0;
}

static void bus_merge(struct zo_observer *o, const struct zp_pdu *p)
{
    uint32_t j = p->src - 1u;
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (!s)
            continue;
        if (h != j)
            raise(o, s, j, widen(s->al[j], be32(p->ack + 4 * h)));
        uint64_t b = p->pack ? widen(s->pack[j], be32(p->pack + 4 * h)) : 0;
        if (b > s->pack[j]) {
            s->pack[j] = b;
            levels_row(o, s);
        }
    }
}

/* A PDU of the present instance; out: sent by the station. An own one is accepted when it comes back. */
void bus_take(struct zo_observer *o, const struct zp_pdu *p, struct stream *s, int out)
{
    int own = p->src == o->self + 1, reset = p->kind == ZJW_KIND_RST || p->kind == ZJW_KIND_RSTC;
    uint32_t epoch = (uint32_t)p->clock;

    if (!o->open || p->instance != o->view.instance || !o->cur[p->src - 1] ||
        o->cur[p->src - 1]->incarnation != p->incarnation)
        return;
    if (own && out && reset) {
        if (epoch == o->bus_epoch && !o->bus_lost) /* said again, to somebody who has not heard it */
            return;
        o->bus_epoch = epoch;
        truncate_to(o, p);
        o->bus_lost = p->kind == ZJW_KIND_RST;
        if (p->kind == ZJW_KIND_RSTC)
            complete(o);
        return;
    }
    if (reset || epoch != o->bus_epoch || o->bus_lost)
        return;
    if (own && out) { /* its own word: what it sends counts at once, the PDU itself when it comes back */
        if (p->kind != ZJW_KIND_DATA && lacks(o, p))
            lose_places(o);
        bus_merge(o, p);
        bus_levels(o);
        return;
    }
    uint64_t seq = s ? widen(s->req, p->seq) : 0;
    struct stream *from = o->cur[p->src - 1];
    if (p->kind == ZJW_KIND_DATA && s && seq < s->req)
        return;
    if (lacks(o, p) || widen(from->req, p->seq) > from->req) {
        o->bus_lost = 1; /* R1: nothing more is accepted before the reset */
        return;
    }
    struct slot *q = p->kind == ZJW_KIND_DATA && s ? slot_of(s, seq) : NULL;
    if (q && q->state == HELD && seq == s->req)
        bus_accept(o, s, q);
    if (!own)
        bus_merge(o, p);
    bus_levels(o);
}

/* An instance begins: PDUs that came before the station was seen in it, in the order in which they came. */
void bus_begin(struct zo_observer *o, int from_beginning)
{
    o->bus_lost = 0;
    o->bus_epoch = 0;
    o->bus_tail = o->tail;
    o->bus_blind = !from_beginning;
    for (;;) { /* bound: slots */
        struct stream *best = NULL;
        struct slot *first = NULL;
        for (uint32_t h = 0; h < o->n; h++) {
            struct stream *s = o->cur[h];
            struct slot *q = s ? slot_of(s, s->req) : NULL;
            if (q && q->state == HELD && q->received && (!first || q->arrival < first->arrival)) {
                first = q;
                best = s;
            }
        }
        if (!best)
            return;
        bus_accept(o, best, first);
    }
}
