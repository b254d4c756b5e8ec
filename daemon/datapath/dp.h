/* zenjun data path: what runs per frame or per message outside the protocol core.
 *
 * Packet sockets, one for each link, with TPACKET_V2 rings, batched sends, client sockets and their queues, one inner epoll.
 * Calls the core through struct zj_api, so that the core's code exists once. One thread owns a handle. No function blocks longer
 * than its rest or linger, both bounded by the configuration. Errors are negative errno values.
 */
#ifndef ZJ_DP_H
#define ZJ_DP_H

#include <stdint.h>

#define DP_CLIENTS_MAX 256
#define DP_LAST_WORDS_MAX 32     /* clients cut off for which the reason is kept; more: the oldest goes */
#define DP_ALL_STATIONS 0xffff
#define DP_LINKS_MAX 4
#define DP_KEY_BYTES 16
#define DP_SEAL_BYTES 8          /* behind every PDU where the cluster has a key */

struct dp;
struct zj_core;
struct zj_api;
struct zj_multi;
struct zj_multi_api;
struct zj_sendq;

/* What a frame bears besides its PDU. SIPHASH: a seal under the cluster's key; frames without are dropped.
 * SESSIONS: envelope and tag, which prove who sends it now. */
enum dp_guard_kind { DP_GUARD_NONE = 0, DP_GUARD_SIPHASH = 1, DP_GUARD_SESSIONS = 2 };

/* Why a guard does not pass a frame on, in the order of its checks (`Drop` of proto/envelope.py). SEAL: of SIPHASH; HELLO: none, it
 * is kept for dp_hello_take; LINKS: none, it is kept for dp_links_said; PROBE, PIECE: none either. */
enum dp_refusal {
    DP_R_SEAL = 1, DP_R_SIZE, DP_R_VERSION, DP_R_SUITE, DP_R_OWN, DP_R_UNPROVEN, DP_R_LATE, DP_R_REPLAYED, DP_R_TAG, DP_R_SPOOFED,
    DP_R_REORDERED, DP_R_HELLO, DP_R_LINKS, DP_R_PROBE, DP_R_PIECE
};
#define DP_REFUSALS 16
#define DP_KEYS_MAX 4            /* keys of HELLO */
#define DP_HELLO_MAX 576         /* bytes of a frame with a HELLO, at most */

struct dp_config {
    uint32_t size;               /* sizeof */
    uint32_t self;               /* own station index */
    uint32_t ethertype, cluster;
    uint32_t links;              /* 0..DP_LINKS_MAX */
    uint8_t group_mac[6]; uint8_t pad[2];
    uint32_t ring_bytes;         /* receive ring of each link */
    uint32_t message_max;
    uint32_t send_bytes;         /* send buffer of each link's socket; 0: large */
    uint32_t guard;              /* enum dp_guard_kind */
    const uint8_t *key;          /* DP_KEY_BYTES, of SIPHASH; there as long as the data path */
    uint32_t stations, suite;    /* n; of SESSIONS: what frames are sealed with (`Suite` of proto/envelope.py) */
    uint32_t frame_max, pad2;    /* bytes of the largest PDU that is put together of PIECEs */
    const uint8_t *hello_key;    /* 32 bytes, of HELLO, under the key with this id; read in dp_create only */
    uint32_t hello_id;
    uint64_t pause_ns;           /* of SESSIONS: a turn that did not run for so long seals no frame until there is a new session */
    uint64_t queue_bytes_max;    /* per client, undelivered frames */
    uint64_t rest_ns;            /* rest between batches under load; 0: never */
    uint64_t linger_ns;          /* wait inside the call for more while something is pending */
    uint64_t slice_ns;           /* longest stay in one dp_turn with work left */
    uint64_t stay_ns;            /* while events come: wait inside the call for the next one, at most so long in all; 0: never */
};

