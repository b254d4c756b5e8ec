/* The observer's streams: what was seen of each (source, incarnation), accepted without gaps, and the matrices of A and P. */
#include "observer_int.h"

void stream_free(struct stream *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->slots && i < s->cap; i++)
        free(s->slots[i].msg);
    free(s->slots);
    free(s->acks);
    free(s);
}

static struct stream *stream_new(uint32_t src, uint32_t incarnation)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->src = src;
    s->incarnation = incarnation;
    s->cap = SLOTS_LEAST;
    s->limit = NEVER;
    s->slots = calloc(s->cap, sizeof *s->slots);
    s->acks = malloc((size_t)s->cap * ZJW_STATIONS_MAX * sizeof *s->acks);
    if (!s->slots || !s->acks) {
        stream_free(s);
        return NULL;
    }
    return s;
}

/* The one that has been here longest and is in use no more: it goes for a new life of its station. */
static struct stream **oldest(struct zo_observer *o, uint32_t src)
{
    struct stream **worst = NULL;
    for (uint32_t i = 0; i < LIVES; i++) {
        struct stream **s = &o->streams[src][i];
        if (!*s)
            return s;
        if (*s != o->cur[src] && (!worst || (*s)->incarnation < (*worst)->incarnation))
            worst = s;
    }
    return worst;
}

struct stream *stream_of(struct zo_observer *o, uint32_t src, uint32_t incarnation, int make)
{
    for (uint32_t i = 0; i < LIVES; i++)
        if (o->streams[src][i] && o->streams[src][i]->incarnation == incarnation)
            return o->streams[src][i];
    if (!make)
        return NULL;
    struct stream **at = oldest(o, src);
    struct stream *s = stream_new(src, incarnation);
    if (!s) {
        o->failed = 1;
        return NULL;
    }
    if (*at) {
        for (uint64_t i = o->retired; i != o->tail; i++)
            if (o->log[i & (o->log_cap - 1)].s == *at) {
                retire(o, 1);
                break;
            }
        for (uint32_t i = 0; i < (*at)->cap; i++)
            row_transmission(o, *at, &(*at)->slots[i]);
        stream_free(*at);
    }
    return *at = s;
}

/* ---- the matrices ---- */

void levels_row(struct zo_observer *o, struct stream *s)
{
    uint64_t a = NEVER, b = NEVER;
    for (uint32_t j = 0; j < o->n; j++)
        if (is_member(o, j)) {
            a = s->al[j] < a ? s->al[j] : a;
            b = s->pack[j] < b ? s->pack[j] : b;
        }
    s->min_al = a;
    s->acked = b;
}

/* The station has it, and its capture has not shown it. */
void hole_note(struct zo_observer *o, struct stream *s, uint64_t to)
{
    if (to <= s->req || to <= s->hole_to)
        return;
    if (to - s->req > SLOTS_MOST) {
        o->lost = o->view.instance;
        return;
    }
    if (s->hole_to <= s->req)
        s->hole_since = o->total.frames;
    s->hole_to = to;
    o->any_hole = 1;
}

/* What a PDU's vectors tell counts at once, whatever brings them; of a stream only if its source then meant this life of it
 * (rule 5a). The station's own word counts from its own frames: a receipt counts once it has been broadcast. */
void merge(struct zo_observer *o, const struct zp_pdu *p)
{
    uint32_t j = p->src - 1u;
    struct stream *from = o->cur[j];
    if (!o->open || !from || from->incarnation != p->incarnation || p->instance < from->joined_at ||
        p->instance > o->view.instance)
        return;
    if (p->instance > from->spoke) {
        from->spoke = p->instance;
        for (uint32_t h = 0; h < o->n; h++)
            for (uint32_t i = 0; i < LIVES; i++) {
                struct stream *s = o->streams[h][i];
                if (s && s->closed && s->left_at <= p->instance && s->pack[j] < s->req) {
                    s->pack[j] = s->req;
                    levels_row(o, s);
                }
            }
    }
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (!s || p->instance < s->joined_at)
            continue;
        uint64_t a = widen(s->al[j], be32(p->ack + 4 * h)), old = s->al[j];
        if (a > old) {
            s->al[j] = a;
            if (h == o->self && j != h && a > s->claimed)
                s->claimed = a;
            if (old <= s->min_al)
                levels_row(o, s);
        }
        if (p->pack && p->instance >= o->join_last) {
            uint64_t b = widen(s->pack[j], be32(p->pack + 4 * h));
            old = s->pack[j];
            if (b > old) {
                s->pack[j] = b;
                if (old <= s->acked)
                    levels_row(o, s);
            }
        }
        if (j == o->self) {
            hole_note(o, s, s->al[j]);
            stream_sure(o, s);
        }
    }
}

