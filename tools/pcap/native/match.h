/* Finding frames by what is in them, so that only those that are shown come to Python. */
#ifndef ZP_MATCH_H
#define ZP_MATCH_H

#include "capture.h"

/* zm_filter.use: which of the fields behind it count. BAD: only frames with a problem; RELATIVE: the times count from base_ns;
 * FRAMES: nothing behind last_frame is looked at, the end is ZP_FULL. */
#define ZM_CLUSTER 1
#define ZM_INCARNATION 2
#define ZM_INSTANCE 4
#define ZM_SEQ 8
#define ZM_GROUP 16
#define ZM_TEXT 32
#define ZM_BAD 64
#define ZM_DIRECTION 128
#define ZM_RELATIVE 256
#define ZM_FRAMES 512

struct zm_filter {         /* what is wanted, all of it */
    int64_t from_ns, to_ns; /* both inclusive; INT64_MIN and INT64_MAX: any, and frames without a time stamp too */
    int64_t base_ns;       /* relative: set to the first frame of ours with a time stamp unless base_known */
    uint64_t kinds;        /* bit k: kind k; ~0: any, unknown ones too */
    uint64_t sources;      /* bit s - 1: source s; ~0: any, impossible ones too */
    uint32_t ethertype;
    uint32_t use;          /* ZM_… */
    uint32_t cluster, incarnation, instance;
    uint32_t seq_first, seq_span; /* seq - seq_first < seq_span, mod 2^32 */
    uint32_t group;        /* a DATA PDU with a message of it */
    uint32_t direction;
    uint32_t text_size;
    uint32_t base_known;
    uint32_t pad;
    uint64_t first_frame, last_frame; /* in the file */
    const uint8_t *text;   /* in the payload */
};

struct zm_hit {
    struct zp_frame frame; /* its data: valid until the buffer is filled again */
    struct zp_link link;
    uint32_t problem;      /* enum zp_problem */
    uint32_t why;          /* zm_follow: ZM_IS_… */
    uint64_t skipped;      /* frames of ours that did not match, so far */
    uint64_t unread;       /* frames of a link type that cannot be read, so far */
    uint32_t unread_link;  /* LINKTYPE_ number of the first of them */
    uint32_t pad;
};

/* The next frame of ours that is wanted: ZP_FRAME, or what zp_next says. A frame too short for a header matches only if no field of the
 * header is asked for. */
int zm_next(struct zp_walk *w, struct zm_filter *filter, struct zm_hit *hit);

/* zm_hit.why. COPY: the PDU itself; ASKED: a NAK for it; ACK: the first PDU of its source, in this capture, whose A says that it has
 * it; PACK: the first of its source whose P says that everybody has it; RESET: bus, RST or RSTC, the first of its source in its epoch
 * while that one has not said in P that everybody has it. */
#define ZM_IS_COPY 1
#define ZM_IS_ASKED 2
#define ZM_IS_ACK 4
#define ZM_IS_PACK 8
#define ZM_IS_RESET 16

struct zm_track {          /* one sequenced PDU, and what was seen of it so far; zero all but the first five */
    uint32_t ethertype, cluster, incarnation, instance, seq; /* instance: its own; nothing of an earlier one counts */
    uint32_t src;
    uint32_t check_known;  /* a copy has been seen: `check` is its check */
    uint32_t over;         /* its source has begun another life */
    uint64_t check;
    uint64_t acked, packed; /* bit s - 1: station s has said so */
    uint64_t epoch[64];    /* of each one's last RST */
    uint64_t conflicts;    /* other PDUs under its number */
};

/* The next frame that belongs to the life of the PDU. */
int zm_follow(struct zp_walk *w, struct zm_track *track, struct zm_hit *hit);

#endif
