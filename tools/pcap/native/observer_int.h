/* Inside of the observer: shared by its C files, not parsed by cffi. */
#ifndef ZO_OBSERVER_INT_H
#define ZO_OBSERVER_INT_H

#include <stdlib.h>

#include "capture_int.h"
#include "observer.h"

#define NEVER UINT64_MAX
#define NO_TIME ZP_NO_TIME
#define BASE (UINT64_C(1) << 32)  /* number 0 of a stream, inside: what lies before is no negative number */
#define SLOTS_LEAST 1024u
#define SLOTS_MOST 32768u         /* of a stream: no window is larger */
#define LOG_MOST 65536u           /* entries that wait for their last level */
#define DIGESTS 65536u            /* remembered */
#define LIVES 4u                  /* streams kept of one station */
#define VOTES 512u
#define OPENS 32u
#define EVENTS 16u
#define STEPS 6u                  /* changes that one CONFIRM may tell of */
#define VIEWS 16u                 /* remembered, to compare digests */
#define PENDING 32u               /* digests of one speaker that are not reached yet */
#define PASSES 4096u
#define ROOM 33000u               /* rows that must be free in each table before a frame is taken */
#define HOLE_FRAMES 64u           /* a frame that is acknowledged may come later in the capture by so many */
#define OWN_FRAMES 4096u          /* own ones: sending may have failed, and they are sent again when somebody asks */

struct msg { uint64_t first; uint32_t size, total, offset, group; uint16_t client; uint8_t type, mflags, shown, pad[3]; };

enum { EMPTY, HELD, LOST };
struct slot {                     /* one sequenced PDU */
    uint64_t seq, clock, check, frame;
    uint64_t arrival, epoch;      /* frames before it was first received; its clock as on the wire */
    int64_t first, last, accepted, ordered, preack, acked;
    uint64_t wire;                /* bytes of all copies */
    uint32_t file, instance, bytes, sent, received, relayed, messages, room;
    struct msg *msg;
    uint8_t state, kind, flags, pad[5];
};

struct stream {
    uint32_t src, incarnation;    /* src: index */
    uint64_t req, ordered, retire, top; /* next accepted; next delivered; next whose row is written; one past the highest seen */
    uint64_t clock, last_clock;   /* known to have passed; of the last accepted one */
    uint64_t limit, promise_next, promise_clock;
    uint64_t sure, sure_clock;    /* the same as req and clock, of what the station itself has said that it has accepted:
        the capture may
                                   * show what it has not read, or has not taken because it was no member yet */
    uint64_t word_next, word_clock; /* a promise that waits for `sure` */
    uint64_t al[ZJW_STATIONS_MAX], pack[ZJW_STATIONS_MAX], min_al, acked;
    uint64_t hole_to, hole_since; /* acknowledged by the station up to; frames ago */
    uint64_t gap_first, gap_count, gap_clock; /* lost to the capture, not told yet */
    uint64_t claimed;             /* own stream: the highest that anybody acknowledged */
    uint64_t part_first;          /* fragments: number of the first one */
    uint32_t part_total, part_done;
    uint32_t joined_at, left_at, spoke;
    uint32_t since;               /* started: nothing of an earlier instance is of it */
    uint32_t cap;
    uint8_t started, closed, seen, pad;
    struct slot *slots;
    uint32_t *acks;               /* cap times 64 */
};

struct view {
    uint32_t instance, hash, incarnations[ZJW_STATIONS_MAX], limit[ZJW_STATIONS_MAX], vote_seq[ZJW_STATIONS_MAX];
    uint64_t members, joined, left, place_clock, seed, from_clock, vote_clock[ZJW_STATIONS_MAX];
    uint64_t issued;              /* opened: who has proposed it */
    uint32_t place_src;           /* 1..n, 0: nothing before it */
    int64_t time;
    uint8_t opened, seed_known, complete, known; /* known: members and place */
};

struct vote {
    uint32_t instance, incarnation, seq, changes;
    uint64_t clock, members;
    uint8_t src, stop, changed[ZJW_STATIONS_MAX]; /* src: index */
    uint32_t value[ZJW_STATIONS_MAX];
};

struct entry { struct stream *s; uint64_t seq, position; uint32_t view, hash; };
struct said { uint64_t position, digest, frame; int64_t time; uint32_t counted, incarnation, file; };
struct past { uint64_t base, seed, end; uint32_t instance; uint8_t seed_known; };
struct pass { uint64_t clock; int64_t time; };
struct rate { int64_t second; uint32_t confirms, polls, relayed; uint64_t bytes; uint8_t used, pad[3]; };

struct speaker {
    uint32_t incarnation, instance, hash, flags;
    uint64_t state, trans;
    uint32_t heard, confirmed;    /* something was; a CONFIRM was */
    uint64_t mac;
    uint32_t said_counted;
    uint64_t said_position, said_digest;
    struct said pending[PENDING];
    uint32_t pending_head, pending_tail;
    uint32_t last_incarnation, last_instance; /* of its last PDU within an instance */
    struct rate rate[3];          /* by direction */
};

struct zo_observer {
    uint32_t self, n, ethertype, file;
    struct zo_columns *tables;
    struct zo_totals total;
    int failed, fixed;            /* no memory; cluster and n are known */
    uint64_t frame;
    int64_t now;

