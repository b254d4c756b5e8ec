/* zenjun core: the per-frame and per-message path of one cluster at one station.
 *
 * Sans-I/O: no system call, no clock, no callback, and no allocation after zj_create, but for messages that do not fit one PDU: they are
 * put together in memory that grows with what comes (assembly.c). Where the system refuses it nothing is lost: the order waits at that
 * message (zj_next returns 0), and each zj_step tries again. Time comes in as monotonic nanoseconds that never decrease, randomness as a
 * seed. One thread owns a handle.
 *
 * Stations are indices 0..n-1 here and numbers 1..n on the wire. Sequence numbers are 64 bits inside and 32 on the wire.
 *
 * A turn of the driver:   zj_rx()* per received PDU · zj_offer()* per message to send · zj_step() once ·
 *                         zj_next()* for what became deliverable · zj_tx()/zj_tx_done() until empty · zj_control()*.
 *
 * Buffers: the core copies what it is given before it returns. Pointers it hands out are valid until the next call that
 * is not the same function's; of zj_next, until its next call.
 */
#ifndef ZJ_H
#define ZJ_H

#include <stdint.h>

#define ZJ_API_VERSION 15u

typedef struct zj_core zj_core;

/* Levels of receipt, in the order in which a message reaches them. */
enum zj_level { ZJ_ORDERED = 0, ZJ_PREACK = 1, ZJ_ACK = 2 };
#define ZJ_LEVELS 3

/* How the segment orders frames (core/medium.h and core/order/order.h have all that differs). */
enum zj_medium {
    ZJ_SWITCHED = 0, /* any order: order by clock, selective repetition */
    ZJ_BUS = 1       /* one channel: all stations that hear two frames hear them in one order, own ones too: order of arrival, reset */
};

/* Why a received frame was dropped. Names for people: zj_drop_name(). */
enum zj_drop {
    ZJ_DROP_NONE = 0,
    ZJ_DROP_SHORT,         /* shorter than header and vectors */
    ZJ_DROP_CLUSTER,       /* another cluster's */
    ZJ_DROP_VERSION,       /* another protocol version */
    ZJ_DROP_KIND,          /* a kind we do not know; of a link (PAIR) where none is expected, or the reverse */
    ZJ_DROP_STATIONS,      /* another number of stations */
    ZJ_DROP_SOURCE,        /* source or target out of range */
    ZJ_DROP_OWN,           /* bears our own station number */
    ZJ_DROP_LENGTH,        /* its length goes beyond the frame, or it is larger than a buffer */
    ZJ_DROP_CHECK,         /* checksum */
    ZJ_DROP_PAYLOAD,       /* counts, offsets or sizes inside do not fit */
    ZJ_DROP_CLOSED,        /* we are in no instance yet */
    ZJ_DROP_INSTANCE,      /* other instance */
    ZJ_DROP_INCARNATION,   /* other incarnation of that station */
    ZJ_DROP_ACK,           /* acknowledges what cannot have been sent */
    ZJ_DROP_WINDOW,        /* beyond the receive window */
    ZJ_DROP_CLOCK,         /* clock out of range or not increasing in its stream */
    ZJ_DROP_CONTROL_FULL,  /* control queue full */
    ZJ_DROP_MEMBER,        /* its source is no member of the instance */
    ZJ_DROP_REMOVED,       /* its source is being removed, and it stands at or beyond the limit */
    ZJ_DROP_EPOCH,         /* bus: of another epoch than the present one */
    ZJ_DROP_RESET,         /* bus: shows that something was lost, or came while the order is being reset */
    ZJ_DROP_REPEATED,      /* OPEN, RCV or RCV_ACK that the engine was shown a moment ago, byte for byte */
    ZJ_DROP_COUNT
};

/* What zj_step() reports, and wants. */
enum zj_status {
    ZJ_S_TX = 1,        /* frames to send: drain zj_tx() */
    ZJ_S_DELIVER = 2,   /* zj_next() has something */
    ZJ_S_RELEASE = 4,   /* a level's position moved: zj_positions() */
    ZJ_S_CONTROL = 8,   /* zj_control() or zj_proposal() has something for the engine, or what zj_report_progress() asked for has moved,
                         * or a member has said BYE, or the reset of a bus has come further (zj_phase) */
    ZJ_S_PENDING = 16,  /* something here is not stable yet: news will come soon or the poll timer will fire */
    ZJ_S_ROOM = 32,     /* the send window has room */
    ZJ_S_FENCED = 64    /* order diverged: nothing is delivered any more (zj_fence()) */
};

