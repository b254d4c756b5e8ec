/* PDUs: read and judged by the field table (zj_wire.h), independently of the protocol's core. */
#include "capture_int.h"
#include "zj_envelope.h"
#include "zj.h" /* zj_crc32c only: proto/core/crc.c is linked in, nothing else of the core */

uint32_t zp_crc32c(uint32_t crc, const uint8_t *data, uint32_t size) { return zj_crc32c(crc, data, size); }

/* Messages fill the payload exactly. */
static int messages_fit(const uint8_t *p, uint32_t left, uint32_t pdu_flags)
{
    while (left) { /* bound: each turn takes at least a message header */
        if (left < ZJW_SIZEOF_MESSAGE)
            return 0;
        uint32_t size = be32(p + ZJW_MESSAGE_SIZE), flags = p[ZJW_MESSAGE_MFLAGS], head = ZJW_SIZEOF_MESSAGE;
        if (p[ZJW_MESSAGE_TYPE] > (pdu_flags & ZJW_FLAG_PAIR ? ZJW_TYPE_RELAY : ZJW_TYPE_SERVICE) || flags & ~(ZJW_MFLAG_FRAGMENT | ZJW_MFLAG_LAST | ZJW_MFLAG_OP))
            return 0;
        if (flags & ZJW_MFLAG_OP && !(pdu_flags & ZJW_FLAG_OP))
            return 0;
        if (flags & ZJW_MFLAG_FRAGMENT) {
            head += ZJW_SIZEOF_FRAGMENT;
            if (left < head)
                return 0;
            uint64_t total = be32(p + ZJW_SIZEOF_MESSAGE + ZJW_FRAGMENT_TOTAL);
            uint64_t end = (uint64_t)be32(p + ZJW_SIZEOF_MESSAGE + ZJW_FRAGMENT_OFFSET) + size;
            if (!size || total > ZJW_MESSAGE_MAX || end > total || (end == total) != !!(flags & ZJW_MFLAG_LAST))
                return 0;
        } else if (flags & ZJW_MFLAG_LAST) {
            return 0;
        }
        if (size > left - head)
            return 0;
        p += head + size;
        left -= head + size;
    }
    return 1;
}

static int vote_fits(const uint8_t *b, uint32_t size, uint32_t n)
{
    if (size < ZJW_SIZEOF_PROPOSAL)
        return 0;
    uint32_t changes = b[ZJW_PROPOSAL_CHANGES], before = 0;
    if (!changes || changes > ZJW_STATIONS_MAX || size != ZJW_SIZEOF_PROPOSAL + changes * ZJW_SIZEOF_CHANGE)
        return 0;
    if (n < 64 && be64(b + ZJW_PROPOSAL_MEMBERS) >> n)
        return 0;
    for (b += ZJW_SIZEOF_PROPOSAL; changes--; b += ZJW_SIZEOF_CHANGE) {
        uint32_t station = b[ZJW_CHANGE_CHANGED];
        if (station <= before || station > n)
            return 0;
        before = station;
    }
    return 1;
}

