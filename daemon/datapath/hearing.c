/* What comes in on which of several links: second copies, who is heard where, and what the others say of it (LINKS).
 *
 * A second copy is a frame that was accepted from one link and comes on another one soon after. It goes no further: neither the
 * guard nor the core spends time on it. Later than DP_DOUBLE_NS it is no double but a frame like any other, which the core knows to
 * be a repetition: what is the same by its bytes may be news, as a heartbeat is. A sealed frame is not: there is one with its number
 * and tag, and a queue in a switch makes its copy late, not a replay (DP_DOUBLE_SEALED_NS).
 */
#include "internal.h"

/* ---- second copies ---- */
/* What tells a frame from others: its number in its session and its tag, or the checksums of its PDU. 0: too short to have these.
 * Who forges a copy does not have the tag before the frame itself has come. */
static uint64_t identity(const struct zj_frame *f)
{
    uint64_t a, b = 0, tag = 0;
    if (f->size < ZJW_SIZEOF_HEADER)
        return 0;
    if (f->data[ZJE_ENVELOPE_VERSION] == ZJE_VERSION) {
        memcpy(&a, f->data + ZJE_ENVELOPE_NUMBER, sizeof a);
        memcpy(&b, f->data + ZJE_ENVELOPE_SESSION, 4);
        b ^= (uint64_t)f->data[ZJE_ENVELOPE_WHAT] << 32 | (uint64_t)f->data[ZJE_ENVELOPE_TX] << 40;
        if (f->data[ZJE_ENVELOPE_SUITE] != ZJE_SUITE_NONE) {
            const uint32_t end = ZJE_SIZEOF_ENVELOPE + from16(f->data + ZJE_ENVELOPE_LENGTH);
            if (end + ZJE_TAG_BYTES > f->size)
                return 0;
            memcpy(&tag, f->data + end, sizeof tag);
        }
    } else {
        memcpy(&a, f->data + ZJW_HEADER_CHECK, sizeof a);
        memcpy(&b, f->data + ZJW_HEADER_SEQ, 4);
        b ^= (uint64_t)f->data[ZJW_HEADER_SRC] << 32;
    }
    a ^= (b * 0x9e3779b97f4a7c15ull) ^ tag;
    return a ? a : 1;
}

static int is_recent(const struct dp_seen *s, const struct zj_frame *f, uint64_t now)
{
    const int is_sealed = f->data[ZJE_ENVELOPE_VERSION] == ZJE_VERSION && f->data[ZJE_ENVELOPE_SUITE] != ZJE_SUITE_NONE;
    return now - s->at <= (is_sealed ? DP_DOUBLE_SEALED_NS : DP_DOUBLE_NS);
}

static struct dp_seen *place(struct dp_hearing *h, uint64_t id)
{
    return &h->seen[(id * 0x9e3779b97f4a7c15ull) >> 52 & (DP_SEEN - 1)];
}

int hearing_is_double(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now)
{
    const uint64_t id = identity(frame);
    struct dp_seen *s = place(h, id);
    if (!id || s->id != id || !is_recent(s, frame, now) || s->links >> link & 1)
        return 0;
    s->links |= (uint8_t)(1u << link);
    return 1;
}

/* ---- who is heard ---- */
/* A PDU that its source puts on the wire itself; those in a stream may have been sent again by another station. */
static int is_own_word(const uint8_t *pdu)
{
    switch (pdu[ZJW_HEADER_KIND]) {
    case ZJW_KIND_CONFIRM:
        return !(pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_RELAYED);
    case ZJW_KIND_NAK: case ZJW_KIND_OPEN: case ZJW_KIND_RCV:
        return 1;
    default:
        return 0;
    }
}

/* ---- what has gone by ---- */
/* What a station puts on the wire has ascending numbers, and a link keeps the order of what it carries. So below the highest number
 * that has come on a link nothing comes there any more but repetitions, and how much later numbers go by on one link than on the
 * first one is how much longer its way is: a queue in a switch makes tens of milliseconds. */
