/* What one capture says about its clock: when PDUs were first sent and received. */
#ifndef ZP_CLOCKS_H
#define ZP_CLOCKS_H

#include "capture.h"

/* zk_mark.what */
#define ZK_SENT 1
#define ZK_RECEIVED 2

struct zk_mark {           /* one event; of a PDU's several ones the first counts */
    uint64_t key;          /* of the PDU: the same at every station */
    int64_t time_ns;
    uint8_t src, what;
    uint8_t pad[2];
    uint32_t tick_ns;      /* the time stamp's unit: the event was less than this later */
};

struct zk_state {          /* set the first three, the rest zero; goes on over the files of one station */
    uint32_t station, ethertype;
    uint64_t mask;         /* only PDUs whose key has none of these bits, to bound memory: the same ones everywhere */
    uint32_t incarnation, life; /* own one; how many were seen, 2: at least two */
    uint32_t base_known;   /* where the own stream was when the capture began: */
    uint32_t base_seq, base_instance, first_seq, first_known, age, age_known, pad;
    uint64_t base_clock;
    uint64_t frames;       /* of ours, whole */
    uint64_t untimed;      /* of them without a time stamp or direction */
    uint64_t unproven;     /* own ones that may have been sent before the capture began, too: not used */
    uint64_t backs;        /* frames of ours that are stamped earlier than the greatest stamp before them: */
    int64_t back_ns;       /* by so much at most */
    int64_t last_ns;       /* that greatest stamp; of all files, with last_known */
    uint64_t last_known;
};

/* A number that stands for the PDU, the same at every station and for every copy. */
uint64_t zk_key(const struct zp_pdu *p);

/* Marks for all records that are there, until there is no room (ZP_FULL) or nothing is left. *rows: how many there are. */
int zk_collect(struct zp_walk *w, struct zk_state *s, struct zk_mark *marks, uint64_t capacity, uint64_t *rows);

struct zk_copy {           /* one frame with a valid PDU, for comparing captures */
    uint64_t key;
    int64_t time_ns;       /* INT64_MIN: none */
    uint64_t index;        /* in its file, from `first` */
    uint64_t mac;          /* of its sender; all ones: not known */
    uint8_t kind, src, direction;
    uint8_t pad[5];
};
/* Rows for all valid PDUs. *damaged: counts frames of ours that hold none. Results as zk_collect. */
int zk_copies(struct zp_walk *w, uint32_t ethertype, uint64_t first, struct zk_copy *copies, uint64_t capacity, uint64_t *rows,
              uint64_t *damaged);

#endif
