/* Life of a core, reception of a PDU, the step after a batch, poll timer, views for the engine. */
#include <stdlib.h>

#include "zj_int.h"

uint64_t zj_random(zj_core *c, uint64_t below)
{
    uint64_t z = (c->rng += 0x9E3779B97F4A7C15ull); /* splitmix64: jitter only */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return below ? z % below : 0;
}

/* ---- life ---- */

static void *reserve(zj_core *c, uint64_t bytes)
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
    if (f->frame_max < 512 || f->frame_max > 65535 || f->frame_max < ZJW_SIZEOF_HEADER + 8 * f->stations + 64)
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
    c->own_frame_max = f->frame_max;
    c->rng = f->seed;
    c->log_mask = 1;
    while (c->log_mask < (uint64_t)c->n * f->slots)
        c->log_mask *= 2;
    c->log = reserve(c, c->log_mask * sizeof *c->log);
    c->digests = reserve(c, c->log_mask * sizeof *c->digests);
    c->log_mask--;
    c->st = reserve(c, c->n * sizeof *c->st);
    int ok = c->log && c->digests && c->st;
    for (uint32_t h = 0; ok && h < c->n; h++) {
        struct stream *s = &c->st[h];
        s->data = reserve(c, (uint64_t)f->slots * c->slot_bytes);
        s->meta = reserve(c, f->slots * sizeof *s->meta);
        s->whole = reserve(c, f->message_max); /* touched only as far as large messages need it */
        ok = s->data && s->meta && s->whole;
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
        free(c->st[h].data);
        free(c->st[h].meta);
        free(c->st[h].whole);
    }
    free(c->st);
    free(c->log);
    free(c->digests);
    free(c);
}

uint64_t zj_memory(const zj_core *c) { return c->memory; }

int zj_open(zj_core *c, uint64_t now, uint32_t instance, const uint32_t *incarnations, uint32_t frame_max)
{
    if (!instance)
        return -1;
    c->is_open = 1;
    c->flushing = 0;
    c->fenced = 0;
    c->instance = instance;
    c->clock = (uint64_t)instance << 32;
    for (uint32_t h = 0; h < c->n; h++) {
        struct stream *s = &c->st[h];
        s->req = s->top = s->noticed = s->base = s->ordered = c->cfg.first_seq;
        s->clock = s->last_clock = c->clock;
        s->promise_clock = s->promise_next = 0;
        s->nak_at = ZJ_NEVER;
        s->heard = s->ack_moved = now;
        s->incarnation = incarnations[h];
        s->free_buffers = c->cfg.slots * c->n;
        s->frame_max = frame_max;
        s->left = s->fenced = s->wants_ack = s->mac_known = 0;
        memset(s->meta, 0, c->cfg.slots * sizeof *s->meta);
    }
    al_reset(c);
    order_reset(c);
    send_reset(c);
    c->tx_last = now;
    return 0;
}

void zj_close(zj_core *c)
{
    if (c->is_open)
        order_levels(c); /* the last word: nothing is accepted from here on */
    c->is_open = c->flushing = 0;
    send_reset(c);
}

int zj_is_open(const zj_core *c) { return c->is_open; }

uint64_t zj_reached(zj_core *c)
{
    order_levels(c);
    return c->preack;
}

void zj_flush(zj_core *c, uint64_t upto)
{
    if (c->is_open || c->fenced || faulty(c, ZJ_FAULT_NO_FLUSH))
        return;
    c->flushing = 1;
    c->flush_to = upto;
    order_levels(c);
}

int zj_flushing(const zj_core *c) { return c->flushing; }

int zj_flushed(const zj_core *c)
{
    if (!c->flushing || c->fenced)
        return 1;
    return !order_left(c) && c->position == c->said_positions[ZJ_ORDERED] && c->preack == c->said_positions[ZJ_PREACK] &&
           c->acked == c->said_positions[ZJ_ACK];
}

void zj_set_frame_max(zj_core *c, uint32_t frame_max)
{
    c->own_frame_max = frame_max < c->cfg.frame_max ? frame_max : c->cfg.frame_max;
    send_window(c);
}

/* ---- reception ---- */

