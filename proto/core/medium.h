/* What differs between the media, in one place: every choice between the switched medium and the bus is a function here, and
 * nowhere else is it asked which one it is. What the bus does is in bus.c; what the switched medium does is in core.c (reception),
 * stream.c (acceptance, repair) and order.c. Streams, matrix, confirmation rules, flow, packing and digest are the same.
 *
 *                      switched                                   bus
 * acceptance           own PDU when sent, others in any order     all as they come from the medium, own ones too, conditions 1, 2
 * order                (clock, src)                               the receipt log
 * recovery             NAK, repetition by any holder              reset of all (zj_reset_*)
 * handed out           once ordered; three levels                 what is acknowledged
 * header clock         Lamport clock                              instance << 32 | epoch
 * membership           votes in the streams                       a new instance
 */
#ifndef ZJ_MEDIUM_H
#define ZJ_MEDIUM_H

#ifndef ZJ_INT_H
#error "included by zj_int.h"
#endif

/* bus.c */
int bus_take(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac);
int bus_choose(const zj_core *c, uint32_t *out);
void bus_levels(zj_core *c);
void bus_open(zj_core *c);                  /* harmless on a switched medium, as the next two */
void bus_watch(zj_core *c, uint64_t now);   /* arms the own-PDU time-out */
int bus_own_lost(zj_core *c, uint64_t now); /* it is over */
int bus_pending(const zj_core *c);

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

static inline int medium_take(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    return on_bus(c) ? bus_take(c, now, p, mac) : switched_take(c, now, p, mac);
}

/* ---- sending ---- */
/* An own PDU has just taken its number: on a switched medium it is accepted with that. */
static inline void medium_number(zj_core *c)
{
    struct stream *me = &c->st[c->self];
    if (on_bus(c))
        return;
    me->req = me->noticed = c->next;
    c->clock++;
}

/* Nobody has confirmed an own PDU: may it be sent again just so? On a bus only after a reset. */
static inline int medium_repeats(const zj_core *c) { return !on_bus(c); }

/* Level ack is needed of everything: nothing less is handed out. */
static inline int medium_acks(const zj_core *c) { return on_bus(c); }

static inline int medium_pending(const zj_core *c) { return on_bus(c) ? bus_pending(c) : switched_pending(c); }

/* Delivery on acceptance cannot be had on a bus: what was accepted may be taken back. */
static inline int medium_serves(const zj_core *c, const struct zj_offer *m) { return !(on_bus(c) && m->service != ZJ_TOTAL); }

/* ---- order ---- */
static inline int medium_choose(const zj_core *c, uint32_t *out)
{
    return on_bus(c) ? bus_choose(c, out) : switched_choose(c, out);
}

static inline void order_levels(zj_core *c)
{
    if (on_bus(c))
        bus_levels(c);
    else
        switched_levels(c);
}

/* How far level preack is told, and claimed when the instance ends: everything released in a view is held by all members of that
 * view. `preack` alone is not that: from a removal on it counts the rest of the members, although what stands before the view event
 * belongs to the former view, so it is released together with the event (rule 4); and who was let in knows nothing of the order
 * before its own view event (rule 5). The cursor itself goes on: log, polls and digest follow it. */
static inline uint64_t released(const zj_core *c)
{
    return c->let_in_by ? 0 : c->preack < c->removal_at ? c->released_before : c->preack;
}

/* How far an instance that ends has got here, for ever. */
static inline uint64_t medium_reached(const zj_core *c) { return on_bus(c) ? c->acked : released(c); }

/* The position whose digest is told. */
static inline uint64_t medium_digest_at(const zj_core *c) { return on_bus(c) ? c->position : c->preack; }

/* Levels as clients see them: what a bus has handed out has reached all of them. */
static inline void medium_positions(const zj_core *c, uint64_t out[ZJ_LEVELS])
{
    out[ZJ_ORDERED] = c->position;
    uint64_t preack = released(c);
    out[ZJ_PREACK] = on_bus(c) ? c->position : preack;
    out[ZJ_ACK] = on_bus(c) ? c->position : c->acked < preack ? c->acked : preack;
}

static inline int medium_told(const zj_core *c)
{
    uint64_t now[ZJ_LEVELS];
    medium_positions(c, now);
    return now[0] == c->said_positions[0] && now[1] == c->said_positions[1] && now[2] == c->said_positions[2];
}

/* The first part of the place in the order of the PDU that is being handed out. */
static inline uint64_t medium_place(const zj_core *c, uint64_t clock)
{
    return on_bus(c) ? ((uint64_t)c->instance << 32) + c->position : clock;
}

static inline uint64_t medium_clock(const zj_core *c)
{
    return on_bus(c) ? ((uint64_t)c->instance << 32) + c->accepted : c->clock;
}

#endif