/* ---- slots ---- */

static int grow(struct stream *s, uint64_t need)
{
    uint32_t cap = s->cap;
    while (cap < need && cap < SLOTS_MOST)
        cap *= 2;
    if (cap < need)
        return 0;
    struct slot *slots = calloc(cap, sizeof *slots);
    uint32_t *acks = malloc((size_t)cap * ZJW_STATIONS_MAX * sizeof *acks);
    if (!slots || !acks) {
        free(slots);
        free(acks);
        return 0;
    }
    for (uint32_t i = 0; i < s->cap; i++) {
        struct slot *q = &s->slots[i];
        if (q->state == EMPTY) {
            free(q->msg);
            continue;
        }
        uint32_t to = (uint32_t)(q->seq & (cap - 1));
        slots[to] = *q;
        memcpy(acks + (size_t)to * ZJW_STATIONS_MAX, s->acks + (size_t)i * ZJW_STATIONS_MAX, ZJW_STATIONS_MAX * sizeof *acks);
    }
    free(s->slots);
    free(s->acks);
    s->slots = slots;
    s->acks = acks;
    s->cap = cap;
    return 1;
}

static int messages_read(struct zo_observer *o, struct slot *q, const struct zp_pdu *p)
{
    const uint8_t *b = p->payload, *end = b + p->length;
    uint32_t k = 0;
    q->messages = 0;
    if (p->kind != ZJW_KIND_DATA)
        return 1;
    for (const uint8_t *a = b; a < end; k++) /* the PDU has been checked: its messages fill it */
        a += be32(a + ZJW_MESSAGE_SIZE) + ZJW_SIZEOF_MESSAGE + (a[ZJW_MESSAGE_MFLAGS] & ZJW_MFLAG_FRAGMENT ?
                                                                ZJW_SIZEOF_FRAGMENT : 0);
    if (k > q->room) {
        struct msg *m = realloc(q->msg, k * sizeof *m);
        if (!m) {
            o->failed = 1;
            return 0;
        }
        q->msg = m;
        q->room = k;
    }
    for (q->messages = 0; q->messages < k; q->messages++) {
        struct msg *m = &q->msg[q->messages];
        *m = (struct msg){.size = be32(b + ZJW_MESSAGE_SIZE),
                          .group = be32(b + ZJW_MESSAGE_GROUP),
                          .client = (uint16_t)be16(b + ZJW_MESSAGE_CLIENT),
                          .type = b[ZJW_MESSAGE_TYPE],
                          .mflags = b[ZJW_MESSAGE_MFLAGS]};
        b += ZJW_SIZEOF_MESSAGE;
        if (m->mflags & ZJW_MFLAG_FRAGMENT) {
            m->total = be32(b + ZJW_FRAGMENT_TOTAL);
            m->offset = be32(b + ZJW_FRAGMENT_OFFSET);
            b += ZJW_SIZEOF_FRAGMENT;
        }
        b += m->size;
    }
    return 1;
}

static void count_copy(const struct zo_observer *o, struct slot *q, const struct zp_pdu *p, int out, int relayed)
{
    if (!(q->sent + q->received))
        q->first = o->now;
    q->last = o->now;
    if (!out && !q->received)
        q->arrival = o->total.frames;
    q->wire += p->size;
    q->sent += out != 0;
    q->received += !out;
    q->relayed += relayed != 0;
}

/* A copy of a PDU that is forgotten, or of one before all that is kept: a row of its own. */
static void late_copy(struct zo_observer *o, struct stream *s, const struct zp_pdu *p, uint64_t seq, int out, int relayed)
{
    struct slot q = {.seq = seq, .check = p->check, .kind = p->kind, .state = HELD};
    count_copy(o, &q, p, out, relayed);
    row_transmission(o, s, &q);
}

