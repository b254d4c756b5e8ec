/* Sending: packing, fragments, flow condition, transmit queue, confirmations (spec chapter 10: C1-C3, flow). */
#include "zj_int.h"

/* Nobody has waited for level ack for so long that the log fills with what has not reached it: PDUs carry P again for a while. */
static int ack_lags(const zj_core *c) { return c->position - c->acked > c->log_mask / 4; }

/* Some station waits for level ack of everything. */
static int all_wanted(const zj_core *c)
{
    if (medium_acks(c) || c->want_ack || ack_lags(c))
        return 1;
    for (uint32_t h = 0; h < c->n; h++)
        if (c->st[h].wants_ack)
            return 1;
    return 0;
}

static uint64_t need_of(const zj_core *c, const struct stream *s, int all)
{
    if (all)
        return s->req;
    /* level ack is a place in the order: what stands before a wanted PDU must reach it too */
    return c->acked < c->need_position && s->ordered > s->need_ack ? s->ordered : s->need_ack;
}

static int ack_pending(const zj_core *c)
{
    int all = all_wanted(c);
    for (uint32_t h = 0; h < c->n; h++)
        if (c->st[h].acked < need_of(c, &c->st[h], all))
            return 1;
    return 0;
}

void send_reset(zj_core *c)
{
    c->building = 0;
    c->frag_owner = 0;
    c->frag_restart = 0;
    c->tx_head = c->tx_tail = c->shown_count = 0;
    c->confirm_queued = 0;
    c->nak_head = c->nak_tail = 0;
    c->owed_since = c->answer_at = 0;
    c->answer = c->chatter = 0;
    c->confirm_due = ZJ_NEVER;
    c->poll_at = ZJ_NEVER;
    c->poll_wait = c->cfg.poll_delay_ns;
    c->progress_seen = c->progress;
    c->said_free = c->cfg.slots;
    send_window(c);
}

/* Flow condition: min_al[self] <= seq < min_al[self] + min(W, minF / n); free_buffers is already times n on the wire. The largest
 * PDU to build is what every station can take. */
void send_window(zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    uint32_t window = c->cfg.window, limit = c->own_frame_max;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t j = c->list[i];
        if (j == c->self)
            continue;
        uint32_t room = c->st[j].free_buffers / c->n;
        if (room < window)
            window = room;
        if (c->st[j].frame_max < limit)
            limit = c->st[j].frame_max;
    }
    for (uint32_t h = 0; c->waiting && h < c->n; h++) /* what is sent from the vote on, the joiner must be able to take */
        if (c->waiting >> h & 1 && c->st[h].frame_max < limit)
            limit = c->st[h].frame_max;
    uint32_t least = ZJW_SIZEOF_HEADER + 8 * c->n + 64;
    c->limit = limit < least ? least : limit;
    c->window_now = window;
    c->window_limit = me->min_al + window;
    /* Own buffers: messages leave room for votes. Else who has gone on sending while the order waits for somebody, whose
     * acknowledgements still come, could not vote for the removal that ends the wait. */
    uint32_t votes = kept_for_votes(c), some = c->n + 1 < c->cfg.slots / 4 ? c->n + 1 : c->cfg.slots / 4;
    uint64_t kept = me->base + c->cfg.slots - (votes > some ? votes : some);
    if (c->window_limit > kept || faulty(c, ZJ_FAULT_FLOOD))
        c->window_limit = kept;
}

int zj_too_long(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    if (!c->is_open)
        return 0;
    for (uint64_t q = me->min_al; q < c->next; q++) /* bound: window */
        if (meta_of(c, me, q)->size > c->limit)
            return 1;
    return 0;
}

int send_can_seal(const zj_core *c)
{
    return c->next < c->window_limit && !c->blocked && c->phase == ZJ_P_RUN;
}

void tx_slot(zj_core *c, uint32_t h, uint64_t seq, int again)
{
    if (c->tx_tail - c->tx_head >= ZJ_TXQ) {
        c->count.retransmits_suppressed++; /* only a repetition can find the queue full: own PDUs are bounded by the window */
        return;
    }
    c->txq[c->tx_tail++ & (ZJ_TXQ - 1)] = (struct tx){.type = TX_SLOT, .seq = seq, .stream = (uint8_t)h, .again = (uint8_t)again};
}

/* ---- packing ---- */