enum dp_want {                   /* why dp_turn came back; bits */
    DP_W_CONTROL = 1,            /* zj_control() has something, and what can be delivered has been */
    DP_W_GROUP = 2,              /* delivery stands at a message for Python: dp_group() */
    DP_W_CLIENT = 4,             /* dp_take() has a client's control frame, or a client's end */
    DP_W_DEADLINE = 8,           /* the deadline given is over */
    DP_W_LINK = 16,              /* a link has reported an error: dp_link_error(); told once */
    DP_W_FENCED = 32,            /* the core has just become fenced; told once, the status keeps saying it */
    DP_W_TRUST = 128,            /* dp_hello_take() has something, or a new session is needed: sealing has stopped */
    DP_W_MORE = 64,              /* slice over with work left: call again soon */
    DP_W_PAIR = 256,             /* dp_pairs() has something */
    DP_W_SAID = 512              /* dp_links_said(), dp_links_asked() or dp_links_large() has something, or a link has become doubtful */
};

struct dp_turn_result { uint32_t want; uint32_t status; uint64_t now; uint64_t next_due; };

/* A message that Python must see at its place in the order: group control, or (ZJW_TYPE_VIEW) a view event, of which src, index,
 * view_src and position are as in struct zj_message. */
struct dp_group {
    const uint8_t *data; uint64_t clock, position; uint32_t size, group; uint16_t client, index; uint8_t src, type, view_src, pad;
};

/* What the end of an instance costs a client. undecided: own messages taken by the core and not at preack; forgotten: MESSAGE
 * frames held for their level, which it will never get; unsafe 1: it got messages at level ordered that are not at preack, so the
 * stations that continue may not have them. */
struct dp_lost { uint64_t undecided, forgotten; uint32_t unsafe, pad; };

struct dp_take { uint8_t *data; uint32_t size; uint32_t slot; uint8_t type, flags; uint16_t handle; int32_t error; };
/* type 0: the client's end. error 0: it closed; negative errno; DP_E_* below. */
#define DP_E_PROTOCOL (-1001)
#define DP_E_SLOW (-1002)
#define DP_E_MANY (-1003)

/* Of one link since dp_create, also while it was closed and opened again. tx_missed: frames that another link took while this one
 * waited for room or had failed. */
struct dp_link_counters {
    uint64_t rx_batches, rx_frames, rx_kernel_drops, rx_truncated, rx_losing;
    uint64_t tx_batches, tx_frames, tx_bytes, tx_busy, tx_too_long, tx_errors, tx_missed;
    uint64_t rx_double;          /* second copies, which had come on another link a moment before */
    uint64_t rx_refused[16];     /* by enum dp_refusal */
};

/* rx_, tx_: of all links together. */
struct dp_counters {
    uint64_t rx_batches, rx_frames, rx_kernel_drops, rx_truncated, rx_losing;
    uint64_t tx_batches, tx_frames, tx_bytes, tx_busy, tx_too_long, tx_errors;
    uint64_t turns, rests, lingers, waits, client_reads, client_writes, client_bytes_in, client_bytes_out, slow_disconnects,
        client_throttles;                /* a program was set aside for the rate of its user */
    uint64_t rx_double, rx_refused[16];
    uint64_t rx_pieced, rx_piece_bad, tx_pieced; /* PDUs put together of PIECEs; PIECEs out of place; PDUs sent in PIECEs */
};

int dp_create(const struct dp_config *cfg, const struct zj_api *api, struct zj_core *core, struct dp **out);
void dp_destroy(struct dp *d);
int dp_fd(const struct dp *d);                       /* the inner epoll: readable when dp_turn has work */
uint64_t dp_now(void);                               /* CLOCK_MONOTONIC, ns */

/* Receive, offer, step, deliver, send, until idle or a reason to return. deadline: absolute ns of the engine's next deadline; until:
 * when it waits no longer for what comes next, absolute ns. */
int dp_turn(struct dp *d, uint64_t deadline, uint64_t until, struct dp_turn_result *out);
/* What the loop calls when the descriptor is readable: a turn with the last deadline. If it ends with more than DP_W_MORE, or Python
 * wants to see each (dp_alone), or this station should have run 200 ms ago, `wanted` is called; the next dp_turn returns what this
 * turn has found. */
