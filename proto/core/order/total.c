/* Total order on a switched medium: by logical clock, then source (docs/protocol.md). PDUs come in any order and are repeated by any
 * holder; one is delivered once every station is known to have passed its clock. */
#include "order.h"

static int take(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    struct stream *s = &c->st[p->src];
    int later = p->instance > c->instance, drop; /* later: its vectors may speak of incarnations that we do not know yet */
    uint32_t only = pdu_direct(p);
    if (only && only != c->self + 1) { /* overheard: a switch sends to all what it does not know the place of */
        c->count.rx_duplicate++;
        return ZJ_DROP_NONE;
    }
    if (!later && (drop = al_merge(c, p, now)))
        return drop;
    if (p->instance > s->spoke) {
        s->spoke = p->instance;
        al_spoke(c, p->src);
    }
    if (!is_sequenced(p->kind)) {
        take_unsequenced(c, now, p, mac, later);
        return ZJ_DROP_NONE;
    }
    if (!mac || !s->mac_known || !memcmp(mac, s->mac, 6))
        s->heard = now;
    c->count.rx_data++;
    return stream_take(c, p, now);
}

/* The next in the total order: the least (clock, src) among the heads, or the view event if it stands before, once every
 * station of the wait set is known to have passed its clock. In a flush it is known that there is nothing before it. */
static int choose(const zj_core *c, struct entry *out)
{
    uint64_t best = ZJ_NEVER, passed = ZJ_NEVER;
    const uint64_t faults = c->cfg.faults;
    uint32_t at = 0;
    const struct meta *head = NULL;

    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        uint64_t known = h == c->self ? c->clock : s->clock;
        if (known < passed && is_member(c, h))
            passed = known;
        if (s->ordered >= s->req)
            continue;
        const struct meta *m = meta_of(c, s, s->ordered);
        uint64_t key = faults & ZJ_FAULT_ARRIVAL_ORDER ? m->arrival : m->clock;
        if (key < best) {
            best = key;
            head = m;
            at = h;
        }
    }
    if (c->waiting && !(faults & ZJ_FAULT_NO_WAIT_JOINER))
        for (uint32_t h = 0; h < c->n; h++)
            if (c->waiting >> h & 1 && !is_member(c, h) && c->st[h].wait_clock < passed)
                passed = c->st[h].wait_clock;
    if (c->flush.on && c->order.position >= c->flush.to)
        return NOTHING;
    if (c->flush.on || faults & (ZJ_FAULT_ARRIVAL_ORDER | ZJ_FAULT_NO_WAIT))
        passed = ZJ_NEVER;
    if (c->views.head != c->views.tail) {
        const struct event *e = event_next(c);
        if (faults & ZJ_FAULT_EAGER_VIEW ||
            (e->clock <= passed && (!head || e->clock < head->clock || (e->clock == head->clock && e->src < at))))
            return A_VIEW;
    }
    if (!head || head->clock > passed || (head->instance > c->instance && !(faults & ZJ_FAULT_FUTURE)))
        return NOTHING; /* the last: rule 4a */
    *out = (struct entry){.seq = c->st[at].ordered, .src = at};
    return A_PDU;
}

/* What a joiner releases says that all members of that view know the view, and hold what stands before its event:
 * so not before they have said both, the latter by their acknowledgements. */
static int view_shared(const zj_core *c)
{
    for (uint32_t i = 0; i < c->listed; i++) {
        const struct stream *s = &c->st[c->list[i]];
        if (s->min_al < s->before_join || (c->list[i] != c->self && s->spoke < c->release.joined_by))
            return 0;
    }
    return !c->views.joining && c->order.preack >= c->release.at;
}

static void levels(zj_core *c)
{
    if (c->flush.on) { /* all stations that continue have it, and know that all have */
        uint64_t reached = c->order.position < c->flush.to ? c->order.position : c->flush.to;
        c->order.preack = c->order.preack > reached ? c->order.preack : reached;
        c->order.acked = c->order.preack;
        return;
    }
    if (!c->is_open && !faulty(c, ZJ_FAULT_LATE_LEVELS)) /* order_close() has said the last word */
        return;
    levels_climb(c, c->order.position, ZJ_FAULT_EARLY_ACK);
    if (c->release.joined_by && view_shared(c))
        c->release.joined_by = 0;
}

static int pending(const zj_core *c)
{
    if ((c->send.building && !c->send.blocked) || ack_awaited(c) || c->order.preack < c->order.position)
        return 1;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (s->top > s->req || s->min_al < s->req || s->ordered < s->req)
            return 1;
    }
    return 0;
}

static uint64_t reached(const zj_core *c) { return released(c); }
static uint64_t digest_at(const zj_core *c) { return c->order.preack; }
static uint64_t key(const zj_core *c, uint64_t clock) { (void)c; return clock; }
static uint64_t clock(const zj_core *c) { return c->clock; }

static void positions(const zj_core *c, uint64_t out[ZJ_LEVELS])
{
    uint64_t preack = released(c);
    out[ZJ_ORDERED] = c->order.position;
    out[ZJ_PREACK] = preack;
    out[ZJ_ACK] = c->order.acked < preack ? c->order.acked : preack;
}

const struct main_ops total_ops = {
    .take = take, .choose = choose, .levels = levels, .pending = pending, .positions = positions,
    .reached = reached, .digest_at = digest_at, .key = key, .clock = clock,
};
