/* The ack-list matrix AL and the matrix of P vectors, each with an incremental minimum (TO protocol, section 4).
 *
 * al[h][j]: what station j next expects from h, as known here. Two conventions, the only sound pair: a source's own PDU counts
 * as confirmed by itself from its transmission; a receiver's own receipt counts once it has broadcast it (al_say), not before:
 * req, in struct stream, is kept apart.
 *
 * Every station has a row, members or not: PDUs of a removed one may still be on their way to delivery. Minima go over the
 * members.
 */
#include "zj_int.h"

static uint64_t lowest(const zj_core *c, const uint64_t *row, uint32_t *count)
{
    uint64_t low = ZJ_NEVER;
    uint32_t k = 0;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint64_t v = row[c->list[i]];
        if (v < low) {
            low = v;
            k = 1;
        } else if (v == low) {
            k++;
        }
    }
    *count = k;
    return low;
}

void al_start(zj_core *c, uint32_t h, uint64_t v)
{
    struct stream *s = &c->st[h];
    for (uint32_t j = 0; j < c->n; j++)
        s->al[j] = s->pack[j] = v;
    s->min_al = s->acked = s->sent.ack = s->sent.pack = s->direct.ack = s->need_ack = v;
    s->at_min = s->pack_at_min = c->listed;
}

void al_minima(zj_core *c)
{
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        s->min_al = lowest(c, s->al, &s->at_min);
        s->acked = lowest(c, s->pack, &s->pack_at_min);
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
        s->min_al = lowest(c, s->al, &s->at_min);
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
        s->acked = lowest(c, s->pack, &s->pack_at_min);
}

void al_spoke(zj_core *c, uint32_t j)
{
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (!is_member(c, h) && s->left_at && s->left_at <= c->st[j].spoke)
            pack_raise(c, h, j, s->req);
    }
}

/* Rule 5a: rows of which a PDU of that instance speaks, as a bitmap: of the members it means the present incarnation. */
static uint64_t rows_of(const zj_core *c, uint32_t instance)
{
    uint64_t rows = c->members;
    if (instance >= c->join_last || faulty(c, ZJ_FAULT_OLD_ACKS))
        return rows;
    for (uint32_t h = 0; h < c->n; h++)
        if (c->st[h].joined_at > instance)
            rows &= ~(UINT64_C(1) << h);
    return rows;
}

int al_merge(zj_core *c, const struct pdu *p, uint64_t now)
{
    uint32_t j = p->src;
    uint64_t own = c->send.next, rows = rows_of(c, p->instance);
    int older = 0, newer = 0, sequenced = is_sequenced(p->kind);

    for (uint32_t h = 0; h < c->n; h++) { /* believe all of it or nothing */
        struct stream *s = &c->st[h];
        if (!(rows >> h & 1))
            continue;
        uint64_t a = widen(s->al[j], get32(p->ack + 4 * h));
        if ((int64_t)(a - s->first) < 0) /* before the stream began: the nearest number is a negative one */
            return ZJ_DROP_ACK;
        if (h == j && sequenced && get32(p->ack + 4 * h) != p->seq + 1)
            return ZJ_DROP_ACK; /* a PDU confirms itself and nothing after it */
        older |= a < s->al[j];
        newer |= a > s->al[j];
        if (h == c->self ? a > own : (int64_t)(a - s->req) > (int64_t)c->cfg.slots)
            return ZJ_DROP_ACK;
        if (p->pack) {
            uint64_t b = widen(s->pack[j], get32(p->pack + 4 * h));
            if ((int64_t)(b - s->first) < 0 || (b > a && b > s->al[j]))
                return ZJ_DROP_ACK;
        }
    }
    /* A and free_buffers go together: an older pair never changes the window, in either direction, and with equal vectors buffers
     * only become free. */
    if (!older && (newer || p->free_buffers > c->st[j].free_buffers))
        c->st[j].free_buffers = p->free_buffers;
    /* A P of an instance before a station joined says nothing of that station. */
    int packed = p->pack && p->instance >= c->join_last;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        if (!(rows >> h & 1))
            continue;
        uint64_t a = widen(s->al[j], get32(p->ack + 4 * h));
        if (h == c->self && a > c->st[j].direct.open && !pdu_direct(p))
            c->st[j].direct.open = a;
        if (a > s->al[j]) {
            al_raise(c, h, j, a);
            c->st[j].ack_moved = now;
            /* loss conditions (2) and (3); of a sequenced PDU's own stream stream_take knows better: it holds the PDU itself */
            if (h != c->self && a > s->top && !(h == j && sequenced)) {
                s->heard = now; /* it lives, although we do not hear it ourselves */
                stream_notice(c, h, a, now);
            }
        }
        if (packed)
            pack_raise(c, h, j, widen(s->pack[j], get32(p->pack + 4 * h)));
    }
    return ZJ_DROP_NONE;
}

/* Of the own stream only what each station says itself counts: the free buffers that go with it bound the window. */
void al_believe(zj_core *c, const struct pdu *p, uint64_t now)
{
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t h = c->list[i];
        struct stream *s = &c->st[h];
        uint64_t b = widen(s->pack[p->src], get32(p->pack + 4 * h));
        if (h == c->self || b <= s->min_al || b > s->req)
            continue;
        for (uint32_t k = 0; k < c->listed; k++) {
            uint32_t j = c->list[k];
            if (s->al[j] < b) {
                al_raise(c, h, j, b);
                c->st[j].ack_moved = now;
            }
        }
    }
}

void al_write(const zj_core *c, uint8_t *ack, uint8_t *pack)
{
    for (uint32_t h = 0; h < c->n; h++) {
        put32(ack + 4 * h, (uint32_t)c->st[h].req);
        put32(pack + 4 * h, (uint32_t)c->st[h].min_al);
    }
}

void al_say(zj_core *c, uint8_t *ack, uint8_t *pack)
{
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        put32(ack + 4 * h, (uint32_t)s->req);
        s->sent.ack = s->req;
        al_raise(c, h, c->self, s->req);
    }
    if (!pack)
        return;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        put32(pack + 4 * h, (uint32_t)s->min_al);
        s->sent.pack = s->min_al;
        pack_raise(c, h, c->self, s->min_al);
    }
}

void zj_matrix(const zj_core *c, uint64_t *out)
{
    for (uint32_t h = 0; h < c->n; h++)
        memcpy(out + (size_t)h * c->n, c->st[h].al, c->n * sizeof *out);
}
