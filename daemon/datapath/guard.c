/* The guard: what a frame bears besides its PDU, put on where frames leave and checked where they come in, between link and core.
 *
 * none     nothing
 * SipHash  eight bytes behind the PDU, SipHash-2-4 of all of it under the cluster's key. A station without a key takes them for
 *          padding; one with a key takes nothing without them. SipHash: a fast short-input PRF, J.-P. Aumasson, D. J. Bernstein,
 *          2012, section 2.
 * sessions an envelope before the PDU and a tag behind it, which prove who sends it now (sealed.c).
 *
 * Another one is a row of `guards`, its two functions, and an overhead of at most DP_OVERHEAD_MAX.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/random.h>

#include "zj_envelope.h"

/* ---- none ---- */
static uint32_t none_seal(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                          struct iovec parts[DP_GUARD_PARTS])
{
    (void)g;
    (void)slot;
    (void)room;
    parts[0] = (struct iovec){(void *)(uintptr_t)pdu->data, pdu->size};
    return 1;
}

static int none_open(const struct dp_guard *g, struct zj_frame *frame, uint64_t now)
{
    (void)g;
    (void)frame;
    (void)now;
    return 0;
}

/* ---- SipHash ---- */
static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return le64toh(v);
}

static uint64_t rotl(uint64_t x, unsigned b) { return x << b | x >> (64 - b); }

struct sip { uint64_t a, b, c, d; };

static inline void rounds(struct sip *s, int count)
{
    while (count--) {
        s->a += s->b;
        s->c += s->d;
        s->b = rotl(s->b, 13) ^ s->a;
        s->d = rotl(s->d, 16) ^ s->c;
        s->a = rotl(s->a, 32);
        s->c += s->b;
        s->a += s->d;
        s->b = rotl(s->b, 17) ^ s->c;
        s->d = rotl(s->d, 21) ^ s->a;
        s->c = rotl(s->c, 32);
    }
}

uint64_t dp_seal(const uint8_t key[DP_KEY_BYTES], const uint8_t *data, uint32_t size)
{
    const uint64_t k0 = load64(key), k1 = load64(key + 8);
    struct sip s = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)size << 56;
    uint32_t at = 0;
    for (; at + 8 <= size; at += 8) {
        const uint64_t m = load64(data + at);
        s.d ^= m;
        rounds(&s, 2);
        s.a ^= m;
    }
    for (uint32_t i = 0; at + i < size; i++)
        last |= (uint64_t)data[at + i] << 8 * i;
    s.d ^= last;
    rounds(&s, 2);
    s.a ^= last;
    s.c ^= 0xff;
    rounds(&s, 4);
    return s.a ^ s.b ^ s.c ^ s.d;
}

static uint32_t siphash_seal(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                             struct iovec parts[DP_GUARD_PARTS])
{
    (void)slot;
    const uint64_t v = htobe64(dp_seal(g->key, pdu->data, pdu->size));
    memcpy(room, &v, sizeof v);
    parts[0] = (struct iovec){(void *)(uintptr_t)pdu->data, pdu->size};
    parts[1] = (struct iovec){room, sizeof v};
    return 2;
}

/* The PDU's end is where its header says; what is too short for that has no seal. The core takes the seal for padding. */
static int siphash_open(const struct dp_guard *g, struct zj_frame *frame, uint64_t now)
{
    (void)now;
    const uint8_t *pdu = frame->data;
    if (frame->size < ZJW_SIZEOF_HEADER + DP_SEAL_BYTES)
        return DP_R_SEAL;
    const uint32_t vectors = pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_PACK ? 2u : 1u;
    const uint32_t payload = (uint32_t)pdu[ZJW_HEADER_LENGTH] << 8 | pdu[ZJW_HEADER_LENGTH + 1];
    const uint32_t end = ZJW_SIZEOF_HEADER + 4 * vectors * pdu[ZJW_HEADER_STATIONS] + payload;
    uint64_t v;
    if (end > frame->size - DP_SEAL_BYTES)
        return DP_R_SEAL;
    memcpy(&v, pdu + end, sizeof v);
    return be64toh(v) == dp_seal(g->key, pdu, end) ? 0 : DP_R_SEAL; /* one comparison of words: its time says nothing */
}

/* ---- envelopes without a session ---- */
#define PLAIN_TAG_BYTES 4u                     /* CRC-32C */

static uint32_t plain_tag_bytes(const struct dp_guard *g)
{
    return g->ops->overhead ? DP_SEAL_BYTES : PLAIN_TAG_BYTES; /* where there is a key, its seal */
}

/* CRC-32C, a nibble at a time: for frames that are rare. */
static uint32_t crc32c(const uint8_t *p, uint32_t size)
{
    static uint32_t table[16];
    if (!table[1])
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t c = i;
            for (int k = 0; k < 4; k++)
                c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
            table[i] = c;
        }
    uint32_t crc = ~0u;
    for (uint32_t i = 0; i < size; i++) {
        crc = crc >> 4 ^ table[(crc ^ p[i]) & 15];
        crc = crc >> 4 ^ table[(crc ^ p[i] >> 4) & 15];
    }
    return ~crc;
}

