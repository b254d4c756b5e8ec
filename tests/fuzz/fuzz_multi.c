/* Records of groups that overlap, as links bring them from other stations (zj_multi_record), between messages of this station.
 *
 * Input: 4 bytes that choose who is in which group, then operations, each a byte, of which the low 3 bits say what and the others
 * how. Records: source, type, group, client, size, filler; mostly with the right era and few originators and numbers, so that they
 * fit together. Invariants: a message is delivered once at most, with bytes that can be read; reports that are kept, and unfinished
 * messages, are bounded; what is made for links has a size that its type has. */
#include "harness.h"
#include "multi/multi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STATIONS = 4, WINDOW = 8, GROUPS = 5, SEEN = 4096, RECORD_MAX = 120 };
#define ERA ((uint64_t)3 << 32)
#define ME 2u

/* Cores are not part of it: records come and go by hand. */
int zj_next(zj_core *c, struct zj_message *out) { return (void)c, (void)out, 0; }
int zj_offer(zj_core *c, struct zj_offer *m) { return (void)c, (void)m, 0; }
int zj_unstable(const zj_core *c) { return (void)c, 0; }

struct run {
    zj_multi *m;
    zj_sendq *q;
    uint64_t now, seen[SEEN];
    uint32_t n_seen, lives[64];
};

static void open_era(struct run *r, const uint8_t *who)
{
    zj_multi_open(r->m, ERA, 5, 0, 0, r->lives);
    for (uint32_t order = 0; order < ZJ_MULTI_ORDERS; order++) {
        uint64_t members = 0, of[GROUPS];
        uint8_t followed[64] = {0};
        for (uint32_t g = 0; g < GROUPS; g++) {
            of[g] = (uint64_t)(who[order * 2 + g / 4] >> g & 0xf) | (g % 2 ? 1u << (ME - 1) : 0u);
            members |= of[g];
        }
        const uint64_t hosts = order ? members & (members - 1) ? members & ~(1ull << (who[1] % STATIONS)) : members : members;
        for (uint32_t z = 1; z <= STATIONS; z++)
            followed[z - 1] = members >> (z - 1) & 1 ? (uint8_t)(hosts >> (z - 1) & 1 ? z : (uint32_t)__builtin_ctzll(hosts) + 1) : 0;
        zj_multi_table(r->m, order, members, hosts, followed);
        for (uint32_t g = 0; g < GROUPS; g++)
            if (of[g])
                zj_multi_group(r->m, order, 70 + 2 * g + order, of[g]);
    }
}

static void look(struct run *r)
{
    uint32_t count, sum = 0;
    struct zj_multi_totals totals;
    const struct zj_multi_event *e = zj_multi_events(r->m, &count);
    for (uint32_t k = 0; k < count; k++) {
        CHECK(e[k].kind <= ZJ_MULTI_FINISHED && e[k].order < ZJ_MULTI_ORDERS && e[k].count <= ZJ_MULTI_GROUPS);
        if (e[k].kind != ZJ_MULTI_DELIVER)
            continue;
        for (uint32_t i = 0; i < e[k].size; i++)
            sum += e[k].data[i];
        const uint64_t name = (uint64_t)e[k].origin << 32 | e[k].number;
        for (uint32_t i = 0; i < r->n_seen; i++)
            CHECK(r->seen[i] != name);
        if (r->n_seen < SEEN)
            r->seen[r->n_seen++] = name;
    }
    CHECK(sum <= 255u * RECORD_MAX * (count + 1));
    zj_multi_clear(r->m);
    zj_multi_totals(r->m, &totals);
    CHECK(totals.unfinished <= WINDOW && totals.reports <= 2 * WINDOW * STATIONS && totals.lasts <= totals.messages + r->n_seen);
}

static void record(struct run *r, struct input *in, uint32_t how)
{
    const uint32_t source = 1 + take8(in) % STATIONS, type = take8(in) % 10, group = 70 + take8(in) % (2 * GROUPS);
    const uint32_t client = take8(in) & 3, size = take8(in) % (RECORD_MAX + 1);
    uint8_t *b = calloc(1, size ? size : 1); /* just so large: a read behind it is found */
    CHECK(b);
    const uint8_t *filler = take(in, size);
    if (filler)
        memcpy(b, filler, size);
    if (how & 1 && size >= 8)
        put64(b, ERA);
    if (how & 2 && size >= 24 && type) { /* REPORT, DECIDE: of few, of near times */
        b[8] = (uint8_t)(1 + b[8] % STATIONS);
        b[9] &= 1;
        put16(b + 10, 1 + b[11] % 3);
        put32(b + 12, b[15] % 40u);
        put64(b + 16, b[23]);
    }
    if (how & 2 && size >= 28 && !type) { /* DATA */
        put32(b + 8, b[11] % 40u);
        put32(b + 12, b[15] % 40u);
        put64(b + 16, b[23]);
        b[24] &= 1;
        b[25] &= 1;
        b[26] = size >= 32 ? b[26] & 1 : 0;
    }
    const struct zj_message message = {.data = b, .size = size, .group = group, .client = (uint16_t)client, .type = (uint8_t)type};
    if (source != ME) {
        const int result = zj_multi_record(r->m, source, how & 4 ? 1 : 2, &message);
        CHECK(result >= 0 && result <= 2);
    }
    free(b);
}

static void send_one(struct run *r, struct input *in, uint32_t how)
{
    const uint32_t order = how & 1, first = take8(in) % GROUPS, size = take8(in);
    const uint32_t groups[2] = {70 + 2 * first + order, 70 + 2 * first + 2 + order};
    uint8_t body[256] = {0};
    (void)zj_multi_send(r->m, 1 + (how >> 1), groups, 1 + (how >> 2 & 1), order, body, size, how >> 3 & 1);
}

static void take_out(struct run *r, uint32_t station)
{
    struct zj_offer offer;
    zj_multi_flush(r->m, station, r->q);
    while (zj_sendq_pop(r->q, &offer)) {
        CHECK(offer.type || offer.size >= 28);
        CHECK((offer.type != ZJW_TYPE_REPORT && offer.type != ZJW_TYPE_DECIDE) || offer.size == 24);
        CHECK((offer.type != ZJW_TYPE_HELD && offer.type != ZJW_TYPE_STABLE) || offer.size == 16);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct run r = {.m = zj_multi_create(ME, 1, WINDOW, 1000), .q = zj_sendq_create(), .now = 1};
    const uint8_t *who = take(&in, 4);
    CHECK(r.m && r.q);
    for (uint32_t z = 0; z < STATIONS; z++)
        r.lives[z] = 1;
    if (who)
        open_era(&r, who);
    while (who && in.left) {
        const uint32_t op = take8(&in), how = op >> 3;
        switch (op & 7) {
        case 0:
            send_one(&r, &in, how);
            break;
        case 1:
            take_out(&r, 1 + how % STATIONS);
            break;
        case 2:
            r.now += 100 * how;
            zj_multi_after(r.m, r.now);
            look(&r);
            break;
        case 3:
            if (how == 31) {
                zj_multi_close(r.m);
                look(&r);
            }
            break;
        default:
            record(&r, &in, how);
        }
    }
    zj_multi_after(r.m, r.now + 5000);
    look(&r);
    zj_sendq_destroy(r.q);
    zj_multi_destroy(r.m);
    return 0;
}
