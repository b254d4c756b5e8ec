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
    if (f->medium > ZJ_BUS || (f->medium == ZJ_BUS && !f->own_timeout_ns))
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
    c->ops = reserve(c, (c->log_mask + 1) * sizeof *c->ops);
    c->later_ops = reserve(c, (c->log_mask + 1) * sizeof *c->ops);
    c->op_mask = c->log_mask;
    int ok = c->log && c->digests && c->ops && c->later_ops && c->st;
    for (uint32_t h = 0; ok && h < c->n; h++) {
        struct stream *s = &c->st[h];
        s->data = reserve(c, (uint64_t)f->slots * c->slot_bytes);
        s->meta = reserve(c, f->slots * sizeof *s->meta);
        ok = s->data && s->meta;
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
        assembly_end(c, h);
    }
    free(c->st);
    free(c->log);
    free(c->digests);
    free(c->ops);
    free(c->later_ops);
    free(c);
}

uint64_t zj_memory(const zj_core *c) { return c->memory; }

/* What an instance begins with, however it is entered. Its streams come next. */
static void enter(zj_core *c, uint64_t now, uint32_t instance, uint32_t view, uint64_t members)
{
    c->is_open = 1;
    c->flushing = c->fenced = c->pinned = c->watch = c->bye = c->blocked = 0;
    c->instance = c->join_last = instance;
    c->view = view;
    c->clock = (uint64_t)instance << 32;
    c->waiting = c->state = c->trans = 0;
    c->vote_head = c->vote_tail = 0;
    c->votes_stalled = 0;
    c->tx_last = now;
    c->next = c->cfg.first_seq;
    bus_open(c);
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
    order_enter(c, instance, view);
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
    c->joining = 1;
    c->let_in_by = faulty(c, ZJ_FAULT_EAGER_JOINER) ? 0 : instance;
    c->join_clock = place_clock;
    c->join_src = place_src;
    event_push(c, &(struct zj_commit){.instance = instance, .view = view, .members = members, .joined = joined,
                                      .place_clock = place_clock, .place_src = place_src}, incarnations, 0);
    send_reset(c);
    return 0;
}

void zj_close(zj_core *c)
{
    if (c->is_open)
        order_close(c);
    c->is_open = c->flushing = 0;
    c->vote_head = c->vote_tail = 0;
    send_reset(c);
}

int zj_is_open(const zj_core *c) { return c->is_open; }

void zj_reached(zj_core *c, uint32_t *view, uint64_t *count)
{
    order_levels(c);
    const struct view *v = c->let_in_by ? NULL : view_at(c, medium_reached(c));
    *view = v ? v->hash : 0;
    *count = v ? medium_reached(c) - v->base : 0;
}

void zj_flush(zj_core *c, uint32_t view, uint64_t count)
{
    if (c->is_open || c->fenced || faulty(c, ZJ_FAULT_NO_FLUSH))
        return;
    const struct view *v = view_of(c, view);
    c->flushing = 1;
    c->let_in_by = 0;
    c->flush_view = 0;
    c->flush_to = v ? v->base + count : 0;
    for (uint32_t i = c->event_head; !v && i != c->event_tail; i++) /* bound: events */
        if (c->events[i % ZJ_EVENTS].hash == view) {
            c->flush_view = view;
            c->flush_count = count;
            c->flush_to = ZJ_NEVER; /* all that stands before it */
        }
    order_levels(c);
}

int zj_flushing(const zj_core *c) { return c->flushing; }

int zj_flushed(const zj_core *c)
{
    if (!c->flushing || c->fenced)
        return 1;
    return !order_left(c) && medium_told(c);
}

void zj_set_frame_max(zj_core *c, uint32_t frame_max)
{
    c->own_frame_max = frame_max < c->cfg.frame_max ? frame_max : c->cfg.frame_max;
    send_window(c);
}

/* ---- reception ---- */

