#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "zj.h"
#include "zj_wire.h"
#include "core_double.h"

#define CORE(c) ((struct double_core *)(void *)(c))
#define PIECES 64

struct pdu { uint8_t bytes[65536]; };
static struct pdu *pdus;

static int rx(zj_core *core, uint64_t now, const uint8_t *pdu, uint32_t size, const uint8_t *mac)
{
    struct double_core *c = CORE(core);
    (void)now;
    if (c->rx_frames < 65536) {
        c->rx_sizes[c->rx_frames] = size;
        if (size >= 12)
            memcpy(&c->rx_marks[c->rx_frames], pdu + 4, 8);
    }
    memcpy(c->rx_mac, mac, 6);
    c->rx_frames++;
    c->rx_bytes += size;
    return (int)c->rx_drop;
}

static uint32_t step(zj_core *core, uint64_t now, uint32_t drained)
{
    struct double_core *c = CORE(core);
    (void)now;
    c->steps++;
    c->steps_drained += drained;
    return c->status | (c->room ? ZJ_S_ROOM : 0u);
}

static uint32_t tx(zj_core *core, struct zj_frame *out, uint32_t max)
{
    struct double_core *c = CORE(core);
    uint32_t n = 0;
    if (!pdus)
        pdus = calloc(PIECES, sizeof *pdus);
    for (; n < max && n < PIECES && n < c->tx_left; n++) {
        uint8_t *b = pdus[n].bytes;
        const uint64_t number = c->tx_sent + n;
        b[0] = (uint8_t)(c->tx_cluster >> 24);
        b[1] = (uint8_t)(c->tx_cluster >> 16);
        b[2] = (uint8_t)(c->tx_cluster >> 8);
        b[3] = (uint8_t)c->tx_cluster;
        memcpy(b + 4, &number, 8);
        if (c->tx_src) {
            const uint64_t seq = c->tx_seq + n;
            const uint8_t head[20] = {[0] = 1, [1] = 1, [4] = (uint8_t)c->tx_src, [16] = (uint8_t)(seq >> 24), [17] = (uint8_t)(seq >> 16),
                                      [18] = (uint8_t)(seq >> 8), [19] = (uint8_t)seq};
            memcpy(b + 4, head, sizeof head);
        }
        out[n] = (struct zj_frame){b, c->tx_size, 1, c->tx_again};
    }
    return n;
}

static void tx_done(zj_core *core, uint64_t now, uint32_t count)
{
    (void)now;
    CORE(core)->tx_left -= count;
    CORE(core)->tx_sent += count;
    CORE(core)->tx_seq += count;
}

static void keep(struct double_core *c, const struct zj_offer *m, uint8_t src, uint8_t stage, uint64_t clock)
{
    if (c->log_count == c->log_cap) {
        c->log_cap = c->log_cap ? 2 * c->log_cap : 1024;
        c->log = realloc(c->log, c->log_cap * sizeof *c->log);
        c->log_place = realloc(c->log_place, c->log_cap * sizeof *c->log_place);
    }
    struct zj_offer copy = *m;
    uint8_t *data = malloc(m->size + 1u);
    if (m->size)
        memcpy(data, m->data, m->size);
    copy.data = data;
    if (!clock)
        clock = 1000 + c->log_count;
    c->log[c->log_count] = copy;
    c->log_place[c->log_count++] = (struct double_place){c->position, clock, src, stage, 2};
}

static int offer(zj_core *core, struct zj_offer *m)
{
    struct double_core *c = CORE(core);
    if (c->refuse_size && m->size == c->refuse_size)
        return -1;
    if (!c->room)
        return 0;
    if (c->piece && m->size > c->piece) { /* one at a time, known by its client, as in the core */
        void *who = (void *)((uintptr_t)m->client + 1);
        if (c->partial && c->partial != who)
            return 0;
        c->partial = who;
        if (c->anew && m->done) {
            c->anew = 0;
            m->done = 0;
            return 0;
        }
        const uint32_t left = m->size - m->done;
        m->done += left < c->piece ? left : c->piece;
        c->room--;
        if (m->done < m->size)
            return 0;
        c->partial = NULL;
    } else {
        c->room--;
    }
    m->done = m->size;
    c->offered++;
    keep(c, m, (uint8_t)c->self, m->ordering == ZJ_FIFO ? ZJ_ACCEPTED : ZJ_DELIVERED, 0);
    if (c->echo && m->ordering == ZJ_FIFO)
        keep(c, m, (uint8_t)c->self, ZJ_PLACED, c->log_place[c->log_count - 1].clock);
    if (!c->echo)
        c->next_at = c->log_count;
    return 1;
}

