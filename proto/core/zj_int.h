/* Inside of the core: shared by its translation units only. */
#ifndef ZJ_INT_H
#define ZJ_INT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "zj.h"
#include "zj_wire.h"

#define ZJ_NEVER UINT64_MAX
#define ZJ_TXQ 4096u          /* entries of the transmit queue, power of two */
#define ZJ_CTL 128u           /* control PDUs waiting for the engine, power of two: two OPENs of each of 64 stations */
#define ZJ_CTL_BYTES 1536u    /* a longer one is cut: OPEN needs at most 1,484 */
#define ZJ_SMALLS 16u         /* small frames queued at a time */
#define ZJ_SMALL_BYTES 1536u  /* bytes of a buffer of one: header, two vectors of 64, 64 ranges of a NAK */
#define ZJ_SHORT_BYTES 1536u  /* PDUs up to this size lie close to each other: one of a frame of 1,500 bytes */
#define ZJ_ASKS_NS 500000000u /* questions of one station for another's word that are no further apart: it does not hear the answers */
#define ZJ_CLOCK_AHEAD (1ull << 33) /* of the own clock, within one instance */
#define ZJ_DIRECT_REST_NS 1000000000u /* somebody asks for what was confirmed to one station alone: all hear all for so long */
#define ZJ_CTL_GAP_NS 10000000u /* engine hears of strange PDUs of one station at most this often */
#define ZJ_SHOWN 8u            /* openings and votes of one station that the engine was shown lately: remembered */
#define ZJ_PLACES_OPEN 2u     /* in the queue for what one station says of an opening: its first word and its last */
#define ZJ_PLACES_VOTE 8u     /* and for its votes, while this station is in no instance */
#define ZJ_VOTES 128u         /* votes waiting for the engine, power of two */
#define ZJ_VOTE_BYTES 1536u   /* the longest has 905: header, two vectors of 64, 64 changes */
#define ZJ_EVENTS 16u         /* view events that are not delivered yet, power of two */
#define ZJ_VIEWS 16u          /* views remembered to compare digests and to flush, power of two */

/* ---- bytes, network order ---- */
static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline void put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "big-endian hosts: drop the byte swaps above"
#endif

/* The 64-bit number nearest to ref whose low half is x (RFC 1982 arithmetic, windows < 2^31). */
static inline uint64_t widen(uint64_t ref, uint32_t x) { return ref + (uint64_t)(int64_t)(int32_t)(x - (uint32_t)ref); }

/* A PDU's header, read once after zj_check(). */
struct pdu {
    const uint8_t *bytes;
    uint32_t size;            /* header, vectors and payload, without padding */
    uint32_t seq, incarnation, instance, free_buffers;
    uint64_t clock;
    uint16_t frame_max, length;
    uint8_t kind, flags, src, target; /* src: index */
    const uint8_t *ack, *pack, *payload; /* pack NULL if absent */
};

struct meta {                 /* one buffer of a stream */
    uint64_t clock;
    uint64_t ask_at;          /* missing: not asked for before */
    uint64_t last_tx;         /* last repetition of it seen on the wire, 0: none */
    uint64_t arrival;         /* only for ZJ_FAULT_ARRIVAL_ORDER */
    uint32_t size;
    uint32_t instance;        /* of its source when it sent this */
    uint32_t payload_crc;
    uint8_t present, asks, flags, kind; /* present: HELD, and HELD << ordering for each order that still needs it */
};
enum { HELD = 1 };
_Static_assert(sizeof(struct meta) == 48, "walked through per frame: a larger one costs cache");

struct assembly { uint8_t *whole; uint32_t cap, total, done; int used; }; /* of a source's fragmented message, bytes (assembly.c) */

struct shown { uint64_t key, at; }; /* checksums of a PDU that the engine was shown, and when */