static void tell(zj_core *c, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop)
{
    if (c->ctl_tail - c->ctl_head == ZJ_CTL) {
        c->count.drops[ZJ_DROP_CONTROL_FULL]++;
        return;
    }
    struct ctl *t = &c->ctl[c->ctl_tail++ % ZJ_CTL];
    t->size = size < ZJ_CTL_BYTES ? size : ZJ_CTL_BYTES;
    t->drop = drop;
    if (mac)
        memcpy(t->mac, mac, 6);
    else
        memset(t->mac, 0, 6);
    memcpy(t->data, pdu, t->size);
}

int zj_control(zj_core *c, struct zj_control *out)
{
    if (c->ctl_head == c->ctl_tail) {
        out->size = 0;
        return 0;
    }
    const struct ctl *t = &c->ctl[c->ctl_head++ % ZJ_CTL];
    out->data = t->data;
    out->size = t->size;
    out->drop = t->drop;
    memcpy(out->mac, t->mac, 6);
    return 1;
}

static int stranger(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t drop)
{
    struct stream *s = &c->st[p->src];
    if (now - s->ctl_at >= ZJ_CTL_GAP_NS || !s->ctl_at) {
        s->ctl_at = now ? now : 1;
        tell(c, p->bytes, p->size, mac, drop);
    }
    c->count.drops[drop]++;
    return (int)drop;
}

static void confirmed(zj_core *c, const struct pdu *p)
{
    struct stream *s = &c->st[p->src];
    uint64_t next = widen(s->req, p->seq);

    if (p->clock > s->promise_clock && p->clock > s->clock) {
        s->promise_clock = p->clock;
        s->promise_next = next;
        stream_promise(c, p->src);
    }
    if (p->clock > c->clock)
        c->clock = p->clock;
    s->frame_max = p->frame_max;
    if (p->kind != ZJW_KIND_CONFIRM)
        return;
    s->wants_ack = (p->flags & ZJW_FLAG_NEED_ACK) != 0;
    s->left = (p->flags & ZJW_FLAG_BYE) != 0;
    s->fenced = (p->flags & ZJW_FLAG_FENCED) != 0;
    order_hear_digest(c, p->src, get64(p->payload + ZJW_CONFIRM_POSITION), get64(p->payload + ZJW_CONFIRM_DIGEST));
    if (faulty(c, ZJ_FAULT_CHATTER))
        c->chatter = 1;
    if (!(p->flags & ZJW_FLAG_POLL))
        return;
    for (uint32_t h = 0; h < c->n; h++) { /* C3: it lacks what I said last, or what I have not said yet */
        const struct stream *t = &c->st[h];
        if (widen(t->said_ack, get32(p->ack + 4 * h)) < t->said_ack || widen(t->said_pack, get32(p->pack + 4 * h)) < t->said_pack ||
            t->req > t->said_ack || t->min_al > t->said_pack)
            c->answer = 1;
    }
    if (free_slots(c) > c->said_free || p->target == c->self + 1)
        c->answer = 1;
    if (c->answer)
        c->count.polls_answered++;
}

int zj_rx(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac)
{
    struct pdu p;
    int drop = pdu_read(bytes, size, c->cfg.cluster, c->n, !faulty(c, ZJ_FAULT_NO_CHECK), &p);

    c->count.rx_frames++;
    c->count.rx_bytes += size;
    if (drop) {
        c->count.drops[drop]++;
        return drop;
    }
    if (p.src == c->self) {
        if (p.kind != ZJW_KIND_DATA) /* own DATA may be relayed by others; anything else means that the number is taken twice */
            return stranger(c, now, &p, mac, ZJ_DROP_OWN);
        c->count.rx_duplicate++;
        return ZJ_DROP_NONE;
    }
    if (p.kind == ZJW_KIND_OPEN) {
        tell(c, p.bytes, p.size, mac, ZJ_DROP_NONE);
        return ZJ_DROP_NONE;
    }
    if (!c->is_open)
        return stranger(c, now, &p, mac, ZJ_DROP_CLOSED);
    struct stream *s = &c->st[p.src];
    if (p.instance != c->instance)
        return stranger(c, now, &p, mac, ZJ_DROP_INSTANCE);
    if (p.incarnation != s->incarnation)
        return stranger(c, now, &p, mac, ZJ_DROP_INCARNATION);
    if (p.clock >> 62) {
        c->count.drops[ZJ_DROP_CLOCK]++;
        return ZJ_DROP_CLOCK;
    }
    drop = al_merge(c, &p, now);
    if (drop) {
        c->count.drops[drop]++;
        return drop;
    }
    if (p.kind != ZJW_KIND_DATA) { /* never relayed: heard from the station itself, under its present address */
        s->heard = now;
        if (mac) {
            memcpy(s->mac, mac, 6);
            s->mac_known = 1;
        }
        confirmed(c, &p);
        if (p.kind == ZJW_KIND_NAK) {
            c->count.rx_nak++;
            stream_nak(c, &p, now);
        } else {
            c->count.rx_confirm++;
        }
        return ZJ_DROP_NONE;
    }
    if (!mac || !s->mac_known || !memcmp(mac, s->mac, 6))
        s->heard = now;
    c->count.rx_data++;
    drop = stream_take(c, &p, now);
    if (drop)
        c->count.drops[drop]++;
    return drop;
}

