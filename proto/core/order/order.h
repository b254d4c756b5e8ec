/* The seam between the streams and the orders: what an order is made of, and which orders there are.
 *
 * A core has one main order, of which every sequenced PDU is a part: the total order of total.c or, on a bus, of bus.c. It carries
 * the log, the levels, the digest and the view events (log.c, digest.c, view.c). Messages of ZJ_TOTAL are delivered there.
 * A message of any other ordering is delivered by that ordering's order when its PDU has been accepted, and counted at its place in
 * the main order. docs/HACKING.md says how to add one. */
#ifndef ZJ_ORDER_H
#define ZJ_ORDER_H

#include "../zj_int.h"

/* The orders beside the main one: ordering, message flag, header flag of a PDU that has such messages, operations. */
#define ORDER_TABLE(ROW) \
    ROW(ZJ_FIFO, ZJW_MFLAG_OP, ZJW_FLAG_OP, fifo_ops)

/* An order beside the main one. Its state is memory of its own, c->order.side[ordering]. */
struct order_ops {
    /* zj_create: reserve it, by core_reserve. 0, or -1: no memory. Where this order cannot be had on the medium nothing is called. */
    int (*create)(zj_core *c);
    void (*destroy)(zj_core *c);
    /* An instance is entered: nothing has been accepted. */
    void (*reset)(zj_core *c);
    /* A PDU with messages of this order has been accepted in stream h, or sent. order_hold keeps its buffer. */
    void (*accepted)(zj_core *c, uint32_t h, uint64_t seq);
    /* The instance has become the next one (zj_commit). */
    void (*instance)(zj_core *c);
    /* 1: next would go on. Asked between two PDUs of the main order. */
    int (*ready)(const zj_core *c);
    /* 1: *out is its next message, with stage ZJ_ACCEPTED. 0: none, or c->assembly.starved is set and the same comes again later. */
    int (*next)(zj_core *c, struct zj_message *out);
    uint32_t media; /* bitmap of enum zj_medium: where it can be had */
};

/* The main order. */
struct main_ops {
    /* A PDU of a member, of the incarnation and the sort of instance that is expected: vectors, loss, acceptance. enum zj_drop. */
    int (*take)(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac);
    /* What comes next: NOTHING; A_PDU, which *out names; A_VIEW, the first view event. */
    int (*choose)(const zj_core *c, struct entry *out);
    /* Move c->order.preack and c->order.acked as far as what is known now lets them. */
    void (*levels)(zj_core *c);
    /* 1: something here is not as stable as some station wants it, so more must come or be asked for. */
    int (*pending)(const zj_core *c);
    /* Positions of the levels as clients see them. */
    void (*positions)(const zj_core *c, uint64_t out[ZJ_LEVELS]);
    /* How far an instance that ends has got here, for good. */
    uint64_t (*reached)(const zj_core *c);
    /* The position whose digest is reported. */
    uint64_t (*digest_at)(const zj_core *c);
    /* First part of the order key of the PDU at the cursor, whose header has this clock. */
    uint64_t (*key)(const zj_core *c, uint64_t clock);
    /* No order key given from now on is lower. */
    uint64_t (*clock)(const zj_core *c);
};
enum { NOTHING, A_PDU, A_VIEW };

#define ROW(ordering, message_flag, pdu_flag, ops) extern const struct order_ops ops;
ORDER_TABLE(ROW)
#undef ROW
extern const struct main_ops total_ops, bus_ops;

/* ---- order.c: what streams and sending ask ---- */
/* 1: messages of this ordering can be sent on this medium. */
int order_available(const zj_core *c, uint32_t ordering);
/* 0, or -1: no memory. After the log has been reserved. */
int order_create(zj_core *c);
void order_destroy(zj_core *c);
void order_reset(zj_core *c); /* an instance is entered; the members are set */
void order_accepted(zj_core *c, uint32_t h, uint64_t seq, uint32_t flags); /* flags: the PDU's; some of BESIDE_FLAGS are set */
void order_instance(zj_core *c); /* the instance has become the next one */

#define ROW(ordering, message_flag, pdu_flag, ops) | pdu_flag
enum { BESIDE_FLAGS = 0 ORDER_TABLE(ROW) }; /* header flags of PDUs with messages of other orders than the main one */
#undef ROW

/* The message flag of an ordering. */
static inline uint32_t message_flag(uint32_t wanted)
{
#define ROW(ordering, message_flag, pdu_flag, ops) \
    if (wanted == ordering) \
        return message_flag;
    ORDER_TABLE(ROW)
#undef ROW
    return 0;
}

/* The header flag of a PDU that has messages of this ordering. */
static inline uint32_t pdu_flag(uint32_t wanted)
{
#define ROW(ordering, message_flag, pdu_flag, ops) \
    if (wanted == ordering) \
        return pdu_flag;
    ORDER_TABLE(ROW)
#undef ROW
    return 0;
}

/* The message flags that may stand in a PDU with these header flags. */
static inline uint32_t message_flags(uint32_t pdu_flags)
{
    uint32_t out = 0;
#define ROW(ordering, message_flag, pdu_flag, ops) \
    if (pdu_flags & pdu_flag) \
        out |= message_flag;
    ORDER_TABLE(ROW)
#undef ROW
    return out;
}

/* The ordering that a message's flags name. */
static inline uint32_t message_ordering(uint32_t flags)
{
#define ROW(ordering, message_flag, pdu_flag, ops) \
    if (flags & message_flag) \
        return ordering;
    ORDER_TABLE(ROW)
#undef ROW
    return ZJ_TOTAL;
}

