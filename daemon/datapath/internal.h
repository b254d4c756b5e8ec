/* Shared between the files of the data path; not part of its interface.
 *
 * From the bottom up: each file calls only what is listed before it, which tests/test_tidy.py checks.
 *
 * kernel.c   clock and memory
 * vault.c    the keys of the cluster, in one locked block
 * sealed.c   frames that prove their sender: envelope and tag under a session
 * guard.c    what a frame carries besides its PDU: none, a SipHash seal, or envelope and tag
 * pieces.c   PDUs that are put together of several frames
 * pairs.c    cores of two stations (header flag PAIR): which one gets a frame, and their timers
 * hearing.c  what comes in on which link: second copies, who is heard where, LINKS
 * spread.c   which link a frame takes, and which one is doubtful
 * link.c     one link: packet socket, ring, batched sends
 * links.c    the set of links: send on all, receive from any
 * queue.c    what is to be written to one client: byte ring, release marks, DONE counts
 * groups.c   which client takes delivery of what
 * orphan.c   the SEND at the head of a client's input, also after its client has gone
 * rates.c    how fast the programs of one user may send
 * ending.c   how a connection ends
 * sending.c  messages of programs to groups that overlap: unfinished ones, and sending
 * input.c    reading from clients, parsing, offering to the core
 * output.c   delivering to clients, writing to them
 * overlap.c  groups that overlap: records, delivery, level preack
 * clients.c  their slots, and what Python does with them
 * turn.c     the loop that joins them, and its timer
 */
#ifndef ZJ_DP_INTERNAL_H
#define ZJ_DP_INTERNAL_H

#define _GNU_SOURCE

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "dp.h"
#include "dp_client.h"
#include "multi/multi.h"
#include "zj.h"
#include "zj_envelope.h"
#include "zj_wire.h"

#define DP_RX_BATCH 256u                       /* frames taken from the ring before the rest of the loop has its turn */
#define DP_TX_BATCH 64u                        /* frames per sendmmsg; larger batches bring nothing */
#define DP_TX_BATCHES 2u                       /* of these per pass, so that the ring is looked at every millisecond */
#define DP_LOAD_RX 4u                          /* a batch of so many PDUs of streams is load: rest before the next */
#define DP_LOAD_TX 16u
#define DP_LOAD_NS 300000u                     /* and for so long after it small batches are part of the load */
#define DP_DELIVER_BYTES (256u * 1024u)        /* delivered before queues are written out; about a socket buffer */
#define DP_DELIVER_MESSAGES 4096u
#define DP_INPUT_BYTES (256u * 1024u)
#define DP_OUTPUT_BYTES_MIN (64u * 1024u)
#define DP_QUANTUM_BYTES (64u * 1024u)         /* of one client's sends before the next client's, */
#define DP_QUANTUM_MESSAGE 256u                /* each message counting so much more, */
#define DP_QUANTUM_READ (16u * 1024u)          /* and each read so much */
#define DP_URGENT_PAUSE_BYTES (64u * 1024u)    /* unread errors; beyond, the client is not read */
#define DP_URGENT_MAX_BYTES (1024u * 1024u)
#define DP_SEND_MAX_BYTES (1024u * 1024u)      /* messages of Python's not yet taken by the core */
#define DP_OWN_MAX 65536u                      /* entries of the list behind DONE; beyond, the newest are merged */
#define DP_BUSY_FIRST_NS 200000ull             /* wait after a full transmit queue; doubles */
#define DP_BUSY_MAX_NS 2000000ull
#define DP_BUSY_TRIES 50u                      /* of one frame, about 100 ms, before the next in line has its turn */
#define DP_SWALLOWED_TRIES 4u                  /* of one above base (3 ms): it may be one that is swallowed for its size */
#define DP_CLOSE_NS 5000000000ull              /* for the last words to a client that we disconnect */
#define DP_TIDY_NS 1000000000ull               /* a queue unused for so long gives its memory back */
#define DP_CONTROL_HELD_MAX 128u                /* passes for which delivery goes before a control PDU: over 32 MiB */
#define DP_PAUSE_NS 200000000ull                /* not having run for so much longer than planned is Python's business */
#define DP_FIRED UINT64_MAX                    /* no time that a timer stands at */
#define DP_SLEPT_NS 100000000ll                 /* by so much more the machine has aged than its processes: it was asleep */
#define DP_CONFIRM_GUARD_NS 100000ull          /* the timer never stands at a confirmation that is already over */

/* ---- sets of clients ---- */
#define DP_WORDS (DP_CLIENTS_MAX / 64u)
struct dp_set { uint64_t word[DP_WORDS]; };

static inline void set_add(struct dp_set *s, uint32_t i) { s->word[i >> 6] |= 1ull << (i & 63u); }
static inline void set_del(struct dp_set *s, uint32_t i) { s->word[i >> 6] &= ~(1ull << (i & 63u)); }