/* Make a place for this number; NULL: it is too far from all others, or forgotten. */
static struct slot *slot_make(struct zo_observer *o, struct stream *s, uint64_t seq)
{
    uint64_t low = s->started ? s->retire : s->top > s->cap ? s->top - s->cap + 1 : 0;
    if (seq < low && !s->started && s->top - seq < SLOTS_MOST)
        low = seq;
    if (seq < low || (s->seen && seq > s->top + SLOTS_MOST))
        return NULL;
    if (s->started && seq - low >= s->cap && !grow(s, seq - low + 1)) {
        retire(o, 1);
        low = s->retire;
        if (seq - low >= s->cap)
            return NULL;
    }
    struct slot *q = slot_at(s, seq);
    if (q->state != EMPTY && q->seq > seq)
        return NULL;
    row_transmission(o, s, q);
    struct msg *msg = q->msg;
    uint32_t space = q->room;
    memset(q, 0, sizeof *q);
    q->msg = msg;
    q->room = space;
    q->seq = seq;
    return q;
}

struct slot *stream_put(struct zo_observer *o, struct stream *s, const struct zp_pdu *p, int out, int relayed)
{
    uint64_t seq = s->started ? widen(s->req, p->seq) : s->seen ? widen(s->top, p->seq) : BASE + p->seq;
    struct slot *q = slot_of(s, seq);

    if (q && q->state == HELD && !s->started && q->instance < p->instance) { /* of one that was passed over */
        row_transmission(o, s, q);
        q->state = EMPTY;
        q = NULL;
    }
    if (q && q->state == HELD && o->total.bus && seq >= s->req && q->check != p->check) { /* sent again after a reset */
        row_transmission(o, s, q);
        q->state = EMPTY;
        q = NULL;
    }
    if (s->started && p->instance < s->since) {
        late_copy(o, s, p, seq, out, relayed);
        return NULL;
    }
    if (q && q->state == HELD) {
        if (q->check == p->check) {
            count_copy(o, q, p, out, relayed);
        } else if (q->instance != p->instance || (o->total.bus && q->epoch != p->clock)) {
            late_copy(o, s, p, seq, out, relayed);
        } else {
            find(o, &(struct finding){.what = F_CONFLICT, .src = p->src, .incarnation = p->incarnation, .seq = seq - BASE,
                                      .count = 1,
                                      .clock = q->clock, .until = p->clock, .other_src = p->src, .other = q->check,
                                          .value = p->check});
            late_copy(o, s, p, seq, out, relayed);
        }
        return NULL;
    }
    if (!q || q->state == LOST) {
        int lost = q != NULL;
        if (lost || !(q = slot_make(o, s, seq))) {
            late_copy(o, s, p, seq, out, relayed);
            o->total.strange += !lost && (s->started ? seq >= s->req : 0);
            return NULL;
        }
    }
    q->state = HELD;
    q->clock = q->epoch = p->clock;
    q->check = p->check;
    q->instance = p->instance;
    q->kind = p->kind;
    q->flags = p->flags;
    q->bytes = p->length;
    q->file = o->file;
    q->frame = o->frame;
    q->accepted = q->ordered = q->preack = q->acked = NO_TIME;
    count_copy(o, q, p, out, relayed);
    if (!messages_read(o, q, p))
        return NULL;
    uint32_t *ack = s->acks + (size_t)(seq & (s->cap - 1)) * ZJW_STATIONS_MAX;
    for (uint32_t h = 0; h < o->n; h++)
        ack[h] = be32(p->ack + 4 * h);
    if (!s->seen || seq + 1 > s->top)
        s->top = seq + 1;
    s->seen = 1;
    return q;
}

/* ---- acceptance ---- */

void stream_start(struct zo_observer *o, struct stream *s, uint64_t seq, uint64_t clock)
{
    s->started = 1;
    s->closed = 0;
    s->req = s->ordered = s->retire = seq;
    for (uint32_t i = 0; i < s->cap; i++) /* they were taken for numbers of another round of 2^32 */
        s->slots[i].seq = widen(seq, (uint32_t)s->slots[i].seq);
    s->top = s->seen ? widen(seq, (uint32_t)s->top) : seq;
    s->top = s->top > seq ? s->top : seq;
    s->clock = s->last_clock = clock;
    s->limit = NEVER;
    s->promise_clock = s->promise_next = s->word_clock = 0;
    s->sure = seq;
    s->sure_clock = clock;
    s->hole_to = s->gap_count = s->claimed = 0;
    s->part_total = s->part_done = 0;
    s->joined_at = s->left_at = s->spoke = s->since = 0;
    for (uint32_t j = 0; j < ZJW_STATIONS_MAX; j++)
        s->al[j] = s->pack[j] = seq;
    s->min_al = s->acked = seq;
    (void)o;
}