static int payload_fits(const struct zp_pdu *p)
{
    const uint8_t *b = p->payload;
    switch (p->kind) {
    case ZJW_KIND_DATA:
        return messages_fit(b, p->length, p->flags);
    case ZJW_KIND_CONFIRM:
        return p->length == ZJW_SIZEOF_CONFIRM && p->pack;
    case ZJW_KIND_NAK:
        return p->length >= ZJW_SIZEOF_NAK && b[ZJW_NAK_STREAM] >= 1 && b[ZJW_NAK_STREAM] <= p->n && b[ZJW_NAK_COUNT] >= 1 &&
               b[ZJW_NAK_COUNT] <= ZJW_NAK_RANGES_MAX && p->target &&
               p->length == ZJW_SIZEOF_NAK + b[ZJW_NAK_COUNT] * ZJW_SIZEOF_RANGE;
    case ZJW_KIND_RST:
    case ZJW_KIND_RSTC:
        return p->length == ZJW_SIZEOF_RESET && !p->pack;
    case ZJW_KIND_STOP:
    case ZJW_KIND_STOP_ACK:
    case ZJW_KIND_RCV_ACK:
        return vote_fits(b, p->length, p->n);
    case ZJW_KIND_OPEN:
    case ZJW_KIND_RCV: {
        if (p->length < ZJW_SIZEOF_OPEN)
            return 0;
        uint32_t members = b[ZJW_OPEN_MEMBERS], name = be16(b + ZJW_OPEN_NAME_LENGTH);
        uint32_t fixed = ZJW_SIZEOF_OPEN + members * ZJW_SIZEOF_MEMBER + name;
        if (b[ZJW_OPEN_OFLAGS] & ZJW_OFLAG_CONFIGURED && members <= p->n && p->length >= fixed + ZJW_SIZEOF_CONFIGURATION) {
            const uint8_t *told = b + fixed;
            fixed += ZJW_SIZEOF_CONFIGURATION + be16(told + ZJW_CONFIGURATION_OPTIONS_LENGTH) +
                     be16(told + ZJW_CONFIGURATION_PROPOSED_LENGTH);
        }
        return members <= p->n && name <= ZJW_OPEN_NAME_MAX && p->length == fixed;
    }
    default:
        return 0;
    }
}

/* A frame that proves its sender and is not encrypted has its PDU behind an envelope: the checks that tell it from anything else are
 * those of tools/pcap/frames/sealed.py. The tag behind the PDU passes for padding. */
uint32_t zp_envelope(const uint8_t *b, uint32_t captured, uint32_t wire)
{
    if (captured < ZJE_SIZEOF_ENVELOPE || b[ZJE_ENVELOPE_VERSION] != ZJE_VERSION || b[ZJE_ENVELOPE_WHAT] != ZJE_WHAT_PDU ||
        b[ZJE_ENVELOPE_SUITE] != ZJE_SUITE_AES_256_GCM || be16(b + ZJE_ENVELOPE_PIECE) || !b[ZJE_ENVELOPE_TX] ||
        b[ZJE_ENVELOPE_TX] > ZJW_STATIONS_MAX || ZJE_SIZEOF_ENVELOPE + be16(b + ZJE_ENVELOPE_LENGTH) + ZJE_TAG_BYTES > wire)
        return 0;
    return ZJE_SIZEOF_ENVELOPE;
}

int zp_aside(const uint8_t *b, uint32_t captured, uint32_t wire)
{
    if (captured < ZJE_SIZEOF_ENVELOPE || b[ZJE_ENVELOPE_VERSION] != ZJE_VERSION || !b[ZJE_ENVELOPE_TX] ||
        b[ZJE_ENVELOPE_TX] > ZJW_STATIONS_MAX)
        return 0;
    const uint32_t what = b[ZJE_ENVELOPE_WHAT], suite = b[ZJE_ENVELOPE_SUITE], plain = suite == ZJE_SUITE_NONE;
    if (!plain && (suite & ~ZJE_ENCRYPTED) != ZJE_SUITE_AES_256_GCM)
        return 0;
    if (!(what == ZJE_WHAT_LINKS || what == ZJE_WHAT_PROBE || what == ZJE_WHAT_PIECE ||
          (!plain && (what == ZJE_WHAT_HELLO || (what == ZJE_WHAT_PDU && suite & ZJE_ENCRYPTED)))))
        return 0;
    return !be16(b + ZJE_ENVELOPE_PIECE) == (what != ZJE_WHAT_PIECE) &&
           ZJE_SIZEOF_ENVELOPE + be16(b + ZJE_ENVELOPE_LENGTH) + (plain ? 4u : ZJE_TAG_BYTES) <= wire;
}

int zp_hides(const uint8_t *b) { return b[ZJE_ENVELOPE_WHAT] == ZJE_WHAT_PDU || b[ZJE_ENVELOPE_WHAT] == ZJE_WHAT_PIECE; }

