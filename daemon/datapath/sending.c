/* Messages of programs to groups that overlap (orders abcast and token): which of them are unfinished, and sending those that need
 * no word of Python's. Who waits stays at the head of its client's input. */
#include "internal.h"

static struct dp_unfinished *unfinished_at(struct dp *d, uint32_t number)
{
    return &d->multi.unfinished[number & (DP_MULTI_UNFINISHED - 1u)];
}

static void forget(struct dp *d, struct dp_unfinished *u)
{
    if (!u->used)
        return;
    d->multi.count--;
    d->multi.bytes -= u->size;
    *u = (struct dp_unfinished){0};
}

/* A message has got this number from the machine. c: whose it is, NULL: its program has gone. */
static int take_up(struct dp *d, struct dp_client *c, uint32_t number, uint32_t size, uint32_t level, uint32_t notify)
{
    uint64_t own = 0;
    if (c) {
        const int error = dp_own_sent(d, c->slot, level, notify, &own);
        if (error)
            return error;
    }
    struct dp_unfinished *u = unfinished_at(d, number);
    forget(d, u); /* of a machine that is no more: this one has fewer under way than there are places */
    *u = (struct dp_unfinished){.own = own, .number = number, .size = size, .slot = (uint16_t)(c ? c->slot : 0),
                                .client = (uint16_t)(c ? c->number : 0), .used = 1};
    d->multi.count++;
    d->multi.bytes += size;
    return 0;
}

int dp_multi_own(struct dp *d, uint32_t slot, uint32_t number, uint32_t size, uint32_t level, uint32_t notify)
{
    struct dp_client *c = slot == DP_CLIENTS_MAX ? NULL : client_live(d, slot);
    if (slot != DP_CLIENTS_MAX && !c)
        return -ENOENT;
    return take_up(d, c, number, size, level, notify);
}

void multi_own_done(struct dp *d, uint32_t number, uint32_t level)
{
    struct dp_unfinished *u = unfinished_at(d, number);
    if (!u->used || u->number != number)
        return;
    const struct dp_client *c = client_live(d, u->slot);
    if (u->own && c && c->number == u->client)
        (void)dp_own_done(d, u->slot, u->own, level);
    if (level >= ZJ_PREACK)
        forget(d, u);
}

void dp_multi_unfinished(const struct dp *d, uint32_t *count, uint64_t *bytes)
{
    *count = d->multi.count;
    *bytes = d->multi.bytes;
}

void sending_reset(struct dp *d)
{
    for (uint32_t k = 0; k < DP_MULTI_UNFINISHED; k++)
        forget(d, &d->multi.unfinished[k]);
    d->multi.next.count = 0;
}

/* ---- the message at the head of a client's input */

struct outgoing { const uint8_t *data; uint32_t size, order; struct dp_addressed to; };

static void address(struct dp_addressed *to, uint32_t group)
{
    uint32_t k = to->count;
    for (uint32_t i = 0; i < to->count; i++)
        if (to->groups[i] == group)
            return;
    for (; k && to->groups[k - 1] > group; k--)
        to->groups[k] = to->groups[k - 1];
    to->groups[k] = group;
    to->count++;
}

/* 1: *m is what it says, to groups that its program may send to now; 0: that is to be judged by Python. */
static int is_plain(const struct dp *d, const struct dp_client *c, struct outgoing *m)
{
    const uint8_t *p = c->in + c->in_start, *body = p + DP_HEADER;
    const uint8_t *handles = p + DP_HEADER_HANDLE;
    uint32_t count = 1;
    *m = (struct outgoing){.data = body, .size = frame_size(p)};
    if (frame_type(p) == DP_F_SEND_TO) {
        if (m->size < DP_SEND_TO)
            return 0;
        count = get16(body + DP_SEND_TO_COUNT);
        if (!count || count > ZJ_MULTI_GROUPS || m->size < DP_SEND_TO + 2 * count)
            return 0;
        handles = body + DP_SEND_TO;
        m->data = handles + 2 * count;
        m->size -= DP_SEND_TO + 2 * count;
    }
    for (uint32_t k = 0; k < count; k++) {
        const uint16_t handle = get16(handles + 2 * k);
        const struct dp_bound *b = handle < DP_HANDLES_MAX ? &c->handles[handle] : NULL;
        if (!b || !b->bound || !b->direct || b->may_send != DP_MAY_SEND || (k && (uint32_t)b->ordering - ZJ_ORDERINGS != m->order))
            return 0;
        m->order = (uint32_t)b->ordering - ZJ_ORDERINGS;
        address(&m->to, b->group);
    }
    return (frame_flags(p) & DP_LEVEL) <= ZJ_PREACK && m->size <= d->multi.bytes_max;
}

