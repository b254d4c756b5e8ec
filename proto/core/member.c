/* Dynamic membership, as far as streams and order are concerned: votes, limits, pins, and the change from an instance to the
 * next one (docs/membership.md, rules 1 to 5a). What is to be changed, and when it is agreed, the engine knows. */
#include "order/order.h"

void member_set(zj_core *c, uint64_t members)
{
    c->members = members;
    c->listed = 0;
    for (uint32_t h = 0; h < c->n; h++)
        if (is_member(c, h))
            c->list[c->listed++] = h;
}

/* ---- votes ---- */

/* A joiner starts right after this vote: what follows it must not be forgotten before the instance with the joiner has begun,
 * as from then on its acks count. A vote in a later instance than the own one is for the instance after that. */
void vote_pin(zj_core *c, uint32_t h, uint64_t seq, uint32_t instance)
{
    struct stream *s = &c->st[h];
    uint64_t *pin = instance > c->instance ? &s->pin_next : &s->pin;
    if (faulty(c, ZJ_FAULT_NO_PIN) || *pin != ZJ_NEVER)
        return;
    *pin = seq + 1;
    c->pinned = 1;
}

int vote_push(zj_core *c, uint32_t h, uint64_t seq, const struct meta *m)
{
    if (c->votes.tail - c->votes.head == ZJ_VOTES)
        return 0;
    struct vote *v = &c->votes.queue[c->votes.tail++ % ZJ_VOTES];
    *v = (struct vote){.seq = seq, .clock = m->clock, .size = m->size < ZJ_VOTE_BYTES ? m->size : ZJ_VOTE_BYTES,
                       .instance = m->instance, .src = (uint8_t)h, .kind = m->kind};
    memcpy(v->data, slot_of(c, &c->st[h], seq), v->size);
    if (m->kind == ZJW_KIND_RCV_ACK)
        vote_pin(c, h, seq, m->instance);
    return 1;
}

int zj_proposal(zj_core *c, struct zj_vote *out)
{
    if (c->votes.head == c->votes.tail) {
        out->size = 0;
        c->report.seen = c->progress; /* all is told */
        c->report.bye = 0;
        return 0;
    }
    const struct vote *v = &c->votes.queue[c->votes.head++ % ZJ_VOTES];
    *out = (struct zj_vote){.data = v->data, .seq = v->seq, .clock = v->clock, .size = v->size, .instance = v->instance,
                            .src = v->src, .kind = v->kind};
    return 1;
}

int zj_propose(zj_core *c, uint64_t now, uint32_t kind, const uint8_t *payload, uint32_t size, uint64_t *seq, uint64_t *clock)
{
    struct stream *me = &c->st[c->self];
    uint32_t at = ZJW_SIZEOF_HEADER + 4 * c->n, begun = c->send.building && c->send.fill > c->send.payload_at;

    (void)now;
    if (!c->is_open || !is_vote(kind) || !medium_knows(c, kind) || size > c->slot_bytes - at ||
        c->send.next + begun >= me->base + c->cfg.slots)
        return -1;
    if (begun)
        send_seal(c); /* it may hold the end of a message that a joiner would get without its beginning */
    c->send.building = 0;
    memcpy(slot_for(c, me, c->send.next, at + size) + at, payload, size);
    send_pdu(c, kind, 0, at, at + size);
    *seq = c->send.next - 1;
    *clock = c->clock;
    if (kind == ZJW_KIND_RCV_ACK) {
        vote_pin(c, c->self, *seq, c->instance);
        c->send.frag_restart = c->send.frag_owner != 0;
    }
    return 0;
}

const uint8_t *zj_kept(const zj_core *c, uint32_t h, uint64_t seq, uint32_t *size)
{
    *size = 0;
    if (h >= c->n || seq < c->st[h].base || seq >= c->st[h].base + c->cfg.slots || !meta_of(c, &c->st[h], seq)->present)
        return NULL;
    *size = meta_of(c, &c->st[h], seq)->size;
    return slot_of(c, &c->st[h], seq);
}

int zj_all_have(const zj_core *c, uint64_t set, const uint64_t *seqs)
{
    for (uint32_t k = 0; k < c->n; k++)
        for (uint32_t j = 0; j < c->n && set >> k & 1; j++)
            if (set >> j & 1 && c->st[k].al[j] <= seqs[k])
                return 0;
    return 1;
}

void zj_report_progress(zj_core *c, uint32_t yes) { c->report.on = yes != 0; }

void zj_set_state(zj_core *c, uint64_t state, uint64_t trans)
{
    c->confirm.state = state;
    c->confirm.trans = trans;
}

void zj_block(zj_core *c, uint32_t yes) { c->send.blocked = yes != 0; }

/* ---- the wait set ---- */

void zj_wait_for(zj_core *c, uint32_t h, uint64_t clock, uint32_t frame_max)
{
    if (h >= c->n || is_member(c, h))
        return;
    if (clock != ZJ_NEVER)
        c->st[h].frame_max = frame_max ? frame_max : UINT32_MAX;
    c->st[h].wait_clock = clock;
    c->waiting &= ~(UINT64_C(1) << h);
    if (clock != ZJ_NEVER)
        c->waiting |= UINT64_C(1) << h;
}