struct stream {               /* station h, as seen here */
    /* every frame looks at the first 64 bytes */
    uint64_t req;             /* next expected (own: next to send) */
    uint64_t top;             /* one past the highest known to exist */
    uint64_t base;            /* lowest kept */
    uint64_t ordered;         /* next to be delivered */
    uint64_t clock;           /* the station is known to have passed it */
    uint64_t first;           /* no number of it can be lower */
    uint64_t closed_at;       /* nothing at or beyond is accepted (zj_limit); ZJ_NEVER: no limit */
    uint64_t noticed;         /* gaps below are being asked for */
    struct { uint64_t next, clock; } promise; /* clock bound of a CONFIRM that waits for the PDUs before `next`; clock 0: none */
    uint64_t need_ack;        /* one past the highest PDU with NEED_ACK */
    uint64_t nak_at;          /* no gap of this stream is due before */
    struct { uint64_t below, wait; } passed; /* zj_passed; wait 0: there is one link */
    uint64_t pin, pin_next;   /* nothing at or beyond is freed: a joiner will need it; pin_next: once the instance changes */
    uint64_t wait_clock;      /* not a member, but in the wait set: is known to have passed */
    uint64_t al[ZJW_STATIONS_MAX], min_al;
    uint64_t pack[ZJW_STATIONS_MAX], acked;
    uint32_t at_min, pack_at_min; /* stations that are at the minimum */
    struct { uint64_t ack, pack; } sent; /* what this station last broadcast in A and P about the stream */
    struct {                  /* confirmations to its source alone */
        uint64_t ack;         /* what it was told last in one, and nobody else */
        uint64_t open;        /* own PDUs below: the station has confirmed them to all */
    } direct;
    uint8_t *brief, *data;    /* buffers: of short PDUs, and of others (NULL: there are none) */
    struct meta *meta;
    struct assembly parts[ZJ_ORDERINGS]; /* ZJ_TOTAL: at its place in the main order */
    uint64_t before_join;     /* what is below stands before the event with which this station joined */
    uint32_t held;            /* order_hold without order_release so far */
    /* the station itself */
    uint64_t heard, ack_moved;
    uint32_t incarnation, free_buffers, frame_max;
    uint32_t joined_at;       /* instance from which on this incarnation is known to be a member */
    uint32_t left_at;         /* instance that began without it, 0: none */
    uint32_t spoke;           /* highest instance in which it has sent something */
    uint8_t mac[6], mac_known, left, fenced, wants_ack, closing;
    uint8_t sums;             /* its CONFIRMs speak for all: it understands those that do */
    struct {                  /* as its last CONFIRM reports */
        uint64_t state, trans;
        uint32_t instance, view;
    } peer;
    struct {                  /* a digest it has reported of a position that is not reached here */
        uint64_t position, value;
        uint32_t counted;     /* instance from whose view event the position counts; 0: none is kept */
    } digest;
    struct {                  /* another station asks again and again for its report: its next CONFIRM is relayed, until then */
        uint64_t asked_at, until;
        uint8_t asked_by;     /* station index + 1 that asked last, 0: none */
    } relay;
    struct {                  /* of its PDUs, what the engine was shown */
        uint64_t confirm_at, other_at, later_at; /* when last: a foreign CONFIRM, another foreign PDU, one of a later instance */
        struct shown recent[ZJ_SHOWN]; /* openings and votes, a ring */
        uint32_t next, open_waits, vote_waits, open_last; /* of these in the mailbox; where the last opening is there */
        uint32_t instance;    /* of the CONFIRM shown last */
    } shown;
};

enum txtype { TX_VOID, TX_SLOT, TX_CONFIRM, TX_SMALL };
struct tx { uint64_t seq; uint8_t type, stream, again; uint8_t pad; uint32_t buf; };

struct entry { uint64_t seq; uint32_t src; uint32_t pad; };
struct ctl { uint32_t size, drop; uint8_t src, places, mac[6]; uint8_t data[ZJ_CTL_BYTES]; }; /* places: of its sort, 0: any */
struct vote { uint64_t seq, clock; uint32_t size, instance; uint8_t src, kind, pad[6]; uint8_t data[ZJ_VOTE_BYTES]; };

struct event {                /* a view event on its way to its place, right after (clock, src) */
    uint64_t clock, changed;  /* changed: bitmap of stations that joined or were removed */
    uint32_t src, instance, hash, size;
    int joined;               /* a station joined */
    uint8_t data[ZJW_SIZEOF_VIEW + 4 * ZJW_STATIONS_MAX];
};
struct view { uint64_t base, seed; uint32_t instance, hash; }; /* delivered: position there, digest there */

