/* Inputs and outputs of the machine for groups that overlap; the rules are in multi_rules.c. */
#include "multi_int.h"

_Static_assert(sizeof(struct zj_multi_event) == 112, "proto/multicast/fast.py unpacks it");

/* ---- what happens to a message */

static uint64_t mix(uint64_t x) /* as that of the main order: order/digest.c */
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

static void add_to_digests(zj_multi *m, const struct message *x)
{
    const uint64_t name = mix(x->era) ^ ((uint64_t)x->origin << 32 | x->number);
    for (uint32_t k = 0; k < x->groups.n; k++) {
        struct group *g = group_find(&m->tables[x->order], x->groups.ids[k]);
        if (g)
            g->digest = mix(g->digest + mix(name));
    }
}

void multi_event(zj_multi *m, uint32_t kind, const struct message *x)
{
    m->events = multi_grow(m->events, &m->events_size, m->n_events + 1, sizeof *m->events);
    m->event_bufs = multi_grow(m->event_bufs, &m->event_bufs_size, m->n_events + 1, sizeof(struct buf *));
    m->event_bufs[m->n_events] = NULL;
    struct zj_multi_event *e = &m->events[m->n_events];
    e->era = x->era;
    e->number = x->number;
    e->incarnation = x->incarnation;
    e->client = x->client;
    e->kind = (uint8_t)kind;
    e->origin = x->origin;
    e->order = x->order;
    e->time = 0;
    e->data = NULL;
    e->size = e->count = 0;
    m->n_events++;
    if (kind != ZJ_MULTI_DELIVER)
        return;
    add_to_digests(m, x);
    e->time = x->time;
    e->count = (uint8_t)x->groups.n;
    memcpy(e->groups, x->groups.ids, x->groups.n * sizeof *e->groups);
    if (!x->data)
        return;
    const uint32_t head = D_SIZE + 4 * (x->groups.n - 1);
    e->size = x->data->size - head;
    e->data = x->data->bytes + head;
    m->event_bufs[m->n_events - 1] = x->data;
    x->data->refs++;
}

void multi_finish(zj_multi *m, struct message *x)
{
    if (x->finished)
        return;
    x->refs++;
    x->finished = 1;
    unfinished_remove(m, x);
    if (x->origin == m->me && x->incarnation == m->incarnation)
        multi_event(m, ZJ_MULTI_FINISHED, x);
    struct ring *s = &m->sequence[x->order];
    while (s->n && ((struct message *)(uintptr_t)ring_at(s, 0))->finished) { /* level preack comes in the order of delivery */
        struct message *first = (struct message *)(uintptr_t)ring_shift(s);
        multi_event(m, ZJ_MULTI_RELEASE, first);
        message_drop(m, first);
    }
    buf_drop(x->data);
    x->data = NULL;
    if (x->program && x->program->last == x->number)
        program_last(m, x->program, 0);
    if (x->in_table) {
        gone_add(m, x->origin, x->number);
        message_forget(m, x);
    }
    message_drop(m, x);
}

static struct undecided *undecided_of(zj_multi *m, const struct message *x)
{
    struct undecided *u = m->undecided;
    while (u && (u->origin != x->origin || !same_set(&u->groups, &x->groups)))
        u = u->next;
    if (!u) {
        u = calloc(1, sizeof *u);
        if (!u)
            abort();
        u->groups = x->groups;
        u->origin = x->origin;
        *m->undecided_end = u;
        m->undecided_end = &u->next;
    }
    return u;
}