/* Deliberate defects for the tests of the checkers, never set by the daemon: constructor argument, not a build option. */
enum zj_fault {
    ZJ_FAULT_ARRIVAL_ORDER = 1 << 0, /* deliver in order of arrival, not of (clock, src) */
    ZJ_FAULT_SKIP_GAP = 1 << 1,      /* accept a PDU after a gap: loses what is missing */
    ZJ_FAULT_DUPLICATE = 1 << 2,     /* deliver a PDU again when its copy comes */
    ZJ_FAULT_EARLY_PREACK = 1 << 3,  /* pre-acknowledge on own receipt */
    ZJ_FAULT_EARLY_ACK = 1 << 4,     /* acknowledge with pre-acknowledgement */
    ZJ_FAULT_NO_CHECK = 1 << 5,      /* take frames with a wrong checksum */
    ZJ_FAULT_NO_WAIT = 1 << 6,       /* deliver without waiting for every station's clock */
    ZJ_FAULT_DEAF_NAK = 1 << 7,      /* never answer a NAK */
    ZJ_FAULT_CHATTER = 1 << 8,       /* confirm every CONFIRM: never silent */
    ZJ_FAULT_FREE_EARLY = 1 << 9,    /* forget PDUs before everybody has them */
    ZJ_FAULT_FLOOD = 1 << 10,        /* ignore the flow condition */
    ZJ_FAULT_EARLY_PROMISE = 1 << 11,/* count a clock promise before the PDUs it covers have come */
    ZJ_FAULT_SWAP = 1 << 12,         /* deliver two neighbours the wrong way round once: the digest must tell */
    ZJ_FAULT_NO_FLUSH = 1 << 13,     /* begin the next instance without what others have released of the last one */
    ZJ_FAULT_NO_CLOSE = 1 << 14,     /* rule 1 broken: go on accepting from a station whose removal was proposed */
    ZJ_FAULT_FUTURE = 1 << 15,       /* rule 4a broken: deliver PDUs of a later instance than the own */
    ZJ_FAULT_EAGER_VIEW = 1 << 16,   /* rule 4 broken: deliver a view event at once, not at its place */
    ZJ_FAULT_OLD_ACKS = 1 << 17,     /* rule 5a broken: ack entries count whatever incarnation they speak of */
    ZJ_FAULT_NO_WAIT_JOINER = 1 << 18, /* rule 5 broken: a joiner is not in the wait set */
    ZJ_FAULT_NO_PIN = 1 << 19,       /* forget PDUs that a joiner will need */
    /* Bus medium: rules of the TO paper as they are printed, and shortcuts it suggests. */
    ZJ_FAULT_STRICT_ACCEPT = 1 << 20,/* acceptance condition (2) with < instead of <= */
    ZJ_FAULT_AL_LAST = 1 << 21,      /* after a reset expect the last number in the log, not the one after it */
    ZJ_FAULT_KEEP_LATER = 1 << 22,   /* reset: take only the lost PDU out of the log, not those that its source sent after it */
    ZJ_FAULT_KEEP_LOST = 1 << 23,    /* reset: take only those after the lost PDU out of the log */
    ZJ_FAULT_RESET_ONCE = 1 << 24,   /* reset: everybody speaks once (reset.py) */
    ZJ_FAULT_DELIVER_PREACK = 1 << 25, /* deliver at level preack */
    ZJ_FAULT_BLIND_REPEAT = 1 << 26, /* send an own PDU that did not come back again, without a reset */
    /* What is released, and claimed when an instance ends (switched medium). */
    ZJ_FAULT_EARLY_REMOVAL = 1 << 27,/* rule 4 broken: what stands before a removal's event is released when all but the removed hold it */
    ZJ_FAULT_EAGER_JOINER = 1 << 28, /* rule 5 broken: a joiner releases before all members share its view */
    ZJ_FAULT_LATE_LEVELS = 1 << 29,  /* levels go on although the instance has ended here */
    /* What a CONFIRM says for all (switched medium). */
    ZJ_FAULT_EARLY_BOUND = 1 << 30,  /* rule C8 broken: T counts before the PDUs that it stands behind have come */
    ZJ_FAULT_OLD_WORD = 0x80000000, /* rule C7 broken: what was said for all members of another instance counts for these */
    /* What attackers send again: tests/attacks. */
    ZJ_FAULT_OLD_CLOCK = 0x100000000, /* a PDU ahead of its place is held whatever its clock, and counts when its turn has come */
    ZJ_FAULT_CROWDED = 0x200000000    /* an opening is reported each time it comes, as long as the queue has room */
};