void zj_limit(zj_core *c, uint64_t now, uint32_t h, uint64_t limit)
{
    if (!c->is_open || h >= c->n || h == c->self || !is_member(c, h))
        return;
    struct stream *s = &c->st[h];
    uint64_t known = 0, end = s->base + c->cfg.slots;

    if (limit != ZJ_NEVER) {
        limit = limit < s->req ? s->req : limit; /* it may shrink to that: who had more is being removed as well */
        known = limit; /* some station has all below */
    }
    s->closing = limit != ZJ_NEVER;
    if (faulty(c, ZJ_FAULT_NO_CLOSE))
        return;
    s->closed_at = limit;
    if (s->top > limit) {
        s->top = limit;
        s->noticed = s->noticed < limit ? s->noticed : limit;
    }
    for (uint64_t q = s->req; q < end && q < limit; q++) /* bound: slots; what came and stood beyond a former limit counts again */
        if (meta_of(c, s, q)->present && q + 1 > known)
            known = q + 1;
    for (uint32_t i = 0; limit == ZJ_NEVER && i < c->listed; i++)
        if (s->al[c->list[i]] > known)
            known = s->al[c->list[i]];
    stream_advance(c, h);
    if (s->top < s->req) /* a former, lower limit had cut it */
        s->top = s->noticed = s->req;
    if (known > s->req)
        stream_notice(c, h, known, now);
    if (s->req == s->top)
        s->nak_at = ZJ_NEVER;
}

/* ---- from an instance to the next one ---- */

static void row_set(struct stream *s, uint32_t n, uint64_t v)
{
    for (uint32_t j = 0; j < n; j++)
        s->al[j] = v;
}

/* Every member has all of it that will ever be: nothing is missing, and nothing of it has to be said any more. Level ack needs
 * everybody's word that it knows so: it has given it with its first PDU of the instance without this station. */
static void end_stream(zj_core *c, uint32_t h, uint32_t instance)
{
    struct stream *s = &c->st[h];
    for (uint64_t q = s->req; q < s->base + c->cfg.slots; q++) { /* bound: slots */
        struct meta *m = meta_of(c, s, q);
        m->present = m->asks = 0;
    }
    s->top = s->noticed = s->sent.ack = s->sent.pack = s->req;
    s->nak_at = s->closed_at = ZJ_NEVER;
    s->promise.clock = s->digest.counted = 0;
    s->closing = s->wants_ack = 0;
    s->left_at = instance;
    row_set(s, c->n, s->req);
    for (uint32_t j = 0; j < c->n; j++) {
        s->pack[j] = s->pack[j] < s->req ? s->pack[j] : s->req;
        if (j == c->self || c->st[j].spoke >= instance)
            s->pack[j] = s->req;
    }
}

/* A station that joins counts as having what the voters' votes follow, and nothing behind them. What others have said of
 * "everybody" did not mean it. */
static void add_column(zj_core *c, uint32_t h, uint64_t voters, const uint64_t *vote_seq)
{
    for (uint32_t k = 0; k < c->n; k++) {
        struct stream *s = &c->st[k];
        uint64_t has = voters >> k & 1 ? vote_seq[k] + 1 : s->req;
        s->al[h] = s->pack[h] = has;
        if (!(voters >> k & 1))
            continue;
        for (uint32_t j = 0; j < c->n; j++)
            s->pack[j] = s->pack[j] < has ? s->pack[j] : has;
        s->sent.pack = s->sent.pack < has ? s->sent.pack : has;
    }
}

static void admit(zj_core *c, uint64_t now, uint32_t h, const struct zj_commit *change)
{
    struct stream *s = &c->st[h];
    /* Its former life's numbers end below: what the log still holds of it has reached every level. */
    stream_start(c, h, now, ((s->req >> 32) + 1) << 32 | c->cfg.first_seq, change->place_clock);
    s->incarnation = change->incarnations[h];
    s->joined_at = change->instance;
    s->frame_max = change->frame_max ? change->frame_max : c->send.pdu_max;
    c->waiting &= ~(UINT64_C(1) << h);
}

static void change_members(zj_core *c, uint64_t now, const struct zj_commit *change, uint64_t left)
{
    uint64_t voters = change->members & ~change->joined;

    member_set(c, change->members);
    c->pinned = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        if (left >> h & 1)
            end_stream(c, h, change->instance);
        if (change->joined >> h & 1)
            admit(c, now, h, change);
        s->pin = is_member(c, h) ? s->pin_next : ZJ_NEVER;
        s->pin_next = ZJ_NEVER;
        c->pinned |= s->pin != ZJ_NEVER;
    }
    for (uint32_t h = 0; h < c->n; h++)
        if (change->joined >> h & 1)
            add_column(c, h, voters, change->vote_seq);
    if (change->joined)
        c->join_last = change->instance;
    al_minima(c);
    if ((uint64_t)change->instance << 32 > c->clock)
        c->clock = (uint64_t)change->instance << 32;
    send_window(c);
}

int zj_commit(zj_core *c, uint64_t now, const struct zj_commit *change)
{
    uint64_t left = c->members & ~change->members, others = c->n < 64 ? change->members >> c->n : 0;
    uint64_t voters = change->members & ~change->joined;

    if (change->instance != c->instance + 1 || !change->view || others || change->joined & ~change->members ||
        change->joined & c->members || voters & ~c->members || !(voters >> c->self & 1) || change->place_src >= c->n)
        return -1;
    if (c->views.tail - c->views.head == ZJ_EVENTS)
        return 1;
    for (uint32_t h = 0; h < c->n && c->is_open; h++)
        if (change->joined >> h & 1 && (c->st[h].ordered < c->st[h].req || c->st[h].held))
            return 1;
    if (c->is_open && left)
        order_remove(c, change->instance);
    c->instance = change->instance;
    c->view = change->view;
    event_push(c, change, change->incarnations, left);
    order_instance(c);
    if (c->is_open)
        change_members(c, now, change, left);
    else
        member_set(c, change->members);
    return 0;
}
