/* Filters over whole captures; see match.h. */
#include "match.h"

#include "capture_int.h"
#include "zj_envelope.h"

static int has_text(const uint8_t *p, uint32_t size, const uint8_t *text, uint32_t text_size)
{
    if (!text_size || text_size > size)
        return 0;
    for (const uint8_t *last = p + (size - text_size); p <= last; p++) {
        p = memchr(p, text[0], (size_t)(last - p) + 1);
        if (!p)
            return 0;
        if (!memcmp(p, text, text_size))
            return 1;
    }
    return 0;
}

/* Of a valid DATA PDU: its messages fill the payload. */
static int has_group(const struct zp_pdu *p, uint32_t group)
{
    const uint8_t *b = p->payload, *end = b + p->length;
    while (b < end) { /* each turn takes at least a message header */
        if (be32(b + ZJW_MESSAGE_GROUP) == group)
            return 1;
        uint32_t head = ZJW_SIZEOF_MESSAGE;
        if (b[ZJW_MESSAGE_MFLAGS] & ZJW_MFLAG_FRAGMENT)
            head += ZJW_SIZEOF_FRAGMENT;
        b += head + be32(b + ZJW_MESSAGE_SIZE);
    }
    return 0;
}

/* Of a frame without a PDU only the envelope can be looked at. */
static int aside_wanted(const struct zm_filter *f, const uint8_t *b)
{
    const uint32_t tx = b[ZJE_ENVELOPE_TX];
    if (f->kinds != UINT64_MAX || f->use & (ZM_INCARNATION | ZM_INSTANCE | ZM_SEQ | ZM_GROUP | ZM_TEXT | ZM_BAD))
        return 0;
    if (f->sources != UINT64_MAX && !(f->sources >> (tx - 1) & 1))
        return 0;
    return !(f->use & ZM_CLUSTER) || be32(b + ZJE_ENVELOPE_CLUSTER) == f->cluster;
}

static int header_wanted(const struct zm_filter *f, const uint8_t *b)
{
    uint32_t kind = b[ZJW_HEADER_KIND], src = b[ZJW_HEADER_SRC], use = f->use;
    if (f->kinds != UINT64_MAX && (kind > 63 || !(f->kinds >> kind & 1)))
        return 0;
    if (f->sources != UINT64_MAX && (src < 1 || src > 64 || !(f->sources >> (src - 1) & 1)))
        return 0;
    if (use & ZM_CLUSTER && be32(b + ZJW_HEADER_CLUSTER) != f->cluster)
        return 0;
    if (use & ZM_INCARNATION && be32(b + ZJW_HEADER_INCARNATION) != f->incarnation)
        return 0;
    if (use & ZM_INSTANCE && be32(b + ZJW_HEADER_INSTANCE) != f->instance)
        return 0;
    return !(use & ZM_SEQ) || be32(b + ZJW_HEADER_SEQ) - f->seq_first < f->seq_span;
}

static int in_header(const struct zm_filter *f)
{
    return f->kinds != UINT64_MAX || f->sources != UINT64_MAX ||
           f->use & (ZM_CLUSTER | ZM_INCARNATION | ZM_INSTANCE | ZM_SEQ | ZM_GROUP | ZM_TEXT);
}

static int in_time(const struct zm_filter *f, const struct zp_frame *frame)
{
    if (!frame->has_time)
        return 0;
    int64_t at = frame->time_ns;
    if (f->use & ZM_RELATIVE && __builtin_sub_overflow(at, f->base_ns, &at))
        return 0;
    return at >= f->from_ns && at <= f->to_ns;
}

static int wanted(const struct zm_filter *f, struct zm_hit *hit)
{
    if ((f->from_ns != INT64_MIN || f->to_ns != INT64_MAX) && !in_time(f, &hit->frame))
        return 0;
    if (f->use & ZM_DIRECTION && hit->link.direction != f->direction)
        return 0;
    if (f->use & ZM_FRAMES && hit->frame.index < f->first_frame)
        return 0;
    if (zp_aside(hit->link.pdu, hit->link.captured, hit->link.wire)) {
        hit->problem = ZP_P_ASIDE;
        return aside_wanted(f, hit->link.pdu);
    }
    const uint32_t envelope = zp_envelope(hit->link.pdu, hit->link.captured, hit->link.wire);
    if (in_header(f) &&
        (hit->link.captured - envelope < ZJW_SIZEOF_HEADER || !header_wanted(f, hit->link.pdu + envelope)))
        return 0;
    struct zp_pdu p;
    hit->problem = (uint32_t)zp_pdu(hit->link.pdu, hit->link.captured, hit->link.wire, &p);
    if (f->use & ZM_BAD && hit->problem == ZP_P_NONE)
        return 0;
    if (f->use & (ZM_GROUP | ZM_TEXT)) {
        if (hit->problem != ZP_P_NONE)
            return 0;
        if (f->use & ZM_GROUP && (p.kind != ZJW_KIND_DATA || !has_group(&p, f->group)))
            return 0;
        if (f->use & ZM_TEXT && !has_text(p.payload, p.length, f->text, f->text_size))
            return 0;
    }
    return 1;
}

