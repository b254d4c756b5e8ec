/* The observer's order: what comes next, view events in it, levels, the digest and what is announced of it. */
#include "observer_int.h"

#define DIGEST_START 0x9E3779B97F4A7C15ull

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

/* ---- rows ---- */

/* force: 1: all, whether there is room or not; 2: all that there is room for. */
void retire(struct zo_observer *o, int force)
{
    uint64_t end = force ? o->tail : o->acked;
    while (o->retired < end) {
        struct entry *e = &o->log[o->retired & (o->log_cap - 1)];
        struct slot *q = slot_of(e->s, e->seq);
        if (q && force != 1 && (!room(o, ZO_ORDER) || room(o, ZO_MESSAGES) < q->messages))
            return;
        if (q)
            row_order(o, e, q);
        e->s->retire = e->seq + 1;
        o->retired++;
        o->preack = o->preack < o->retired ? o->retired : o->preack;
        o->acked = o->acked < o->retired ? o->retired : o->acked;
    }
}

static void levels(struct zo_observer *o)
{
    for (; o->preack < o->tail; o->preack++) {
        const struct entry *e = &o->log[o->preack & (o->log_cap - 1)];
        if (e->seq >= e->s->min_al)
            break;
        slot_at(e->s, e->seq)->preack = o->now;
    }
    for (; o->acked < o->preack; o->acked++) {
        const struct entry *e = &o->log[o->acked & (o->log_cap - 1)];
        if (e->seq >= e->s->acked)
            break;
        slot_at(e->s, e->seq)->acked = o->now;
    }
}

/* For one more entry. */
int log_room(struct zo_observer *o)
{
    uint64_t end = o->total.bus ? o->bus_tail : o->tail;
    if (end - o->retired < o->log_cap)
        return 1;
    if (o->log_cap < LOG_MOST) {
        struct entry *log = malloc(2 * o->log_cap * sizeof *log);
        if (!log) {
            o->failed = 1;
            return 0;
        }
        for (uint64_t i = o->retired; i != end; i++)
            log[i & (2 * o->log_cap - 1)] = o->log[i & (o->log_cap - 1)];
        free(o->log);
        o->log = log;
        o->log_cap *= 2;
        return 1;
    }
    retire(o, o->total.bus ? 0 : 2);
    return end - o->retired < o->log_cap;
}

/* ---- views ---- */

void order_enter(struct zo_observer *o, const struct view *v)
{
    if (o->has_shown) {
        o->shown.complete = (uint8_t)(o->exact && o->shown.known);
        row_view(o, &o->shown, v->place_clock, 1);
        o->past[(o->past_count - 1) % VIEWS].end = o->position;
    }
    if (v->opened || v->joined) {
        o->digest = DIGEST_START;
        o->digest_ok = 1;
    } else {
        o->digest_ok = o->digest_ok && o->exact;
    }
    o->digest = mix(o->digest ^ v->hash);
    o->exact = v->known && o->gap_until <= v->place_clock;
    if (!v->known)
        o->digest_ok = 0;
    o->shown = *v;
    o->shown.seed = o->digest;
    o->shown.seed_known = (uint8_t)o->digest_ok;
    o->has_shown = 1;
    o->base = o->position;
    o->past[o->past_count++ % VIEWS] =
        (struct past){.base = o->position, .seed = o->digest, .end = NEVER, .instance = v->instance,
                      .seed_known = (uint8_t)o->digest_ok};
}

static void take_event(struct zo_observer *o)
{
    const struct view *v = &o->events[o->event_head++ % EVENTS];
    for (uint32_t h = 0; h < o->n; h++) /* what of a message came before its source's life ended will not be completed */
        if ((v->joined | v->left) >> h & 1)
            for (uint32_t i = 0; i < LIVES; i++)
                if (o->streams[h][i])
                    o->streams[h][i]->part_total = o->streams[h][i]->part_done = 0;
    order_enter(o, v);
    o->joining = 0;
}

/* ---- delivery ---- */

static uint64_t passed_by(const struct zo_observer *o, int others)
{
    uint64_t passed = o->gate;
    for (uint32_t h = 0; h < o->n; h++)
        if (is_member(o, h) && !(others && h == o->self)) {
            uint64_t clock = others ? o->cur[h]->clock : o->cur[h]->sure_clock;
            passed = clock < passed ? clock : passed;
        }
    return passed;
}

void passed_note(struct zo_observer *o)
{
    uint64_t passed = passed_by(o, 1);
    if (o->pass_tail != o->pass_head && o->passes[(o->pass_tail - 1) % PASSES].clock >= passed)
        return;
    if (o->pass_tail - o->pass_head == PASSES)
        o->pass_head++;
    o->passes[o->pass_tail++ % PASSES] = (struct pass){.clock = passed, .time = o->now};
}