static inline int set_has(const struct dp_set *s, uint32_t i) { return s->word[i >> 6] >> (i & 63u) & 1; }

static inline int set_any(const struct dp_set *s)
{
    uint64_t any = 0;
    for (uint32_t w = 0; w < DP_WORDS; w++)
        any |= s->word[w];
    return any != 0;
}

/* First member at or after `from`, or DP_CLIENTS_MAX. */
static inline uint32_t set_next(const struct dp_set *s, uint32_t from)
{
    if (from >= DP_CLIENTS_MAX)
        return DP_CLIENTS_MAX;
    uint32_t w = from >> 6;
    uint64_t bits = s->word[w] & ~0ull << (from & 63u);
    while (!bits && ++w < DP_WORDS)
        bits = s->word[w];
    return bits ? w * 64u + (uint32_t)__builtin_ctzll(bits) : DP_CLIENTS_MAX;
}

#define SET_EACH(i, set) for (uint32_t i = set_next(set, 0); i < DP_CLIENTS_MAX; i = set_next(set, i + 1))

/* ---- numbers of the client protocol are little-endian ---- */
static inline void put16(uint8_t *p, uint16_t v) { v = htole16(v); memcpy(p, &v, 2); }
static inline void put32(uint8_t *p, uint32_t v) { v = htole32(v); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, uint64_t v) { v = htole64(v); memcpy(p, &v, 8); }
static inline uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return le16toh(v); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return le32toh(v); }

static inline void put_header(uint8_t *p, uint32_t size, uint8_t type, uint8_t flags, uint16_t handle)
{
    put32(p + DP_HEADER_SIZE, size);
    p[DP_HEADER_TYPE] = type;
    p[DP_HEADER_FLAGS] = flags;
    put16(p + DP_HEADER_HANDLE, handle);
}

/* Fields of the frame that begins at p. */
static inline uint32_t frame_size(const uint8_t *p) { return get32(p + DP_HEADER_SIZE); }
static inline uint8_t frame_type(const uint8_t *p) { return p[DP_HEADER_TYPE]; }
static inline int is_message(uint8_t type) { return type == DP_F_SEND || type == DP_F_SEND_TO; }
static inline uint8_t frame_flags(const uint8_t *p) { return p[DP_HEADER_FLAGS]; }
static inline uint16_t frame_handle(const uint8_t *p) { return get16(p + DP_HEADER_HANDLE); }

static inline uint32_t min32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- those of frames are big-endian ---- */
static inline void be16(uint8_t *p, uint32_t v) { v = htobe16((uint16_t)v); memcpy(p, &v, 2); }
static inline void be32(uint8_t *p, uint32_t v) { v = htobe32(v); memcpy(p, &v, 4); }
static inline void be64(uint8_t *p, uint64_t v) { v = htobe64(v); memcpy(p, &v, 8); }
static inline uint32_t from16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t from32(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
static inline uint64_t from64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }

/* Of a PDU with a whole header. Only one of a stream may have another source than its sender, and only these are large enough for
 * PIECEs (`SEQUENCED` of proto/wire.py). */
static inline int is_of_stream(const uint8_t *pdu)
{
    switch (pdu[ZJW_HEADER_KIND]) {
    case ZJW_KIND_DATA: case ZJW_KIND_STOP: case ZJW_KIND_STOP_ACK: case ZJW_KIND_RCV_ACK: case ZJW_KIND_SERVICE:
        return 1;
    default:
        return 0;
    }
}

/* ---- events of the inner epoll: a client's slot, or one of these ---- */
#define EVENT_LINK 0x10000ull                  /* and the link's index */
#define EVENT_TIMER 0x20000ull

int64_t dp_slept(void);                        /* for how long the machine has been asleep since it started, ns, or a little less */

/* ---- guard ---- */
#define DP_OVERHEAD_MAX 64u                    /* bytes of a frame besides its PDU, under any guard */
#define DP_GUARD_PARTS 3u                      /* before the PDU, the PDU, behind it */
#define DP_TX_SLOTS (DP_TX_BATCH + 1u)         /* frames on their way out: a batch, and one by itself */
#define DP_WHOLE_MAX (65536u + DP_OVERHEAD_MAX)

struct dp_guard;
struct dp_guard_ops {
    uint32_t overhead;           /* bytes of a frame besides its PDU */
    /* The frame of a PDU, behind the Ethernet header, in 1..DP_GUARD_PARTS parts; returns how many. They point into the PDU and
     * into room, which must both stay until the frame has been sent. */
    uint32_t (*seal)(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                     struct iovec parts[DP_GUARD_PARTS]);
    /* 0: the frame may be believed, and is now its PDU (and padding); otherwise it is to be dropped (enum dp_refusal). */
    int (*open)(const struct dp_guard *g, struct zj_frame *frame, uint64_t now);
};
struct sealed;
struct dp_plain { uint32_t self, cluster; uint64_t next; uint8_t id[4]; }; /* of envelopes without a session */
struct dp_guard { const struct dp_guard_ops *ops; const uint8_t *key; struct sealed *sealed; struct dp_plain *plain; };

