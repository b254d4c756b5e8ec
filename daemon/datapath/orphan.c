/* The SEND at the head of a client's input, and what remains of one that the core has begun to take when its client goes. */
#include "internal.h"

/* The SEND at the head of a client's input, as the core wants it. */
struct zj_offer head_offer(const struct dp *d, const struct dp_client *c)
{
    const uint8_t *p = c->in + c->in_start;
    const uint32_t level = frame_flags(p) & DP_LEVEL;
    const struct dp_bound b = c->begun ? c->part : c->handles[frame_handle(p)];
    const struct dp_route *r = level == ZJ_ACK ? NULL : route_find(d, b.group);
    return (struct zj_offer){.data = p + DP_HEADER, .size = frame_size(p), .done = c->offered, .group = b.group,
                             .client = c->number, .type = ZJW_TYPE_USER, .need_ack = level == ZJ_ACK || (r && r->need_ack),
                             .ordering = b.ordering};
}

void orphan_free(struct dp *d)
{
    dp_unmap(d->orphan.map, d->orphan.cap);
    d->orphan = (struct dp_orphan){0};
}

/* The client is read no more: keep what the core has begun to take. */
void orphan_keep(struct dp *d, struct dp_client *c)
{
    if (!c->begun)
        return;
    if (d->orphan.map) { /* of which the core has nothing any more: a join made it start anew, and this one began meanwhile */
        if (d->orphan.m.done)
            return;
        orphan_free(d);
    }
    d->orphan = (struct dp_orphan){.map = c->in, .cap = c->in_cap, .m = head_offer(d, c)};
    c->in = NULL;
    c->in_cap = c->in_start = c->in_end = c->offered = c->begun = 0;
}
