/* Cores of two stations (header flag PAIR), one for each other station that this one exchanges messages to groups with. Python makes
 * them; here their frames come in, and their timers run. links.c sends for them. */
#include "internal.h"

#include <stdlib.h>

#define ETH_ALEN 6

static void address_keep(struct dp_pair *p, uint32_t link, const uint8_t *mac)
{
    memcpy(p->mac[link], mac, ETH_ALEN);
    p->known |= (uint8_t)(1u << link);
}

static void pair_take(const struct dp_above *above, struct dp_pair *p, uint32_t link, uint64_t now, const struct zj_frame *pdu,
                      const uint8_t *mac, uint32_t to_group)
{
    if (above->api->pair_rx(p->core, now, pdu->data, pdu->size, mac, to_group) == ZJ_DROP_NONE)
        address_keep(p, link, mac);
}

/* What calls for a core is kept until Python has had its turn to open it: else each link would begin with frames that are lost, and
 * wait for a POLL. */
static void asked_keep(struct dp_pairs *ps, uint32_t other, uint32_t link, const struct zj_frame *pdu, const uint8_t *frame)
{
    uint8_t *data = ps->kept_count < DP_ASKED_MAX ? malloc(pdu->size) : NULL;
    if (!data)
        return; /* it comes again */
    memcpy(data, pdu->data, pdu->size);
    struct dp_asked *a = &ps->kept[ps->kept_count++];
    *a = (struct dp_asked){.data = data, .size = pdu->size, .other = (uint8_t)other, .link = (uint8_t)link, .to_group = frame[0] & 1};
    memcpy(a->mac, frame + ETH_ALEN, ETH_ALEN);
}

void pairs_forget_asked(struct dp_pairs *ps)
{
    while (ps->kept_count)
        free(ps->kept[--ps->kept_count].data);
}

/* A station's address on a link, by a copy of a frame whose first copy came on another link. */
void pairs_learn(const struct dp_above *above, uint32_t link, uint32_t other, const uint8_t *mac)
{
    struct dp_pairs *ps = above->pairs;
    if (other < ZJW_STATIONS_MAX && ps->open >> other & 1 && !(ps->at[other].known >> link & 1))
        address_keep(&ps->at[other], link, mac);
}

void pairs_receive(const struct dp_above *above, uint32_t link, uint64_t now, const struct zj_frame *pdu, const uint8_t *frame)
{
    struct dp_pairs *ps = above->pairs;
    const uint32_t other = pdu->data[ZJW_HEADER_SRC] - 1u;
    if (pdu->data[ZJW_HEADER_TARGET] != ps->self + 1 || other >= ZJW_STATIONS_MAX)
        return; /* for another station: at the group address all come to all */
    if (!(ps->open >> other & 1)) {
        if (above->api->pair_asks(above->core, pdu->data, pdu->size)) {
            ps->asked |= 1ull << other;
            asked_keep(ps, other, link, pdu, frame);
        }
        return;
    }
    pair_take(above, &ps->at[other], link, now, pdu, frame + ETH_ALEN, frame[0] & 1);
}

void pairs_step(const struct dp_above *above, uint64_t now, uint32_t drained)
{
    const struct zj_api *api = above->api;
    struct dp_pairs *ps = above->pairs;
    for (uint64_t rest = ps->open; rest; rest &= rest - 1) {
        const uint32_t other = (uint32_t)__builtin_ctzll(rest);
        struct dp_pair *p = &ps->at[other];
        /* What has come is Python's, and mostly has an answer, whose PDU confirms as well. */
        uint32_t status = api->step(p->core, now, 0);
        if (drained && !(status & ZJ_S_DELIVER))
            status = api->step(p->core, now, 1);
        if (api->nak_due(p->core) <= now)
            api->nak(p->core, now);
        if (drained && api->poll_due(p->core) <= now) {
            status = api->step(p->core, now, drained);
            if (api->poll_due(p->core) <= now)
                api->poll(p->core, now);
        }
        ps->pending = status & ZJ_S_PENDING ? ps->pending | 1ull << other : ps->pending & ~(1ull << other);
        if (status & ZJ_S_DELIVER || (p->waits && status & ZJ_S_ROOM))
            ps->news |= 1ull << other;
    }
}

uint64_t pairs_due(const struct dp_above *above)
{
    const struct zj_api *api = above->api;
    uint64_t due = UINT64_MAX;
    for (uint64_t rest = above->pairs->open; rest; rest &= rest - 1) {
        const zj_core *core = above->pairs->at[__builtin_ctzll(rest)].core;
        due = min64(due, min64(api->nak_due(core), min64(api->poll_due(core), api->confirm_due(core))));
    }
    return due;
}

/* ---- for Python ---- */
int dp_pair(struct dp *d, uint32_t station, struct zj_core *core)
{
    if (station < 1 || station > ZJW_STATIONS_MAX || station == d->cfg.self + 1)
        return -EINVAL;
    struct dp_pairs *ps = &d->pairs;
    const uint64_t bit = 1ull << (station - 1);
    ps->at[station - 1] = (struct dp_pair){.core = core};
    ps->open = core ? ps->open | bit : ps->open & ~bit;
    ps->news &= ~bit;
    ps->asked &= ~bit;
    ps->pending &= ~bit;
    for (uint32_t i = 0; core && i < ps->kept_count; i++) {
        const struct dp_asked *a = &ps->kept[i];
        if (a->other == station - 1)
            pair_take(&d->links.above, &ps->at[station - 1], a->link, dp_now(), &(struct zj_frame){.data = a->data, .size = a->size},
                      a->mac, a->to_group);
    }
    return 0;
}

int dp_pair_records(struct dp *d, uint32_t station, struct zj_sendq *queue, uint32_t index, uint32_t incarnation)
{
    if (station < 1 || station > ZJW_STATIONS_MAX || !(d->pairs.open >> (station - 1) & 1))
        return -ENOENT;
    struct dp_pair *p = &d->pairs.at[station - 1];
    p->queue = queue;
    p->index = index;
    p->incarnation = incarnation;
    return 0;
}

uint64_t dp_pair_malformed(const struct dp *d, uint32_t station)
{
    return station >= 1 && station <= ZJW_STATIONS_MAX ? d->pairs.at[station - 1].malformed : 0;
}

int dp_pair_waits(struct dp *d, uint32_t station, uint32_t yes)
{
    if (station < 1 || station > ZJW_STATIONS_MAX || !(d->pairs.open >> (station - 1) & 1))
        return -ENOENT;
    d->pairs.at[station - 1].waits = yes != 0;
    return 0;
}

void dp_pairs(struct dp *d, uint64_t *news, uint64_t *asked)
{
    *news = d->pairs.news;
    *asked = d->pairs.asked;
    d->pairs.news = d->pairs.asked = 0;
    d->multi.has_room = 0;
}
