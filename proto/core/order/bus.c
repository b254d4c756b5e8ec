/* The bus: a medium that brings every frame to everybody, its sender included, in one order (TO paper, sections 3 and 5;
 * docs/protocol.md, "The bus"). PDUs may be lost there, but they never overtake each other: the order is that of arrival, and
 * recovery is to go back, all together, to what everybody has. proto/reset.py decides when; what is done is here.
 *
 * The receipt log is c->order.log, of which three positions mark the paper's parts: delivered <= acked (ARL) <= preack (PPL) <=
 * accepted (RPL).
 *
 * Why what is acknowledged at one station is the same prefix of the log at all, which is all that delivery and the change of
 * instances rest on: entry q is acknowledged at k once every member j has said, in a PDU that k took in, that everybody has q.
 * j sent it after it had accepted q and all that stands before q in j's log; k took it in only because its A was not beyond what k
 * had accepted itself (condition 2). So k has all of that as well, and by the medium in the same order. Resets change nothing of
 * it: they take out only what some station lacks.
 */
#include "order.h"

#define EPOCH_AHEAD 65536u /* no station is: a member takes part in every reset */

void bus_open(zj_core *c)
{
    c->bus.accepted = 0;
    c->bus.phase = ZJ_P_RUN;
    c->bus.common = 0;
    c->bus.epoch = 0;
    c->bus.reset_news = 0;
    c->bus.own_due = ZJ_NEVER;
}

static void lost(zj_core *c)
{
    if (c->bus.phase == ZJ_P_RUN)
        c->count.lost_noticed++;
    c->bus.phase = ZJ_P_LOST; /* R1: nothing more is accepted */
}

/* ---- acceptance ---- */

enum loss { HAVE_ALL, LACK, NONSENSE };

/* Condition (2): does its source have what this station has not? Judged before anything of it is believed. */
static enum loss judge_vectors(const zj_core *c, const struct pdu *p)
{
    enum loss out = HAVE_ALL;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        uint64_t a = widen(s->req, get32(p->ack + 4 * h));
        uint64_t end = h == c->self ? c->send.next : s->req + c->cfg.slots;
        if ((int64_t)(a - s->first) < 0 || a > end)
            return NONSENSE;
        if (p->pack) {
            uint64_t b = widen(s->req, get32(p->pack + 4 * h));
            if ((int64_t)(b - s->first) < 0 || (b > a && b > s->pack[p->src]))
                return NONSENSE;
        }
        if (a > s->req || (a == s->req && faulty(c, ZJ_FAULT_STRICT_ACCEPT)))
            out = LACK;
    }
    return out;
}

/* Its source knows all of this now, and what everybody has. */
static void merge(zj_core *c, const struct pdu *p, uint64_t now)
{
    uint32_t j = p->src;
    int older = 0, newer = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        uint64_t a = widen(c->st[h].req, get32(p->ack + 4 * h));
        if (h == j) /* what it sends counts as had by itself before it has come back to it */
            continue;
        older |= a < c->st[h].al[j];
        newer |= a > c->st[h].al[j];
    }
    if (!older && (newer || p->free_buffers > c->st[j].free_buffers))
        c->st[j].free_buffers = p->free_buffers;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        uint64_t a = widen(s->req, get32(p->ack + 4 * h));
        if (a > s->al[j]) {
            al_raise(c, h, j, a);
            c->st[j].ack_moved = now;
        }
        if (p->pack)
            pack_raise(c, h, j, widen(s->req, get32(p->pack + 4 * h)));
    }
    c->st[j].frame_max = p->frame_max;
}

/* Into the log, at its end. Its source counts as having it from its transmission. */
static void append(zj_core *c, uint32_t h)
{
    struct stream *s = &c->st[h];
    c->order.log[c->bus.accepted++ & c->order.mask] = (struct entry){.seq = s->req, .src = h};
    s->req++;
    if (h != c->self)
        s->top = s->req;
    s->noticed = s->req;
    al_raise(c, h, h, s->req);
    c->progress++;
}