static void tell_at(zj_core *c, uint32_t at, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop)
{
    struct ctl *t = &c->ctl[at % ZJ_CTL];
    t->places = 0;
    t->size = size < ZJ_CTL_BYTES ? size : ZJ_CTL_BYTES;
    t->drop = drop;
    if (mac)
        memcpy(t->mac, mac, 6);
    else
        memset(t->mac, 0, 6);
    memcpy(t->data, pdu, t->size);
}

void tell(zj_core *c, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop)
{
    if (c->ctl_tail - c->ctl_head == ZJ_CTL)
        c->count.drops[ZJ_DROP_CONTROL_FULL]++;
    else
        tell_at(c, c->ctl_tail++, pdu, size, mac, drop);
}

/* An opening (OPEN, RCV) or, to who is in no instance, a vote. The very same bytes are shown again after a moment only, and one
 * station has its own places in the queue, so that a flood, of recorded frames too, costs the engine little and crowds nobody out. An
 * honest repetition has another age; and what a station says of an opening replaces what it said before. */
static int tell_new(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t places, uint32_t drop)
{
    struct stream *s = &c->st[p->src];
    uint64_t key = get64(p->bytes + ZJW_HEADER_CHECK);
    uint32_t *waits = places == ZJ_PLACES_OPEN ? &s->open_waits : &s->vote_waits, at = c->ctl_tail;

    for (uint32_t i = 0; i < ZJ_TOLD; i++)
        if (s->told[i].at && s->told[i].key == key && now - s->told[i].at < ZJ_CTL_GAP_NS) {
            c->count.drops[ZJ_DROP_REPEATED]++;
            return ZJ_DROP_REPEATED;
        }
    if (*waits == places || at - c->ctl_head == ZJ_CTL) {
        c->count.drops[ZJ_DROP_CONTROL_FULL]++;
        if (places != ZJ_PLACES_OPEN || !*waits)
            return ZJ_DROP_CONTROL_FULL;
        at = s->open_last;
    } else {
        c->ctl_tail++;
        ++*waits;
    }
    if (places == ZJ_PLACES_OPEN)
        s->open_last = at;
    s->told[s->told_next++ % ZJ_TOLD] = (struct told){.key = key, .at = now ? now : 1};
    tell_at(c, at, p->bytes, p->size, mac, drop);
    c->ctl[at % ZJ_CTL].src = p->src;
    c->ctl[at % ZJ_CTL].places = (uint8_t)places;
    return (int)drop;
}

int zj_control(zj_core *c, struct zj_control *out)
{
    if (c->ctl_head == c->ctl_tail) {
        out->size = 0;
        return 0;
    }
    const struct ctl *t = &c->ctl[c->ctl_head++ % ZJ_CTL];
    if (t->places)
        --*(t->places == ZJ_PLACES_OPEN ? &c->st[t->src].open_waits : &c->st[t->src].vote_waits);
    out->data = t->data;
    out->size = t->size;
    out->drop = t->drop;
    memcpy(out->mac, t->mac, 6);
    return 1;
}

static void tell_seldom(zj_core *c, uint64_t now, uint64_t *last, const struct pdu *p, const uint8_t *mac, uint32_t drop)
{
    if (*last && now - *last < ZJ_CTL_GAP_NS)
        return;
    *last = now ? now : 1;
    tell(c, p->bytes, p->size, mac, drop);
}

/* Not to be processed, but the engine is to know. A CONFIRM says which instance lives: other PDUs must not crowd it out. */
int stranger(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t drop)
{
    struct stream *s = &c->st[p->src];
    if (p->kind == ZJW_KIND_CONFIRM && s->told_instance != p->instance) {
        s->told_instance = p->instance; /* news: a joiner waits for just that */
        s->told_confirm = 0;
    }
    tell_seldom(c, now, p->kind == ZJW_KIND_CONFIRM ? &s->told_confirm : &s->told_other, p, mac, drop);
    c->count.drops[drop]++;
    return (int)drop;
}

/* Of this cluster's name, and configured with another number of stations: nothing of it is processed, but who opens must know that it
 * is there. It gets no more than half of the queue. */