static int is_after(uint32_t a, uint32_t b) { return (int32_t)(a - b) > 0; }

/* Numbers from..below - 1 have gone by on some link for the first time. */
static void note_front(struct dp_front *f, uint32_t from, uint32_t below, uint64_t now)
{
    for (uint32_t n = 0; n < DP_FRONT && from + n != below; n++)
        f->at[(below - 1u - n) % DP_FRONT] = now;
    f->below = below;
}

static void note_late(struct dp_front *f, uint64_t ns, uint64_t now)
{
    if (ns < f->late && now - f->late_at < DP_LATE_KEPT_NS)
        return;
    f->late = max64(ns, f->late / 2);
    f->late_at = now;
}

/* first: this copy of the frame is. A second one may be of a repetition, which is late by more than its way. */
static void goes_by(struct dp_hearing *h, uint32_t link, const struct dp_seen *s, int first, uint64_t now)
{
    struct dp_gone *gone = &h->gone[link][s->src];
    struct dp_front *front = &h->front[s->src];
    if (!h->several || !s->numbered || is_after(gone->instance, s->instance))
        return;
    const int is_same = gone->instance == s->instance;
    gone->at = now;
    if (is_same && !is_after(s->below, gone->below))
        return;
    gone->below = s->below;
    gone->instance = s->instance;
    h->moved |= 1ull << s->src;
    if (is_after(s->instance, front->instance)) {
        front->instance = s->instance;
        note_front(front, s->below - 1u, s->below, now);
    } else if (is_after(s->below, front->below)) {
        note_front(front, front->below, s->below, now);
    } else if (first && !s->own_word && front->below - s->below < DP_FRONT) {
        note_late(front, now - front->at[(s->below - 1u) % DP_FRONT], now);
    }
}

uint32_t hearing_passed(const struct dp_hearing *h, uint32_t src, uint64_t now, uint64_t *wait_ns)
{
    const struct dp_gone *last = NULL, *least = NULL;
    for (uint32_t link = 0; link < DP_LINKS_MAX; link++) {
        const struct dp_gone *g = &h->gone[link][src];
        if (g->at && (!last || is_after(g->instance, last->instance) || (g->instance == last->instance && g->at > last->at)))
            last = g;
    }
    for (uint32_t link = 0; last && link < DP_LINKS_MAX; link++) {
        const struct dp_gone *g = &h->gone[link][src];
        if (g->at && now - g->at < DP_LATE_MOST_NS && g->instance == last->instance && (!least || is_after(least->below, g->below)))
            least = g;
    }
    *wait_ns = max64(DP_LATE_LEAST_NS, min64(2 * h->front[src].late, DP_LATE_MOST_NS));
    return least ? least->below : last ? last->below : 0;
}

static void count(struct dp_hearing *h, uint32_t link, const struct dp_seen *s, int first, uint64_t now)
{
    struct dp_heard *who = &h->heard[link][s->src];
    who->frames++;
    if (s->own_word)
        who->heard = now;
    goes_by(h, link, s, first, now);
}

void hearing_copy(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now)
{
    count(h, link, place(h, identity(frame)), 0, now);
}

uint32_t hearing_source(struct dp_hearing *h, const struct zj_frame *frame) { return place(h, identity(frame))->src; }

