/* Streams: accept in order, hold what came early, know what is missing, keep everything until everyone has it. */
#include "order/order.h"

/* A stream of which nothing has been seen yet: its next number is seq, and it is known to have passed the clock. The members
 * are set. */
void stream_start(zj_core *c, uint32_t h, uint64_t now, uint64_t seq, uint64_t clock)
{
    struct stream *s = &c->st[h];
    s->req = s->top = s->noticed = s->base = s->ordered = s->first = seq;
    s->clock = clock;
    s->promise.clock = s->promise.next = 0;
    s->passed.below = s->passed.wait = 0;
    s->nak_at = s->closed_at = s->pin = s->pin_next = s->wait_clock = ZJ_NEVER;
    s->heard = s->ack_moved = now;
    s->digest.counted = 0;
    s->free_buffers = c->cfg.slots * c->n;
    s->before_join = 0;
    s->joined_at = s->left_at = s->spoke = s->peer.instance = s->peer.view = 0;
    s->peer.state = s->peer.trans = 0;
    s->mac_known = s->left = s->fenced = s->wants_ack = s->closing = s->sums = 0;
    s->direct.open = c->cfg.first_seq;
    s->held = 0;
    for (uint32_t k = 0; k < ZJ_ORDERINGS; k++)
        assembly_forget(c, &s->parts[k]);
    memset(s->meta, 0, c->cfg.slots * sizeof *s->meta);
    al_start(c, h, seq);
}

/* h is known to have sent everything below top: whatever is missing there is asked for when it is no longer mere re-ordering. */
void stream_notice(zj_core *c, uint32_t h, uint64_t top, uint64_t now)
{
    struct stream *s = &c->st[h];
    if (top > s->closed_at)
        top = s->closed_at;
    if (top > s->top)
        s->top = top;
    uint64_t end = top < s->base + c->cfg.slots ? top : s->base + c->cfg.slots;
    if (s->noticed < s->req)
        s->noticed = s->req;
    uint64_t ask_at = now + c->cfg.nak_delay_ns + zj_random(c, c->cfg.nak_delay_ns / 4); /* one for all: they go into one NAK */
    for (uint64_t q = s->noticed; q < end; q++) { /* bound: slots */
        struct meta *m = meta_of(c, s, q);
        if (m->present)
            continue;
        m->asks = 0;
        m->ask_at = ask_at;
        if (m->ask_at < s->nak_at)
            s->nak_at = m->ask_at;
        c->count.lost_noticed++;
    }
    if (end > s->noticed)
        s->noticed = end;
}

void stream_promise(zj_core *c, uint32_t h)
{
    struct stream *s = &c->st[h];
    if (s->closing && !faulty(c, ZJ_FAULT_NO_CLOSE)) /* rule 1; taken up again if the removal is withdrawn */
        return;
    if (!s->promise.clock || (s->req < s->promise.next && !faulty(c, ZJ_FAULT_EARLY_PROMISE)))
        return;
    if (s->promise.clock > s->clock)
        s->clock = s->promise.clock;
    s->promise.clock = 0;
}

static void accept(zj_core *c, uint32_t h, const struct meta *m)
{
    struct stream *s = &c->st[h];
    s->clock = m->clock;
    if (m->clock > c->clock)
        c->clock = m->clock;
    s->req++;
    c->progress++;
    if (m->flags & ZJW_FLAG_NEED_ACK)
        s->need_ack = s->req;
    if (m->flags & BESIDE_FLAGS)
        order_accepted(c, h, s->req - 1, m->flags);
}

/* Held back, and too old for its place: no station sends such a stream, so it is none of its PDUs, and no divergence either. The real
 * one is asked for. */
static void unhold(zj_core *c, struct stream *s, uint64_t seq)
{
    struct meta *m = meta_of(c, s, seq);
    c->count.drops[ZJ_DROP_CLOCK]++;
    m->present = m->asks = 0;
    m->ask_at = s->nak_at = 0; /* at once */
}