struct zj_config {
    uint32_t size;              /* sizeof(struct zj_config), checked */
    uint32_t stations;          /* n, 1..64 */
    uint32_t self;              /* own index, 0..n-1 */
    uint32_t cluster;           /* wire cluster id */
    uint32_t window;            /* W: own PDUs in flight, 1..slots/2 */
    uint32_t slots;             /* receive and retransmission buffers per stream, power of two, 4..65536 */
    uint32_t frame_max;         /* bytes of the largest PDU a buffer holds, 512..65535 */
    uint32_t message_max;       /* bytes of the largest message, <= 16 MiB */
    uint32_t first_seq;         /* number of the first PDU of every stream; 0 but for wrap tests; equal at all stations */
    uint64_t faults;            /* enum zj_fault */
    uint64_t seed;              /* for jitter */
    uint64_t confirm_delay_ns;  /* longest time a confirmation waits for a ring that does not drain */
    uint64_t nak_delay_ns;      /* a gap is re-ordering for so long */
    uint64_t nak_retry_ns;      /* first wait for an answer to a NAK; doubles after nak_even more, with jitter */
    uint64_t nak_retry_max_ns;
    uint64_t poll_delay_ns;     /* no progress for so long while something is pending: POLL; doubles */
    uint64_t poll_delay_max_ns;
    uint64_t retransmit_gap_ns; /* the same PDU is not retransmitted twice within */
    uint32_t medium;            /* enum zj_medium */
    uint32_t answer_each;       /* bus, to measure the paper's worst case: every reception is answered at once, by a CONFIRM of its
                                 * own; answers to answers are not */
    uint64_t own_timeout_ns;    /* bus: own PDUs that have not come back for so long are lost */
    uint32_t pair[2];           /* a link: numbers on the wire of its two stations, ascending; frames have flag PAIR. 0, 0: none */
    uint32_t direct;            /* from so many members on who owes a confirmation to one station only sends it to that one (rules
                                 * C6 to C8); switched medium; 0: never */
    uint32_t nak_even;          /* so many waits after the first one are as long: answers are lost, too, where frames are */
    uint32_t tagged;            /* 1: what is given to zj_rx has come under a right tag: its checksum is not looked at */
    uint32_t poll_own;          /* own PDUs put a poll off for so many poll_delay_ns at most; 0: for as long as they go on */
};

/* How the messages of a process group are ordered on delivery (wire.Ordering). */
enum zj_ordering { ZJ_TOTAL = 0, ZJ_FIFO = 1 };
#define ZJ_ORDERINGS 2

/* How zj_next() hands a message out. */
enum zj_stage {
    ZJ_DELIVERED = 0, /* at its place in the total order: its delivery */
    ZJ_ACCEPTED = 1,  /* as soon as its PDU has been accepted: its delivery. `position` has no meaning yet */
    ZJ_PLACED = 2     /* at its place, after ZJ_ACCEPTED: without data, so that its levels can be counted */
};

/* What zj_next() delivers:
 * - a message of ZJ_TOTAL once, with stage ZJ_DELIVERED;
 * - a message of another ordering twice, with stage ZJ_ACCEPTED and later with ZJ_PLACED;
 * - type ZJW_TYPE_VIEW: a view event at its place; data is a VIEW layout and n incarnations, src is own index, index 0xffff,
 *   clock the event's (it stands right after the PDU with that clock and src view_src), position that of the last PDU before
 *   it, or UINT64_MAX if there is none (then it counts as reached at every level). */
struct zj_message {
    const uint8_t *data;
    uint64_t clock;             /* (clock, src, index) is the place in the total order; bus: instance << 32 + place in the instance */
    uint64_t position;          /* of its PDU in this instance, from 0; compare with zj_positions() */
    uint32_t size;
    uint32_t group;
    uint16_t client;
    uint16_t index;             /* of the message within its PDU */
    uint8_t src;                /* index */
    uint8_t type;               /* ZJW_TYPE_* */
    uint8_t stage;              /* enum zj_stage */
    uint8_t view_src;           /* type VIEW: see above */
};