int guard_init(struct dp_guard *g, const struct dp_config *cfg); /* -EINVAL: no such kind, or not with these settings; -ENOMEM */
void guard_free(struct dp_guard *g);
/* slot: 0..DP_TX_BATCH - 1 for the frames of a batch, one after the other from 0; DP_TX_BATCH for one by itself. */
static inline uint32_t guard_seal(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu,
                                  uint8_t room[DP_OVERHEAD_MAX], struct iovec parts[DP_GUARD_PARTS])
{
    return g->ops->seal(g, slot, pdu, room, parts);
}
static inline int guard_open(const struct dp_guard *g, struct zj_frame *frame, uint64_t now) { return g->ops->open(g, frame, now); }

/* A frame in one part, which carries no whole PDU: LINKS, PROBE, or a PIECE (its place and count, else 0). out: room for the body and
 * DP_OVERHEAD_MAX. Returns its size, guard_around more than the body's. */
uint32_t guard_whole(const struct dp_guard *g, uint32_t what, uint32_t piece, const struct zj_frame *body, uint8_t *out);
uint32_t guard_around(const struct dp_guard *g);
/* Whether it has an envelope without a session: then, in a cluster without sessions, guard_open_plain has to look at it. A PDU has
 * version 1. */
static inline int guard_is_plain(const struct dp_guard *g, const struct zj_frame *f)
{
    return !g->sealed && f->size >= ZJE_SIZEOF_ENVELOPE && f->data[ZJE_ENVELOPE_VERSION] == ZJE_VERSION &&
           f->data[ZJE_ENVELOPE_WHAT] >= ZJE_WHAT_LINKS && f->data[ZJE_ENVELOPE_SUITE] == ZJE_SUITE_NONE && f->data[ZJE_ENVELOPE_TX];
}
int guard_open_plain(const struct dp_guard *g, struct zj_frame *frame); /* enum dp_refusal; of what is well the frame is its body */
static inline int guard_word(uint32_t what)
{
    return what == ZJE_WHAT_LINKS ? DP_R_LINKS : what == ZJE_WHAT_PROBE ? DP_R_PROBE : DP_R_PIECE;
}

/* ---- sealed.c ---- */
/* id: first bytes of the session; length: of the body. */
void envelope_put(uint8_t *p, uint32_t cluster, uint32_t self, uint32_t suite, uint32_t what, uint32_t piece, const uint8_t id[4],
                  uint32_t length, uint64_t number);
int sealed_init(struct dp_guard *g, const struct dp_config *cfg);
void sealed_free(struct dp_guard *g);
int sealed_can_seal(const struct dp_guard *g);
uint32_t sealed_seal(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                     struct iovec parts[DP_GUARD_PARTS]);
int sealed_open(const struct dp_guard *g, struct zj_frame *frame, uint64_t now);
int sealed_is_own(const struct dp_guard *g, const struct zj_frame *frame); /* of a frame with the own number: whether it was sent here */
uint32_t sealed_whole(const struct dp_guard *g, uint32_t what, uint32_t piece, const struct zj_frame *body, uint8_t *out); /* guard_whole */
/* The frame of a HELLO with this body, under one of its keys (0..), into out; its size, 0: it is none, or there are not so many. */
uint32_t sealed_hello(const struct dp_guard *g, uint32_t key, const uint8_t *body, uint32_t size, uint8_t out[DP_HELLO_MAX]);
uint64_t sealed_due(const struct dp_guard *g);  /* when Python is wanted for a HELLO, or (0) for a new session */
/* This process runs. Where it did not for pause_ns, nor was to sleep as long as that, nothing is sealed until there is a new
 * session: asked for before each batch, so that no frame leaves between the pause and the question. */
void sealed_awake(const struct dp_guard *g, uint64_t now);
void sealed_plan(const struct dp_guard *g, uint64_t due); /* it is to sleep until then */

static inline int guard_can_seal(const struct dp_guard *g) { return !g->sealed || sealed_can_seal(g); }
static inline uint64_t guard_due(const struct dp_guard *g) { return g->sealed ? sealed_due(g) : UINT64_MAX; }
static inline void guard_plan(const struct dp_guard *g, uint64_t due)
{
    if (g->sealed)
        sealed_plan(g, due);
}

