/* Digests of blocks of the order: what stations have in common is compared by these, not row by row. */
#include "observer_int.h"

static uint64_t stir(uint64_t h, uint64_t v)
{
    h ^= v * 0x9FB21C651E98DF25ull;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    return h ^ h >> 32;
}

uint64_t zo_blocks(const struct zo_rows *in, uint64_t from, uint64_t cuts, const int64_t *cut_view, const int64_t *cut_clock,
                   uint64_t most,
                   struct zo_block *out, uint64_t *done, uint64_t *mixed, uint64_t *mixed_at)
{
    uint64_t cells = 0, i = from;
    int64_t low = 0, high = 0; /* clocks of the present cell: low < clock <= high */
    for (; i < in->rows; i++) {
        int64_t c = in->clock[i], view = in->view[i];
        if (i && in->view[i - 1] == view && (in->clock[i - 1] > c || (in->clock[i - 1] == c && in->src[i - 1] >= in->src[i])) &&
            !(*mixed)++)
            *mixed_at = i;
        if (!cells || view != out[cells - 1].view || c <= low || c > high) {
            if (cells == most)
                break;
            struct zo_block *b = &out[cells++];
            *b = (struct zo_block){.view = view, .block = c >> 12};
            low = (c >> 12 << 12) - 1;
            high = low + 4096;
            for (uint64_t k = 0; k < cuts; k++) {
                if (cut_view[k] != view)
                    continue;
                if (cut_clock[k] < c) {
                    b->segment++;
                    low = cut_clock[k] > low ? cut_clock[k] : low;
                } else {
                    high = cut_clock[k] < high ? cut_clock[k] : high;
                }
            }
        }
        uint64_t h = stir((uint64_t)c, (uint64_t)(uint32_t)in->seq[i] << 8 ^ (uint64_t)in->src[i]);
        h = stir(h, (uint64_t)in->incarnation[i]);
        h = stir(h, (uint64_t)in->payload_crc[i] << 32 ^ (uint64_t)in->head_crc[i]);
        out[cells - 1].digest ^= (int64_t)h;
        out[cells - 1].count++;
    }
    *done = i;
    return cells;
}

uint64_t zo_streams(const struct zo_rows *in, uint64_t most, uint64_t used, struct zo_cell *table)
{
    struct zo_cell *last[ZJW_STATIONS_MAX] = {0};
    for (uint64_t i = 0; i < in->rows; i++) {
        uint32_t s = (uint32_t)(in->src[i] - 1) % ZJW_STATIONS_MAX;
        int64_t seq = in->seq[i], block = seq >> 12;
        struct zo_cell *c = last[s];
        if (!c || c->block != block || c->incarnation != in->incarnation[i] || c->src != in->src[i]) {
            c = NULL;
            for (uint64_t k = used; k-- > 0 && !c;) /* the newest are the likely ones */
                if (table[k].block == block && table[k].src == in->src[i] && table[k].incarnation == in->incarnation[i])
                    c = &table[k];
            if (!c) {
                if (used == most)
                    return most + 1;
                c = &table[used++];
                *c = (struct zo_cell){.src = in->src[i],
                                      .incarnation = in->incarnation[i],
                                      .block = block,
                                      .low = seq,
                                      .high = seq};
            }
            last[s] = c;
        }
        uint64_t h = stir((uint64_t)in->incarnation[i] << 8 ^ (uint64_t)in->src[i], (uint32_t)seq);
        h = stir(h, (uint64_t)in->payload_crc[i] << 32 ^ (uint64_t)in->head_crc[i]);
        c->digest ^= (int64_t)h;
        c->count++;
        c->low = seq < c->low ? seq : c->low;
        c->high = seq > c->high ? seq : c->high;
    }
    return used;
}
