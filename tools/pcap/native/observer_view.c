/* The observer's instances: votes and OPENs as they were said, and which of them the station has carried out. What it is in, it
 * says itself, by number and view hash; members, place, closing numbers and beginnings of streams come from the votes. */
#include "observer_int.h"

static uint32_t crc32_of(uint32_t instance, const uint32_t *incarnations, uint32_t n)
{
    uint32_t crc = UINT32_MAX;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t v = i ? incarnations[i - 1] : instance;
        for (uint32_t k = 0; k < 4; k++) {
            crc ^= v >> (24 - 8 * k) & 0xff;
            for (uint32_t b = 0; b < 8; b++)
                crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        }
    }
    crc = ~crc;
    return crc ? crc : 1;
}

static void hash_view(const struct zo_observer *o, struct view *v) { v->hash = crc32_of(v->instance, v->incarnations, o->n); }

/* Rule 1 and 5: from its own vote on the station accepts nothing more from a station that it removes, and waits for one that it admits. */
static void own_vote(struct zo_observer *o, const struct vote *v)
{
    if (v->src != o->self || v->incarnation != o->life || !o->open || v->instance != o->view.instance)
        return;
    if (!v->stop) {
        o->gate = v->clock - 1 < o->gate ? v->clock - 1 : o->gate;
        return;
    }
    for (uint32_t i = 0; i < v->changes; i++) {
        struct stream *s = v->changed[i] < o->n ? o->cur[v->changed[i]] : NULL;
        if (!s || s->src == o->self)
            continue;
        s->limit = widen(s->sure, v->value[i]);
        s->sure_clock = s->sure_clock < v->clock ? s->sure_clock : v->clock - 1; /* captured, but not read before the vote */
        s->word_clock = 0;
    }
}

/* ---- what was proposed ---- */

void vote_add(struct zo_observer *o, const struct zp_pdu *p)
{
    const uint8_t *b = p->payload;
    struct vote v = {.instance = p->instance, .incarnation = p->incarnation, .seq = p->seq, .clock = p->clock,
                     .src = (uint8_t)(p->src - 1),
                     .stop = p->kind != ZJW_KIND_RCV_ACK, .members = be64(b + ZJW_PROPOSAL_MEMBERS),
                         .changes = b[ZJW_PROPOSAL_CHANGES]};
    b += ZJW_SIZEOF_PROPOSAL;
    for (uint32_t i = 0; i < v.changes; i++, b += ZJW_SIZEOF_CHANGE) {
        v.changed[i] = (uint8_t)(b[ZJW_CHANGE_CHANGED] - 1);
        v.value[i] = be32(b + ZJW_CHANGE_VALUE);
    }
    uint32_t known = o->vote_tail < VOTES ? o->vote_tail : VOTES;
    for (uint32_t i = 0; i < known; i++) {
        const struct vote *w = &o->votes[i];
        if (w->src == v.src && w->incarnation == v.incarnation && w->seq == v.seq && w->instance == v.instance)
            return;
    }
    o->votes[o->vote_tail++ % VOTES] = v;
    own_vote(o, &v);
}

void open_add(struct zo_observer *o, const struct zp_pdu *p)
{
    const uint8_t *b = p->payload;
    struct view v = {.instance = be32(b + ZJW_OPEN_PROPOSAL), .opened = 1, .known = 1};
    uint32_t count = b[ZJW_OPEN_MEMBERS], known = o->open_tail < OPENS ? o->open_tail : OPENS;

    if (!v.instance || p->kind != ZJW_KIND_OPEN)
        return;
    b += ZJW_SIZEOF_OPEN;
    for (uint32_t i = 0; i < count; i++, b += ZJW_SIZEOF_MEMBER) {
        uint32_t station = b[ZJW_MEMBER_STATION];
        if (station < 1 || station > o->n)
            return;
        v.incarnations[station - 1] = be32(b + ZJW_MEMBER_MEMBER_INCARNATION);
        v.members |= UINT64_C(1) << (station - 1);
    }
    v.place_clock = (uint64_t)v.instance << 32;
    v.joined = v.members;
    hash_view(o, &v);
    if (v.incarnations[p->src - 1] == p->incarnation)
        v.issued = UINT64_C(1) << (p->src - 1);
    for (uint32_t i = 0; i < known; i++)
        if (o->opens[i].hash == v.hash && o->opens[i].instance == v.instance) {
            o->opens[i].issued |= v.issued;
            return;
        }
    o->opens[o->open_tail++ % OPENS] = v;
}