static void plain_tag(const struct dp_guard *g, const uint8_t *frame, uint32_t size, uint8_t out[DP_SEAL_BYTES])
{
    const uint64_t seal = g->ops->overhead ? htobe64(dp_seal(g->key, frame, size)) : 0;
    const uint32_t crc = g->ops->overhead ? 0 : htobe32(crc32c(frame, size));
    memcpy(out, g->ops->overhead ? (const void *)&seal : &crc, plain_tag_bytes(g));
}

static uint32_t plain_whole(const struct dp_guard *g, uint32_t what, uint32_t piece, const struct zj_frame *body, uint8_t *out)
{
    struct dp_plain *p = g->plain;
    const uint32_t end = ZJE_SIZEOF_ENVELOPE + body->size;
    envelope_put(out, p->cluster, p->self, ZJE_SUITE_NONE, what, piece, p->id, body->size, p->next++);
    memcpy(out + ZJE_SIZEOF_ENVELOPE, body->data, body->size);
    plain_tag(g, out, end, out + end);
    return end + plain_tag_bytes(g);
}

int guard_open_plain(const struct dp_guard *g, struct zj_frame *frame)
{
    const uint8_t *p = frame->data;
    const uint32_t size = from16(p + ZJE_ENVELOPE_LENGTH), end = ZJE_SIZEOF_ENVELOPE + size;
    const uint32_t what = p[ZJE_ENVELOPE_WHAT], piece = from16(p + ZJE_ENVELOPE_PIECE);
    uint8_t tag[DP_SEAL_BYTES];
    if (end + plain_tag_bytes(g) > frame->size)
        return DP_R_SIZE;
    if (what > ZJE_WHAT_PIECE || (piece != 0) != (what == ZJE_WHAT_PIECE))
        return DP_R_SUITE;
    plain_tag(g, p, end, tag);
    if (memcmp(tag, p + end, plain_tag_bytes(g)))
        return DP_R_TAG;
    if (p[ZJE_ENVELOPE_TX] == g->plain->self + 1)
        return DP_R_OWN;
    *frame = (struct zj_frame){.data = p + ZJE_SIZEOF_ENVELOPE, .size = size};
    return guard_word(what);
}

/* ---- the choice ---- */
static const struct dp_guard_ops guards[] = {
    [DP_GUARD_NONE] = {.overhead = 0, .seal = none_seal, .open = none_open},
    [DP_GUARD_SIPHASH] = {.overhead = DP_SEAL_BYTES, .seal = siphash_seal, .open = siphash_open},
    [DP_GUARD_SESSIONS] = {.overhead = ZJE_SIZEOF_ENVELOPE + ZJE_TAG_BYTES, .seal = sealed_seal, .open = sealed_open},
};

int guard_init(struct dp_guard *g, const struct dp_config *cfg)
{
    if (cfg->guard >= sizeof guards / sizeof *guards)
        return -EINVAL;
    g->ops = &guards[cfg->guard];
    g->key = cfg->key;
    g->plain = calloc(1, sizeof *g->plain);
    if (!g->plain)
        return -ENOMEM;
    g->plain->self = cfg->self;
    g->plain->cluster = cfg->cluster;
    g->plain->next = 1;
    if (getrandom(g->plain->id, sizeof g->plain->id, 0) != sizeof g->plain->id)
        memset(g->plain->id, 0, sizeof g->plain->id); /* what is left of a former life may then count as of this one */
    return cfg->guard == DP_GUARD_SESSIONS ? sealed_init(g, cfg) : 0;
}

void guard_free(struct dp_guard *g)
{
    sealed_free(g);
    free(g->plain);
    g->plain = NULL;
}

uint32_t guard_whole(const struct dp_guard *g, uint32_t what, uint32_t piece, const struct zj_frame *body, uint8_t *out)
{
    return g->sealed ? sealed_whole(g, what, piece, body, out) : plain_whole(g, what, piece, body, out);
}

uint32_t guard_around(const struct dp_guard *g)
{
    return ZJE_SIZEOF_ENVELOPE + (g->sealed ? ZJE_TAG_BYTES : plain_tag_bytes(g));
}

int dp_seal_frame(struct dp *d, const uint8_t *pdu, uint32_t size, uint8_t *out)
{
    const struct zj_frame frame = {.data = pdu, .size = size};
    uint8_t room[DP_OVERHEAD_MAX];
    struct iovec parts[DP_GUARD_PARTS];
    uint32_t total = 0;
    if (!guard_can_seal(&d->guard))
        return -EAGAIN;
    const uint32_t count = guard_seal(&d->guard, DP_TX_BATCH, &frame, room, parts);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(out + total, parts[i].iov_base, parts[i].iov_len);
        total += (uint32_t)parts[i].iov_len;
    }
    return (int)total;
}

int dp_open_frame(struct dp *d, const uint8_t *frame, uint32_t size, uint64_t now, uint8_t *out, uint32_t *out_size)
{
    struct zj_frame pdu = {.data = frame, .size = size};
    const int refusal = guard_open(&d->guard, &pdu, now);
    if (refusal)
        return refusal;
    memcpy(out, pdu.data, pdu.size);
    *out_size = pdu.size;
    return 0;
}

uint32_t dp_overhead(uint32_t guard) { return guard < sizeof guards / sizeof *guards ? guards[guard].overhead : 0; }
