/* Sending: packing, fragments, flow condition. */
#include "order/order.h"

void send_reset(zj_core *c)
{
    c->send.building = 0;
    c->send.frag_owner = 0;
    c->send.frag_restart = 0;
    txq_reset(c);
    confirm_clear(c);
    c->confirm.answer_at = 0;
    c->poll.at = ZJ_NEVER;
    c->poll.wait = c->cfg.poll_delay_ns;
    c->poll.seen = c->progress;
    c->confirm.sent_free = c->cfg.slots;
    send_window(c);
}

/* Flow condition: min_al[self] <= seq < min_al[self] + min(W, minF / n); free_buffers is already times n on the wire. The largest
 * PDU to build is what every station can take. */
void send_window(zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    uint32_t window = c->cfg.window, limit = c->send.own_frame_max < c->send.limit ? c->send.own_frame_max : c->send.limit;
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
    c->send.pdu_max = limit < least ? least : limit;
    c->send.end = me->min_al + window;
    /* Own buffers: messages leave room for votes. Else a station that went on sending while the order waits for another
     * one, whose acknowledgements still come, could not vote for the removal that ends the wait. */
    uint32_t votes = kept_for_votes(c), some = c->n + 1 < c->cfg.slots / 4 ? c->n + 1 : c->cfg.slots / 4;
    uint64_t kept = me->base + c->cfg.slots - (votes > some ? votes : some);
    if (c->send.end > kept || faulty(c, ZJ_FAULT_FLOOD))
        c->send.end = kept;
}

void zj_limit_size(zj_core *c, uint32_t limit, uint32_t base)
{
    c->send.limit = limit;
    c->send.base = base;
    if (c->is_open)
        send_window(c);
}

uint32_t zj_pdu_max(const zj_core *c) { return c->send.pdu_max ? c->send.pdu_max : UINT32_MAX; }

uint32_t zj_asked_again(const zj_core *c) { return c->send.asked_again; }

int zj_pressed(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    return c->is_open && c->send.end > me->min_al && 2 * (c->send.next - me->min_al) >= c->send.end - me->min_al;
}

int zj_too_long(const zj_core *c, uint32_t size)
{
    const struct stream *me = &c->st[c->self];
    if (!c->is_open)
        return 0;
    for (uint64_t q = me->min_al; q < c->send.next; q++) /* bound: window */
        if (meta_of(c, me, q)->size > size)
            return 1;
    return 0;
}

int send_can_seal(const zj_core *c)
{
    return c->send.next < c->send.end && !c->send.blocked && c->bus.phase == ZJ_P_RUN;
}

/* ---- packing ---- */

static int start(zj_core *c, int need_ack)
{
    const struct stream *me = &c->st[c->self];
    if (c->send.next >= me->base + c->cfg.slots)
        return 0;
    c->send.flags = need_ack ? ZJW_FLAG_NEED_ACK : 0;
    if (need_ack || confirm_acks_pending(c))
        c->send.flags |= ZJW_FLAG_PACK;
    c->send.payload_at = c->send.fill = payload_start(c, c->send.flags);
    c->send.building = 1;
    c->send.cap = c->send.pdu_max <= c->short_bytes ? c->short_bytes : c->slot_bytes;
    return 1;
}

void send_pdu(zj_core *c, uint32_t kind, uint32_t flags, uint32_t payload_at, uint32_t size)
{
    struct stream *me = &c->st[c->self];
    uint64_t seq = c->send.next, progress = c->progress;
    struct meta *m = meta_of(c, me, seq);
    uint8_t *b = slot_for(c, me, seq, size);

    c->send.next = me->top = seq + 1;
    medium_number(c); /* before A is written */
    c->confirm.sent_free = pdu_header(c, b, kind, flags, seq, c->clock, size - payload_at);
    al_say(c, b + ZJW_SIZEOF_HEADER, flags & ZJW_FLAG_PACK ? b + ZJW_SIZEOF_HEADER + 4 * c->n : NULL);
    zj_add_checksum(b, size);
    *m = (struct meta){.clock = c->clock, .arrival = c->arrivals++, .size = size, .instance = c->instance,
                       .payload_crc = get32(b + ZJW_HEADER_CHECK + 4), .present = HELD,
                       .flags = (uint8_t)flags, .kind = (uint8_t)kind};
    me->clock = c->clock;
    al_raise(c, c->self, c->self, seq + 1); /* confirmed by its source from its transmission */
    if (flags & ZJW_FLAG_NEED_ACK)
        me->need_ack = seq + 1;
    if (flags & BESIDE_FLAGS)
        order_accepted(c, c->self, seq, flags);
    c->progress++;
    c->poll.own += c->progress - progress;
    tx_slot(c, c->self, seq, 0);
}

