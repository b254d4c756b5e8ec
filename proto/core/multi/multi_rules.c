/* The rules of an open era: what an input has made possible. proto/multicast/ordering.py has them one by one under the same names. */
#include "multi_int.h"

static struct message *at(const struct ring *r, uint32_t k) { return (struct message *)(uintptr_t)ring_at(r, k); }
static struct message *shift(struct ring *r) { return (struct message *)(uintptr_t)ring_shift(r); }

/* ---- saying something */

/* The record goes on with this message: the next one of the same originator, to the same groups (rule O8). */
static int continues(const zj_multi *m, const struct record *r, const struct message *x, uint32_t type, uint64_t time)
{
    const uint8_t *b = r->small;
    if (r->type != type || get64(b + T_TIME) != time || b[T_ORIGIN] != x->origin || b[T_ORDER] != x->order)
        return 0;
    if (get32(b + T_NUMBER) + get16(b + T_COUNT) != x->number || get64(b) != x->era || get16(b + T_COUNT) == UINT16_MAX)
        return 0;
    const struct message *before = message_find(m, x->origin, x->number - 1);
    return before && before->known && same_set(&before->groups, &x->groups);
}

static void say(zj_multi *m, uint32_t station, struct message *x, uint32_t type, uint64_t time)
{
    if (station == m->me) {
        m->n_reports += !x->reported && x->in_table;
        x->reported |= BIT(m->me);
        x->largest = time > x->largest ? time : x->largest;
        return;
    }
    if (type == ZJW_TYPE_DECIDE) {
        tail_push(&m->peers[station][x->order].decided_to, (uintptr_t)x);
        m->owed_peers |= BIT(station);
    }
    struct records *now = &m->out[station].now;
    if (now->n) {
        struct record *last = records_at(now, now->n - 1);
        if (continues(m, last, x, type, time)) {
            put16(last->small + T_COUNT, get16(last->small + T_COUNT) + 1u);
            return;
        }
    }
    struct record r = {.type = (uint8_t)type, .size = T_SIZE};
    put64(r.small, x->era);
    r.small[T_ORIGIN] = x->origin;
    r.small[T_ORDER] = x->order;
    put16(r.small + T_COUNT, 1);
    put32(r.small + T_NUMBER, x->number);
    put64(r.small + T_TIME, time);
    records_push(now, &r);
}

static void say_to_all(zj_multi *m, uint64_t stations, struct message *x, uint64_t time)
{
    for (; stations; stations &= stations - 1)
        say(m, (uint32_t)__builtin_ctzll(stations) + 1, x, ZJW_TYPE_DECIDE, time);
}

/* ---- O3, O8 */

/* An earlier message of the same program, to other groups, is reported and not decided. */
static int waits(const struct message *x)
{
    const struct program *p = x->program;
    for (uint32_t k = 0; k < p->n_sets; k++)
        if (!same_set(&p->sets[k].set, &x->groups))
            return 1;
    return 0;
}

static void reported(struct message *x)
{
    struct program *p = x->program;
    for (uint32_t k = 0; k < p->n_sets; k++)
        if (same_set(&p->sets[k].set, &x->groups)) {
            p->sets[k].count++;
            return;
        }
    p->sets = multi_grow(p->sets, &p->sets_size, p->n_sets + 1, sizeof *p->sets);
    p->sets[p->n_sets++] = (struct counted_set){x->groups, 1};
}

static void decided(struct message *x)
{
    struct program *p = x->program;
    for (uint32_t k = 0; k < p->n_sets; k++)
        if (same_set(&p->sets[k].set, &x->groups)) {
            if (!--p->sets[k].count)
                p->sets[k] = p->sets[--p->n_sets];
            return;
        }
}

void multi_set_time(zj_multi *m, struct message *x, uint64_t time)
{
    if (!x->has_time && x->has_report)
        decided(x);
    x->time = time;
    x->has_time = 1;
    if (x->has_report && !x->delivered)
        heap_push(m, &m->heaps[x->order], x);
}