static int same_proposal(const struct vote *a, const struct vote *b)
{
    if (a->instance != b->instance || a->stop != b->stop || a->members != b->members || a->changes != b->changes)
        return 0;
    for (uint32_t i = 0; i < a->changes; i++)
        if (a->changed[i] != b->changed[i] || a->value[i] != b->value[i])
            return 0;
    return 1;
}

static uint32_t votes_known(const struct zo_observer *o) { return o->vote_tail < VOTES ? o->vote_tail : VOTES; }
static const struct vote *vote_back(const struct zo_observer *o, uint32_t k) { return &o->votes[(o->vote_tail - 1 - k) % VOTES]; }

/* What the proposal of vote `a` leads to, from an instance with these members and incarnations; of a voter whose incarnation is
 * not known (0) any vote counts. 0: somebody's vote is missing. */
static int outcome(const struct zo_observer *o, const struct vote *a, uint64_t members, const uint32_t *incarnations,
                   struct view *out)
{
    uint64_t changed = 0, voters;
    *out = (struct view){.instance = a->instance + 1, .members = a->members, .known = 1, .time = o->now};
    for (uint32_t i = 0; i < a->changes; i++)
        changed |= UINT64_C(1) << a->changed[i];
    voters = a->stop ? a->members & members : a->members & ~changed;
    for (uint32_t h = 0; h < o->n; h++) {
        const struct vote *cast = NULL;
        if (!(voters >> h & 1))
            continue;
        for (uint32_t k = 0; k < votes_known(o); k++) { /* the first one that it gave stands */
            const struct vote *w = vote_back(o, k);
            if (w->src == h && same_proposal(w, a) && (!incarnations[h] || incarnations[h] == w->incarnation) &&
                (!cast || (int32_t)(w->seq - cast->seq) < 0 || w->incarnation > cast->incarnation))
                cast = w;
        }
        if (!cast)
            return 0;
        out->incarnations[h] = cast->incarnation;
        out->vote_seq[h] = cast->seq;
        out->vote_clock[h] = cast->clock;
        if (cast->clock > out->place_clock || (cast->clock == out->place_clock && h + 1 > out->place_src)) {
            out->place_clock = cast->clock;
            out->place_src = h + 1;
        }
    }
    for (uint32_t i = 0; i < a->changes; i++) {
        if (a->stop)
            out->limit[a->changed[i]] = a->value[i];
        else
            out->incarnations[a->changed[i]] = a->value[i];
    }
    out->joined = a->stop ? 0 : changed;
    out->left = members & ~out->members;
    hash_view(o, out);
    return 1;
}

/* Given before it was known that the station is in this instance. */
static void own_votes(struct zo_observer *o)
{
    for (uint32_t k = votes_known(o); k-- > 0;) /* the latest last */
        own_vote(o, vote_back(o, k));
}

/* ---- from an instance to the next ---- */

static void member_streams(struct zo_observer *o)
{
    for (uint32_t h = 0; h < o->n; h++)
        o->cur[h] = is_member(o, h) ? stream_of(o, h, o->view.incarnations[h], 1) : NULL;
}

static void end_stream(struct zo_observer *o, struct stream *s, const struct view *v)
{
    uint64_t limit = widen(s->req, v->limit[s->src]);
    if (limit > s->req && limit - s->req <= SLOTS_MOST) {
        s->limit = limit;
        stream_skip(o, s, limit);
    }
    s->limit = limit;
    s->req = s->req < limit ? s->req : limit;
    stream_gap_tell(o, s, v->place_clock);
    s->closed = 1;
    stream_sure(o, s);
    s->left_at = v->instance;
    s->hole_to = 0;
    for (uint32_t j = 0; j < o->n; j++) {
        s->al[j] = s->req;
        s->pack[j] = s->pack[j] < s->req ? s->pack[j] : s->req;
        if (j == o->self || (o->cur[j] && o->cur[j]->spoke >= v->instance))
            s->pack[j] = s->req;
    }
}