static int start(zj_core *c, int need_ack)
{
    const struct stream *me = &c->st[c->self];
    if (c->next >= me->base + c->cfg.slots)
        return 0;
    c->build_flags = need_ack ? ZJW_FLAG_NEED_ACK : 0;
    if (need_ack || ack_pending(c))
        c->build_flags |= ZJW_FLAG_PACK;
    c->payload_at = c->fill = payload_start(c, c->build_flags);
    c->building = 1;
    return 1;
}

void send_pdu(zj_core *c, uint32_t kind, uint32_t flags, uint32_t payload_at, uint32_t size)
{
    struct stream *me = &c->st[c->self];
    uint64_t seq = c->next;
    struct meta *m = meta_of(c, me, seq);
    uint8_t *b = slot_of(c, me, seq);

    c->next = me->top = seq + 1;
    medium_number(c); /* before A is written */
    pdu_header(c, b, kind, flags, seq, c->clock, size - payload_at);
    al_say(c, b + ZJW_SIZEOF_HEADER, flags & ZJW_FLAG_PACK ? b + ZJW_SIZEOF_HEADER + 4 * c->n : NULL);
    c->said_free = free_slots(c);
    zj_seal(b, size);
    *m = (struct meta){.clock = c->clock, .arrival = c->arrivals++, .size = size, .instance = c->instance,
                       .payload_crc = get32(b + ZJW_HEADER_CHECK + 4), .present = HELD,
                       .flags = (uint8_t)flags, .kind = (uint8_t)kind};
    me->clock = c->clock;
    al_raise(c, c->self, c->self, seq + 1); /* confirmed by its source from its transmission */
    if (flags & ZJW_FLAG_NEED_ACK)
        me->need_ack = seq + 1;
    if (flags & ZJW_FLAG_OP)
        op_push(c, c->self, seq);
    c->progress++;
    tx_slot(c, c->self, seq, 0);
}

void send_seal(zj_core *c)
{
    c->building = 0;
    send_pdu(c, ZJW_KIND_DATA, c->build_flags, c->payload_at, c->fill);
}

static uint32_t room(const zj_core *c) { return c->limit > c->fill ? c->limit - c->fill : 0; }

static void append(zj_core *c, struct zj_offer *m, uint32_t size, int frag)
{
    uint8_t *b = slot_of(c, &c->st[c->self], c->next) + c->fill;
    uint32_t flags = m->service == ZJ_FIFO ? ZJW_MFLAG_OP : 0, head = ZJW_SIZEOF_MESSAGE;
    if (frag) {
        flags |= ZJW_MFLAG_FRAGMENT | (m->done + size == m->size ? ZJW_MFLAG_LAST : 0);
        put32(b + head + ZJW_FRAGMENT_TOTAL, m->size);
        put32(b + head + ZJW_FRAGMENT_OFFSET, m->done);
        head += ZJW_SIZEOF_FRAGMENT;
    }
    put32(b + ZJW_MESSAGE_SIZE, size);
    put32(b + ZJW_MESSAGE_GROUP, m->group);
    put16(b + ZJW_MESSAGE_CLIENT, m->client);
    b[ZJW_MESSAGE_TYPE] = m->type;
    b[ZJW_MESSAGE_MFLAGS] = (uint8_t)flags;
    if (size)
        memcpy(b + head, m->data + m->done, size);
    c->fill += head + size;
    m->done += size;
    if (m->need_ack)
        c->build_flags |= ZJW_FLAG_NEED_ACK;
    if (m->service == ZJ_FIFO)
        c->build_flags |= ZJW_FLAG_OP;
}

/* Make a PDU with at least `least` free bytes ready; 0: no room now. */
static int prepare(zj_core *c, uint32_t least, int need_ack)
{
    if (c->building && room(c) < least) {
        if (!send_can_seal(c)) {
            c->count.window_closed++;
            return 0;
        }
        send_seal(c);
    }
    return c->building || start(c, need_ack);
}

uint32_t zj_payload_max(const zj_core *c)
{
    return c->limit - payload_start(c, ZJW_FLAG_PACK) - ZJW_SIZEOF_MESSAGE;
}

