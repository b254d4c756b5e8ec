/* What the rules keep their messages in. Memory is bounded by the windows: at most twice that of each originator is unfinished. */
#include "multi_int.h"

/* A daemon without memory stops, and the others remove it: nothing here could go on with half of an input. */
void *multi_grow(void *items, uint32_t *size, uint32_t least, size_t each)
{
    uint32_t want = *size ? *size : 16;
    while (want < least)
        want *= 2;
    if (items && want == *size)
        return items;
    void *grown = realloc(items, want * each);
    if (!grown)
        abort();
    *size = want;
    return grown;
}

static void *made(size_t bytes)
{
    void *out = calloc(1, bytes);
    if (!out)
        abort();
    return out;
}

void ring_push(struct ring *r, uint64_t item)
{
    if (r->n == r->size) {
        const uint32_t old = r->size;
        r->items = multi_grow(r->items, &r->size, old + 1, sizeof *r->items);
        for (uint32_t k = 0; k < r->head; k++) /* what had wrapped comes behind the rest; the size has at least doubled */
            r->items[old + k] = r->items[k];
    }
    r->items[(r->head + r->n++) & (r->size - 1)] = item;
}

uint64_t ring_shift(struct ring *r)
{
    const uint64_t item = r->items[r->head];
    r->head = (r->head + 1) & (r->size - 1);
    r->n--;
    return item;
}

void ring_free(struct ring *r)
{
    free(r->items);
    memset(r, 0, sizeof *r);
}

struct buf *buf_new(uint32_t size)
{
    struct buf *b = malloc(sizeof *b + size);
    if (!b)
        abort();
    b->refs = 1;
    b->size = size;
    return b;
}

void buf_drop(struct buf *b)
{
    if (b && !--b->refs)
        free(b);
}

void records_push(struct records *r, const struct record *item)
{
    if (r->n == r->size) {
        const uint32_t old = r->size;
        r->items = multi_grow(r->items, &r->size, old + 1, sizeof *r->items);
        for (uint32_t k = 0; k < r->head; k++)
            r->items[old + k] = r->items[k];
    }
    *records_at(r, r->n++) = *item;
}

struct record *records_shift(struct records *r)
{
    struct record *first = records_at(r, 0);
    r->head = (r->head + 1) & (r->size - 1);
    r->n--;
    return first;
}

void records_free(struct records *r)
{
    while (r->n)
        buf_drop(records_shift(r)->buf);
    free(r->items);
    memset(r, 0, sizeof *r);
}

/* ---- messages by name */

static uint32_t bucket(uint32_t origin, uint32_t number) { return (number * 2654435761u ^ origin * 40503u) % BUCKETS; }

struct message *message_find(const zj_multi *m, uint32_t origin, uint32_t number)
{
    struct message *x = m->buckets[bucket(origin, number)];
    while (x && (x->number != number || x->origin != origin))
        x = x->next;
    return x;
}

struct message *message_get(zj_multi *m, uint32_t origin, uint32_t number)
{
    struct message *x = message_find(m, origin, number);
    if (x)
        return x;
    x = made(sizeof *x);
    struct message **at = &m->buckets[bucket(origin, number)];
    x->next = *at;
    *at = x;
    x->origin = (uint8_t)origin;
    x->number = number;
    x->era = m->era;
    x->in_table = 1;
    x->refs = 1;
    return x;
}

void message_forget(zj_multi *m, struct message *x)
{
    if (!x->in_table)
        return;
    struct message **at = &m->buckets[bucket(x->origin, x->number)];
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    x->in_table = 0;
    m->n_reports -= x->reported != 0;
    x->reported = 0;
    message_drop(m, x);
}

void program_drop(zj_multi *m, struct program *p)
{
    if (--p->refs)
        return;
    struct program **at = &m->programs[bucket(p->origin, p->client)];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    ring_free(&p->unreported);
    free(p->sets);
    free(p);
}

void message_drop(zj_multi *m, struct message *x)
{
    if (--x->refs)
        return;
    buf_drop(x->data);
    if (x->program)
        program_drop(m, x->program);
    free(x);
}

struct program *program_find(const zj_multi *m, uint32_t origin, uint32_t incarnation, uint32_t client, uint32_t order)
{
    struct program *p = m->programs[bucket(origin, client)];
    while (p && (p->origin != origin || p->incarnation != incarnation || p->client != client || p->order != order))
        p = p->next;
    return p;
}

struct program *program_get(zj_multi *m, uint32_t origin, uint32_t incarnation, uint32_t client, uint32_t order)
{
    struct program *p = program_find(m, origin, incarnation, client, order);
    if (!p) {
        struct program **at = &m->programs[bucket(origin, client)];
        p = made(sizeof *p);
        p->origin = (uint8_t)origin;
        p->incarnation = incarnation;
        p->client = (uint16_t)client;
        p->order = (uint8_t)order;
        p->next = *at;
        *at = p;
    }
    p->refs++;
    return p;
}