struct zj_offer {               /* a message to send; fill all, `done` = 0, and offer it until it is done */
    const uint8_t *data;
    uint32_t size;
    uint32_t done;              /* bytes taken so far */
    uint32_t group;
    uint16_t client;
    uint8_t type;               /* ZJW_TYPE_* */
    uint8_t need_ack;           /* 1: some program waits for level ack */
    uint8_t ordering;           /* enum zj_ordering */
    uint8_t pad[7];
};

/* again: 1: it has been asked for after it had been sent again already, and is larger than base (zj_limit_size). */
struct zj_frame { const uint8_t *data; uint32_t size, kind, again; };

struct zj_counters {            /* since zj_create; frames unless said otherwise */
    uint64_t rx_frames, rx_bytes, rx_data, rx_confirm, rx_nak, rx_duplicate, rx_repaired, rx_out_of_order;
    uint64_t tx_data, tx_bytes, tx_confirm, tx_poll, tx_nak, tx_retransmit, tx_relay, tx_heartbeat;
    uint64_t tx_direct;                          /* of tx_confirm, those to one station alone */
    uint64_t messages_sent, message_bytes_sent, messages_delivered, message_bytes_delivered, pdus_delivered;
    uint64_t naks_suppressed, retransmits_suppressed, lost_noticed, polls_answered, window_closed, digests_compared;
    uint64_t rx_own, tx_reset, resets, pdus_cut; /* bus: own PDUs that came back and were accepted; RST and RSTC; resets begun here
                                                  * or elsewhere; PDUs taken out of the log by them */
    uint64_t memory_refused;                     /* how often the order had to wait because the system had no memory for a message */
    uint64_t drops[ZJ_DROP_COUNT];
};

struct zj_peer {                /* one station as seen here; al[h] and so on: see zj_matrix() */
    uint64_t heard_ns;          /* last valid PDU of this instance directly from it, 0: never */
    uint64_t req;               /* next expected from it */
    uint64_t top;               /* one past the highest known to exist */
    uint64_t base;              /* lowest still kept */
    uint64_t min_al;            /* everyone has every PDU of it below */
    uint64_t acked;             /* everyone knows that of every PDU below */
    uint64_t ordered;           /* next of its PDUs to be delivered */
    uint64_t clock;             /* known to have passed */
    uint64_t ack_moved_ns;      /* when its acks last moved */
    uint32_t incarnation;
    uint32_t free_buffers;
    uint32_t frame_max;
    uint32_t gaps;              /* PDUs missing between req and top */
    uint8_t mac[6];
    uint8_t left;               /* 1: said BYE */
    uint8_t fenced;             /* 1: says it is fenced */
    uint8_t member;             /* 1: of the present instance */
    uint8_t closing;            /* 1: zj_limit is in force */
    uint8_t pad[6];
    uint64_t limit;             /* closing: accepted from it is only what stands below */
    uint64_t state, trans;      /* bitmaps of its last CONFIRM, of whichever instance */
    uint32_t instance, view;    /* of its last CONFIRM; 0: none heard */
};

/* ---- life ---- */
/* 0, or a negative number: -1 bad argument, -2 no memory. */
int zj_create(const struct zj_config *config, zj_core **out);
void zj_destroy(zj_core *c);
uint64_t zj_memory(const zj_core *c);                    /* bytes reserved at creation */
/* Bytes of memory that messages of several PDUs are put together in now: less than twice what has come of them and 16 KiB, each; a
 * second or two after the last one, none. */
uint64_t zj_assembling(const zj_core *c);
/* 1 while delivery, in an instance or of the rest of one (zj_flush), waits because the system refuses memory for such a message. */
int zj_starves(const zj_core *c);
/* For tests: 1, from now on as if the system refused it; 0, no more. */
void zj_refuse_memory(zj_core *c, uint32_t yes);

/* Enter an instance by the OPEN agreement: every stream starts at first_seq, the clock at instance << 32. incarnations[h] 0:
 * station h is no member. view: the instance's view hash. frame_max: largest PDU all members take. */
int zj_open(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, const uint32_t *incarnations, uint32_t frame_max);