static int next(zj_core *core, struct zj_message *out)
{
    struct double_core *c = CORE(core);
    if (c->next_at == c->log_count)
        return 0;
    const struct zj_offer *m = &c->log[c->next_at];
    const struct double_place *p = &c->log_place[c->next_at];
    *out = (struct zj_message){.data = p->stage == ZJ_PLACED ? NULL : m->data, .clock = p->clock, .position = p->stage == ZJ_ACCEPTED ? 12345 : p->position,
                               .size = m->size, .group = m->group, .client = m->client, .index = m->type == ZJW_TYPE_VIEW ? 0xffff : (uint16_t)(c->next_at & 7u),
                               .src = p->src, .type = m->type, .stage = p->stage, .view_src = p->view_src};
    c->next_at++;
    return 1;
}

static void positions(zj_core *core, uint64_t *out)
{
    memcpy(out, ((const struct double_core *)(const void *)core)->positions, 24);
}

static uint64_t nak_due(const zj_core *core) { return ((const struct double_core *)(const void *)core)->nak_due; }
static uint64_t poll_due(const zj_core *core) { return ((const struct double_core *)(const void *)core)->poll_due; }
static uint64_t confirm_due(const zj_core *core) { return ((const struct double_core *)(const void *)core)->confirm_due; }
static uint32_t nak(zj_core *core, uint64_t now)
{
    struct double_core *c = (struct double_core *)(void *)core;
    c->nak_due = UINT64_MAX;
    c->nak_at = now;
    c->naks++;
    return 1;
}

void double_deliver(struct double_core *c, uint32_t group, uint16_t client, uint8_t src, uint8_t type, uint8_t stage, uint64_t clock,
                    const uint8_t *data, uint32_t size)
{
    const struct zj_offer m = {.data = data, .size = size, .group = group, .client = client, .type = type};
    keep(c, &m, src, stage, clock);
}

struct double_core *double_create(uint32_t self)
{
    struct double_core *c = calloc(1, sizeof *c);
    c->self = self;
    c->nak_due = c->poll_due = c->confirm_due = c->beat_due = c->silence_due = UINT64_MAX;
    return c;
}

void double_destroy(struct double_core *c)
{
    for (uint32_t i = 0; i < c->log_count; i++)
        free((void *)(uintptr_t)c->log[i].data);
    free(c->log);
    free(c->log_place);
    free(c);
}

static const uint8_t *address(const zj_core *core, const uint8_t *pdu)
{
    (void)core;
    (void)pdu;
    return NULL;
}

static void limit_size(zj_core *core, uint32_t limit, uint32_t base)
{
    CORE(core)->limit = limit;
    CORE(core)->base = base;
}

static uint32_t pdu_max(const zj_core *core)
{
    const struct double_core *c = (const struct double_core *)(const void *)core;
    return c->limit ? c->limit : UINT32_MAX;
}

static uint32_t asked_again(const zj_core *core) { return ((const struct double_core *)(const void *)core)->again; }

static uint32_t beat(zj_core *core, uint64_t now)
{
    struct double_core *c = CORE(core);
    if (now < c->beat_due)
        return 0;
    c->beat_due = UINT64_MAX;
    c->beats++;
    return 1;
}

static uint64_t beat_due(const zj_core *core) { return ((const struct double_core *)(const void *)core)->beat_due; }
static int pressed(const zj_core *core) { return ((const struct double_core *)(const void *)core)->pressed; }
static void passed(zj_core *core, uint32_t h, uint32_t below, uint64_t wait_ns)
{
    CORE(core)->passed_station = h;
    CORE(core)->passed_below = below;
    CORE(core)->passed_wait_ns = wait_ns;
}
static uint64_t silence_due(const zj_core *core) { return ((const struct double_core *)(const void *)core)->silence_due; }

const struct zj_api *double_api(void)
{
    static const struct zj_api api = {ZJ_API_VERSION, sizeof(struct zj_api), rx, step, tx, tx_done, offer, next, positions, nak_due,
                                      poll_due, confirm_due, nak, NULL, NULL, NULL, NULL, address, limit_size, pdu_max, asked_again,
                                      beat, beat_due, silence_due, pressed, passed};
    return &api;
}
