/* Order on a switched medium: by logical clock, then source (spec chapter 20); levels of receipt; digest; delivery. */
#include "zj_int.h"

#define DIGEST_START 0x9E3779B97F4A7C15ull

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

void order_reset(zj_core *c)
{
    c->position = c->preack = c->acked = c->need_position = 0;
    memset(c->said_positions, 0, sizeof c->said_positions);
    c->digest = 0;
    c->cur.inside = c->op.inside = 0;
    c->starved = NULL;
    c->dup = c->swapped = 0;
    c->event_head = c->event_tail = c->view_count = 0;
    c->view_base = 0;
    c->joining = 0;
    c->join_clock = 0;
    c->op_head = c->op_tail = 0;
    c->op_later = 0;
    c->removal = c->let_in_by = 0;
    c->removal_at = c->released_before = 0;
}

void order_remove(zj_core *c, uint32_t instance)
{
    order_levels(c); /* by what the members of the instance that ends have said */
    if (faulty(c, ZJ_FAULT_EARLY_REMOVAL))
        return;
    c->released_before = released(c);
    c->removal_at = ZJ_NEVER;
    c->removal = instance;
}

void order_close(zj_core *c)
{
    order_levels(c);
    if (released(c) < c->preack) { /* never on a bus */
        c->preack = released(c);
        c->acked = c->acked < c->preack ? c->acked : c->preack;
    }
    c->removal_at = 0;
}

/* ---- views ---- */

void order_enter(zj_core *c, uint32_t instance, uint32_t hash)
{
    c->digest = mix((c->view_count ? c->digest : DIGEST_START) ^ hash);
    c->view_base = c->position;
    c->views[c->view_count++ % ZJ_VIEWS] =
        (struct view){.base = c->position, .seed = c->digest, .instance = instance, .hash = hash};
}

static uint32_t views_known(const zj_core *c) { return c->view_count < ZJ_VIEWS ? c->view_count : ZJ_VIEWS; }

/* The k-th from the last one, which is 0. */
static const struct view *view_back(const zj_core *c, uint32_t k) { return &c->views[(c->view_count - 1 - k) % ZJ_VIEWS]; }

const struct view *view_at(const zj_core *c, uint64_t position)
{
    for (uint32_t k = 0; k < views_known(c); k++)
        if (view_back(c, k)->base <= position)
            return view_back(c, k);
    return NULL;
}

const struct view *view_of(const zj_core *c, uint32_t hash)
{
    for (uint32_t k = 0; k < views_known(c); k++)
        if (view_back(c, k)->hash == hash)
            return view_back(c, k);
    return NULL;
}

int event_push(zj_core *c, const struct zj_commit *change, const uint32_t *incarnations, uint64_t left)
{
    if (c->event_tail - c->event_head == ZJ_EVENTS)
        return 0;
    struct event *e = &c->events[c->event_tail++ % ZJ_EVENTS];
    e->clock = change->place_clock;
    e->src = change->place_src;
    e->changed = change->joined | left;
    e->joined = change->joined != 0;
    e->instance = change->instance;
    e->hash = change->view;
    e->size = ZJW_SIZEOF_VIEW + 4 * c->n;
    put32(e->data + ZJW_VIEW_VINSTANCE, change->instance);
    put32(e->data + ZJW_VIEW_HASH, change->view);
    put64(e->data + ZJW_VIEW_OPERATIONAL, change->members);
    put64(e->data + ZJW_VIEW_JOINED, change->joined);
    put64(e->data + ZJW_VIEW_LEFT, left);
    for (uint32_t h = 0; h < c->n; h++)
        put32(e->data + ZJW_SIZEOF_VIEW + 4 * h, change->members >> h & 1 ? incarnations[h] : 0);
    c->progress++;
    return 1;
}

static const struct event *next_event(const zj_core *c) { return &c->events[c->event_head % ZJ_EVENTS]; }