/* A message has come, or has been sent: it concerns these rules. */
void multi_insert(zj_multi *m, struct message *x)
{
    const struct table *t = &m->tables[x->order];
    const uint64_t me = BIT(m->me);
    x->known = 1;
    x->program = program_get(m, x->origin, x->incarnation, x->client, x->order);
    x->proposers = x->destinations & t->hosts;
    x->coordinator = x->order ? (uint8_t)(x->proposers ? __builtin_ctzll(x->proposers) + 1 : 0) : x->origin;
    x->followers = x->proposers & me ? x->destinations & t->follow_me & ~me : 0;
    unfinished_add(m, x);
    if (x->proposers & me) {
        struct program *p = x->program;
        if (!p->unreported.n) {
            p->before = m->unreported.end;
            p->after = NULL;
            if (p->before)
                p->before->after = p;
            else
                m->unreported.first = p;
            m->unreported.end = p;
        }
        x->refs++;
        ring_push(&p->unreported, (uintptr_t)x);
    }
    if (x->coordinator == m->me) {
        x->refs++;
        ring_push(&undecided_of(m, x)->messages, (uintptr_t)x);
    }
    if (!(x->destinations & BIT(x->origin))) {
        if (x->coordinator == m->me && x->origin != m->me) {
            tail_push(&m->peers[x->origin][x->order].outside, (uintptr_t)x);
            m->owed_peers |= BIT(x->origin);
        } else if (x->origin == m->me && x->incarnation == m->incarnation && x->coordinator != m->me && x->coordinator) {
            tail_push(&m->peers[x->coordinator][x->order].sent_to, (uintptr_t)x);
        }
    }
}

/* ---- the object, and an era */

zj_multi *zj_multi_create(uint32_t station, uint32_t incarnation, uint32_t window, uint64_t settle)
{
    if (station < 1 || station > STATIONS || !window || window > 1u << 20)
        return NULL;
    zj_multi *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->me = station;
    m->incarnation = incarnation;
    m->window = window;
    m->span = 2 * window;
    m->settle = settle;
    m->undecided_end = &m->undecided;
    return m;
}

static void drop_all(zj_multi *m, struct ring *r)
{
    while (r->n)
        message_drop(m, (struct message *)(uintptr_t)ring_shift(r));
    ring_free(r);
}

/* Forget all messages and what is known of them; the clock, the tables and what waits to be taken out stay. */
static void clear(zj_multi *m)
{
    for (struct undecided *u = m->undecided, *next; u; u = next) {
        next = u->next;
        drop_all(m, &u->messages);
        free(u);
    }
    m->undecided = NULL;
    m->undecided_end = &m->undecided;
    while (m->unreported.first) {
        struct program *p = m->unreported.first;
        unreported_remove(m, p);
        p->refs++;
        while (p->unreported.n)
            message_drop(m, (struct message *)(uintptr_t)ring_shift(&p->unreported));
        program_drop(m, p);
    }
    drop_all(m, &m->perhaps_stable);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        struct heap *h = &m->heaps[order];
        for (uint32_t k = 0; k < h->n; k++)
            message_drop(m, h->items[k].m);
        free(h->items);
        memset(h, 0, sizeof *h);
        drop_all(m, &m->sequence[order]);
    }
    for (uint32_t z = 0; z <= STATIONS; z++) {
        while (m->unfinished[z].first)
            unfinished_remove(m, m->unfinished[z].first);
        for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
            struct peer *p = &m->peers[z][order];
            struct tail *const tails[] = {&p->decided_by, &p->decided_to, &p->outside, &p->sent_to};
            for (uint32_t k = 0; k < 4; k++)
                tail_free(m, tails[k]);
            memset(p, 0, sizeof *p);
            p->decided_by.names = 1;
        }
        free(m->gone[z].bits);
        m->gone[z] = (struct gone){0};
        m->due[z] = ZJ_NEVER;
    }
    m->owed_peers = 0;
    ring_free(&m->to_follow_names);
    ring_free(&m->to_follow_times);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        while (m->buckets[b])
            message_forget(m, m->buckets[b]);
        for (struct program *p = m->programs[b], *next; p; p = next) {
            next = p->next;
            if (p->last)
                program_last(m, p, 0);
        }
    }
}

void zj_multi_destroy(zj_multi *m)
{
    if (!m)
        return;
    clear(m);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++)
        free(m->tables[order].groups);
    for (uint32_t z = 1; z <= STATIONS; z++) {
        records_free(&m->out[z].now);
        records_free(&m->out[z].before);
    }
    zj_multi_clear(m);
    free(m->events);
    free(m->event_bufs);
    free(m);
}