struct cursor {               /* of the messages in a PDU */
    const uint8_t *pdu;
    uint32_t src, at, end, index;
    uint32_t ordering;        /* of the message read last */
    int inside;               /* a PDU is being taken apart */
};

struct zj_core {
    struct zj_config cfg;
    uint32_t n, self, mask, slot_bytes, short_bytes; /* of the largest PDU, and of one in a short buffer */
    int is_open;
    uint32_t instance, view;  /* view: its hash */
    uint64_t members;         /* bitmap */
    uint32_t list[ZJW_STATIONS_MAX], listed; /* the same as a list */
    uint64_t waiting;         /* bitmap: in the wait set although no member */
    uint32_t join_last;       /* instance in which a station last joined */
    int pinned;
    uint64_t clock;
    uint64_t progress;        /* grows with whatever is accepted, acknowledged or delivered */
    uint64_t arrivals;
    struct stream *st;

    struct {                  /* send.c */
        int building;         /* an own PDU is being packed in slot st[self].req, */
        uint32_t cap;         /* in a buffer of so many bytes */
        uint32_t fill;        /* its bytes so far */
        uint32_t payload_at;
        uint8_t flags;
        uint32_t frag_owner;  /* client + 1 whose fragmented message is under way, 0 none */
        int frag_restart;     /* a joiner lacks its beginning: send it from there */
        int blocked;
        uint32_t own_frame_max, pdu_max; /* pdu_max: largest PDU to build now */
        uint32_t limit, base;     /* zj_limit_size */
        uint32_t asked_again;     /* PDUs above base that were asked for after they had been sent again */
        uint64_t next;        /* number of the next own PDU; switched: as st[self].req */
        uint64_t end;         /* the window ends there */
    } send;

    struct {                  /* order/: the main order and those beside it */
        const struct main_ops *main;
        const struct order_ops *beside[ZJ_ORDERINGS]; /* those that this core has */
        uint32_t beside_count;
        void *side[ZJ_ORDERINGS]; /* their states, by ordering */
        struct entry *log;
        uint64_t *digests;
        uint64_t mask;        /* of both */
        uint64_t position, preack, acked; /* levels */
        uint64_t need_ack;    /* one past the position of the last PDU with NEED_ACK */
        uint64_t digest;
        uint64_t told[ZJ_LEVELS]; /* positions that zj_positions gave last */
        struct cursor cur;    /* in the PDU that is being delivered */
        uint64_t key;         /* first part of its order key */
        int silent;           /* it stands before the event with which this station joined */
        uint64_t dup_seq;     /* ZJ_FAULT_DUPLICATE, ZJ_FAULT_SWAP */
        uint32_t dup_src, dup, swapped;
    } order;

    struct {                  /* rules 4 and 5, released() in order/order.h */
        uint32_t instance;    /* that began with the last removal; 0: none since the core was opened or joined */
        uint64_t at;          /* PDUs below stand before its view event; ZJ_NEVER: not delivered yet; 0: no removal */
        uint64_t before;      /* what was released when it was applied, and is until all before its event can be */
        uint32_t joined_by;   /* this instance, and it is not sure yet that all its members share its view; 0: sure, or no joiner */
    } release;

    struct {                  /* order/view.c */
        struct event events[ZJ_EVENTS];
        uint32_t head, tail;
        struct view past[ZJ_VIEWS];
        uint32_t count;       /* delivered since the core was opened or joined */
        uint64_t base;        /* of the last one */
        int joining;          /* the event with which this station joins is still to come: what stands before is silent */
        uint64_t join_clock;  /* its place; join_clock 0: none */
        uint32_t join_src;
    } views;

    struct {                  /* zj_flush */
        int on;
        uint64_t to;          /* positions below are to be delivered and released */
        uint32_t view;        /* `to` is `count` after the event of this view, which is not delivered yet; or 0 */
        uint64_t count;
    } flush;

    struct {                  /* why nothing is delivered any more: zj_fence */
        int raised;
        uint32_t station;
        uint64_t position, own, theirs;
    } fence;

