/* PDU codec: a received PDU is checked and its header read here, once, and an own header is written here. Layout: zj_wire.h, made from
 * proto/wire.py. */
#include "order/order.h"

static uint32_t head_crc(const uint8_t *b, uint32_t vectors_end)
{
    uint32_t crc = zj_crc32c(0, b, ZJW_HEADER_CHECK);
    return zj_crc32c(crc, b + ZJW_SIZEOF_HEADER, vectors_end - ZJW_SIZEOF_HEADER);
}

static uint32_t vectors_end(const uint8_t *b)
{
    uint32_t n = b[ZJW_HEADER_STATIONS];
    return ZJW_SIZEOF_HEADER + 4 * n + (b[ZJW_HEADER_FLAGS] & ZJW_FLAG_PACK ? 4 * n : 0);
}

static int data_fits(const uint8_t *p, uint32_t size, uint32_t header_flags)
{
    uint32_t known = ZJW_MFLAG_FRAGMENT | ZJW_MFLAG_LAST | (message_flags(header_flags));
    while (size) { /* bound: each turn takes at least a message header */
        if (size < ZJW_SIZEOF_MESSAGE)
            return 0;
        uint32_t len = get32(p + ZJW_MESSAGE_SIZE), flags = p[ZJW_MESSAGE_MFLAGS];
        if (p[ZJW_MESSAGE_TYPE] > (header_flags & ZJW_FLAG_PAIR ? ZJW_TYPE_RELAY : ZJW_TYPE_SERVICE) || flags & ~known)
            return 0;
        p += ZJW_SIZEOF_MESSAGE;
        size -= ZJW_SIZEOF_MESSAGE;
        if (flags & ZJW_MFLAG_FRAGMENT) {
            if (size < ZJW_SIZEOF_FRAGMENT)
                return 0;
            uint32_t total = get32(p + ZJW_FRAGMENT_TOTAL), offset = get32(p + ZJW_FRAGMENT_OFFSET);
            if (total > ZJW_MESSAGE_MAX || offset > total || len > total - offset || !len)
                return 0;
            if (((flags & ZJW_MFLAG_LAST) != 0) != (offset + len == total))
                return 0;
            p += ZJW_SIZEOF_FRAGMENT;
            size -= ZJW_SIZEOF_FRAGMENT;
        } else if (flags & ZJW_MFLAG_LAST) {
            return 0;
        }
        if (len > size)
            return 0;
        p += len;
        size -= len;
    }
    return 1;
}

static int proposal_fits(const uint8_t *b, uint32_t size, uint32_t stations)
{
    if (size < ZJW_SIZEOF_PROPOSAL)
        return 0;
    uint32_t changes = b[ZJW_PROPOSAL_CHANGES], last = 0;
    if (changes < 1 || changes > ZJW_STATIONS_MAX || size != ZJW_SIZEOF_PROPOSAL + changes * ZJW_SIZEOF_CHANGE)
        return 0;
    if (stations < 64 && get64(b + ZJW_PROPOSAL_MEMBERS) >> stations)
        return 0;
    b += ZJW_SIZEOF_PROPOSAL;
    for (uint32_t i = 0; i < changes; i++, b += ZJW_SIZEOF_CHANGE) {
        uint32_t station = b[ZJW_CHANGE_CHANGED];
        if (station <= last || station > stations)
            return 0;
        last = station;
    }
    return 1;
}

static int payload_fits(const struct pdu *p, uint32_t stations)
{
    const uint8_t *b = p->payload;
    uint32_t size = p->length;

    switch (p->kind) {
    case ZJW_KIND_DATA:
        return data_fits(b, size, p->flags);
    case ZJW_KIND_CONFIRM:
        return size == ZJW_SIZEOF_CONFIRM && p->pack;
    case ZJW_KIND_NAK: {
        if (size < ZJW_SIZEOF_NAK)
            return 0;
        uint32_t count = b[ZJW_NAK_COUNT], h = b[ZJW_NAK_STREAM];
        return h >= 1 && h <= stations && count >= 1 && count <= ZJW_NAK_RANGES_MAX &&
               size == ZJW_SIZEOF_NAK + count * ZJW_SIZEOF_RANGE && p->target >= 1;
    }
    case ZJW_KIND_RST:
    case ZJW_KIND_RSTC:
        return size == ZJW_SIZEOF_RESET && !p->pack;
    case ZJW_KIND_STOP:
    case ZJW_KIND_STOP_ACK:
    case ZJW_KIND_RCV_ACK:
        return proposal_fits(b, size, stations);
    case ZJW_KIND_RCV:
    case ZJW_KIND_OPEN: {
        if (size < ZJW_SIZEOF_OPEN)
            return 0;
        uint32_t members = b[ZJW_OPEN_MEMBERS], name = get16(b + ZJW_OPEN_NAME_LENGTH);
        uint32_t fixed = ZJW_SIZEOF_OPEN + members * ZJW_SIZEOF_MEMBER + name;
        if (b[ZJW_OPEN_OFLAGS] & ZJW_OFLAG_CONFIGURED && members <= stations && size >= fixed + ZJW_SIZEOF_CONFIGURATION) {
            const uint8_t *told = b + fixed;
            fixed += ZJW_SIZEOF_CONFIGURATION + get16(told + ZJW_CONFIGURATION_OPTIONS_LENGTH) +
                     get16(told + ZJW_CONFIGURATION_PROPOSED_LENGTH);
        }
        return members <= stations && name <= ZJW_OPEN_NAME_MAX && size == fixed;
    }
    default:
        return 0;
    }
}

