/* Order on a switched medium: by logical clock, then source (spec chapter 20); levels of receipt; digest of the order; delivery. */
#include "zj_int.h"

#define DIGEST_START 0x9E3779B97F4A7C15ull

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

void order_reset(zj_core *c)
{
    c->position = c->preack = c->acked = c->need_position = 0;
    memset(c->said_positions, 0, sizeof c->said_positions);
    c->digest = mix(DIGEST_START ^ c->instance);
    c->in_pdu = 0;
    c->dup = c->swapped = 0;
    for (uint32_t h = 0; h < c->n; h++) {
        c->st[h].whole_total = c->st[h].whole_done = 0;
        c->st[h].digest_position = 0;
    }
}

/* The next PDU of the total order: the least (clock, src) among the heads, once every station is known to have passed its clock. In
 * a flush it is known that there is nothing before it. */
static int choose(const zj_core *c, uint32_t *out)
{
    uint64_t best = ZJ_NEVER, passed = ZJ_NEVER;
    uint32_t at = c->n;
    int arrival = faulty(c, ZJ_FAULT_ARRIVAL_ORDER);

    for (uint32_t h = 0; h < c->n; h++) {
        const struct stream *s = &c->st[h];
        uint64_t known = h == c->self ? c->clock : s->clock;
        if (known < passed)
            passed = known;
        if (s->ordered >= s->req)
            continue;
        const struct meta *m = meta_of(c, s, s->ordered);
        uint64_t key = arrival ? m->arrival : m->clock;
        if (key < best) {
            best = key;
            at = h;
        }
    }
    if (at == c->n || (c->flushing ? c->position >= c->flush_to : best > passed && !arrival && !faulty(c, ZJ_FAULT_NO_WAIT)))
        return 0;
    *out = at;
    return 1;
}

/* An entry stays until it has reached every level. Level ack is far behind only if nobody waits for it: ack_lags() in send.c asks
 * for P vectors long before the log is full. One entry to spare: digests[preack - 1] is still needed. */
static int log_full(const zj_core *c)
{
    return c->position - c->acked >= c->log_mask;
}

int order_ready(zj_core *c)
{
    uint32_t h;
    if (!c->is_open || c->fenced)
        return 0;
    return c->in_pdu || c->dup || (!log_full(c) && choose(c, &h));
}

int order_left(const zj_core *c)
{
    uint32_t h;
    return c->in_pdu ? c->position <= c->flush_to : choose(c, &h);
}

static void swap_once(zj_core *c, uint32_t *h)
{
    if (c->swapped || c->position < 8)
        return;
    for (uint32_t k = 0; k < c->n; k++)
        if (k != *h && c->st[k].ordered < c->st[k].req) {
            *h = k;
            c->swapped = 1;
            return;
        }
}

static void begin(zj_core *c, uint32_t h, uint64_t seq)
{
    const struct stream *s = &c->st[h];
    const struct meta *m = meta_of(c, s, seq);
    c->cur_src = h;
    c->cur = slot_of(c, s, seq);
    c->cur_at = m->payload_at;
    c->cur_end = (uint32_t)m->payload_at + m->length;
    c->cur_index = 0;
    c->in_pdu = 1;
}

static int next_pdu(zj_core *c)
{
    uint32_t h = 0;
    if (c->dup) {
        c->dup = 2;
        begin(c, c->dup_src, c->dup_seq);
        return 1;
    }
    order_levels(c);
    if (log_full(c) || !choose(c, &h))
        return 0;
    if (faulty(c, ZJ_FAULT_SWAP))
        swap_once(c, &h);
    struct stream *s = &c->st[h];
    if (faulty(c, ZJ_FAULT_SKIP_GAP))
        while (s->ordered < s->req && !meta_of(c, s, s->ordered)->present)
            s->ordered++;
    if (s->ordered >= s->req)
        return 0;
    const struct meta *m = meta_of(c, s, s->ordered);
    c->log[c->position & c->log_mask] = (struct entry){.seq = s->ordered, .src = h};
    c->digest = mix(c->digest ^ mix((uint64_t)m->payload_crc << 32 ^ s->ordered ^ (uint64_t)(h + 1) << 56 ^
                                    (uint64_t)s->incarnation << 24)) + c->position;
    c->digests[c->position & c->log_mask] = c->digest;
    c->position++;
    if (m->flags & ZJW_FLAG_NEED_ACK)
        c->need_position = c->position;
    begin(c, h, s->ordered);
    return 1;
}

static void end_pdu(zj_core *c)
{
    c->in_pdu = 0;
    if (c->dup == 2) {
        c->dup = 0;
        return;
    }
    c->st[c->cur_src].ordered++;
    c->progress++;
    c->count.pdus_delivered++;
}