/* The message at the cursor, which moves behind it: all of *out but its position, as at its place in the
 * main order. Returns the fragment header, or NULL if there is none: then the message is whole. */
static inline const uint8_t *message_read(struct cursor *cur, struct zj_message *out)
{
    const uint8_t *b = cur->pdu + cur->at;
    uint32_t flags = b[ZJW_MESSAGE_MFLAGS], head = ZJW_SIZEOF_MESSAGE + (flags & ZJW_MFLAG_FRAGMENT ? ZJW_SIZEOF_FRAGMENT : 0);
    out->data = b + head;
    out->size = get32(b + ZJW_MESSAGE_SIZE);
    out->group = get32(b + ZJW_MESSAGE_GROUP);
    out->client = get16(b + ZJW_MESSAGE_CLIENT);
    out->type = b[ZJW_MESSAGE_TYPE];
    out->src = (uint8_t)cur->src;
    out->index = (uint16_t)cur->index++;
    out->clock = get64(cur->pdu + ZJW_HEADER_CLOCK);
    cur->ordering = message_ordering(flags);
    out->stage = cur->ordering == ZJ_TOTAL ? ZJ_DELIVERED : ZJ_PLACED;
    out->view_src = 0;
    cur->at += head + out->size;
    return flags & ZJW_MFLAG_FRAGMENT ? b + ZJW_SIZEOF_MESSAGE : NULL;
}

/* Levels 2 and 3 are positions in the same order: move each as far as the entries there, before `end`, have reached it. `blind`:
 * faults that do not wait for level 3. */
static inline void levels_climb(zj_core *c, uint64_t end, uint32_t blind)
{
    for (; c->order.preack < end; c->order.preack++) {
        const struct entry *e = &c->order.log[c->order.preack & c->order.mask];
        if (e->seq >= c->st[e->src].min_al && !faulty(c, ZJ_FAULT_EARLY_PREACK))
            break;
    }
    for (; c->order.acked < c->order.preack; c->order.acked++) {
        const struct entry *e = &c->order.log[c->order.acked & c->order.mask];
        if (e->seq >= c->st[e->src].acked && !faulty(c, blind))
            break;
    }
}

/* 1: level 3 is wanted for something that has not reached it. */
static inline int ack_awaited(const zj_core *c)
{
    return c->order.acked < c->order.need_ack || (c->confirm.want_ack && c->order.acked < c->order.position);
}

static inline void order_levels(zj_core *c) { c->order.main->levels(c); }

/* ---- order.c: what the main order asks ---- */
int beside_ready(const zj_core *c); /* 1: an order beside it has a message to deliver */
int beside_next(zj_core *c, struct zj_message *out);
/* Keep the buffer of an accepted PDU, whatever the acknowledgements say, until this ordering's order has delivered what it needs. */
void order_hold(zj_core *c, uint32_t h, uint64_t seq, uint32_t ordering);
void order_release(zj_core *c, uint32_t h, uint64_t seq, uint32_t ordering);

/* ---- log.c ---- */
void log_reset(zj_core *c);
int order_ready(zj_core *c);      /* 1: zj_next would deliver something */
int order_left(const zj_core *c); /* flushing: not everything has been delivered */
void order_remove(zj_core *c, uint32_t instance); /* the instance that is about to begin removes a station */
void order_close(zj_core *c);     /* the instance ends: its levels are final, but for a flush */
int levels_told(const zj_core *c); /* 1: positions have not moved since zj_positions was asked */
/* Level preack is reported so far, and claimed when the instance ends: everything released in a view is held by all members of that
 * view. `preack` alone is not that: from a removal on it counts the rest of the members, although what stands before the view event
 * belongs to the former view, so it is released together with the event (rule 4); and a joiner knows nothing of the order before its
 * own view event (rule 5). The cursor itself moves on: log, polls and digest follow it. */
static inline uint64_t released(const zj_core *c)
{
    return c->release.joined_by ? 0 : c->order.preack < c->release.at ? c->release.before : c->order.preack;
}

/* ---- view.c ---- */
void view_reset(zj_core *c);
void view_begin(zj_core *c, uint32_t instance, uint32_t hash); /* a view begins at the present position */
/* Queue the event of a change for its place. 0: no room. */
int event_push(zj_core *c, const struct zj_commit *change, const uint32_t *incarnations, uint64_t left);
uint32_t views_known(const zj_core *c);
const struct view *view_back(const zj_core *c, uint32_t k); /* the k-th from the last one, which is 0 */
const struct view *view_at(const zj_core *c, uint64_t position); /* the last one that begins at or before it, or NULL */
const struct view *view_of(const zj_core *c, uint32_t hash); /* delivered, or NULL */
const struct event *event_next(const zj_core *c);
void view_take(zj_core *c, struct zj_message *out); /* deliver the first view event */

/* ---- digest.c ---- */
/* The digest that a view starts from: after whatever was delivered before, or DIGEST_START. */
uint64_t digest_view(uint64_t digest, uint32_t hash);
#define DIGEST_START 0x9E3779B97F4A7C15ull
/* Mix in the PDU that takes the next position. */
void digest_add(zj_core *c, uint32_t h, const struct meta *m);
void digest_hear(zj_core *c, uint32_t j, uint32_t counted, uint64_t position, uint64_t digest); /* what station j reports */
void digest_check(zj_core *c); /* compare what was reported of positions that have been reached since */
/* The order here differs from `station`'s at this position: deliver nothing more. The first call counts. */
void fence_raise(zj_core *c, uint32_t station, uint64_t position, uint64_t own, uint64_t theirs);

#endif
