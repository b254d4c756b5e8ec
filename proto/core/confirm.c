/* Confirmations: what a CONFIRM or NAK reports (docs/protocol.md, rules C1 to C3 and C6 to C9), when this station owes one, to whom,
 * and its bytes. */
#include "order/order.h"

#define NO_BOUND 0xffffu /* a CONFIRM for all that says nothing of clocks */

/* Confirmations may go to one station alone, and CONFIRMs may speak for all. */
static int is_direct(const zj_core *c) { return c->cfg.direct && c->listed >= c->cfg.direct && !on_bus(c) && !c->cfg.pair[1]; }

/* The own CONFIRMs do. What a joiner begins with is no member's word: it speaks for nobody before it has heard them all (rule 5). */
static int speaks_for_all(const zj_core *c) { return is_direct(c) && !c->release.joined_by; }

/* T: clock that all members are known to have passed. */
static uint64_t passed_by_all(const zj_core *c)
{
    uint64_t passed = c->clock;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t h = c->list[i];
        if (h != c->self && c->st[h].clock < passed)
            passed = c->st[h].clock;
    }
    return passed;
}

static uint32_t bound_said(const zj_core *c)
{
    uint64_t behind = c->clock - passed_by_all(c);
    return behind < NO_BOUND - 1 ? (uint32_t)behind + 1 : NO_BOUND;
}

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

/* C7, C8: a CONFIRM speaks for all members of its instance, so what it says of them counts in that one only. */
static void heard_for_all(zj_core *c, uint64_t now, const struct pdu *p)
{
    uint32_t said = get16(p->bytes + ZJW_HEADER_BOUND);
    if (!said || (p->instance != c->instance && !faulty(c, ZJ_FAULT_OLD_WORD)))
        return;
    c->st[p->src].sums = 1;
    al_believe(c, p, now);
    uint64_t behind = said - 1, bound = p->clock > behind ? p->clock - behind : 0;
    if (said == NO_BOUND)
        return;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t h = c->list[i];
        struct stream *s = &c->st[h];
        if (h == c->self || h == p->src || bound <= s->clock || bound <= s->promise.clock)
            continue;
        s->promise.clock = bound;
        s->promise.next = faulty(c, ZJ_FAULT_EARLY_BOUND) ? 0 : widen(s->al[p->src], get32(p->ack + 4 * h));
        stream_promise(c, h);
    }
}

/* C9: somebody asks, and this station has told something to one only: that word, or what was to follow from it, was lost. */
void confirm_doubt(zj_core *c, uint64_t now)
{
    for (uint32_t h = 0; h < c->n; h++)
        if (c->st[h].direct.ack > c->st[h].sent.ack)
            c->confirm.direct_from = now + ZJ_DIRECT_REST_NS;
}

/* C6: the source's word that only this station has got. */
static void heard_direct(zj_core *c, uint64_t now, const struct pdu *p)
{
    if (pdu_direct(p)) {
        uint64_t told = widen(c->st[c->self].al[p->src], get32(p->ack + 4 * c->self));
        c->confirm.told = told > c->confirm.told ? told : c->confirm.told;
    } else if (p->flags & ZJW_FLAG_POLL) {
        confirm_doubt(c, now);
    }
}

/* An unsequenced PDU of the own instance or an earlier one. */
static void confirmed(zj_core *c, uint64_t now, const struct pdu *p)
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
    if (is_direct(c)) {
        heard_for_all(c, now, p);
        heard_direct(c, now, p);
    }
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
    if (now < s->relay.until && !pdu_direct(p)) {
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
        confirmed(c, now, p);
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

/* C7: own PDUs that all have, as some have said to this station alone, and that all have passed: it has not told the others yet. */
static int summary_owed(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    uint64_t to = c->confirm.told < me->min_al ? c->confirm.told : me->min_al;
    int lack = 0;
    if (!speaks_for_all(c) || to <= c->confirm.summed)
        return 0;
    for (uint32_t i = 0; i < c->listed; i++)
        lack |= c->list[i] != c->self && c->st[c->list[i]].direct.open < to;
    return lack && meta_of(c, me, to - 1)->clock <= passed_by_all(c);
}

/* C1: its source lacks an acknowledgement. */
static int owes_ack(const zj_core *c, uint32_t h)
{
    const struct stream *s = &c->st[h];
    return h != c->self && s->req > s->sent.ack && s->req > s->direct.ack;
}

static uint32_t owed_now(const zj_core *c)
{
    int all = all_wanted(c);
    uint32_t owed = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (owes_ack(c, h))
            owed = OWED_NEWS;
        if (s->acked < need_of(c, s, all) && s->min_al > s->sent.pack)
            owed = OWED_NEWS; /* C2 */
    }
    if (c->confirm.chatter || (c->confirm.sent_free < c->cfg.window && free_slots(c) >= c->cfg.window))
        owed = OWED_NEWS; /* the window was closed by what this station said last: say that it is open again */
    if (summary_owed(c))
        owed = OWED_NEWS;
    if (c->confirm.answer)
        owed |= OWED_ANSWER; /* C3 */
    return owed;
}