/* Enter a living instance as a joiner (rule 5). start[h].role: 0 no member; 1 voter: its stream is accepted from just after seq
 * (wire number of its vote), whose clock it is known to have passed; 2 joiner, this station among them: its stream starts at
 * first_seq. Delivered is only what stands after the view event at (place_clock, place_src), which is the first thing zj_next
 * hands out. */
struct zj_start { uint64_t clock; uint32_t seq, incarnation, role; uint32_t pad; };
int zj_join(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, const struct zj_start *start, uint64_t place_clock,
            uint32_t place_src, uint32_t frame_max);

/* Leave it: nothing more is accepted, and nothing delivered until zj_flush or the next zj_open or zj_join. What was accepted is
 * kept, and the position of level preack is final. */
void zj_close(zj_core *c);
int zj_is_open(const zj_core *c);
/* How far level preack is, as zj_close will leave it if it is called next: view hash of the last view event that stands before
 * it, and how many PDUs after that event. */
void zj_reached(zj_core *c, uint32_t *view, uint64_t *count);
/* After zj_close: some station that goes on released the first `count` PDUs after the event of `view` (a hash) at preack, so
 * every member has accepted all of them. zj_next delivers those that it has not, and the view events before them, without
 * waiting for clocks, and zj_positions counts them as reached at all levels. A hash this core does not know: nothing is
 * flushed. Ends with zj_open or zj_join. Harmless while open, and when fenced (nothing is delivered then). */
void zj_flush(zj_core *c, uint32_t view, uint64_t count);
int zj_flushing(const zj_core *c);                       /* between zj_flush and zj_open or zj_join */
/* 1: zj_next has delivered everything up to there, and zj_positions has told so; also if nothing is being flushed. */
int zj_flushed(const zj_core *c);
/* Own interface can carry PDUs of so many bytes from now on (<= frame_max of the configuration; larger is cut). */
void zj_set_frame_max(zj_core *c, uint32_t frame_max);
/* PDUs built from now on are at most so large, whatever the stations say that they can receive; kept from instance to instance. base:
 * what larger ones may be lost for, see zj_asked_again. */
void zj_limit_size(zj_core *c, uint32_t limit, uint32_t base);
uint32_t zj_pdu_max(const zj_core *c);                   /* bytes of the largest PDU that is built now; none before the first instance */
/* How often a PDU above base was asked for that had been sent again before: it may be too large for something on the way. */
uint32_t zj_asked_again(const zj_core *c);
/* 1: at least half of what may be in flight is: this station sends as fast as the others confirm. */
int zj_pressed(const zj_core *c);

/* ---- per frame ---- */
/* One PDU, without its Ethernet header; trailing padding is ignored. Returns enum zj_drop (ZJ_DROP_NONE: processed). */
int zj_rx(zj_core *c, uint64_t now, const uint8_t *pdu, uint32_t size, const uint8_t *mac);
/* After a batch. drained: 1 if the receive ring is empty. Returns enum zj_status bits. */
uint32_t zj_step(zj_core *c, uint64_t now, uint32_t drained);
/* Up to max frames to send, in order, not taken off; how many. zj_tx_done(k) takes the first k of those last shown off. */
uint32_t zj_tx(zj_core *c, struct zj_frame *out, uint32_t max);
void zj_tx_done(zj_core *c, uint64_t now, uint32_t count);

/* ---- per message ---- */
/* 1: taken whole (m->done == m->size); 0: no room now, offer again after a later zj_step; negative: cannot ever be sent (too
 * large). */
int zj_offer(zj_core *c, struct zj_offer *m);
/* 1: *out is the next message in the total order (level ordered); 0: none. */
int zj_next(zj_core *c, struct zj_message *out);
/* Positions (number of PDUs of the order) that have reached each level. */
void zj_positions(zj_core *c, uint64_t out[ZJ_LEVELS]);
/* Somebody here waits for level ack of everything (not only of what was offered with need_ack): the others are told by CONFIRM. */
void zj_want_ack(zj_core *c, uint32_t yes);
/* 1 while own messages have not all reached level preack. */
int zj_unstable(const zj_core *c);

/* ---- membership (dynamic instance groups; the engine decides, the core carries out) ---- */
/* A vote accepted from another station, in its stream's order, oldest first; 0: none. While one waits nothing is delivered.
 * data: the whole PDU. seq as in zj_peer.req (64 bits; comparable with zj_limit and zj_all_have). */
