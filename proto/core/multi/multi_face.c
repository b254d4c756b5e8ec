/* What has come of the inputs, the state for a change of eras, and the queues of links. */
#include "multi_int.h"

const struct zj_multi_event *zj_multi_events(const zj_multi *m, uint32_t *count)
{
    *count = m->n_events;
    return m->events;
}

#define KEPT 4096u /* events for which the memory stays */

void zj_multi_clear(zj_multi *m)
{
    for (uint32_t k = 0; k < m->n_events; k++)
        buf_drop(m->event_bufs[k]);
    m->n_events = 0;
    if (m->events_size <= KEPT)
        return;
    free(m->events);
    free(m->event_bufs);
    m->events = NULL;
    m->event_bufs = NULL;
    m->events_size = m->event_bufs_size = 0;
}

uint64_t zj_multi_ready(const zj_multi *m)
{
    uint64_t out = 0;
    for (uint32_t z = 1; z <= STATIONS; z++)
        if (m->out[z].before.n || m->out[z].now.n)
            out |= BIT(z);
    return out;
}

void zj_multi_flush(zj_multi *m, uint32_t station, zj_sendq *q)
{
    if (station < 1 || station > STATIONS)
        return;
    struct records *const both[] = {&m->out[station].before, &m->out[station].now};
    for (uint32_t k = 0; k < 2; k++)
        while (both[k]->n) {
            const struct record *r = records_shift(both[k]);
            if (q)
                records_push(&q->records, r);
            else
                buf_drop(r->buf);
        }
}

uint64_t zj_multi_due(const zj_multi *m)
{
    uint64_t first = ZJ_NEVER;
    for (uint64_t s = m->owed_peers; s; s &= s - 1) {
        const uint64_t due = m->due[__builtin_ctzll(s) + 1];
        first = due < first ? due : first;
    }
    return first;
}

/* ---- the state */

uint32_t zj_multi_digests(const zj_multi *m, uint32_t order, uint32_t *groups, uint64_t *digests, uint32_t max)
{
    const struct table *t = &m->tables[order];
    uint32_t n = 0;
    for (uint32_t k = 0; k < t->n; k++) {
        if (!t->groups[k].digest)
            continue;
        if (n < max) {
            groups[n] = t->groups[k].id;
            digests[n] = t->groups[k].digest;
        }
        n++;
    }
    return n;
}

void zj_multi_totals(const zj_multi *m, struct zj_multi_totals *out)
{
    *out = (struct zj_multi_totals){.clock = m->clock, .number = m->number, .input = m->input, .unfinished = m->n_own,
                                    .dropped = m->dropped, .lasts = m->n_last, .reports = m->n_reports};
    for (uint32_t z = 0; z <= STATIONS; z++)
        for (const struct message *x = m->unfinished[z].first; x; x = x->after)
            out->messages++;
}

void zj_multi_renumber(zj_multi *m, uint64_t number) { m->number = number; }

static void describe(const zj_multi *m, const struct message *x, struct zj_multi_message *out)
{
    *out = (struct zj_multi_message){
        .era = x->era, .destinations = x->destinations, .report = x->report, .time = x->time, .input = x->input,
        .number = x->number, .incarnation = x->incarnation, .client = x->client, .origin = x->origin, .order = x->order,
        .group = x->groups.ids[0], .size = x->data ? x->data->size : 0, .data = x->data ? x->data->bytes : NULL,
        .flags = (uint8_t)((x->safe ? ZJ_MULTI_SAFE : 0) | (x->has_report ? ZJ_MULTI_REPORTED : 0) |
                           (x->has_time ? ZJ_MULTI_DECIDED : 0) | (x->delivered ? ZJ_MULTI_DELIVERED : 0) |
                           (x->era < m->era ? ZJ_MULTI_OLD : 0)),
    };
}

void zj_multi_messages(const zj_multi *m, struct zj_multi_message *out)
{
    for (uint32_t z = 0; z <= STATIONS; z++)
        for (const struct message *x = m->unfinished[z].first; x; x = x->after)
            describe(m, x, out++);
}

