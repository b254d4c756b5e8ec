/* Digests of blocks of the order: what stations have in common is compared by these, not row by row. */
#include "observer_int.h"

static uint64_t stir(uint64_t h, uint64_t v)
{
    h ^= v * 0x9FB21C651E98DF25ull;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    return h ^ h >> 32;
}

uint64_t zo_blocks(uint64_t rows, const int64_t *view, const int64_t *clock, const int8_t *src, const int64_t *incarnation,
                   const int64_t *seq,
                   const int64_t *payload_crc, const int64_t *head_crc, uint64_t cuts, const int64_t *cut_view,
                       const int64_t *cut_clock,
                   uint64_t most, int64_t *out_view, int64_t *out_block, int32_t *out_segment, int64_t *out_digest,
                       int64_t *out_count,
                   uint64_t *done)
{
    uint64_t cells = 0, i = 0;
    int64_t low = 0, high = 0; /* clocks of the present cell: low < clock <= high */
    int open = 0;
    for (; i < rows; i++) {
        int64_t c = clock[i];
        if (!open || view[i] != out_view[cells - 1] || c <= low || c > high) {
            int32_t segment = 0;
            if (cells == most)
                break;
            low = (c >> 12 << 12) - 1;
            high = low + 4096;
            for (uint64_t k = 0; k < cuts; k++) {
                if (cut_view[k] != view[i])
                    continue;
                if (cut_clock[k] < c) {
                    segment++;
                    low = cut_clock[k] > low ? cut_clock[k] : low;
                } else {
                    high = cut_clock[k] < high ? cut_clock[k] : high;
                }
            }
            out_view[cells] = view[i];
            out_block[cells] = c >> 12;
            out_segment[cells] = segment;
            out_digest[cells] = out_count[cells] = 0;
            cells++;
            open = 1;
        }
        uint64_t h = stir((uint64_t)c, (uint64_t)(uint32_t)seq[i] << 8 ^ (uint64_t)src[i]);
        h = stir(h, (uint64_t)incarnation[i]);
        h = stir(h, (uint64_t)payload_crc[i] << 32 ^ (uint64_t)head_crc[i]);
        out_digest[cells - 1] ^= (int64_t)h;
        out_count[cells - 1]++;
    }
    *done = i;
    return cells;
}

uint64_t zo_streams(uint64_t rows, const int8_t *src, const int64_t *incarnation, const int64_t *seq, const int64_t *payload_crc,
                    const int64_t *head_crc, uint64_t most, struct zo_cell *table)
{
    uint64_t used = 0;
    struct zo_cell *last[128] = {0};
    while (used < most && table[used].used)
        used++;
    for (uint64_t i = 0; i < rows; i++) {
        uint32_t s = (uint32_t)src[i] & 127;
        int64_t block = (int64_t)(uint32_t)seq[i] >> 12;
        struct zo_cell *c = last[s];
        if (!c || c->block != block || c->incarnation != incarnation[i]) {
            for (c = NULL; !c;) {
                for (uint64_t k = used; k-- > 0 && !c;) /* the newest are the likely ones */
                    if (table[k].src == src[i] && table[k].block == block && table[k].incarnation == incarnation[i])
                        c = &table[k];
                if (c)
                    break;
                if (used == most)
                    return most + 1;
                c = &table[used++];
                *c = (struct zo_cell){.incarnation = incarnation[i], .block = block, .src = src[i], .used = 1, .low = INT64_MAX,
                                      .high = INT64_MIN};
            }
            last[s] = c;
        }
        uint64_t h = stir((uint64_t)incarnation[i] << 8 ^ (uint64_t)src[i], (uint32_t)seq[i]);
        h = stir(h, (uint64_t)payload_crc[i] << 32 ^ (uint64_t)head_crc[i]);
        c->digest ^= (int64_t)h;
        c->count++;
        c->low = seq[i] < c->low ? seq[i] : c->low;
        c->high = seq[i] > c->high ? seq[i] : c->high;
    }
    return used;
}
