/* Life of a core, reception of a PDU, the step after a batch. */
#include <stdlib.h>

#include "order/order.h"

uint64_t zj_random(zj_core *c, uint64_t below)
{
    uint64_t z = (c->rng += 0x9E3779B97F4A7C15ull); /* splitmix64: jitter only */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return below ? z % below : 0;
}

/* ---- life ---- */

void *core_reserve(zj_core *c, uint64_t bytes)
{
    c->memory += bytes;
    return calloc(1, bytes);
}

static int valid(const struct zj_config *f)
{
    if (f->size != sizeof *f || f->stations < 1 || f->stations > ZJW_STATIONS_MAX || f->self >= f->stations)
        return 0;
    if (f->slots < 4 || f->slots > 65536 || f->slots & (f->slots - 1) || f->window < 1 || f->window > f->slots / 2)
        return 0;
    if (f->medium > ZJ_BUS || (f->medium == ZJ_BUS && !f->own_timeout_ns))
        return 0;
    if (f->frame_max < 512 || f->frame_max > 65535 || f->frame_max < ZJW_SIZEOF_HEADER + 8 * f->stations + 64)
        return 0;
    if (f->pair[1] && (f->stations != 2 || f->medium != ZJ_SWITCHED || f->pair[1] > ZJW_STATIONS_MAX))
        return 0;
    if (f->pair[0] >= f->pair[1] && f->pair[1] + f->pair[0])
        return 0;
    return f->message_max <= ZJW_MESSAGE_MAX && f->message_max >= 1;
}

int zj_create(const struct zj_config *f, zj_core **out)
{
    *out = NULL;
    if (!valid(f))
        return -1;
    zj_core *c = calloc(1, sizeof *c);
    if (!c)
        return -2;
    c->memory = sizeof *c;
    c->cfg = *f;
    c->n = f->stations;
    c->self = f->self;
    c->mask = f->slots - 1;
    c->slot_bytes = (f->frame_max + 63) & ~63u;
    c->short_bytes = c->slot_bytes < ZJ_SHORT_BYTES ? c->slot_bytes : ZJ_SHORT_BYTES;
    c->send.own_frame_max = c->send.limit = c->send.base = f->frame_max;
    c->rng = f->seed;
    c->order.mask = 1;
    while (c->order.mask < (uint64_t)c->n * f->slots)
        c->order.mask *= 2;
    c->order.log = core_reserve(c, c->order.mask * sizeof *c->order.log);
    c->order.digests = core_reserve(c, c->order.mask * sizeof *c->order.digests);
    c->order.mask--;
    c->st = core_reserve(c, c->n * sizeof *c->st);
    int ok = c->order.log && c->order.digests && c->st && !order_create(c);
    for (uint32_t h = 0; ok && h < c->n; h++) {
        struct stream *s = &c->st[h];
        s->brief = core_reserve(c, (uint64_t)f->slots * c->short_bytes);
        if (c->slot_bytes > c->short_bytes)
            s->data = core_reserve(c, (uint64_t)f->slots * c->slot_bytes);
        s->meta = core_reserve(c, f->slots * sizeof *s->meta);
        ok = s->brief && s->meta && (s->data || c->slot_bytes == c->short_bytes);
    }
    if (!ok) {
        zj_destroy(c);
        return -2;
    }
    zj_close(c);
    *out = c;
    return 0;
}

void zj_destroy(zj_core *c)
{
    if (!c)
        return;
    for (uint32_t h = 0; c->st && h < c->n; h++) {
        free(c->st[h].brief);
        free(c->st[h].data);
        free(c->st[h].meta);
        assembly_end(c, h);
    }
    free(c->st);
    free(c->order.log);
    free(c->order.digests);
    order_destroy(c);
    free(c);
}

uint64_t zj_memory(const zj_core *c) { return c->memory; }

