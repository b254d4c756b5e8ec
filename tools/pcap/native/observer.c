/* The observer: frames in, rows out. See observer.h; streams, order and instances are in the files beside this one. */
#include "observer_int.h"

struct zo_observer *zo_new(uint32_t station, uint32_t ethertype, struct zo_columns *tables)
{
    struct zo_observer *o = calloc(1, sizeof *o);
    if (!o || station < 1 || station > ZJW_STATIONS_MAX) {
        free(o);
        return NULL;
    }
    o->self = station - 1;
    o->ethertype = ethertype;
    o->tables = tables;
    o->gate = NEVER;
    o->log_cap = 1024;
    o->last_ordered = NO_TIME;
    o->log = malloc(o->log_cap * sizeof *o->log);
    o->digests = malloc(DIGESTS * sizeof *o->digests);
    o->digests_ok = calloc(DIGESTS, 1);
    o->pieces = zp_pieces_new();
    if (!o->log || !o->digests || !o->digests_ok || !o->pieces) {
        zo_free(o);
        return NULL;
    }
    return o;
}

void zo_free(struct zo_observer *o)
{
    if (!o)
        return;
    for (uint32_t h = 0; h < ZJW_STATIONS_MAX; h++)
        for (uint32_t i = 0; i < LIVES; i++)
            stream_free(o->streams[h][i]);
    zp_pieces_free(o->pieces);
    free(o->log);
    free(o->digests);
    free(o->digests_ok);
    free(o);
}

const struct zo_totals *zo_totals(const struct zo_observer *o) { return &o->total; }

static int has_room(const struct zo_observer *o)
{
    for (uint32_t t = 0; t < ZO_TABLES; t++)
        if (o->tables[t].capacity - o->tables[t].rows < (o->tables[t].capacity < 2 * ROOM ? o->tables[t].capacity / 2 : ROOM))
            return 0;
    return 1;
}

/* Passed on by somebody else than its source? */
static int is_relayed(struct zo_observer *o, const struct zp_pdu *p, const struct zp_link *l, int out)
{
    struct speaker *k = &o->speakers[p->src - 1];
    int own = p->src == o->self + 1;
    if (p->kind == ZJW_KIND_CONFIRM || p->kind == ZJW_KIND_NAK || p->kind == ZJW_KIND_OPEN || p->kind == ZJW_KIND_RCV) {
        if (p->flags & ZJW_FLAG_RELAYED)
            return 1;
        if (out == own)
            k->mac = l->src_mac;
        return 0;
    }
    if (out || own)
        return out != own;
    return k->mac && l->src_mac != UINT64_MAX && l->src_mac != k->mac;
}

/* All of the stream that is not below `next` has a larger clock. */
static void promised(const struct zo_observer *o, struct stream *s, uint64_t next, uint64_t clock)
{
    if (clock > s->promise_clock && clock > s->clock) {
        s->promise_clock = clock;
        s->promise_next = next;
        stream_promise(s);
    }
    if (clock > s->sure_clock && (!s->word_clock || s->word_next >= next)) {
        s->word_clock = clock;
        s->word_next = next;
        stream_sure(o, s);
    }
}

/* A CONFIRM that speaks for all (rules C7, C8): P for each of them, and T for each whose PDUs the station has as far as its source. */
static void for_all(struct zo_observer *o, const struct zp_pdu *p)
{
    uint32_t said = p->kind == ZJW_KIND_CONFIRM ? be16(p->bytes + ZJW_HEADER_BOUND) : 0, j = p->src - 1u;
    struct stream *from = o->cur[j];
    if (!said || !o->open || j == o->self || !from || from->incarnation != p->incarnation || p->instance != o->view.instance ||
        be32(p->payload + ZJW_CONFIRM_VIEW) != o->view.hash)
        return;
    for (uint32_t h = 0; h < o->n; h++) {
        struct stream *s = o->cur[h];
        if (!s || !is_member(o, h))
            continue;
        uint64_t b = widen(s->pack[j], be32(p->pack + 4 * h));
        if (h != o->self && b > s->min_al && b <= s->req) {
            for (uint32_t k = 0; k < o->n; k++)
                if (is_member(o, k) && s->al[k] < b)
                    s->al[k] = b;
            levels_row(o, s);
            stream_sure(o, s);
        }
        if (h != o->self && h != j && said != 0xffff && p->clock >= said)
            promised(o, s, widen(s->al[j], be32(p->ack + 4 * h)), p->clock - (said - 1));
    }
}