void dp_again(struct dp *d);
void dp_on_want(struct dp *d, void (*wanted)(void *), void *by); /* before dp_again */
uint64_t dp_active(const struct dp *d);              /* when a turn last had something to do but heartbeats */
uint64_t dp_began(const struct dp *d);               /* when the dp_again that runs was called; 0: none does */
void dp_alone(struct dp *d, uint32_t yes);           /* 1: until it is 0 again, turns that want nothing are not Python's business */
uint64_t dp_planned(const struct dp *d);             /* when the next turn is due if nothing comes; */
void dp_plan(struct dp *d, uint64_t at);             /* Python knows better */
/* Send what the core has queued now (after the engine added something). */
int dp_flush(struct dp *d);

/* ---- links ---- by index, 0..links - 1; -EINVAL for any other */
struct dp_link_info { uint64_t ring_bytes; uint32_t ifindex, mtu; uint8_t mac[6], pad[2]; };
/* Opens with protocol 0, attaches the filter, sets the ring up, joins the group address, then binds. out->ring_bytes: of receive
 * ring that the kernel gave: less than asked when short. Whether or not it succeeds, the former socket is closed. */
int dp_link_open(struct dp *d, uint32_t link, const char *ifname, struct dp_link_info *out);
void dp_link_close(struct dp *d, uint32_t link);
/* Negative errno that ended the link (ENETDOWN, ENODEV, ...), 0 none. DP_W_LINK tells of it once; it stays until the link is
 * closed or opened again, and until then nothing is sent on it. */
int dp_link_error(const struct dp *d, uint32_t link);
int dp_link_counters(struct dp *d, uint32_t link, struct dp_link_counters *out); /* the kernel's drops up to now included */
/* One PDU now (OPEN), on every link. 0: at least one has taken it; else the first one's negative errno, -ENOTCONN without any. */
int dp_links_send(struct dp *d, const uint8_t *pdu, uint32_t size);

/* ---- several links ---- */
/* What first sendings of own DATA take; all other frames go out on all links. ALL: all links. AUTO: each one of `mask`, if there are
 * several and at least 16 frames have left within 2 ms, else all. STRIPE: each one of mask. SET: each all of mask. Doubts end. */
enum dp_spreading { DP_SPREAD_ALL = 0, DP_SPREAD_AUTO = 1, DP_SPREAD_STRIPE = 2, DP_SPREAD_SET = 3 };
int dp_links_use(struct dp *d, uint32_t how, uint32_t mask);
int dp_link_weight(struct dp *d, uint32_t link, uint32_t mbit); /* 0: as the others that have none */
/* Links (bits) of which many frames in a row had to be sent again; while there is one, nothing is spread. */
uint32_t dp_links_doubtful(const struct dp *d);
/* heard: when a frame that its source sends itself came last, 0: never. frames: of which it is the source (several links only).
 * largest: bytes behind the Ethernet header of its largest PROBE of the round, 0: none has come. */
struct dp_heard { uint64_t heard, frames; uint32_t largest, round; };
int dp_links_heard(const struct dp *d, uint32_t link, struct dp_heard out[64]); /* -EINVAL: no such link */
/* LINKS, one frame on one link: 0 or a negative errno. body: at most DP_LINKS_SAID_MAX. */
#define DP_LINKS_SAID_MAX 544
int dp_links_say(struct dp *d, uint32_t link, const uint8_t *body, uint32_t size);
struct dp_said { uint32_t size, tx, link, pad; uint8_t data[544]; };
int dp_links_said(struct dp *d, struct dp_said *out); /* 1: the last one of a station (index) on a link; 0: none */

/* ---- frame sizes (proto/sizes.py) ---- */
/* A PROBE on one link, `bytes` long behind the Ethernet header; body: what it begins with. 0 or a negative errno. */
int dp_probe(struct dp *d, uint32_t link, const uint8_t *body, uint32_t size, uint32_t bytes);
uint32_t dp_links_asked(struct dp *d);               /* links (bits) on which a PROBE wants an answer; cleared */
/* PDUs larger than this are sent in PIECEs, and none is built. base: bytes of a PDU that is thought to pass in any case. When an
 * interface refuses a larger one, the limit is base until this is called again. */