/* The client whose message is the next to get room can still send it. */
static int next_waits(const struct dp *d)
{
    const struct dp_client *c = &d->clients[d->multi.next_slot];
    return d->multi.next.count && c->used && c->number == d->multi.next_client && c->sends == d->multi.next_sends && !c->closing &&
           !c->end && !c->held && !c->paused && !c->taking && !set_has(&d->late, c->slot);
}

int sending_next_has_gone(struct dp *d)
{
    if (!d->multi.next.count || next_waits(d))
        return 0;
    d->multi.next.count = 0;
    return 1;
}

void sending_taken(struct dp *d, const struct dp_client *c)
{
    if (!d->multi.next.count || d->multi.next_slot != c->slot || d->multi.next_client != c->number)
        return;
    d->multi.next.count = 0; /* it waits in Python now, behind nobody but those of Python's */
    d->multi.has_room = 1;
}

static int share_a_group(const struct dp_addressed *a, const struct dp_addressed *b)
{
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t k = 0; k < b->count; k++)
            if (a->groups[i] == b->groups[k])
                return 1;
    return 0;
}

/* There is room for it now. If not, and none waits so already, it is the next one: none that shares a group with it goes before it.
 * As _send of daemon/multicast.py. */
static int has_room(struct dp *d, const struct dp_client *c, const struct outgoing *m)
{
    struct dp_multi *x = &d->multi;
    if (!next_waits(d) || x->next_slot == c->slot) { /* asked anew */
        x->has_room |= x->next.count != 0;
        x->next.count = 0;
    }
    if (x->count && x->bytes + m->size > x->bytes_max) {
        if (!x->next.count) {
            x->next = m->to;
            x->next_slot = (uint16_t)c->slot;
            x->next_client = c->number;
            x->next_sends = c->sends;
        }
        return 0;
    }
    return !share_a_group(&x->next, &m->to);
}

int dp_multi_goes_first(const struct dp *d, uint32_t count, const uint32_t *groups)
{
    struct dp_addressed to = {.count = min32(count, ZJ_MULTI_GROUPS)};
    memcpy(to.groups, groups, to.count * sizeof *groups);
    return next_waits(d) && share_a_group(&d->multi.next, &to);
}

int multi_send(struct dp *d, struct dp_client *c)
{
    struct dp_multi *x = &d->multi;
    const uint32_t flags = frame_flags(c->in + c->in_start), level = flags & DP_LEVEL;
    struct outgoing m;
    struct dp_addressed members = {0};
    if (!multi_sends(d) || !is_plain(d, c, &m))
        return -1;
    uint32_t unfinished = 0;
    uint64_t bytes = 0;
    dp_multi_unfinished(d, &unfinished, &bytes);
    uint32_t safe = level >= ZJ_PREACK || bytes + m.size > x->bytes_max / 2;
    for (uint32_t k = 0; k < m.to.count; k++) {
        const struct dp_route *r = route_find(d, m.to.groups[k]);
        if (!x->api->members(x->machine, m.order, m.to.groups[k]))
            continue;
        members.groups[members.count++] = m.to.groups[k];
        safe |= r && r->need_preack;
    }
    if (!has_room(d, c, &m)) {
        x->blocked = 1;
        return 0;
    }
    uint64_t own = 0;
    if (!members.count) { /* it goes to nobody */
        if (dp_own_sent(d, c->slot, level, flags & DP_SEND_NOTIFY, &own) == 0)
            (void)dp_own_done(d, c->slot, own, ZJ_PREACK);
        return 1;
    }
    const uint32_t number = x->api->send(x->machine, c->number, members.groups, members.count, m.order, m.data, m.size, safe);
    if (!number) {
        x->blocked = 1;
        return 0;
    }
    x->has_sent = 1;
    if (take_up(d, c, number, m.size, level, flags & DP_SEND_NOTIFY))
        client_no_memory(d, c);
    return 1;
}