/* What an instance begins with, however it is entered. Its streams come next. */
static void enter(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, uint64_t members)
{
    c->is_open = 1;
    c->flush.on = c->fence.raised = c->pinned = c->report.on = c->report.bye = c->send.blocked = 0;
    c->instance = c->join_last = instance;
    c->view = view;
    c->clock = (uint64_t)instance << 32;
    c->waiting = c->confirm.state = c->confirm.trans = 0;
    c->votes.head = c->votes.tail = 0;
    c->votes.stalled = 0;
    c->txq.last = c->txq.last_word = now;
    c->send.next = c->confirm.told = c->confirm.summed = c->cfg.first_seq;
    c->confirm.said_in = 0;
    c->confirm.direct_from = 0;
    bus_open(c);
    pair_open(c);
    member_set(c, members);
    order_reset(c);
}

int zj_open(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, const uint32_t *incarnations, uint32_t frame_max)
{
    uint64_t members = 0;
    for (uint32_t h = 0; h < c->n; h++)
        members |= (uint64_t)(incarnations[h] != 0) << h;
    if (!instance || !view || !incarnations[c->self])
        return -1;
    enter(c, now, instance, view, members);
    for (uint32_t h = 0; h < c->n; h++) {
        stream_start(c, h, now, c->cfg.first_seq, c->clock);
        c->st[h].incarnation = incarnations[h];
        c->st[h].joined_at = instance;
        c->st[h].frame_max = frame_max;
    }
    view_begin(c, instance, view);
    send_reset(c);
    return 0;
}

int zj_join(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, const struct zj_start *start, uint64_t place_clock,
            uint32_t place_src, uint32_t frame_max)
{
    uint64_t members = 0, joined = 0;
    uint32_t incarnations[ZJW_STATIONS_MAX];

    for (uint32_t h = 0; h < c->n; h++) {
        members |= (uint64_t)(start[h].role != 0) << h;
        joined |= (uint64_t)(start[h].role == 2) << h;
        incarnations[h] = start[h].role ? start[h].incarnation : 0;
        if (start[h].role > 2 || (start[h].role && !start[h].incarnation))
            return -1;
    }
    if (instance < 2 || !view || !(joined >> c->self & 1) || place_src >= c->n || joined >> place_src & 1 || place_clock >> 62)
        return -1;
    enter(c, now, instance, view, members);
    for (uint32_t h = 0; h < c->n; h++) {
        const struct zj_start *f = &start[h];
        struct stream *s = &c->st[h];
        if (f->role == 1) { /* so high that what others acknowledge of older PDUs is no negative number */
            stream_start(c, h, now, (UINT64_C(1) << 32) + f->seq + 1, f->clock);
            s->first = 0;
            s->joined_at = instance - 1; /* at the latest: it has voted there */
        } else {
            stream_start(c, h, now, c->cfg.first_seq, place_clock);
            s->joined_at = instance;
        }
        s->incarnation = incarnations[h];
        s->frame_max = frame_max;
    }
    if (place_clock > c->clock)
        c->clock = place_clock;
    c->views.joining = 1;
    c->release.joined_by = faulty(c, ZJ_FAULT_EAGER_JOINER) ? 0 : instance;
    c->views.join_clock = place_clock;
    c->views.join_src = place_src;
    event_push(c, &(struct zj_commit){.instance = instance, .view = view, .members = members, .joined = joined,
                                      .place_clock = place_clock, .place_src = place_src}, incarnations, 0);
    send_reset(c);
    return 0;
}

void zj_close(zj_core *c)
{
    if (c->is_open)
        order_close(c);
    c->is_open = c->flush.on = 0;
    c->votes.head = c->votes.tail = 0;
    send_reset(c);
}

int zj_is_open(const zj_core *c) { return c->is_open; }

void zj_set_frame_max(zj_core *c, uint32_t frame_max)
{
    c->send.own_frame_max = frame_max < c->cfg.frame_max ? frame_max : c->cfg.frame_max;
    send_window(c);
}

/* ---- reception ---- */

static int dropped(zj_core *c, int drop)
{
    if (drop)
        c->count.drops[drop]++;
    return drop;
}