void stream_advance(zj_core *c, uint32_t h)
{
    struct stream *s = &c->st[h];
    uint64_t end = s->base + c->cfg.slots < s->closed_at ? s->base + c->cfg.slots : s->closed_at;
    while (s->req < end) { /* bound: slots */
        const struct meta *q = meta_of(c, s, s->req);
        if (!q->present)
            break;
        if (q->clock <= s->clock && !faulty(c, ZJ_FAULT_OLD_CLOCK)) {
            unhold(c, s, s->req);
            break;
        }
        if (is_vote(q->kind) && !vote_push(c, h, s->req, q)) {
            c->votes.stalled = 1;
            break;
        }
        accept(c, h, q);
    }
    if (s->req == s->top)
        s->nak_at = ZJ_NEVER;
    stream_promise(c, h);
}

int stream_take(zj_core *c, const struct pdu *p, uint64_t now)
{
    uint32_t h = p->src;
    struct stream *s = &c->st[h];
    uint64_t seq = widen(s->req, p->seq);
    struct meta *m = meta_of(c, s, seq);

    if (seq >= s->closed_at)
        return ZJ_DROP_REMOVED;
    if (seq < s->req || (seq < s->base + c->cfg.slots && m->present)) {
        c->count.rx_duplicate++;
        if (seq >= s->base) {
            m->last_tx = now;
            if (faulty(c, ZJ_FAULT_DUPLICATE) && seq < s->ordered && !c->order.dup) {
                c->order.dup = 1;
                c->order.dup_src = h;
                c->order.dup_seq = seq;
            }
        }
        return ZJ_DROP_NONE;
    }
    if (seq >= s->base + c->cfg.slots)
        return ZJ_DROP_WINDOW;
    if (p->size > c->slot_bytes)
        return ZJ_DROP_LENGTH;
    /* Clocks of a stream grow. One that comes early and has an old clock was recorded 2^32 PDUs ago: it is not held. */
    if (p->clock >> 62 || (p->clock <= s->clock && !faulty(c, ZJ_FAULT_OLD_CLOCK)))
        return ZJ_DROP_CLOCK;
    if (seq + 1 > s->top) {
        stream_notice(c, h, seq, now);
        s->top = seq + 1;
        if (s->noticed == seq)
            s->noticed = seq + 1;
    }
    if (m->asks)
        c->count.rx_repaired++;
    if (seq != s->req)
        c->count.rx_out_of_order++;
    memcpy(slot_for(c, s, seq, p->size), p->bytes, p->size);
    m->clock = p->clock;
    m->last_tx = m->asks ? now : 0;
    m->arrival = c->arrivals++;
    m->size = p->size;
    m->instance = p->instance;
    m->payload_crc = get32(p->bytes + ZJW_HEADER_CHECK + 4);
    m->flags = p->flags;
    m->kind = p->kind;
    m->present = HELD;
    if (seq > s->req && faulty(c, ZJ_FAULT_SKIP_GAP))
        s->req = seq;
    stream_advance(c, h);
    return ZJ_DROP_NONE;
}

/* Everyone has it, it was delivered here, and no joiner will need it: its buffer is free. */
void stream_free(zj_core *c)
{
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        uint64_t end = s->min_al;
        if (faulty(c, ZJ_FAULT_FREE_EARLY))
            end = s->req;
        if (s->ordered < end)
            end = s->ordered;
        if (c->pinned) {
            end = s->pin < end ? s->pin : end;
            end = s->pin_next < end ? s->pin_next : end;
        }
        for (; s->base < end; s->base++) { /* bound: slots */
            struct meta *m = meta_of(c, s, s->base);
            if (m->present & ~HELD)
                break;
            m->present = m->asks = 0;
        }
    }
}

/* While a joiner is being admitted streams keep all from its vote on. Data must leave room for the votes that end this. */
uint32_t kept_for_votes(const zj_core *c)
{
    uint32_t some = c->cfg.slots / 4;
    return !c->pinned ? 0 : some < 64 ? some : 64;
}

uint32_t free_slots(const zj_core *c)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->listed; i++) {
        const struct stream *s = &c->st[c->list[i]];
        if (c->list[i] != c->self && s->req - s->base > most)
            most = s->req - s->base;
    }
    most += kept_for_votes(c);
    return most < c->cfg.slots ? c->cfg.slots - (uint32_t)most : 0;
}
