/* The main order as far as every way to make one shares it: its log, the PDU at its cursor, delivery, levels, the end of an instance.
 * Which PDU comes next, and what has reached a level, is total.c's or bus.c's. */
#include "order.h"

void log_reset(zj_core *c)
{
    c->order.position = c->order.preack = c->order.acked = c->order.need_ack = 0;
    memset(c->order.told, 0, sizeof c->order.told);
    c->order.digest = 0;
    c->order.cur.inside = 0;
    c->order.dup = c->order.swapped = 0;
    c->release.instance = c->release.joined_by = 0;
    c->release.at = c->release.before = 0;
}

void order_remove(zj_core *c, uint32_t instance)
{
    order_levels(c); /* by what the members of the instance that ends have said */
    if (faulty(c, ZJ_FAULT_EARLY_REMOVAL))
        return;
    c->release.before = released(c);
    c->release.at = ZJ_NEVER;
    c->release.instance = instance;
}

void order_close(zj_core *c)
{
    order_levels(c);
    if (released(c) < c->order.preack) { /* never on a bus */
        c->order.preack = released(c);
        c->order.acked = c->order.acked < c->order.preack ? c->order.acked : c->order.preack;
    }
    c->release.at = 0;
}

/* ---- what comes next ---- */

/* An entry stays until it has reached every level. Level ack is far behind only if no program waits for it: ack_lags() in confirm.c asks
 * for P vectors long before the log is full. One entry to spare: digests[preack - 1] is still needed. */
static int log_full(const zj_core *c)
{
    return c->order.position >= c->order.acked + c->order.mask; /* on a bus it is never above */
}

/* While a vote waits for the engine nothing is delivered but the rest of a PDU: it may say where this station's instance ends. */
static int held_by_vote(const zj_core *c) { return c->votes.head != c->votes.tail; }

int order_ready(zj_core *c)
{
    struct entry e;
    if (!c->is_open || c->fence.raised || assembly_starves(c))
        return 0;
    return c->order.cur.inside || (!held_by_vote(c) && (c->order.dup || beside_ready(c) ||
                                                        (!log_full(c) && c->order.main->choose(c, &e) != NOTHING)));
}

int order_left(const zj_core *c)
{
    struct entry e;
    return c->order.cur.inside ? c->order.position <= c->flush.to : beside_ready(c) || c->order.main->choose(c, &e) != NOTHING;
}

static void swap_once(zj_core *c, struct entry *e)
{
    if (c->order.swapped || c->order.position < 8)
        return;
    for (uint32_t k = 0; k < c->n; k++)
        if (k != e->src && c->st[k].ordered < c->st[k].req) {
            *e = (struct entry){.seq = c->st[k].ordered, .src = k};
            c->order.swapped = 1;
            return;
        }
}

static void begin(zj_core *c, uint32_t h, uint64_t seq)
{
    cursor_set(c, &c->order.cur, h, seq);
    c->order.silent = c->views.joining;
}

/* The PDU at the cursor takes the next position. */
static void place(zj_core *c, const struct stream *s, const struct meta *m)
{
    c->order.log[c->order.position & c->order.mask] = (struct entry){.seq = s->ordered, .src = c->order.cur.src};
    digest_add(c, c->order.cur.src, m);
    c->order.position++;
    if (m->flags & ZJW_FLAG_NEED_ACK)
        c->order.need_ack = c->order.position;
}

/* Begin the PDU that comes next, or take the view event that does. */
static int next_pdu(zj_core *c, struct zj_message *out)
{
    struct entry e = {0};
    if (c->order.dup) {
        c->order.dup = 2;
        begin(c, c->order.dup_src, c->order.dup_seq);
        return A_PDU;
    }
    order_levels(c);
    if (log_full(c))
        return NOTHING;
    switch (c->order.main->choose(c, &e)) {
    case NOTHING: return NOTHING;
    case A_VIEW: view_take(c, out); return A_VIEW;
    }
    if (faulty(c, ZJ_FAULT_SWAP))
        swap_once(c, &e);
    struct stream *s = &c->st[e.src];
    s->ordered = e.seq; /* as it is, unless a fault has broken the log of a bus */
    if (faulty(c, ZJ_FAULT_SKIP_GAP))
        while (s->ordered < s->req && !meta_of(c, s, s->ordered)->present)
            s->ordered++;
    if (s->ordered >= s->req)
        return NOTHING;
    begin(c, e.src, s->ordered);
    if (!c->order.silent) /* before the view in which this station joined only the fragments in it matter */
        place(c, s, meta_of(c, s, s->ordered));
    return A_PDU;
}