void zj_multi_lasts(const zj_multi *m, struct zj_multi_last *out)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (const struct program *p = m->programs[b]; p; p = p->next)
            if (p->last)
                *out++ = (struct zj_multi_last){p->incarnation, p->last, p->client, p->origin, p->order};
}

uint32_t zj_multi_unreleased(const zj_multi *m, uint32_t order, struct zj_multi_message *out, uint32_t max)
{
    const struct ring *r = &m->sequence[order];
    for (uint32_t k = 0; k < r->n && k < max; k++)
        describe(m, (const struct message *)(uintptr_t)ring_at(r, k), out + k);
    return r->n;
}

uint32_t zj_multi_gone(const zj_multi *m, uint32_t origin, uint32_t *out, uint32_t max)
{
    uint32_t n = 0;
    const struct gone *g = &m->gone[origin];
    if (!g->bits)
        return 0;
    for (uint64_t number = g->highest > m->span ? g->highest - m->span + 1 : 1; number <= g->highest; number++)
        if (g->bits[number % m->span] && n < max)
            out[n++] = (uint32_t)number;
    return n;
}

/* ---- queues of links */

zj_sendq *zj_sendq_create(void) { return calloc(1, sizeof(zj_sendq)); }

void zj_sendq_destroy(zj_sendq *q)
{
    if (!q)
        return;
    records_free(&q->records);
    buf_drop(q->popped.buf);
    free(q);
}

void zj_sendq_put(zj_sendq *q, uint32_t type, uint32_t group, uint32_t client, const uint8_t *data, uint32_t size)
{
    const struct record r = {.buf = buf_new(size), .type = (uint8_t)type, .group = group, .client = (uint16_t)client, .size = size};
    if (size)
        memcpy(r.buf->bytes, data, size);
    records_push(&q->records, &r);
}

uint32_t zj_sendq_count(const zj_sendq *q) { return q->records.n; }

static void describe_offer(const struct record *r, struct zj_offer *out)
{
    *out = (struct zj_offer){.data = r->buf ? r->buf->bytes : r->small, .size = r->size, .group = r->group, .client = r->client,
                             .type = r->type, .ordering = ZJ_FIFO};
}

uint64_t zj_sendq_since(const zj_sendq *q) { return q->since; }

int zj_sendq_pump(zj_sendq *q, zj_core *core, uint64_t now)
{
    int taken = 0;
    if (q->records.n && !zj_unstable(core))
        q->since = now;
    while (q->records.n) { /* bound: what the core has room for */
        struct record *first = records_at(&q->records, 0);
        if (!q->partly)
            describe_offer(first, &q->offer);
        q->offer.data = first->buf ? first->buf->bytes : first->small; /* the list may have moved */
        const int result = zj_offer(core, &q->offer);
        q->partly = result == 0 && q->offer.done;
        if (result < 0)
            return -1;
        if (!result)
            break;
        buf_drop(records_shift(&q->records)->buf);
        taken = 1;
    }
    return taken;
}

int zj_sendq_pop(zj_sendq *q, struct zj_offer *out)
{
    buf_drop(q->popped.buf);
    q->popped.buf = NULL;
    if (!q->records.n)
        return 0;
    q->popped = *records_shift(&q->records);
    describe_offer(&q->popped, out);
    return 1;
}

/* ---- for the data path */

const struct zj_multi_api *zj_multi_api(void)
{
    static const struct zj_multi_api api = {
        .version = ZJ_MULTI_API_VERSION, .size = sizeof api, .take = zj_multi_take, .after = zj_multi_after,
        .events = zj_multi_events, .clear = zj_multi_clear, .ready = zj_multi_ready, .flush = zj_multi_flush, .due = zj_multi_due,
        .send = zj_multi_send, .members = zj_multi_members, .pump = zj_sendq_pump, .count = zj_sendq_count,
    };
    return &api;
}
