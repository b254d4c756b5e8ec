/* Groups that overlap: order and stability within one open era (rules O1-O8 and S1-S4 of docs/multicast.md), for what comes per
 * message. It is what proto/multicast/ordering.py does, and that class is its twin: a change of eras goes on in Python, which takes
 * the state out (zj_multi_messages and what follows it) and puts it in again when the next era is open. No clock, no randomness,
 * no input or output. Stations are numbers from 1 here; in a bitmap station z is bit z - 1. One thread. */
#ifndef ZJ_MULTI_H
#define ZJ_MULTI_H

#include "zj.h"

#define ZJ_MULTI_GROUPS 16
#define ZJ_MULTI_ORDERS 2

typedef struct zj_multi zj_multi;
typedef struct zj_sendq zj_sendq;

/* What has happened, in order. */
enum zj_multi_kind { ZJ_MULTI_DELIVER, ZJ_MULTI_RELEASE, ZJ_MULTI_FINISHED };
struct zj_multi_event {
    uint64_t era, time;
    const uint8_t *data;        /* of DELIVER: the message, until zj_multi_clear */
    uint32_t size, number, incarnation;
    uint16_t client;
    uint8_t kind, origin, order, count;
    uint8_t pad[6];
    uint32_t groups[ZJ_MULTI_GROUPS]; /* `count` of them */
};

/* A message that is not finished, when the state is taken out. */
enum zj_multi_flag { ZJ_MULTI_SAFE = 1, ZJ_MULTI_REPORTED = 2, ZJ_MULTI_DECIDED = 4, ZJ_MULTI_DELIVERED = 8, ZJ_MULTI_OLD = 16 };
struct zj_multi_message {
    uint64_t era, destinations, report, time, input;
    uint32_t number, incarnation, group, size;
    uint16_t client;
    uint8_t origin, order, flags;
    uint8_t pad[3];
    const uint8_t *data;        /* as in a record DATA; NULL: of an earlier era, which Python still knows */
};
struct zj_multi_last { uint32_t incarnation, number; uint16_t client; uint8_t origin, order; };

/* window, settle: as of class Ordering. NULL: no memory. */
zj_multi *zj_multi_create(uint32_t station, uint32_t incarnation, uint32_t window, uint64_t settle);
void zj_multi_destroy(zj_multi *m);

/* ---- an era opens: zj_multi_open, then what differs in the tables from the era before, then what is there already */
/* lives: of each of 64 stations that take part its incarnation, else 0. */
void zj_multi_open(zj_multi *m, uint64_t era, uint64_t clock, uint64_t number, uint64_t input, const uint32_t *lives);
/* Of each order: bitmaps of the stations in a group and of those that have a token (abcast: all), and of 64 stations the one that
 * each follows, 0: none. */
void zj_multi_table(zj_multi *m, uint32_t order, uint64_t members, uint64_t hosts, const uint8_t *followed);
/* A group of the table; members 0: it has none any more. */
void zj_multi_group(zj_multi *m, uint32_t order, uint32_t group, uint64_t members);
void zj_multi_last(zj_multi *m, const struct zj_multi_last *last);
/* A message of an earlier era that is not finished; by era, originator and number. Returns a handle for zj_multi_wait. */
void *zj_multi_old(zj_multi *m, const struct zj_multi_message *message);
/* It is delivered and waits for level preack, which such messages reach in the order of these calls. */
void zj_multi_wait(zj_multi *m, void *old);
/* As zj_multi_wait, of a message that is finished already. */
void zj_multi_wait_done(zj_multi *m, const struct zj_multi_message *message);
/* A message of this era that has come already; by originator and number. */
void zj_multi_add(zj_multi *m, const struct zj_multi_message *message);
/* The eras before are closed: their messages are finished, in the same order. */
void zj_multi_close(zj_multi *m);

/* ---- inputs, each followed by zj_multi_after, after one or several */
/* Rule O1. groups: ascending. Returns the message's number, or 0: the window is full, or the groups are empty. */
uint32_t zj_multi_send(zj_multi *m, uint32_t client, const uint32_t *groups, uint32_t count, uint32_t order, const uint8_t *data,
                       uint32_t size, uint32_t safe);
