/* Replays one station's capture by the protocol's own rules and tells, in columns, what the station had and did: the order in
 * which it came to deliver, when each PDU reached which level, views, what was announced. An implementation of its own: with the core
 * it shares the field table, nothing else. Memory is bounded by the windows of the streams. Plain C that cffi parses. */
#ifndef ZO_OBSERVER_H
#define ZO_OBSERVER_H

#include "capture.h"

#define ZO_COLUMNS_MAX 32
#define ZO_CAPACITY 65536
#define ZO_LIST 255

enum zo_table {            /* tables of schema.py, columns in its order without `station` */
    ZO_ORDER = 0, ZO_MESSAGES = 1, ZO_TRANSMISSIONS = 2, ZO_VIEWS = 3, ZO_INSTANCES = 4, ZO_ANNOUNCED = 5, ZO_CONTROL = 6,
    ZO_CONTROL_RATES = 7, ZO_FINDINGS = 8, ZO_TABLES = 9
};

/* One table's columns, in Arrow's layout, each with room for `capacity` rows; the caller empties it when zo_feed says ZP_FULL:
 * rows to 0, bitmaps to zeros. */
struct zo_columns {
    uint32_t rows, capacity, columns;
    uint32_t next;         /* column that is written next, within a row */
    uint8_t width[ZO_COLUMNS_MAX]; /* bytes of a value; 0: one bit; ZO_LIST: list of 64-bit values */
    void *data[ZO_COLUMNS_MAX];    /* of a list: its values, 64 for each row */
    uint8_t *valid[ZO_COLUMNS_MAX]; /* bitmap, 1: not null; NULL: never null */
    int32_t *offsets;      /* of the one list that a table may have: capacity + 1 */
};

struct zo_totals {
    uint64_t frames, pdus, own; /* in the capture; whole ones of this cluster; sent by the station */
    uint64_t strange;      /* of another cluster or schema, or numbers far from the window */
    uint64_t damaged;      /* with the EtherType, but no valid PDU */
    uint64_t ordered, positions; /* rows of `order`; those with a position */
    uint64_t views, gaps, resumed; /* gaps: PDUs */
    uint64_t own_compared, own_equal; /* digests that the station announced, against the derived ones */
    uint64_t others_compared, others_equal;
    uint64_t overflow;     /* rows that had no room: never, or the tables are not complete */
    uint32_t cluster, stations, bus;
};

struct zo_observer;
/* station: 1..64. tables: ZO_TABLES of them, which stay the caller's. NULL: no memory. */
struct zo_observer *zo_new(uint32_t station, uint32_t ethertype, struct zo_columns *tables);
/* Takes all frames that are there. ZP_MORE, ZP_FULL (empty the tables, call again) or damage, as zp_next. */
int zo_feed(struct zo_observer *o, struct zp_walk *w, uint32_t file);
/* After the last file. ZP_FULL: empty the tables, call again; ZP_MORE: done, the tables hold the last rows. */
int zo_end(struct zo_observer *o);
const struct zo_totals *zo_totals(const struct zo_observer *o);
void zo_free(struct zo_observer *o);

/* ---- digests of blocks of the order ---- */

/* Rows of `order` in its order, `rows` of them, as columns. Adds up cells: rows with the same view, clock >> 12 and number of
 * `cuts` (clocks) below the clock; a cell is a run of such rows: (view, block, segment) → XOR of the rows' hashes and their
 * count. Returns the
 * number of cells written, at most `most`; *done: rows used, fewer than `rows` if there was no room. */
uint64_t zo_blocks(uint64_t rows, const int64_t *view, const int64_t *clock, const int8_t *src, const int64_t *incarnation,
                   const int64_t *seq,
                   const int64_t *payload_crc, const int64_t *head_crc, uint64_t cuts, const int64_t *cut_view,
                       const int64_t *cut_clock,
                   uint64_t most, int64_t *out_view, int64_t *out_block, int32_t *out_segment, int64_t *out_digest,
                       int64_t *out_count,
                   uint64_t *done);

/* The same rows by their sources' streams: cells of (src, incarnation, seq >> 12). `table` has room for `most` open cells, which
 * the caller zeroes before the first call and writes out after the last; returns how many are in use, or `most` + 1 if there is no
 * room. */
struct zo_cell { int64_t incarnation, block, digest, count, low, high; int32_t src, used; };
uint64_t zo_streams(uint64_t rows, const int8_t *src, const int64_t *incarnation, const int64_t *seq, const int64_t *payload_crc,
                    const int64_t *head_crc, uint64_t most, struct zo_cell *table);

#endif