/* ---- pieces ---- */
#define DP_PIECES_MAX 16u                      /* of a PDU; at least 2 */
#define DP_PIECE_SETS 4u                       /* PDUs of a station that are put together at a time; one more: the oldest goes */
#define DP_PIECE_NS 500000000ull               /* what is not whole by then never will be */
struct dp_piece_set {
    uint64_t first, since, order;              /* number of its first piece, 0: none; which one of all it is */
    uint8_t session[4];
    uint32_t count, have, each, last;          /* have: bits; each: bytes of all but the last one, 0: not known yet */
};
struct dp_pieces {
    uint32_t frame_max, stations;
    uint64_t whole, bad, begun;
    uint8_t *room;                             /* of all sets; NULL: no piece has ever come */
    struct dp_piece_set set[ZJW_STATIONS_MAX][DP_PIECE_SETS];
};
/* A PIECE that is to be believed: as it came, and its body. 1: its PDU is whole, until the next call. */
int pieces_take(struct dp_pieces *p, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now, struct zj_frame *pdu);
uint64_t pieces_memory(const struct dp_pieces *p);
void pieces_free(struct dp_pieces *p);

/* ---- pairs ---- */
/* The link of two stations to one other. mac: its address on each of our links, known: bit of the link. */
struct dp_pair {
    zj_core *core;
    zj_sendq *queue;             /* dp_pair_records; NULL: records are Python's */
    uint64_t malformed;
    uint32_t index, incarnation;
    uint8_t mac[DP_LINKS_MAX][6], known, waits;
};
#define DP_ASKED_MAX 16u                       /* frames kept until a turn of Python's is over */
struct dp_asked { uint8_t *data; uint32_t size; uint8_t other, link, to_group, mac[6]; };
/* Bits are station numbers - 1. asked: frames came and there is no core, and the first are kept; news: something to be taken, or
 * room. */
struct dp_pairs {
    uint32_t self, kept_count;
    uint64_t open, asked, news;
    uint64_t pending;            /* something is under way that the other end has not confirmed */
    struct dp_pair at[ZJW_STATIONS_MAX];
    struct dp_asked kept[DP_ASKED_MAX];
};

#include "several.h"

/* ---- links ---- */
/* Where received PDUs go, and where those to be sent come from. */
struct dp_above { const struct zj_api *api; zj_core *core; const struct dp_guard *guard; struct dp_pairs *pairs; struct dp_hearing *hearing; struct dp_spread *spread; struct dp_pieces *pieces; };

/* Frames on their way out, the same for every link but for the Ethernet header in the first part. */
struct dp_batch {
    uint32_t count;
    struct zj_frame frames[DP_TX_BATCH];
    const uint8_t *to[DP_TX_BATCH]; /* MAC address of the only receiver, NULL: all */
    const struct dp_pair *of[DP_TX_BATCH]; /* frames of pairs: whose address, which each link has for itself; NULL: all */
    uint8_t header[DP_TX_BATCH][14]; /* for such a frame */
    uint8_t room[DP_TX_BATCH][DP_OVERHEAD_MAX];
    struct iovec parts[DP_TX_BATCH][1 + DP_GUARD_PARTS];
    struct mmsghdr messages[DP_TX_BATCH];
};

struct dp_link {
    int epoll;                   /* where the descriptor is watched, as `event` */
    uint64_t event;
    int fd;                      /* -1: closed */
    int error;                   /* negative errno that ended it, 0: well */
    uint8_t error_is_new;        /* and it has not been reported yet */
    uint8_t watched;             /* fd is in the epoll */
    uint32_t ifindex, mtu;
    uint8_t header[14];          /* of every frame sent */
    uint8_t *ring;
    uint64_t ring_bytes;
    uint32_t block_bytes, slot_bytes, per_block, blocks;
    uint32_t block, slot;        /* cursor */
    uint32_t of_streams;         /* PDUs of streams among the frames that link_receive has taken */
    uint32_t tries;              /* of the frame in front, without success */
    uint32_t swallowed;          /* the same of those above base that go by themselves: what is smaller passes between */
    uint32_t base;               /* PDUs above it may be too large for this link, 0: unknown; */
    uint8_t too_large;           /* and one in front is */
    uint64_t retry_at, retry_ns; /* transmit queue full: not before, and the wait; 0: no wait */
    struct dp_link_counters counters; /* kept when it is opened again */
};

struct dp_links {
    uint32_t count;
    struct dp_above above;
    struct dp_batch batch;
    uint8_t whole[DP_WHOLE_MAX], probe[65536]; /* a frame in one part, on its way out; and what a PROBE carries */
    uint32_t base, large;                      /* dp_limit_size; links (bits) that have refused a PDU above base */
    uint32_t asked, asked_last;                /* zj_asked_again at the beginning of the present span, at the last look, */
    uint64_t asked_since;                      /* and when that was */
    uint64_t tx_pieced;
    struct dp_link link[DP_LINKS_MAX];
};

/* ---- output of one client ---- */
/* Bytes up to `end` may be written once `position` has been passed at `level`; those before them too. */
struct dp_release_mark { uint64_t position, end; uint32_t level, pad; };
/* So many own messages are done when the position has been passed. */
struct dp_own { uint64_t position, count; };
struct dp_own_count { struct dp_own *at; uint32_t cap; uint64_t head, tail; };
/* An own message that is in no stream of all stations (dp_own_sent): its number among all of the client, and levels reached. */
struct dp_between { uint64_t number; uint32_t levels, pad; };
/* Frames written at a place between the ring's frames: urgent ones, and the DONE frame. */
struct dp_side_buffer { uint8_t *data; uint32_t cap, size, off; uint64_t at; };