static void end_pdu(zj_core *c)
{
    c->order.cur.inside = 0;
    if (c->order.dup == 2) {
        c->order.dup = 0;
        return;
    }
    c->st[c->order.cur.src].ordered++;
    c->progress++;
    c->count.pdus_delivered++;
}

int zj_next(zj_core *c, struct zj_message *out)
{
    for (;;) { /* bound: messages in the accepted PDUs */
        if ((!c->is_open && !(c->flush.on && order_left(c))) || c->fence.raised || assembly_starves(c))
            return 0;
        if (!c->order.cur.inside) {
            if (held_by_vote(c))
                return 0;
            if (beside_next(c, out))
                return 1;
            if (c->assembly.starved) /* nothing is counted at its place before it has been delivered */
                return 0;
            switch (next_pdu(c, out)) {
            case A_VIEW:
                return 1;
            case NOTHING:
                order_levels(c);
                stream_free(c);
                digest_check(c);
                return 0;
            }
            c->order.key = c->order.main->key(c, get64(c->order.cur.pdu + ZJW_HEADER_CLOCK));
        }
        if (c->order.cur.at == c->order.cur.end) {
            end_pdu(c);
            continue;
        }
        const uint8_t *f = message_read(&c->order.cur, out);
        out->clock = c->order.key;
        out->position = c->order.position - 1;
        /* Of another order's nothing is kept here: they have been delivered on acceptance. */
        if (f)
            switch (assemble(c, &c->st[c->order.cur.src].parts[ZJ_TOTAL], f, out, out->stage == ZJ_DELIVERED)) {
            case PART: continue;
            case STARVED: message_unread(&c->order.cur, out); return 0;
            }
        if (c->order.silent)
            continue;
        if (out->stage == ZJ_PLACED) {
            out->data = NULL;
            return 1;
        }
        c->count.messages_delivered++;
        c->count.message_bytes_delivered += out->size;
        return 1;
    }
}

/* ---- levels ---- */

int levels_told(const zj_core *c)
{
    uint64_t now[ZJ_LEVELS];
    c->order.main->positions(c, now);
    return !memcmp(now, c->order.told, sizeof now);
}

void zj_positions(zj_core *c, uint64_t out[ZJ_LEVELS])
{
    order_levels(c);
    c->order.main->positions(c, c->order.told);
    memcpy(out, c->order.told, sizeof c->order.told);
}

/* ---- the end of an instance ---- */

void zj_reached(zj_core *c, uint32_t *view, uint64_t *count)
{
    order_levels(c);
    const struct view *v = c->release.joined_by ? NULL : view_at(c, c->order.main->reached(c));
    *view = v ? v->hash : 0;
    *count = v ? c->order.main->reached(c) - v->base : 0;
}

void zj_flush(zj_core *c, uint32_t view, uint64_t count)
{
    if (c->is_open || c->fence.raised || faulty(c, ZJ_FAULT_NO_FLUSH))
        return;
    const struct view *v = view_of(c, view);
    c->flush.on = 1;
    c->release.joined_by = 0;
    c->flush.view = 0;
    c->flush.to = v ? v->base + count : 0;
    for (uint32_t i = c->views.head; !v && i != c->views.tail; i++) /* bound: events */
        if (c->views.events[i % ZJ_EVENTS].hash == view) {
            c->flush.view = view;
            c->flush.count = count;
            c->flush.to = ZJ_NEVER; /* all that stands before it */
        }
    order_levels(c);
}

int zj_flushing(const zj_core *c) { return c->flush.on; }

int zj_flushed(const zj_core *c)
{
    if (!c->flush.on || c->fence.raised)
        return 1;
    return !order_left(c) && levels_told(c);
}
