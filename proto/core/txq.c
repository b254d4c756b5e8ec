/* The transmit queue: PDUs by their slot in a stream, the one CONFIRM that waits, and small frames with buffers of their own. */
#include "zj_int.h"

void txq_reset(zj_core *c)
{
    c->txq.head = c->txq.tail = c->txq.shown_count = 0;
    c->confirm.queued = 0;
    c->txq.small_head = c->txq.small_tail = 0;
}

int txq_full(const zj_core *c) { return c->txq.tail - c->txq.head >= ZJ_TXQ; }

static void put(zj_core *c, struct tx t) { c->txq.queue[c->txq.tail++ & (ZJ_TXQ - 1)] = t; }

void tx_slot(zj_core *c, uint32_t h, uint64_t seq, int again)
{
    if (txq_full(c)) {
        c->count.retransmits_suppressed++; /* only a repetition can find the queue full: own PDUs are bounded by the window */
        return;
    }
    put(c, (struct tx){.type = TX_SLOT, .seq = seq, .stream = (uint8_t)h, .again = (uint8_t)again});
}

/* The CONFIRM that waits goes to the end. In a full queue it stays where it is: it says the latest there as well. */
void tx_confirm(zj_core *c)
{
    if (txq_full(c))
        return;
    if (c->confirm.queued)
        c->txq.queue[c->confirm.at & (ZJ_TXQ - 1)].type = TX_VOID;
    c->confirm.at = c->txq.tail;
    c->confirm.queued = 1;
    put(c, (struct tx){.type = TX_CONFIRM});
}

/* A buffer for a small frame of its own: NAK, relayed CONFIRM, RST, RSTC, a CONFIRM that must not wait. NULL: no room. It is queued by
 * small_send; until then it is free. */
uint8_t *small_frame(zj_core *c)
{
    if ((c->txq.small_tail + 1) % ZJ_SMALLS == c->txq.small_head || txq_full(c))
        return NULL;
    return c->txq.small[c->txq.small_tail];
}

/* again: 1 if it is another station's PDU. */
void small_send(zj_core *c, uint32_t size, int again)
{
    c->txq.small_size[c->txq.small_tail] = size;
    put(c, (struct tx){.type = TX_SMALL, .again = (uint8_t)again, .buf = c->txq.small_tail});
    c->txq.small_tail = (c->txq.small_tail + 1) % ZJ_SMALLS;
}

uint32_t zj_tx(zj_core *c, struct zj_frame *out, uint32_t max)
{
    uint32_t k = 0;
    for (uint32_t i = c->txq.head; i != c->txq.tail && k < max; i++) {
        const struct tx *t = &c->txq.queue[i & (ZJ_TXQ - 1)];
        switch ((enum txtype)t->type) {
        case TX_VOID:
            continue;
        case TX_SLOT: {
            const struct stream *s = &c->st[t->stream];
            const struct meta *m = meta_of(c, s, t->seq);
            if (t->seq < s->base || !m->present)
                continue; /* everyone got it meanwhile */
            out[k] = (struct zj_frame){slot_of(c, s, t->seq), m->size, m->kind, t->again > 1};
            break;
        }
        case TX_CONFIRM:
            out[k] = (struct zj_frame){c->confirm.bytes, c->confirm.size, ZJW_KIND_CONFIRM, 0};
            break;
        case TX_SMALL:
            out[k] = (struct zj_frame){c->txq.small[t->buf], c->txq.small_size[t->buf], c->txq.small[t->buf][ZJW_HEADER_KIND], 0};
            break;
        }
        c->txq.shown[k++] = i;
    }
    c->txq.shown_count = k;
    if (!k) {
        c->txq.head = c->txq.tail;
    }
    return k;
}

static void leave(zj_core *c, const struct tx *t, uint64_t now)
{
    switch ((enum txtype)t->type) {
    case TX_VOID:
        return;
    case TX_SLOT: {
        struct meta *m = meta_of(c, &c->st[t->stream], t->seq);
        if (t->again)
            m->last_tx = now;
        c->count.tx_bytes += m->size;
        if (!t->again)
            c->count.tx_data++;
        else if (t->stream == c->self)
            c->count.tx_retransmit++;
        else
            c->count.tx_relay++;
        return;
    }
    case TX_CONFIRM:
        c->confirm.queued = 0;
        c->count.tx_confirm++;
        c->count.tx_direct += confirm_waits_direct(c) != 0;
        c->count.tx_bytes += c->confirm.size;
        return;
    case TX_SMALL: {
        uint32_t kind = c->txq.small[t->buf][ZJW_HEADER_KIND];
        c->txq.small_head = (c->txq.small_head + 1) % ZJ_SMALLS;
        if (t->again)
            c->count.tx_relay++;
        else
            *(kind == ZJW_KIND_NAK ? &c->count.tx_nak : kind == ZJW_KIND_CONFIRM ? &c->count.tx_confirm : &c->count.tx_reset) += 1;
        return;
    }
    }
}

/* Another station's PDU is no sign of life of this one. */
static int own_word(const zj_core *c, const struct tx *t)
{
    return t->type == TX_CONFIRM || (t->type == TX_SMALL && !t->again) || (t->type == TX_SLOT && t->stream == c->self);
}

void zj_tx_done(zj_core *c, uint64_t now, uint32_t count)
{
    if (count > c->txq.shown_count)
        count = c->txq.shown_count;
    if (!count)
        return;
    for (uint32_t k = 0; k < count; k++) {
        const struct tx *t = &c->txq.queue[c->txq.shown[k] & (ZJ_TXQ - 1)];
        leave(c, t, now);
        if (own_word(c, t)) {
            c->txq.last_word = now;
            if (t->type != TX_CONFIRM || !confirm_waits_direct(c)) /* C6: one station alone has heard that this one is alive */
                c->txq.last = now;
        }
    }
    c->txq.head = c->txq.shown[count - 1] + 1;
    c->txq.shown_count = 0;
}

uint64_t zj_last_tx(const zj_core *c) { return c->txq.last; }
uint64_t zj_last_word(const zj_core *c) { return c->txq.last_word; }

const uint8_t *zj_address(const zj_core *c, const uint8_t *pdu)
{
    if (pdu != c->confirm.bytes || !confirm_waits_direct(c))
        return NULL;
    return c->st[confirm_waits_direct(c) - 1].mac;
}