static void add_column(struct zo_observer *o, const struct view *v, uint32_t h)
{
    for (uint32_t k = 0; k < o->n; k++) {
        struct stream *s = o->cur[k];
        if (!s)
            continue;
        int voter = !(v->joined >> k & 1);
        uint64_t has = voter ? widen(s->req, v->vote_seq[k]) + 1 : s->req;
        s->al[h] = s->pack[h] = has;
        for (uint32_t j = 0; voter && j < o->n; j++)
            s->pack[j] = s->pack[j] < has ? s->pack[j] : has;
    }
}

/* The stream begins anew: what is there of a former instance is not of it. */
static void forget_before(struct zo_observer *o, struct stream *s, uint32_t instance)
{
    s->seen = 0;
    s->top = 0;
    for (uint32_t i = 0; i < s->cap; i++) {
        struct slot *q = &s->slots[i];
        if (q->state == EMPTY)
            continue;
        if (q->state == LOST || q->instance < instance) {
            row_transmission(o, s, q);
            q->state = EMPTY;
        } else {
            s->seen = 1;
            s->top = q->seq + 1 > s->top ? q->seq + 1 : s->top;
        }
    }
}

static void commit(struct zo_observer *o, const struct view *v)
{
    uint64_t former = o->view.members;
    if (o->event_tail - o->event_head == EVENTS) { /* cannot be: nobody changes instances without delivering */
        o->failed = 1;
        return;
    }
    for (uint32_t h = 0; h < o->n; h++)
        if (former >> h & 1 && !(v->members >> h & 1))
            end_stream(o, o->cur[h], v);
    o->view = *v;
    o->view.time = o->now;
    o->view.from_clock = v->place_clock - 1;
    o->gate = NEVER;
    member_streams(o);
    for (uint32_t h = 0; h < o->n; h++)
        if (v->joined >> h & 1 && o->cur[h]) {
            forget_before(o, o->cur[h], v->instance);
            stream_start(o, o->cur[h], BASE + o->first_seq, v->place_clock);
            o->cur[h]->joined_at = o->cur[h]->since = v->instance;
        }
    for (uint32_t h = 0; h < o->n; h++)
        if (v->joined >> h & 1)
            add_column(o, v, h);
    if (v->joined)
        o->join_last = v->instance;
    for (uint32_t h = 0; h < o->n; h++)
        for (uint32_t i = 0; i < LIVES; i++)
            if (o->streams[h][i] && o->streams[h][i]->started)
                levels_row(o, o->streams[h][i]);
    for (uint32_t h = 0; h < o->n; h++)
        if (o->cur[h])
            stream_advance(o, o->cur[h]);
    o->events[o->event_tail++ % EVENTS] = o->view;
    own_votes(o);
}

/* One or more steps of agreed changes from `from` to the instance with this number and hash; the steps are carried out in
 * order. */
static int find_path(struct zo_observer *o, const struct view *from, uint32_t instance, uint32_t hash, struct view *steps,
                     uint32_t depth)
{
    for (uint32_t k = votes_known(o); k-- > 0;) { /* the earliest own one first */
        const struct vote *a = vote_back(o, k);
        struct view *next = &steps[0];
        if (a->src != o->self || a->instance != from->instance || a->incarnation != o->life)
            continue;
        if (!outcome(o, a, from->members, from->incarnations, next) || !(next->members >> o->self & 1))
            continue;
        if (next->instance == instance) {
            if (next->hash == hash)
                return 1;
        } else if (depth > 1) {
            int rest = find_path(o, next, instance, hash, steps + 1, depth - 1);
            if (rest)
                return rest + 1;
        }
    }
    return 0;
}

/* Whether this view, or what was agreed after it, is the instance with this number and hash; then steps[0..count) lead there. */
static int leads_to(struct zo_observer *o, const struct view *v, uint32_t instance, uint32_t hash, struct view *steps, int *count)
{
    *count = 0;
    if (v->instance == instance)
        return v->hash == hash;
    if (instance < v->instance || instance - v->instance > STEPS)
        return 0;
    *count = find_path(o, v, instance, hash, steps, instance - v->instance);
    return *count > 0;
}

