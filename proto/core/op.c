/* Order-preserving service: messages with flag OP are delivered when their PDU is accepted, so in their source's order only. */
#include "zj_int.h"

static void ring_put(zj_core *c, struct entry e) { c->ops[c->op_tail++ & c->op_mask] = e; }

/* Every PDU in the rings holds a buffer of its stream, so they are never full. */
void op_push(zj_core *c, uint32_t h, uint64_t seq)
{
    struct stream *s = &c->st[h];
    struct meta *m = meta_of(c, s, seq);
    const struct entry e = {.seq = seq, .src = h};
    m->present |= OP_WAITS;
    s->op_waiting++;
    if (m->instance <= c->instance || faulty(c, ZJ_FAULT_FUTURE))
        ring_put(c, e);
    else
        c->later_ops[c->op_later++] = e;
}

void op_arrived(zj_core *c)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < c->op_later; i++) { /* bound: buffers */
        const struct entry e = c->later_ops[i];
        if (meta_of(c, &c->st[e.src], e.seq)->instance <= c->instance)
            ring_put(c, e);
        else
            c->later_ops[left++] = e;
    }
    c->op_later = left;
}

/* A station that was let in is told of its view before anything else. */
int op_ready(const zj_core *c) { return c->op.inside || (c->op_head != c->op_tail && !c->joining); }

static void begin(zj_core *c)
{
    const struct entry *e = &c->ops[c->op_head & c->op_mask];
    const struct meta *m = meta_of(c, &c->st[e->src], e->seq);
    cursor_set(c, &c->op, e->src, e->seq);
    /* Where the order is silent because this station was let in later, so is this. */
    c->op_silent = c->join_clock && (m->clock < c->join_clock || (m->clock == c->join_clock && e->src <= c->join_src));
}

static void end(zj_core *c)
{
    const struct entry *e = &c->ops[c->op_head++ & c->op_mask];
    struct stream *s = &c->st[e->src];
    meta_of(c, s, e->seq)->present = HELD;
    s->op_waiting--;
    c->op.inside = 0;
    c->progress++;
}

int op_next(zj_core *c, struct zj_message *out)
{
    while (op_ready(c)) { /* bound: messages in the accepted PDUs */
        if (!c->op.inside)
            begin(c);
        if (c->op.at == c->op.end) {
            end(c);
            continue;
        }
        const uint8_t *f = message_read(&c->op, out);
        if (out->stage == ZJ_ACCEPTED && f)
            switch (assemble(c, &c->st[c->op.src].op_parts, f, out, 1)) {
            case PART: continue;
            case STARVED: message_unread(&c->op, out); return 0;
            }
        if (out->stage != ZJ_ACCEPTED || c->op_silent)
            continue;
        out->position = ZJ_NEVER;
        c->count.messages_delivered++;
        c->count.message_bytes_delivered += out->size;
        return 1;
    }
    return 0;
}
