/* Streams: accept in order, hold what came early, know what is missing, keep everything until everyone has it (chapter 10). */
#include "zj_int.h"

/* A stream of which nothing has been seen yet: its next number is seq, and it is known to have passed the clock. The members
 * are set. */
void stream_start(zj_core *c, uint32_t h, uint64_t now, uint64_t seq, uint64_t clock)
{
    struct stream *s = &c->st[h];
    s->req = s->top = s->noticed = s->base = s->ordered = s->first = seq;
    s->clock = clock;
    s->promise_clock = s->promise_next = 0;
    s->nak_at = s->limit = s->pin = s->pin_next = s->wait_clock = ZJ_NEVER;
    s->heard = s->ack_moved = now;
    s->digest_counted = 0;
    s->free_buffers = c->cfg.slots * c->n;
    s->before_join = 0;
    s->joined_at = s->left_at = s->spoke = s->said_instance = s->said_view = 0;
    s->said_state = s->said_trans = 0;
    s->mac_known = s->left = s->fenced = s->wants_ack = s->closing = 0;
    s->op_waiting = 0;
    assembly_forget(c, &s->parts);
    assembly_forget(c, &s->op_parts);
    memset(s->meta, 0, c->cfg.slots * sizeof *s->meta);
    al_start(c, h, seq);
}

/* h is known to have sent everything below top: whatever is missing there is asked for when it is no longer mere re-ordering. */
void stream_notice(zj_core *c, uint32_t h, uint64_t top, uint64_t now)
{
    struct stream *s = &c->st[h];
    if (top > s->limit)
        top = s->limit;
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
    if (!s->promise_clock || (s->req < s->promise_next && !faulty(c, ZJ_FAULT_EARLY_PROMISE)))
        return;
    if (s->promise_clock > s->clock)
        s->clock = s->promise_clock;
    s->promise_clock = 0;
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
    if (m->flags & ZJW_FLAG_OP)
        op_push(c, h, s->req - 1);
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
    uint64_t end = s->base + c->cfg.slots < s->limit ? s->base + c->cfg.slots : s->limit;
    while (s->req < end) { /* bound: slots */
        const struct meta *q = meta_of(c, s, s->req);
        if (!q->present)
            break;
        if (q->clock <= s->clock) {
            unhold(c, s, s->req);
            break;
        }
        if (is_vote(q->kind) && !vote_push(c, h, s->req, q)) {
            c->votes_stalled = 1;
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

    if (seq >= s->limit)
        return ZJ_DROP_REMOVED;
    if (seq < s->req || (seq < s->base + c->cfg.slots && m->present)) {
        c->count.rx_duplicate++;
        if (seq >= s->base) {
            m->last_tx = now;
            if (faulty(c, ZJ_FAULT_DUPLICATE) && seq < s->ordered && !c->dup) {
                c->dup = 1;
                c->dup_src = h;
                c->dup_seq = seq;
            }
        }
        return ZJ_DROP_NONE;
    }
    if (seq >= s->base + c->cfg.slots)
        return ZJ_DROP_WINDOW;
    if (p->size > c->slot_bytes)
        return ZJ_DROP_LENGTH;
    /* Clocks of a stream grow. One that comes early and has an old clock was recorded 2^32 PDUs ago: it is not held. */
    if (p->clock >> 62 || p->clock <= s->clock)
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
    memcpy(slot_of(c, s, seq), p->bytes, p->size);
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
            if (m->present & OP_WAITS)
                break;
            m->present = m->asks = 0;
        }
    }
}

/* While a joiner is being let in streams keep all from its vote on. Data must leave room for the votes that end this. */
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

/* ---- negative acknowledgement ---- */

uint64_t zj_nak_due(const zj_core *c)
{
    uint64_t due = ZJ_NEVER;
    if (c->is_open)
        for (uint32_t h = 0; h < c->n; h++)
            if (c->st[h].nak_at < due)
                due = c->st[h].nak_at;
    return due;
}

/* The jitter is drawn once per NAK, so that what was asked for together stays together. */
static uint64_t retry_wait(const zj_core *c, uint32_t asks)
{
    uint64_t wait = c->cfg.nak_retry_ns << (asks < 16 ? asks : 16);
    if (wait > c->cfg.nak_retry_max_ns)
        wait = c->cfg.nak_retry_max_ns;
    return wait + wait * c->nak_jitter / 256 / 2;
}

/* Whom to ask: the source first; after two unanswered tries, or if it has left or is being removed, a member whose acks show
 * that it has the PDU. */
static uint32_t choose(zj_core *c, uint32_t h, uint64_t seq, uint32_t asks)
{
    const struct stream *s = &c->st[h];
    uint32_t holders[ZJW_STATIONS_MAX], k = 0;
    if (asks < 2 && !s->left && !s->closing)
        return h;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t j = c->list[i];
        if (j != c->self && j != h && s->al[j] > seq)
            holders[k++] = j;
    }
    return k ? holders[zj_random(c, k)] : h;
}

