/* The orders of a core, side by side: which there are, and what concerns all of them. */
#include "order.h"

static const struct order_ops *const BESIDE[ZJ_ORDERINGS] = {
#define ROW(ordering, message_flag, pdu_flag, ops) [ordering] = &ops,
    ORDER_TABLE(ROW)
#undef ROW
};

static const struct main_ops *const MAIN[] = {[ZJ_SWITCHED] = &total_ops, [ZJ_BUS] = &bus_ops};

/* The order beside the main one that this core has for the ordering, or NULL. */
static const struct order_ops *beside(const zj_core *c, uint32_t ordering)
{
    const struct order_ops *ops = BESIDE[ordering];
    return ops && ops->media >> c->cfg.medium & 1 ? ops : NULL;
}

int order_available(const zj_core *c, uint32_t ordering)
{
    return ordering == ZJ_TOTAL || (ordering < ZJ_ORDERINGS && beside(c, ordering));
}

int order_create(zj_core *c)
{
    c->order.main = MAIN[c->cfg.medium];
    for (uint32_t k = 0; k < ZJ_ORDERINGS; k++)
        if (beside(c, k)) {
            c->order.beside[c->order.beside_count++] = beside(c, k);
            if (beside(c, k)->create(c))
                return -1;
        }
    return 0;
}

void order_destroy(zj_core *c)
{
    for (uint32_t i = 0; i < c->order.beside_count; i++)
        c->order.beside[i]->destroy(c);
}

void order_reset(zj_core *c)
{
    log_reset(c);
    view_reset(c);
    c->assembly.starved = NULL;
    for (uint32_t i = 0; i < c->order.beside_count; i++)
        c->order.beside[i]->reset(c);
}

void order_accepted(zj_core *c, uint32_t h, uint64_t seq, uint32_t flags)
{
#define ROW(ordering, message_flag, pdu_flag, ops) \
    if (flags & pdu_flag && order_available(c, ordering)) \
        ops.accepted(c, h, seq);
    ORDER_TABLE(ROW)
#undef ROW
}

void order_instance(zj_core *c)
{
    for (uint32_t i = 0; i < c->order.beside_count; i++)
        c->order.beside[i]->instance(c);
}

int beside_ready(const zj_core *c)
{
    for (uint32_t i = 0; i < c->order.beside_count; i++)
        if (c->order.beside[i]->ready(c))
            return 1;
    return 0;
}

int beside_next(zj_core *c, struct zj_message *out)
{
    for (uint32_t i = 0; i < c->order.beside_count && !c->assembly.starved; i++)
        if (c->order.beside[i]->next(c, out))
            return 1;
    return 0;
}

/* ---- buffers that an order still needs ---- */

static uint8_t held_by(uint32_t ordering) { return (uint8_t)(HELD << ordering); }
_Static_assert(HELD << (ZJ_ORDERINGS - 1) <= UINT8_MAX, "a bit of meta.present for each order");

void order_hold(zj_core *c, uint32_t h, uint64_t seq, uint32_t ordering)
{
    struct stream *s = &c->st[h];
    meta_of(c, s, seq)->present |= held_by(ordering);
    s->held++;
}

void order_release(zj_core *c, uint32_t h, uint64_t seq, uint32_t ordering)
{
    struct stream *s = &c->st[h];
    struct meta *m = meta_of(c, s, seq);
    m->present &= (uint8_t)~held_by(ordering);
    s->held--;
}