int zj_rx(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac)
{
    struct pdu p;
    int drop = pdu_read(bytes, size, c->cfg.cluster, c->n, c->cfg.pair, !c->cfg.tagged && !faulty(c, ZJ_FAULT_NO_CHECK), &p);

    c->count.rx_frames++;
    c->count.rx_bytes += size;
    if (drop == ZJ_DROP_STATIONS)
        report_rival(c, now, bytes, size, mac);
    if (drop)
        return dropped(c, drop);
    if (!medium_knows(c, p.kind))
        return dropped(c, ZJ_DROP_KIND);
    if (p.src == c->self && !medium_returns(c, &p)) {
        /* Own PDUs may be relayed by others; anything else means that the number is taken twice. */
        if (!is_sequenced(p.kind) && !(p.kind == ZJW_KIND_CONFIRM && p.flags & ZJW_FLAG_RELAYED))
            return report_foreign(c, now, &p, mac, ZJ_DROP_OWN);
        c->count.rx_duplicate++;
        return ZJ_DROP_NONE;
    }
    if (p.kind == ZJW_KIND_OPEN || p.kind == ZJW_KIND_RCV) {
        return report_new(c, now, &p, mac, ZJ_PLACES_OPEN, ZJ_DROP_NONE);
    }
    struct stream *s = &c->st[p.src];
    if (!c->is_open) {
        if (p.kind != ZJW_KIND_RCV_ACK)
            return report_foreign(c, now, &p, mac, ZJ_DROP_CLOSED);
        c->count.drops[ZJ_DROP_CLOSED]++;
        return report_new(c, now, &p, mac, ZJ_PLACES_VOTE, ZJ_DROP_CLOSED); /* each may be the one that lets this station in */
    }
    if (!is_member(c, p.src))
        return report_foreign(c, now, &p, mac, ZJ_DROP_MEMBER);
    if (p.incarnation != s->incarnation)
        return report_foreign(c, now, &p, mac, ZJ_DROP_INCARNATION);
    if (p.instance < s->joined_at) /* not of this life of its stream */
        return report_foreign(c, now, &p, mac, ZJ_DROP_INSTANCE);
    if (p.instance == c->instance && p.kind == ZJW_KIND_CONFIRM && get32(p.payload + ZJW_CONFIRM_VIEW) != c->view)
        return report_foreign(c, now, &p, mac, ZJ_DROP_INSTANCE); /* one number for two instances: nothing of it is believed */
    /* No station is that far ahead of the others, but for the jumps of instances: nonsense must not use up all clocks. */
    uint64_t ahead = p.instance > c->instance ? p.instance - c->instance : 0;
    if (p.clock >> 62 || p.clock > c->clock + ZJ_CLOCK_AHEAD + (ahead << 32))
        return dropped(c, ZJ_DROP_CLOCK);
    return dropped(c, c->order.main->take(c, now, &p, mac));
}

/* ---- step ---- */

uint32_t zj_step(zj_core *c, uint64_t now, uint32_t drained)
{
    uint32_t status = 0;
    assembly_tidy(c, now);
    if (c->mailbox.head != c->mailbox.tail)
        status |= ZJ_S_CONTROL;
    if (!c->is_open)
        return status;
    if (c->votes.stalled) {
        c->votes.stalled = 0;
        for (uint32_t h = 0; h < c->n; h++)
            if (h != c->self)
                stream_advance(c, h);
    }
    order_levels(c);
    stream_free(c);
    digest_check(c);
    send_window(c);
    if (c->send.building && c->send.fill > c->send.payload_at && send_can_seal(c))
        send_seal(c);
    if (c->bus.phase == ZJ_P_RUN)
        confirm_step(c, now, drained);
    order_levels(c); /* own broadcast may have completed a level */
    stream_free(c);
    poll_step(c, now);
    pair_step(c, now);
    bus_watch(c, now);
    if (c->votes.head != c->votes.tail || c->report.bye || c->bus.phase == ZJ_P_LOST || c->bus.reset_news ||
        (c->report.on && c->progress != c->report.seen))
        status |= ZJ_S_CONTROL;
    if (c->txq.head != c->txq.tail)
        status |= ZJ_S_TX;
    if (order_ready(c))
        status |= ZJ_S_DELIVER;
    if (!levels_told(c))
        status |= ZJ_S_RELEASE;
    if (c->poll.at != ZJ_NEVER)
        status |= ZJ_S_PENDING;
    if (send_can_seal(c))
        status |= ZJ_S_ROOM;
    if (c->fence.raised)
        status |= ZJ_S_FENCED;
    return status;
}