static void promise(struct zo_observer *o, const struct zp_pdu *p)
{
    struct stream *s = o->cur[p->src - 1];
    if (!o->open || !s || s->incarnation != p->incarnation || p->instance > o->view.instance || p->instance < s->joined_at ||
        o->total.bus)
        return;
    uint64_t next = widen(s->req, p->seq);
    if (p->src == o->self + 1)
        hole_note(o, s, next);
    promised(o, s, next, p->clock);
}

/* Vectors and promises, and what follows for the order. */
static void take_word(struct zo_observer *o, const struct zp_pdu *p, int sequenced)
{
    merge(o, p);
    if (!sequenced) {
        promise(o, p);
        for_all(o, p);
    }
    holes(o, 0);
    if (!o->open)
        return;
    passed_note(o);
    deliver(o);
}

/* A bus brings own frames back. Only there is the clock of DATA an epoch, and are there resets. */
static int is_bus(const struct zp_pdu *p, const struct zp_link *l, const struct speaker *k, int own_in)
{
    if (p->kind == ZJW_KIND_RST || p->kind == ZJW_KIND_RSTC || (p->kind == ZJW_KIND_DATA && !(uint32_t)p->clock))
        return 1;
    return own_in && k->mac && l->src_mac == k->mac;
}

static void take(struct zo_observer *o, const struct zp_pdu *p, const struct zp_link *l)
{
    int own = p->src == o->self + 1, out = l->direction == 2 || (!l->direction && own);
    int sequenced = p->kind == ZJW_KIND_DATA || is_vote(p->kind), relayed = is_relayed(o, p, l, out), opening;
    struct speaker *k = &o->speakers[p->src - 1];

    if (p->kind == ZJW_KIND_CONFIRM && p->target && !(p->flags & (ZJW_FLAG_POLL | ZJW_FLAG_PAIR)) && !own && p->target != o->self + 1)
        return; /* overheard: it is for another station alone, and counts nowhere else (rule C6) */
    o->total.own += own && out;
    note_instance(o, p);
    if (p->kind == ZJW_KIND_CONFIRM) {
        note_confirm(o, p, l->direction);
        announced(o, p);
    } else if (!sequenced || is_vote(p->kind)) {
        note_control(o, p, l->direction);
    }
    opening = p->kind == ZJW_KIND_OPEN || p->kind == ZJW_KIND_RCV;
    if (!o->total.bus && is_bus(p, l, k, own && !out)) {
        o->total.bus = 1;
        if (o->open)
            bus_begin(o, o->view.opened && !o->tail);
    }
    if (opening)
        open_add(o, p);
    if (opening && own && out)
        opened_seen(o, p);
    if (!opening && p->instance >= k->last_instance) {
        k->last_instance = p->instance;
        k->last_incarnation = p->incarnation;
    }
    struct stream *s = sequenced ? stream_of(o, p->src - 1u, p->incarnation, 1) : NULL;
    if (s) {
        stream_put(o, s, p, out, relayed);
        if (is_vote(p->kind))
            vote_add(o, p);
        if (own && out && s->started && s == o->cur[o->self] && !o->total.bus)
            hole_note(o, s, widen(s->req, p->seq));
        if (!o->total.bus)
            stream_advance(o, s);
    }
    if (!opening && !(p->flags & ZJW_FLAG_RELAYED && own))
        instance_seen(o, p);
    if (o->total.bus)
        bus_take(o, p, s, out);
    else if (!opening && !(p->flags & ZJW_FLAG_RELAYED && own))
        take_word(o, p, sequenced);
    if (!o->open)
        return;
    retire(o, 0);
    announced_check(o, 0);
}