int dp_limit_size(struct dp *d, uint32_t limit, uint32_t base);
/* Links (bits) of which the interface has refused a PDU above base since the last call. *again: so many PDUs above base have been
 * asked for again after they were sent again. */
uint32_t dp_links_large(struct dp *d, uint32_t *again);

/* ---- sessions, of guard SESSIONS; otherwise -EINVAL ---- tx: station index; id: the session's first bytes; key: derived from it.
 * A session's numbers begin with 1 when it is sealed under, and are taken from `first` on when it is read. */
struct dp_hello { uint32_t size; uint8_t data[576]; }; /* envelope and body */
int dp_seal_under(struct dp *d, const uint8_t id[4], const uint8_t key[32]);                 /* -ENOMEM */
int dp_session_read(struct dp *d, uint32_t tx, const uint8_t id[4], const uint8_t key[32], uint64_t first); /* -ENOSPC: two are */
int dp_session_forget(struct dp *d, uint32_t tx, const uint8_t id[4]);                       /* -ENOENT */
uint64_t dp_session_heard(struct dp *d, uint32_t tx, const uint8_t id[4]); /* when a frame of it came last, or it was added; 0: none */
/* For tests: as if the machine had been asleep for so long since it was last asked. 0, or -EINVAL: nothing is sealed. */
int dp_as_if_slept(struct dp *d, uint64_t ns);
int dp_asleep(const struct dp *d);                   /* 1: this process (for pause_ns) or the machine did not run, and nothing is sealed
                                                      * before dp_seal_under */
/* This process has waited for its disk since then: that is no pause, if it is 10 s at most. 1: so it is; 0: as if nothing had been
 * said. */
int dp_has_written(struct dp *d, uint64_t since);
uint64_t dp_next_number(const struct dp *d);         /* of the next frame that is sealed */
/* Now, on every link, with envelope and tag, once under each key of HELLO; as dp_links_send. */
int dp_hello_send(struct dp *d, const uint8_t *body, uint32_t size);
/* The keys of HELLO from now on, 1..DP_KEYS_MAX of 32 bytes, and their ids. -EINVAL: not so many. */
int dp_hello_keys(struct dp *d, uint32_t count, const uint8_t *keys, const uint32_t *ids);
int dp_hello_take(struct dp *d, struct dp_hello *out);    /* 1: one whose tag is right, of the stations in turn; 0: none */
void dp_hello_rest(struct dp *d, uint64_t until);         /* those that wait bring Python in (DP_W_TRUST) only then */
uint64_t dp_unread(struct dp *d);                         /* by bit: stations of which frames of no known session have come, each
                                                           * once in 640 ms; cleared. They bring Python in as HELLOs do */
int dp_hello_strange(struct dp *d, struct dp_hello *out); /* 1: the last one whose tag is wrong, given once; 0: none */

/* ---- keys, in one locked block ---- */
struct dp_vault;
struct dp_vault *dp_vault_new(void);                 /* NULL: no memory */
void dp_vault_free(struct dp_vault *v);              /* zeroes it */
int dp_vault_locked(const struct dp_vault *v);       /* 0: the kernel did not lock it (RLIMIT_MEMLOCK) */
struct dp_vault_key { uint32_t place, size, id; };   /* size: 16 or 32 bytes */
struct dp_vault_file { uint32_t count, line; struct dp_vault_key key[4]; };
/* A key file from its descriptor: 0, or what is wrong: -errno; not the digits of a key; not at this line (from 1); `count` keys, too
 * many; one twice. -ENOSPC: too many are kept. Its keys are kept until dp_vault_only. */