void program_last(zj_multi *m, struct program *p, uint32_t number)
{
    const uint32_t before = p->last;
    p->last = number;
    if (!before && number) {
        p->refs++;
        m->n_last++;
    } else if (before && !number) {
        m->n_last--;
        program_drop(m, p);
    }
}

/* ---- lists */

void unfinished_add(zj_multi *m, struct message *x)
{
    const uint32_t own = x->origin == m->me && x->incarnation == m->incarnation;
    const uint32_t list = m->lives[x->origin] == x->incarnation ? x->origin : 0;
    x->listed = (uint8_t)(list + 1);
    x->before = m->unfinished[list].end;
    x->after = NULL;
    if (x->before)
        x->before->after = x;
    else
        m->unfinished[list].first = x;
    m->unfinished[list].end = x;
    m->n_own += own;
    x->refs++;
}

void unfinished_remove(zj_multi *m, struct message *x)
{
    if (!x->listed)
        return;
    const uint32_t list = x->listed - 1u;
    if (x->before)
        x->before->after = x->after;
    else
        m->unfinished[list].first = x->after;
    if (x->after)
        x->after->before = x->before;
    else
        m->unfinished[list].end = x->before;
    x->listed = 0;
    x->before = x->after = NULL;
    m->n_own -= x->origin == m->me && x->incarnation == m->incarnation;
    message_drop(m, x);
}

void unreported_remove(zj_multi *m, struct program *p)
{
    if (p->before)
        p->before->after = p->after;
    else
        m->unreported.first = p->after;
    if (p->after)
        p->after->before = p->before;
    else
        m->unreported.end = p->before;
    p->before = p->after = NULL;
}

static uint64_t key(const struct message *x) { return x->has_time ? x->time : x->report; }

static int is_less(const struct place *a, const struct place *b)
{
    if (a->time != b->time)
        return a->time < b->time;
    if (a->m->origin != b->m->origin)
        return a->m->origin < b->m->origin;
    return a->m->number < b->m->number;
}

void heap_push(zj_multi *m, struct heap *h, struct message *x)
{
    (void)m;
    h->items = multi_grow(h->items, &h->size, h->n + 1, sizeof *h->items);
    const struct place item = {key(x), x};
    uint32_t at = h->n++;
    x->refs++;
    while (at && is_less(&item, &h->items[(at - 1) / 2])) { /* bound: log2 */
        h->items[at] = h->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->items[at] = item;
}

static void heap_pop(zj_multi *m, struct heap *h)
{
    struct message *gone = h->items[0].m;
    const struct place item = h->items[--h->n];
    uint32_t at = 0;
    for (;;) { /* bound: log2 */
        uint32_t child = 2 * at + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && is_less(&h->items[child + 1], &h->items[child]))
            child++;
        if (!is_less(&h->items[child], &item))
            break;
        h->items[at] = h->items[child];
        at = child;
    }
    h->items[at] = item;
    message_drop(m, gone);
}

struct message *heap_least(zj_multi *m, struct heap *h)
{
    while (h->n) {
        struct message *x = h->items[0].m;
        if (!x->delivered && !x->finished && key(x) == h->items[0].time)
            return x;
        heap_pop(m, h);
    }
    return NULL;
}

/* ---- tails */

void tail_push(struct tail *t, uint64_t item)
{
    if (!t->names)
        ((struct message *)(uintptr_t)item)->refs++;
    ring_push(&t->items, item);
}

static void tail_forget(zj_multi *m, struct tail *t)
{
    while (t->items.n && t->first < (t->taken < t->used ? t->taken : t->used)) {
        const uint64_t item = ring_shift(&t->items);
        if (!t->names)
            message_drop(m, (struct message *)(uintptr_t)item);
        t->first++;
    }
}

void tail_use(zj_multi *m, struct tail *t, uint64_t used)
{
    t->used = used;
    tail_forget(m, t);
}

void tail_free(zj_multi *m, struct tail *t)
{
    t->taken = t->used = ZJ_NEVER;
    tail_forget(m, t);
    ring_free(&t->items);
    memset(t, 0, sizeof *t);
}

/* ---- finished numbers: those within `span` of the highest one, and all below that */

void gone_add(zj_multi *m, uint32_t origin, uint32_t number)
{
    struct gone *g = &m->gone[origin];
    if (!g->bits)
        g->bits = made(m->span);
    if (number > g->highest) {
        const uint32_t new = number - g->highest < m->span ? number - g->highest : m->span;
        for (uint32_t k = 0; k < new; k++)
            g->bits[(number - k) % m->span] = 0;
        g->highest = number;
    }
    if (number + (uint64_t)m->span > g->highest)
        g->bits[number % m->span] = 1;
}

int gone_has(const zj_multi *m, uint32_t origin, uint32_t number)
{
    if (origin < 1 || origin > STATIONS || !m->gone[origin].bits)
        return 0;
    const struct gone *g = &m->gone[origin];
    return number <= g->highest && (number + (uint64_t)m->span <= g->highest || g->bits[number % m->span]);
}