/* An own PDU is accepted when it comes back, and only what was sent can. */
static int take_own(zj_core *c, const struct pdu *p, uint64_t seq)
{
    if (memcmp(slot_of(c, &c->st[c->self], seq) + ZJW_HEADER_CHECK, p->bytes + ZJW_HEADER_CHECK, 8))
        return ZJ_DROP_OWN;
    append(c, c->self);
    c->bus.own_due = ZJ_NEVER; /* for what is still out the time starts again */
    c->count.rx_own++;
    return ZJ_DROP_NONE;
}

static int take_data(zj_core *c, const struct pdu *p, uint64_t seq)
{
    struct stream *s = &c->st[p->src];
    struct meta *m = meta_of(c, s, seq);
    if (p->size > c->slot_bytes)
        return ZJ_DROP_LENGTH;
    memcpy(slot_for(c, s, seq, p->size), p->bytes, p->size);
    *m = (struct meta){.clock = p->clock, .arrival = c->arrivals++, .size = p->size, .instance = p->instance,
                       .payload_crc = get32(p->bytes + ZJW_HEADER_CHECK + 4), .present = HELD, .flags = p->flags,
                       .kind = p->kind};
    append(c, p->src);
    return ZJ_DROP_NONE;
}

/* The paper's section 5, step 3, down to the depth that its evaluation counts: PDUs with data are answered, and so are these
 * answers, which a POLL flag marks; the answers to those are not. */
static void answer_at_once(zj_core *c, const struct pdu *p)
{
    int data = p->kind == ZJW_KIND_DATA;
    uint8_t *b;
    if (p->src == c->self || !(data || p->flags & ZJW_FLAG_POLL))
        return;
    if (!(b = small_frame(c))) {
        c->confirm.answer = 1;
        return;
    }
    small_send(c, confirm_write(c, b, data ? ZJW_FLAG_POLL : 0, 0), 0);
}

static int take_in_order(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    struct stream *s = &c->st[p->src];
    uint64_t seq = widen(s->req, p->seq);
    int data = p->kind == ZJW_KIND_DATA, own = p->src == c->self;
    int blind = faulty(c, ZJ_FAULT_BLIND_REPEAT), drop;
    enum loss loss = judge_vectors(c, p);

    if (p->flags & ZJW_FLAG_RELAYED) /* not in its place */
        return ZJ_DROP_KIND;
    if (loss == NONSENSE || (own && seq > c->send.next))
        return ZJ_DROP_ACK;
    if (loss == LACK && faulty(c, ZJ_FAULT_STRICT_ACCEPT))
        return ZJ_DROP_RESET;
    if (data && seq < s->req) {
        c->count.rx_duplicate++;
        return ZJ_DROP_NONE;
    }
    if (seq > s->req && (data || !blind) && !(own && blind))
        loss = LACK; /* condition (1), and the same told by an unsequenced PDU, which ends a stream's silence */
    if (loss == LACK) {
        lost(c);
        return ZJ_DROP_RESET;
    }
    if (data && own && (seq >= c->send.next || seq > s->req))
        return ZJ_DROP_OWN;
    if (data && seq >= s->base + c->cfg.slots) { /* its source has obeyed no window: it cannot be taken, so it is lost */
        lost(c);
        return ZJ_DROP_WINDOW;
    }
    if (data) {
        c->count.rx_data += !own;
        if ((drop = own ? take_own(c, p, seq) : take_data(c, p, seq)))
            return drop;
    } else if (!own) {
        take_unsequenced(c, now, p, mac, 0);
    }
    if (!own)
        merge(c, p, now);
    if (c->cfg.answer_each)
        answer_at_once(c, p);
    return ZJ_DROP_NONE;
}

/* ---- reception ---- */

static int take_reset(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    uint32_t epoch = get32(p->payload + ZJW_RESET_EPOCH);
    if (get32(p->payload + ZJW_RESET_RESET_VIEW) != c->view) /* one number for two instances */
        return report_foreign(c, now, p, mac, ZJ_DROP_INSTANCE);
    if (p->src == c->self)
        return ZJ_DROP_NONE;
    if (epoch != (uint32_t)p->clock)
        return ZJ_DROP_PAYLOAD;
    if (epoch < c->bus.epoch)
        return ZJ_DROP_EPOCH;
    if (epoch > c->bus.epoch)
        c->bus.phase = ZJ_P_LOST; /* R2 */
    c->st[p->src].free_buffers = p->free_buffers; /* the log is acknowledged at once then, but not yet delivered */
    control_push(c, p->bytes, p->size, mac, ZJ_DROP_NONE);
    return ZJ_DROP_NONE;
}