enum dp_vault_problem { DP_VAULT_NO_KEY = 1, DP_VAULT_BAD_LINE = 2, DP_VAULT_TOO_MANY = 3, DP_VAULT_TWICE = 4 };
int dp_vault_read(struct dp_vault *v, int fd, struct dp_vault_file *out);
int dp_vault_put(struct dp_vault *v, const uint8_t *key, uint32_t size, struct dp_vault_key *out); /* -EINVAL, -ENOSPC */
void dp_vault_only(struct dp_vault *v, uint32_t places); /* keep those at these places (bits), zero the others */
const uint8_t *dp_vault_key(const struct dp_vault *v, uint32_t place); /* NULL: none is there */
#define DP_VAULT_INFO_MAX 512
/* HKDF-SHA-256 of the key (32 bytes) at this place with this info, as the to-th of dp_vault_derived (0..7). -EINVAL; -ENOTSUP: libcrypto
 * lacks it. */
int dp_vault_derive(struct dp_vault *v, uint32_t place, const uint8_t *info, uint32_t size, uint32_t to);
const uint8_t *dp_vault_derived(const struct dp_vault *v); /* 32 bytes each, one behind the other, until dp_vault_wipe */
void dp_vault_wipe(struct dp_vault *v);

/* ---- clients ---- slot numbers 0..DP_CLIENTS_MAX-1 */
/* fd: a connected stream socket, owned (and closed) by the data path from then on. client: not that of another slot, and not
 * given again while messages of its former owner may still be delivered. -EUSERS: all slots taken. */
int dp_client_add(struct dp *d, int fd, uint16_t client, uint32_t *slot);
/* The slot is given up; also needed after dp_take told of a client's end. Embargoed frames are dropped. hard 1: close now. hard 0:
 * write out what is queued and released, then close (bounded by deadline_ns after now). */
int dp_client_remove(struct dp *d, uint32_t slot, int hard, uint64_t deadline_ns);
/* As with hard 0, for a client that is cut off: what is queued, its ERROR last, is kept until the client reads it or deadline_ns is
 * over. At most DP_LAST_WORDS_MAX such clients, and together no more bytes than the queue of one client may have. */
int dp_client_cut_off(struct dp *d, uint32_t slot, uint64_t deadline_ns);
/* Queue a frame for a client now (embargoed: at its place behind what is queued; urgent: before what is not yet begun). position
 * UINT64_MAX counts as reached at every level. */
int dp_client_put(struct dp *d, uint32_t slot, uint8_t type, uint8_t flags, uint16_t handle, const uint8_t *body, uint32_t size,
                  uint64_t position, uint32_t level, uint32_t urgent);
enum dp_may { DP_MAY_NOT = 0, DP_MAY_SEND = 1, DP_MAY_WAIT = 2 }; /* refused; taken; waits at the head of the client's input */
/* SEND on handle goes to group, delivered in this ordering (ZJW_ORDERING). direct, for orders abcast and token: no word of Python's
 * is needed for what goes there. */
int dp_handle(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t may_send, uint32_t ordering, uint32_t direct);
int dp_handle_drop(struct dp *d, uint32_t slot, uint16_t handle);
/* Deliver from here. ordering ZJ_FIFO (level ordered only): messages in FIFO order as well, on acceptance; members of a group in
 * total order do not get these. Of orders abcast and token (no level ack): what dp_multi_deliver and the machine deliver. */
int dp_join(struct dp *d, uint32_t slot, uint16_t handle, uint32_t group, uint32_t level, uint32_t no_self, uint32_t ordering);
int dp_leave(struct dp *d, uint32_t slot, uint32_t group);
int dp_need_ack(struct dp *d, uint32_t group, uint32_t yes);         /* messages to the group need level ack */
int dp_need_preack(struct dp *d, uint32_t group, uint32_t yes);      /* somebody waits for level preack of those to this group */
void dp_hold(struct dp *d, uint32_t yes);            /* 1: take no new messages from clients (closed, draining) */
int dp_unsent(const struct dp *d);                   /* messages read from clients, or dp_send's, not yet taken by the core */
/* What dp_reset would say now, by slot; nothing is changed but what the core's positions allow by now is released. */
int dp_lost(struct dp *d, struct dp_lost lost[DP_CLIENTS_MAX]);
/* After an instance ended: forget held entries not released at their level, and dp_send's messages that the core has not taken.
 * lost (or NULL): by slot, what that means. A client's message of which the core has taken a part is offered again as a whole.
 * From the next turn on DONE counts continue after the undecided messages at every level, so that a number means the same message
 * at both ends. */
