/* The walker: records of pcap and pcapng files. Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. */
#include <string.h>

#include "capture_int.h"

#define SECTION 0x0A0D0D0Au
enum { BLOCK_INTERFACE = 1, BLOCK_PACKET = 2, BLOCK_SIMPLE = 3, BLOCK_ENHANCED = 6 };
enum { OPT_END = 0, OPT_NAME = 2, OPT_FLAGS = 2, OPT_TSRESOL = 9, OPT_TSOFFSET = 14 };
enum { PCAP_HEADER = 24, PCAP_RECORD = 16, BLOCK_LEAST = 12, SECTION_LEAST = 28 };

static uint32_t r16(const struct zp_state *s, const uint8_t *p)
{
    return s->big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t r32(const struct zp_state *s, const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return s->big == (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) ? v : __builtin_bswap32(v);
}

static uint64_t r64(const struct zp_state *s, const uint8_t *p)
{
    uint64_t a = r32(s, p), b = r32(s, p + 4);
    return s->big ? a << 32 | b : b << 32 | a;
}

static int more(struct zp_walk *w, uint64_t need)
{
    w->need = need;
    return ZP_MORE;
}

static int damaged(struct zp_walk *w, int code, uint64_t detail)
{
    w->error_at = w->base + w->at;
    w->detail = detail;
    return code;
}

/* Time units: `exponent` as in if_tsresol, 10^-e or, with the top bit, 2^-e. */
static void set_resolution(struct zp_interface *i, uint32_t raw)
{
    uint32_t e = raw & 0x7f;
    i->mul = i->div = 1;
    i->shift = 0;
    if (raw & 0x80) {
        i->mul = 1000000000u;
        i->shift = e;
    } else if (e > 28) { /* not even 2^64 of them are a nanosecond */
        i->mul = 0;
    } else {
        for (; e < 9; e++)
            i->mul *= 10;
        for (; e > 9; e--)
            i->div *= 10;
    }
}

/* 0: outside of what 64 bits of nanoseconds hold. */
static int time_of(const struct zp_interface *i, uint64_t ticks, int64_t *out)
{
    if (i->div == 1 && !i->shift && !i->offset_s && i->mul && ticks <= (uint64_t)INT64_MAX / i->mul) {
        *out = (int64_t)(ticks * i->mul);
        return 1;
    }
    unsigned __int128 units = (unsigned __int128)ticks * i->mul / i->div >> i->shift; /* below 2^94 */
    __int128 ns = (__int128)units + (__int128)i->offset_s * 1000000000;
    *out = ns < INT64_MIN || ns > INT64_MAX ? 0 : (int64_t)ns;
    return ns >= INT64_MIN && ns <= INT64_MAX;
}

/* ---- beginning of a file ---- */

static int begin_pcap(struct zp_walk *w, const uint8_t *p, uint64_t left, int big, int nano)
{
    struct zp_state *s = &w->state;
    if (left < PCAP_HEADER)
        return more(w, PCAP_HEADER);
    s->big = (uint32_t)big;
    if (r16(s, p + 4) != 2)
        return damaged(w, ZP_E_VERSION, r16(s, p + 4));
    memset(s->interface, 0, sizeof s->interface[0]);
    s->interface[0].snaplen = r32(s, p + 16);
    s->interface[0].link = r32(s, p + 20) & 0xffff; /* the rest tells about a frame check sequence */
    set_resolution(&s->interface[0], nano ? 9 : 6);
    s->interfaces = 1;
    s->format = ZP_PCAP;
    w->at += PCAP_HEADER;
    return 1;
}

/* 1: the format is known now. */
static int begin(struct zp_walk *w)
{
    const uint8_t *p = w->data + w->at;
    uint64_t left = w->size - w->at;
    if (left < 4)
        return more(w, 4);
    uint32_t magic = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    switch (magic) {
    case 0xa1b2c3d4u: return begin_pcap(w, p, left, 1, 0);
    case 0xd4c3b2a1u: return begin_pcap(w, p, left, 0, 0);
    case 0xa1b23c4du: return begin_pcap(w, p, left, 1, 1);
    case 0x4d3cb2a1u: return begin_pcap(w, p, left, 0, 1);
    case SECTION: w->state.format = ZP_PCAPNG; return 1;
    default: return damaged(w, ZP_E_MAGIC, magic);
    }
}

/* ---- pcap ---- */

static uint32_t frame_max(uint32_t link)
{
    return link == LINK_ETHERNET || link == LINK_SLL || link == LINK_SLL2 ? ZP_FRAME_MAX : ZP_RECORD_MAX;
}

static int next_pcap(struct zp_walk *w, struct zp_frame *f)
{
    struct zp_state *s = &w->state;
    const uint8_t *p = w->data + w->at;
    uint64_t left = w->size - w->at;
    if (left < PCAP_RECORD)
        return more(w, PCAP_RECORD);
    uint32_t captured = r32(s, p + 8);
    if (captured > frame_max(s->interface[0].link))
        return damaged(w, ZP_E_RECORD, captured);
    if (left - PCAP_RECORD < captured)
        return more(w, PCAP_RECORD + (uint64_t)captured);
    f->offset = w->base + w->at;
    f->time_ns = (int64_t)r32(s, p) * 1000000000 + (int64_t)((uint64_t)r32(s, p + 4) * s->interface[0].mul);
    f->has_time = 1;
    f->direction = 0;
    f->data = p + PCAP_RECORD;
    f->captured = captured;
    f->wire = r32(s, p + 12);
    f->link = s->interface[0].link;
    f->interface = 0;
    f->index = s->frame++;
    w->at += PCAP_RECORD + (uint64_t)captured;
    return ZP_FRAME;
}

/* ---- pcapng ---- */

/* The option's value of at least `size` bytes among the options p[0..left), or NULL. */
static const uint8_t *option(const struct zp_state *s, const uint8_t *p, uint64_t left, uint32_t code, uint32_t size)
{
    while (left >= 4) { /* each takes at least four bytes */
        uint32_t c = r16(s, p), n = r16(s, p + 2);
        uint64_t step = 4 + (((uint64_t)n + 3) & ~3ull);
        if (c == OPT_END)
            return NULL;
        if (c == code && n >= size && n <= left - 4)
            return p + 4;
        if (step > left)
            return NULL;
        p += step;
        left -= step;
    }
    return NULL;
}

static int add_interface(struct zp_walk *w, const uint8_t *body, uint64_t size)
{
    struct zp_state *s = &w->state;
    if (size < 8)
        return damaged(w, ZP_E_BLOCK, size + BLOCK_LEAST);
    if (s->interfaces >= ZP_INTERFACES_MAX)
        return damaged(w, ZP_E_INTERFACES, s->interfaces);
    struct zp_interface *i = &s->interface[s->interfaces];
    memset(i, 0, sizeof *i);
    i->link = r16(s, body);
    i->snaplen = r32(s, body + 4);
    const uint8_t *resolution = option(s, body + 8, size - 8, OPT_TSRESOL, 1);
    const uint8_t *offset = option(s, body + 8, size - 8, OPT_TSOFFSET, 8);
    set_resolution(i, resolution ? *resolution : 6);
    i->offset_s = offset ? (int64_t)r64(s, offset) : 0;
    const uint8_t *name = option(s, body + 8, size - 8, OPT_NAME, 1);
    char *kept = w->name[s->interfaces];
    memset(kept, 0, ZP_NAME_MAX);
    if (name) {
        uint32_t length = r16(s, name - 2); /* stands before the value */
        memcpy(kept, name, length < ZP_NAME_MAX ? length : ZP_NAME_MAX - 1);
    }
    s->interfaces++;
    return 1;
}

/* A block that holds a frame; `block`: all of it, `size` its bytes. */
static int frame_block(struct zp_walk *w, uint32_t type, const uint8_t *block, uint32_t size, struct zp_frame *f)
{
    const struct zp_state *s = &w->state;
    const uint8_t *body = block + 8;
    uint32_t room = size - BLOCK_LEAST, fixed = type == BLOCK_SIMPLE ? 4 : 20, number = 0;
    if (room < fixed)
        return damaged(w, ZP_E_BLOCK, size);
    if (type == BLOCK_ENHANCED)
        number = r32(s, body);
    else if (type == BLOCK_PACKET)
        number = r16(s, body);
    if (number >= s->interfaces)
        return damaged(w, ZP_E_INTERFACE, number);
    const struct zp_interface *i = &s->interface[number];
    room -= fixed;
    f->direction = 0;
    f->has_time = 0;
    f->time_ns = 0;
    if (type == BLOCK_SIMPLE) {
        f->wire = r32(s, body);
        f->captured = i->snaplen && i->snaplen < f->wire ? i->snaplen : f->wire;
        if (f->captured > room)
            return damaged(w, ZP_E_CAPTURED, f->captured);
    } else {
        f->captured = r32(s, body + 12);
        f->wire = r32(s, body + 16);
        if (f->captured > room)
            return damaged(w, ZP_E_CAPTURED, f->captured);
        f->has_time = (uint8_t)time_of(i, (uint64_t)r32(s, body + 4) << 32 | r32(s, body + 8), &f->time_ns);
        uint32_t padded = (f->captured + 3) & ~3u; /* no overflow: captured is at most ZP_RECORD_MAX here */
        const uint8_t *flags = padded < room ? option(s, body + fixed + padded, room - padded, OPT_FLAGS, 4) : NULL;
        if (flags && (r32(s, flags) & 3) < 3)
            f->direction = r32(s, flags) & 3;
    }
    f->offset = w->base + w->at;
    f->data = body + fixed;
    f->link = i->link;
    f->interface = number;
    f->index = w->state.frame++;
    return ZP_FRAME;
}

/* The order of a section is known only from the section's header itself. 1: read, 0: more, negative: damaged. */
static int begin_section(struct zp_walk *w, const uint8_t *p, uint64_t left)
{
    struct zp_state *s = &w->state;
    if (left < BLOCK_LEAST)
        return more(w, BLOCK_LEAST);
    uint32_t magic = (uint32_t)p[8] << 24 | (uint32_t)p[9] << 16 | (uint32_t)p[10] << 8 | p[11];
    if (magic != 0x1a2b3c4du && magic != 0x4d3c2b1au)
        return damaged(w, ZP_E_ORDER, magic);
    struct zp_state order = {.big = magic == 0x1a2b3c4du};
    uint32_t size = r32(&order, p + 4);
    if (size < SECTION_LEAST || size % 4 || size > ZP_RECORD_MAX)
        return damaged(w, ZP_E_BLOCK, size);
    if (left < size)
        return more(w, size);
    if (r16(&order, p + 12) != 1)
        return damaged(w, ZP_E_VERSION, r16(&order, p + 12));
    if (r32(&order, p + size - 4) != size)
        return damaged(w, ZP_E_TRAILER, r32(&order, p + size - 4));
    s->big = order.big;
    s->interfaces = 0;
    w->at += size;
    return 1;
}

static int next_pcapng(struct zp_walk *w, struct zp_frame *f)
{
    struct zp_state *s = &w->state;
    for (;;) { /* bound: each turn takes at least a block's twelve bytes */
        const uint8_t *p = w->data + w->at;
        uint64_t left = w->size - w->at;
        if (left < 8)
            return more(w, left < 4 ? 4 : 8);
        uint32_t type = r32(s, p); /* a section header's type reads the same in both orders */
        int done = 1;
        if (type == SECTION) {
            done = begin_section(w, p, left);
            if (done <= 0)
                return done;
            continue;
        }
        uint32_t size = r32(s, p + 4);
        if (size < BLOCK_LEAST || size % 4 || size > ZP_RECORD_MAX)
            return damaged(w, ZP_E_BLOCK, size);
        if (left < size)
            return more(w, size);
        if (r32(s, p + size - 4) != size)
            return damaged(w, ZP_E_TRAILER, r32(s, p + size - 4));
        if (type == BLOCK_INTERFACE)
            done = add_interface(w, p + 8, size - BLOCK_LEAST);
        else if (type == BLOCK_ENHANCED || type == BLOCK_PACKET || type == BLOCK_SIMPLE)
            done = frame_block(w, type, p, size, f);
        else
            type = 0;
        if (done < 0)
            return done;
        w->at += size;
        if (type > BLOCK_INTERFACE)
            return ZP_FRAME;
    }
}

static uint64_t mac48(const uint8_t *p) { return (uint64_t)be16(p) << 32 | be32(p + 2); }

/* Where the format does not say it: PACKET_OUTGOING or PACKET_HOST, BROADCAST, MULTICAST, OTHERHOST; or the address. */
static uint8_t direction_of(const struct zp_frame *f, uint64_t own_mac)
{
    uint32_t kind = 5;
    if (f->link == LINK_SLL && f->captured >= 2)
        kind = be16(f->data);
    else if (f->link == LINK_SLL2 && f->captured >= 11)
        kind = f->data[10];
    else if (f->link == LINK_ETHERNET && own_mac && f->captured >= 12)
        return mac48(f->data + 6) == own_mac ? 2 : 1;
    return kind == 4 ? 2 : kind < 4 ? 1 : 0;
}

int zp_next(struct zp_walk *w, struct zp_frame *f)
{
    if (w->state.format == ZP_UNKNOWN) {
        int known = begin(w);
        if (known <= 0)
            return known;
    }
    int r = w->state.format == ZP_PCAP ? next_pcap(w, f) : next_pcapng(w, f);
    if (r == ZP_FRAME && !f->direction)
        f->direction = direction_of(f, w->state.own_mac);
    return r;
}

/* A number for the interface that a frame was captured on, not 0: in cooked v2 each frame has its own, in v1 none has. */
static uint64_t interface_of(const struct zp_frame *f)
{
    uint64_t cooked = f->link == LINK_SLL2 && f->captured >= 8 ? (uint64_t)be32(f->data + 4) : 0;
    return (cooked << 32 | f->interface) + 1;
}

#define APART_FRAMES 100000u /* as many as ZP_PIECE_NS, where there are no time stamps */

/* Pieces of a PDU may still be to come. */
static int is_among_pieces(const struct zp_scan *s)
{
    return s->pieces && s->now_ns - s->piece_ns <= ZP_PIECE_NS && s->since_piece < APART_FRAMES;
}

int zp_scan(struct zp_walk *w, uint64_t border, uint32_t ethertype, struct zp_scan *s)
{
    struct zp_frame f;
    while (w->state.format == ZP_UNKNOWN || w->base + w->at < border || is_among_pieces(s)) {
        int r = zp_next(w, &f);
        if (r != ZP_FRAME)
            return r;
        s->frames++;
        s->bytes += f.captured;
        s->since_piece++;
        if (f.has_time) {
            s->timed++;
            s->now_ns = f.time_ns;
            if (f.time_ns < s->first_ns)
                s->first_ns = f.time_ns;
            if (f.time_ns > s->last_ns)
                s->last_ns = f.time_ns;
        }
        struct zp_link l;
        zp_link(&f, &l);
        s->links |= f.link == LINK_ETHERNET ? 1u : f.link == LINK_SLL ? 2u : f.link == LINK_SLL2 ? 4u : 8u;
        if (l.ethertype == ethertype) {
            uint64_t *seen = &s->seen[l.direction % 3], by = interface_of(&f);
            s->links |= *seen && *seen != by ? 16u | 64u : 16u;
            *seen = *seen ? *seen : by;
        }
        if (l.ethertype == ethertype && zp_aside(l.pdu, l.captured, l.wire) && zp_piece(l.pdu)) {
            s->pieces++;
            s->since_piece = 0;
            s->piece_ns = s->now_ns;
        }
        if (l.ethertype == ethertype) {
            const uint32_t at = zp_envelope(l.pdu, l.captured, l.wire) + ZJW_HEADER_FLAGS;
            s->links |= l.captured > at && l.pdu[at] & ZJW_FLAG_PAIR ? 128u : 0;
        }
        if (f.captured < f.wire && (l.ethertype == ethertype || !l.ethertype))
            s->links |= 32u;
    }
    return ZP_BORDER;
}

int zp_census(struct zp_walk *w, uint32_t ethertype, uint64_t enough, struct zp_census *c)
{
    struct zp_frame f;
    struct zp_link l;
    struct zp_pdu p;
    int r;
    while (c->pdus < enough) {
        if ((r = zp_next(w, &f)) != ZP_FRAME)
            return r;
        zp_link(&f, &l);
        if (l.ethertype != ethertype || zp_pdu(l.pdu, l.captured, l.wire, &p) != ZP_P_NONE || p.flags & ZJW_FLAG_PAIR)
            continue;
        uint32_t s = p.src - 1u;
        if (!c->n[s] || (l.direction == 2 && !c->out[s]))
            c->cluster[s] = p.cluster, c->n[s] = p.n;
        c->pdus++;
        c->all[s]++;
        c->out[s] += l.direction == 2;
        c->own[s] += l.direction == 2 && !(p.flags & ZJW_FLAG_RELAYED) &&
                     (p.kind == ZJW_KIND_CONFIRM || p.kind == ZJW_KIND_NAK || p.kind == ZJW_KIND_OPEN || p.kind == ZJW_KIND_RCV);
        if (c->mac[s] == l.src_mac)
            c->weight[s]++;
        else if (c->weight[s])
            c->weight[s]--;
        else
            c->mac[s] = l.src_mac, c->weight[s] = 1;
    }
    return ZP_FULL;
}

/* ---- link layer ---- */

static int is_tag(uint32_t type) { return type == 0x8100 || type == 0x88a8 || type == 0x9100; }

/* Of an ARPHRD_ type whose `protocol` field in cooked captures is an EtherType (netlink's, GRE's, 802.11's and Frame Relay's are not). */
static int has_ethertype(uint32_t hardware)
{
    return hardware != 824 && hardware != 778 && hardware != 803 && hardware != 802 && hardware != 801 && hardware != 770;
}

void zp_link(const struct zp_frame *f, struct zp_link *l)
{
    const uint8_t *p = f->data;
    uint32_t head = f->link == LINK_ETHERNET ? 14 : f->link == LINK_SLL ? 16 : f->link == LINK_SLL2 ? 20 : 0;
    memset(l, 0, sizeof *l);
    l->src_mac = l->dst_mac = ZP_NO_MAC;
    l->vlan = -1;
    l->direction = f->direction;
    l->known = head != 0;
    l->frame = f->wire > f->captured ? f->wire : f->captured; /* some writers say 0 */
    if (!head || f->captured < head)
        return;
    if (f->link == LINK_ETHERNET) {
        l->dst_mac = mac48(p);
        l->src_mac = mac48(p + 6);
        l->ethertype = be16(p + 12);
    } else if (f->link == LINK_SLL) {
        if (be16(p + 4) == 6)
            l->src_mac = mac48(p + 6);
        l->ethertype = has_ethertype(be16(p + 2)) ? be16(p + 14) : 0;
    } else {
        if (p[11] == 6)
            l->src_mac = mac48(p + 12);
        l->ethertype = has_ethertype(be16(p + 8)) ? be16(p) : 0;
    }
    while (is_tag(l->ethertype) && f->captured - head >= 4) { /* bound: each takes four captured bytes */
        if (l->vlan < 0)
            l->vlan = be16(p + head) & 0xfff;
        l->ethertype = be16(p + head + 2);
        head += 4;
    }
    l->pdu = p + head;
    l->captured = f->captured - head;
    l->wire = l->frame - head;
    if (f->link != LINK_ETHERNET)
        l->frame -= f->link == LINK_SLL ? 2 : 6; /* cooked headers are longer than the fourteen bytes they stand for */
}