/* The next frame of our EtherType, whole or not. */
static int next_ours(struct zp_walk *w, uint32_t ethertype, struct zm_hit *hit)
{
    int result;
    while ((result = zp_next(w, &hit->frame)) == ZP_FRAME) {
        zp_link(&hit->frame, &hit->link);
        if (hit->link.ethertype == ethertype)
            break;
        if (!hit->link.known && !hit->unread++)
            hit->unread_link = hit->frame.link;
    }
    return result;
}

int zm_next(struct zp_walk *w, struct zm_filter *filter, struct zm_hit *hit)
{
    int result;
    hit->why = 0;
    while ((result = next_ours(w, filter->ethertype, hit)) == ZP_FRAME) {
        if (!filter->base_known && hit->frame.has_time) {
            filter->base_ns = hit->frame.time_ns;
            filter->base_known = 1;
        }
        if (filter->use & ZM_FRAMES && hit->frame.index > filter->last_frame)
            return ZP_FULL;
        if (wanted(filter, hit))
            return ZP_FRAME;
        hit->skipped++;
    }
    return result;
}

static int is_sequenced(uint32_t kind)
{
    return kind == ZJW_KIND_DATA || kind == ZJW_KIND_STOP || kind == ZJW_KIND_STOP_ACK || kind == ZJW_KIND_RCV_ACK;
}

static uint32_t copy_of(struct zm_track *t, const struct zp_pdu *p)
{
    if (p->seq != t->seq)
        return 0;
    if (!t->check_known) {
        t->check_known = 1;
        t->check = p->check;
    } else if (t->check != p->check) {
        t->conflicts++;
    }
    return ZM_IS_COPY;
}

static uint32_t asked(const struct zm_track *t, const struct zp_pdu *p)
{
    const uint8_t *b = p->payload;
    if (b[ZJW_NAK_STREAM] != t->src || be32(b + ZJW_NAK_STREAM_INCARNATION) != t->incarnation)
        return 0;
    uint32_t count = b[ZJW_NAK_COUNT];
    for (b += ZJW_SIZEOF_NAK; count--; b += ZJW_SIZEOF_RANGE) {
        if (t->seq - be32(b + ZJW_RANGE_FIRST) < be32(b + ZJW_RANGE_SPAN))
            return ZM_IS_ASKED;
    }
    return 0;
}

/* Serial numbers: a is beyond b. */
static int beyond(uint32_t a, uint32_t b) { return a != b && a - b < 0x80000000u; }

static uint32_t why(struct zm_track *t, const struct zp_pdu *p)
{
    uint64_t bit = 1ull << (p->src - 1);
    uint32_t at = 4 * (t->src - 1), out = 0;
    int same_life = p->src != t->src || p->incarnation == t->incarnation;
    if (p->src == t->src && is_sequenced(p->kind) && same_life)
        out |= copy_of(t, p);
    if (p->kind == ZJW_KIND_NAK)
        out |= asked(t, p);
    if (!same_life && p->instance > t->instance)
        t->over = 1; /* what others acknowledge now is another stream */
    if (t->over || !same_life || p->instance < t->instance || t->src > p->n)
        return out;
    int vectors = p->kind != ZJW_KIND_OPEN && p->kind != ZJW_KIND_RCV && p->kind != ZJW_KIND_RST && p->kind != ZJW_KIND_RSTC;
    if (vectors && !(t->acked & bit) && p->src != t->src && beyond(be32(p->ack + at), t->seq)) {
        t->acked |= bit;
        out |= ZM_IS_ACK;
    }
    if (vectors && p->pack && !(t->packed & bit) && beyond(be32(p->pack + at), t->seq)) {
        t->packed |= bit;
        out |= ZM_IS_PACK;
    }
    if ((p->kind == ZJW_KIND_RST || p->kind == ZJW_KIND_RSTC) && t->check_known && p->clock > t->epoch[p->src - 1]) {
        t->epoch[p->src - 1] = p->clock;
        if (~t->packed & bit)
            out |= ZM_IS_RESET;
    }
    return out;
}

int zm_follow(struct zp_walk *w, struct zm_track *t, struct zm_hit *hit)
{
    int result;
    while ((result = next_ours(w, t->ethertype, hit)) == ZP_FRAME) {
        struct zp_pdu p;
        if (zp_pdu(hit->link.pdu, hit->link.captured, hit->link.wire, &p) == ZP_P_NONE && p.cluster == t->cluster &&
            !(p.flags & ZJW_FLAG_PAIR) && (hit->why = why(t, &p))) {
            hit->problem = ZP_P_NONE;
            return ZP_FRAME;
        }
        hit->skipped++;
    }
    return result;
}
