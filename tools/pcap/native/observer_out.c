/* The observer's rows. */
#include "observer_int.h"

uint32_t room(const struct zo_observer *o, enum zo_table t) { return o->tables[t].capacity - o->tables[t].rows; }

struct zo_columns *row_begin(struct zo_observer *o, enum zo_table t)
{
    struct zo_columns *c = &o->tables[t];
    if (c->rows >= c->capacity) {
        o->total.overflow++;
        return NULL;
    }
    c->next = 0;
    c->rows++;
    return c;
}

static void set_bit(uint8_t *bits, uint32_t i) { bits[i >> 3] = (uint8_t)(bits[i >> 3] | 1u << (i & 7)); }

void put(struct zo_columns *c, int64_t v)
{
    uint32_t k = c->next++, i = c->rows - 1;
    if (k >= c->columns)
        return; /* told by the caller's check of `next` */
    switch (c->width[k]) {
    case 0:
        if (v)
            set_bit(c->data[k], i);
        break;
    case 1: ((int8_t *)c->data[k])[i] = (int8_t)v; break;
    case 4: ((int32_t *)c->data[k])[i] = (int32_t)v; break;
    default: ((int64_t *)c->data[k])[i] = v;
    }
    if (c->valid[k])
        set_bit(c->valid[k], i);
}

void put_null(struct zo_columns *c)
{
    uint32_t k = c->next++, i = c->rows - 1;
    if (k >= c->columns)
        return;
    switch (c->width[k]) { /* the value is nobody's, but written files must not depend on it */
    case 0: break;
    case 1: ((int8_t *)c->data[k])[i] = 0; break;
    case 4: ((int32_t *)c->data[k])[i] = 0; break;
    case ZO_LIST: c->offsets[i + 1] = c->offsets[i]; break;
    default: ((int64_t *)c->data[k])[i] = 0;
    }
}

void put_time(struct zo_columns *c, int64_t t)
{
    if (t == NO_TIME)
        put_null(c);
    else
        put(c, t);
}

static void put_if(struct zo_columns *c, int known, uint64_t v)
{
    if (known)
        put(c, (int64_t)v);
    else
        put_null(c);
}

void put_list(struct zo_columns *c, const uint32_t *v, uint32_t n)
{
    uint32_t k = c->next++, i = c->rows - 1;
    int64_t *out = (int64_t *)c->data[k] + c->offsets[i];
    for (uint32_t h = 0; h < n; h++)
        out[h] = v[h];
    c->offsets[i + 1] = c->offsets[i] + (int32_t)n;
    if (c->valid[k])
        set_bit(c->valid[k], i);
}

static void put_here(const struct zo_observer *o, struct zo_columns *c)
{
    put(c, o->file);
    put(c, (int64_t)o->frame);
}

void find(struct zo_observer *o, const struct finding *f)
{
    struct zo_columns *c = row_begin(o, ZO_FINDINGS);
    if (!c)
        return;
    put(c, f->what);
    put_if(c, o->has_shown, o->shown.instance);
    put(c, f->src);
    put(c, f->incarnation);
    put(c, (int64_t)f->seq);
    put(c, (int64_t)f->count);
    put_if(c, f->clock != NEVER, f->clock);
    put_if(c, f->until != NEVER, f->until);
    put_time(c, o->now);
    put_here(o, c);
    put(c, f->other_src);
    put_if(c, f->other != NEVER, f->other);
    put_if(c, f->value != NEVER, f->value);
}

void row_transmission(struct zo_observer *o, const struct stream *s, struct slot *q)
{
    struct zo_columns *c;
    if (q->state != HELD || !(q->sent + q->received) || !(c = row_begin(o, ZO_TRANSMISSIONS)))
        return;
    put(c, s->src + 1);
    put(c, q->kind);
    put(c, s->incarnation);
    put(c, (int64_t)(q->seq - BASE));
    put(c, (int64_t)q->check);
    put(c, q->sent);
    put(c, q->received);
    put_time(c, q->first);
    put_time(c, q->last);
    put(c, (int64_t)q->wire);
    put(c, q->relayed);
    q->sent = q->received = 0;
}

void row_view(struct zo_observer *o, const struct view *v, uint64_t to_clock, int any)
{
    struct zo_columns *c = row_begin(o, ZO_VIEWS);
    if (!c)
        return;
    o->total.views++;
    put(c, v->instance);
    put(c, v->hash);
    put_time(c, v->time);
    put_if(c, v->known, v->place_clock);
    put_if(c, v->known, v->place_src);
    put(c, (int64_t)v->members);
    put_list(c, v->incarnations, o->n);
    put_if(c, v->known, v->joined);
    put_if(c, v->known, v->left);
    put_if(c, v->seed_known, v->seed);
    put(c, v->complete);
    put(c, (int64_t)v->from_clock);
    put_if(c, any, to_clock);
}