static void take_view(zj_core *c, struct zj_message *out)
{
    const struct event *e = next_event(c);
    c->event_head++;
    for (uint32_t h = 0; h < c->n; h++) /* what of a message came before its source's life ended will not be completed */
        if (e->changed >> h & 1)
            assembly_forget(c, &c->st[h].parts);
    if (e->joined) /* who is let in knows nothing of the order before: all start the digest anew */
        c->digest = DIGEST_START;
    order_enter(c, e->instance, e->hash);
    if (e->instance == c->removal && c->removal_at)
        c->removal_at = c->position;
    for (uint32_t h = 0; c->joining && h < c->n; h++)
        c->st[h].before_join = c->st[h].ordered;
    if (c->flush_view == e->hash) {
        c->flush_view = 0;
        c->flush_to = c->position + c->flush_count;
    }
    c->joining = 0;
    c->progress++;
    *out = (struct zj_message){.data = e->data, .size = e->size, .clock = e->clock, .position = c->position - 1,
                               .index = 0xffff, .src = (uint8_t)c->self, .type = ZJW_TYPE_VIEW, .view_src = (uint8_t)e->src};
}

/* ---- what comes next ---- */

/* The next in the total order: the least (clock, src) among the heads, or the view event if it stands before, once every
 * station of the wait set is known to have passed its clock. In a flush it is known that there is nothing before it. */
int switched_choose(const zj_core *c, uint32_t *out)
{
    uint64_t best = ZJ_NEVER, passed = ZJ_NEVER;
    uint32_t at = 0, faults = c->cfg.faults;
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
    if (c->flushing && c->position >= c->flush_to)
        return NOTHING;
    if (c->flushing || faults & (ZJ_FAULT_ARRIVAL_ORDER | ZJ_FAULT_NO_WAIT))
        passed = ZJ_NEVER;
    if (c->event_head != c->event_tail) {
        const struct event *e = next_event(c);
        if (faults & ZJ_FAULT_EAGER_VIEW ||
            (e->clock <= passed && (!head || e->clock < head->clock || (e->clock == head->clock && e->src < at))))
            return A_VIEW;
    }
    if (!head || head->clock > passed || (head->instance > c->instance && !(faults & ZJ_FAULT_FUTURE)))
        return NOTHING; /* the last: rule 4a */
    *out = at;
    return A_PDU;
}

/* An entry stays until it has reached every level. Level ack is far behind only if nobody waits for it: ack_lags() in send.c asks
 * for P vectors long before the log is full. One entry to spare: digests[preack - 1] is still needed. */
static int log_full(const zj_core *c)
{
    return c->position >= c->acked + c->log_mask; /* on a bus it is never above */
}

/* While a vote waits for the engine nothing is delivered but the rest of a PDU: it may say where this station's instance ends. */
static int held_by_vote(const zj_core *c) { return c->vote_head != c->vote_tail; }

int order_ready(zj_core *c)
{
    uint32_t h;
    if (!c->is_open || c->fenced || assembly_starves(c))
        return 0;
    return c->cur.inside || (!held_by_vote(c) && (c->dup || op_ready(c) || (!log_full(c) && medium_choose(c, &h) != NOTHING)));
}

int order_left(const zj_core *c)
{
    uint32_t h;
    return c->cur.inside ? c->position <= c->flush_to : op_ready(c) || medium_choose(c, &h) != NOTHING;
}

static void swap_once(zj_core *c, uint32_t *h)
{
    if (c->swapped || c->position < 8)
        return;
    for (uint32_t k = 0; k < c->n; k++)
        if (k != *h && c->st[k].ordered < c->st[k].req) {
            *h = k;
            c->swapped = 1;
            return;
        }
}

static void begin(zj_core *c, uint32_t h, uint64_t seq)
{
    cursor_set(c, &c->cur, h, seq);
    c->silent = c->joining;
}