int zj_offer(zj_core *c, struct zj_offer *m)
{
    if (m->size > c->cfg.message_max || m->type > ZJW_TYPE_SERVICE || m->service >= ZJ_SERVICES || !medium_serves(c, m))
        return -1;
    if (!c->is_open || c->fenced || c->blocked)
        return 0;
    if (m->done && c->frag_restart && c->frag_owner == (uint32_t)m->client + 1) {
        m->done = 0; /* what was taken of it stands before the vote for a joiner */
        c->frag_owner = 0;
        c->frag_restart = 0;
    }
    if (!m->done && m->size <= zj_payload_max(c)) {
        if (!prepare(c, ZJW_SIZEOF_MESSAGE + m->size, m->need_ack))
            return 0;
        append(c, m, m->size, 0);
    } else {
        uint32_t least = ZJW_SIZEOF_MESSAGE + ZJW_SIZEOF_FRAGMENT + 1;
        if (!m->done && c->frag_owner)
            return 0; /* one fragmented message at a time; small ones pass between */
        if (m->done && c->frag_owner != (uint32_t)m->client + 1)
            return -1;
        c->frag_owner = (uint32_t)m->client + 1;
        while (m->done < m->size) { /* bound: window */
            if (!prepare(c, least, m->need_ack)) {
                if (!m->done)
                    c->frag_owner = 0; /* nothing of it is under way: it will come as a new one */
                return 0;
            }
            uint32_t fits = room(c) - ZJW_SIZEOF_MESSAGE - ZJW_SIZEOF_FRAGMENT, left = m->size - m->done;
            append(c, m, left < fits ? left : fits, 1);
        }
        c->frag_owner = 0;
    }
    c->count.messages_sent++;
    c->count.message_bytes_sent += m->size;
    return 1;
}

/* ---- confirmation ---- */

uint32_t confirm_owed(const zj_core *c)
{
    int all = all_wanted(c);
    uint32_t owed = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (h != c->self && s->req > s->said_ack)
            owed = OWED_NEWS; /* C1 */
        if (s->acked < need_of(c, s, all) && s->min_al > s->said_pack)
            owed = OWED_NEWS; /* C2 */
    }
    if (c->chatter || (c->said_free < c->cfg.window && free_slots(c) >= c->cfg.window))
        owed = OWED_NEWS; /* the window was closed by what this station said last: say that it is open again */
    if (c->answer)
        owed |= OWED_ANSWER; /* C3 */
    return owed;
}

/* A CONFIRM into b; its size. */
uint32_t confirm_write(zj_core *c, uint8_t *b, uint32_t flags, uint32_t target)
{
    uint32_t size = ZJW_SIZEOF_HEADER + 8 * c->n + ZJW_SIZEOF_CONFIRM;
    uint64_t position, digest;
    uint32_t counted;

    pdu_header(c, b, ZJW_KIND_CONFIRM, flags | ZJW_FLAG_PACK, c->next, c->clock, ZJW_SIZEOF_CONFIRM);
    b[ZJW_HEADER_TARGET] = (uint8_t)target;
    al_say(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
    order_said(c, &counted, &position, &digest);
    uint8_t *p = b + ZJW_SIZEOF_HEADER + 8 * c->n;
    put64(p + ZJW_CONFIRM_STATE, c->state);
    put64(p + ZJW_CONFIRM_TRANS, c->trans);
    put64(p + ZJW_CONFIRM_POSITION, position);
    put64(p + ZJW_CONFIRM_DIGEST, digest);
    put32(p + ZJW_CONFIRM_COUNTED, counted);
    put32(p + ZJW_CONFIRM_VIEW, c->view);
    zj_seal(b, size);
    return size;
}

void confirm_build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target)
{
    uint8_t *b = c->confirm;

    if (c->phase != ZJ_P_RUN) /* it would say that the reset is over */
        return;
    if (!c->confirm_queued && c->tx_tail - c->tx_head >= ZJ_TXQ) { /* the link takes nothing: nothing is said, so all stays owed */
        c->confirm_due = now + c->cfg.confirm_delay_ns;
        return;
    }
    if (c->confirm_queued) { /* not sent yet: this one says all that one would have said */
        flags |= b[ZJW_HEADER_FLAGS] & (ZJW_FLAG_POLL | ZJW_FLAG_BYE);
        uint32_t other = b[ZJW_HEADER_TARGET]; /* one CONFIRM asks one station: which, chance decides */
        target = !target || (other && zj_random(c, 2)) ? other : target;
    }
    if (c->fenced)
        flags |= ZJW_FLAG_FENCED;
    if (c->want_ack)
        flags |= ZJW_FLAG_NEED_ACK;
    c->confirm_size = confirm_write(c, b, flags, target);
    c->said_free = free_slots(c);
    c->owed_since = 0;
    c->confirm_due = ZJ_NEVER;
    if (c->answer)
        c->answer_at = now;
    c->answer = c->chatter = 0;
    if (c->confirm_queued)
        c->txq[c->confirm_at & (ZJ_TXQ - 1)].type = TX_VOID;
    if (c->tx_tail - c->tx_head >= ZJ_TXQ) {
        c->txq[c->confirm_at & (ZJ_TXQ - 1)].type = TX_CONFIRM;
        return;
    }
    c->confirm_at = c->tx_tail;
    c->confirm_queued = 1;
    c->txq[c->tx_tail++ & (ZJ_TXQ - 1)] = (struct tx){.type = TX_CONFIRM};
}