/* C6: index + 1 of the one station that is owed something, if nothing else is under way that others wait for; 0: all are told. */
static uint32_t owed_to(const zj_core *c, uint64_t now)
{
    uint32_t to = 0;
    if (!speaks_for_all(c) || now < c->confirm.direct_from || c->confirm.said_in != c->instance || c->confirm.answer || c->confirm.chatter || c->fence.raised ||
        c->confirm.sent_free < c->cfg.window || summary_owed(c) || confirm_acks_pending(c))
        return 0;
    if (c->confirm.state | c->confirm.trans || c->waiting || c->pinned || c->report.on || c->votes.head != c->votes.tail)
        return 0; /* the members are about to change */
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        int owed = owes_ack(c, h);
        if (!is_member(c, h)) {
            if (owed)
                return 0;
        } else if (owed) {
            if (to || !s->sums || !s->mac_known)
                return 0;
            to = h + 1;
        } else if (s->min_al < (h == c->self ? c->send.next : s->req) || (h != c->self && !s->sums)) {
            return 0; /* several stations send, or one does not know this rule */
        }
    }
    return to;
}

static void build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target, uint32_t only);

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
        build(c, now, 0, 0, owed_to(c, now));
    else
        c->confirm.due = due;
}

uint64_t zj_confirm_due(const zj_core *c) { return c->is_open ? c->confirm.due : ZJ_NEVER; }

void zj_want_ack(zj_core *c, uint32_t yes) { c->confirm.want_ack = yes != 0; }

/* ---- written ---- */

/* What has been written says for all: the own PDUs that it sums up. */
static void summed_up(zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    if (me->min_al > c->confirm.summed && meta_of(c, me, me->min_al - 1)->clock <= passed_by_all(c))
        c->confirm.summed = me->min_al;
    c->confirm.said_in = c->instance;
}

/* A CONFIRM into b; its size. */
uint32_t confirm_write(zj_core *c, uint8_t *b, uint32_t flags, uint32_t target)
{
    uint32_t size = ZJW_SIZEOF_HEADER + 8 * c->n + ZJW_SIZEOF_CONFIRM;
    uint64_t position, digest;
    uint32_t counted;

    uint32_t free = pdu_header(c, b, ZJW_KIND_CONFIRM, flags | ZJW_FLAG_PACK, c->send.next, c->clock, ZJW_SIZEOF_CONFIRM);
    b[ZJW_HEADER_TARGET] = wire_number(c, target);
    if (speaks_for_all(c))
        put16(b + ZJW_HEADER_BOUND, bound_said(c));
    if (target && !(flags & ZJW_FLAG_POLL)) {
        al_write(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
        c->st[target - 1].direct.ack = c->st[target - 1].req;
    } else {
        c->confirm.sent_free = free;
        al_say(c, b + ZJW_SIZEOF_HEADER, b + ZJW_SIZEOF_HEADER + 4 * c->n);
        if (speaks_for_all(c))
            summed_up(c);
    }
    zj_digest(c, &counted, &position, &digest);
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

void confirm_build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target) { build(c, now, flags, target, 0); }

/* target: station to answer a POLL; only: station that it is for alone; both index + 1, or 0. */
static void build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target, uint32_t only)
{
    uint8_t *b = c->confirm.bytes;

    if (c->bus.phase != ZJ_P_RUN) /* it would say that the reset is over */
        return;
    if (!c->confirm.queued && txq_full(c)) { /* the link takes nothing: nothing is said, so all stays owed */
        c->confirm.due = now + c->cfg.confirm_delay_ns;
        return;
    }
    if (c->confirm.queued) { /* not sent yet: this one says all that one would have said */
        uint32_t for_one = confirm_waits_direct(c);
        only = for_one == only ? only : 0;
        flags |= b[ZJW_HEADER_FLAGS] & (ZJW_FLAG_POLL | ZJW_FLAG_BYE);
        uint32_t other = for_one ? 0 : wire_place(c, b[ZJW_HEADER_TARGET]); /* one CONFIRM asks one station: which, chance decides */
        target = !target || (other && zj_random(c, 2)) ? other : target;
    }
    if (c->fence.raised)
        flags |= ZJW_FLAG_FENCED;
    if (c->confirm.want_ack)
        flags |= ZJW_FLAG_NEED_ACK;
    c->confirm.size = confirm_write(c, b, flags, only ? only : target);
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