static void rows_messages(struct zo_observer *o, const struct entry *e, const struct slot *q)
{
    for (uint32_t i = 0; i < q->messages; i++) {
        const struct msg *m = &q->msg[i];
        struct zo_columns *c;
        if (!m->shown || !(c = row_begin(o, ZO_MESSAGES)))
            continue;
        put(c, e->view);
        put(c, (int64_t)q->clock);
        put(c, e->s->src + 1);
        put(c, e->s->incarnation);
        put(c, (int64_t)(q->seq - BASE));
        put(c, i);
        put(c, (int64_t)(m->first - BASE));
        put(c, m->group);
        put(c, m->client);
        put(c, m->type);
        put(c, m->mflags);
        put(c, m->mflags & ZJW_MFLAG_FRAGMENT ? m->total : m->size);
        put(c, (m->mflags & ZJW_MFLAG_OP) != 0);
    }
}

void row_order(struct zo_observer *o, const struct entry *e, struct slot *q)
{
    struct zo_columns *c = row_begin(o, ZO_ORDER);
    if (!c)
        return;
    o->total.ordered++;
    o->total.positions += e->position != 0;
    put(c, e->view);
    put(c, e->hash);
    put_if(c, e->position != 0, e->position);
    put(c, (int64_t)q->clock);
    put(c, e->s->src + 1);
    put(c, e->s->incarnation);
    put(c, (int64_t)(q->seq - BASE));
    put(c, q->kind);
    put(c, (uint32_t)q->check);
    put(c, (int64_t)(q->check >> 32));
    put(c, q->messages);
    put(c, q->bytes);
    put(c, e->s->src == o->self ? q->sent : q->received);
    put_time(c, e->s->src == o->self && q->sent ? q->first : NO_TIME);
    put_time(c, q->first);
    put_time(c, q->accepted);
    put_time(c, q->ordered);
    put_time(c, q->preack);
    put_time(c, q->acked);
    put(c, q->file);
    put(c, (int64_t)q->frame);
    rows_messages(o, e, q);
}

/* ---- control ---- */

void note_control(struct zo_observer *o, const struct zp_pdu *p, uint32_t direction)
{
    struct zo_columns *c = row_begin(o, ZO_CONTROL);
    const uint8_t *b = p->payload;
    uint64_t proposal = NEVER, members = NEVER, changed = NEVER, count = NEVER, first = NEVER;
    if (!c)
        return;
    if (is_vote(p->kind)) {
        proposal = (uint64_t)p->instance + 1;
        members = be64(b + ZJW_PROPOSAL_MEMBERS);
        count = b[ZJW_PROPOSAL_CHANGES];
        changed = 0;
        first = be32(b + ZJW_SIZEOF_PROPOSAL + ZJW_CHANGE_VALUE);
        for (uint32_t i = 0; i < count; i++)
            changed |= UINT64_C(1) << (b[ZJW_SIZEOF_PROPOSAL + i * ZJW_SIZEOF_CHANGE + ZJW_CHANGE_CHANGED] - 1u);
    } else if (p->kind == ZJW_KIND_OPEN || p->kind == ZJW_KIND_RCV) {
        proposal = be32(b + ZJW_OPEN_PROPOSAL);
        count = b[ZJW_OPEN_MEMBERS];
        members = 0;
        for (uint32_t i = 0; i < count; i++)
            members |= UINT64_C(1) << ((b[ZJW_SIZEOF_OPEN + i * ZJW_SIZEOF_MEMBER + ZJW_MEMBER_STATION] - 1u) & 63u);
    } else if (p->kind == ZJW_KIND_NAK) {
        changed = UINT64_C(1) << (b[ZJW_NAK_STREAM] - 1u);
        first = be32(b + ZJW_SIZEOF_NAK + ZJW_RANGE_FIRST);
        count = 0;
        for (uint32_t i = 0; i < b[ZJW_NAK_COUNT]; i++)
            count += be32(b + ZJW_SIZEOF_NAK + i * ZJW_SIZEOF_RANGE + ZJW_RANGE_SPAN);
    } else if (p->kind == ZJW_KIND_RST || p->kind == ZJW_KIND_RSTC) {
        proposal = be32(b + ZJW_RESET_EPOCH);
    }
    put_here(o, c);
    put_time(c, o->now);
    put(c, direction);
    put(c, p->kind);
    put(c, p->src);
    put(c, p->target);
    put(c, p->incarnation);
    put(c, p->instance);
    put(c, p->seq);
    put(c, (int64_t)p->clock);
    put_if(c, proposal != NEVER, proposal);
    put_if(c, members != NEVER, members);
    put_if(c, changed != NEVER, changed);
    put_if(c, count != NEVER, count);
    put_if(c, first != NEVER, first);
    put(c, p->size);
}

