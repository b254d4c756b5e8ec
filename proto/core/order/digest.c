/* The digest of the delivered order: told in CONFIRMs, compared with what others tell. If two stations differ, this one is fenced:
 * it delivers nothing any more. */
#include "order.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

uint64_t digest_view(uint64_t digest, uint32_t hash) { return mix(digest ^ hash); }

/* What is mixed in must be the same for a station that joined later: numbers as on the wire, positions from the last view on. */
void digest_add(zj_core *c, uint32_t h, const struct meta *m)
{
    const struct stream *s = &c->st[h];
    c->order.digest = mix(c->order.digest ^ mix((uint64_t)m->payload_crc << 32 ^ (uint32_t)s->ordered ^ (uint64_t)(h + 1) << 56 ^
                                    (uint64_t)s->incarnation << 24)) + (c->order.position - c->views.base);
    c->order.digests[c->order.position & c->order.mask] = c->order.digest;
}

void fence_raise(zj_core *c, uint32_t station, uint64_t position, uint64_t own, uint64_t theirs)
{
    if (c->fence.raised)
        return;
    c->fence.raised = 1;
    c->fence.station = station;
    c->fence.position = position;
    c->fence.own = own;
    c->fence.theirs = theirs;
}

void zj_digest(const zj_core *c, uint32_t *counted, uint64_t *position, uint64_t *digest)
{
    uint64_t at = c->order.main->digest_at(c);
    const struct view *v = view_at(c, at);
    *counted = v ? v->instance : 0;
    *position = v ? at - v->base : 0;
    *digest = !v ? 0 : *position ? c->order.digests[(at - 1) & c->order.mask] : v->seed;
}

static void judge(zj_core *c, uint32_t j, uint64_t position, uint64_t own, uint64_t digest)
{
    c->count.digests_compared++;
    if (own != digest)
        fence_raise(c, j, position, own, digest);
}

/* What j says: its digest so many PDUs after the event of instance `counted`. 1: compared, or never to be; 0: not there yet. */
static int compare(zj_core *c, uint32_t j, uint32_t counted, uint64_t count, uint64_t digest)
{
    uint32_t known = views_known(c), k = 0;
    if (!counted || counted > c->instance || count >> 62)
        return 1;
    if (!known || counted > view_back(c, 0)->instance)
        return 0; /* a view that has not been delivered here */
    while (k < known && view_back(c, k)->instance != counted)
        k++;
    if (k == known)
        return 1;
    const struct view *v = view_back(c, k);
    uint64_t position = v->base + count, end = k ? view_back(c, k - 1)->base : ZJ_NEVER;
    if (!count)
        judge(c, j, position, v->seed, digest);
    else if (position > end || position + c->order.mask <= c->order.position)
        return 1; /* not within that view here, or too long ago to know */
    else if (position > c->order.position)
        return 0;
    else
        judge(c, j, position, c->order.digests[(position - 1) & c->order.mask], digest);
    return 1;
}

void digest_hear(zj_core *c, uint32_t j, uint32_t counted, uint64_t position, uint64_t digest)
{
    struct stream *s = &c->st[j];
    if (compare(c, j, counted, position, digest) || s->digest.counted)
        return;
    s->digest.counted = counted;
    s->digest.position = position;
    s->digest.value = digest;
}

void digest_check(zj_core *c)
{
    for (uint32_t j = 0; j < c->n; j++) {
        struct stream *s = &c->st[j];
        if (s->digest.counted && compare(c, j, s->digest.counted, s->digest.position, s->digest.value))
            s->digest.counted = 0;
    }
}

int zj_fence(const zj_core *c, uint32_t *station, uint64_t *position, uint64_t *own, uint64_t *theirs)
{
    *station = c->fence.station;
    *position = c->fence.position;
    *own = c->fence.own;
    *theirs = c->fence.theirs;
    return c->fence.raised;
}
