/* What differs between the media in the transport, below the orders (what differs in the order is struct main_ops, order/order.h): the
 * medium is asked for here and in order/bus.c only.
 *
 *                      switched                                   bus
 * acceptance           own PDU when sent, others in any order     all as they come from the medium, own ones too, conditions 1, 2
 * order                (clock, src): order/total.c                the receipt log: order/bus.c
 * recovery             NAK, repetition by any holder              reset of all (zj_reset_*)
 * delivered            once ordered; three levels                 what is acknowledged
 * header clock         Lamport clock                              instance << 32 | epoch
 * membership           votes in the streams                       a new instance
 */
#ifndef ZJ_MEDIUM_H
#define ZJ_MEDIUM_H

#ifndef ZJ_INT_H
#error "included by zj_int.h"
#endif

/* order/bus.c, harmless on a switched medium */
void bus_open(zj_core *c);                  /* an instance is entered */
void bus_watch(zj_core *c, uint64_t now);   /* arms the own-PDU time-out */
int bus_own_lost(zj_core *c, uint64_t now); /* it is over */

static inline int on_bus(const zj_core *c) { return c->cfg.medium == ZJ_BUS; }

/* ---- reception ---- */
static inline int medium_knows(const zj_core *c, uint32_t kind)
{
    int reset = kind == ZJW_KIND_RST || kind == ZJW_KIND_RSTC;
    return on_bus(c) ? reset || kind == ZJW_KIND_DATA || kind == ZJW_KIND_CONFIRM || kind == ZJW_KIND_OPEN : !reset;
}

/* A frame with the own number that this core itself has sent: a bus brings it back. */
static inline int medium_returns(const zj_core *c, const struct pdu *p)
{
    return on_bus(c) && (p->kind == ZJW_KIND_OPEN ||
                         (c->is_open && p->instance == c->instance && p->incarnation == c->st[c->self].incarnation));
}

/* ---- sending ---- */
/* An own PDU has just taken its number: on a switched medium it is accepted with that. */
static inline void medium_number(zj_core *c)
{
    struct stream *me = &c->st[c->self];
    if (on_bus(c))
        return;
    me->req = me->noticed = c->send.next;
    c->clock++;
}

/* Nobody has confirmed an own PDU: may it be sent again just so? On a bus only after a reset. */
static inline int medium_repeats(const zj_core *c) { return !on_bus(c); }

/* Level ack is needed of everything: nothing less is delivered. */
static inline int medium_acks(const zj_core *c) { return on_bus(c); }

#endif