    struct {                  /* assembly.c */
        struct assembly *starved; /* the system refuses memory for it: until there is some nothing is delivered */
        uint32_t need;
        uint64_t bytes, tidy_at; /* mapped; when unused ones are looked for */
        int refused;             /* zj_refuse_memory */
    } assembly;

    struct {                  /* order/bus.c; phase is always RUN and own_due never on a switched medium */
        uint64_t accepted;    /* entries of the log; those below `preack` and `acked` have reached these levels */
        uint64_t common;      /* this much of the log all had when all vectors of a reset were equal */
        uint32_t phase, epoch; /* enum zj_phase */
        int reset_news;       /* the core itself has ended a reset, which the engine does not know yet */
        uint64_t own_due;     /* own PDUs must have come back by then */
    } bus;

    struct {                  /* confirm.c */
        uint64_t owed_since, answer_at, due;
        int answer, chatter, want_ack;
        uint32_t sent_free;   /* free buffers that were last broadcast */
        uint64_t state, trans;
        uint64_t direct_from; /* when the next one may go to one station alone */
        uint64_t told, summed; /* own PDUs below: some station has confirmed them to this one alone; all were told so by this one */
        uint32_t said_in;     /* instance of the last CONFIRM for all */
        uint32_t size, queued, at; /* of the one CONFIRM that waits; at: of its entry in the queue */
        uint8_t bytes[ZJ_SMALL_BYTES];
    } confirm;

    struct {                  /* poll.c */
        uint64_t seen, at, wait; /* seen: progress at the last step */
        uint64_t own;         /* how much of the progress own PDUs have made by being sent */
        uint64_t others, since; /* the rest at the last step; since when it has been so, or when a poll was last sent */
    } poll;

    struct {                  /* beat.c */
        uint64_t interval, due, heard; /* heard: CONFIRMs, as last looked at */
        uint64_t pause, ran, pauses;   /* ran: when this station last looked */
        uint64_t late, late_at, lates;
        uint64_t planned;              /* zj_silence_due as it was then */
    } beat;
    struct { uint64_t members, since, quiet, lag_at; } watch; /* zj_watch */

    struct {                  /* zj_report_progress */
        int on, bye;
        uint64_t seen;        /* progress when zj_proposal last had nothing */
    } report;

    struct {                  /* txq.c */
        struct tx queue[ZJ_TXQ];
        uint32_t head, tail;
        uint32_t shown[ZJ_TXQ], shown_count;
        uint8_t small[ZJ_SMALLS][ZJ_SMALL_BYTES];
        uint32_t small_size[ZJ_SMALLS], small_head, small_tail;
        uint64_t last, last_word; /* when a frame of this station's went to all, and to anybody */
    } txq;

    struct {                  /* control.c */
        struct ctl queue[ZJ_CTL];
        uint32_t head, tail;
        uint64_t rivals[2][ZJW_STATIONS_MAX]; /* when one with another n was last shown: a PDU of an instance, an OPEN */
    } mailbox;

    struct {                  /* member.c */
        struct vote queue[ZJ_VOTES];
        uint32_t head, tail;
        int stalled;          /* a stream does not accept a vote because the queue is full */
    } votes;

    struct {                  /* of a link (pair.c); all 0 when it opens */
        uint32_t polls;       /* in a row that nothing has answered */
        uint64_t falls_back, called; /* until when frames go to the group address: nothing answers; the other end asks there; 0: no */
        uint8_t heard;
    } pair;

    uint64_t rng;
    uint64_t memory;
    struct zj_counters count;
};