static void rival(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac)
{
    struct pdu p;
    uint32_t n = bytes[ZJW_HEADER_STATIONS];
    if (n < 1 || n > ZJW_STATIONS_MAX || c->ctl_tail - c->ctl_head >= ZJ_CTL / 2)
        return;
    if (pdu_read(bytes, size, c->cfg.cluster, n, !faulty(c, ZJ_FAULT_NO_CHECK), &p))
        return;
    int opens = p.kind == ZJW_KIND_OPEN || p.kind == ZJW_KIND_RCV;
    if (opens || p.instance)
        tell_seldom(c, now, &c->told_rival[opens][p.src], &p, mac, ZJ_DROP_STATIONS);
}

/* C3: it lacks what I said last, or what I have not said yet. */
static int lacks_news(const zj_core *c, const struct pdu *p)
{
    if (p->instance != c->instance || free_slots(c) > c->said_free || p->target == c->self + 1)
        return 1;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t h = c->list[i];
        const struct stream *t = &c->st[h];
        if (widen(t->said_ack, get32(p->ack + 4 * h)) < t->said_ack || widen(t->said_pack, get32(p->pack + 4 * h)) < t->said_pack ||
            t->req > t->said_ack || t->min_al > t->said_pack)
            return 1;
    }
    return 0;
}

/* An unsequenced PDU of the own instance or an earlier one. */
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
    if (p->flags & ZJW_FLAG_BYE && !s->left)
        c->bye = 1; /* nobody should wait for it: the engine is told at once */
    s->left = (p->flags & ZJW_FLAG_BYE) != 0;
    s->fenced = (p->flags & ZJW_FLAG_FENCED) != 0;
    order_hear_digest(c, p->src, get32(p->payload + ZJW_CONFIRM_COUNTED), get64(p->payload + ZJW_CONFIRM_POSITION),
                      get64(p->payload + ZJW_CONFIRM_DIGEST));
    if (faulty(c, ZJ_FAULT_CHATTER))
        c->chatter = 1;
    if (p->flags & ZJW_FLAG_POLL && !c->cfg.answer_each && lacks_news(c, p)) {
        c->answer = 1;
        c->count.polls_answered++;
    }
}

/* A station that asks another one for its word again and again does not hear the answers: that one's next CONFIRM is passed on. So a
 * station that is cut off from another in one direction only stays with it: it has life and acknowledgements from here, and data by
 * retransmission. */
static void pass_on(zj_core *c, uint64_t now, const struct pdu *p)
{
    struct stream *s = &c->st[p->src];
    if (now < s->relay_until) {
        s->relay_until = 0;
        confirm_relay(c, p);
    }
    uint32_t h = p->target - 1u;
    if (!(p->flags & ZJW_FLAG_POLL) || !p->target || h == c->self || h == p->src || !is_member(c, h))
        return;
    struct stream *t = &c->st[h];
    if (t->asked_by == p->src + 1 && now - t->asked_at < ZJ_ASKS_NS)
        t->relay_until = now + c->cfg.poll_delay_ns;
    t->asked_by = (uint8_t)(p->src + 1);
    t->asked_at = now;
}

void take_unsequenced(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, int later)
{
    struct stream *s = &c->st[p->src];
    s->heard = now; /* from the station itself, or passed on just now by one that hears it */
    if (p->flags & ZJW_FLAG_RELAYED) {
        c->count.rx_duplicate++;
    } else if (mac) { /* under its present address */
        memcpy(s->mac, mac, 6);
        s->mac_known = 1;
    }
    if (!later)
        confirmed(c, p);
    if (p->kind == ZJW_KIND_NAK) {
        c->count.rx_nak++;
        stream_nak(c, p, now);
        return;
    }
    c->count.rx_confirm++;
    s->said_state = get64(p->payload + ZJW_CONFIRM_STATE);
    s->said_trans = get64(p->payload + ZJW_CONFIRM_TRANS);
    s->said_instance = p->instance;
    s->said_view = get32(p->payload + ZJW_CONFIRM_VIEW);
    if (medium_repeats(c) && !(p->flags & ZJW_FLAG_RELAYED))
        pass_on(c, now, p);
    if (!later)
        return;
    tell_seldom(c, now, &s->told_later, p, mac, ZJ_DROP_INSTANCE); /* what it says counts once we are there as well */
    if (p->flags & ZJW_FLAG_POLL && p->target == c->self + 1)
        c->answer = 1;
}