void zj_multi_open(zj_multi *m, uint64_t era, uint64_t clock, uint64_t number, uint64_t input, const uint32_t *lives)
{
    clear(m);
    m->era = era;
    m->clock = clock;
    m->number = number;
    m->input = input;
    memcpy(m->lives + 1, lives, STATIONS * sizeof *lives);
    m->n_part = 0;
    for (uint32_t z = 1; z <= STATIONS; z++)
        m->n_part += m->lives[z] != 0;
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++)
        for (uint32_t k = 0; k < m->tables[order].n; k++)
            m->tables[order].groups[k].digest = 0;
}

void zj_multi_table(zj_multi *m, uint32_t order, uint64_t members, uint64_t hosts, const uint8_t *followed)
{
    struct table *t = &m->tables[order];
    t->members = members;
    t->hosts = hosts;
    t->follow_me = 0;
    memcpy(t->followed + 1, followed, STATIONS);
    for (uint32_t z = 1; z <= STATIONS; z++)
        if (t->followed[z] == m->me && z != m->me)
            t->follow_me |= BIT(z);
}

void zj_multi_group(zj_multi *m, uint32_t order, uint32_t group, uint64_t members)
{
    struct table *t = &m->tables[order];
    const uint32_t at = group_place(t, group), there = at < t->n && t->groups[at].id == group;
    if (!members && !there)
        return;
    if (!members) {
        memmove(t->groups + at, t->groups + at + 1, (--t->n - at) * sizeof *t->groups);
        return;
    }
    if (!there) {
        t->groups = multi_grow(t->groups, &t->size, t->n + 1, sizeof *t->groups);
        memmove(t->groups + at + 1, t->groups + at, (t->n++ - at) * sizeof *t->groups);
    }
    t->groups[at] = (struct group){.id = group, .members = members};
}

uint64_t zj_multi_members(const zj_multi *m, uint32_t order, uint32_t group)
{
    const struct group *g = order < ZJ_MULTI_ORDERS ? group_find(&m->tables[order], group) : NULL;
    return g ? g->members : 0;
}

void zj_multi_last(zj_multi *m, const struct zj_multi_last *last)
{
    struct program *p = program_get(m, last->origin, last->incarnation, last->client, last->order);
    program_last(m, p, last->number);
    p->refs--; /* that of the last one keeps it */
}

static struct message *old_message(zj_multi *m, const struct zj_multi_message *message)
{
    struct message *x = calloc(1, sizeof *x);
    if (!x)
        abort();
    x->refs = 1;
    x->era = message->era;
    x->number = message->number;
    x->incarnation = message->incarnation;
    x->client = message->client;
    x->origin = message->origin;
    x->order = message->order;
    x->safe = message->flags & ZJ_MULTI_SAFE;
    x->delivered = 1;
    x->known = 1;
    x->program = program_get(m, x->origin, x->incarnation, x->client, x->order);
    return x;
}

void *zj_multi_old(zj_multi *m, const struct zj_multi_message *message)
{
    struct message *x = old_message(m, message);
    unfinished_add(m, x);
    message_drop(m, x); /* the list of the unfinished keeps it */
    return x;
}

void zj_multi_wait_done(zj_multi *m, const struct zj_multi_message *message)
{
    struct message *x = old_message(m, message);
    x->finished = 1;
    ring_push(&m->sequence[x->order], (uintptr_t)x);
}

void zj_multi_wait(zj_multi *m, void *old)
{
    struct message *x = old;
    x->refs++;
    ring_push(&m->sequence[x->order], (uintptr_t)x);
}

static int is_before(const struct message *a, const struct message *b)
{
    if (a->era != b->era)
        return a->era < b->era;
    return a->origin != b->origin ? a->origin < b->origin : a->number < b->number;
}

void zj_multi_close(zj_multi *m)
{
    for (;;) { /* bound: the messages of earlier eras */
        struct message *least = NULL;
        for (uint32_t z = 0; z <= STATIONS; z++) {
            struct message *first = m->unfinished[z].first;
            if (first && first->era < m->era && (!least || is_before(first, least)))
                least = first;
        }
        if (!least)
            return;
        multi_finish(m, least);
    }
}