/* When everybody else was known to have passed it: the station itself needs no PDU to know its own clock. */
static int64_t order_time(struct zo_observer *o, const struct slot *q)
{
    int64_t t = o->now;
    while (o->pass_head != o->pass_tail && o->passes[o->pass_head % PASSES].clock < q->clock)
        o->pass_head++;
    if (o->pass_head != o->pass_tail)
        t = o->passes[o->pass_head % PASSES].time;
    t = t < q->accepted ? q->accepted : t;
    return o->last_ordered = t < o->last_ordered ? o->last_ordered : t;
}

/* The capture lacks what comes next in these streams: from here on nobody knows positions. */
static void pass_lost(struct zo_observer *o, struct stream *s)
{
    struct slot *q;
    while (s->ordered < s->sure && (q = slot_of(s, s->ordered)) && q->state == LOST) {
        s->retire = s->retire == s->ordered ? s->ordered + 1 : s->retire;
        s->ordered++;
        s->part_total = s->part_done = 0;
        o->exact = 0;
    }
}

static struct slot *choose(struct zo_observer *o, struct stream **from)
{
    struct slot *best = NULL;
    for (uint32_t h = 0; h < o->n; h++)
        for (uint32_t i = 0; i < LIVES; i++) {
            struct stream *s = o->streams[h][i];
            if (!s || !s->started || s->ordered >= s->sure)
                continue;
            pass_lost(o, s);
            struct slot *q = s->ordered < s->sure ? slot_of(s, s->ordered) : NULL;
            if (q && (!best || q->clock < best->clock)) {
                best = q;
                *from = s;
            }
        }
    return best;
}

/* Nothing that a PDU's source had accepted may stand behind it. */
static void check_cause(struct zo_observer *o, const struct stream *s, const struct slot *q)
{
    const uint32_t *ack = s->acks + (size_t)(q->seq & (s->cap - 1)) * ZJW_STATIONS_MAX;
    for (uint32_t h = 0; h < o->n; h++) {
        const struct stream *t = o->cur[h];
        if (!t || t == s || q->instance < t->joined_at || q->clock <= o->shown.from_clock)
            continue;
        uint64_t a = widen(t->ordered, ack[h]);
        const struct slot *r = slot_of(t, a - 1);
        int behind = a > t->ordered && a - t->ordered <= SLOTS_MOST;
        uint64_t clock = r && r->state == HELD ? r->clock : !r && behind ? NEVER :
            0; /* what has not even come will stand behind */
        if (o->total.bus ? behind : clock >= q->clock)
            find(o, &(struct finding){.what = F_CAUSALITY, .src = s->src + 1, .incarnation = s->incarnation, .seq = q->seq - BASE,
                                      .count = 1, .clock = q->clock, .until = o->total.bus ? NEVER : clock, .other_src = h + 1,
                                      .other = a - 1 - BASE, .value = a - BASE});
    }
}

static void assemble(struct stream *s, struct slot *q)
{
    for (uint32_t i = 0; i < q->messages; i++) {
        struct msg *m = &q->msg[i];
        m->first = q->seq;
        m->shown = !(m->mflags & ZJW_MFLAG_FRAGMENT);
        if (m->shown)
            continue;
        if (!m->offset) {
            s->part_first = q->seq;
            s->part_total = m->total;
            s->part_done = 0;
        }
        if (s->part_total != m->total || s->part_done != m->offset) { /* its beginning is missing */
            s->part_total = 0;
            continue;
        }
        s->part_done += m->size;
        m->first = s->part_first;
        m->shown = (m->mflags & ZJW_MFLAG_LAST) != 0;
    }
}

void order_take(struct zo_observer *o, struct stream *s, struct slot *q)
{
    uint64_t place = o->position - o->base;
    check_cause(o, s, q);
    assemble(s, q);
    q->ordered = order_time(o, q);
    o->digest = mix(o->digest ^ mix((uint64_t)(uint32_t)q->check << 32 ^ (uint32_t)q->seq ^ (uint64_t)(s->src + 1) << 56 ^
                                    (uint64_t)s->incarnation << 24)) + place;
    o->digests[o->position & (DIGESTS - 1)] = o->digest;
    o->digests_ok[o->position & (DIGESTS - 1)] = (uint8_t)(o->exact && o->digest_ok);
    o->position++;
    o->log[o->tail++ & (o->log_cap - 1)] = (struct entry){.s = s, .seq = q->seq, .position = o->exact ? place + 1 : 0,
                                                         .view = o->shown.instance, .hash = o->shown.hash};
    s->ordered++;
}