static int take(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    struct stream *s = &c->st[p->src];
    uint32_t epoch = (uint32_t)p->clock;

    if (p->src == c->self && (p->instance < c->instance || epoch < c->bus.epoch))
        c->bus.own_due = ZJ_NEVER; /* what was sent after it is still behind it: the medium keeps the order */
    if (p->instance != c->instance)
        return report_foreign(c, now, p, mac, ZJ_DROP_INSTANCE);
    if (p->clock >> 32 != c->instance || (epoch > c->bus.epoch && epoch - c->bus.epoch > EPOCH_AHEAD))
        return ZJ_DROP_CLOCK;
    s->heard = now;
    if (mac) {
        memcpy(s->mac, mac, 6);
        s->mac_known = 1;
    }
    if (p->kind == ZJW_KIND_RST || p->kind == ZJW_KIND_RSTC)
        return take_reset(c, now, p, mac);
    if (epoch < c->bus.epoch)
        return ZJ_DROP_EPOCH;
    if (epoch > c->bus.epoch) { /* R2: its source has been through a reset that this station knows nothing of */
        c->bus.phase = ZJ_P_LOST;
        return report_foreign(c, now, p, mac, ZJ_DROP_EPOCH);
    }
    if (c->bus.phase == ZJ_P_AGREED && p->src != c->self) { /* R5: its source has seen that everybody has */
        zj_reset_done(c);
        c->bus.reset_news = 1;
    }
    if (c->bus.phase != ZJ_P_RUN)
        return ZJ_DROP_RESET;
    return take_in_order(c, now, p, mac);
}

/* ---- levels and order ---- */

static void levels(zj_core *c)
{
    if (c->flush.on) { /* all stations that continue have it */
        uint64_t reached = c->bus.accepted < c->flush.to ? c->bus.accepted : c->flush.to;
        c->order.acked = c->order.acked > reached ? c->order.acked : reached;
        c->order.preack = c->order.preack > c->order.acked ? c->order.preack : c->order.acked;
        return;
    }
    levels_climb(c, c->bus.accepted, ZJ_FAULT_DELIVER_PREACK | ZJ_FAULT_EARLY_ACK);
}

/* Delivered is what is acknowledged; of an instance that has ended, what any station that continues has delivered. */
static int choose(const zj_core *c, struct entry *out)
{
    if (c->order.position >= c->order.acked || (c->flush.on && c->order.position >= c->flush.to))
        return NOTHING;
    *out = c->order.log[c->order.position & c->order.mask];
    return A_PDU;
}

static int pending(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    return c->bus.phase == ZJ_P_RUN &&
           ((c->send.building && !c->send.blocked) || c->order.acked < c->bus.accepted || me->req < c->send.next);
}

/* ---- own PDUs that do not come back ---- */

void bus_watch(zj_core *c, uint64_t now)
{
    if (!on_bus(c))
        return;
    if (c->bus.phase != ZJ_P_RUN || c->st[c->self].req == c->send.next)
        c->bus.own_due = ZJ_NEVER;
    else if (c->bus.own_due == ZJ_NEVER || c->txq.head != c->txq.tail) /* what has not left cannot come back */
        c->bus.own_due = now + c->cfg.own_timeout_ns;
}

int bus_own_lost(zj_core *c, uint64_t now)
{
    const struct stream *me = &c->st[c->self];
    if (!on_bus(c) || c->bus.own_due > now)
        return 0;
    c->bus.own_due = ZJ_NEVER;
    if (faulty(c, ZJ_FAULT_BLIND_REPEAT))
        for (uint64_t q = me->req; q < c->send.next; q++)
            tx_slot(c, c->self, q, 1);
    else
        lost(c);
    return 1;
}

/* ---- reset ---- */