/* Where a PDU's payload begins. */
static inline uint32_t payload_start(const zj_core *c, uint32_t flags)
{
    return ZJW_SIZEOF_HEADER + (flags & ZJW_FLAG_PACK ? 8u : 4u) * c->n;
}
static inline int faulty(const zj_core *c, uint64_t f) { return (c->cfg.faults & f) != 0; }
static inline struct meta *meta_of(const zj_core *c, const struct stream *s, uint64_t seq) { return &s->meta[seq & c->mask]; }
/* Where a PDU of this size is kept: small ones would touch many times their pages if each had room for the largest. */
static inline uint8_t *slot_for(const zj_core *c, const struct stream *s, uint64_t seq, uint32_t size)
{
    const size_t at = (size_t)(seq & c->mask);
    return size <= c->short_bytes ? s->brief + at * c->short_bytes : s->data + at * c->slot_bytes;
}
/* Of one that is kept. */
static inline uint8_t *slot_of(const zj_core *c, const struct stream *s, uint64_t seq) { return slot_for(c, s, seq, meta_of(c, s, seq)->size); }
static inline int is_member(const zj_core *c, uint32_t h) { return (int)(c->members >> h & 1); }
static inline int is_vote(uint32_t kind) { return kind == ZJW_KIND_STOP || kind == ZJW_KIND_STOP_ACK || kind == ZJW_KIND_RCV_ACK; }
static inline int is_sequenced(uint32_t kind) { return kind == ZJW_KIND_DATA || is_vote(kind); }
/* The fragment that message_read has just read is still to be read. */
static inline void message_unread(struct cursor *cur, const struct zj_message *out)
{
    cur->at -= ZJW_SIZEOF_MESSAGE + ZJW_SIZEOF_FRAGMENT + out->size;
    cur->index--;
}

/* To the first message of a kept PDU; a vote has none. */
static inline void cursor_set(const zj_core *c, struct cursor *cur, uint32_t h, uint64_t seq)
{
    const struct stream *s = &c->st[h];
    const struct meta *m = meta_of(c, s, seq);
    uint32_t at = payload_start(c, m->flags);
    cur->pdu = slot_of(c, s, seq);
    cur->src = h;
    cur->at = at;
    cur->end = m->kind == ZJW_KIND_DATA ? m->size : at;
    cur->index = 0;
    cur->inside = 1;
}

/* core.c */
uint64_t zj_random(zj_core *c, uint64_t below); /* 0 <= r < below; 0 for 0 */
void *core_reserve(zj_core *c, uint64_t bytes); /* zeroed, counted as reserved; NULL: no memory */
/* control.c */
void control_push(zj_core *c, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop);
void control_push_limited(zj_core *c, uint64_t now, uint64_t *last, const struct pdu *p, const uint8_t *mac, uint32_t drop);
int report_new(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t places, uint32_t drop);
int report_foreign(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t drop);
void report_rival(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac);
/* pdu.c */
/* pair: numbers of the two stations of a link, NULL or 0, 0: no link. p->src and p->target then count within the pair. */
int pdu_read(const uint8_t *bytes, uint32_t size, uint32_t cluster, uint32_t stations, const uint32_t pair[2], int check,
             struct pdu *p);
/* A CONFIRM to its target alone: the index of that one + 1; 0: for all. */
static inline uint32_t pdu_direct(const struct pdu *p)
{
    return p->kind == ZJW_KIND_CONFIRM && !(p->flags & (ZJW_FLAG_POLL | ZJW_FLAG_PAIR)) ? p->target : 0;
}
/* What stands in a header for a station's place (index + 1, or 0 for none), and the reverse. On a link the target is always the
 * other station: at the group address frames of other links come, too. */
