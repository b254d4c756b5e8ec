/* The address of a link's frames (docs/multicast.md, rule L2): that of the other station, or the group address where its own may not be
 * reached. Everything else of a link is what any core of two stations does. */
#include "zj_int.h"

#define FALLBACK_POLLS 2u

void pair_open(zj_core *c) { memset(&c->pair, 0, sizeof c->pair); }

void pair_polled(zj_core *c)
{
    if (++c->pair.polls >= FALLBACK_POLLS)
        c->pair.falls_back = 1;
}

/* Nothing is pending: what is sent next tries the address again. */
void pair_step(zj_core *c)
{
    if (c->poll.at == ZJ_NEVER)
        c->pair.falls_back = 0;
}

int zj_pair_rx(zj_core *c, uint64_t now, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t to_group)
{
    const int drop = zj_rx(c, now, pdu, size, mac);
    if (drop == ZJ_DROP_NONE) {
        /* Frames that come there because no address was known, and what answers them, call nobody: else two stations that have met
         * there would stay for ever, and all others would hear them. */
        const int calls = c->pair.called || c->pair.falls_back || (pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_POLL && c->pair.heard);
        c->pair.called = to_group && calls;
        c->pair.heard = 1;
        if (pdu[ZJW_HEADER_KIND] != ZJW_KIND_NAK) /* who asks for what it lacks has perhaps received none of what went to its address */
            c->pair.polls = 0;
    }
    return drop;
}

int zj_pair_to_group(const zj_core *c) { return !c->pair.heard || c->pair.falls_back || c->pair.called; }

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