    struct stream *streams[ZJW_STATIONS_MAX][LIVES];
    struct stream *cur[ZJW_STATIONS_MAX]; /* of the members */
    uint32_t life, own_instance;  /* of the station; highest instance in which it has sent */
    int open, draining, ending;
    uint32_t join_last;
    uint32_t first_seq;           /* of every stream, learned from the own one */
    struct view view;             /* agreed */
    struct view shown;            /* whose event was delivered last */
    int has_shown, joining;
    struct view events[EVENTS];
    uint32_t event_head, event_tail;
    uint64_t gate;                /* a joiner is waited for: nothing beyond is delivered */
    int any_hole;
    uint32_t lost;                /* instance in which the capture lacks more than any window: to be resumed; 0: none */
    uint64_t covered;             /* nothing up to this clock is still to come */

    uint64_t bus_tail;            /* bus: end of the log; o->tail is what has been handed out */
    uint32_t bus_epoch;
    int bus_lost, bus_blind;      /* a reset is due; places are not known any more */

    struct entry *log;
    uint64_t log_cap, retired, preack, acked, tail;
    uint64_t position, base;      /* digests: all ever; of the present view's event */
    int exact, digest_ok;         /* positions are known; digest is */
    uint64_t gap_until;           /* highest clock before which something is lost */
    uint64_t digest, *digests;
    uint8_t *digests_ok;
    struct past past[VIEWS];
    uint32_t past_count;
    struct pass passes[PASSES];
    uint64_t pass_head, pass_tail;
    int64_t last_ordered;

    struct vote votes[VOTES];
    uint32_t vote_tail;
    struct view opens[OPENS], steps[STEPS];
    uint32_t open_tail;
    struct speaker speakers[ZJW_STATIONS_MAX];
    uint32_t end_src, end_life;
    uint64_t end_at;
    struct zp_pieces *pieces;
};

static inline uint64_t widen(uint64_t ref, uint32_t x) { return ref + (uint64_t)(int64_t)(int32_t)(x - (uint32_t)ref); }
static inline int is_member(const struct zo_observer *o, uint32_t h) { return (int)(o->view.members >> h & 1); }
static inline struct slot *slot_at(const struct stream *s, uint64_t seq) { return &s->slots[seq & (s->cap - 1)]; }
static inline struct slot *slot_of(const struct stream *s, uint64_t seq)
{
    struct slot *q = slot_at(s, seq);
    return q->state != EMPTY && q->seq == seq ? q : NULL;
}

/* observer_out.c: rows, column by column */
struct zo_columns *row_begin(struct zo_observer *o, enum zo_table t); /* NULL: no room */
void put(struct zo_columns *c, int64_t v);
void put_null(struct zo_columns *c);
void put_time(struct zo_columns *c, int64_t t);
void put_list(struct zo_columns *c, const uint32_t *v, uint32_t n);
uint32_t room(const struct zo_observer *o, enum zo_table t);
struct finding { uint32_t what, src, incarnation, other_src; uint64_t seq, count, clock, until, other, value; };
void find(struct zo_observer *o, const struct finding *f);
void row_transmission(struct zo_observer *o, const struct stream *s, struct slot *q);
void row_view(struct zo_observer *o, const struct view *v, uint64_t to_clock, int any);
void row_order(struct zo_observer *o, const struct entry *e, struct slot *q);
void note_control(struct zo_observer *o, const struct zp_pdu *p, uint32_t direction);
void note_confirm(struct zo_observer *o, const struct zp_pdu *p, uint32_t direction);
void note_instance(struct zo_observer *o, const struct zp_pdu *p);
void rates_flush(struct zo_observer *o);
enum { F_GAP = 1, F_CONFLICT, F_SENDER_ORDER, F_CAUSALITY, F_PROMISE, F_DIGEST, F_VIEW_UNKNOWN, F_NEVER_SENT, F_RESUMED };

/* observer_stream.c */
struct stream *stream_of(struct zo_observer *o, uint32_t src, uint32_t incarnation, int make);
void stream_start(struct zo_observer *o, struct stream *s, uint64_t seq, uint64_t clock);
struct slot *stream_put(struct zo_observer *o, struct stream *s, const struct zp_pdu *p, int out, int relayed);
void stream_advance(struct zo_observer *o, struct stream *s);
void stream_skip(struct zo_observer *o, struct stream *s, uint64_t to);
void stream_promise(struct stream *s);
void stream_sure(const struct zo_observer *o, struct stream *s);
void stream_gap_tell(struct zo_observer *o, struct stream *s, uint64_t until);
void stream_free(struct stream *s);
void levels_row(struct zo_observer *o, struct stream *s);
void hole_note(struct zo_observer *o, struct stream *s, uint64_t to);
void merge(struct zo_observer *o, const struct zp_pdu *p);
void holes(struct zo_observer *o, int all);

/* observer_order.c */
void deliver(struct zo_observer *o);
void retire(struct zo_observer *o, int force);
void order_enter(struct zo_observer *o, const struct view *v);
void announced(struct zo_observer *o, const struct zp_pdu *p);
void announced_check(struct zo_observer *o, int all);
void passed_note(struct zo_observer *o);
void order_take(struct zo_observer *o, struct stream *s, struct slot *q);
int log_room(struct zo_observer *o);

/* observer_bus.c */
void bus_take(struct zo_observer *o, const struct zp_pdu *p, struct stream *s, int out);
void bus_begin(struct zo_observer *o, int from_beginning);

/* observer_view.c */
void vote_add(struct zo_observer *o, const struct zp_pdu *p);
void open_add(struct zo_observer *o, const struct zp_pdu *p);
void instance_seen(struct zo_observer *o, const struct zp_pdu *p); /* a PDU that may tell which instance the station is in */
void life_end(struct zo_observer *o);
void opened_seen(struct zo_observer *o, const struct zp_pdu *p);

#endif
