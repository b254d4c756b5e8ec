/* Several links: what comes in on which of them (hearing.c), and which one a frame takes (spread.c). Part of internal.h. */
#ifndef ZJ_DP_SEVERAL_H
#define ZJ_DP_SEVERAL_H

#include <stdint.h>

#include "dp.h"
#include "zj.h"
#include "zj_wire.h"

#define DP_DOUBLE_NS 5000000ull                /* after the first copy; links that differ by more bring frames, not copies */
#define DP_DOUBLE_SEALED_NS 100000000ull
#define DP_SEEN 4096u
#define DP_SAID_REST_NS 1000000ull             /* between two visits of Python's for LINKS */
#define DP_AGAIN_REST_NS 5000000ull            /* between two for what is asked for again */
#define DP_AGAIN_SPAN_NS 20000000ull
#define DP_AGAIN_LARGE 4u                      /* PDUs above base that are asked for again in a span: then they go in pieces */
#define DP_EVIDENCE 8u                         /* frames in a row that were lost, */
#define DP_EVIDENCE_NS 5000000ull              /* sent over so long: a full queue loses many at once, and carries some in between */
#define DP_WENT 8192u                          /* twice the largest window */
#define DP_BUSY_SPAN_NS 2000000ull
#define DP_BUSY_FRAMES 16u
#define DP_CHUNK 8u                            /* frames that are spread over one link together */
#define DP_WEIGHT 1000u
#define DP_AHEAD_BYTES 65536u
#define DP_LATE_LEAST_NS 2000000ull            /* by so much at least, and at most, a frame may be later on one link than on another */
#define DP_LATE_MOST_NS 40000000ull            /* and a link on which nothing has come for so long carries nothing */
#define DP_LATE_KEPT_NS 1000000000ull          /* the largest one found counts for so long */
#define DP_FRONT 1024u                         /* numbers of a station */

struct dp_seen { uint64_t id, at; uint32_t below, instance; uint8_t links, src, own_word, numbered; }; /* one that was accepted, and where it came */
/* What has come of a station on one link: its numbers below `below` have gone by. */
struct dp_gone { uint32_t below, instance; uint64_t at; };
/* The same on any link: when the last numbers went by there, and by how much frames have been later on another one. */
struct dp_front { uint32_t below, instance; uint64_t late, late_at, at[DP_FRONT]; };
struct dp_hearing {
    uint32_t self, several;                    /* several: there is more than one link */
    uint64_t due;                              /* Python is wanted for LINKS or an answer; 0: it is not */
    uint32_t asked;                            /* by bit: links on which a PROBE wants one */
    uint64_t waits[DP_LINKS_MAX];              /* by bit: stations whose LINKS has not been taken */
    struct dp_seen seen[DP_SEEN];
    struct dp_heard heard[DP_LINKS_MAX][ZJW_STATIONS_MAX];
    uint8_t probing[DP_LINKS_MAX][ZJW_STATIONS_MAX][4]; /* session of the PROBEs in `heard` */
    uint64_t moved;                            /* by bit: stations of which something has gone by since hearing_passed was asked */
    struct dp_gone gone[DP_LINKS_MAX][ZJW_STATIONS_MAX];
    struct dp_front front[ZJW_STATIONS_MAX];
    struct dp_said said[DP_LINKS_MAX][ZJW_STATIONS_MAX];
};
/* Of a station in `moved`: the number below which all have gone by on every link that carries anything of it (zj_passed); wait_ns:
 * for how long what is missing above may still come. */
uint32_t hearing_passed(const struct dp_hearing *h, uint32_t src, uint64_t now, uint64_t *wait_ns);
int hearing_is_double(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now);
/* frame: as it came; pdu: what the core has taken of it. */
void hearing_accepted(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *pdu, uint64_t now);
uint32_t hearing_source(struct dp_hearing *h, const struct zj_frame *frame); /* index of the station that a double is of */
void hearing_copy(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now); /* of a double */
/* What is to be believed: as it came, and its body. */
void hearing_links(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now);
void hearing_probe(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, const struct zj_frame *body, uint64_t now);
void hearing_piece(struct dp_hearing *h, uint32_t link, const struct zj_frame *frame, uint64_t now);
void hearing_own(struct dp_hearing *h, uint32_t link, uint64_t now); /* a frame of this station itself has come: links are joined */

struct dp_went { uint64_t at; uint32_t seq, instance, nth; uint8_t links; };
struct dp_spread {
    uint32_t self, how, mask, doubtful;
    uint8_t doubt_is_new;
    uint64_t since;                            /* of the present span; frames in it, and in the one before */
    uint32_t lately, before;
    uint64_t load[DP_LINKS_MAX];
    uint32_t weight[DP_LINKS_MAX];
    uint32_t alone[DP_LINKS_MAX], last[DP_LINKS_MAX], run[DP_LINKS_MAX]; /* frames that went over it alone; the last one asked for; in a row, */
    uint64_t began[DP_LINKS_MAX];              /* and when the first of them was sent */
    struct dp_went went[DP_WENT];
};
int spread_may(struct dp_spread *s, const struct zj_frame *f);     /* a first sending of own DATA */
void spread_went(struct dp_spread *s, const struct zj_frame *f, uint32_t links, uint64_t now);
void spread_again(struct dp_spread *s, const struct zj_frame *f);  /* it is about to be sent again, if it went before */
/* Links that so many first sendings take; 0: all. pressed: zj_pressed. */
uint32_t spread_over(struct dp_spread *s, uint32_t frames, int pressed, uint64_t now);
uint32_t spread_least(const struct dp_spread *s, uint32_t links);
void spread_loaded(struct dp_spread *s, uint32_t link, uint32_t bytes);

#endif
