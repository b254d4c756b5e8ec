/* Load and measuring client of `zenjun bench`, one process per station.
 *
 * load_core.c is the part that does not know which group communication system it measures: windows, sequence checks, order
 * digest, latency histograms. A backend joins one group, takes messages and hands deliveries over through zl_deliver(). Two
 * systems are thus never measured by two different codes.
 *
 * Talk with the parent, in lines: the client prints READY once all members are in the group; the parent answers
 * "GO t0 w0 w1 end" (CLOCK_MONOTONIC, ns): sending starts at t0, what is delivered in [w0, w1) counts, sending ends at w1, and
 * what has not arrived at `end` is given up. The client prints "RESULT {json}" and stays until its standard input ends, so
 * that its CPU time can still be read. One thread; no state outside this process.
 *
 * With --watch 1 it also says at once what it is told of the membership, "GROUP t n" (so many members of the group) and
 * "STATIONS t mask" (hexadecimal, bit k - 1: station k is in the view of the stations), and takes two more lines while the window
 * is open: MARK begins the next phase of those for which the report gives the longest time without a delivery (a gap belongs to
 * the phase in which it ends), and STOP ends the window now instead of at w1, `end` moving with it.
 */
#ifndef ZL_LOAD_H
#define ZL_LOAD_H

#include <stddef.h>
#include <stdint.h>

#define ZL_IDS_MAX 64u
#define ZL_HEADER_BYTES 32u
#define ZL_SIZE_MIN (ZL_HEADER_BYTES + 1u) /* header and the closing byte that repeats the sequence number's lowest */
#define ZL_SIZE_MAX (16u * 1024u * 1024u)

enum zl_mode { ZL_THROUGHPUT, ZL_CLOSED, ZL_RATE, ZL_IDLE };

struct zl_options {
    uint32_t id;       /* own number, 1..stations */
    uint32_t stations; /* members to wait for before READY, 1..ZL_IDS_MAX */
    uint32_t senders;  /* 1..senders send, the others listen; 0 in mode idle */
    uint32_t size;     /* bytes of every message, ZL_SIZE_MIN..ZL_SIZE_MAX */
    uint32_t inflight; /* most own messages sent and not yet delivered here, at least 1 */
    uint32_t level;    /* 0 ordered, 1 preack, 2 ack; for backends that have levels */
    uint32_t order;    /* of the group, for backends that have several: enum zenjun_order */
    enum zl_mode mode;
    int watch;
    double rate;        /* messages per second of this sender, mode rate */
    const char *target; /* the backend's address: path of the daemon's socket */
    const char *group;
};

struct zl_backend {
    const char *name;
    /* Connect and join, waiting at most until `end` (ns). 0, or -1 with the reason on standard error. */
    int (*open)(const struct zl_options *o, uint64_t end);
    /* Where the next message is to be written, o->size bytes long; NULL while there is no room. Its bytes are those of
     * zl_pattern() or of an earlier message. */
    uint8_t *(*slot)(void);
    /* Send what stands in the slot: 1 taken, 0 refused for now (call again), -1 broken. */
    int (*commit)(void);
    /* Write what is pending and hand over what has arrived, waiting for it at most until `until` (ns, 0: not at all).
     * 0, or -1 when the connection is broken. */
    int (*turn)(uint64_t until);
    void (*close)(void);
};

/* Backend → core. */
void zl_deliver(const uint8_t *message, size_t size);
void zl_members(uint32_t members); /* the group's membership as it stands now */
void zl_stations(uint64_t mask);   /* the view of the stations as it stands now, for backends that are told; bit k - 1: station k */
void zl_event(const char *text);   /* something the report should mention; kept: the first 16 */
/* Bytes every message is made of before its header is written. */
void zl_pattern(uint8_t *to, size_t size);

uint64_t zl_now(void);
/* Wait until fd has one of `events` (poll) or `until` (ns) has come; the revents, 0 on time-out. */
short zl_poll(int fd, short events, uint64_t until);

/* Run one client. argv: --name value pairs; see zl_parse() in load_core.c. Exit status: 0 reported, 1 could not start (the
 * reason is on standard error), 2 wrong arguments. */
int zl_run(int argc, char **argv, const struct zl_backend *backend);
/* The lines shared with the raw program. zl_wait_go: 1 got it, 0 not yet, -1 the parent has gone. */
struct zl_go { uint64_t t0, w0, w1, end; };
int zl_wait_go(struct zl_go *go, uint64_t until);
void zl_wait_end(void);
const char *zl_argument(int argc, char **argv, const char *name, const char *otherwise);

/* For cffi. */
int zl_load_main(int argc, char **argv); /* zl_run with the zenjun backend */
int zl_raw_main(int argc, char **argv);  /* load_raw.c */
int zl_floor_main(int argc, char **argv); /* load_floor.c: a bare station, */
int zl_bare_main(int argc, char **argv);  /* and its program */
/* Latency histogram, exposed for its test: the slot of a value and the value a slot stands for (ns). */
uint32_t zl_slot_of(uint64_t value);
uint64_t zl_value_of(uint32_t slot);

#endif
