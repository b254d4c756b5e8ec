/* The ack-list matrix AL and the matrix of P vectors, each with an incremental minimum (spec chapter 10; TO protocol, section 4).
 *
 * al[h][j]: what station j next expects from h, as known here. Two conventions, the only sound pair: a source's own PDU counts as
 * confirmed by itself from its transmission; a receiver's own receipt counts once it has broadcast it (al_say), not before:
 * req, in struct stream, is kept apart.
 */
#include "zj_int.h"

static uint64_t lowest(const uint64_t *row, uint32_t n, uint32_t *count)
{
    uint64_t low = row[0];
    uint32_t k = 1;
    for (uint32_t j = 1; j < n; j++) {
        if (row[j] < low) {
            low = row[j];
            k = 1;
        } else if (row[j] == low) {
            k++;
        }
    }
    *count = k;
    return low;
}

void al_reset(zj_core *c)
{
    uint64_t first = c->cfg.first_seq;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        for (uint32_t j = 0; j < c->n; j++)
            s->al[j] = s->pack[j] = first;
        s->min_al = s->acked = s->said_ack = s->said_pack = s->need_ack = first;
        s->at_min = s->pack_at_min = c->n;
    }
}

void al_raise(zj_core *c, uint32_t h, uint32_t j, uint64_t v)
{
    struct stream *s = &c->st[h];
    uint64_t old = s->al[j];
    if (v <= old)
        return;
    s->al[j] = v;
    c->progress++;
    if (old == s->min_al && --s->at_min == 0)
        s->min_al = lowest(s->al, c->n, &s->at_min);
}

void pack_raise(zj_core *c, uint32_t h, uint32_t j, uint64_t v)
{
    struct stream *s = &c->st[h];
    uint64_t old = s->pack[j];
    if (v <= old)
        return;
    s->pack[j] = v;
    c->progress++;
    if (old == s->acked && --s->pack_at_min == 0)
        s->acked = lowest(s->pack, c->n, &s->pack_at_min);
}

int al_merge(zj_core *c, const struct pdu *p, uint64_t now)
{
    uint32_t j = p->src;
    uint64_t own = c->st[c->self].req;
    int older = 0, newer = 0;

    for (uint32_t h = 0; h < c->n; h++) { /* believe all of it or nothing */
        struct stream *s = &c->st[h];
        uint64_t a = widen(s->al[j], get32(p->ack + 4 * h));
        if ((int64_t)(a - c->cfg.first_seq) < 0) /* before the stream began: the nearest number is a negative one */
            return ZJ_DROP_ACK;
        if (h == j && p->kind == ZJW_KIND_DATA && get32(p->ack + 4 * h) != p->seq + 1)
            return ZJ_DROP_ACK; /* a PDU confirms itself and nothing after it */
        older |= a < s->al[j];
        newer |= a > s->al[j];
        if (h == c->self ? a > own : (int64_t)(a - s->req) > (int64_t)c->cfg.slots)
            return ZJ_DROP_ACK;
        if (p->pack) {
            uint64_t b = widen(s->pack[j], get32(p->pack + 4 * h));
            if ((int64_t)(b - c->cfg.first_seq) < 0 || (b > a && b > s->al[j]))
                return ZJ_DROP_ACK;
        }
    }
    /* A and free_buffers go together: an older pair never changes the window, in either direction, and with equal vectors buffers
     * only become free. */
    if (!older && (newer || p->free_buffers > c->st[j].free_buffers))
        c->st[j].free_buffers = p->free_buffers;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        uint64_t a = widen(s->al[j], get32(p->ack + 4 * h));
        if (a > s->al[j]) {
            al_raise(c, h, j, a);
            c->st[j].ack_moved = now;
            /* loss conditions (2) and (3); of a DATA PDU's own stream stream_take knows better: it holds the PDU itself */
            if (h != c->self && a > s->top && !(h == j && p->kind == ZJW_KIND_DATA))
                stream_notice(c, h, a, now);
        }
        if (p->pack)
            pack_raise(c, h, j, widen(s->pack[j], get32(p->pack + 4 * h)));
    }
    return ZJ_DROP_NONE;
}

void al_say(zj_core *c, uint8_t *ack, uint8_t *pack)
{
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        put32(ack + 4 * h, (uint32_t)s->req);
        s->said_ack = s->req;
        al_raise(c, h, c->self, s->req);
    }
    if (!pack)
        return;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        put32(pack + 4 * h, (uint32_t)s->min_al);
        s->said_pack = s->min_al;
        pack_raise(c, h, c->self, s->min_al);
    }
}

void zj_matrix(const zj_core *c, uint64_t *out)
{
    for (uint32_t h = 0; h < c->n; h++)
        memcpy(out + (size_t)h * c->n, c->st[h].al, c->n * sizeof *out);
}
