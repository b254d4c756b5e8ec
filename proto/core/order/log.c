/* The main order as far as every way to make one shares it: its log, the PDU at its cursor, delivery, levels, the end of an instance.
 * Which PDU comes next, and what has reached a level, is total.c's or bus.c's. */
#include "order.h"

void log_reset(zj_core *c)
{
    c->position = c->preack = c->acked = c->need_position = 0;
    memset(c->said_positions, 0, sizeof c->said_positions);
    c->digest = 0;
    c->cur.inside = 0;
    c->dup = c->swapped = 0;
    c->removal = c->let_in_by = 0;
    c->removal_at = c->released_before = 0;
}

void order_remove(zj_core *c, uint32_t instance)
{
    order_levels(c); /* by what the members of the instance that ends have said */
    if (faulty(c, ZJ_FAULT_EARLY_REMOVAL))
        return;
    c->released_before = released(c);
    c->removal_at = ZJ_NEVER;
    c->removal = instance;
}

void order_close(zj_core *c)
{
    order_levels(c);
    if (released(c) < c->preack) { /* never on a bus */
        c->preack = released(c);
        c->acked = c->acked < c->preack ? c->acked : c->preack;
    }
    c->removal_at = 0;
}

/* ---- what comes next ---- */

/* An entry stays until it has reached every level. Level ack is far behind only if nobody waits for it: ack_lags() in confirm.c asks
 * for P vectors long before the log is full. One entry to spare: digests[preack - 1] is still needed. */
static int log_full(const zj_core *c)
{
    return c->position >= c->acked + c->log_mask; /* on a bus it is never above */
}

/* While a vote waits for the engine nothing is delivered but the rest of a PDU: it may say where this station's instance ends. */
static int held_by_vote(const zj_core *c) { return c->vote_head != c->vote_tail; }

int order_ready(zj_core *c)
{
    uint32_t h;
    if (!c->is_open || c->fenced || assembly_starves(c))
        return 0;
    return c->cur.inside || (!held_by_vote(c) && (c->dup || beside_ready(c) || (!log_full(c) && c->main->choose(c, &h) != NOTHING)));
}

int order_left(const zj_core *c)
{
    uint32_t h;
    return c->cur.inside ? c->position <= c->flush_to : beside_ready(c) || c->main->choose(c, &h) != NOTHING;
}

static void swap_once(zj_core *c, uint32_t *h)
{
    if (c->swapped || c->position < 8)
        return;
    for (uint32_t k = 0; k < c->n; k++)
        if (k != *h && c->st[k].ordered < c->st[k].req) {
            *h = k;
            c->swapped = 1;
            return;
        }
}

static void begin(zj_core *c, uint32_t h, uint64_t seq)
{
    cursor_set(c, &c->cur, h, seq);
    c->silent = c->joining;
}

/* The PDU at the cursor takes the next position. */
static void place(zj_core *c, const struct stream *s, const struct meta *m)
{
    c->log[c->position & c->log_mask] = (struct entry){.seq = s->ordered, .src = c->cur.src};
    digest_add(c, c->cur.src, s, m);
    c->position++;
    if (m->flags & ZJW_FLAG_NEED_ACK)
        c->need_position = c->position;
}

/* Begin the PDU that comes next, or take the view event that does. */
static int next_pdu(zj_core *c, struct zj_message *out)
{
    uint32_t h = 0;
    if (c->dup) {
        c->dup = 2;
        begin(c, c->dup_src, c->dup_seq);
        return A_PDU;
    }
    order_levels(c);
    if (log_full(c))
        return NOTHING;
    switch (c->main->choose(c, &h)) {
    case NOTHING: return NOTHING;
    case A_VIEW: view_take(c, out); return A_VIEW;
    }
    if (faulty(c, ZJ_FAULT_SWAP))
        swap_once(c, &h);
    struct stream *s = &c->st[h];
    if (faulty(c, ZJ_FAULT_SKIP_GAP))
        while (s->ordered < s->req && !meta_of(c, s, s->ordered)->present)
            s->ordered++;
    if (s->ordered >= s->req)
        return NOTHING;
    begin(c, h, s->ordered);
    if (!c->silent) /* before the view in which this station was let in only the fragments in it matter */
        place(c, s, meta_of(c, s, s->ordered));
    return A_PDU;
}

static void end_pdu(zj_core *c)
{
    c->cur.inside = 0;
    if (c->dup == 2) {
        c->dup = 0;
        return;
    }
    c->st[c->cur.src].ordered++;
    c->progress++;
    c->count.pdus_delivered++;
}

int zj_next(zj_core *c, struct zj_message *out)
{
    for (;;) { /* bound: messages in the accepted PDUs */
        if ((!c->is_open && !(c->flushing && order_left(c))) || c->fenced || assembly_starves(c))
            return 0;
        if (!c->cur.inside) {
            if (held_by_vote(c))
                return 0;
            if (beside_next(c, out))
                return 1;
            if (c->starved) /* nothing is counted at its place before it has been handed out */
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
            c->key = c->main->key(c, get64(c->cur.pdu + ZJW_HEADER_CLOCK));
        }
        if (c->cur.at == c->cur.end) {
            end_pdu(c);
            continue;
        }
        const uint8_t *f = message_read(&c->cur, out);
        out->clock = c->key;
        out->position = c->position - 1;
        /* Of another order's nothing is kept here: they have been delivered on acceptance. */
        if (f)
            switch (assemble(c, &c->st[c->cur.src].parts[ZJ_TOTAL], f, out, out->stage == ZJ_DELIVERED)) {
            case PART: continue;
            case STARVED: message_unread(&c->cur, out); return 0;
            }
        if (c->silent)
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
    c->main->positions(c, now);
    return !memcmp(now, c->said_positions, sizeof now);
}

void zj_positions(const zj_core *cc, uint64_t out[ZJ_LEVELS])
{
    zj_core *c = (zj_core *)(uintptr_t)cc; /* only moves the cursors it is about to report */
    order_levels(c);
    c->main->positions(c, c->said_positions);
    memcpy(out, c->said_positions, sizeof c->said_positions);
}

/* ---- the end of an instance ---- */

void zj_reached(zj_core *c, uint32_t *view, uint64_t *count)
{
    order_levels(c);
    const struct view *v = c->let_in_by ? NULL : view_at(c, c->main->reached(c));
    *view = v ? v->hash : 0;
    *count = v ? c->main->reached(c) - v->base : 0;
}

void zj_flush(zj_core *c, uint32_t view, uint64_t count)
{
    if (c->is_open || c->fenced || faulty(c, ZJ_FAULT_NO_FLUSH))
        return;
    const struct view *v = view_of(c, view);
    c->flushing = 1;
    c->let_in_by = 0;
    c->flush_view = 0;
    c->flush_to = v ? v->base + count : 0;
    for (uint32_t i = c->event_head; !v && i != c->event_tail; i++) /* bound: events */
        if (c->events[i % ZJ_EVENTS].hash == view) {
            c->flush_view = view;
            c->flush_count = count;
            c->flush_to = ZJ_NEVER; /* all that stands before it */
        }
    order_levels(c);
}

int zj_flushing(const zj_core *c) { return c->flushing; }

int zj_flushed(const zj_core *c)
{
    if (!c->flushing || c->fenced)
        return 1;
    return !order_left(c) && levels_told(c);
}
