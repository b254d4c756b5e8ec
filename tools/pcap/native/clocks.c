/* Sends and receipts for the alignment of clocks; see clocks.h and tools/pcap/look/clocks.py.
 *
 * A receipt bounds the clocks only by the PDU's first transmission of all. Whether that is in the capture is not plain at its beginning: a
 * PDU sent again looks like one sent first, and heartbeats of an idle station are alike. What a station says of itself only grows
 * (instance, next number, clock), so what is beyond its first words in the capture is new. */
#include "capture_int.h"
#include "clocks.h"

enum { WINDOW_MAX = 65536 }; /* no station holds so many unacknowledged PDUs: what is so far beyond a PDU sent again is new */

static int beyond(uint32_t a, uint32_t b) { return a != b && a - b < 0x80000000u; }

static int is_sequenced(uint32_t kind)
{
    return kind == ZJW_KIND_DATA || kind == ZJW_KIND_STOP || kind == ZJW_KIND_STOP_ACK || kind == ZJW_KIND_RCV_ACK;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t zk_key(const struct zp_pdu *p)
{
    uint64_t about = (uint64_t)p->kind << 56 | (uint64_t)p->flags << 48 | (uint64_t)p->src << 32 | p->incarnation;
    return mix(p->check ^ mix(about ^ mix((uint64_t)p->cluster << 32 | p->seq)));
}

static int new_opening(struct zk_state *s, const struct zp_pdu *p)
{
    uint32_t age = be32(p->payload + ZJW_OPEN_AGE_MS);
    if (!s->age_known) {
        s->age_known = 1;
        s->age = age;
    }
    return s->life > 1 || age != s->age;
}

/* Whether the own PDU's first transmission is in the capture for certain. */
static int is_new(struct zk_state *s, const struct zp_pdu *p)
{
    if (!s->life || p->incarnation != s->incarnation) {
        s->incarnation = p->incarnation;
        s->life += s->life < 2;
    }
    if (p->kind == ZJW_KIND_OPEN || p->kind == ZJW_KIND_RCV)
        return new_opening(s, p);
    if (s->life > 1)
        return 1;
    if (is_sequenced(p->kind)) {
        if (!s->first_known) {
            s->first_known = 1;
            s->first_seq = p->seq;
        }
        if (s->base_known && (p->instance > s->base_instance ||
                              (p->instance == s->base_instance && p->seq - s->base_seq < 0x80000000u)))
            return 1;
        return beyond(p->seq, s->first_seq + WINDOW_MAX);
    }
    if (!s->base_known) {
        s->base_known = 1;
        s->base_seq = p->seq;
        s->base_instance = p->instance;
        s->base_clock = p->clock;
        return 0;
    }
    return p->instance > s->base_instance || p->clock > s->base_clock || beyond(p->seq, s->base_seq);
}

/* The unit of the frame's time stamp, at least 1 ns. */
static uint32_t tick_of(const struct zp_walk *w, const struct zp_frame *f)
{
    const struct zp_interface *i = &w->state.interface[f->interface];
    uint64_t tick = i->shift > 63 ? 0 : (i->mul / i->div) >> i->shift;
    tick += i->shift != 0; /* powers of two are no whole numbers of nanoseconds */
    return tick < 1 ? 1 : tick > 1000000000u ? 1000000000u : (uint32_t)tick;
}

static void note_back(struct zk_state *s, int64_t now)
{
    if (s->last_known && now < s->last_ns) {
        int64_t by;
        s->backs++;
        if (__builtin_sub_overflow(s->last_ns, now, &by))
            by = INT64_MAX;
        s->back_ns = by > s->back_ns ? by : s->back_ns;
        return;
    }
    s->last_known = 1;
    s->last_ns = now;
}

int zk_collect(struct zp_walk *w, struct zk_state *s, struct zk_mark *marks, uint64_t capacity, uint64_t *rows)
{
    for (;;) {
        if (*rows >= capacity)
            return ZP_FULL;
        struct zp_frame f;
        struct zp_link l;
        struct zp_pdu p;
        int result = zp_next(w, &f);
        if (result != ZP_FRAME)
            return result;
        zp_link(&f, &l);
        if (l.ethertype != s->ethertype || zp_pdu(l.pdu, l.captured, l.wire, &p) != ZP_P_NONE || p.flags & ZJW_FLAG_PAIR)
            continue;
        s->frames++;
        if (!f.has_time || !l.direction) {
            s->untimed++;
            continue;
        }
        note_back(s, f.time_ns);
        int own = p.src == s->station, sent = l.direction == 2;
        if (own != sent) /* sent for others, or an own one that came back: later than what counts */
            continue;
        if (own && !is_new(s, &p)) {
            s->unproven++;
            continue;
        }
        uint64_t key = zk_key(&p);
        if (key & s->mask)
            continue;
        struct zk_mark *m = &marks[(*rows)++];
        memset(m, 0, sizeof *m);
        m->key = key;
        m->time_ns = f.time_ns;
        m->src = p.src;
        m->what = sent ? ZK_SENT : ZK_RECEIVED;
        m->tick_ns = tick_of(w, &f);
    }
}

int zk_copies(struct zp_walk *w, uint32_t ethertype, uint64_t first, struct zk_copy *copies, uint64_t capacity, uint64_t *rows,
              uint64_t *damaged)
{
    for (;;) {
        if (*rows >= capacity)
            return ZP_FULL;
        struct zp_frame f;
        struct zp_link l;
        struct zp_pdu p;
        int result = zp_next(w, &f);
        if (result != ZP_FRAME)
            return result;
        zp_link(&f, &l);
        if (l.ethertype != ethertype)
            continue;
        const int problem = zp_pdu(l.pdu, l.captured, l.wire, &p);
        if (problem != ZP_P_NONE) {
            *damaged += problem != ZP_P_ASIDE || zp_hides(l.pdu);
            continue;
        }
        if (p.flags & ZJW_FLAG_PAIR)
            continue; /* its numbers are those of a link */
        struct zk_copy *c = &copies[(*rows)++];
        memset(c, 0, sizeof *c);
        c->key = zk_key(&p);
        c->time_ns = f.has_time ? f.time_ns : INT64_MIN;
        c->index = first + f.index;
        c->mac = l.src_mac;
        c->kind = p.kind;
        c->src = p.src;
        c->direction = (uint8_t)l.direction;
    }
}