/* ---- step ---- */

/* Something here is not as stable as somebody wants it: more must come, or is to be asked for. */
static int pending(const zj_core *c)
{
    if (c->building || c->acked < c->need_position || (c->want_ack && c->acked < c->position) || c->preack < c->position)
        return 1;
    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        if (s->top > s->req || s->min_al < s->req || s->ordered < s->req)
            return 1;
    }
    return 0;
}

static void watch_progress(zj_core *c, uint64_t now)
{
    if (!pending(c)) {
        c->poll_at = ZJ_NEVER;
        c->poll_wait = c->cfg.poll_delay_ns;
    } else if (c->progress != c->progress_seen || c->poll_at == ZJ_NEVER) {
        c->poll_wait = c->cfg.poll_delay_ns;
        c->poll_at = now + c->poll_wait + zj_random(c, c->poll_wait / 2);
    }
    c->progress_seen = c->progress;
}

static void confirm_if_owed(zj_core *c, uint64_t now, uint32_t drained)
{
    uint32_t owed = confirm_owed(c);
    if (!owed) {
        c->owed_since = 0;
        c->confirm_due = ZJ_NEVER;
        return;
    }
    if (!c->owed_since)
        c->owed_since = now ? now : 1;
    uint64_t due = c->owed_since + c->cfg.confirm_delay_ns;
    if (owed == OWED_ANSWER && c->answer_at) /* nothing but an answer to a POLL: at most one per confirm_delay */
        due = c->answer_at + c->cfg.confirm_delay_ns;
    else if (drained)
        due = now;
    if (now >= due)
        confirm_build(c, now, 0, 0);
    else
        c->confirm_due = due;
}

uint32_t zj_step(zj_core *c, uint64_t now, uint32_t drained)
{
    uint32_t status = 0;
    if (c->ctl_head != c->ctl_tail)
        status |= ZJ_S_CONTROL;
    if (!c->is_open)
        return status;
    order_levels(c);
    stream_free(c);
    order_check_digests(c);
    send_window(c);
    if (c->building && c->fill > c->payload_at && send_can_seal(c))
        send_seal(c);
    confirm_if_owed(c, now, drained);
    order_levels(c); /* own broadcast may have completed a level */
    stream_free(c);
    watch_progress(c, now);
    if (c->tx_head != c->tx_tail)
        status |= ZJ_S_TX;
    if (order_ready(c))
        status |= ZJ_S_DELIVER;
    if (c->position != c->said_positions[0] || c->preack != c->said_positions[1] || c->acked != c->said_positions[2])
        status |= ZJ_S_RELEASE;
    if (c->poll_at != ZJ_NEVER)
        status |= ZJ_S_PENDING;
    if (send_can_seal(c))
        status |= ZJ_S_ROOM;
    if (c->fenced)
        status |= ZJ_S_FENCED;
    return status;
}

/* ---- timers of the engine ---- */

uint64_t zj_poll_due(const zj_core *c) { return c->is_open ? c->poll_at : ZJ_NEVER; }
uint64_t zj_confirm_due(const zj_core *c) { return c->is_open ? c->confirm_due : ZJ_NEVER; }

/* One of the stations whose word is missing here, as a number on the wire; 0: none. It may have said it and not been heard: then
 * its vectors equal ours, and rule C3 alone would keep it silent until its next heartbeat. */
static uint32_t whom_to_ask(zj_core *c)
{
    int acks = c->acked < c->need_position || (c->want_ack && c->acked < c->position);
    uint32_t missing[ZJW_STATIONS_MAX], k = 0;
    for (uint32_t j = 0; j < c->n; j++) {
        int lacks = c->building && c->st[j].free_buffers / c->n < c->cfg.window;
        for (uint32_t h = 0; !lacks && h < c->n; h++) {
            const struct stream *s = &c->st[h];
            lacks = s->al[j] < s->req || (acks && s->pack[j] < s->min_al);
        }
        if (lacks && j != c->self)
            missing[k++] = j + 1;
    }
    return k ? missing[zj_random(c, k)] : 0;
}