int zp_piece(const uint8_t *b) { return b[ZJE_ENVELOPE_WHAT] == ZJE_WHAT_PIECE && !(b[ZJE_ENVELOPE_SUITE] & ZJE_ENCRYPTED); }

int zp_pdu(const uint8_t *b, uint32_t captured, uint32_t wire, struct zp_pdu *p)
{
    memset(p, 0, sizeof *p);
    if (wire < captured)
        wire = captured;
    if (zp_aside(b, captured, wire))
        return ZP_P_ASIDE;
    const uint32_t envelope = zp_envelope(b, captured, wire);
    b += envelope;
    captured -= envelope;
    wire -= envelope;
    if (captured > ZJW_HEADER_KIND)
        p->kind = b[ZJW_HEADER_KIND];
    if (captured < ZJW_SIZEOF_HEADER)
        return wire < ZJW_SIZEOF_HEADER ? ZP_P_SHORT : ZP_P_CUT;
    if (b[ZJW_HEADER_VERSION] != ZJW_VERSION)
        return ZP_P_VERSION;
    if (p->kind < ZJW_KIND_DATA || p->kind >= ZJW_KIND_SERVICE)
        return ZP_P_KIND;
    p->bytes = b;
    p->flags = b[ZJW_HEADER_FLAGS];
    p->n = b[ZJW_HEADER_STATIONS];
    p->src = b[ZJW_HEADER_SRC];
    p->target = b[ZJW_HEADER_TARGET];
    if (p->n < 1 || p->n > ZJW_STATIONS_MAX)
        return ZP_P_STATIONS;
    if (p->flags & ZJW_FLAG_PAIR) { /* of a link: vectors of two, src and target count among all stations */
        if (p->n != 2)
            return ZP_P_STATIONS;
        if (p->src < 1 || p->src > ZJW_STATIONS_MAX || p->target < 1 || p->target > ZJW_STATIONS_MAX || p->src == p->target)
            return ZP_P_SOURCE;
    } else if (p->src < 1 || p->src > p->n || p->target > p->n) {
        return ZP_P_SOURCE;
    }
    uint32_t vectors = p->flags & ZJW_FLAG_PACK ? 2 : 1, head = ZJW_SIZEOF_HEADER + 4 * vectors * p->n;
    p->length = be16(b + ZJW_HEADER_LENGTH);
    p->size = head + p->length;
    if (wire < head)
        return ZP_P_SHORT;
    if (wire < p->size)
        return ZP_P_LENGTH;
    if (captured < p->size)
        return ZP_P_CUT;
    p->ack = b + ZJW_SIZEOF_HEADER;
    p->pack = vectors == 2 ? p->ack + 4u * p->n : NULL;
    p->payload = b + head;
    p->check = be64(b + ZJW_HEADER_CHECK);
    uint32_t sum = zj_crc32c(0, b, ZJW_HEADER_CHECK);
    if (zj_crc32c(sum, p->ack, head - ZJW_SIZEOF_HEADER) != (uint32_t)(p->check >> 32))
        return ZP_P_CHECK;
    if (zj_crc32c(0, p->payload, p->length) != (uint32_t)p->check)
        return ZP_P_CHECK;
    p->cluster = be32(b + ZJW_HEADER_CLUSTER);
    p->incarnation = be32(b + ZJW_HEADER_INCARNATION);
    p->instance = be32(b + ZJW_HEADER_INSTANCE);
    p->seq = be32(b + ZJW_HEADER_SEQ);
    p->clock = be64(b + ZJW_HEADER_CLOCK);
    p->free_buffers = be32(b + ZJW_HEADER_FREE_BUFFERS);
    p->frame_max = be16(b + ZJW_HEADER_FRAME_MAX);
    return payload_fits(p) ? ZP_P_NONE : ZP_P_PAYLOAD;
}