/* Of the PDU that is being packed. */
static uint8_t *building(const zj_core *c) { return slot_for(c, &c->st[c->self], c->send.next, c->send.cap); }

void send_seal(zj_core *c)
{
    c->send.building = 0;
    if (c->send.cap > c->short_bytes && c->send.fill <= c->short_bytes) /* it has stayed short */
        memcpy(slot_for(c, &c->st[c->self], c->send.next, c->send.fill) + c->send.payload_at, building(c) + c->send.payload_at,
               c->send.fill - c->send.payload_at);
    send_pdu(c, ZJW_KIND_DATA, c->send.flags, c->send.payload_at, c->send.fill);
}

static uint32_t room(const zj_core *c)
{
    const uint32_t end = c->send.pdu_max < c->send.cap ? c->send.pdu_max : c->send.cap; /* it may have grown since */
    return end > c->send.fill ? end - c->send.fill : 0;
}

static void append(zj_core *c, struct zj_offer *m, uint32_t size, int frag)
{
    uint8_t *b = building(c) + c->send.fill;
    uint32_t flags = message_flag(m->ordering), head = ZJW_SIZEOF_MESSAGE;
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
    c->send.fill += head + size;
    m->done += size;
    if (m->need_ack)
        c->send.flags |= ZJW_FLAG_NEED_ACK;
    c->send.flags |= (uint8_t)pdu_flag(m->ordering);
}

/* Make a PDU with at least `least` free bytes ready; 0: no room now. */
static int prepare(zj_core *c, uint32_t least, int need_ack)
{
    if (c->send.building && room(c) < least) {
        if (!send_can_seal(c)) {
            c->count.window_closed++;
            return 0;
        }
        send_seal(c);
    }
    return c->send.building || start(c, need_ack);
}

uint32_t zj_payload_max(const zj_core *c)
{
    return c->send.pdu_max - payload_start(c, ZJW_FLAG_PACK) - ZJW_SIZEOF_MESSAGE;
}

int zj_offer(zj_core *c, struct zj_offer *m)
{
    if (m->size > c->cfg.message_max || m->type > (c->cfg.pair[1] ? ZJW_TYPE_RELAY : ZJW_TYPE_SERVICE) || !order_available(c, m->ordering))
        return -1;
    if (!c->is_open || c->fence.raised || c->send.blocked)
        return 0;
    if (m->done && c->send.frag_restart && c->send.frag_owner == (uint32_t)m->client + 1) {
        m->done = 0; /* what was taken of it stands before the vote for a joiner */
        c->send.frag_owner = 0;
        c->send.frag_restart = 0;
    }
    if (!m->done && m->size <= zj_payload_max(c)) {
        if (!prepare(c, ZJW_SIZEOF_MESSAGE + m->size, m->need_ack))
            return 0;
        append(c, m, m->size, 0);
    } else {
        uint32_t least = ZJW_SIZEOF_MESSAGE + ZJW_SIZEOF_FRAGMENT + 1;
        if (!m->done && c->send.frag_owner)
            return 0; /* one fragmented message at a time; small ones pass between */
        if (m->done && c->send.frag_owner != (uint32_t)m->client + 1)
            return -1;
        c->send.frag_owner = (uint32_t)m->client + 1;
        while (m->done < m->size) { /* bound: window */
            if (!prepare(c, least, m->need_ack)) {
                if (!m->done)
                    c->send.frag_owner = 0; /* nothing of it is under way: it will come as a new one */
                return 0;
            }
            uint32_t fits = room(c) - ZJW_SIZEOF_MESSAGE - ZJW_SIZEOF_FRAGMENT, left = m->size - m->done;
            append(c, m, left < fits ? left : fits, 1);
        }
        c->send.frag_owner = 0;
    }
    c->count.messages_sent++;
    c->count.message_bytes_sent += m->size;
    return 1;
}
