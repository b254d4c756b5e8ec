/* The poll timer (docs/protocol.md, rule C4): nothing moves while something is pending, so one station is asked for its report. */
#include "order/order.h"

/* Own PDUs restart the timer, but not for long after something of another station has come: who goes on sending what nobody receives
 * must ask before its window closes. */
void poll_step(zj_core *c, uint64_t now)
{
    const uint64_t others = c->progress - c->poll.own, last = c->cfg.poll_own * c->cfg.poll_delay_ns;
    if (others != c->poll.others || c->poll.at == ZJ_NEVER)
        c->poll.since = now;
    c->poll.others = others;
    if (!c->order.main->pending(c)) {
        c->poll.at = ZJ_NEVER;
        c->poll.wait = c->cfg.poll_delay_ns;
    } else if (c->progress != c->poll.seen || c->poll.at == ZJ_NEVER) {
        c->poll.wait = c->cfg.poll_delay_ns;
        c->poll.at = now + c->poll.wait + zj_random(c, c->poll.wait / 2);
        if (last && c->poll.at > c->poll.since + last)
            c->poll.at = c->poll.since + last;
    }
    c->poll.seen = c->progress;
}

uint64_t zj_poll_due(const zj_core *c)
{
    uint64_t due = c->bus.own_due < c->poll.at ? c->bus.own_due : c->poll.at;
    return c->is_open ? due : ZJ_NEVER;
}

/* One of the stations whose word is missing here, as a number on the wire; 0: none. It may have said it and not been heard: then
 * its vectors equal ours, and rule C3 alone would keep it silent until its next heartbeat. */
static uint32_t choose_poll_target(zj_core *c)
{
    int acks = medium_acks(c) || ack_awaited(c);
    uint32_t missing[ZJW_STATIONS_MAX], k = 0;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t j = c->list[i];
        int lacks = c->send.building && c->st[j].free_buffers / c->n < c->cfg.window;
        for (uint32_t h = 0; !lacks && h < c->n; h++) {
            const struct stream *s = &c->st[h];
            lacks = s->al[j] < s->req || (acks && s->pack[j] < s->min_al);
        }
        if (lacks && j != c->self)
            missing[k++] = j + 1;
    }
    return k ? missing[zj_random(c, k)] : 0;
}

/* C4, and the repetition of own PDUs that no station has confirmed: on a switched medium none has them. */
uint32_t zj_poll(zj_core *c, uint64_t now)
{
    struct stream *me = &c->st[c->self];
    if (!c->is_open || c->bus.phase != ZJ_P_RUN || bus_own_lost(c, now) || c->poll.at > now)
        return 0;
    uint64_t seen = me->min_al;
    for (uint32_t i = 0; i < c->listed; i++)
        if (c->list[i] != c->self && me->al[c->list[i]] > seen)
            seen = me->al[c->list[i]];
    for (uint64_t q = seen; medium_repeats(c) && q < me->req && q < seen + 4; q++)
        tx_slot(c, c->self, q, 1);
    pair_polled(c, now);
    confirm_doubt(c, now);
    confirm_build(c, now, ZJW_FLAG_POLL, choose_poll_target(c));
    c->count.tx_poll++;
    c->poll.wait *= 2;
    if (c->poll.wait > c->cfg.poll_delay_max_ns)
        c->poll.wait = c->cfg.poll_delay_max_ns;
    c->poll.at = now + c->poll.wait + zj_random(c, c->poll.wait / 2);
    c->poll.since = now;
    return 1;
}
