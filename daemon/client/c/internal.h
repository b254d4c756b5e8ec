/* What the files of the library share. The constants of frames are in ../../datapath/dp_client.h. */
#ifndef ZENJUN_INTERNAL_H
#define ZENJUN_INTERNAL_H

#include "dp_client.h"
#include "json.h"
#include "zenjun.h"

#include <string.h>
#include <sys/types.h>

#define HANDLES (ZENJUN_HANDLES_MAX + 1)
#define REASON_BYTES 256u
#define JOIN_FLAGS (DP_JOIN_OPEN | DP_JOIN_SEND_ONLY | DP_JOIN_NO_SELF)

/* A handle changes its state twice: when a frame arrives, for calls that send and wait, and when the frame is taken, for the items.
 * In between are those that are unread. */
enum handle_state {
    HANDLE_FREE,
    HANDLE_JOINING,
    HANDLE_JOINED,
    HANDLE_LEAVING, /* LEAVE is sent */
    HANDLE_GONE     /* nothing more arrives; free when that has been taken */
};
struct handle {
    void *context;
    int error;         /* why the join was refused */
    uint8_t state;     /* enum handle_state, as of what has arrived */
    uint8_t entered;   /* as of what has been taken: its first view has come */
    uint8_t forgotten; /* GONE by the end of an instance, not by a view */
    uint8_t send_only, discard;
};

struct request {
    uint32_t id;
    uint16_t kind;
    uint16_t handle;  /* the join with SEND_ONLY that it stands behind, 0: none */
    uint8_t used, answered;
};

/* Messages first..last were refused. */
struct refused { uint64_t first, last; int error; };
/* The end of an instance: messages before `end` whose number is `from[level]` or above have not reached the level, as far as known. */
struct lost { uint64_t from[ZENJUN_LEVELS], end; };

struct buffer {
    uint8_t *bytes;
    size_t size; /* of the memory */
    size_t from; /* what has been taken */
    size_t to;   /* what has been put in */
};

/* What one item is made of. */
struct parts {
    struct zenjun_view view;
    struct zenjun_event event;
    struct zenjun_reply reply;
    struct zenjun_refusal refusal;
};

struct zenjun {
    int fd;
    pid_t owner;
    const volatile uint8_t *here; /* 1; in a child of fork() 0. NULL: the kernel does not do that, and getpid() is asked */
    int ended;          /* why the connection has ended */
    int fatal;          /* why it will: what the daemon has said before it closes */
    int closing;        /* BYE is sent: what comes is dropped */
    int deaf;           /* writing has failed; what the daemon said before may still be read */
    char reason[REASON_BYTES];
    struct buffer in;   /* frames; before in.from they have been taken */
    size_t seen;        /* those before it have been looked at by zjc_arrive() */
    size_t need;        /* bytes of the frame there, as far as known */
    struct buffer out;
    uint64_t inbox_max, output_max;
    int welcomed, fenced, quorum, outside;
    uint64_t instance;
    struct zenjun_welcome welcome;
    uint32_t orders; /* that groups can have: bit k for number k of enum zenjun_order */
    uint64_t sent;      /* SEND frames */
    uint64_t counts[ZENJUN_LEVELS]; /* of the last DONE; refused messages have no number there */
    struct refused *refused;        /* ascending */
    size_t refused_count, refused_size;
    struct lost *lost;
    size_t lost_count, lost_size;
    struct handle handles[HANDLES];
    uint32_t last_handle;
    struct request requests[DP_REQUESTS_MAX];
    uint32_t last_id;
    struct arena arena;   /* of the item */
    struct arena scratch; /* of a frame that arrives */
    struct arena kept;    /* for the life of the connection */
    struct parts parts;   /* of the item */
    struct parts arriving;
    struct zenjun_item item;
    struct zenjun_facts facts;
};