void zj_probe(zj_core *c, uint64_t now, uint32_t h)
{
    if (!c->is_open || h >= c->n || h == c->self || c->phase != ZJ_P_RUN)
        return;
    confirm_build(c, now, ZJW_FLAG_POLL, h + 1);
    c->count.tx_poll++;
}

void zj_heartbeat(zj_core *c, uint64_t now, uint32_t flags)
{
    if (!c->is_open || c->phase != ZJ_P_RUN)
        return;
    confirm_build(c, now, flags, 0);
    c->count.tx_heartbeat++;
}

/* Takes a buffer of the NAKs: both are rare, and the one that finds none is asked for again. */
void confirm_relay(zj_core *c, const struct pdu *p)
{
    uint32_t at = (c->nak_tail + 1) % ZJ_NAK_BUFS;
    if (at == c->nak_head || p->size > ZJ_SMALL || c->tx_tail - c->tx_head >= ZJ_TXQ)
        return;
    uint8_t *b = c->naks[c->nak_tail];
    memcpy(b, p->bytes, p->size);
    b[ZJW_HEADER_FLAGS] = (uint8_t)((b[ZJW_HEADER_FLAGS] & ~ZJW_FLAG_POLL) | ZJW_FLAG_RELAYED);
    b[ZJW_HEADER_TARGET] = 0;
    zj_seal(b, p->size);
    c->nak_size[c->nak_tail] = p->size;
    c->txq[c->tx_tail++ & (ZJ_TXQ - 1)] = (struct tx){.type = TX_NAK, .again = 1, .buf = c->nak_tail};
    c->nak_tail = at;
}

/* ---- transmit queue ---- */

uint32_t zj_tx(zj_core *c, struct zj_frame *out, uint32_t max)
{
    uint32_t k = 0;
    for (uint32_t i = c->tx_head; i != c->tx_tail && k < max; i++) {
        const struct tx *t = &c->txq[i & (ZJ_TXQ - 1)];
        switch ((enum txtype)t->type) {
        case TX_VOID:
            continue;
        case TX_SLOT: {
            const struct stream *s = &c->st[t->stream];
            const struct meta *m = meta_of(c, s, t->seq);
            if (t->seq < s->base || !m->present)
                continue; /* everyone got it meanwhile */
            out[k] = (struct zj_frame){slot_of(c, s, t->seq), m->size, m->kind};
            break;
        }
        case TX_CONFIRM:
            out[k] = (struct zj_frame){c->confirm, c->confirm_size, ZJW_KIND_CONFIRM};
            break;
        case TX_NAK:
            out[k] = (struct zj_frame){c->naks[t->buf], c->nak_size[t->buf], c->naks[t->buf][ZJW_HEADER_KIND]};
            break;
        }
        c->shown[k++] = i;
    }
    c->shown_count = k;
    if (!k) {
        c->tx_head = c->tx_tail;
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
        c->confirm_queued = 0;
        c->count.tx_confirm++;
        c->count.tx_bytes += c->confirm_size;
        return;
    case TX_NAK: {
        uint32_t kind = c->naks[t->buf][ZJW_HEADER_KIND];
        c->nak_head = (c->nak_head + 1) % ZJ_NAK_BUFS;
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
    return t->type == TX_CONFIRM || (t->type == TX_NAK && !t->again) || (t->type == TX_SLOT && t->stream == c->self);
}

void zj_tx_done(zj_core *c, uint64_t now, uint32_t count)
{
    if (count > c->shown_count)
        count = c->shown_count;
    if (!count)
        return;
    for (uint32_t k = 0; k < count; k++) {
        const struct tx *t = &c->txq[c->shown[k] & (ZJ_TXQ - 1)];
        leave(c, t, now);
        if (own_word(c, t))
            c->tx_last = now;
    }
    c->tx_head = c->shown[count - 1] + 1;
    c->shown_count = 0;
}

uint64_t zj_last_tx(const zj_core *c) { return c->tx_last; }