/* A fragment goes to its source's reassembly buffer; 1 when the message is whole. */
static int fragment(zj_core *c, const uint8_t *f, const uint8_t *data, uint32_t size, struct zj_message *out)
{
    struct stream *s = &c->st[c->cur_src];
    uint32_t total = get32(f + ZJW_FRAGMENT_TOTAL), offset = get32(f + ZJW_FRAGMENT_OFFSET);
    if (!offset) {
        s->whole_total = total;
        s->whole_done = 0;
    }
    if (total > c->cfg.message_max || total != s->whole_total || offset != s->whole_done) {
        s->whole_total = s->whole_done = 0; /* a source that does this is broken; its other messages are not */
        return 0;
    }
    memcpy(s->whole + offset, data, size);
    s->whole_done += size;
    if (s->whole_done < total)
        return 0;
    out->data = s->whole;
    out->size = total;
    s->whole_total = s->whole_done = 0;
    return 1;
}

int zj_next(zj_core *c, struct zj_message *out)
{
    for (;;) { /* bound: messages in the accepted PDUs */
        if ((!c->is_open && !(c->flushing && order_left(c))) || c->fenced)
            return 0;
        if (!c->in_pdu && !next_pdu(c)) {
            order_levels(c);
            stream_free(c);
            order_check_digests(c);
            return 0;
        }
        if (c->cur_at == c->cur_end) {
            end_pdu(c);
            continue;
        }
        const uint8_t *b = c->cur + c->cur_at;
        uint32_t size = get32(b + ZJW_MESSAGE_SIZE), frag = b[ZJW_MESSAGE_MFLAGS] & ZJW_MFLAG_FRAGMENT;
        const uint8_t *data = b + ZJW_SIZEOF_MESSAGE + (frag ? ZJW_SIZEOF_FRAGMENT : 0);
        out->data = data;
        out->size = size;
        out->group = get32(b + ZJW_MESSAGE_GROUP);
        out->client = get16(b + ZJW_MESSAGE_CLIENT);
        out->type = b[ZJW_MESSAGE_TYPE];
        out->src = (uint8_t)c->cur_src;
        out->index = (uint16_t)c->cur_index++;
        out->clock = get64(c->cur + ZJW_HEADER_CLOCK);
        out->position = c->position - 1;
        c->cur_at = (uint32_t)(data + size - c->cur);
        if (frag && !fragment(c, b + ZJW_SIZEOF_MESSAGE, data, size, out))
            continue;
        c->count.messages_delivered++;
        c->count.message_bytes_delivered += out->size;
        return 1;
    }
}

/* Levels 2 and 3 are positions in the same order, moved when the entry there has reached the level. */
void order_levels(zj_core *c)
{
    int early = faulty(c, ZJ_FAULT_EARLY_PREACK);
    if (c->flushing) { /* everybody who goes on has it, and knows that everybody has */
        uint64_t reached = c->position < c->flush_to ? c->position : c->flush_to;
        c->preack = c->preack > reached ? c->preack : reached;
        c->acked = c->preack;
        return;
    }
    while (c->preack < c->position) {
        const struct entry *e = &c->log[c->preack & c->log_mask];
        const struct stream *s = &c->st[e->src];
        if (e->seq >= s->min_al && !early)
            break;
        c->preack++;
    }
    if (faulty(c, ZJ_FAULT_EARLY_ACK))
        c->acked = c->preack;
    while (c->acked < c->preack) {
        const struct entry *e = &c->log[c->acked & c->log_mask];
        if (e->seq >= c->st[e->src].acked)
            break;
        c->acked++;
    }
}

void zj_positions(const zj_core *cc, uint64_t out[ZJ_LEVELS])
{
    zj_core *c = (zj_core *)(uintptr_t)cc; /* only moves the cursors it is about to report */
    order_levels(c);
    out[ZJ_ORDERED] = c->said_positions[0] = c->position;
    out[ZJ_PREACK] = c->said_positions[1] = c->preack;
    out[ZJ_ACK] = c->said_positions[2] = c->acked;
}

/* ---- divergence ---- */

static void judge(zj_core *c, uint32_t j, uint64_t position, uint64_t digest)
{
    if (position + c->log_mask <= c->position || !position)
        return; /* too long ago to know */
    uint64_t own = c->digests[(position - 1) & c->log_mask];
    c->count.digests_compared++;
    if (own == digest || c->fenced)
        return;
    c->fenced = 1;
    c->fence_station = j;
    c->fence_position = position;
    c->fence_own = own;
    c->fence_theirs = digest;
}

void order_hear_digest(zj_core *c, uint32_t j, uint64_t position, uint64_t digest)
{
    struct stream *s = &c->st[j];
    if (position <= c->position)
        judge(c, j, position, digest);
    else if (!s->digest_position) {
        s->digest_position = position;
        s->digest = digest;
    }
}

void order_check_digests(zj_core *c)
{
    for (uint32_t j = 0; j < c->n; j++) {
        struct stream *s = &c->st[j];
        if (s->digest_position && s->digest_position <= c->position) {
            judge(c, j, s->digest_position, s->digest);
            s->digest_position = 0;
        }
    }
}

void zj_digest(const zj_core *c, uint64_t *position, uint64_t *digest)
{
    *position = c->preack;
    *digest = c->preack ? c->digests[(c->preack - 1) & c->log_mask] : 0;
}

int zj_fence(const zj_core *c, uint32_t *station, uint64_t *position, uint64_t *own, uint64_t *theirs)
{
    *station = c->fence_station;
    *position = c->fence_position;
    *own = c->fence_own;
    *theirs = c->fence_theirs;
    return c->fenced;
}