/* ---- DATA */

/* Read a record DATA into *x, but for its destinations. 0: it makes no sense. */
static int read_data(const uint8_t *b, uint32_t size, uint32_t group, struct message *x)
{
    if (size < D_SIZE)
        return 0;
    const uint32_t more = b[D_MORE];
    if (more >= ZJ_MULTI_GROUPS || size < D_SIZE + 4 * more || b[D_FLAGS] > 1 || b[D_ORDER] >= ZJ_MULTI_ORDERS)
        return 0;
    if (!get32(b + D_NUMBER) || get64(b + D_SEEN) >= TIME_LIMIT)
        return 0;
    x->groups.n = more + 1;
    x->groups.ids[0] = group;
    for (uint32_t k = 0; k < more; k++) {
        x->groups.ids[k + 1] = get32(b + D_SIZE + 4 * k);
        if (x->groups.ids[k + 1] <= x->groups.ids[k])
            return 0;
    }
    x->order = b[D_ORDER];
    x->safe = b[D_FLAGS];
    return 1;
}

static uint64_t remaining(const zj_multi *m, uint64_t stations)
{
    uint64_t left = 0;
    for (uint64_t s = stations; s; s &= s - 1) {
        const uint32_t z = (uint32_t)__builtin_ctzll(s) + 1;
        left |= m->lives[z] ? BIT(z) : 0;
    }
    return left;
}

static void take_data(zj_multi *m, uint32_t source, uint32_t incarnation, const struct zj_message *r, const struct message *read)
{
    const uint32_t number = get32(r->data + D_NUMBER), finished = get32(r->data + D_FINISHED);
    const struct program *p = program_find(m, source, incarnation, r->client, read->order);
    const uint64_t to = remaining(m, destinations(&m->tables[read->order], &read->groups));
    if ((p && p->last >= number) || gone_has(m, source, number) || !(to & BIT(m->me))) {
        m->dropped++;
        return;
    }
    while (m->unfinished[source].first && m->unfinished[source].first->number <= finished && m->lives[source] == incarnation)
        multi_finish(m, m->unfinished[source].first); /* rule S4 */
    struct message *x = message_get(m, source, number);
    if (x->known) {
        m->dropped++;
        return;
    }
    x->incarnation = incarnation;
    x->client = r->client;
    x->order = read->order;
    x->groups = read->groups;
    x->destinations = to;
    x->safe = read->safe;
    x->input = m->input;
    x->data = buf_new(r->size);
    memcpy(x->data->bytes, r->data, r->size);
    multi_insert(m, x);
}

uint32_t zj_multi_send(zj_multi *m, uint32_t client, const uint32_t *groups, uint32_t count, uint32_t order, const uint8_t *data,
                       uint32_t size, uint32_t safe)
{
    struct group_set set = {.n = count};
    if (!count || count > ZJ_MULTI_GROUPS || order >= ZJ_MULTI_ORDERS)
        return 0;
    memcpy(set.ids, groups, count * sizeof *groups);
    const uint64_t to = destinations(&m->tables[order], &set);
    const struct message *first = m->unfinished[m->me].first;
    const uint64_t finished = first ? first->number - 1u : m->number, number = m->number + 1;
    if (m->number - finished >= m->window || !to || number > UINT32_MAX || (!(number & 0xFFFF) && first))
        return 0;
    m->number = number;
    safe |= m->number - finished > m->window / 2; /* rule S3: over all links, where each may owe little */
    struct buf *b = buf_new(D_SIZE + 4 * (count - 1) + size);
    put64(b->bytes + D_ERA, m->era);
    put32(b->bytes + D_NUMBER, (uint32_t)number);
    put32(b->bytes + D_FINISHED, (uint32_t)finished);
    put64(b->bytes + D_SEEN, m->clock);
    b->bytes[D_ORDER] = (uint8_t)order;
    b->bytes[D_FLAGS] = safe != 0;
    b->bytes[D_MORE] = (uint8_t)(count - 1);
    b->bytes[D_SIZE - 1] = 0;
    for (uint32_t k = 1; k < count; k++)
        put32(b->bytes + D_SIZE + 4 * (k - 1), groups[k]);
    if (size)
        memcpy(b->bytes + D_SIZE + 4 * (count - 1), data, size);
    struct message *x = message_get(m, m->me, (uint32_t)number);
    x->incarnation = m->incarnation;
    x->client = (uint16_t)client;
    x->order = (uint8_t)order;
    x->groups = set;
    x->destinations = to;
    x->safe = safe != 0;
    x->input = m->input;
    x->data = b;
    multi_insert(m, x);
    for (uint64_t s = to & ~BIT(m->me); s; s &= s - 1) {
        const struct record r = {.buf = b, .group = groups[0], .size = b->size, .client = (uint16_t)client, .type = ZJW_TYPE_USER};
        b->refs++;
        records_push(&m->out[__builtin_ctzll(s) + 1].now, &r);
    }
    return (uint32_t)number;
}