struct dp_queue {
    uint8_t *ring;
    uint32_t cap;                                /* power of two, 0: nothing allocated */
    /* Offsets in the stream of ring bytes, written <= boundary <= released <= tail; all restart at 0 when it is empty. */
    uint64_t written, boundary, released, tail;  /* boundary: first start of a frame at or after written */
    struct dp_release_mark *marks;
    uint32_t mark_cap, mark_head, mark_count;
    struct dp_side_buffer urgent, done;
    uint8_t done_bytes[DP_HEADER + DP_DONE];
    uint8_t busy;                                /* used since the last tidying */
};

struct dp_bound { uint32_t group; uint8_t bound, may_send, ordering, direct; };

struct dp_client {
    int fd;                      /* -1: closed by us, the slot waits for dp_client_remove */
    uint16_t number;
    uint8_t used;
    uint8_t closing;             /* write out what is there, then close; nothing is read or delivered any more */
    uint8_t removed;             /* Python has given the slot up: free it with the descriptor */
    uint8_t last_words;          /* removed, and cut off: what is queued waits for the peer to read */
    uint8_t broken;              /* writing failed: the peer reads no more */
    uint8_t can_read, can_write, hung_up, eof;
    uint8_t out_armed;           /* EPOLLOUT is asked for */
    uint8_t paused;              /* its queue is over half: its sends are not read */
    uint8_t held;                /* by Python (dp_client_hold): nothing is read */
    uint8_t bounded;             /* it shares the memory and the rate of its user's programs */
    uint32_t user, place;        /* place: in users[] */
    uint8_t taking;              /* a control frame stands at the head of the input, for dp_take */
    uint8_t more;                /* dp_take has given a message of it: perhaps there is another one */
    uint8_t in_take;             /* the slot stands in the list of dp_take */
    uint8_t end;                 /* its end is to be told by dp_take */
    uint8_t end_told;
    int32_t end_error;
    uint32_t slot;
    uint64_t close_at;
    /* input: bytes start..end of in[] are read and not yet consumed */
    uint8_t *in;
    uint32_t in_cap, in_start, in_end;
    uint32_t skip;               /* bytes of a refused frame's body still to come */
    uint32_t quantum;            /* used up of the present one */
    uint32_t offered;            /* bytes of the SEND at in_start that the core has taken; may fall back to 0 (zj_offer) */
    uint8_t begun;               /* it has taken some, so it is to have all, whatever becomes of the client and the handle; */
    struct dp_bound part;        /* begun: the handle as it was */
    struct dp_bound *handles;
    struct dp_queue q;
    /* own messages */
    uint64_t sends;              /* SEND frames, also refused ones */
    struct dp_own_count own_counts[2]; /* towards preack, towards ack */
    uint64_t sent, delivered, done[ZJ_LEVELS], reported[ZJ_LEVELS], notify[ZJ_LEVELS];
    uint64_t counted[ZJ_LEVELS]; /* as done, but only messages of the streams of all stations, whatever stands between them */
    struct dp_between *between;  /* ring: those that stand between them */
    uint32_t between_cap;
    uint64_t between_tail, between_head[ZJ_ACK]; /* how many there have been, and are counted in done[level] */
    uint64_t ordered_end;        /* one past the position of the last message given at level ordered */
};

/* A user whose programs are bounded. due: when all its messages, and all their bytes, would have been sent at exactly the rate. */
struct dp_user {
    uint32_t id, clients, turn;  /* turn: of those that wait the first from this slot on is the next one */
    uint8_t known;
    uint64_t due[2], free_at;    /* nothing more is taken before then */
};

/* ---- groups ---- */
struct dp_member { uint16_t slot, handle; uint8_t level, no_self, ordering, pad; };
/* Of the last message in the order among those given on acceptance: its place, and, once the order has got there (fifo_placed), its
 * position. */
struct dp_route {
    uint32_t group, count, cap;
    uint8_t need_ack, need_preack, fifo_src, fifo_open, fifo_placed;
    uint64_t fifo_clock, fifo_position;
    struct dp_member *members;
};

/* A message of which the core has a part when its client goes: it must be finished, or no other could ever be fragmented. There
 * is never more than one, for the core takes one in pieces at a time. The map is the client's former input buffer. */
struct dp_orphan { uint8_t *map; uint32_t cap; struct zj_offer m; };