void stream_promise(struct stream *s)
{
    if (!s->promise_clock || s->limit != NEVER || s->req < s->promise_next)
        return;
    if (s->promise_clock > s->clock)
        s->clock = s->promise_clock;
    s->promise_clock = 0;
}

/* What the station has said, or carried out, it has; of its own PDUs all. */
void stream_sure(const struct zo_observer *o, struct stream *s)
{
    uint64_t to = s->src == o->self || s->closed || s->al[o->self] > s->req ? s->req : s->al[o->self];
    for (; s->sure < to; s->sure++) { /* bound: slots */
        const struct slot *q = slot_of(s, s->sure);
        if (q && q->state == HELD && q->clock > s->sure_clock)
            s->sure_clock = q->clock;
    }
    if (s->word_clock && s->word_next <= s->sure && s->limit == NEVER) {
        s->sure_clock = s->word_clock > s->sure_clock ? s->word_clock : s->sure_clock;
        s->word_clock = 0;
    }
}

/* What the capture lacks of the stream stands behind gap_clock and before `until`. */
void stream_gap_tell(struct zo_observer *o, struct stream *s, uint64_t until)
{
    if (!s->gap_count)
        return;
    find(o, &(struct finding){.what = F_GAP, .src = s->src + 1, .incarnation = s->incarnation, .seq = s->gap_first - BASE,
                              .count = s->gap_count, .clock = s->gap_clock, .until = until, .other = NEVER, .value = NEVER});
    o->gap_until = until > o->gap_until || o->gap_until == NEVER ? until : o->gap_until;
    s->gap_count = 0;
}

static void accept(struct zo_observer *o, struct stream *s, struct slot *q)
{
    if (q->clock <= s->last_clock && !o->total.bus)
        find(o, &(struct finding){.what = F_SENDER_ORDER, .src = s->src + 1, .incarnation = s->incarnation, .seq = q->seq - BASE,
                                  .count = 1,
                                  .clock = q->clock, .until = s->last_clock, .other_src = s->src + 1, .other = q->seq - BASE - 1,
                                  .value = q->clock});
    else if (q->clock <= s->clock && !o->total.bus)
        find(o, &(struct finding){.what = F_PROMISE, .src = s->src + 1, .incarnation = s->incarnation, .seq = q->seq - BASE,
                                  .count = 1,
                                  .clock = q->clock, .until = s->clock, .other_src = s->src + 1, .other = NEVER,
                                      .value = q->clock});
    stream_gap_tell(o, s, q->clock);
    s->last_clock = q->clock;
    if (q->clock > s->clock)
        s->clock = q->clock;
    q->accepted = o->now;
    s->req++;
}

void stream_advance(struct zo_observer *o, struct stream *s)
{
    while (s->started && s->req < s->limit) { /* bound: slots */
        struct slot *q = slot_of(s, s->req);
        if (!q)
            break;
        if (q->state == LOST)
            s->req++;
        else
            accept(o, s, q);
    }
    stream_promise(s);
    stream_sure(o, s);
}

/* Everything below `to` was there, whatever the capture shows. */
void stream_skip(struct zo_observer *o, struct stream *s, uint64_t to)
{
    stream_advance(o, s);
    while (s->started && s->req < to && s->req < s->limit) { /* bound: slots, as the numbers have been judged */
        struct slot *q = slot_of(s, s->req);
        if (!q) {
            if (!(q = slot_make(o, s, s->req)))
                return;
            q->state = LOST;
            if (!s->gap_count) {
                s->gap_first = s->req;
                s->gap_clock = s->last_clock;
                o->gap_until = NEVER;
            }
            s->gap_count++;
            o->total.gaps++;
        }
        stream_advance(o, s);
    }
}

/* Holes that nothing has filled for a while, or all of them. */
void holes(struct zo_observer *o, int all)
{
    if (!o->any_hole)
        return;
    o->any_hole = 0;
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (!s || s->hole_to <= s->req)
            continue;
        if (!all && o->total.frames - s->hole_since < (h == o->self ? OWN_FRAMES : HOLE_FRAMES)) {
            o->any_hole = 1;
            continue;
        }
        uint64_t to = s->hole_to;
        if (to - s->req <= SLOTS_MOST)
            stream_skip(o, s, to);
        s->hole_to = 0;
    }
}