void zj_multi_add(zj_multi *m, const struct zj_multi_message *message)
{
    struct message read = {0};
    if (!message->data || !read_data(message->data, message->size, message->group, &read))
        return;
    struct message *x = message_get(m, message->origin, message->number);
    if (x->known)
        return;
    x->incarnation = message->incarnation;
    x->client = message->client;
    x->order = read.order;
    x->groups = read.groups;
    x->destinations = message->destinations;
    x->safe = read.safe;
    x->input = message->input;
    x->data = buf_new(message->size);
    memcpy(x->data->bytes, message->data, message->size);
    multi_insert(m, x);
}

/* ---- other records */

/* Rule O4. Reports may come before the data; as many are kept as can be right. */
static void on_report(zj_multi *m, uint32_t source, uint32_t origin, uint32_t number, uint64_t time)
{
    struct message *x = message_find(m, origin, number);
    int fits;
    if (x && x->known)
        fits = x->coordinator == m->me && x->proposers & BIT(source);
    else
        fits = m->n_reports < 2 * m->window * m->n_part && origin >= 1 && origin <= STATIONS && m->lives[origin] &&
               !gone_has(m, origin, number);
    if (!fits || (x && x->reported & BIT(source))) {
        m->dropped++;
        return;
    }
    x = message_get(m, origin, number);
    m->n_reports += !x->reported;
    x->reported |= BIT(source);
    x->largest = time > x->largest ? time : x->largest;
}

/* Rules O5, O7. */
static void on_decide(zj_multi *m, uint32_t source, uint32_t order, uint32_t origin, uint32_t number, uint64_t time)
{
    const struct table *t = &m->tables[order];
    const int leads = t->members & BIT(m->me) && t->followed[m->me] == source;
    struct message *x = message_find(m, origin, number);
    if (x && !x->known)
        x = NULL;
    if (!(leads || (x && x->coordinator == source)) || (x && x->has_time)) {
        m->dropped++;
        return;
    }
    const uint64_t name = (uint64_t)origin << 32 | number;
    tail_push(&m->peers[source][order].decided_by, name);
    if (x)
        multi_set_time(m, x, time);
    if (leads) {
        ring_push(&m->to_follow_names, name);
        ring_push(&m->to_follow_times, time);
    }
}

/* The items of a tail from where the last call ended up to place k, of which the low half is known; one before that is an old one.
 * Returns the new end; the caller goes through them, and then calls tail_taken. */
static uint64_t tail_until(const struct tail *t, uint32_t k)
{
    const uint32_t ahead = k - (uint32_t)t->taken;
    if (ahead >> 31)
        return t->taken;
    const uint64_t want = t->taken + ahead, have = t->first + t->items.n;
    const uint64_t end = want < have ? want : have;
    return end > t->taken ? end : t->taken;
}

static void tail_taken(zj_multi *m, struct tail *t, uint64_t end)
{
    t->taken = end;
    tail_use(m, t, t->used);
}

static uint64_t item(const struct tail *t, uint64_t place) { return ring_at(&t->items, (uint32_t)(place - t->first)); }

