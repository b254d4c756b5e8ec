/* Replays one station's capture by the protocol's own rules and tells, in columns, what the station had and did: the order in
 * which it came to deliver, when each PDU reached which level, views, what was announced. An implementation of its own: with the
 * core
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
/* Whose PDUs count. Without it the first one in the capture decides, and that may be of another cluster on the segment. */
void zo_cluster(struct zo_observer *o, uint32_t cluster, uint32_t n);
/* Takes all frames that are there. ZP_MORE, ZP_FULL (empty the tables, call again) or damage, as zp_next. */
int zo_feed(struct zo_observer *o, struct zp_walk *w, uint32_t file);
/* After the last file. ZP_FULL: empty the tables, call again; ZP_MORE: done, the tables hold the last rows. */
int zo_end(struct zo_observer *o);
const struct zo_totals *zo_totals(const struct zo_observer *o);
void zo_free(struct zo_observer *o);

/* ---- digests of blocks of the order ---- */

/* PDUs that captures are known to lack: low <= number of 32 bits < high of a stream; bit k - 1 of `stations`: the one of station k.
 * Sorted by (src, incarnation, low), and apart from each other. */
struct zo_holes { uint64_t count; const int64_t *src, *incarnation, *low, *high; const uint64_t *stations; };

/* Rows of `order`, in its order, as columns. `lacking`: the stations whose captures lack the PDU of a row, or NULL. */
struct zo_rows {
    uint64_t rows;
    const int64_t *view, *clock, *incarnation, *seq, *payload_crc, *head_crc;
    const int8_t *src;
    const uint64_t *lacking;
};
/* What `lacking` has to hold for these rows. */
void zo_lacking(const struct zo_rows *in, const struct zo_holes *holes, uint64_t *lacking);

/* A cell: the rows with the same view, clock >> 12, number of cuts below the clock, and stations that lack them. XOR of the rows'
 * hashes, and how many. */
struct zo_block { int64_t view, block, segment, digest, count; uint64_t lacking; };
/* Cuts are (view, clock), in any order. Adds up runs of rows of one cell, at most `most`, and returns how many there are; *done:
 * rows used, fewer than there are if there was no room. *mixed counts rows that do not stand behind the one before them, in the
 * same view; *mixed_at is the first of them. */
uint64_t zo_blocks(const struct zo_rows *in, uint64_t from, uint64_t cuts, const int64_t *cut_view, const int64_t *cut_clock,
                   uint64_t most, struct zo_block *out, uint64_t *done, uint64_t *mixed, uint64_t *mixed_at);

/* The same rows by their sources' streams: (src, incarnation, seq >> 12, stations that lack them). `table` has room for `most` cells,
 * of which `used` are in use; returns how many are afterwards, or most + 1 if there is no room. `all`, least and greatest number of a
 * cell that nobody lacks are those of the whole block. */
struct zo_cell { int64_t src, incarnation, block, digest, count, low, high, all; uint64_t lacking; };
uint64_t zo_streams(const struct zo_rows *in, uint64_t most, uint64_t used, struct zo_cell *table);

#endif