static int try_change(struct zo_observer *o, uint32_t instance, uint32_t hash, struct view *steps)
{
    int count;
    if (!leads_to(o, &o->view, instance, hash, steps, &count))
        return 0;
    for (int i = 0; i < count; i++)
        commit(o, &steps[i]);
    return 1;
}

/* ---- beginnings ---- */

static void begin(struct zo_observer *o, const struct view *v)
{
    o->open = 1;
    o->view = *v;
    o->view.time = o->now;
    o->join_last = v->instance;
    o->gate = NEVER;
    o->covered = 0;
    o->exact = o->digest_ok = 0;
    o->gap_until = 0;
    o->pass_head = o->pass_tail = 0;
    o->last_ordered = NO_TIME;
    o->event_head = o->event_tail;
    member_streams(o);
    for (uint32_t h = 0; h < o->n; h++) /* of former lives nothing more will be delivered */
        for (uint32_t i = 0; i < LIVES; i++)
            if (o->streams[h][i])
                o->streams[h][i]->started = 0;
}

static void begun(struct zo_observer *o)
{
    for (uint32_t h = 0; h < o->n; h++)
        if (o->cur[h]) {
            levels_row(o, o->cur[h]);
            if (!o->total.bus)
                stream_advance(o, o->cur[h]);
        }
    own_votes(o);
    if (o->total.bus)
        bus_begin(o, o->view.opened);
}

/* How far a stream is held without a gap from there on. */
static uint64_t held_to(const struct stream *s, uint64_t seq)
{
    const struct slot *q;
    while (s && (q = slot_of(s, seq)) && q->state == HELD)
        seq++;
    return seq;
}

/* Streams start at the same number everywhere: 0, or in tests shortly before numbers wrap. A CONFIRM of a station that has
 * delivered nothing yet, and the
 * PDUs
 * before it, say at which. */
static uint64_t first_of(struct zo_observer *o, const struct zp_pdu *p)
{
    const struct stream *me = stream_of(o, o->self, o->life, 0);
    uint64_t seq = BASE + p->seq;
    const struct slot *q;
    if (!be64(p->payload + ZJW_CONFIRM_POSITION)) {
        if (me && me->seen)
            seq = widen(me->top, p->seq);
        while (me && (q = slot_of(me, seq - 1)) && q->state == HELD)
            seq--;
        o->first_seq = (uint32_t)seq > UINT32_MAX / 2 ? (uint32_t)seq : 0;
    }
    return BASE + o->first_seq;
}

static void begin_opened(struct zo_observer *o, const struct view *v, uint64_t first)
{
    begin(o, v);
    for (uint32_t h = 0; h < o->n; h++)
        if (o->cur[h]) {
            forget_before(o, o->cur[h], v->instance);
            stream_start(o, o->cur[h], first, v->place_clock);
            o->cur[h]->joined_at = o->cur[h]->since = v->instance;
        }
    o->view.from_clock = v->place_clock;
    order_enter(o, &o->view);
    begun(o);
}

/* On a bus every change is an opening, and PDUs follow it at once: its own OPEN that says so is the station's first word there.
 * */
void opened_seen(struct zo_observer *o, const struct zp_pdu *p)
{
    const uint8_t *b = p->payload;
    uint32_t known = o->open_tail < OPENS ? o->open_tail : OPENS, instance = be32(b + ZJW_OPEN_PROPOSAL);
    if (p->kind != ZJW_KIND_OPEN || !(b[ZJW_OPEN_OFLAGS] & ZJW_OFLAG_STARTED) || p->instance != instance || !o->total.bus ||
        (o->open && instance <= o->view.instance) || instance <= o->own_instance)
        return;
    for (uint32_t i = 0; i < known; i++) {
        const struct view *v = &o->opens[i];
        uint64_t listed = 0;
        for (uint32_t k = 0; k < b[ZJW_OPEN_MEMBERS]; k++)
            listed |= UINT64_C(1) << (b[ZJW_SIZEOF_OPEN + k * ZJW_SIZEOF_MEMBER + ZJW_MEMBER_STATION] - 1u);
        if (v->instance != instance || v->members != listed || v->incarnations[o->self] != o->life)
            continue;
        life_end(o);
        if (o->draining)
            return;
        o->own_instance = instance;
        begin_opened(o, v, BASE + o->first_seq);
        return;
    }
}