static void on_held(zj_multi *m, uint32_t source, uint32_t order, uint32_t k)
{
    struct tail *t = &m->peers[source][order].decided_to;
    const uint64_t end = tail_until(t, k);
    for (uint64_t at = t->taken; at < end; at++) {
        struct message *x = (struct message *)(uintptr_t)item(t, at);
        x->held |= BIT(source);
        x->refs++;
        ring_push(&m->perhaps_stable, (uintptr_t)x);
    }
    tail_taken(m, t, end);
}

static void on_stable(zj_multi *m, uint32_t source, uint32_t order, uint32_t sent, uint32_t k)
{
    struct tail *t = sent ? &m->peers[source][order].sent_to : &m->peers[source][order].decided_by;
    const uint64_t end = tail_until(t, k);
    for (uint64_t at = t->taken; at < end; at++) {
        const uint64_t i = item(t, at);
        struct message *x = sent ? (struct message *)(uintptr_t)i : message_find(m, (uint32_t)(i >> 32), (uint32_t)i);
        if (x && x->known)
            multi_finish(m, x);
    }
    tail_taken(m, t, end);
    if (sent)
        tail_use(m, t, end);
}

int zj_multi_record(zj_multi *m, uint32_t source, uint32_t incarnation, const struct zj_message *r)
{
    const uint8_t *b = r->data;
    if (r->type == ZJW_TYPE_USER) {
        struct message read = {0};
        if (!read_data(b, r->size, r->group, &read))
            return 1;
        if (get64(b + D_ERA) != m->era)
            return 2;
        take_data(m, source, incarnation, r, &read);
        return 0;
    }
    if (r->type == ZJW_TYPE_REPORT || r->type == ZJW_TYPE_DECIDE) {
        if (r->size != T_SIZE || b[T_ORDER] >= ZJ_MULTI_ORDERS || !get16(b + T_COUNT) || get64(b + T_TIME) >= TIME_LIMIT)
            return 1;
        if (get64(b) != m->era)
            return 2;
        const uint32_t origin = b[T_ORIGIN], order = b[T_ORDER], number = get32(b + T_NUMBER), n = get16(b + T_COUNT);
        const uint64_t time = get64(b + T_TIME);
        if (n > m->window) {
            m->dropped++;
            return 0;
        }
        if (r->type == ZJW_TYPE_DECIDE) {
            m->clock = time > m->clock ? time : m->clock;
            m->owed_peers |= BIT(source);
        }
        for (uint32_t k = 0; k < n; k++)
            if (r->type == ZJW_TYPE_REPORT)
                on_report(m, source, origin, number + k, time);
            else
                on_decide(m, source, order, origin, number + k, time);
        return 0;
    }
    if (r->type == ZJW_TYPE_HELD || r->type == ZJW_TYPE_STABLE) {
        if (r->size != C_SIZE || b[C_ORDER] >= ZJ_MULTI_ORDERS || b[C_WHAT] > (r->type == ZJW_TYPE_STABLE))
            return 1;
        if (get64(b) != m->era)
            return 2;
        if (r->type == ZJW_TYPE_HELD)
            on_held(m, source, b[C_ORDER], get32(b + C_K));
        else
            on_stable(m, source, b[C_ORDER], b[C_WHAT], get32(b + C_K));
        return 0;
    }
    return r->type == ZJW_TYPE_RELAY ? 2 : 1;
}

int zj_multi_take(zj_multi *m, zj_core *core, uint32_t src, uint32_t source, uint32_t incarnation, struct zj_message *foreign,
                  uint64_t *malformed)
{
    struct zj_message r;
    while (zj_next(core, &r) == 1) {
        if (r.src != src || r.stage != ZJ_ACCEPTED)
            continue;
        const int result = zj_multi_record(m, source, incarnation, &r);
        if (result == 2) {
            *foreign = r;
            return 1;
        }
        *malformed += result == 1;
    }
    return 0;
}

void zj_multi_begin(zj_multi *m) { m->input++; }

void zj_multi_after(zj_multi *m, uint64_t now)
{
    m->input++;
    multi_advance(m);
    multi_settle(m, now);
}