void deliver(struct zo_observer *o)
{
    while (o->open) { /* bound: what has been accepted */
        uint64_t passed = passed_by(o, 0);
        struct stream *s = NULL;
        struct slot *q = choose(o, &s);
        if (o->event_head != o->event_tail) {
            const struct view *v = &o->events[o->event_head % EVENTS];
            if (v->place_clock <= passed &&
                (!q || v->place_clock < q->clock || (v->place_clock == q->clock && v->place_src < s->src + 1))) {
                take_event(o);
                continue;
            }
            passed = v->place_clock <= passed && !q ? v->place_clock - 1 : passed;
        }
        if (!q || q->clock > passed || q->instance > o->view.instance) {
            uint64_t to = q && q->clock <= passed ? q->clock - 1 : passed;
            o->covered = o->covered > to ? o->covered : to;
            break;
        }
        if (o->joining) { /* before the view in which the station was admitted */
            assemble(s, q);
            s->retire = ++s->ordered;
            continue;
        }
        if (!log_room(o))
            break;
        order_take(o, s, q);
    }
    levels(o);
    retire(o, 0);
}

/* ---- what is announced ---- */

/* 1: *out is the digest there; 0: not there yet; -1: nobody will know. */
static int derived(const struct zo_observer *o, uint32_t counted, uint64_t position, uint64_t *out)
{
    uint32_t known = o->past_count < VIEWS ? o->past_count : VIEWS;
    for (uint32_t k = 0; k < known; k++) {
        const struct past *p = &o->past[(o->past_count - 1 - k) % VIEWS];
        if (p->instance != counted)
            continue;
        *out = p->seed;
        if (!position)
            return p->seed_known ? 1 : -1;
        uint64_t at = p->base + position;
        if (position > UINT32_MAX || (p->end != NEVER && at > p->end) || at + DIGESTS <= o->position)
            return -1;
        if (at > o->position)
            return 0;
        *out = o->digests[(at - 1) & (DIGESTS - 1)];
        return o->digests_ok[(at - 1) & (DIGESTS - 1)] ? 1 : -1;
    }
    return o->has_shown && counted <= o->shown.instance ? -1 : 0;
}

static void announced_row(struct zo_observer *o, uint32_t src, const struct said *a, int known, uint64_t value)
{
    struct zo_columns *c = row_begin(o, ZO_ANNOUNCED);
    if (!c)
        return;
    put(c, src + 1);
    put(c, a->incarnation);
    put(c, a->counted);
    put(c, (int64_t)a->position);
    put(c, (int64_t)a->digest);
    put_time(c, a->time);
    put(c, a->file);
    put(c, (int64_t)a->frame);
    if (known)
        put(c, (int64_t)value);
    else
        put_null(c);
    if (!known)
        return;
    int own = src == o->self, equal = value == a->digest;
    *(own ? &o->total.own_compared : &o->total.others_compared) += 1;
    *(own ? &o->total.own_equal : &o->total.others_equal) += (uint64_t)equal;
    if (!equal && own)
        find(o, &(struct finding){.what = F_DIGEST, .src = src + 1, .incarnation = a->incarnation, .seq = a->position, .count = 1,
                                  .clock = NEVER, .until = NEVER, .other_src = src + 1, .other = a->digest, .value = value});
}

void announced_check(struct zo_observer *o, int all)
{
    for (uint32_t j = 0; j < o->n; j++) {
        struct speaker *k = &o->speakers[j];
        for (; k->pending_head != k->pending_tail; k->pending_head++) {
            const struct said *a = &k->pending[k->pending_head % PENDING];
            uint64_t value = 0;
            int know = derived(o, a->counted, a->position, &value);
            if (!know && !all && k->pending_tail - k->pending_head < PENDING)
                break;
            announced_row(o, j, a, know == 1, value);
        }
    }
}

void announced(struct zo_observer *o, const struct zp_pdu *p)
{
    struct speaker *k = &o->speakers[p->src - 1];
    uint32_t counted = be32(p->payload + ZJW_CONFIRM_COUNTED);
    uint64_t position = be64(p->payload + ZJW_CONFIRM_POSITION), digest = be64(p->payload + ZJW_CONFIRM_DIGEST);

    if (!counted || p->flags & ZJW_FLAG_RELAYED ||
        (k->said_counted == counted && k->said_position == position && k->said_digest == digest))
        return;
    k->said_counted = counted;
    k->said_position = position;
    k->said_digest = digest;
    k->pending[k->pending_tail++ % PENDING] = (struct said){.position = position, .digest = digest, .frame = o->frame,
                                                            .time = o->now,
                                                           .counted = counted, .incarnation = p->incarnation, .file = o->file};
}