static inline uint8_t wire_number(const zj_core *c, uint32_t place)
{
    return (uint8_t)(c->cfg.pair[1] ? c->cfg.pair[place ? place - 1 : 1 - c->self] : place);
}
static inline uint32_t wire_place(const zj_core *c, uint32_t number)
{
    return c->cfg.pair[1] ? 1u + (number == c->cfg.pair[1]) : number;
}
/* The header of an own PDU; returns the free buffers that it reports. */
uint32_t pdu_header(zj_core *c, uint8_t *out, uint32_t kind, uint32_t flags, uint64_t seq, uint64_t clock, uint32_t payload);
/* al.c */
void al_start(zj_core *c, uint32_t h, uint64_t v); /* row h: everyone is at v */
void al_minima(zj_core *c);   /* again, after the members have changed or entries were set */
void al_spoke(zj_core *c, uint32_t j); /* it speaks in a later instance: it knows of the end of every stream that ended before */
void al_raise(zj_core *c, uint32_t h, uint32_t j, uint64_t v);
void pack_raise(zj_core *c, uint32_t h, uint32_t j, uint64_t v);
int al_merge(zj_core *c, const struct pdu *p, uint64_t now); /* 0 or a drop reason; nothing merged then */
void al_write(const zj_core *c, uint8_t *ack, uint8_t *pack); /* write A and P */
void al_say(zj_core *c, uint8_t *ack, uint8_t *pack); /* likewise, as broadcast now, and remember that it was */
/* C7: what the source of a CONFIRM of this very instance says for all members in P. */
void al_believe(zj_core *c, const struct pdu *p, uint64_t now);
/* stream.c */
void stream_start(zj_core *c, uint32_t h, uint64_t now, uint64_t seq, uint64_t clock);
void stream_advance(zj_core *c, uint32_t h); /* accept what is there */
int stream_take(zj_core *c, const struct pdu *p, uint64_t now);
void stream_notice(zj_core *c, uint32_t h, uint64_t top, uint64_t now);
void stream_promise(zj_core *c, uint32_t h);
void stream_free(zj_core *c);
uint32_t free_slots(const zj_core *c);
uint32_t kept_for_votes(const zj_core *c); /* own buffers too */
/* nak.c */
void nak_take(zj_core *c, const struct pdu *p, uint64_t now);
/* assembly.c */
enum { PART, WHOLE, STARVED };
/* A fragment, as message_read gave it, goes to its source's assembly (`keep` 0: only counted). WHOLE: *out is the whole message, valid
 * until the next fragment of that source. STARVED: nothing was taken, the same fragment must come again. */
int assemble(zj_core *c, struct assembly *a, const uint8_t *f, struct zj_message *out, int keep);
int assembly_starves(zj_core *c); /* tries again */
void assembly_forget(zj_core *c, struct assembly *a); /* the rest of that message will not come */
void assembly_tidy(zj_core *c, uint64_t now);
void assembly_end(zj_core *c, uint32_t h);
/* member.c */
void member_set(zj_core *c, uint64_t members);
int vote_push(zj_core *c, uint32_t h, uint64_t seq, const struct meta *m); /* 0: the queue is full */
void vote_pin(zj_core *c, uint32_t h, uint64_t seq, uint32_t instance);
/* send.c */
void send_reset(zj_core *c);
void send_window(zj_core *c);
void send_seal(zj_core *c);
void send_pdu(zj_core *c, uint32_t kind, uint32_t flags, uint32_t payload_at, uint32_t size); /* what lies in the next own slot */
int send_can_seal(const zj_core *c);
/* confirm.c */
void take_unsequenced(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, int later);
int confirm_acks_pending(const zj_core *c); /* 1: level ack is wanted of a PDU that has not reached it */
void confirm_step(zj_core *c, uint64_t now, uint32_t drained); /* queue the CONFIRM that is owed, or set its deadline */
void confirm_clear(zj_core *c); /* nothing is owed */
void confirm_doubt(zj_core *c, uint64_t now); /* a POLL is sent or heard */
uint32_t confirm_write(zj_core *c, uint8_t *b, uint32_t flags, uint32_t target); /* a CONFIRM into b; its size */
void confirm_build(zj_core *c, uint64_t now, uint32_t flags, uint32_t target); /* target: station to answer a POLL, or 0 */
/* The CONFIRM in c->confirm.bytes goes to one station alone: its index + 1; 0: to all. */
static inline uint32_t confirm_waits_direct(const zj_core *c)
{
    return c->confirm.bytes[ZJW_HEADER_FLAGS] & (ZJW_FLAG_POLL | ZJW_FLAG_PAIR) ? 0 : c->confirm.bytes[ZJW_HEADER_TARGET];
}
/* pair.c */
void pair_open(zj_core *c);
void pair_polled(zj_core *c, uint64_t now);
void pair_step(zj_core *c, uint64_t now); /* after the poll timer */
/* poll.c */
void poll_step(zj_core *c, uint64_t now);
/* txq.c */
void txq_reset(zj_core *c);
int txq_full(const zj_core *c);
void tx_confirm(zj_core *c); /* queue c->confirm.bytes */
void tx_slot(zj_core *c, uint32_t h, uint64_t seq, int again);
uint8_t *small_frame(zj_core *c);
void small_send(zj_core *c, uint32_t size, int again);

#include "medium.h"

#endif