/* Station number to place within the pair: 1, 2; far beyond: none of the two. */
static uint32_t place_in(const uint32_t pair[2], uint32_t number) { return number == pair[0] ? 1 : number == pair[1] ? 2 : 8; }

int pdu_read(const uint8_t *b, uint32_t size, uint32_t cluster, uint32_t stations, const uint32_t pair[2], int check,
             struct pdu *p)
{
    if (size < ZJW_SIZEOF_HEADER)
        return ZJ_DROP_SHORT;
    if (get32(b + ZJW_HEADER_CLUSTER) != cluster)
        return ZJ_DROP_CLUSTER;
    if (b[ZJW_HEADER_VERSION] != ZJW_VERSION)
        return ZJ_DROP_VERSION;
    p->kind = b[ZJW_HEADER_KIND];
    p->flags = b[ZJW_HEADER_FLAGS];
    const int is_link = pair && pair[1];
    /* A link has no votes: one would take a place in its stream, and nothing behind it would ever be delivered. */
    if (p->kind < ZJW_KIND_DATA || p->kind > (is_link ? ZJW_KIND_NAK : ZJW_KIND_RSTC) ||
        ((p->flags & ZJW_FLAG_PAIR) != 0) != is_link)
        return ZJ_DROP_KIND;
    if (b[ZJW_HEADER_STATIONS] != stations)
        return ZJ_DROP_STATIONS;
    uint32_t src = b[ZJW_HEADER_SRC];
    uint32_t target = b[ZJW_HEADER_TARGET];
    if (is_link) {
        src = place_in(pair, src);
        if (src + place_in(pair, target) != 3)
            return ZJ_DROP_SOURCE;
        target = p->flags & ZJW_FLAG_POLL || p->kind == ZJW_KIND_NAK ? 3 - src : 0;
    }
    p->target = (uint8_t)target;
    if (src < 1 || src > stations || p->target > stations)
        return ZJ_DROP_SOURCE;
    p->src = (uint8_t)(src - 1);
    uint32_t at = vectors_end(b);
    if (size < at)
        return ZJ_DROP_SHORT;
    p->length = get16(b + ZJW_HEADER_LENGTH);
    if (p->length > size - at)
        return ZJ_DROP_LENGTH;
    p->bytes = b;
    p->size = at + p->length;
    p->ack = b + ZJW_SIZEOF_HEADER;
    p->pack = p->flags & ZJW_FLAG_PACK ? p->ack + 4 * stations : NULL;
    p->payload = b + at;
    uint64_t sum = get64(b + ZJW_HEADER_CHECK);
    if (check && ((uint32_t)(sum >> 32) != head_crc(b, at) || (uint32_t)sum != zj_crc32c(0, p->payload, p->length)))
        return ZJ_DROP_CHECK;
    p->incarnation = get32(b + ZJW_HEADER_INCARNATION);
    p->instance = get32(b + ZJW_HEADER_INSTANCE);
    p->seq = get32(b + ZJW_HEADER_SEQ);
    p->clock = get64(b + ZJW_HEADER_CLOCK);
    p->free_buffers = get32(b + ZJW_HEADER_FREE_BUFFERS);
    p->frame_max = get16(b + ZJW_HEADER_FRAME_MAX);
    if (!payload_fits(p, stations))
        return ZJ_DROP_PAYLOAD;
    return ZJ_DROP_NONE;
}

int zj_check(const uint8_t *bytes, uint32_t size, uint32_t cluster, uint32_t stations)
{
    struct pdu p;
    return pdu_read(bytes, size, cluster, stations, NULL, 1, &p);
}

void zj_add_checksum(uint8_t *b, uint32_t size)
{
    uint32_t at = vectors_end(b);
    if (at > size)
        return;
    put16(b + ZJW_HEADER_LENGTH, size - at);
    put64(b + ZJW_HEADER_CHECK, (uint64_t)head_crc(b, at) << 32 | zj_crc32c(0, b + at, size - at));
}

uint32_t pdu_header(zj_core *c, uint8_t *b, uint32_t kind, uint32_t flags, uint64_t seq, uint64_t clock, uint32_t payload)
{
    uint32_t free = free_slots(c);
    memset(b, 0, ZJW_SIZEOF_HEADER);
    put32(b + ZJW_HEADER_CLUSTER, c->cfg.cluster);
    b[ZJW_HEADER_VERSION] = ZJW_VERSION;
    b[ZJW_HEADER_KIND] = (uint8_t)kind;
    b[ZJW_HEADER_FLAGS] = (uint8_t)(c->cfg.pair[1] ? flags | ZJW_FLAG_PAIR : flags);
    b[ZJW_HEADER_STATIONS] = (uint8_t)c->n;
    b[ZJW_HEADER_SRC] = wire_number(c, c->self + 1);
    b[ZJW_HEADER_TARGET] = wire_number(c, 0);
    put16(b + ZJW_HEADER_LENGTH, payload);
    put32(b + ZJW_HEADER_INCARNATION, c->st[c->self].incarnation);
    put32(b + ZJW_HEADER_INSTANCE, c->instance);
    put32(b + ZJW_HEADER_SEQ, (uint32_t)seq);
    put64(b + ZJW_HEADER_CLOCK, clock);
    put32(b + ZJW_HEADER_FREE_BUFFERS, free * c->n);
    put16(b + ZJW_HEADER_FRAME_MAX, c->send.own_frame_max > 0xffff ? 0xffff : c->send.own_frame_max);
    return free;
}