static int dropped(zj_core *c, int drop)
{
    if (drop)
        c->count.drops[drop]++;
    return drop;
}

/* A PDU of a member, of the life and the sort of instance that is expected: vectors, loss, acceptance. */
int switched_take(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac)
{
    struct stream *s = &c->st[p->src];
    int later = p->instance > c->instance, drop; /* later: its vectors may speak of incarnations that we do not know yet */
    if (!later && (drop = al_merge(c, p, now)))
        return drop;
    if (p->instance > s->spoke) {
        s->spoke = p->instance;
        al_spoke(c, p->src);
    }
    if (!is_sequenced(p->kind)) {
        take_unsequenced(c, now, p, mac, later);
        return ZJ_DROP_NONE;
    }
    if (!mac || !s->mac_known || !memcmp(mac, s->mac, 6))
        s->heard = now;
    c->count.rx_data++;
    return stream_take(c, p, now);
}

int zj_rx(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac)
{
    struct pdu p;
    int drop = pdu_read(bytes, size, c->cfg.cluster, c->n, !faulty(c, ZJ_FAULT_NO_CHECK), &p);

    c->count.rx_frames++;
    c->count.rx_bytes += size;
    if (drop == ZJ_DROP_STATIONS)
        rival(c, now, bytes, size, mac);
    if (drop)
        return dropped(c, drop);
    if (!medium_knows(c, p.kind))
        return dropped(c, ZJ_DROP_KIND);
    if (p.src == c->self && !medium_returns(c, &p)) {
        /* Own PDUs may be relayed by others; anything else means that the number is taken twice. */
        if (!is_sequenced(p.kind) && !(p.kind == ZJW_KIND_CONFIRM && p.flags & ZJW_FLAG_RELAYED))
            return stranger(c, now, &p, mac, ZJ_DROP_OWN);
        c->count.rx_duplicate++;
        return ZJ_DROP_NONE;
    }
    if (p.kind == ZJW_KIND_OPEN || p.kind == ZJW_KIND_RCV) {
        return tell_new(c, now, &p, mac, ZJ_PLACES_OPEN, ZJ_DROP_NONE);
    }
    struct stream *s = &c->st[p.src];
    if (!c->is_open) {
        if (p.kind != ZJW_KIND_RCV_ACK)
            return stranger(c, now, &p, mac, ZJ_DROP_CLOSED);
        c->count.drops[ZJ_DROP_CLOSED]++;
        return tell_new(c, now, &p, mac, ZJ_PLACES_VOTE, ZJ_DROP_CLOSED); /* each may be the one that lets this station in */
    }
    if (!is_member(c, p.src))
        return stranger(c, now, &p, mac, ZJ_DROP_MEMBER);
    if (p.incarnation != s->incarnation)
        return stranger(c, now, &p, mac, ZJ_DROP_INCARNATION);
    if (p.instance < s->joined_at) /* not of this life of its stream */
        return stranger(c, now, &p, mac, ZJ_DROP_INSTANCE);
    if (p.instance == c->instance && p.kind == ZJW_KIND_CONFIRM && get32(p.payload + ZJW_CONFIRM_VIEW) != c->view)
        return stranger(c, now, &p, mac, ZJ_DROP_INSTANCE); /* one number for two instances: nothing of it is believed */
    /* No station is that far ahead of the others, but for the jumps of instances: nonsense must not use up all clocks. */
    uint64_t ahead = p.instance > c->instance ? p.instance - c->instance : 0;
    if (p.clock >> 62 || p.clock > c->clock + ZJ_CLOCK_AHEAD + (ahead << 32))
        return dropped(c, ZJ_DROP_CLOCK);
    return dropped(c, medium_take(c, now, &p, mac));
}

