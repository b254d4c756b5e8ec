/* PDUs that are put together of several frames (PIECE): one that was made before the frames on some way became smaller is sent in
 * pieces, and the core never knows. Rules J17 and J18 of docs/links.md; `Joiner` of proto/pieces.py does the same.
 *
 * The pieces of a PDU have consecutive numbers, and all but the last one have the same size. What is held is bounded whatever
 * comes: DP_PIECE_SETS PDUs of a station, each at most frame_max long.
 */
#include "internal.h"

static uint64_t room_bytes(const struct dp_pieces *p) { return (uint64_t)p->stations * DP_PIECE_SETS * p->frame_max; }

/* The set of a piece; a new one takes the place of the oldest. NULL: the piece is not what the others of its set are. */
static struct dp_piece_set *find(struct dp_pieces *p, uint32_t tx, const uint8_t *session, uint64_t first, uint32_t count, uint64_t now)
{
    struct dp_piece_set *oldest = p->set[tx];
    for (struct dp_piece_set *s = p->set[tx]; s < p->set[tx] + DP_PIECE_SETS; s++) {
        if (s->first == first && !memcmp(s->session, session, sizeof s->session) && now - s->since <= DP_PIECE_NS)
            return s->count == count ? s : NULL;
        if (s->order < oldest->order)
            oldest = s;
    }
    *oldest = (struct dp_piece_set){.first = first, .since = now, .order = ++p->begun, .count = count};
    memcpy(oldest->session, session, sizeof oldest->session);
    return oldest;
}

/* Put a piece where it belongs; 0: it does not fit. The last one may come before its place is known: then it waits at the end. */
static int put(struct dp_pieces *p, struct dp_piece_set *s, uint32_t place, const struct zj_frame *body, uint8_t *room)
{
    const uint32_t is_last = place == s->count - 1;
    const uint32_t each = is_last ? s->each : body->size, last = is_last ? body->size : s->last;
    if (!body->size || (s->each && each != s->each) || (each && last > each) ||
        (uint64_t)(s->count - 1) * each + last > p->frame_max)
        return 0;
    if (!s->each && each && s->last)
        memmove(room + (s->count - 1) * each, room + p->frame_max - s->last, s->last);
    s->each = each;
    s->last = last;
    memcpy(is_last ? each ? room + place * each : room + p->frame_max - last : room + place * each, body->data, body->size);
    s->have |= 1u << place;
    return 1;
}

static int take(struct dp_pieces *p, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now, struct zj_frame *pdu)
{
    const uint8_t *e = frame->data;
    const uint32_t tx = e[ZJE_ENVELOPE_TX] - 1u, place = e[ZJE_ENVELOPE_PIECE], count = e[ZJE_ENVELOPE_PIECE + 1];
    const uint64_t number = from64(e + ZJE_ENVELOPE_NUMBER);
    if (tx >= p->stations || count < 2 || count > DP_PIECES_MAX || place >= count || number <= place)
        return -1;
    if (!p->room && !(p->room = dp_map(room_bytes(p))))
        return 0; /* the system has no memory: it is asked for again */
    struct dp_piece_set *s = find(p, tx, e + ZJE_ENVELOPE_SESSION, number - place, count, now);
    if (!s)
        return -1;
    if (s->have >> place & 1)
        return 0; /* over another link */
    uint8_t *room = p->room + ((uint64_t)tx * DP_PIECE_SETS + (uint64_t)(s - p->set[tx])) * p->frame_max;
    if (!put(p, s, place, body, room)) {
        *s = (struct dp_piece_set){0};
        return -1;
    }
    if (s->have != (1u << count) - 1)
        return 0;
    *pdu = (struct zj_frame){.data = room, .size = (count - 1) * s->each + s->last};
    s->first = s->order = 0;
    return pdu->size >= ZJW_SIZEOF_HEADER && is_of_stream(room) ? 1 : -1;
}

int pieces_take(struct dp_pieces *p, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now, struct zj_frame *pdu)
{
    const int result = take(p, frame, body, now, pdu);
    p->bad += result < 0;
    p->whole += result > 0;
    return result > 0;
}

uint64_t pieces_memory(const struct dp_pieces *p) { return p->room ? room_bytes(p) : 0; }

void pieces_free(struct dp_pieces *p)
{
    if (p->room)
        dp_unmap(p->room, room_bytes(p));
    p->room = NULL;
}
