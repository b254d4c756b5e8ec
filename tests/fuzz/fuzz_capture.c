/* The capture walker and the decoder on any bytes, fed in pieces that end anywhere.
 *
 * Invariants: nothing is read beyond a piece (each is an allocation of its own); every turn moves on or says how much it wants,
 * no more than a record can have; frames lie within the piece and follow each other; the rows are as many as the frames; what a
 * scan in one piece finds is what the pieces gave. Input: one byte for the size of the pieces, then a file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "zj_wire.h"

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                           \
        }                                                                      \
    } while (0)

enum { ROWS = 7, VECTOR = ROWS * 64, NEED_MAX = ZP_RECORD_MAX + 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A window of the file as an allocation of its own, so that the sanitizer sees a read beyond it. */
struct window { const uint8_t *file; size_t size; uint8_t *piece; };

static int refill(struct window *in, struct zp_walk *w, size_t step)
{
    uint64_t begin = w->base + w->at, had = w->size - w->at, want = had + step;
    CHECK(w->at <= w->size && w->need <= NEED_MAX);
    if (want < w->need)
        want = w->need;
    if (want > in->size - begin)
        want = in->size - begin;
    if (want <= had)
        return 0;
    free(in->piece);
    in->piece = malloc(want);
    CHECK(in->piece);
    memcpy(in->piece, in->file + begin, want);
    w->data = in->piece;
    w->size = want;
    w->base = begin;
    w->at = 0;
    return want >= w->need;
}

static uint64_t by_frames(const uint8_t *file, size_t size, size_t step, int *end)
{
    static struct zp_walk w;
    struct window in = {file, size, NULL};
    struct zp_frame f;
    struct zp_link l;
    uint64_t count = 0, last = 0;
    int r;
    memset(&w, 0, sizeof w);
    w.data = file; /* of no size yet */
    for (;;) {
        uint64_t before = w.at;
        r = zp_next(&w, &f);
        CHECK(w.at >= before && w.at <= w.size);
        if (r == ZP_MORE) {
            CHECK(w.need > w.size - w.at);
            if (!refill(&in, &w, step))
                break;
            continue;
        }
        if (r < 0) {
            CHECK(w.error_at <= size);
            break;
        }
        CHECK(r == ZP_FRAME && w.at > before);
        CHECK(f.data >= w.data && f.captured <= (uint64_t)(w.data + w.size - f.data) && f.direction <= 2);
        CHECK(f.index == count++ && (count == 1 || f.offset > last));
        last = f.offset;
        zp_link(&f, &l);
        CHECK(l.captured <= f.captured && (!l.captured || (l.pdu >= f.data && l.pdu + l.captured <= f.data + f.captured)));
    }
    free(in.piece);
    *end = r;
    return count;
}

static uint64_t by_columns(const uint8_t *file, size_t size, size_t step, uint64_t *pdus)
{
    static struct zp_walk w;
    static int64_t longs[16][VECTOR];
    static int32_t ints[16][ROWS + 1];
    static int8_t bytes[16][ROWS];
    static uint8_t bits[8][ROWS / 8 + 1], blob[2][ZP_FRAME_MAX];
    struct zp_filter any = {INT64_MIN, INT64_MAX, ~0ull, ~0ull};
    struct zp_frames f = {.capacity = ROWS, .frame = longs[0], .offset = longs[1], .time_ns = longs[2], .src_mac = longs[3],
        .dst_mac = longs[4], .captured = ints[0], .wire = ints[1], .ethertype = ints[2], .vlan = ints[3], .direction = bytes[0],
        .kind = bytes[1], .problem = bytes[2], .has_time_ns = bits[0], .has_ethertype = bits[1], .has_vlan = bits[2],
        .has_src_mac = bits[3], .has_dst_mac = bits[4], .has_kind = bits[5], .data_offsets = ints[4], .data = blob[0],
        .data_capacity = ZP_FRAME_MAX};
    struct zp_pdus p = {.capacity = ROWS, .frame = longs[5], .clock = longs[6], .seq = longs[7], .state = longs[8],
        .digest = longs[9], .has_confirm = bits[6], .ack = longs[10], .pack = longs[11], .ack_offsets = ints[5],
        .pack_offsets = ints[6], .has_pack = bits[7], .vector_capacity = VECTOR, .payload_offsets = ints[7], .payload = blob[1],
        .payload_capacity = ZP_FRAME_MAX};
    struct window in = {file, size, NULL};
    uint64_t rows = 0;
    int r;
    memset(&w, 0, sizeof w);
    w.data = file;
    *pdus = 0;
    struct zp_pieces *pieces = zp_pieces_new();
    do {
        r = zp_decode(&w, 0x88b5, &any, &f, &p, pieces);
        CHECK(f.rows <= ROWS && p.rows <= f.rows);
        if (r == ZP_FULL) {
            CHECK(f.rows);
            rows += f.rows;
            *pdus += p.rows;
            f.rows = p.rows = 0;
        } else if (r == ZP_MORE && !refill(&in, &w, step)) {
            break;
        }
    } while (r >= 0);
    zp_pieces_free(pieces);
    free(in.piece);
    *pdus += p.rows;
    return rows + f.rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 20)
        return 0;
    size_t step = 1u + data[0] * (size_t)17;
    int end, end_whole;
    uint64_t pdus, pdus_whole;
    uint64_t count = by_frames(data + 1, size - 1, step, &end);
    CHECK(by_frames(data + 1, size - 1, size, &end_whole) == count && end == end_whole);
    CHECK(by_columns(data + 1, size - 1, step, &pdus) == count);
    CHECK(by_columns(data + 1, size - 1, size, &pdus_whole) == count && pdus == pdus_whole);

    static struct zp_walk w;
    struct zp_scan s = {.first_ns = INT64_MAX, .last_ns = INT64_MIN};
    memset(&w, 0, sizeof w);
    w.data = data + 1;
    w.size = size - 1;
    CHECK(zp_scan(&w, UINT64_MAX, 0x88b5, &s) == end && s.frames == count && s.timed <= count);
    CHECK(!s.timed || s.first_ns <= s.last_ns);
    return 0;
}