static void rate_row(struct zo_observer *o, uint32_t src, uint32_t direction, struct rate *r)
{
    struct zo_columns *c;
    if (!r->used || !(c = row_begin(o, ZO_CONTROL_RATES)))
        return;
    put(c, src + 1);
    put(c, direction);
    put_time(c, r->second);
    put(c, r->confirms);
    put(c, r->polls);
    put(c, r->relayed);
    put(c, (int64_t)r->bytes);
    memset(r, 0, sizeof *r);
}

void rates_flush(struct zo_observer *o)
{
    for (uint32_t h = 0; h < ZJW_STATIONS_MAX; h++)
        for (uint32_t d = 0; d < 3; d++)
            rate_row(o, h, d, &o->speakers[h].rate[d]);
}

void note_confirm(struct zo_observer *o, const struct zp_pdu *p, uint32_t direction)
{
    struct rate *r = &o->speakers[p->src - 1].rate[direction % 3];
    int64_t second = o->now == NO_TIME ? NO_TIME : o->now / 1000000000;
    if (r->used && r->second != second)
        rate_row(o, p->src - 1u, direction, r);
    r->used = 1;
    r->second = second;
    r->confirms++;
    r->polls += (p->flags & ZJW_FLAG_POLL) != 0;
    r->relayed += (p->flags & ZJW_FLAG_RELAYED) != 0;
    r->bytes += p->size;
    struct zo_columns *c = row_begin(o, ZO_TRANSMISSIONS);
    if (!c)
        return;
    int out = direction == 2 || (!direction && p->src == o->self + 1);
    put(c, p->src);
    put(c, p->kind);
    put(c, p->incarnation);
    put(c, p->seq);
    put(c, (int64_t)p->check);
    put(c, out);
    put(c, !out);
    put_time(c, o->now);
    put_time(c, o->now);
    put(c, p->size);
    put(c, (p->flags & ZJW_FLAG_RELAYED) != 0);
}

/* ---- time line of instances ---- */

void note_instance(struct zo_observer *o, const struct zp_pdu *p)
{
    struct speaker *k = &o->speakers[p->src - 1];
    int confirm = p->kind == ZJW_KIND_CONFIRM;
    uint32_t hash = 0, flags = p->flags & (ZJW_FLAG_BYE | ZJW_FLAG_FENCED);
    uint64_t state = 0, trans = 0;

    if (p->kind == ZJW_KIND_OPEN || p->kind == ZJW_KIND_RCV || p->flags & ZJW_FLAG_RELAYED)
        return;
    if (k->heard && p->incarnation == k->incarnation && p->instance < k->instance)
        return; /* an old PDU, sent again */
    if (!confirm && k->heard && p->incarnation == k->incarnation && p->instance == k->instance)
        return;
    if (!confirm && k->heard && p->incarnation != k->incarnation && (int32_t)(p->incarnation - k->incarnation) < 0)
        return;
    if (confirm) {
        hash = be32(p->payload + ZJW_CONFIRM_VIEW);
        state = be64(p->payload + ZJW_CONFIRM_STATE);
        trans = be64(p->payload + ZJW_CONFIRM_TRANS);
        if (k->heard && k->confirmed && p->incarnation == k->incarnation && p->instance == k->instance && hash == k->hash &&
            state == k->state &&
            trans == k->trans && flags == k->flags)
            return;
        k->hash = hash;
        k->state = state;
        k->trans = trans;
        k->flags = flags;
    }
    k->confirmed = (uint32_t)confirm;
    k->heard = 1;
    k->incarnation = p->incarnation;
    k->instance = p->instance;
    struct zo_columns *c = row_begin(o, ZO_INSTANCES);
    if (!c)
        return;
    put(c, p->src);
    put(c, p->incarnation);
    put_time(c, o->now);
    put(c, p->instance);
    put_if(c, confirm, hash);
    put_if(c, confirm, state);
    put_if(c, confirm, trans);
    put(c, flags);
    put_here(o, c);
}
