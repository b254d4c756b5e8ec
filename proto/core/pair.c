/* The address of a link's frames (docs/multicast.md, rule L2): that of the other station, or the group address where its own may not be
 * reached. Everything else of a link is what any core of two stations does. */
#include "zj_int.h"

#define FALLBACK_POLLS 2u
#define FALLBACK_FACTOR 32u /* times poll_delay_max */

void pair_open(zj_core *c) { memset(&c->pair, 0, sizeof c->pair); }

static uint64_t at_group_until(const zj_core *c, uint64_t now) { return now + FALLBACK_FACTOR * c->cfg.poll_delay_max_ns; }

void pair_polled(zj_core *c, uint64_t now)
{
    if (c->pair.heard && ++c->pair.polls >= FALLBACK_POLLS)
        c->pair.falls_back = at_group_until(c, now);
}

/* Bounded by time alone: a link that is never idle tries the address again as well, and two ends cannot keep each other there. */
void pair_step(zj_core *c, uint64_t now)
{
    if (now >= c->pair.falls_back)
        c->pair.falls_back = 0;
    if (now >= c->pair.called)
        c->pair.called = 0;
}

int zj_pair_rx(zj_core *c, uint64_t now, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t to_group)
{
    const int drop = zj_rx(c, now, pdu, size, mac);
    if (drop == ZJ_DROP_NONE) {
        /* Frames that come there because no address was known, and what answers them, call nobody: else all others would hear two
         * stations that have met there. */
        if (!to_group)
            c->pair.called = 0; /* it does not fall back any more */
        else if (pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_POLL && c->pair.heard)
            c->pair.called = at_group_until(c, now);
        c->pair.heard = 1;
        if (pdu[ZJW_HEADER_KIND] != ZJW_KIND_NAK) /* who asks for what it lacks has perhaps received none of what went to its address */
            c->pair.polls = 0;
    }
    return drop;
}

/* A POLL of an end that is only called goes to the address: at the group address it would call the other end, and so on for ever. */
int zj_pair_to_group(const zj_core *c, const uint8_t *pdu)
{
    return !c->pair.heard || c->pair.falls_back || (c->pair.called && !(pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_POLL));
}

/* A core reserves megabytes: a damaged frame, or one of another cluster on the segment, opens none. */
int zj_pair_asks(const zj_core *c, const uint8_t *pdu, uint32_t size)
{
    struct pdu p;
    if (size < ZJW_SIZEOF_HEADER || c->cfg.pair[1])
        return 0;
    const uint32_t self = c->self + 1, other = pdu[ZJW_HEADER_SRC];
    if (other < 1 || other > c->n || other == self)
        return 0;
    const uint32_t pair[2] = {self < other ? self : other, self < other ? other : self};
    return pdu_read(pdu, size, c->cfg.cluster, 2, pair, !faulty(c, ZJ_FAULT_NO_CHECK), &p) == ZJ_DROP_NONE && p.src != (self > other);
}