/* ---- step ---- */

/* Something here is not as stable as somebody wants it: more must come, or is to be asked for. */
int switched_pending(const zj_core *c)
{
    if ((c->building && !c->blocked) || c->acked < c->need_position || (c->want_ack && c->acked < c->position) ||
        c->preack < c->position)
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
    if (!medium_pending(c)) {
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
    assembly_tidy(c, now);
    if (c->ctl_head != c->ctl_tail)
        status |= ZJ_S_CONTROL;
    if (!c->is_open)
        return status;
    if (c->votes_stalled) {
        c->votes_stalled = 0;
        for (uint32_t h = 0; h < c->n; h++)
            if (h != c->self)
                stream_advance(c, h);
    }
    order_levels(c);
    stream_free(c);
    order_check_digests(c);
    send_window(c);
    if (c->building && c->fill > c->payload_at && send_can_seal(c))
        send_seal(c);
    if (c->phase == ZJ_P_RUN)
        confirm_if_owed(c, now, drained);
    order_levels(c); /* own broadcast may have completed a level */
    stream_free(c);
    watch_progress(c, now);
    bus_watch(c, now);
    if (c->vote_head != c->vote_tail || c->bye || c->phase == ZJ_P_LOST || c->reset_news || (c->watch && c->progress != c->progress_watched))
        status |= ZJ_S_CONTROL;
    if (c->tx_head != c->tx_tail)
        status |= ZJ_S_TX;
    if (order_ready(c))
        status |= ZJ_S_DELIVER;
    if (!medium_told(c))
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

uint64_t zj_poll_due(const zj_core *c)
{
    uint64_t due = c->own_due < c->poll_at ? c->own_due : c->poll_at;
    return c->is_open ? due : ZJ_NEVER;
}
uint64_t zj_confirm_due(const zj_core *c) { return c->is_open ? c->confirm_due : ZJ_NEVER; }

/* One of the stations whose word is missing here, as a number on the wire; 0: none. It may have said it and not been heard: then
 * its vectors equal ours, and rule C3 alone would keep it silent until its next heartbeat. */
static uint32_t whom_to_ask(zj_core *c)
{
    int acks = medium_acks(c) || c->acked < c->need_position || (c->want_ack && c->acked < c->position);
    uint32_t missing[ZJW_STATIONS_MAX], k = 0;
    for (uint32_t i = 0; i < c->listed; i++) {
        uint32_t j = c->list[i];
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
    if (!c->is_open || c->phase != ZJ_P_RUN || bus_own_lost(c, now) || c->poll_at > now)
        return 0;
    uint64_t seen = me->min_al;
    for (uint32_t i = 0; i < c->listed; i++)
        if (c->list[i] != c->self && me->al[c->list[i]] > seen)
            seen = me->al[c->list[i]];
    for (uint64_t q = seen; medium_repeats(c) && q < me->req && q < seen + 4; q++)
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
    return c->is_open && (c->building || me->min_al < c->next || released(c) < c->preack);
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
                            .gaps = gaps, .left = s->left, .fenced = s->fenced, .member = (uint8_t)is_member(c, h),
                            .closing = s->closing, .limit = s->limit, .state = s->said_state, .trans = s->said_trans,
                            .instance = s->said_instance, .view = s->said_view};
    memcpy(out->mac, s->mac, 6);
}

const struct zj_counters *zj_counters(const zj_core *c) { return &c->count; }
uint64_t zj_clock(const zj_core *c) { return medium_clock(c); }

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
    case ZJ_DROP_MEMBER: return "member";
    case ZJ_DROP_REMOVED: return "removed";
    case ZJ_DROP_EPOCH: return "epoch";
    case ZJ_DROP_RESET: return "reset";
    case ZJ_DROP_REPEATED: return "repeated";
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
