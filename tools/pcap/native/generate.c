/* Generated captures. Turn g of the run: station g % n sends its DATA number g / n, having accepted everything before; each
 * `confirm_every` turns one CONFIRM. Everybody receives everything a few microseconds later, in that order. */
#include "capture_int.h"
#include "generate.h"

enum { EPB_HEAD = 28, EPB_TAIL = 16, ETHERNET = 14, ROOM = 2048 };

static void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v); }
static void put64(uint8_t *p, uint64_t v) { put32(p, (uint32_t)(v >> 32)); put32(p + 4, (uint32_t)v); }
static void le32(uint8_t *p, uint32_t v) { p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); p[2] = (uint8_t)(v >> 16); p[3] = (uint8_t)(v >> 24); }

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* How many of station h's DATA (h from 0) are among the first g turns. */
static uint32_t count_before(uint64_t g, uint32_t h, uint32_t n) { return (uint32_t)(g > h ? (g - h + n - 1) / n : 0); }

static uint32_t vectors(const struct zp_generate *g, uint64_t turn, uint8_t *b)
{
    uint32_t n = g->stations;
    uint64_t stable = turn >= n ? turn - n + 1 : 0; /* what the oldest of the last words of all covers */
    for (uint32_t h = 0; h < n; h++) {
        put32(b + 4 * h, count_before(turn, h, n));
        put32(b + 4 * (n + h), count_before(stable, h, n));
    }
    return 8 * n;
}

/* 70 % one message of 64 bytes, 20 % four, 10 % as many as a frame takes. */
static uint32_t messages(struct zp_generate *g, uint64_t turn, uint8_t *b)
{
    uint64_t r = mixed(g->seed ^ turn);
    uint32_t room = 1500 - ZJW_SIZEOF_HEADER - 8 * g->stations, each = ZJW_SIZEOF_MESSAGE + 64, size = 0;
    uint32_t count = r % 10 < 7 ? 1 : r % 10 < 9 ? 4 : room / each;
    if (count > room / each)
        count = room / each;
    g->messages += count;
    for (uint32_t i = 0; i < count; i++, size += each) {
        memset(b + size, 0, ZJW_SIZEOF_MESSAGE);
        put32(b + size + ZJW_MESSAGE_SIZE, 64);
        put32(b + size + ZJW_MESSAGE_GROUP, 0x64656661);
        put16(b + size + ZJW_MESSAGE_CLIENT, 1);
        for (uint32_t k = 0; k < 64; k += 8)
            put64(b + size + ZJW_SIZEOF_MESSAGE + k, mixed(r + i * 8 + k));
    }
    return size;
}

static uint32_t pdu(struct zp_generate *g, uint64_t turn, uint32_t src, uint32_t kind, uint8_t *b)
{
    uint32_t n = g->stations, head = ZJW_SIZEOF_HEADER, length;
    memset(b, 0, head);
    put32(b + ZJW_HEADER_CLUSTER, g->cluster);
    b[ZJW_HEADER_VERSION] = ZJW_VERSION;
    b[ZJW_HEADER_KIND] = (uint8_t)kind;
    b[ZJW_HEADER_FLAGS] = ZJW_FLAG_PACK;
    b[ZJW_HEADER_STATIONS] = (uint8_t)n;
    b[ZJW_HEADER_SRC] = (uint8_t)(src + 1);
    put32(b + ZJW_HEADER_INCARNATION, g->incarnation + src);
    put32(b + ZJW_HEADER_INSTANCE, g->instance);
    put32(b + ZJW_HEADER_SEQ, count_before(turn, src, n));
    put64(b + ZJW_HEADER_CLOCK, ((uint64_t)g->instance << 32) + turn + (kind == ZJW_KIND_DATA ? 1 : 0));
    put32(b + ZJW_HEADER_FREE_BUFFERS, 4096 * n);
    put16(b + ZJW_HEADER_FRAME_MAX, 1500);
    head += vectors(g, turn, b + head);
    if (kind == ZJW_KIND_DATA) {
        length = messages(g, turn, b + head);
    } else {
        length = ZJW_SIZEOF_CONFIRM;
        memset(b + head, 0, length);
        put32(b + head + ZJW_CONFIRM_COUNTED, g->instance);
    }
    put16(b + ZJW_HEADER_LENGTH, length);
    uint32_t sum = zp_crc32c(0, b, ZJW_HEADER_CHECK);
    sum = zp_crc32c(sum, b + ZJW_SIZEOF_HEADER, head - ZJW_SIZEOF_HEADER);
    put64(b + ZJW_HEADER_CHECK, (uint64_t)sum << 32 | zp_crc32c(0, b + head, length));
    return head + length;
}

static uint64_t frame(struct zp_generate *g, uint64_t turn, uint32_t src, uint32_t kind, uint32_t later_ns, uint8_t *out)
{
    static const uint8_t group[6] = {0x03, 0x5a, 0x4a, 0, 0, 1};
    uint8_t *b = out + EPB_HEAD;
    memcpy(b, group, 6);
    put32(b + 6, 0x025a4a00);
    put16(b + 10, src + 1);
    put16(b + 12, 0x88b5);
    uint32_t size = ETHERNET + pdu(g, turn, src, kind, b + ETHERNET), own = src + 1 == g->station;
    uint32_t padded = (size + 3) & ~3u, block = EPB_HEAD + padded + EPB_TAIL;
    uint64_t time = (uint64_t)(g->start_ns + (int64_t)turn * g->step_ns + later_ns + (own ? 0 : 5000));
    le32(out, 6);
    le32(out + 4, block);
    le32(out + 8, 0);
    le32(out + 12, (uint32_t)(time >> 32));
    le32(out + 16, (uint32_t)time);
    le32(out + 20, size);
    le32(out + 24, size);
    memset(b + size, 0, padded - size);
    le32(b + padded, 2 | 4 << 16); /* option: flags, four bytes */
    le32(b + padded + 4, own ? 2 : 9);
    le32(b + padded + 8, 0);
    le32(b + padded + 12, block);
    g->frames++;
    return block;
}

uint64_t zp_generate(struct zp_generate *g, uint8_t *out, uint64_t room, uint64_t until)
{
    uint64_t done = 0;
    while (g->next < until && room - done >= 2 * ROOM) {
        uint64_t turn = g->next++;
        done += frame(g, turn, (uint32_t)(turn % g->stations), ZJW_KIND_DATA, 0, out + done);
        if (g->confirm_every && turn % g->confirm_every == g->confirm_every - 1) {
            uint32_t src = (uint32_t)(turn / g->confirm_every % g->stations);
            done += frame(g, turn + 1, src, ZJW_KIND_CONFIRM, 100, out + done);
        }
    }
    return done;
}
