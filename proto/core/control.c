/* PDUs that are the engine's: a bounded queue in which no station crowds out another one. */
#include "zj_int.h"

static void write_at(zj_core *c, uint32_t at, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop)
{
    struct ctl *t = &c->mailbox.queue[at % ZJ_CTL];
    t->places = 0;
    t->size = size < ZJ_CTL_BYTES ? size : ZJ_CTL_BYTES;
    t->drop = drop;
    if (mac)
        memcpy(t->mac, mac, 6);
    else
        memset(t->mac, 0, 6);
    memcpy(t->data, pdu, t->size);
}

void control_push(zj_core *c, const uint8_t *pdu, uint32_t size, const uint8_t *mac, uint32_t drop)
{
    if (c->mailbox.tail - c->mailbox.head == ZJ_CTL)
        c->count.drops[ZJ_DROP_CONTROL_FULL]++;
    else
        write_at(c, c->mailbox.tail++, pdu, size, mac, drop);
}

/* An opening (OPEN, RCV) or, for a station in no instance, a vote. The very same bytes are shown again after ZJ_CTL_GAP_NS only, and
 * each station has its own places in the queue, so that a flood, of recorded frames too, costs the engine little and crowds no
 * station out. An honest repetition has another age, and what a station reports of an opening replaces what it reported before. */
int report_new(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t places, uint32_t drop)
{
    struct stream *s = &c->st[p->src];
    uint64_t key = get64(p->bytes + ZJW_HEADER_CHECK);
    if (faulty(c, ZJ_FAULT_CROWDED)) {
        control_push(c, p->bytes, p->size, mac, drop);
        return (int)drop;
    }
    uint32_t *waits = places == ZJ_PLACES_OPEN ? &s->shown.open_waits : &s->shown.vote_waits, at = c->mailbox.tail;

    for (uint32_t i = 0; i < ZJ_SHOWN; i++)
        if (s->shown.recent[i].at && s->shown.recent[i].key == key && now - s->shown.recent[i].at < ZJ_CTL_GAP_NS) {
            c->count.drops[ZJ_DROP_REPEATED]++;
            return ZJ_DROP_REPEATED;
        }
    if (*waits == places || at - c->mailbox.head == ZJ_CTL) {
        c->count.drops[ZJ_DROP_CONTROL_FULL]++;
        if (places != ZJ_PLACES_OPEN || !*waits)
            return ZJ_DROP_CONTROL_FULL;
        at = s->shown.open_last;
        if (p->incarnation < get32(c->mailbox.queue[at % ZJ_CTL].data + ZJW_HEADER_INCARNATION))
            return ZJ_DROP_CONTROL_FULL; /* an old copy: what waits is news */
    } else {
        c->mailbox.tail++;
        ++*waits;
    }
    if (places == ZJ_PLACES_OPEN)
        s->shown.open_last = at;
    s->shown.recent[s->shown.next++ % ZJ_SHOWN] = (struct shown){.key = key, .at = now ? now : 1};
    write_at(c, at, p->bytes, p->size, mac, drop);
    c->mailbox.queue[at % ZJ_CTL].src = p->src;
    c->mailbox.queue[at % ZJ_CTL].places = (uint8_t)places;
    return (int)drop;
}

int zj_control(zj_core *c, struct zj_control *out)
{
    if (c->mailbox.head == c->mailbox.tail) {
        out->size = 0;
        return 0;
    }
    const struct ctl *t = &c->mailbox.queue[c->mailbox.head++ % ZJ_CTL];
    if (t->places)
        --*(t->places == ZJ_PLACES_OPEN ? &c->st[t->src].shown.open_waits : &c->st[t->src].shown.vote_waits);
    out->data = t->data;
    out->size = t->size;
    out->drop = t->drop;
    memcpy(out->mac, t->mac, 6);
    return 1;
}

void control_push_limited(zj_core *c, uint64_t now, uint64_t *last, const struct pdu *p, const uint8_t *mac, uint32_t drop)
{
    if (*last && now - *last < ZJ_CTL_GAP_NS)
        return;
    *last = now ? now : 1;
    control_push(c, p->bytes, p->size, mac, drop);
}

/* Not to be processed, but reported to the engine. A CONFIRM tells which instance is running: other PDUs must not crowd it out. */
int report_foreign(zj_core *c, uint64_t now, const struct pdu *p, const uint8_t *mac, uint32_t drop)
{
    struct stream *s = &c->st[p->src];
    if (p->kind == ZJW_KIND_CONFIRM && s->shown.instance != p->instance) {
        s->shown.instance = p->instance; /* news: a joiner waits for just that */
        s->shown.confirm_at = 0;
    }
    control_push_limited(c, now, p->kind == ZJW_KIND_CONFIRM ? &s->shown.confirm_at : &s->shown.other_at, p, mac, drop);
    c->count.drops[drop]++;
    return (int)drop;
}

/* Of this cluster's name, and configured with another number of stations: nothing of it is processed, but who opens must know that it
 * is there. It gets no more than half of the queue. */
void report_rival(zj_core *c, uint64_t now, const uint8_t *bytes, uint32_t size, const uint8_t *mac)
{
    struct pdu p;
    uint32_t n = bytes[ZJW_HEADER_STATIONS];
    if (n < 1 || n > ZJW_STATIONS_MAX || c->mailbox.tail - c->mailbox.head >= ZJ_CTL / 2)
        return;
    if (pdu_read(bytes, size, c->cfg.cluster, n, c->cfg.pair, !faulty(c, ZJ_FAULT_NO_CHECK), &p))
        return;
    int opens = p.kind == ZJW_KIND_OPEN || p.kind == ZJW_KIND_RCV;
    if (opens || p.instance)
        control_push_limited(c, now, &c->mailbox.rivals[opens][p.src], &p, mac, ZJ_DROP_STATIONS);
}