uint32_t zj_phase(zj_core *c, uint32_t *epoch)
{
    *epoch = c->bus.epoch;
    c->bus.reset_news = 0;
    return c->bus.phase;
}

void zj_vector(const zj_core *c, uint32_t *out)
{
    for (uint32_t h = 0; h < c->n; h++)
        out[h] = (uint32_t)c->st[h].req;
}

void zj_reset_enter(zj_core *c, uint32_t epoch)
{
    if (!c->is_open || !on_bus(c))
        return;
    c->bus.phase = ZJ_P_RESET;
    c->bus.epoch = epoch;
    c->clock = (uint64_t)c->instance << 32 | epoch;
    c->bus.own_due = c->poll.at = ZJ_NEVER;
    confirm_clear(c);
    txq_reset(c);
    c->count.resets++;
}

/* The order that has been delivered or acknowledged here is not what `station` wants: it lacks the PDU of this number. */
static void diverged(zj_core *c, uint32_t station, uint64_t seq, uint64_t position)
{
    fence_raise(c, station, position, seq + 1, seq);
}

/* Strict reading of the printed rule: the lost PDU itself stays. Or only it goes. */
static int goes(const zj_core *c, const struct entry *e, const uint64_t *v)
{
    if (faulty(c, ZJ_FAULT_KEEP_LOST))
        return e->seq > v[e->src];
    if (faulty(c, ZJ_FAULT_KEEP_LATER))
        return e->seq == v[e->src];
    return e->seq >= v[e->src];
}

int zj_reset_cut(zj_core *c, const uint32_t *vector, uint32_t station)
{
    uint64_t v[ZJW_STATIONS_MAX], at = c->order.position, first = ZJ_NEVER;
    int shrank = 0;

    if (c->bus.phase != ZJ_P_RESET)
        return 0;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        uint64_t handed = s->ordered + (c->order.cur.inside && c->order.cur.src == h);
        v[h] = widen(s->req, vector[h]);
        if (v[h] < handed && !faulty(c, ZJ_FAULT_DELIVER_PREACK)) {
            diverged(c, station, handed - 1, c->order.position);
            return 0;
        }
        shrank |= v[h] < s->req;
    }
    if (!shrank)
        return 0;
    for (uint64_t i = c->order.position; i < c->bus.accepted; i++) { /* bound: buffers */
        const struct entry e = c->order.log[i & c->order.mask];
        if (!goes(c, &e, v)) {
            c->order.log[at++ & c->order.mask] = e;
            continue;
        }
        if (i < c->order.acked && !faulty(c, ZJ_FAULT_DELIVER_PREACK)) { /* everybody has it, or the medium is no bus */
            diverged(c, station, e.seq, i);
            return 0;
        }
        first = i < first ? i : first;
        if (e.src != c->self) /* own ones are sent again */
            meta_of(c, &c->st[e.src], e.seq)->present = 0;
        c->count.pdus_cut++;
    }
    c->bus.accepted = at;
    c->order.preack = c->order.preack < first ? c->order.preack : first;
    c->order.acked = c->order.acked < first ? c->order.acked : first;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        uint64_t to = faulty(c, ZJ_FAULT_KEEP_LOST) ? v[h] + 1 : v[h];
        if (to < s->req)
            s->req = to;
        s->noticed = s->req;
        s->top = h == c->self ? c->send.next : s->req;
    }
    return 1;
}

void zj_reset_agree(zj_core *c)
{
    if (c->bus.phase != ZJ_P_RESET)
        return;
    c->bus.phase = ZJ_P_AGREED;
    c->bus.common = c->bus.accepted;
}

/* Vectors as they are now, not as they were: what was said before the reset counts for nothing. */
static void send_again(zj_core *c, uint64_t seq)
{
    struct stream *me = &c->st[c->self];
    struct meta *m = meta_of(c, me, seq);
    uint8_t *b = slot_of(c, me, seq), *ack = b + ZJW_SIZEOF_HEADER;
    pdu_header(c, b, m->kind, m->flags, seq, c->clock, m->size - payload_start(c, m->flags));
    al_say(c, ack, m->flags & ZJW_FLAG_PACK ? ack + 4 * c->n : NULL);
    al_raise(c, c->self, c->self, seq + 1);
    zj_add_checksum(b, m->size);
    m->clock = c->clock;
    tx_slot(c, c->self, seq, 1);
}