/* ---- groups that overlap ---- */
#define DP_MULTI_UNFINISHED 1024u              /* a power of two above the machine's window */
_Static_assert(DP_MULTI_LEVEL == ZJ_LEVELS, "levels of marks: those of the main order, then preack of these orders");
struct dp_unfinished { uint64_t own; uint32_t number, size; uint16_t slot, client; uint8_t used; }; /* own: as in dp_between, 0: of none */
/* Places of level preack, as a ring; released: messages in front that are, behind a view that is not. */
struct dp_line { uint64_t *items; uint32_t cap; uint64_t head, tail, released, messages; };
struct dp_addressed { uint32_t count, groups[ZJ_MULTI_GROUPS]; }; /* ascending */
struct dp_multi {
    const struct zj_multi_api *api;
    zj_multi *machine;                         /* NULL: Python's */
    uint8_t sends, has_sent, blocked, has_room; /* blocked: a message waits in a client's input; has_room: perhaps no longer */
    uint64_t unlinked, bytes_max, bytes, settled;
    uint32_t count;                            /* of the unfinished ones; by number */
    struct dp_unfinished unfinished[DP_MULTI_UNFINISHED];
    struct dp_addressed next;                  /* the message that waits for room: none that shares a group with it goes before it */
    uint16_t next_slot, next_client;
    uint64_t next_sends;                       /* of the client, before it */
    struct dp_line line[ZJ_MULTI_ORDERS];
    struct dp_record *foreign;
    uint32_t foreign_count, foreign_cap, foreign_taken;
};

struct dp_pending { uint8_t *data; uint32_t size, head, tail, cap; uint32_t count, offered; };

struct dp {
    struct dp_config cfg;
    const struct zj_api *api;
    zj_core *core;
    int epoll, timer;
    uint64_t armed;                     /* what the timer stands at, 0: off, DP_FIRED: it is over */
    uint64_t loaded_until;              /* rests instead of lingering until then */
    uint64_t active_at;                 /* when a turn last had something to do */
    uint64_t deadline;                  /* of the last turn */
    uint64_t planned;                   /* when the next is due if nothing comes */
    uint64_t began;                     /* dp_began() */
    void (*wanted)(void *);             /* dp_on_want() */
    void *wanted_by;
    struct dp_turn_result result;       /* of a turn of dp_again(), for the next dp_turn() */
    uint8_t has_result;
    uint8_t alone;                      /* dp_alone() */
    uint8_t looked;                     /* events have been taken while waiting for them */
    uint8_t cannot_wait;                /* no epoll_pwait2 */
    struct dp_counters counters;
    struct dp_guard guard;
    struct dp_pairs pairs;
    struct dp_multi multi;
    struct dp_links links;
    struct dp_hearing *hearing;         /* NULL: no link */
    struct dp_pieces pieces;
    uint32_t again;                     /* zj_asked_again, as last told, */
    uint64_t again_rest;                /* and not before this is it told again */
    struct dp_spread spread;
    uint64_t user_queue_max, user_input_max, users_queue_max; /* 0: no limit */
    uint64_t rate[2];            /* messages, bytes a second of a user's programs; 0: no limit */
    struct dp_user users[DP_CLIENTS_MAX];
    uint8_t fenced;              /* that the core is has been reported */
    uint8_t hold;

    struct dp_client clients[DP_CLIENTS_MAX];
    int16_t by_number[65536];    /* client number to slot, -1 none */
    struct dp_set work;          /* something to read or to offer */
    struct dp_set dirty;         /* something to write */
    struct dp_set marked;        /* something embargoed */
    struct dp_set owning;        /* own messages not at every level */
    struct dp_set closing;
    struct dp_set late;          /* set aside for the rate of their users */
    uint32_t turn;               /* whose turn to offer */
    uint32_t queue_cap_max;
    uint64_t tidy_at;

    uint16_t take[DP_CLIENTS_MAX];
    uint32_t take_head, take_count;

    struct dp_route **routes;    /* open addressing, capacity a power of two */
    uint32_t route_cap, route_count;

    struct dp_pending sends;     /* Python's messages, oldest first */
    struct dp_orphan orphan;

    uint64_t positions[ZJ_LEVELS + ZJ_MULTI_ORDERS]; /* of the main order, and of the lines of the others */
    struct dp_group group;       /* a copy: the core's pointer would not outlive the turn */
    uint8_t *group_data;         /* room for any message from the start: none is lost for want of memory */
    uint32_t group_touched;      /* bytes of it that have been used */
    uint8_t group_waits;
    uint32_t control_held;       /* passes for which a control PDU has waited for delivery */
};

/* ---- state of one client, asked and changed by several files ---- */
#define DP_CLIENT_EVENTS ((uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLET))

static inline int client_used(const struct dp *d, uint32_t slot) { return slot < DP_CLIENTS_MAX && d->clients[slot].used; }

/* NULL: not in use, or given up. */
static inline struct dp_client *client_live(struct dp *d, uint32_t slot)
{
    return client_used(d, slot) && !d->clients[slot].removed ? &d->clients[slot] : NULL;
}