int dp_reset(struct dp *d, struct dp_lost lost[DP_CLIENTS_MAX]);
int dp_take(struct dp *d, struct dp_take *out);      /* 1: one; 0: none. data valid until the next dp_ call */
int dp_group(struct dp *d, struct dp_group *out);    /* the message delivery stands at; dp_group_done() lets it go on */
void dp_group_done(struct dp *d);
int dp_send(struct dp *d, uint16_t client, uint32_t group, uint8_t type, uint8_t need_ack, const uint8_t *data, uint32_t size);
                                                     /* a message of Python's; queued inside (at most 1 MiB), -ENOBUFS beyond */
struct dp_client_info {
    uint64_t queued_bytes, unsent_bytes, sent, delivered, done[3]; uint16_t client; uint8_t closing, paused, throttled, pad[3];
};
int dp_clients(const struct dp *d);                  /* slots in use, also those still being written out, but not those cut off */
int dp_client_info(const struct dp *d, uint32_t slot, struct dp_client_info *out);
void dp_counters(struct dp *d, struct dp_counters *out); /* the kernel's drops up to now included */
uint64_t dp_memory(const struct dp *d);

/* Between two instances: this core, of so many stations, takes the place of the present one, which exists until dp_reset. */
void dp_core(struct dp *d, struct zj_core *core, uint32_t stations);

/* ---- cores of two stations ---- */
/* Frames with flag PAIR of this station (1..n) go to this core, which must exist until it is replaced (NULL: none). Its timers run in
 * dp_turn; messages that it has accepted, and others offered to it, are Python's. */
int dp_pair(struct dp *d, uint32_t station, struct zj_core *core);
/* Its records: those that wait for it, as the machine makes them; index: of the other end in the core; incarnation: of its station.
 * The queue must exist as long as the core. */
int dp_pair_records(struct dp *d, uint32_t station, struct zj_sendq *queue, uint32_t index, uint32_t incarnation);
uint64_t dp_pair_malformed(const struct dp *d, uint32_t station); /* messages that were no records */
int dp_pair_waits(struct dp *d, uint32_t station, uint32_t yes); /* 1: room in its window is news */
/* Bitmaps (bit k: station k + 1), which are cleared, as is the news of room: cores with news, and stations whose frames came while there was none. */
void dp_pairs(struct dp *d, uint64_t *news, uint64_t *asked);

/* The client is one of a user's whose memory (dp_user_limits: the one that would need more is cut off) and rate are bounded. */
int dp_client_bound(struct dp *d, uint32_t slot, uint32_t user);
/* Bytes of memory that the queues, and the unfinished input, of all programs of such a user may take, and the queues of all such
 * users together; 0: no limit. */
void dp_user_limits(struct dp *d, uint64_t queue_bytes, uint64_t input_bytes, uint64_t queue_bytes_all);
/* Messages, and bytes of messages, a second that all programs of such a user may send; 0: no limit. Whose user has sent more is not
 * read for a while. */
void dp_user_rates(struct dp *d, uint64_t messages, uint64_t bytes);
#define DP_RATE_BURST_NS 100000000ull                /* so much of its rate a user may send at once, */
#define DP_RATE_STEP_NS 5000000ull                   /* and so much at least when it had to wait */
/* When so many more units will have been sent at exactly this rate (0: no limit), after those that will have been when it is due. */
uint64_t dp_rate_after(uint64_t due, uint64_t now, uint64_t units, uint64_t rate);
uint64_t dp_rate_free(uint64_t due, uint64_t now);   /* 0: the next one may be sent; else when it may */