/* A frame that has come from a station: its copies on other links are known by it. pdu: NULL: it is none that was accepted. */
static void remember(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint8_t station, const struct zj_frame *pdu,
                     uint64_t now)
{
    const uint64_t id = identity(frame);
    struct dp_seen *s = place(h, id);
    const uint32_t before = s->id == id && is_recent(s, frame, now) ? s->links : 0u;
    const int own_word = pdu && is_own_word(pdu->data), of_stream = pdu && is_of_stream(pdu->data);
    const int names_next = own_word && (pdu->data[ZJW_HEADER_KIND] == ZJW_KIND_CONFIRM || pdu->data[ZJW_HEADER_KIND] == ZJW_KIND_NAK);
    *s = (struct dp_seen){.id = id, .at = now, .src = (uint8_t)(station - 1u) % ZJW_STATIONS_MAX, .own_word = (uint8_t)own_word,
                          .numbered = (uint8_t)(names_next || of_stream), .links = (uint8_t)(before | 1u << link)};
    if (s->numbered) {
        s->below = from32(pdu->data + ZJW_HEADER_SEQ) + (uint32_t)of_stream;
        s->instance = from32(pdu->data + ZJW_HEADER_INSTANCE);
    }
    count(h, link, s, 1, now);
}

void hearing_accepted(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *pdu, uint64_t now)
{
    remember(h, link, frame, pdu->data[ZJW_HEADER_SRC], pdu, now);
}

/* ---- LINKS ---- */
void hearing_links(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now)
{
    const uint32_t tx = frame->data[ZJE_ENVELOPE_TX] - 1u, size = body->size;
    if (tx >= ZJW_STATIONS_MAX || size > DP_LINKS_SAID_MAX)
        return;
    struct dp_said *s = &h->said[link][tx];
    *s = (struct dp_said){.size = size, .tx = tx, .link = link};
    memcpy(s->data, body->data, size);
    h->waits[link] |= 1ull << tx;
    h->heard[link][tx].heard = now;
    if (!h->due)
        h->due = now + DP_SAID_REST_NS;
}

void hearing_probe(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now)
{
    const uint8_t *p = frame->data;
    const uint32_t tx = p[ZJE_ENVELOPE_TX] - 1u;
    if (tx >= ZJW_STATIONS_MAX || body->size < ZJE_SIZEOF_PROBE)
        return;
    const uint32_t round = from16(body->data + ZJE_PROBE_ROUND), bytes = from16(body->data + ZJE_PROBE_BYTES);
    struct dp_heard *who = &h->heard[link][tx];
    uint8_t *session = h->probing[link][tx];
    if (bytes > frame->size)
        return; /* it says what it is not */
    if (memcmp(session, p + ZJE_ENVELOPE_SESSION, 4) || (uint16_t)(round - who->round - 1u) < 0x8000u) {
        memcpy(session, p + ZJE_ENVELOPE_SESSION, 4);
        who->round = round;
        who->largest = 0;
    }
    if (round == who->round && bytes > who->largest)
        who->largest = bytes;
    who->heard = now;
    if (!body->data[ZJE_PROBE_ANSWER])
        return;
    h->asked |= 1u << link;
    if (!h->due)
        h->due = now + DP_SAID_REST_NS;
}

void hearing_piece(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now)
{
    remember(h, link, frame, frame->data[ZJE_ENVELOPE_TX], NULL, now);
}

void hearing_own(struct dp_hearing *h, uint32_t link, uint64_t now) { h->heard[link][h->self].heard = now; }

int dp_links_heard(const struct dp *d, uint32_t link, struct dp_heard out[64])
{
    if (link >= d->links.count || !d->hearing)
        return -EINVAL;
    memcpy(out, d->hearing->heard[link], sizeof d->hearing->heard[link]);
    return 0;
}

int dp_links_said(struct dp *d, struct dp_said *out)
{
    struct dp_hearing *h = d->hearing;
    for (uint32_t link = 0; h && link < d->links.count; link++) {
        if (!h->waits[link])
            continue;
        const uint32_t tx = (uint32_t)__builtin_ctzll(h->waits[link]);
        h->waits[link] &= h->waits[link] - 1;
        *out = h->said[link][tx];
        return 1;
    }
    if (h)
        h->due = 0;
    return 0;
}

uint32_t dp_links_asked(struct dp *d)
{
    const uint32_t asked = d->hearing ? d->hearing->asked : 0;
    if (d->hearing)
        d->hearing->asked = 0;
    return asked;
}