struct zj_vote { const uint8_t *data; uint64_t seq, clock; uint32_t size, instance; uint8_t src, kind, pad[6]; };
int zj_proposal(zj_core *c, struct zj_vote *out);
/* Put an own vote (STOP, STOP_ACK, RCV_ACK with this payload) into the own stream now, whatever the window says. 0, or -1: no
 * buffer free, try again after a later zj_step. A message of which a part has been taken is sent again from its beginning after
 * a RCV_ACK. */
int zj_propose(zj_core *c, uint64_t now, uint32_t kind, const uint8_t *payload, uint32_t size, uint64_t *seq, uint64_t *clock);
/* A PDU of station h's stream that is still kept here, valid until the next call; NULL: it is not. */
const uint8_t *zj_kept(const zj_core *c, uint32_t h, uint64_t seq, uint32_t *size);
/* Rule 1. From now on nothing at or beyond limit is accepted from station h, and none of its clock promises counts. A call with
 * a larger limit (equalisation) asks the others for what is missing below it; it is never less than what has been accepted.
 * UINT64_MAX: withdrawn. */
void zj_limit(zj_core *c, uint64_t now, uint32_t h, uint64_t limit);
/* Rule 5. Station h is in the wait set although no member: it is known to have passed this clock, and PDUs it could not take
 * (frame_max; 0: as all others) are not built any more. UINT64_MAX: not any more. */
void zj_wait_for(zj_core *c, uint32_t h, uint64_t clock, uint32_t frame_max);
/* 1: every station of the set is known (by acks) to have the PDU seqs[k] of every station k of the set. */
int zj_all_have(const zj_core *c, uint64_t set, const uint64_t *seqs);
/* 1: zj_step reports ZJ_S_CONTROL whenever anything has been accepted or acknowledged since zj_proposal last said that there is
 * nothing. */
void zj_report_progress(zj_core *c, uint32_t yes);
/* Carry out a decided proposal: the instance becomes `instance` (own + 1) with these members. Removed: their streams end at
 * their limits. Joined: their streams start again; they count as having everything up to vote_seq[k] of each voter k. The view
 * event is queued for its place, right after (place_clock, place_src). 0; 1: not yet, what a joiner sent in its former life is
 * not all delivered: call again later, delivery must go on meanwhile. Also after zj_close, before zj_flush: then only the event
 * is queued and PDUs of the new instance may be delivered. Ends all limits of stations removed and all zj_wait_for of stations
 * joined, and every pin. */
struct zj_commit {
    uint32_t instance, view;
    uint64_t members, joined;   /* bitmaps, bit h: index h */
    uint64_t place_clock;
    uint32_t place_src, frame_max; /* frame_max: a joiner is held to take so much until it is heard; 0: what all take now */
    uint32_t incarnations[64];  /* of all members */
    uint64_t vote_seq[64];      /* of the voters */
};
/* Negative: does not follow the present instance, or makes no sense. */
int zj_commit(zj_core *c, uint64_t now, const struct zj_commit *change);
/* What CONFIRMs say from now on. */
void zj_set_state(zj_core *c, uint64_t state, uint64_t trans);
/* 1: no quorum: no data is sent (offers are refused, nothing gets a number), confirmations and votes go on. */
void zj_block(zj_core *c, uint32_t yes);
/* Queue a CONFIRM with POLL that asks this station to answer: is it there? */
void zj_probe(zj_core *c, uint64_t now, uint32_t h);

/* ---- reset (bus medium; proto/reset.py decides, the core carries out) ---- */
/* RUN: all is well. LOST: something was lost, or another epoch was heard of; nothing is accepted until the engine has acted.
 * RESET: vectors are being compared. AGREED: all were equal; a PDU of the epoch that is no RST or RSTC ends the reset (R5). */
enum zj_phase { ZJ_P_RUN = 0, ZJ_P_LOST = 1, ZJ_P_RESET = 2, ZJ_P_AGREED = 3 };
uint32_t zj_phase(zj_core *c, uint32_t *epoch);
/* What this station expects from each, as on the wire. */
void zj_vector(const zj_core *c, uint32_t *out);
/* R1, R2: stop, this is the epoch now. Nothing that waits to be sent is. */
void zj_reset_enter(zj_core *c, uint32_t epoch);
/* R3: take out of the log, of each source h, what stands at or beyond vector[h]. 1: something was, or the own vector shrank. What
 * has reached level ack is never taken out: if the vector wants it, the order has diverged (zj_fence). */