/* all: only what all its members are seen to have proposed. Who proposed something else may have let the station in. */
static int try_open(struct zo_observer *o, const struct zp_pdu *p, uint32_t hash, struct view *steps, int all)
{
    int count;
    uint32_t known = o->open_tail < OPENS ? o->open_tail : OPENS;
    for (uint32_t i = 0; i < known; i++) {
        const struct view *v = &o->opens[i];
        if (v->incarnations[o->self] != o->life || (all && v->issued != v->members) ||
            !leads_to(o, v, p->instance, hash, steps, &count))
            continue;
        uint64_t first = first_of(o, p);
        for (uint32_t h = 0; h < o->n; h++) { /* has the capture seen all that the station has? */
            const struct stream *s = v->members >> h & 1 ? stream_of(o, h, v->incarnations[h], 0) : NULL;
            uint64_t said = widen(first, be32(p->ack + 4 * h));
            if (count && h != o->self) /* another life of it may be meant */
                continue;
            if (v->members >> h & 1 && said > first && held_to(s, first) < said)
                return 0;
        }
        begin_opened(o, v, first);
        for (int k = 0; k < count; k++)
            commit(o, &steps[k]);
        return 1;
    }
    return 0;
}

static int try_join(struct zo_observer *o, const struct zp_pdu *p, uint32_t hash, struct view *steps)
{
    int count;
    static const uint32_t nobody[ZJW_STATIONS_MAX];
    for (uint32_t k = 0; k < votes_known(o); k++) {
        const struct vote *a = vote_back(o, k);
        struct view v;
        int mine = 0;
        for (uint32_t i = 0; i < a->changes; i++)
            mine |= a->changed[i] == o->self && a->value[i] == o->life;
        if (a->stop || !mine || !outcome(o, a, 0, nobody, &v) || !leads_to(o, &v, p->instance, hash, steps, &count))
            continue;
        uint64_t first = first_of(o, p);
        begin(o, &v);
        for (uint32_t h = 0; h < o->n; h++) {
            struct stream *s = o->cur[h];
            if (!s)
                continue;
            if (v.joined >> h & 1) {
                forget_before(o, s, v.instance);
                stream_start(o, s, first, v.place_clock);
                s->joined_at = s->since = v.instance;
                continue;
            }
            uint64_t after = (s->seen ? widen(s->top, v.vote_seq[h]) : BASE + v.vote_seq[h]) + 1;
            stream_start(o, s, after, v.vote_clock[h]);
            s->joined_at = v.instance - 1;
        }
        o->view.from_clock = v.place_clock - 1;
        o->joining = 1;
        o->events[o->event_tail++ % EVENTS] = o->view;
        begun(o);
        for (int i = 0; i < count; i++)
            commit(o, &steps[i]);
        return 1;
    }
    return 0;
}

/* The capture begins in the middle of an instance, or has lost its beginning: members are those whom the station's CONFIRM does
 * not hold to be out, the streams begin with what it expects, and the order where all clocks that it can have seen are passed. */
static int try_resume(struct zo_observer *o, const struct zp_pdu *p, uint32_t hash)
{
    uint64_t out = be64(p->payload + ZJW_CONFIRM_STATE) ^ be64(p->payload + ZJW_CONFIRM_TRANS);
    struct view v = {.instance = p->instance, .time = o->now};
    for (uint32_t h = 0; h < o->n; h++) {
        if (out >> h & 1)
            continue;
        v.members |= UINT64_C(1) << h;
        v.incarnations[h] = h == o->self ? o->life : o->speakers[h].last_incarnation;
    }
    hash_view(o, &v);
    if (v.hash != hash)
        return 0;
    begin(o, &v);
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (!s)
            continue;
        uint64_t said = be32(p->ack + 4 * h), known = s->req;
        said = s->seen ? widen(s->top, (uint32_t)said) : BASE + said;
        stream_start(o, s, said, 0);
        if (known && said > known) { /* it has been followed before: the capture lacks what lies between */
            s->gap_first = known;
            s->gap_count = said - known;
            s->gap_clock = 0;
            o->total.gaps += s->gap_count;
            stream_gap_tell(o, s, p->clock);
        }
        s->joined_at = v.instance;
    }
    o->view.from_clock = p->clock;
    o->total.resumed++;
    order_enter(o, &o->view);
    find(o, &(struct finding){.what = F_RESUMED, .src = p->src, .incarnation = p->incarnation, .seq = p->seq, .clock = p->clock,
                              .until = NEVER,
                              .other = NEVER, .value = p->instance});
    begun(o);
    return 1;
}

