/* Negative acknowledgement: ask for what is missing, and answer who asks. */
#include "zj_int.h"

uint64_t zj_nak_due(const zj_core *c)
{
    uint64_t due = ZJ_NEVER;
    if (c->is_open)
        for (uint32_t h = 0; h < c->n; h++)
            if (c->st[h].nak_at < due)
                due = c->st[h].nak_at;
    return due;
}

/* jitter: drawn once per NAK, 0..255, so that what was asked for together stays together. */
static uint64_t retry_wait(const zj_core *c, uint32_t asks, uint32_t jitter)
{
    uint32_t doubled = asks > c->cfg.nak_even ? asks - c->cfg.nak_even : 0;
    uint64_t wait = c->cfg.nak_retry_ns << (doubled < 16 ? doubled : 16);
    if (wait > c->cfg.nak_retry_max_ns)
        wait = c->cfg.nak_retry_max_ns;
    return wait + wait * jitter / 256 / 2;
}

/* The station to ask: the source first; after two unanswered tries, or if it has left or is being removed, a member whose acks show
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

struct ranges { uint8_t *at; uint32_t count, most; uint64_t first, span; }; /* of a NAK; span: of the one that may still grow */

static void range_end(struct ranges *r)
{
    if (!r->span)
        return;
    put32(r->at + ZJW_RANGE_FIRST, (uint32_t)r->first);
    put32(r->at + ZJW_RANGE_SPAN, (uint32_t)r->span);
    r->at += ZJW_SIZEOF_RANGE;
    r->count++;
    r->span = 0;
}

/* Numbers come in ascending order. 0: no room for one more range. */
static int range_add(struct ranges *r, uint64_t seq)
{
    if (r->span && seq == r->first + r->span) {
        r->span++;
        return 1;
    }
    if (r->count + (r->span != 0) == r->most)
        return 0;
    range_end(r);
    r->first = seq;
    r->span = 1;
    return 1;
}

void zj_passed(zj_core *c, uint32_t h, uint32_t passed, uint64_t wait_ns)
{
    struct stream *s = &c->st[h < c->n ? h : c->self];
    const uint64_t below = widen(s->req, passed);
    if (!c->is_open || h >= c->n || h == c->self)
        return;
    if (s->req < s->noticed && s->nak_at != ZJ_NEVER && below > s->req && below > s->passed.below)
        s->nak_at = 0; /* what has just turned out to be lost may be due */
    s->passed.below = below;
    s->passed.wait = wait_ns;
}

/* When this missing PDU is to be asked for: at first not while it may be on its way over another link. */
static uint64_t asked_at(const struct stream *s, const struct meta *m, uint64_t seq)
{
    return m->asks || seq < s->passed.below ? m->ask_at : m->ask_at + s->passed.wait;
}

/* Into r what of the stream is to be asked for now. Returns the station to ask; r->count 0: nothing. */
static uint32_t collect(zj_core *c, uint32_t h, uint64_t now, struct ranges *r)
{
    struct stream *s = &c->st[h];
    uint64_t next = ZJ_NEVER;
    uint32_t target = h, jitter = (uint32_t)zj_random(c, 256);
    for (uint64_t q = s->req; q < s->noticed; q++) { /* bound: slots */
        struct meta *m = meta_of(c, s, q);
        if (m->present)
            continue;
        const uint64_t at = asked_at(s, m, q);
        if (at > now) {
            if (at < next)
                next = at;
            continue;
        }
        int first = !r->span && !r->count;
        if (!range_add(r, q)) {
            next = now; /* the rest in another NAK */
            break;
        }
        if (first)
            target = choose(c, h, q, m->asks);
        m->ask_at = now + retry_wait(c, m->asks, jitter);
        if (m->asks < 255)
            m->asks++;
        if (m->ask_at < next)
            next = m->ask_at;
    }
    s->nak_at = next;
    range_end(r);
    return target;
}

static int nak_stream(zj_core *c, uint32_t h, uint64_t now)
{
    struct stream *s = &c->st[h];
    uint32_t at = ZJW_SIZEOF_HEADER + 8 * c->n;
    uint32_t most = (c->send.pdu_max - at - ZJW_SIZEOF_NAK) / ZJW_SIZEOF_RANGE; /* limit leaves room for 7 */
    uint8_t *b;

    if (s->nak_at > now)
        return 0;
    if (!(b = small_frame(c))) { /* queue full: the link is busy, try again a little later */
        s->nak_at = now + c->cfg.nak_delay_ns + 1;
        return 0;
    }
    uint8_t *payload = b + at;
    struct ranges r = {.at = payload + ZJW_SIZEOF_NAK, .most = most < ZJW_NAK_RANGES_MAX ? most : ZJW_NAK_RANGES_MAX};
    uint32_t target = collect(c, h, now, &r);
    if (!r.count)
        return 0;
    payload[ZJW_NAK_STREAM] = (uint8_t)(h + 1);
    payload[ZJW_NAK_COUNT] = (uint8_t)r.count;
    put16(payload + ZJW_NAK_PAD, 0);
    put32(payload + ZJW_NAK_STREAM_INCARNATION, s->incarnation);
    uint32_t length = ZJW_SIZEOF_NAK + r.count * ZJW_SIZEOF_RANGE;
    c->confirm.sent_free = pdu_header(c, b, ZJW_KIND_NAK, ZJW_FLAG_PACK, c->st[c->self].req, c->clock, length);
    b[ZJW_HEADER_TARGET] = wire_number(c, target + 1);
    al_say(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
    zj_add_checksum(b, at + length);
    small_send(c, at + length, 0);
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

void nak_take(zj_core *c, const struct pdu *p, uint64_t now)
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
                    c->count.naks_suppressed++; /* another station has just asked: the answer comes to all */
                }
                continue;
            }
            if (!mine)
                continue;
            if (now - m->last_tx < c->cfg.retransmit_gap_ns && m->last_tx) {
                c->count.retransmits_suppressed++;
                continue;
            }
            int large = m->last_tx && m->size > c->send.base; /* it may be too large for some switch */
            c->send.asked_again += (uint32_t)large;
            m->last_tx = now;
            tx_slot(c, h, q, 1 + large);
        }
    }
}
