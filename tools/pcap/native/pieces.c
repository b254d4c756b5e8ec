/* PDUs that went in several frames (PIECE), put together as their receivers do (daemon/datapath/pieces.c, rules J17 and J18 of
 * docs/links.md): four of a station at a time, for half a second. What comes a second time, over another link, is passed over.
 */
#include "capture_int.h"
#include "zj_envelope.h"

#include <stdlib.h>

#define PIECES 16u                /* of a PDU; at least 2 */
#define PIECE_SETS 4u             /* PDUs of a station that are put together at a time */
#define WHOLE_MAX 65535u

struct piece_set { uint8_t *bytes; uint64_t first, order; int64_t since; uint32_t count, have, each, last, wire; uint8_t session[4]; };
struct zp_pieces {
    struct piece_set sets[ZJW_STATIONS_MAX][PIECE_SETS];
    struct piece_set *whole;      /* the set that became whole last, by the piece at this place */
    uint32_t place;
    uint64_t begun;               /* sets */
};

struct zp_pieces *zp_pieces_new(void) { return calloc(1, sizeof(struct zp_pieces)); }

void zp_pieces_free(struct zp_pieces *g)
{
    for (uint32_t i = 0; g && i < ZJW_STATIONS_MAX; i++)
        for (uint32_t k = 0; k < PIECE_SETS; k++)
            free(g->sets[i][k].bytes);
    free(g);
}

static int is_late(const struct piece_set *s, int64_t now)
{
    return now != ZP_NO_TIME && s->since != ZP_NO_TIME && now - s->since > ZP_PIECE_NS;
}

static struct piece_set *piece_set_of(struct zp_pieces *g, const uint8_t *e, uint64_t first, uint32_t count, int64_t now)
{
    struct piece_set *sets = g->sets[e[ZJE_ENVELOPE_TX] - 1u], *oldest = sets;
    for (struct piece_set *s = sets; s < sets + PIECE_SETS; s++) {
        if (s->count && s->first == first && !memcmp(s->session, e + ZJE_ENVELOPE_SESSION, sizeof s->session) && !is_late(s, now))
            return s->count == count ? s : NULL;
        if (s->order < oldest->order)
            oldest = s;
    }
    uint8_t *bytes = oldest->bytes ? oldest->bytes : malloc(WHOLE_MAX);
    if (!bytes)
        return NULL;
    *oldest = (struct piece_set){.bytes = bytes, .first = first, .since = now, .order = ++g->begun, .count = count};
    memcpy(oldest->session, e + ZJE_ENVELOPE_SESSION, sizeof oldest->session);
    return oldest;
}

/* Where all but the last piece have the same size; the last one may come first, and waits at the end. 0: it does not fit. */
static int piece_put(struct piece_set *s, uint32_t place, const uint8_t *body, uint32_t size)
{
    const uint32_t is_last = place == s->count - 1, each = is_last ? s->each : size, last = is_last ? size : s->last;
    if (!size || (s->each && each != s->each) || (each && last > each) || (s->count - 1) * each + last > WHOLE_MAX)
        return 0;
    if (!s->each && each && s->last)
        memmove(s->bytes + (s->count - 1) * each, s->bytes + WHOLE_MAX - s->last, s->last);
    s->each = each;
    s->last = last;
    memcpy(is_last && !each ? s->bytes + WHOLE_MAX - last : s->bytes + place * each, body, size);
    s->have |= 1u << place;
    return 1;
}

int zp_pieces_take(struct zp_pieces *g, int64_t now, const struct zp_link *l, struct zp_pdu *p, uint32_t *frame)
{
    const uint8_t *e = l->pdu;
    const uint32_t place = e[ZJE_ENVELOPE_PIECE], count = e[ZJE_ENVELOPE_PIECE + 1];
    const uint32_t size = be16(e + ZJE_ENVELOPE_LENGTH);
    const uint64_t number = be64(e + ZJE_ENVELOPE_NUMBER);
    if (count < 2 || count > PIECES || place >= count || number <= place || ZJE_SIZEOF_ENVELOPE + size > l->captured)
        return ZP_P_CUT;
    struct piece_set *s = piece_set_of(g, e, number - place, count, now);
    if (!s)
        return ZP_P_PAYLOAD;
    if (s->have >> place & 1)
        return ZP_P_ASIDE;
    if (!piece_put(s, place, e + ZJE_SIZEOF_ENVELOPE, size)) {
        s->count = 0;
        return ZP_P_PAYLOAD;
    }
    s->wire += l->frame;
    if (s->have != (1u << count) - 1)
        return ZP_P_ASIDE;
    g->whole = s;
    g->place = place;
    *frame = s->wire;
    const uint32_t whole = (count - 1) * s->each + s->last;
    const int problem = zp_pdu(s->bytes, whole, whole, p);
    return problem == ZP_P_NONE && p->kind != ZJW_KIND_DATA && !is_vote(p->kind) ? ZP_P_PAYLOAD : problem; /* all others are small */
}

void zp_pieces_again(struct zp_pieces *g, const struct zp_link *l)
{
    if (!g->whole)
        return;
    g->whole->have &= ~(1u << g->place);
    g->whole->wire -= l->frame;
}