/* C4, and the repetition of own PDUs that nobody has confirmed: on a switched medium nobody has them. */
uint32_t zj_poll(zj_core *c, uint64_t now)
{
    struct stream *me = &c->st[c->self];
    if (!c->is_open || c->poll_at > now)
        return 0;
    uint64_t seen = me->min_al;
    for (uint32_t j = 0; j < c->n; j++)
        if (j != c->self && me->al[j] > seen)
            seen = me->al[j];
    for (uint64_t q = seen; q < me->req && q < seen + 4; q++)
        tx_slot(c, c->self, q, 1);
    confirm_build(c, now, ZJW_FLAG_POLL, whom_to_ask(c));
    c->count.tx_poll++;
    c->poll_wait *= 2;
    if (c->poll_wait > c->cfg.poll_delay_max_ns)
        c->poll_wait = c->cfg.poll_delay_max_ns;
    c->poll_at = now + c->poll_wait + zj_random(c, c->poll_wait / 2);
    return 1;
}

void zj_want_ack(zj_core *c, uint32_t yes) { c->want_ack = yes != 0; }

int zj_unstable(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    return c->is_open && (c->building || me->min_al < me->req);
}

/* ---- views ---- */

void zj_peer(const zj_core *c, uint32_t h, struct zj_peer *out)
{
    memset(out, 0, sizeof *out);
    if (h >= c->n)
        return;
    const struct stream *s = &c->st[h];
    uint32_t gaps = 0;
    if (c->is_open)
        for (uint64_t q = s->req; q < s->top && q < s->base + c->cfg.slots; q++)
            gaps += !meta_of(c, s, q)->present;
    *out = (struct zj_peer){.heard_ns = s->heard, .req = s->req, .top = s->top, .base = s->base, .min_al = s->min_al,
                            .acked = s->acked, .ordered = s->ordered, .clock = s->clock, .ack_moved_ns = s->ack_moved,
                            .incarnation = s->incarnation, .free_buffers = s->free_buffers, .frame_max = s->frame_max,
                            .gaps = gaps, .left = s->left, .fenced = s->fenced};
    memcpy(out->mac, s->mac, 6);
}

const struct zj_counters *zj_counters(const zj_core *c) { return &c->count; }
uint64_t zj_clock(const zj_core *c) { return c->clock; }

const char *zj_drop_name(uint32_t drop)
{
    switch ((enum zj_drop)drop) { /* no default: -Wswitch names a missing one */
    case ZJ_DROP_NONE: return "none";
    case ZJ_DROP_SHORT: return "short";
    case ZJ_DROP_CLUSTER: return "cluster";
    case ZJ_DROP_VERSION: return "version";
    case ZJ_DROP_KIND: return "kind";
    case ZJ_DROP_STATIONS: return "stations";
    case ZJ_DROP_SOURCE: return "source";
    case ZJ_DROP_OWN: return "own";
    case ZJ_DROP_LENGTH: return "length";
    case ZJ_DROP_CHECK: return "check";
    case ZJ_DROP_PAYLOAD: return "payload";
    case ZJ_DROP_CLOSED: return "closed";
    case ZJ_DROP_INSTANCE: return "instance";
    case ZJ_DROP_INCARNATION: return "incarnation";
    case ZJ_DROP_ACK: return "ack";
    case ZJ_DROP_WINDOW: return "window";
    case ZJ_DROP_CLOCK: return "clock";
    case ZJ_DROP_CONTROL_FULL: return "control_full";
    case ZJ_DROP_COUNT: break;
    }
    return "unknown";
}

static void api_positions(const zj_core *c, uint64_t *out) { zj_positions(c, out); }

const struct zj_api *zj_api(void)
{
    static const struct zj_api api = {
        .version = ZJ_API_VERSION, .size = sizeof api, .rx = zj_rx, .step = zj_step, .tx = zj_tx, .tx_done = zj_tx_done,
        .offer = zj_offer, .next = zj_next, .positions = api_positions, .nak_due = zj_nak_due, .poll_due = zj_poll_due,
        .confirm_due = zj_confirm_due, .nak = zj_nak,
    };
    return &api;
}