int zj_reset_cut(zj_core *c, const uint32_t *vector, uint32_t station);
void zj_reset_agree(zj_core *c);
/* R5: everybody holds the same log. It is acknowledged as a whole, and own PDUs that are not in it are sent again. */
void zj_reset_done(zj_core *c);
/* Queue a RST or RSTC with this vector as A. 0, or -1: no room now. */
int zj_reset_say(zj_core *c, uint32_t kind, uint32_t epoch, const uint32_t *vector);
/* How many PDUs of the log, after what zj_reached tells, some member may have delivered, as far as this station can know. Final if
 * zj_close comes next. If the stations that continue deliver as far as all of them say, they have whatever any station has delivered. */
uint64_t zj_secured(zj_core *c);
/* The receipt log, by positions: delivered, acknowledged (the paper's ARL ends here), pre-acknowledged (PPL), accepted (RPL). */
void zj_receipts(const zj_core *c, uint64_t out[4]);
/* Entry of the log at a position that is at most a log's length before `accepted`: its source and number. 0: there is none. */
int zj_entry(const zj_core *c, uint64_t position, uint32_t *src, uint64_t *seq);

/* ---- for the engine ---- */
/* Oldest control PDU with the MAC it came from, size 0: none. OPEN and RCV, each; a CONFIRM of a later instance, one with our
 * instance number and another view hash, and anything of no member, of another incarnation or with our own id, seldom; of a
 * core that is not open everything, RCV_ACK each and the rest seldom. */
struct zj_control { const uint8_t *data; uint32_t size; uint32_t drop; uint8_t mac[6]; uint8_t pad[2]; };
int zj_control(zj_core *c, struct zj_control *out);
uint64_t zj_nak_due(const zj_core *c);                   /* ns, or UINT64_MAX */
uint64_t zj_poll_due(const zj_core *c);                  /* likewise; bus: also the own-PDU time-out */
uint64_t zj_confirm_due(const zj_core *c);
uint32_t zj_nak(zj_core *c, uint64_t now);               /* queue NAKs that are due; how many */
/* Frames come over several links, each in its own order. What is missing of station h below `passed` (a number as on the wire) is
 * lost: later numbers have come on every link. The rest may still be on its way for wait_ns longer than on one link. */
void zj_passed(zj_core *c, uint32_t h, uint32_t passed, uint64_t wait_ns);
uint32_t zj_poll(zj_core *c, uint64_t now);              /* queue the POLL that is due; 1 if one was */
void zj_heartbeat(zj_core *c, uint64_t now, uint32_t flags); /* queue a CONFIRM with these flags */
/* Heartbeats and silence (beat.c). interval: between two heartbeats. A station that has not looked for more than pause_ns counts a
 * pause; one that serves a heartbeat, or looks at the silence of the others, late_ns or more after it was due counts that. */
void zj_beats(zj_core *c, uint64_t interval_ns, uint64_t pause_ns, uint64_t late_ns);
void zj_beats_begin(zj_core *c, uint64_t now);           /* the first is due an interval from now */
void zj_beats_end(zj_core *c);
void zj_tick(zj_core *c, uint64_t now);                  /* this station runs now; zj_beat does it as well */
/* Once what has come has been taken: queue the heartbeat that is due, or with which this station joins another's; 1 if one was. */
uint32_t zj_beat(zj_core *c, uint64_t now);
uint64_t zj_beat_due(const zj_core *c);                  /* ns, or UINT64_MAX */
/* What zj_silence_due looks at: members as bits, heard at the earliest at since; quiet_ns 0: at none. From lag_at on also at whether
 * PDUs of members are not everywhere, or memory lacks. */
void zj_watch(zj_core *c, uint64_t members, uint64_t since, uint64_t quiet_ns, uint64_t lag_at);
uint64_t zj_silence_due(const zj_core *c);               /* when the engine has to look; ns, or UINT64_MAX */
uint64_t zj_pauses(const zj_core *c);                    /* counted so far */
uint64_t zj_late(const zj_core *c, uint64_t *at);        /* likewise; *at: the last time */
void zj_peer(const zj_core *c, uint32_t station, struct zj_peer *out);
void zj_matrix(const zj_core *c, uint64_t *al);          /* al[h * n + j] */
const struct zj_counters *zj_counters(const zj_core *c);
const char *zj_drop_name(uint32_t drop);
/* The digest at level preack, as CONFIRMs tell it: of the view event of instance *counted and *position PDUs behind it. What stood
 * before is not counted, as who joined does not know it: of equal *counted and *position, all must have one digest. 0: no view yet. */
