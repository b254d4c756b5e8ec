/* Inside proto/core/multi only. */
#ifndef MULTI_INT_H
#define MULTI_INT_H

#include <stdlib.h>

#include "../zj_int.h"
#include "multi.h"

#define STATIONS 64u
#define BUCKETS 1024u
#define BIT(z) (1ull << ((z) - 1))
#define TIME_LIMIT (1ull << 63)

/* DATA, REPORT and DECIDE, HELD and STABLE as proto/multicast/codec.py has them. */
#define D_ERA 0
#define D_NUMBER 8
#define D_FINISHED 12
#define D_SEEN 16
#define D_ORDER 24
#define D_FLAGS 25
#define D_MORE 26
#define D_SIZE 28u
#define T_ORIGIN 8
#define T_ORDER 9
#define T_COUNT 10
#define T_NUMBER 12
#define T_TIME 16
#define T_SIZE 24u
#define C_ORDER 8
#define C_WHAT 9
#define C_K 12
#define C_SIZE 16u

/* A double-ended queue of numbers or pointers. */
struct ring { uint64_t *items; uint32_t size, head, n; };
void ring_push(struct ring *r, uint64_t item);
uint64_t ring_shift(struct ring *r);
void ring_free(struct ring *r);
static inline uint64_t ring_at(const struct ring *r, uint32_t k) { return r->items[(r->head + k) & (r->size - 1)]; }

/* Bytes of a DATA record: a message lies once for all links (rule L5). */
struct buf { uint32_t refs, size; uint8_t bytes[]; };
struct buf *buf_new(uint32_t size);
void buf_drop(struct buf *b);

struct group_set { uint32_t n, ids[ZJ_MULTI_GROUPS]; };
static inline int same_set(const struct group_set *a, const struct group_set *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, a->n * sizeof *a->ids);
}

struct counted_set { struct group_set set; uint32_t count; };

/* A program's messages of one order. */
struct program {
    struct program *next;       /* in its bucket */
    struct program *after, *before; /* among those with unreported messages, in the order in which they came to have some */
    struct ring unreported;     /* struct message *; O3: in the order of their numbers */
    struct counted_set *sets;   /* O3: groups of its messages that are reported and not decided */
    uint32_t n_sets, sets_size;
    uint32_t refs;              /* messages, and 1 if last */
    uint32_t incarnation, last; /* last: number of its last message delivered here, until that is finished; 0: none */
    uint16_t client;
    uint8_t origin, order;
};

struct message {
    struct message *next;       /* in its bucket */
    struct message *after, *before; /* among the unfinished ones of its originator, by number */
    struct program *program;
    struct buf *data;           /* the whole record */
    struct group_set groups;
    uint64_t era, destinations, proposers, followers;
    uint64_t report, time, input;
    uint64_t reported, largest; /* who has reported, and the largest time; also before the data */
    uint64_t held;
    uint32_t number, incarnation, refs;
    uint16_t client;
    uint8_t origin, order, coordinator;
    uint8_t known;              /* 0: only reports have come */
    uint8_t in_table, listed, safe, has_report, has_time, delivered, finished;
};

/* O6: what waits for its delivery, by (time, origin, number); entries whose message has another place by now are passed over. */
struct place { uint64_t time; struct message *m; };
struct heap { struct place *items; uint32_t n, size; };

/* O4: messages that this station decides, of one originator to the same groups, by number. */
struct undecided { struct undecided *next; struct group_set groups; struct ring messages; uint8_t origin, order; };

/* A list that grows at its end and forgets what two readers have passed; places count from 0. */
struct tail { struct ring items; uint64_t first, taken, used; uint8_t names; };

/* HELD and STABLE of one link and order. */
struct peer {
    struct tail decided_by;     /* names (origin << 32 | number) in the DECIDEs that came */
    struct tail decided_to, outside, sent_to; /* messages: of the DECIDEs that went; S2 */
    uint64_t held_to, stable_to, sent_stable_to;
    uint8_t owes;
};

struct table {
    struct group { uint32_t id; uint64_t members, digest; } *groups;
    uint32_t n, size;
    uint64_t members, hosts, follow_me;
    uint8_t followed[STATIONS + 1];
};

struct gone { uint8_t *bits; uint32_t highest; };