void zj_reset_done(zj_core *c)
{
    struct stream *me = &c->st[c->self];
    if (c->bus.phase != ZJ_P_RESET && c->bus.phase != ZJ_P_AGREED)
        return;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        if (faulty(c, ZJ_FAULT_AL_LAST) && s->req > s->first)
            s->req--;
        al_start(c, h, s->req);
        s->noticed = s->req;
        s->top = h == c->self ? c->send.next : s->req;
    }
    c->order.preack = c->order.acked = c->bus.accepted;
    c->bus.phase = ZJ_P_RUN;
    c->progress++;
    for (uint64_t q = me->req; q < c->send.next; q++) /* bound: window */
        send_again(c, q);
}

int zj_reset_say(zj_core *c, uint32_t kind, uint32_t epoch, const uint32_t *vector)
{
    uint8_t *b = c->is_open && on_bus(c) ? small_frame(c) : NULL;
    uint32_t size = ZJW_SIZEOF_HEADER + 4 * c->n + ZJW_SIZEOF_RESET;
    if (!b)
        return -1;
    c->confirm.sent_free = pdu_header(c, b, kind, 0, c->send.next, (uint64_t)c->instance << 32 | epoch, ZJW_SIZEOF_RESET);
    for (uint32_t h = 0; h < c->n; h++)
        put32(b + ZJW_SIZEOF_HEADER + 4 * h, vector[h]);
    put32(b + ZJW_SIZEOF_HEADER + 4 * c->n + ZJW_RESET_EPOCH, epoch);
    put32(b + ZJW_SIZEOF_HEADER + 4 * c->n + ZJW_RESET_RESET_VIEW, c->view);
    zj_add_checksum(b, size);
    small_send(c, size, 0);
    return 0;
}

/* ---- reads ---- */

/* What any station may have delivered with this station's acknowledgement: what it knows all stations to have, and what was in the log
 * when all vectors were equal, even if another reset has begun since: a station that has seen that, too, has delivered all of it.
 * Of two stations one may know that both have a PDU that its source has not seen come back, and which is in no common order. */
uint64_t zj_secured(zj_core *c)
{
    order_levels(c);
    if (!on_bus(c))
        return 0;
    uint64_t known = c->listed == 2 ? c->order.acked : c->order.preack;
    return (known > c->bus.common ? known : c->bus.common > c->order.acked ? c->bus.common : c->order.acked) - c->order.acked;
}

void zj_receipts(const zj_core *c, uint64_t out[4])
{
    out[0] = c->order.position;
    out[1] = c->order.acked;
    out[2] = c->order.preack;
    out[3] = on_bus(c) ? c->bus.accepted : c->order.position;
}

int zj_entry(const zj_core *c, uint64_t position, uint32_t *src, uint64_t *seq)
{
    uint64_t end = on_bus(c) ? c->bus.accepted : c->order.position;
    if (position >= end || end - position > c->order.mask)
        return 0;
    *src = c->order.log[position & c->order.mask].src;
    *seq = c->order.log[position & c->order.mask].seq;
    return 1;
}

static uint64_t reached(const zj_core *c) { return c->order.acked; }
static uint64_t digest_at(const zj_core *c) { return c->order.position; }
static uint64_t key(const zj_core *c, uint64_t clock) { (void)clock; return ((uint64_t)c->instance << 32) + c->order.position; }
static uint64_t clock(const zj_core *c) { return ((uint64_t)c->instance << 32) + c->bus.accepted; }

/* As clients see them: what has been delivered has reached all levels. */
static void positions(const zj_core *c, uint64_t out[ZJ_LEVELS])
{
    out[ZJ_ORDERED] = out[ZJ_PREACK] = out[ZJ_ACK] = c->order.position;
}

const struct main_ops bus_ops = {
    .take = take, .choose = choose, .levels = levels, .pending = pending, .positions = positions,
    .reached = reached, .digest_at = digest_at, .key = key, .clock = clock,
};
