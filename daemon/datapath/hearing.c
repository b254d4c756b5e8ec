/* What comes in on which of several links: second copies, who is heard where, and what the others say of it (LINKS).
 *
 * A second copy is a frame that was accepted from one link and comes on another one soon after. It goes no further: neither the
 * guard nor the core spends time on it. Later than DP_DOUBLE_NS it is no double but a frame like any other, which the core (or the
 * guard's window) knows to be a repetition: what is the same by its bytes may be news, as a heartbeat is.
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

static struct dp_seen *place(struct dp_hearing *h, uint64_t id)
{
    return &h->seen[(id * 0x9e3779b97f4a7c15ull) >> 52 & (DP_SEEN - 1)];
}

int hearing_is_double(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now)
{
    const uint64_t id = identity(frame);
    struct dp_seen *s = place(h, id);
    if (!id || s->id != id || now - s->at > DP_DOUBLE_NS || s->links >> link & 1)
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

void hearing_copy(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now)
{
    const struct dp_seen *s = place(h, identity(frame));
    struct dp_heard *who = &h->heard[link][s->src];
    who->frames++;
    if (s->own_word)
        who->heard = now;
}

/* A frame that has come from a station: its copies on other links are known by it. */
static void remember(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint8_t station, int own_word, uint64_t now)
{
    const uint64_t id = identity(frame);
    struct dp_seen *s = place(h, id);
    const uint32_t before = s->id == id && now - s->at <= DP_DOUBLE_NS ? s->links : 0u;
    *s = (struct dp_seen){.id = id, .at = now, .src = (uint8_t)(station - 1u) % ZJW_STATIONS_MAX, .own_word = (uint8_t)own_word,
                          .links = (uint8_t)(before | 1u << link)};
    hearing_copy(h, link, frame, now);
}

void hearing_accepted(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *pdu, uint64_t now)
{
    remember(h, link, frame, pdu->data[ZJW_HEADER_SRC], is_own_word(pdu->data), now);
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
    remember(h, link, frame, frame->data[ZJE_ENVELOPE_TX], 0, now);
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