static int nak_stream(zj_core *c, uint32_t h, uint64_t now)
{
    struct stream *s = &c->st[h];
    uint32_t at = (c->nak_tail + 1) % ZJ_NAK_BUFS, count = 0, target = 0;
    uint64_t end = s->noticed, next = ZJ_NEVER;
    uint32_t most = (c->limit - ZJW_SIZEOF_HEADER - 8 * c->n - ZJW_SIZEOF_NAK) / ZJW_SIZEOF_RANGE; /* limit leaves room for 7 */
    if (most > ZJW_NAK_RANGES_MAX)
        most = ZJW_NAK_RANGES_MAX;

    if (s->nak_at > now)
        return 0;
    if (at == c->nak_head) { /* queue full: the link is busy, try again a little later */
        s->nak_at = now + c->cfg.nak_delay_ns + 1;
        return 0;
    }
    c->nak_jitter = (uint32_t)zj_random(c, 256);
    uint8_t *b = c->naks[c->nak_tail];
    uint8_t *payload = b + ZJW_SIZEOF_HEADER + 8 * c->n, *range = payload + ZJW_SIZEOF_NAK;
    uint64_t first = 0, span = 0;
    for (uint64_t q = s->req; q < end; q++) { /* bound: slots */
        struct meta *m = meta_of(c, s, q);
        if (m->present)
            continue;
        if (m->ask_at > now) {
            if (m->ask_at < next)
                next = m->ask_at;
            continue;
        }
        int joins = span && q == first + span;
        if (!joins && count + (span ? 1 : 0) == most) {
            next = now; /* the rest in another NAK */
            break;
        }
        if (!span && !count)
            target = choose(c, h, q, m->asks);
        if (!joins) {
            if (span) {
                put32(range + ZJW_RANGE_FIRST, (uint32_t)first);
                put32(range + ZJW_RANGE_SPAN, (uint32_t)span);
                range += ZJW_SIZEOF_RANGE;
                count++;
            }
            first = q;
            span = 0;
        }
        span++;
        m->ask_at = now + retry_wait(c, m->asks);
        if (m->asks < 255)
            m->asks++;
        if (m->ask_at < next)
            next = m->ask_at;
    }
    s->nak_at = next;
    if (span) {
        put32(range + ZJW_RANGE_FIRST, (uint32_t)first);
        put32(range + ZJW_RANGE_SPAN, (uint32_t)span);
        count++;
    }
    if (!count)
        return 0;
    payload[ZJW_NAK_STREAM] = (uint8_t)(h + 1);
    payload[ZJW_NAK_COUNT] = (uint8_t)count;
    put16(payload + ZJW_NAK_PAD, 0);
    put32(payload + ZJW_NAK_STREAM_INCARNATION, s->incarnation);
    uint32_t length = ZJW_SIZEOF_NAK + count * ZJW_SIZEOF_RANGE;
    pdu_header(c, b, ZJW_KIND_NAK, ZJW_FLAG_PACK, c->st[c->self].req, c->clock, length);
    b[ZJW_HEADER_TARGET] = (uint8_t)(target + 1);
    al_say(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
    c->said_free = free_slots(c);
    uint32_t size = ZJW_SIZEOF_HEADER + 8 * c->n + length;
    zj_seal(b, size);
    c->nak_size[c->nak_tail] = size;
    if (c->tx_tail - c->tx_head < ZJ_TXQ) {
        c->txq[c->tx_tail++ & (ZJ_TXQ - 1)] = (struct tx){.type = TX_NAK, .buf = c->nak_tail};
        c->nak_tail = at;
    }
    return 1;
}

uint32_t zj_nak(zj_core *c, uint64_t now)
{
    uint32_t sent = 0;
    if (!c->is_open)
        return 0;
    for (uint32_t h = 0; h < c->n; h++)
        if (h != c->self)
            sent += (uint32_t)nak_stream(c, h, now);
    return sent;
}

void stream_nak(zj_core *c, const struct pdu *p, uint64_t now)
{
    const uint8_t *b = p->payload, *range = b + ZJW_SIZEOF_NAK;
    uint32_t h = b[ZJW_NAK_STREAM] - 1u, count = b[ZJW_NAK_COUNT];
    struct stream *s = &c->st[h];
    int mine = p->target == c->self + 1;

    if (get32(b + ZJW_NAK_STREAM_INCARNATION) != s->incarnation || faulty(c, ZJ_FAULT_DEAF_NAK))
        return;
    for (uint32_t i = 0; i < count; i++, range += ZJW_SIZEOF_RANGE) {
        uint64_t q = widen(s->req, get32(range + ZJW_RANGE_FIRST));
        uint64_t end = q + get32(range + ZJW_RANGE_SPAN);
        if (q < s->base) /* everyone has those, or the range is nonsense */
            q = s->base;
        if (end > s->base + c->cfg.slots)
            end = s->base + c->cfg.slots;
        for (; q < end; q++) { /* bound: slots */
            struct meta *m = meta_of(c, s, q);
            if (!m->present) {
                if (q >= s->req && q < s->noticed && m->ask_at < now + c->cfg.nak_retry_ns) {
                    m->ask_at = now + c->cfg.nak_retry_ns + zj_random(c, c->cfg.nak_retry_ns / 2);
                    c->count.naks_suppressed++; /* somebody has just asked: the answer comes to all */
                }
                continue;
            }
            if (!mine)
                continue;
            if (now - m->last_tx < c->cfg.retransmit_gap_ns && m->last_tx) {
                c->count.retransmits_suppressed++;
                continue;
            }
            m->last_tx = now;
            tx_slot(c, h, q, 1);
        }
    }
}
