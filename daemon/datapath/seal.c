/* Sealed frames: eight bytes behind every PDU, SipHash-2-4 of all of it under the cluster's key. Who has no key takes them for
 * padding; who has one takes nothing without them. SipHash: a fast short-input PRF, J.-P. Aumasson, D. J. Bernstein, 2012, section 2. */
#include "internal.h"

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

void seal_put(const struct dp *d, uint8_t tag[DP_SEAL_BYTES], const uint8_t *pdu, uint32_t size)
{
    const uint64_t v = htobe64(dp_seal(d->cfg.key, pdu, size));
    memcpy(tag, &v, sizeof v);
}

/* The PDU's end is where its header says; what is too short for that has no seal. */
int seal_fits(const struct dp *d, const uint8_t *pdu, uint32_t size)
{
    if (size < ZJW_SIZEOF_HEADER + DP_SEAL_BYTES)
        return 0;
    const uint32_t vectors = pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_PACK ? 2u : 1u;
    const uint32_t payload = (uint32_t)pdu[ZJW_HEADER_LENGTH] << 8 | pdu[ZJW_HEADER_LENGTH + 1];
    const uint32_t end = ZJW_SIZEOF_HEADER + 4 * vectors * pdu[ZJW_HEADER_STATIONS] + payload;
    uint64_t v;
    if (end > size - DP_SEAL_BYTES)
        return 0;
    memcpy(&v, pdu + end, sizeof v);
    return be64toh(v) == dp_seal(d->cfg.key, pdu, end); /* one comparison of words: its time says nothing */
}