/* ---- numbers: all integers of frames are little-endian, and may stand anywhere */
static inline uint64_t get_le(const uint8_t *p, unsigned bytes)
{
    uint64_t value = 0;

    memcpy(&value, p, bytes); /* one instruction where `bytes` is a constant */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}
static inline void put_le(uint8_t *p, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++, value >>= 8)
        p[i] = (uint8_t)value;
}
static inline uint32_t frame_size(const uint8_t *p) { return (uint32_t)get_le(p + DP_HEADER_SIZE, 4); }
static inline uint32_t frame_handle(const uint8_t *p) { return (uint32_t)get_le(p + DP_HEADER_HANDLE, 2); }

/* ---- io.c */
/* Bytes that are unread, and unwritten. */
static inline size_t pending(const struct buffer *b) { return b->to - b->from; }
/* The connection is over; the first reason stays. text: NULL for none. */
void zjc_end(struct zenjun *z, int error, const char *text);
/* Set the reason that the program is told. */
void zjc_say(struct zenjun *z, const char *text);
/* Whether this is a child of the process that has opened the connection. */
int zjc_forked(const struct zenjun *z);
/* 0, FORKED, or why the connection has ended. */
int zjc_usable(const struct zenjun *z);
/* Write what the socket takes now. */
void zjc_flush(struct zenjun *z);
/* Write, wait for the socket until `*end`, and read; once it has come, one turn is left. answer: somebody waits for one, so read on beyond the inbox's limit.
 * 0, TIMEOUT, INTERRUPTED, INBOX_FULL, FORKED. */
int zjc_turn(struct zenjun *z, int64_t *end, int answer);
/* Now, and `ms` from now (negative: for ever), in ns of CLOCK_MONOTONIC. */
int64_t zjc_now(void);
int64_t zjc_until(int ms);
/* Room for so many bytes more behind b->to. 0, NO_MEMORY. */
int zjc_room(struct buffer *b, size_t size);
/* Append one frame, of a head and the body's parts. 0, NO_MEMORY. */
int zjc_put(struct zenjun *z, unsigned type, unsigned flags, uint32_t handle, const struct iovec *parts, int n);

/* ---- arrive.c */
/* Look at the frames that are whole since the last time: what they mean for the connection. A violation ends it. */
void zjc_arrive(struct zenjun *z);
/* The number of the message that is the count-th of those not refused. */
uint64_t zjc_number(const struct zenjun *z, uint64_t count);
/* The number of the last message that has reached a level, by what the daemon has counted there. */
uint64_t zjc_reached(const struct zenjun *z, uint64_t count);
/* Index of the request with this id, -1: none. */
int zjc_request(const struct zenjun *z, uint32_t id);
/* Whether a frame, looked at before, is an item. */
int zjc_is_item(const struct zenjun *z, const uint8_t *frame);

/* ---- decode.c: bodies to structs. 0, PROTOCOL, NO_MEMORY */
/* known: orders that groups can have, bit k for number k of enum zenjun_order. */
int zjc_decode_welcome(struct zenjun_welcome *w, uint32_t *known, struct arena *a, const uint8_t *body, size_t size);
int zjc_decode_view(struct zenjun_view *v, const struct zenjun *z, struct arena *a, const uint8_t *body, size_t size);
int zjc_decode_event(struct zenjun_event *e, struct arena *a, const uint8_t *body, size_t size);
/* handle: the one that the body names, else unchanged. */
int zjc_decode_error(struct zenjun_refusal *r, uint32_t *handle, struct arena *a, const uint8_t *body, size_t size);
/* kind: what was asked. */
int zjc_decode_reply(struct zenjun_reply *r, unsigned kind, struct arena *a, const uint8_t *body, size_t size);
/* A number of the list of members has this connection. */
int zjc_has_self(const struct zenjun *z, const struct zenjun_member *const *members, size_t count);

/* ---- errors.c */
/* The number of a code of the protocol, OTHER for an unknown one. */
int zjc_error_number(const char *code);

#endif
