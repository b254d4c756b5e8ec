/* Digests of blocks of the order: what stations have in common is compared by these, not row by row. */
#include "observer_int.h"

static uint64_t stir(uint64_t h, uint64_t v)
{
    h ^= v * 0x9FB21C651E98DF25ull;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    return h ^ h >> 32;
}

/* Where a PDU stands among the holes of its stream: in one, or between two of them. */
struct between {
    int64_t src, incarnation, low, high; /* low <= number < high */
    uint64_t stations;
};

static int beyond(const struct zo_holes *h, uint64_t k, int64_t src, int64_t incarnation, int64_t number)
{
    if (h->src[k] != src)
        return h->src[k] > src;
    if (h->incarnation[k] != incarnation)
        return h->incarnation[k] > incarnation;
    return h->low[k] > number;
}

static struct between find_hole(const struct zo_holes *h, int64_t src, int64_t incarnation, int64_t number)
{
    struct between out = {.src = src, .incarnation = incarnation, .low = 0, .high = INT64_MAX};
    uint64_t from = 0, to = h->count; /* the first hole that begins behind the number */
    while (from < to) {
        uint64_t middle = from + (to - from) / 2;
        if (beyond(h, middle, src, incarnation, number))
            to = middle;
        else
            from = middle + 1;
    }
    if (from < h->count && h->src[from] == src && h->incarnation[from] == incarnation)
        out.high = h->low[from];
    if (from-- && h->src[from] == src && h->incarnation[from] == incarnation) {
        if (number < h->high[from]) {
            out.low = h->low[from];
            out.high = h->high[from];
            out.stations = h->stations[from];
        } else {
            out.low = h->high[from];
        }
    }
    return out;
}

void zo_lacking(const struct zo_rows *in, const struct zo_holes *holes, uint64_t *lacking)
{
    struct between last[ZJW_STATIONS_MAX] = {0};
    for (uint64_t i = 0; i < in->rows; i++) {
        struct between *b = &last[(uint32_t)(in->src[i] - 1) % ZJW_STATIONS_MAX];
        int64_t number = (uint32_t)in->seq[i];
        if (b->src != in->src[i] || b->incarnation != in->incarnation[i] || number < b->low || number >= b->high)
            *b = find_hole(holes, in->src[i], in->incarnation[i], number);
        lacking[i] = b->stations;
    }
}

/* The cell of the present place for rows that these stations lack; from `first` on are those of this place. NULL: no room. */
static struct zo_block *block_of(struct zo_block *out, uint64_t first, uint64_t *cells, uint64_t most, uint64_t lacking)
{
    for (uint64_t k = first; k < *cells; k++)
        if (out[k].lacking == lacking)
            return &out[k];
    if (*cells == most)
        return NULL;
    struct zo_block *b = &out[(*cells)++];
    *b = out[first];
    b->digest = b->count = 0;
    b->lacking = lacking;
    return b;
}

uint64_t zo_blocks(const struct zo_rows *in, uint64_t from, uint64_t cuts, const int64_t *cut_view, const int64_t *cut_clock,
                   uint64_t most,
                   struct zo_block *out, uint64_t *done, uint64_t *mixed, uint64_t *mixed_at)
{
    uint64_t cells = 0, first = 0, i = from;
    int64_t low = 0, high = 0; /* clocks of the present place: low < clock <= high */
    for (; i < in->rows; i++) {
        int64_t c = in->clock[i], view = in->view[i];
        if (!cells || view != out[first].view || c <= low || c > high) {
            if (cells == most)
                break;
            struct zo_block *b = &out[first = cells++];
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
        struct zo_block *b = &out[first];
        if (in->lacking && in->lacking[i] && !(b = block_of(out, first, &cells, most, in->lacking[i])))
            break;
        uint64_t h = stir((uint64_t)c, (uint64_t)(uint32_t)in->seq[i] << 8 ^ (uint64_t)in->src[i]);
        h = stir(h, (uint64_t)in->incarnation[i]);
        h = stir(h, (uint64_t)in->payload_crc[i] << 32 ^ (uint64_t)in->head_crc[i]);
        b->digest ^= (int64_t)h;
        b->count++;
        if (i && in->view[i - 1] == view && (in->clock[i - 1] > c || (in->clock[i - 1] == c && in->src[i - 1] >= in->src[i])) &&
            !(*mixed)++)
            *mixed_at = i;
    }
    *done = i;
    return cells;
}

/* The cell of a row's stream and block for PDUs that these stations lack; NULL: no room. */
static struct zo_cell *cell_of(const struct zo_rows *in, uint64_t i, uint64_t lacking, uint64_t most, uint64_t *used,
                               struct zo_cell *table)
{
    int64_t block = in->seq[i] >> 12;
    for (uint64_t k = *used; k-- > 0;) { /* the newest are the likely ones */
        struct zo_cell *c = &table[k];
        if (c->block == block && c->src == in->src[i] && c->incarnation == in->incarnation[i] && c->lacking == lacking)
            return c;
    }
    if (*used == most)
        return NULL;
    struct zo_cell *c = &table[(*used)++];
    *c = (struct zo_cell){.src = in->src[i],
                          .incarnation = in->incarnation[i],
                          .block = block,
                          .low = in->seq[i],
                          .high = in->seq[i],
                          .lacking = lacking};
    return c;
}

uint64_t zo_streams(const struct zo_rows *in, uint64_t most, uint64_t used, struct zo_cell *table)
{
    struct zo_cell *last[ZJW_STATIONS_MAX] = {0};
    for (uint64_t i = 0; i < in->rows; i++) {
        uint32_t s = (uint32_t)(in->src[i] - 1) % ZJW_STATIONS_MAX;
        int64_t seq = in->seq[i];
        struct zo_cell *c = last[s];
        if (!c || c->block != seq >> 12 || c->incarnation != in->incarnation[i] || c->src != in->src[i]) {
            if (!(c = cell_of(in, i, 0, most, &used, table)))
                return most + 1;
            last[s] = c;
        }
        c->all++;
        c->low = seq < c->low ? seq : c->low;
        c->high = seq > c->high ? seq : c->high;
        if (in->lacking && in->lacking[i] && !(c = cell_of(in, i, in->lacking[i], most, &used, table)))
            return most + 1;
        uint64_t h = stir((uint64_t)in->incarnation[i] << 8 ^ (uint64_t)in->src[i], (uint32_t)seq);
        h = stir(h, (uint64_t)in->payload_crc[i] << 32 ^ (uint64_t)in->head_crc[i]);
        c->digest ^= (int64_t)h;
        c->count++;
    }
    return used;
}