static inline void input_consume(struct dp_client *c, uint32_t bytes)
{
    c->in_start += bytes;
    if (c->in_start == c->in_end)
        c->in_start = c->in_end = 0;
}

/* ---- kernel.c ---- */
void *dp_map(size_t size); /* zeroed; NULL: none left */
void dp_unmap(void *p, size_t size);

/* ---- pairs.c ---- */
static inline int is_pair(const struct zj_frame *pdu)
{
    return pdu->size >= ZJW_SIZEOF_HEADER && pdu->data[ZJW_HEADER_FLAGS] & ZJW_FLAG_PAIR;
}
/* A copy of a frame of this station (index) came on a link (index) from this address. */
void pairs_learn(const struct dp_above *above, uint32_t link, uint32_t other, const uint8_t *mac);
/* A frame that came on a link (index), with its Ethernet header. */
void pairs_receive(const struct dp_above *above, uint32_t link, uint64_t now, const struct zj_frame *pdu, const uint8_t *frame);
void pairs_forget_asked(struct dp_pairs *ps);
void pairs_step(const struct dp_above *above, uint64_t now, uint32_t drained);
uint64_t pairs_due(const struct dp_above *above);

/* ---- link.c ---- */
/* Of one link; nothing here knows another one. */
void link_init(struct dp_link *l, int epoll, uint64_t event);
int link_open(struct dp_link *l, const struct dp_config *cfg, const char *ifname); /* as dp_link_open */
void link_close(struct dp_link *l);
void link_fail(struct dp_link *l, int error);
void link_event(struct dp_link *l, uint32_t events);
void link_count_drops(struct dp_link *l);          /* the kernel's, into the counters */
/* At most DP_RX_BATCH frames to the core; returns how many, and l->of_streams. *drained becomes 0 if more are there. */
uint32_t link_receive(struct dp_link *l, const struct dp_above *above, uint64_t now, uint32_t *drained);
int link_ready(const struct dp_link *l, uint64_t now);          /* open, well, and not waiting for room in its queue */
void link_wait(struct dp_link *l, uint64_t now);   /* its transmit queue is full: it waits, longer each time */
void link_rested(struct dp_link *l);               /* it waits no longer */
/* Returns how many frames, from the front, it is done with: sent, or dropped because they never will be. too_large: the next one has
 * to go in pieces. */
uint32_t link_transmit(struct dp_link *l, struct dp_batch *b, uint32_t first, uint32_t end, uint64_t now); /* of first..end - 1 */
/* One frame now, to an address or (NULL) to all; 0 or a negative errno, counted. */
int link_send(struct dp_link *l, const uint8_t *to, const struct iovec *parts, uint32_t count);
/* While resting by the clock nobody waits for frames: out of the epoll, each of them is spared the call of two epolls' wake-up. */
void link_mute(struct dp_link *l);
void link_unmute(struct dp_link *l);

/* ---- links.c ---- */
void links_init(struct dp_links *ls, uint32_t count, int epoll, struct dp_above above);
void links_close(struct dp_links *ls);
uint32_t links_receive(struct dp_links *ls, uint64_t now, uint32_t *drained); /* frames; */
uint32_t links_of_streams(const struct dp_links *ls); /* PDUs of streams among these */
/* Frames of the core that at least one link is done with. *more becomes 1 if there may be others to send at once. */
uint32_t links_transmit(struct dp_links *ls, uint64_t now, uint32_t *more);
/* The same of the cores of two stations. */
uint32_t links_transmit_pairs(struct dp_links *ls, uint64_t now);
void links_mute(struct dp_links *ls);
void links_unmute(struct dp_links *ls);
uint64_t links_retry_at(const struct dp_links *ls); /* when the first link that waits may try again, UINT64_MAX: none waits */
int links_error_is_new(const struct dp_links *ls);
void links_error_told(struct dp_links *ls);
uint64_t links_memory(const struct dp_links *ls);
void links_add_counters(struct dp_links *ls, struct dp_counters *sum);

/* ---- queue.c ---- */
/* All return 0, -ENOMEM or what they say. queue_append: -EDQUOT, its user's programs take too much memory; -EUSERS,
 * those of all users. */
int queue_append(struct dp *d, struct dp_client *c, const uint8_t *head, uint32_t head_size, const uint8_t *body,
                 uint32_t body_size, uint32_t level, uint64_t position);
int queue_urgent(struct dp *d, struct dp_client *c, const uint8_t *head, uint32_t head_size, const uint8_t *body,
                 uint32_t body_size);           /* -ENOBUFS beyond DP_URGENT_MAX_BYTES */