void zj_digest(const zj_core *c, uint32_t *counted, uint64_t *position, uint64_t *digest);
/* Why fenced: station that differs, position, own and its digest. 0 if not fenced. */
int zj_fence(const zj_core *c, uint32_t *station, uint64_t *position, uint64_t *own, uint64_t *theirs);
uint64_t zj_clock(const zj_core *c);                     /* no place in the order that is given from now on is below */
int zj_too_long(const zj_core *c, uint32_t size);        /* 1: an own PDU that not everybody has is larger than this */
uint64_t zj_last_tx(const zj_core *c);                   /* when a frame for all was last handed out by zj_tx_done */
uint64_t zj_last_word(const zj_core *c);                 /* the same, or one for a single station */
/* Where a frame that zj_tx has given goes: the MAC address of the only station that it is for; NULL: to all. */
const uint8_t *zj_address(const zj_core *c, const uint8_t *pdu);
uint32_t zj_payload_max(const zj_core *c);               /* bytes of the largest message that is not fragmented now */

/* ---- a link of two stations (zj_config.pair; docs/multicast.md, rule L2) ---- */
/* zj_rx of a frame that came to the group address (1) or to the own one (0). */
int zj_pair_rx(zj_core *c, uint64_t now, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t to_group);
/* 1: a frame that zj_tx has given goes to the group address; 0: to the address from which the other station last sent. */
int zj_pair_to_group(const zj_core *c, const uint8_t *pdu);
/* Whether a PDU with flag PAIR is a whole one of this cluster, from another station to this core's: who has no link to it opens one.
 * c: the core of all stations. */
int zj_pair_asks(const zj_core *c, const uint8_t *pdu, uint32_t size);

/* ---- codec ---- */
/* Write header and vectors' checksums of a PDU whose other bytes are in place. */
void zj_add_checksum(uint8_t *pdu, uint32_t size);
/* Check a PDU by itself; enum zj_drop. */
int zj_check(const uint8_t *pdu, uint32_t size, uint32_t cluster, uint32_t stations);
uint32_t zj_crc32c(uint32_t crc, const uint8_t *data, uint32_t size);

/* The same functions as a table, for C code in other modules: they hold no copy of the core. */
struct zj_api {
    uint32_t version, size;
    int (*rx)(zj_core *, uint64_t, const uint8_t *, uint32_t, const uint8_t *);
    uint32_t (*step)(zj_core *, uint64_t, uint32_t);
    uint32_t (*tx)(zj_core *, struct zj_frame *, uint32_t);
    void (*tx_done)(zj_core *, uint64_t, uint32_t);
    int (*offer)(zj_core *, struct zj_offer *);
    int (*next)(zj_core *, struct zj_message *);
    void (*positions)(zj_core *, uint64_t *);
    uint64_t (*nak_due)(const zj_core *);
    uint64_t (*poll_due)(const zj_core *);
    uint64_t (*confirm_due)(const zj_core *);
    uint32_t (*nak)(zj_core *, uint64_t);
    uint32_t (*poll)(zj_core *, uint64_t);
    int (*pair_rx)(zj_core *, uint64_t, const uint8_t *, uint32_t, const uint8_t *, uint32_t);
    int (*pair_to_group)(const zj_core *, const uint8_t *);
    int (*pair_asks)(const zj_core *, const uint8_t *, uint32_t);
    const uint8_t *(*address)(const zj_core *, const uint8_t *);
    void (*limit_size)(zj_core *, uint32_t, uint32_t);
    uint32_t (*pdu_max)(const zj_core *);
    uint32_t (*asked_again)(const zj_core *);
    uint32_t (*beat)(zj_core *, uint64_t);
    uint64_t (*beat_due)(const zj_core *);
    uint64_t (*silence_due)(const zj_core *);
    int (*pressed)(const zj_core *);
    void (*passed)(zj_core *, uint32_t, uint32_t, uint64_t);
};
const struct zj_api *zj_api(void);

#endif