/* Report one run: consecutive messages to the same groups that came together. */
static int report(zj_multi *m)
{
    for (struct program *p = m->unreported.first; p; p = p->after) {
        const struct message *first = at(&p->unreported, 0), *last = first;
        if (waits(first))
            continue;
        uint64_t time = m->clock;
        uint32_t n = 0;
        for (; n < p->unreported.n; n++) {
            const struct message *x = at(&p->unreported, n);
            if (n && (x->number != last->number + 1 || !same_set(&x->groups, &last->groups) || x->input != last->input))
                break;
            const uint64_t seen = x->data ? get64(x->data->bytes + D_SEEN) : 0;
            time = seen > time ? seen : time;
            last = x;
        }
        m->clock = ++time;
        p->refs++;
        for (; n; n--) {
            struct message *x = shift(&p->unreported);
            x->report = time;
            x->has_report = 1;
            if (!x->has_time)
                reported(x);
            heap_push(m, &m->heaps[x->order], x);
            say(m, x->coordinator, x, ZJW_TYPE_REPORT, time);
            if (!p->unreported.n)
                unreported_remove(m, p);
            message_drop(m, x);
        }
        program_drop(m, p);
        return 1;
    }
    return 0;
}

/* ---- O4 */

static int decide(zj_multi *m)
{
    for (struct undecided **link = &m->undecided, *u; (u = *link); link = &u->next) {
        struct message *x = at(&u->messages, 0);
        if (x->proposers & ~x->reported)
            continue;
        ring_shift(&u->messages);
        if (!u->messages.n) {
            *link = u->next;
            if (!u->next)
                m->undecided_end = link;
            ring_free(&u->messages);
            free(u);
        }
        const uint64_t time = x->largest;
        multi_set_time(m, x, time);
        m->clock = time > m->clock ? time : m->clock;
        say_to_all(m, x->proposers & ~BIT(m->me), x, time);
        ring_push(&m->perhaps_stable, (uintptr_t)x); /* with the reference of u->messages */
        return 1;
    }
    return 0;
}

/* ---- O6, O7 */

static void hand_over(zj_multi *m, struct message *x)
{
    x->delivered = 1;
    x->refs += 2;
    ring_push(&m->perhaps_stable, (uintptr_t)x);
    program_last(m, x->program, x->number);
    ring_push(&m->sequence[x->order], (uintptr_t)x);
    multi_event(m, ZJ_MULTI_DELIVER, x);
    say_to_all(m, x->followers, x, x->time);
}

static int deliver(zj_multi *m)
{
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        struct message *least = heap_least(m, &m->heaps[order]);
        if (least && least->has_time) {
            hand_over(m, least);
            return 1;
        }
    }
    return 0;
}

static int follow(zj_multi *m)
{
    if (!m->to_follow_names.n)
        return 0;
    const uint64_t name = ring_at(&m->to_follow_names, 0);
    struct message *x = message_find(m, (uint32_t)(name >> 32), (uint32_t)name);
    if (!x || !x->known || !x->data)
        return 0;
    ring_shift(&m->to_follow_names);
    x->time = ring_shift(&m->to_follow_times);
    x->has_time = 1;
    hand_over(m, x);
    return 1;
}

/* ---- S1 */

static int stabilise(zj_multi *m)
{
    while (m->perhaps_stable.n) {
        struct ring *r = &m->perhaps_stable;
        struct message *x = at(r, r->n - 1);
        r->n--;
        const uint64_t told = (x->proposers | x->followers) & ~BIT(m->me);
        const int done = !x->finished && x->coordinator == m->me && x->has_time &&
                         (x->delivered || !(x->destinations & BIT(m->me))) && !(told & ~x->held);
        if (done)
            multi_finish(m, x);
        message_drop(m, x);
        if (done)
            return 1;
    }
    return 0;
}

void multi_advance(zj_multi *m)
{
    static int (*const rules[])(zj_multi *) = {report, decide, deliver, follow, stabilise};
    for (int moves = 1; moves;) { /* bound: each step changes a message for good */
        moves = 0;
        for (uint32_t k = 0; k < sizeof rules / sizeof *rules; k++)
            while (rules[k](m))
                moves = 1;
    }
}

/* ---- S1 to S3: HELD and STABLE */

