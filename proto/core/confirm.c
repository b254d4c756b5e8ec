/* Confirmations: what a CONFIRM or NAK reports (docs/protocol.md, rules C1 to C3), when this station owes one, and its bytes. */
#include "order/order.h"

/* ---- received ---- */

/* C3: it lacks what I said last, or what I have not said yet. */
static int needs_update(const zj_core *c, const struct pdu *p)
{
    if (p->instance != c->instance || free_slots(c) > c->confirm.sent_free || p->target == c->self + 1)
        return 1;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t h = c->list[i];
        const struct stream *t = &c->st[h];
        if (widen(t->sent.ack, get32(p->ack + 4 * h)) < t->sent.ack || widen(t->sent.pack, get32(p->pack + 4 * h)) < t->sent.pack ||
            t->req > t->sent.ack || t->min_al > t->sent.pack)
            return 1;
    }
    return 0;
}

/* An unsequenced PDU of the own instance or an earlier one. */
static void confirmed(zj_core *c, const struct pdu *p)
{
    struct stream *s = &c->st[p->src];
    uint64_t next = widen(s->req, p->seq);

    if (p->clock > s->promise.clock && p->clock > s->clock) {
        s->promise.clock = p->clock;
        s->promise.next = next;
        stream_promise(c, p->src);
    }
    if (p->clock > c->clock)
        c->clock = p->clock;
    s->frame_max = p->frame_max;
    if (p->kind != ZJW_KIND_CONFIRM)
        return;
    s->wants_ack = (p->flags & ZJW_FLAG_NEED_ACK) != 0;
    if (p->flags & ZJW_FLAG_BYE && !s->left)
        c->report.bye = 1; /* no station should wait for it: the engine learns it at once */
    s->left = (p->flags & ZJW_FLAG_BYE) != 0;
    s->fenced = (p->flags & ZJW_FLAG_FENCED) != 0;
    digest_hear(c, p->src, get32(p->payload + ZJW_CONFIRM_COUNTED), get64(p->payload + ZJW_CONFIRM_POSITION),
                get64(p->payload + ZJW_CONFIRM_DIGEST));
    if (faulty(c, ZJ_FAULT_CHATTER))
        c->confirm.chatter = 1;
    if (p->flags & ZJW_FLAG_POLL && !c->cfg.answer_each && needs_update(c, p)) {
        c->confirm.answer = 1;
        c->count.polls_answered++;
    }
}

/* Send another station's CONFIRM again. If there is no room it is asked for again. */
static void confirm_relay(zj_core *c, const struct pdu *p)
{
    uint8_t *b = p->size > ZJ_SMALL_BYTES ? NULL : small_frame(c);
    if (!b)
        return;
    memcpy(b, p->bytes, p->size);
    b[ZJW_HEADER_FLAGS] = (uint8_t)((b[ZJW_HEADER_FLAGS] & ~ZJW_FLAG_POLL) | ZJW_FLAG_RELAYED);
    b[ZJW_HEADER_TARGET] = 0;
    zj_add_checksum(b, p->size);
    small_send(c, p->size, 1);
}

/* Repeated polls from A to B mean that A does not receive B's answers, so B's next CONFIRM is relayed. A station that is cut off from
 * another in one direction only stays with it: it has signs of life and acknowledgements from here, and data by retransmission. */
static void relay_if_asked(zj_core *c, uint64_t now, const struct pdu *p)
{
    struct stream *s = &c->st[p->src];
    if (now < s->relay.until) {
        s->relay.until = 0;
        confirm_relay(c, p);
    }
    uint32_t h = p->target - 1u;
    if (!(p->flags & ZJW_FLAG_POLL) || !p->target || h == c->self || h == p->src || !is_member(c, h))
        return;
    struct stream *t = &c->st[h];
    if (t->relay.asked_by == p->src + 1 && now - t->relay.asked_at < ZJ_ASKS_NS)
        t->relay.until = now + c->cfg.poll_delay_ns;
    t->relay.asked_by = (uint8_t)(p->src + 1);
    t->relay.asked_at = now;
}

void take_unsequenced(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, int later)
{
    struct stream *s = &c->st[p->src];
    s->heard = now; /* from the station itself, or passed on just now by one that hears it */
    if (p->flags & ZJW_FLAG_RELAYED) {
        c->count.rx_duplicate++;
    } else if (mac) { /* under its present address */
        memcpy(s->mac, mac, 6);
        s->mac_known = 1;
    }
    if (!later)
        confirmed(c, p);
    if (p->kind == ZJW_KIND_NAK) {
        c->count.rx_nak++;
        nak_take(c, p, now);
        return;
    }
    c->count.rx_confirm++;
    s->peer.state = get64(p->payload + ZJW_CONFIRM_STATE);
    s->peer.trans = get64(p->payload + ZJW_CONFIRM_TRANS);
    s->peer.instance = p->instance;
    s->peer.view = get32(p->payload + ZJW_CONFIRM_VIEW);
    if (medium_repeats(c) && !(p->flags & ZJW_FLAG_RELAYED))
        relay_if_asked(c, now, p);
    if (!later)
        return;
    control_push_limited(c, now, &s->shown.later_at, p, mac, ZJ_DROP_INSTANCE); /* what it says counts once we are there as well */
    if (p->flags & ZJW_FLAG_POLL && p->target == c->self + 1)
        c->confirm.answer = 1;
}

/* ---- owed ---- */

enum { OWED_NEWS = 1, OWED_ANSWER = 2 };