void queue_release(struct dp *d, struct dp_client *c);
int queue_count_own(struct dp *d, struct dp_client *c, uint64_t position);
void queue_forget_own(struct dp *d, struct dp_client *c); /* all are done, as far as anybody will say */
void queue_done(struct dp *d, struct dp_client *c);
void queue_cut(struct dp *d, struct dp_client *c, int released);
uint64_t queue_forget(struct dp *d, struct dp_client *c);
uint64_t queue_embargoed(const struct dp *d, const struct dp_client *c);
void queue_clear(struct dp *d, struct dp_client *c);
int queue_write(struct dp *d, struct dp_client *c);
void queue_tidy(struct dp_client *c);
void queue_shrink(struct dp_client *c);
void queue_free(struct dp_client *c);
uint64_t queue_memory(const struct dp_client *c);
static inline uint64_t queue_bytes(const struct dp_queue *q) { return q->tail - q->written + (q->urgent.size - q->urgent.off); }
static inline int queue_writable(const struct dp_queue *q)
{
    return q->released > q->written || q->urgent.size > q->urgent.off || q->done.size > q->done.off;
}
/* 1: a client that reads so little is not read either, before its queue overflows. */
static inline int input_must_pause(const struct dp *d, const struct dp_client *c)
{
    return queue_bytes(&c->q) > d->cfg.queue_bytes_max / 2 || c->q.urgent.size - c->q.urgent.off > DP_URGENT_PAUSE_BYTES;
}

/* ---- groups.c ---- */
struct dp_route *route_find(const struct dp *d, uint32_t group);
void groups_leave_all(struct dp *d, uint32_t slot);
void groups_reset(struct dp *d);
void groups_forget_overlapping(struct dp *d);  /* nobody is in a group of order abcast or token */
void groups_free(struct dp *d);

/* ---- orphan.c ---- */
struct zj_offer head_offer(const struct dp *d, const struct dp_client *c);
void orphan_keep(struct dp *d, struct dp_client *c);
void orphan_free(struct dp *d);

/* ---- rates.c ---- */
uint32_t rates_enter(struct dp *d, uint32_t user);          /* one more client of this user; returns its place */
void rates_leave(struct dp *d, struct dp_client *c);        /* its slot is given up */
int rates_wait(struct dp *d, struct dp_client *c, uint64_t now); /* 1: no message of it is taken now; it is set aside */
void rates_count(struct dp *d, const struct dp_client *c, uint32_t size, uint64_t now); /* a message of it has been taken */
uint32_t rates_release(struct dp *d, uint64_t now);         /* one client of each user whose time has come; 1: others of it wait too */
uint64_t rates_due(const struct dp *d);

/* ---- ending.c ---- */
void take_push(struct dp *d, struct dp_client *c);
void client_close(struct dp *d, struct dp_client *c);
void client_end(struct dp *d, struct dp_client *c, int error);
void client_start_closing(struct dp *d, struct dp_client *c, uint64_t close_at);
void client_refuse(struct dp *d, struct dp_client *c, const char *code, const char *message, uint16_t handle);
void client_fail(struct dp *d, struct dp_client *c, const char *code, const char *message, int error, int keep_released);
void client_slow(struct dp *d, struct dp_client *c);
void client_no_memory(struct dp *d, struct dp_client *c);
void client_many(struct dp *d, struct dp_client *c, const char *option); /* its user's programs take too much memory */

/* ---- sending.c ---- */
static inline int multi_sends(const struct dp *d) { return d->multi.sends && !d->hold; }
int multi_send(struct dp *d, struct dp_client *c); /* the message at its head: 1 sent, 0 not now, -1 for Python */
void multi_own_done(struct dp *d, uint32_t number, uint32_t level);
int sending_next_has_gone(struct dp *d);       /* for whom others have waited */
void sending_taken(struct dp *d, const struct dp_client *c); /* Python has the message in front of this program */
void sending_reset(struct dp *d);

/* ---- input.c ---- */
void clients_event(struct dp *d, uint32_t slot, uint32_t events);
uint32_t clients_offer(struct dp *d, uint64_t now, uint32_t *more);
/* A whole one for Python stands at the head, and may be given. */
int input_has_message(struct dp *d, struct dp_client *c, uint64_t now);
void input_reset(struct dp *d);
void input_free(struct dp *d);

/* ---- output.c ---- */
void client_give(struct dp *d, const struct dp_member *to, struct dp_client *c, const struct zj_message *m, int own);
void clients_deliver(struct dp *d, const struct zj_message *m);
void clients_accept(struct dp *d, const struct zj_message *m);
void clients_placed(struct dp *d, const struct zj_message *m);
void clients_release(struct dp *d);
void clients_write(struct dp *d, uint64_t now);
uint64_t clients_due(const struct dp *d);
void clients_tidy(struct dp *d, uint64_t now);

/* ---- overlap.c ---- */
uint32_t overlap_turn(struct dp *d, uint64_t now, uint32_t *more); /* what there is to be done; returns how much. *more: offer again */
uint64_t overlap_due(const struct dp *d);
int overlap_is_unsafe(const struct dp *d, const struct dp_client *c);
void overlap_free(struct dp *d);

/* ---- clients.c ---- */
void clients_init(struct dp *d);
void clients_free(struct dp *d);

#endif