/* ---- the station's own word ---- */

/* Its life has ended, or the observer has lost the thread: what was delivered stays, nothing more will be. */
void life_end(struct zo_observer *o)
{
    if (!o->open)
        return;
    if (!o->total.bus) {
        holes(o, 1);
        deliver(o);
    }
    struct stream *me = o->cur[o->self];
    uint64_t sent = me ? me->top > me->req ? me->top : me->req : 0; /* a hole counts as sent: the station has said so */
    if (me && me->claimed > sent && !o->lost)
        find(o, &(struct finding){.what = F_NEVER_SENT, .src = me->src + 1, .incarnation = me->incarnation, .seq = sent - BASE,
                                  .count = me->claimed - sent, .clock = NEVER, .until = NEVER, .other = NEVER,
                                      .value = NEVER});
    for (uint32_t h = 0; h < o->n; h++)
        if (o->cur[h])
            stream_gap_tell(o, o->cur[h], NEVER);
    announced_check(o, 1);
    if (o->has_shown) {
        o->shown.complete = (uint8_t)(o->exact && o->shown.known);
        row_view(o, &o->shown, o->covered, o->covered > o->shown.from_clock);
        o->past[(o->past_count - 1) % VIEWS].end = o->position;
    }
    o->has_shown = o->open = 0;
    retire(o, 2);
    o->draining = o->retired != o->tail;
    o->past_count = 0;
    o->joining = 0;
    memset(o->cur, 0, sizeof o->cur);
}

static void lift_limits(struct zo_observer *o, const struct zp_pdu *p)
{
    uint64_t state = be64(p->payload + ZJW_CONFIRM_STATE);
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (s && s->limit != NEVER && !(state >> h & 1)) {
            s->limit = NEVER;
            stream_advance(o, s);
        }
    }
}

void instance_seen(struct zo_observer *o, const struct zp_pdu *p)
{
    int own = p->src == o->self + 1, confirm = p->kind == ZJW_KIND_CONFIRM;
    uint32_t hash = confirm ? be32(p->payload + ZJW_CONFIRM_VIEW) : 0;

    if (own && (confirm || is_vote(p->kind) || p->kind == ZJW_KIND_DATA) && p->instance > o->own_instance)
        o->own_instance = p->instance;
    if (!confirm || p->instance > o->own_instance)
        return;
    if (o->open && p->instance > o->view.instance) {
        if (try_change(o, p->instance, hash, o->steps) || !own)
            return;
        if (!o->total.bus) /* there every instance begins like the first one */
            find(o, &(struct finding){.what = F_VIEW_UNKNOWN, .src = p->src, .incarnation = p->incarnation, .seq = p->seq,
                                  .clock = p->clock, .until = NEVER,
                                  .other = NEVER, .value = p->instance});
        life_end(o);
    }
    if (!own)
        return;
    if (o->open && o->lost && p->instance == o->lost)
        life_end(o);
    if (!o->open && !o->draining && o->lost == p->instance && o->lost && try_resume(o, p, hash)) {
        o->lost = 0;
    } else if (!o->open && !o->draining && !(p->flags & ZJW_FLAG_BYE) && o->lost != p->instance) {
        o->lost = 0;
        (void)(try_open(o, p, hash, o->steps, 1) || try_join(o, p, hash, o->steps) || try_open(o, p, hash, o->steps, 0) ||
               try_resume(o, p, hash));
    }
    if (o->open && p->instance == o->view.instance)
        lift_limits(o, p);
}
