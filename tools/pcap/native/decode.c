/* Frames to columns, in Arrow's layout. */
#include "capture_int.h"

static void set_bit(uint8_t *bits, uint64_t row, int yes)
{
    if (!(row & 7))
        bits[row >> 3] = 0;
    bits[row >> 3] = (uint8_t)(bits[row >> 3] | (yes ? 1u : 0u) << (row & 7));
}

#define PUT(table, column, value)              \
    do {                                       \
        if ((table)->column)                   \
            (table)->column[(table)->rows] = (value); \
    } while (0)
#define PUT_OR_NULL(table, column, yes, value)                          \
    do {                                                                \
        if ((table)->column) {                                          \
            (table)->column[(table)->rows] = (yes) ? (value) : 0;       \
            set_bit((table)->has_##column, (table)->rows, (yes));       \
        }                                                               \
    } while (0)

/* Bytes as the row's value of a binary column. */
static void put_bytes(int32_t *offsets, uint8_t *values, uint64_t row, const uint8_t *bytes, uint32_t size)
{
    memcpy(values + offsets[row], bytes, size);
    offsets[row + 1] = offsets[row] + (int32_t)size;
}

static uint32_t kept(const struct zp_frame *f) { return f->captured < ZP_FRAME_MAX ? f->captured : ZP_FRAME_MAX; }

static int frame_has_room(const struct zp_frames *t, const struct zp_frame *f)
{
    if (t->rows >= t->capacity)
        return 0;
    return !t->data || (uint64_t)(t->rows ? t->data_offsets[t->rows] : 0) + kept(f) <= t->data_capacity;
}

static void put_frame(struct zp_frames *t, const struct zp_frame *f, const struct zp_link *l, int ours, uint8_t kind, int problem)
{
    PUT(t, frame, (int64_t)f->index);
    PUT(t, offset, (int64_t)f->offset);
    PUT_OR_NULL(t, time_ns, f->has_time, f->time_ns);
    PUT(t, direction, (int8_t)l->direction);
    PUT(t, captured, (int32_t)f->captured);
    PUT(t, wire, (int32_t)l->frame);
    PUT_OR_NULL(t, ethertype, l->ethertype != 0, (int32_t)l->ethertype);
    PUT_OR_NULL(t, vlan, l->vlan >= 0, l->vlan);
    PUT_OR_NULL(t, src_mac, l->src_mac != ZP_NO_MAC, (int64_t)l->src_mac);
    PUT_OR_NULL(t, dst_mac, l->dst_mac != ZP_NO_MAC, (int64_t)l->dst_mac);
    PUT_OR_NULL(t, kind, ours, (int8_t)kind);
    PUT(t, problem, (int8_t)problem);
    if (t->data) {
        if (!t->rows)
            t->data_offsets[0] = 0;
        put_bytes(t->data_offsets, t->data, t->rows, f->data, kept(f));
    }
    t->rows++;
}

static int32_t put_vector(int64_t *values, int32_t at, const uint8_t *vector, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        values[(uint32_t)at + i] = be32(vector + 4u * i);
    return at + (int32_t)n;
}

static int pdu_has_room(const struct zp_pdus *t)
{
    if (t->rows >= t->capacity)
        return 0;
    uint64_t r = t->rows;
    if (t->ack && r && (uint64_t)t->ack_offsets[r] + ZJW_STATIONS_MAX > t->vector_capacity)
        return 0;
    if (t->pack && r && (uint64_t)t->pack_offsets[r] + ZJW_STATIONS_MAX > t->vector_capacity)
        return 0;
    return !t->payload || !r || (uint64_t)t->payload_offsets[r] + 65536u <= t->payload_capacity;
}

static void put_confirm(struct zp_pdus *t, const struct zp_pdu *p)
{
    static const uint8_t nothing[ZJW_SIZEOF_CONFIRM];
    int is = p->kind == ZJW_KIND_CONFIRM;
    const uint8_t *b = is ? p->payload : nothing;
    if (t->has_confirm)
        set_bit(t->has_confirm, t->rows, is);
    PUT(t, state, (int64_t)be64(b + ZJW_CONFIRM_STATE));
    PUT(t, trans, (int64_t)be64(b + ZJW_CONFIRM_TRANS));
    PUT(t, position, (int64_t)be64(b + ZJW_CONFIRM_POSITION));
    PUT(t, digest, (int64_t)be64(b + ZJW_CONFIRM_DIGEST));
    PUT(t, counted, be32(b + ZJW_CONFIRM_COUNTED));
    PUT(t, view, be32(b + ZJW_CONFIRM_VIEW));
}

static void put_vectors(struct zp_pdus *t, const struct zp_pdu *p)
{
    uint64_t r = t->rows;
    if (t->ack) {
        if (!r)
            t->ack_offsets[0] = 0;
        t->ack_offsets[r + 1] = put_vector(t->ack, t->ack_offsets[r], p->ack, p->n);
    }
    if (t->pack) {
        if (!r)
            t->pack_offsets[0] = 0;
        t->pack_offsets[r + 1] = put_vector(t->pack, t->pack_offsets[r], p->pack, p->pack ? p->n : 0);
        set_bit(t->has_pack, r, p->pack != NULL);
    }
    if (t->payload) {
        if (!r)
            t->payload_offsets[0] = 0;
        put_bytes(t->payload_offsets, t->payload, r, p->payload, p->length);
    }
}

static void put_pdu(struct zp_pdus *t, const struct zp_frame *f, const struct zp_link *l, const struct zp_pdu *p)
{
    PUT(t, frame, (int64_t)f->index);
    PUT_OR_NULL(t, time_ns, f->has_time, f->time_ns);
    PUT(t, direction, (int8_t)l->direction);
    PUT(t, wire, (int32_t)l->frame);
    PUT(t, cluster, p->cluster);
    PUT(t, kind, (int8_t)p->kind);
    PUT(t, flags, (int8_t)p->flags);
    PUT(t, n, (int8_t)p->n);
    PUT(t, src, (int8_t)p->src);
    PUT(t, target, (int8_t)p->target);
    PUT(t, length, (int32_t)p->length);
    PUT(t, incarnation, p->incarnation);
    PUT(t, instance, p->instance);
    PUT(t, seq, p->seq);
    PUT(t, clock, (int64_t)p->clock);
    PUT(t, free_buffers, p->free_buffers);
    PUT(t, frame_max, (int32_t)p->frame_max);
    PUT(t, check, (int64_t)p->check);
    put_vectors(t, p);
    put_confirm(t, p);
    t->rows++;
}

static int is_wanted(const struct zp_filter *want, const struct zp_pdu *p)
{
    return (want->kinds == ~0ull || (p->kind <= 63 && want->kinds >> p->kind & 1)) &&
           (want->sources == ~0ull || (p->src >= 1 && p->src <= 64 && want->sources >> (p->src - 1) & 1));
}

/* Of the streams of all; links.py has those of links. */
static void put_wanted(struct zp_pdus *t, const struct zp_filter *want, const struct zp_frame *f, const struct zp_link *l,
                       const struct zp_pdu *p)
{
    if (t && !(p->flags & ZJW_FLAG_PAIR) && is_wanted(want, p))
        put_pdu(t, f, l, p);
}

int zp_decode(struct zp_walk *w, uint32_t ethertype, const struct zp_filter *want, struct zp_frames *frames, struct zp_pdus *pdus,
              struct zp_pieces *pieces)
{
    const int any_time = want->from_ns == INT64_MIN && want->to_ns == INT64_MAX;
    const int only_ours = want->kinds != ~0ull || want->sources != ~0ull;
    struct zp_frame f;
    struct zp_link l;
    struct zp_pdu p;
    for (;;) {
        if ((frames && frames->rows >= frames->capacity) || (pdus && !pdu_has_room(pdus)))
            return ZP_FULL;
        int r = zp_next(w, &f), problem = ZP_P_NONE;
        if (r != ZP_FRAME)
            return r;
        if (frames && !frame_has_room(frames, &f)) {
            w->at = f.offset - w->base; /* later again */
            w->state.frame--;
            return ZP_FULL;
        }
        const int64_t now = f.has_time ? f.time_ns : ZP_NO_TIME;
        zp_link(&f, &l);
        const int ours = l.ethertype == ethertype;
        const int is_out = !any_time && (!f.has_time || now < want->from_ns || now > want->to_ns);
        p.kind = p.src = 0;
        if (ours)
            problem = zp_pdu(l.pdu, l.captured, l.wire, &p);
        if (pieces && problem == ZP_P_ASIDE && zp_piece(l.pdu)) {
            struct zp_link all = l;
            struct zp_pdu whole;
            if (zp_pieces_take(pieces, now, &l, &whole, &all.frame) == ZP_P_NONE && !is_out)
                put_wanted(pdus, want, &f, &all, &whole);
        }
        if (is_out || (!ours && only_ours) || !is_wanted(want, &p))
            continue;
        if (frames)
            put_frame(frames, &f, &l, ours, p.kind, problem);
        if (ours && problem == ZP_P_NONE)
            put_wanted(pdus, want, &f, &l, &p);
    }
}