/* The stations in a group (a bitmap) of this order; 0: it has no members. */
uint64_t zj_multi_members(const zj_multi *m, uint32_t order, uint32_t group);
/* What is taken until zj_multi_after has come together. */
void zj_multi_begin(zj_multi *m);
/* A record of a station. 0: taken, or dropped; 1: it makes no sense; 2: not of this era, or a RELAY: the caller's. */
int zj_multi_record(zj_multi *m, uint32_t source, uint32_t incarnation, const struct zj_message *record);
/* All records that the core of a link has accepted from its other end, which is index src in it. 1: *foreign is the caller's, and
 * there may be more; 0: no more. *malformed grows by those that make no sense. */
int zj_multi_take(zj_multi *m, zj_core *core, uint32_t src, uint32_t source, uint32_t incarnation, struct zj_message *foreign,
                  uint64_t *malformed);
/* Apply the rules. */
void zj_multi_after(zj_multi *m, uint64_t now);

/* ---- what has come of it */
/* Events since zj_multi_clear; the list is valid until the next input. */
const struct zj_multi_event *zj_multi_events(const zj_multi *m, uint32_t *count);
void zj_multi_clear(zj_multi *m);
/* Stations for which there are records. */
uint64_t zj_multi_ready(const zj_multi *m);
/* Put the records for a station behind those of a queue; without a queue they are forgotten. */
void zj_multi_flush(zj_multi *m, uint32_t station, zj_sendq *q);
/* When zj_multi_after has something to do although nothing comes; ZJ_NEVER: not. */
uint64_t zj_multi_due(const zj_multi *m);

/* ---- the state, to be taken out */
/* Groups to which something has been delivered in this era, ascending, each with a digest of what and in which order, as add_digest of
 * ordering.py; up to max. Returns how many there are. */
uint32_t zj_multi_digests(const zj_multi *m, uint32_t order, uint32_t *groups, uint64_t *digests, uint32_t max);
struct zj_multi_totals { uint64_t clock, number, input, unfinished, dropped, messages, lasts, reports; };
void zj_multi_totals(const zj_multi *m, struct zj_multi_totals *out);
/* Set the number of the last own message: for tests. */
void zj_multi_renumber(zj_multi *m, uint64_t number);
void zj_multi_messages(const zj_multi *m, struct zj_multi_message *out);
void zj_multi_lasts(const zj_multi *m, struct zj_multi_last *out);
/* Messages of an order that are delivered and not released, up to max, oldest first. Returns how many there are. */
uint32_t zj_multi_unreleased(const zj_multi *m, uint32_t order, struct zj_multi_message *out, uint32_t max);
/* Numbers of finished messages of a station, ascending, up to max; all that are 2 * window below the last one are, too. */
uint32_t zj_multi_gone(const zj_multi *m, uint32_t origin, uint32_t *out, uint32_t max);

/* ---- records that wait for a link */
zj_sendq *zj_sendq_create(void);
void zj_sendq_destroy(zj_sendq *q);
void zj_sendq_put(zj_sendq *q, uint32_t type, uint32_t group, uint32_t client, const uint8_t *data, uint32_t size);
uint32_t zj_sendq_count(const zj_sendq *q);
/* Give the core what it has room for. Returns whether it has taken something; -1: it refuses a record for good. */
int zj_sendq_pump(zj_sendq *q, zj_core *core, uint64_t now);
/* When it was given something to send while the core had nothing that the other end has not confirmed: the last time. */
uint64_t zj_sendq_since(const zj_sendq *q);
/* Take the oldest record; its bytes are valid until the next call with this queue. 0: there is none. */
int zj_sendq_pop(zj_sendq *q, struct zj_offer *out);

/* ---- what the data path calls, which is another module */
#define ZJ_MULTI_API_VERSION 1
struct zj_multi_api {
    uint32_t version, size;
    int (*take)(zj_multi *, zj_core *, uint32_t, uint32_t, uint32_t, struct zj_message *, uint64_t *);
    void (*after)(zj_multi *, uint64_t);
    const struct zj_multi_event *(*events)(const zj_multi *, uint32_t *);
    void (*clear)(zj_multi *);
    uint64_t (*ready)(const zj_multi *);
    void (*flush)(zj_multi *, uint32_t, zj_sendq *);
    uint64_t (*due)(const zj_multi *);
    uint32_t (*send)(zj_multi *, uint32_t, const uint32_t *, uint32_t, uint32_t, const uint8_t *, uint32_t, uint32_t);
    uint64_t (*members)(const zj_multi *, uint32_t, uint32_t);
    int (*pump)(zj_sendq *, zj_core *, uint64_t);
    uint32_t (*count)(const zj_sendq *);
};
const struct zj_multi_api *zj_multi_api(void);

#endif