/* Begin the PDU that comes next, or take the view event that does. */
static int next_pdu(zj_core *c, struct zj_message *out)
{
    uint32_t h = 0;
    if (c->dup) {
        c->dup = 2;
        begin(c, c->dup_src, c->dup_seq);
        return A_PDU;
    }
    order_levels(c);
    if (log_full(c))
        return NOTHING;
    switch (medium_choose(c, &h)) {
    case NOTHING: return NOTHING;
    case A_VIEW: take_view(c, out); return A_VIEW;
    }
    if (faulty(c, ZJ_FAULT_SWAP))
        swap_once(c, &h);
    struct stream *s = &c->st[h];
    if (faulty(c, ZJ_FAULT_SKIP_GAP))
        while (s->ordered < s->req && !meta_of(c, s, s->ordered)->present)
            s->ordered++;
    if (s->ordered >= s->req)
        return NOTHING;
    begin(c, h, s->ordered);
    if (c->silent) /* before the view in which this station was let in: only the fragments in it matter */
        return A_PDU;
    const struct meta *m = meta_of(c, s, s->ordered);
    c->log[c->position & c->log_mask] = (struct entry){.seq = s->ordered, .src = h};
    /* What is mixed in must be the same for who was let in later: numbers as on the wire, positions from the last view on. */
    c->digest = mix(c->digest ^ mix((uint64_t)m->payload_crc << 32 ^ (uint32_t)s->ordered ^ (uint64_t)(h + 1) << 56 ^
                                    (uint64_t)s->incarnation << 24)) + (c->position - c->view_base);
    c->digests[c->position & c->log_mask] = c->digest;
    c->position++;
    if (m->flags & ZJW_FLAG_NEED_ACK)
        c->need_position = c->position;
    return A_PDU;
}

static void end_pdu(zj_core *c)
{
    c->cur.inside = 0;
    if (c->dup == 2) {
        c->dup = 0;
        return;
    }
    c->st[c->cur.src].ordered++;
    c->progress++;
    c->count.pdus_delivered++;
}

int zj_next(zj_core *c, struct zj_message *out)
{
    for (;;) { /* bound: messages in the accepted PDUs */
        if ((!c->is_open && !(c->flushing && order_left(c))) || c->fenced || assembly_starves(c))
            return 0;
        if (!c->cur.inside) {
            if (held_by_vote(c))
                return 0;
            if (c->op_head != c->op_tail && op_next(c, out))
                return 1;
            if (c->starved) /* nothing is counted at its place before it has been handed out */
                return 0;
            switch (next_pdu(c, out)) {
            case A_VIEW:
                return 1;
            case NOTHING:
                order_levels(c);
                stream_free(c);
                order_check_digests(c);
                return 0;
            }
        }
        if (c->cur.at == c->cur.end) {
            end_pdu(c);
            continue;
        }
        const uint8_t *f = message_read(&c->cur, out);
        out->clock = medium_place(c, out->clock);
        out->stage = out->stage == ZJ_ACCEPTED ? ZJ_PLACED : ZJ_DELIVERED;
        out->position = c->position - 1;
        /* Of those in FIFO order nothing is kept here: they have been delivered on acceptance. */
        if (f)
            switch (assemble(c, &c->st[c->cur.src].parts, f, out, out->stage == ZJ_DELIVERED)) {
            case PART: continue;
            case STARVED: message_unread(&c->cur, out); return 0;
            }
        if (c->silent)
            continue;
        if (out->stage == ZJ_PLACED) {
            out->data = NULL;
            return 1;
        }
        c->count.messages_delivered++;
        c->count.message_bytes_delivered += out->size;
        return 1;
    }
}

/* What a station that was let in releases says that all members of that view know the view, and hold what stands before its event:
 * so not before they have said both, the latter by their acknowledgements. */
static int view_shared(const zj_core *c)
{
    for (uint32_t i = 0; i < c->listed; i++) {
        const struct stream *s = &c->st[c->list[i]];
        if (s->min_al < s->before_join || (c->list[i] != c->self && s->spoke < c->let_in_by))
            return 0;
    }
    return !c->joining && c->preack >= c->removal_at;
}