/* ---- multicast messages of clients ---- */
int dp_client_hold(struct dp *d, uint32_t slot, uint32_t yes); /* 1: nothing more is read from this client */
/* Python has taken a message that dp_take has given it; its number among the client's messages, from 1, is *number. */
int dp_own_sent(struct dp *d, uint32_t slot, uint32_t level, uint32_t notify, uint64_t *number);
/* Such a message is refused: an ERROR with this code and text. */
int dp_refuse(struct dp *d, uint32_t slot, const char *code, const char *text, uint16_t handle);
/* It has reached all levels up to this one. */
int dp_own_done(struct dp *d, uint32_t slot, uint64_t number, uint32_t level);

/* ---- the machine of groups that overlap (proto/core/multi) ---- */
/* order: 0 abcast, 1 token; era: its number in 8 bytes. */
/* From now on the data path gives it what links bring, and carries out what comes of it. machine NULL: Python does. sends: messages
 * of programs as well; else, that there may be room for one is news (DP_W_PAIR). bytes_max: of one, and of all that are not
 * finished. */
int dp_multi_drive(struct dp *d, const struct zj_multi_api *api, struct zj_multi *machine, uint32_t sends, uint64_t bytes_max);
/* Now: all that links have brought, and what has been given to the machine since. Returns the stations (bits) for which there are
 * records, and no link. */
uint64_t dp_multi_go(struct dp *d);
struct dp_record { uint8_t *data; uint32_t size, group, incarnation; uint16_t client; uint8_t source, type; };
int dp_multi_foreign(struct dp *d, struct dp_record *out); /* 1: one that is not of the machine's era, until the next call; 0: none */
/* A message of this order is delivered: to all programs here that are in one of its groups, by dp_join, to each on its lowest handle. */
struct dp_multi_message {
    const uint8_t *data; uint64_t time; uint32_t size, number; uint16_t client; uint8_t origin, order, count, pad[3];
    uint32_t groups[16];
};
int dp_multi_deliver(struct dp *d, const struct dp_multi_message *message);
int dp_multi_release(struct dp *d, uint32_t order);   /* the next one of this order has reached level preack; -EINVAL: there is none */
/* The views of an era are at this place of an order. Returns the position for dp_client_put, at level DP_MULTI_LEVEL + order. */
#define DP_MULTI_LEVEL 3
uint64_t dp_multi_view(struct dp *d, uint32_t order, uint64_t era);
void dp_multi_settled(struct dp *d, uint64_t era);    /* all before this era is closed */
/* A message with this number has been sent for a client (slot DP_CLIENTS_MAX: it has gone); as dp_own_sent. */
int dp_multi_own(struct dp *d, uint32_t slot, uint32_t number, uint32_t size, uint32_t level, uint32_t notify);
void dp_multi_finished(struct dp *d, uint32_t number);
/* 1: a message that waits here for room goes before one to these groups. */
int dp_multi_goes_first(const struct dp *d, uint32_t count, const uint32_t *groups);
void dp_multi_unfinished(const struct dp *d, uint32_t *count, uint64_t *bytes);
/* Forget all of it: places, unfinished messages, who is in which group; the machine is not driven any more. */
void dp_multi_clear(struct dp *d);

/* ---- tests and tools ---- */
uint64_t dp_seal(const uint8_t key[16], const uint8_t *data, uint32_t size); /* SipHash-2-4 */
uint32_t dp_overhead(uint32_t guard);                /* bytes of a frame besides its PDU under this guard (enum dp_guard_kind) */
/* One frame as it would be sent (behind the Ethernet header), its size; -EAGAIN: nothing can be sealed now. out: room for the PDU and
 * dp_overhead. */
int dp_seal_frame(struct dp *d, const uint8_t *pdu, uint32_t size, uint8_t *out);
/* One frame as if received: 0 and its PDU in out (room for the frame), or why it is dropped (enum dp_refusal). */
int dp_open_frame(struct dp *d, const uint8_t *frame, uint32_t size, uint64_t now, uint8_t *out, uint32_t *out_size);
/* The classic BPF program that dp_link_open attaches; returns the number of instructions (each 8 bytes: u16 code, u8 jt, jf,
 * u32 k). */
uint32_t dp_filter(uint32_t ethertype, uint32_t cluster, uint8_t *out, uint32_t max);

#endif