static int is_held(const zj_multi *m, uint64_t name)
{
    const struct message *x = message_find(m, (uint32_t)(name >> 32), (uint32_t)name);
    if (!x || !x->known)
        return gone_has(m, (uint32_t)(name >> 32), (uint32_t)name);
    return x->finished || (x->delivered && !(x->followers & ~x->held));
}

/* What one record would count: how far, of how many messages that are still known, and whether somebody waits for one. */
struct owed { uint64_t k; uint32_t covered, urgent; };

static struct owed owed(const zj_multi *m, const struct tail *t, uint64_t told)
{
    struct owed o = {.k = told};
    for (; o.k - t->first < t->items.n; o.k++) {
        const uint64_t item = ring_at(&t->items, (uint32_t)(o.k - t->first));
        const struct message *x = (const struct message *)(uintptr_t)item;
        if (t->names) {
            if (!is_held(m, item))
                break;
            x = message_find(m, (uint32_t)(item >> 32), (uint32_t)item);
            if (!x || !x->known)
                continue;
        } else if (!x->finished) {
            break;
        }
        o.covered++;
        o.urgent |= x->safe;
    }
    return o;
}

static void count(zj_multi *m, struct records *to, uint32_t type, uint32_t order, uint32_t what, uint64_t k)
{
    struct record r = {.type = (uint8_t)type, .size = C_SIZE};
    put64(r.small, m->era);
    r.small[C_ORDER] = (uint8_t)order;
    r.small[C_WHAT] = (uint8_t)what;
    put32(r.small + C_K, (uint32_t)k);
    records_push(to, &r);
}

static void settle(zj_multi *m, uint32_t station, uint64_t now)
{
    struct owed owes[ZJ_MULTI_ORDERS][3];
    struct records *before = &m->out[station].before;
    uint64_t covered = 0;
    uint32_t urgent = 0, any = 0;
    memset(owes, 0, sizeof owes);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        const struct peer *p = &m->peers[station][order];
        if (!m->tables[order].n)
            continue;
        struct owed *o = owes[order];
        o[0] = owed(m, &p->decided_by, p->held_to);
        o[1] = owed(m, &p->decided_to, p->stable_to);
        o[2] = owed(m, &p->outside, p->sent_stable_to);
        any |= o[0].k > p->held_to || o[1].k > p->stable_to || o[2].k > p->sent_stable_to;
        for (uint32_t k = 0; k < 3; k++) {
            covered += o[k].covered;
            urgent |= o[k].urgent;
        }
    }
    if (!any) {
        m->due[station] = ZJ_NEVER;
        return;
    }
    if (m->due[station] == ZJ_NEVER)
        m->due[station] = now + m->settle;
    const uint32_t half = m->window / 2 ? m->window / 2 : 1;
    if (!urgent && covered < half && !m->out[station].now.n && now < m->due[station])
        return;
    m->due[station] = ZJ_NEVER;
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        struct peer *p = &m->peers[station][order];
        const struct owed *o = owes[order];
        if (!m->tables[order].n)
            continue;
        if (o[0].k > p->held_to) {
            count(m, before, ZJW_TYPE_HELD, order, 0, o[0].k);
            p->held_to = o[0].k;
            tail_use(m, &p->decided_by, o[0].k);
        }
        if (o[1].k > p->stable_to) {
            count(m, before, ZJW_TYPE_STABLE, order, 0, o[1].k);
            p->stable_to = o[1].k;
            tail_use(m, &p->decided_to, o[1].k);
        }
        if (o[2].k > p->sent_stable_to) {
            count(m, before, ZJW_TYPE_STABLE, order, 1, o[2].k);
            p->sent_stable_to = o[2].k;
            p->outside.taken = o[2].k;
            tail_use(m, &p->outside, o[2].k);
        }
    }
}

void multi_settle(zj_multi *m, uint64_t now)
{
    for (uint64_t stations = m->owed_peers; stations; stations &= stations - 1)
        settle(m, (uint32_t)__builtin_ctzll(stations) + 1, now);
    for (uint32_t z = 1; z <= STATIONS; z++)
        while (m->out[z].now.n) /* behind what says what is stable: who learns of the next message knows that (rule M11) */
            records_push(&m->out[z].before, records_shift(&m->out[z].now));
}