/* Levels 2 and 3 are positions in the same order, moved when the entry there has reached the level. */
void switched_levels(zj_core *c)
{
    int early = faulty(c, ZJ_FAULT_EARLY_PREACK);
    if (c->flushing) { /* everybody who goes on has it, and knows that everybody has */
        uint64_t reached = c->position < c->flush_to ? c->position : c->flush_to;
        c->preack = c->preack > reached ? c->preack : reached;
        c->acked = c->preack;
        return;
    }
    if (!c->is_open && !faulty(c, ZJ_FAULT_LATE_LEVELS)) /* order_close() has said the last word */
        return;
    while (c->preack < c->position) {
        const struct entry *e = &c->log[c->preack & c->log_mask];
        const struct stream *s = &c->st[e->src];
        if (e->seq >= s->min_al && !early)
            break;
        c->preack++;
    }
    if (faulty(c, ZJ_FAULT_EARLY_ACK))
        c->acked = c->preack;
    while (c->acked < c->preack) {
        const struct entry *e = &c->log[c->acked & c->log_mask];
        if (e->seq >= c->st[e->src].acked)
            break;
        c->acked++;
    }
    if (c->let_in_by && view_shared(c))
        c->let_in_by = 0;
}

void zj_positions(const zj_core *cc, uint64_t out[ZJ_LEVELS])
{
    zj_core *c = (zj_core *)(uintptr_t)cc; /* only moves the cursors it is about to report */
    order_levels(c);
    medium_positions(c, c->said_positions);
    memcpy(out, c->said_positions, sizeof c->said_positions);
}

/* ---- divergence ---- */

void order_said(const zj_core *c, uint32_t *counted, uint64_t *position, uint64_t *digest)
{
    uint64_t at = medium_digest_at(c);
    const struct view *v = view_at(c, at);
    *counted = v ? v->instance : 0;
    *position = v ? at - v->base : 0;
    *digest = !v ? 0 : *position ? c->digests[(at - 1) & c->log_mask] : v->seed;
}

static void judge(zj_core *c, uint32_t j, uint64_t position, uint64_t own, uint64_t digest)
{
    c->count.digests_compared++;
    if (own == digest || c->fenced)
        return;
    c->fenced = 1;
    c->fence_station = j;
    c->fence_position = position;
    c->fence_own = own;
    c->fence_theirs = digest;
}

/* What j says: its digest so many PDUs after the event of instance `counted`. 1: compared, or never to be; 0: not there yet. */
static int compare(zj_core *c, uint32_t j, uint32_t counted, uint64_t count, uint64_t digest)
{
    uint32_t known = views_known(c), k = 0;
    if (!counted || counted > c->instance || count >> 62)
        return 1;
    if (!known || counted > view_back(c, 0)->instance)
        return 0; /* a view that has not been delivered here */
    while (k < known && view_back(c, k)->instance != counted)
        k++;
    if (k == known)
        return 1;
    const struct view *v = view_back(c, k);
    uint64_t position = v->base + count, end = k ? view_back(c, k - 1)->base : ZJ_NEVER;
    if (!count)
        judge(c, j, position, v->seed, digest);
    else if (position > end || position + c->log_mask <= c->position)
        return 1; /* not within that view here, or too long ago to know */
    else if (position > c->position)
        return 0;
    else
        judge(c, j, position, c->digests[(position - 1) & c->log_mask], digest);
    return 1;
}

void order_hear_digest(zj_core *c, uint32_t j, uint32_t counted, uint64_t position, uint64_t digest)
{
    struct stream *s = &c->st[j];
    if (compare(c, j, counted, position, digest) || s->digest_counted)
        return;
    s->digest_counted = counted;
    s->digest_position = position;
    s->digest = digest;
}

void order_check_digests(zj_core *c)
{
    for (uint32_t j = 0; j < c->n; j++) {
        struct stream *s = &c->st[j];
        if (s->digest_counted && compare(c, j, s->digest_counted, s->digest_position, s->digest))
            s->digest_counted = 0;
    }
}

void zj_digest(const zj_core *c, uint64_t *position, uint64_t *digest)
{
    uint64_t at = medium_digest_at(c);
    *position = at;
    *digest = at ? c->digests[(at - 1) & c->log_mask] : 0;
}

int zj_fence(const zj_core *c, uint32_t *station, uint64_t *position, uint64_t *own, uint64_t *theirs)
{
    *station = c->fence_station;
    *position = c->fence_position;
    *own = c->fence_own;
    *theirs = c->fence_theirs;
    return c->fenced;
}