void zo_cluster(struct zo_observer *o, uint32_t cluster, uint32_t n)
{
    o->fixed = 1;
    o->n = n > ZJW_STATIONS_MAX ? ZJW_STATIONS_MAX : n;
    o->total.cluster = cluster;
    o->total.stations = o->n;
}

/* If nobody has said which cluster this is about, the first PDU does. */
static int ours(struct zo_observer *o, const struct zp_pdu *p)
{
    if (!o->fixed && o->self < p->n)
        zo_cluster(o, p->cluster, p->n);
    if (o->fixed && p->cluster == o->total.cluster && p->n == o->n)
        return 1;
    o->total.strange++;
    return 0;
}

static int drain(struct zo_observer *o)
{
    retire(o, 2);
    o->draining = o->retired != o->tail;
    return !o->draining;
}

int zo_feed(struct zo_observer *o, struct zp_walk *w, uint32_t file)
{
    struct zp_frame f;
    struct zp_link l;
    struct zp_pdu p;
    int r;

    o->file = file;
    for (;;) { /* bound: frames in the buffer */
        if ((o->draining && !drain(o)) || !has_room(o))
            return ZP_FULL;
        if ((r = zp_next(w, &f)) != ZP_FRAME)
            return r;
        o->frame = f.index;
        o->now = f.has_time ? f.time_ns : NO_TIME;
        zp_link(&f, &l);
        if (l.ethertype == o->ethertype && l.known) {
            int problem = zp_pdu(l.pdu, l.captured, l.wire, &p);
            const int is_piece = problem == ZP_P_ASIDE && zp_piece(l.pdu);
            const struct zp_link own = l;
            if (is_piece)
                problem = zp_pieces_take(o->pieces, o->now, &own, &p, &l.frame);
            if (problem != ZP_P_NONE) {
                o->total.damaged += problem != ZP_P_ASIDE || (!is_piece && zp_hides(l.pdu));
            } else if (!(p.flags & ZJW_FLAG_PAIR) && ours(o, &p)) { /* links are no part of the order of all */
                int out = l.direction == 2 || !l.direction;
                if (out && p.src == o->self + 1 && p.incarnation != o->life && !(p.flags & ZJW_FLAG_RELAYED)) {
                    life_end(o);
                    if (o->draining) { /* first the rows of the former life; this frame again afterwards */
                        o->life = p.incarnation;
                        w->at = f.offset - w->base;
                        w->state.frame--;
                        if (is_piece)
                            zp_pieces_again(o->pieces, &own);
                        continue;
                    }
                    o->life = p.incarnation;
                }
                o->total.pdus++;
                take(o, &p, &l);
            }
        }
        o->total.frames++;
    }
}

int zo_end(struct zo_observer *o)
{
    if (!o->ending) {
        if (!has_room(o))
            return ZP_FULL;
        o->ending = 1;
        life_end(o);
        rates_flush(o);
    }
    if (!drain(o))
        return ZP_FULL;
    for (; o->end_src < ZJW_STATIONS_MAX; o->end_src++, o->end_life = 0)
        for (; o->end_life < LIVES; o->end_life++, o->end_at = 0) {
            struct stream *s = o->streams[o->end_src][o->end_life];
            for (; s && o->end_at < s->cap; o->end_at++) {
                if (!room(o, ZO_TRANSMISSIONS))
                    return ZP_FULL;
                row_transmission(o, s, &s->slots[o->end_at]);
            }
        }
    return o->failed ? ZP_E_INTERFACES - 1 : ZP_MORE;
}