/* Nobody has waited for level ack for so long that the log fills with what has not reached it: PDUs carry P again for a while. */
static int ack_lags(const zj_core *c) { return c->order.position - c->order.acked > c->order.mask / 4; }

/* Some station waits for level ack of everything. */
static int all_wanted(const zj_core *c)
{
    if (medium_acks(c) || c->confirm.want_ack || ack_lags(c))
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
    return c->order.acked < c->order.need_ack && s->ordered > s->need_ack ? s->ordered : s->need_ack;
}

int confirm_acks_pending(const zj_core *c)
{
    int all = all_wanted(c);
    for (uint32_t h = 0; h < c->n; h++)
        if (c->st[h].acked < need_of(c, &c->st[h], all))
            return 1;
    return 0;
}

static uint32_t owed_now(const zj_core *c)
{
    int all = all_wanted(c);
    uint32_t owed = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (h != c->self && s->req > s->sent.ack)
            owed = OWED_NEWS; /* C1 */
        if (s->acked < need_of(c, s, all) && s->min_al > s->sent.pack)
            owed = OWED_NEWS; /* C2 */
    }
    if (c->confirm.chatter || (c->confirm.sent_free < c->cfg.window && free_slots(c) >= c->cfg.window))
        owed = OWED_NEWS; /* the window was closed by what this station said last: say that it is open again */
    if (c->confirm.answer)
        owed |= OWED_ANSWER; /* C3 */
    return owed;
}

void confirm_clear(zj_core *c)
{
    c->confirm.owed_since = 0;
    c->confirm.due = ZJ_NEVER;
    c->confirm.answer = c->confirm.chatter = 0;
}

void confirm_step(zj_core *c, uint64_t now, uint32_t drained)
{
    uint32_t owed = owed_now(c);
    if (!owed) {
        confirm_clear(c);
        return;
    }
    if (!c->confirm.owed_since)
        c->confirm.owed_since = now ? now : 1;
    uint64_t due = c->confirm.owed_since + c->cfg.confirm_delay_ns;
    if (owed == OWED_ANSWER && c->confirm.answer_at) /* nothing but an answer to a POLL: at most one per confirm_delay */
        due = c->confirm.answer_at + c->cfg.confirm_delay_ns;
    else if (drained)
        due = now;
    if (now >= due)
        confirm_build(c, now, 0, 0);
    else
        c->confirm.due = due;
}

uint64_t zj_confirm_due(const zj_core *c) { return c->is_open ? c->confirm.due : ZJ_NEVER; }

void zj_want_ack(zj_core *c, uint32_t yes) { c->confirm.want_ack = yes != 0; }

/* ---- written ---- */

/* A CONFIRM into b; its size. */
uint32_t confirm_write(zj_core *c, uint8_t *b, uint32_t flags, uint32_t target)
{
    uint32_t size = ZJW_SIZEOF_HEADER + 8 * c->n + ZJW_SIZEOF_CONFIRM;
    uint64_t position, digest;
    uint32_t counted;

    c->confirm.sent_free = pdu_header(c, b, ZJW_KIND_CONFIRM, flags | ZJW_FLAG_PACK, c->send.next, c->clock, ZJW_SIZEOF_CONFIRM);
    b[ZJW_HEADER_TARGET] = wire_number(c, target);
    al_say(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
    digest_said(c, &counted, &position, &digest);
    uint8_t *p = b + ZJW_SIZEOF_HEADER + 8 * c->n;
    put64(p + ZJW_CONFIRM_STATE, c->confirm.state);
    put64(p + ZJW_CONFIRM_TRANS, c->confirm.trans);
    put64(p + ZJW_CONFIRM_POSITION, position);
    put64(p + ZJW_CONFIRM_DIGEST, digest);
    put32(p + ZJW_CONFIRM_COUNTED, counted);
    put32(p + ZJW_CONFIRM_VIEW, c->view);
    zj_add_checksum(b, size);
    return size;
}

void confirm_build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target)
{
    uint8_t *b = c->confirm.bytes;

    if (c->bus.phase != ZJ_P_RUN) /* it would say that the reset is over */
        return;
    if (!c->confirm.queued && txq_full(c)) { /* the link takes nothing: nothing is said, so all stays owed */
        c->confirm.due = now + c->cfg.confirm_delay_ns;
        return;
    }
    if (c->confirm.queued) { /* not sent yet: this one says all that one would have said */
        flags |= b[ZJW_HEADER_FLAGS] & (ZJW_FLAG_POLL | ZJW_FLAG_BYE);
        uint32_t other = wire_place(c, b[ZJW_HEADER_TARGET]); /* one CONFIRM asks one station: which, chance decides */
        target = !target || (other && zj_random(c, 2)) ? other : target;
    }
    if (c->fence.raised)
        flags |= ZJW_FLAG_FENCED;
    if (c->confirm.want_ack)
        flags |= ZJW_FLAG_NEED_ACK;
    c->confirm.size = confirm_write(c, b, flags, target);
    if (c->confirm.answer)
        c->confirm.answer_at = now;
    confirm_clear(c);
    tx_confirm(c);
}

void zj_probe(zj_core *c, uint64_t now, uint32_t h)
{
    if (!c->is_open || h >= c->n || h == c->self || c->bus.phase != ZJ_P_RUN)
        return;
    confirm_build(c, now, ZJW_FLAG_POLL, h + 1);
    c->count.tx_poll++;
}

void zj_heartbeat(zj_core *c, uint64_t now, uint32_t flags)
{
    if (!c->is_open || c->bus.phase != ZJ_P_RUN)
        return;
    confirm_build(c, now, flags, 0);
    c->count.tx_heartbeat++;
}