struct record {
    struct buf *buf;            /* or NULL: `small` */
    uint32_t group, size;
    uint16_t client;
    uint8_t type;
    uint8_t small[T_SIZE];
};
struct records { struct record *items; uint32_t head, n, size; };
void records_push(struct records *r, const struct record *item);
struct record *records_shift(struct records *r);
void records_free(struct records *r);
static inline struct record *records_at(const struct records *r, uint32_t k) { return &r->items[(r->head + k) & (r->size - 1)]; }

struct zj_sendq { struct records records; struct zj_offer offer; struct record popped; uint64_t since; uint8_t partly; };

/* Records for a station: those of this input, and those of inputs before it. */
struct out { struct records now, before; };

struct zj_multi {
    uint32_t me, incarnation, window, span;
    uint64_t settle, era, clock, number, input, dropped;
    uint32_t lives[STATIONS + 1], n_part;
    struct table tables[ZJ_MULTI_ORDERS];
    struct message *buckets[BUCKETS];
    uint32_t n_reports;
    struct program *programs[BUCKETS];
    uint32_t n_last;
    struct { struct program *first, *end; } unreported;
    struct { struct message *first, *end; } unfinished[STATIONS + 1]; /* [0]: of incarnations that have gone */
    uint32_t n_own;
    struct undecided *undecided, **undecided_end;
    struct ring perhaps_stable;
    struct heap heaps[ZJ_MULTI_ORDERS];
    struct ring to_follow_names, to_follow_times;
    struct ring sequence[ZJ_MULTI_ORDERS]; /* delivered, not released */
    struct peer peers[STATIONS + 1][ZJ_MULTI_ORDERS];
    uint64_t owed_peers;
    struct gone gone[STATIONS + 1];
    uint64_t due[STATIONS + 1];
    struct out out[STATIONS + 1];
    struct zj_multi_event *events;
    struct buf **event_bufs;    /* that each one's data is in, or NULL */
    uint32_t n_events, events_size, event_bufs_size;
};

void *multi_grow(void *items, uint32_t *size, uint32_t least, size_t each);
void message_drop(zj_multi *m, struct message *x);
struct message *message_find(const zj_multi *m, uint32_t origin, uint32_t number);
/* That of this name, made if there is none; known is 0 then. */
struct message *message_get(zj_multi *m, uint32_t origin, uint32_t number);
void message_forget(zj_multi *m, struct message *x); /* out of the table of names */
struct program *program_find(const zj_multi *m, uint32_t origin, uint32_t incarnation, uint32_t client, uint32_t order);
/* Made if there is none; a reference for the caller. */
struct program *program_get(zj_multi *m, uint32_t origin, uint32_t incarnation, uint32_t client, uint32_t order);
void program_drop(zj_multi *m, struct program *p);
void program_last(zj_multi *m, struct program *p, uint32_t number);
void unfinished_add(zj_multi *m, struct message *x);
void unfinished_remove(zj_multi *m, struct message *x);
void unreported_remove(zj_multi *m, struct program *p);
void heap_push(zj_multi *m, struct heap *h, struct message *x);
struct message *heap_least(zj_multi *m, struct heap *h);
void tail_push(struct tail *t, uint64_t item);
void tail_use(zj_multi *m, struct tail *t, uint64_t used);
void tail_free(zj_multi *m, struct tail *t);
void gone_add(zj_multi *m, uint32_t origin, uint32_t number);
int gone_has(const zj_multi *m, uint32_t origin, uint32_t number);
/* The place of a group in the table, which is sorted: its own, or that where it would be. */
static inline uint32_t group_place(const struct table *t, uint32_t id)
{
    uint32_t low = 0, high = t->n;
    while (low < high) { /* bound: log2 of the groups */
        const uint32_t mid = (low + high) / 2;
        if (t->groups[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}
static inline struct group *group_find(const struct table *t, uint32_t id)
{
    const uint32_t at = group_place(t, id);
    return at < t->n && t->groups[at].id == id ? &t->groups[at] : NULL;
}
static inline uint64_t destinations(const struct table *t, const struct group_set *s)
{
    uint64_t found = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        const struct group *g = group_find(t, s->ids[k]);
        found |= g ? g->members : 0;
    }
    return found;
}

/* multi.c */
void multi_insert(zj_multi *m, struct message *x);
void multi_finish(zj_multi *m, struct message *x);
void multi_set_time(zj_multi *m, struct message *x, uint64_t time);
void multi_event(zj_multi *m, uint32_t kind, const struct message *x);
/* multi_rules.c */
void multi_advance(zj_multi *m);
void multi_settle(zj_multi *m, uint64_t now);
#endif
