/* Right frames, changed at random, to the guard of sealed.c: none that differs is believed, and a right one always is, once.
 *
 * Usage: sealed_frames COUNT. Ends with 1 and a line where that is not so; the sanitizers end it for a wrong read or write. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "zj_envelope.h"

#define PDU_MAX 1500u

static uint64_t state = 88172645463325252u;

static uint32_t below(uint32_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

static struct dp *station(uint32_t self, uint32_t suite)
{
    struct dp *d = calloc(1, sizeof *d);
    static const uint8_t hello_key[32];
    struct dp_config cfg = {
        .self = self, .cluster = 7, .guard = DP_GUARD_SESSIONS, .stations = 3, .suite = suite, .hello_key = hello_key};
    const int error = d ? guard_init(&d->guard, &cfg) : -ENOMEM;
    if (error) {
        printf("no guard: %d\n", error);
        exit(2);
    }
    return d;
}

static int wrong(const char *what, uint64_t round)
{
    printf("%s in round %llu\n", what, (unsigned long long)round);
    return 1;
}

/* Batches of frames of many sizes are all as they were sealed once the last one has been, and one by itself is beside them. */
static int batches(uint32_t suite, uint64_t rounds)
{
    const uint8_t id[4] = {1, 2, 3, 4}, key[32] = {9};
    struct dp *a = station(0, suite), *b = station(1, suite);
    static uint8_t pdus[DP_TX_SLOTS][PDU_MAX], room[DP_TX_SLOTS][DP_OVERHEAD_MAX], frame[PDU_MAX + DP_OVERHEAD_MAX];
    struct iovec parts[DP_TX_SLOTS][DP_GUARD_PARTS];
    uint32_t sizes[DP_TX_SLOTS], counts[DP_TX_SLOTS];
    int bad = dp_seal_under(b, id, key) || dp_session_read(a, 1, id, key, 1);
    for (uint64_t round = 0; !bad && round < rounds; round++) {
        const uint32_t many = below(8) ? 1 + below(DP_TX_SLOTS) : DP_TX_SLOTS;
        for (uint32_t i = 0; i < many; i++) {
            sizes[i] = below(8) ? ZJW_SIZEOF_HEADER + below(PDU_MAX - ZJW_SIZEOF_HEADER) : PDU_MAX;
            for (uint32_t k = 0; k < sizes[i]; k += 8)
                pdus[i][k] = (uint8_t)below(256);
            pdus[i][ZJW_HEADER_KIND] = ZJW_KIND_DATA;
            const struct zj_frame pdu = {.data = pdus[i], .size = sizes[i]};
            counts[i] = guard_seal(&b->guard, i, &pdu, room[i], parts[i]);
        }
        for (uint32_t i = 0; !bad && i < many; i++) {
            struct zj_frame got = {.data = frame, .size = 0};
            for (uint32_t k = 0; k < counts[i]; k++) {
                memcpy(frame + got.size, parts[i][k].iov_base, parts[i][k].iov_len);
                got.size += (uint32_t)parts[i][k].iov_len;
            }
            if (guard_open(&a->guard, &got, 1) || got.size != sizes[i] || memcmp(got.data, pdus[i], got.size))
                bad = wrong("a frame of a batch is refused, or another PDU comes out", round);
        }
    }
    guard_free(&a->guard);
    guard_free(&b->guard);
    free(a);
    free(b);
    return bad;
}

/* A copy on the heap in just its size, so that a read beyond it is seen. */
static int open_copy(struct dp *d, const uint8_t *frame, uint32_t size, uint8_t *out, uint32_t *out_size)
{
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, frame, size);
    const int refusal = dp_open_frame(d, copy, size, 1, out, out_size);
    free(copy);
    return refusal;
}

static int run(uint32_t suite, uint64_t rounds)
{
    const uint8_t id[4] = {1, 2, 3, 4}, key[32] = {9};
    struct dp *a = station(0, suite), *b = station(1, suite);
    uint8_t pdu[PDU_MAX] = {0}, frame[PDU_MAX + 64], changed[PDU_MAX + 96], out[PDU_MAX + 96];
    int bad = dp_seal_under(b, id, key) || dp_session_read(a, 1, id, key, 1);
    for (uint64_t round = 0; !bad && round < rounds; round++) {
        const uint32_t size = ZJW_SIZEOF_HEADER + below(PDU_MAX - ZJW_SIZEOF_HEADER);
        uint32_t got = 0;
        pdu[ZJW_HEADER_KIND] = ZJW_KIND_DATA;
        for (uint32_t i = ZJW_SIZEOF_HEADER; i < size; i++)
            pdu[i] = (uint8_t)below(256);
        const uint32_t total = (uint32_t)dp_seal_frame(b, pdu, size, frame);
        uint32_t length = total;
        memcpy(changed, frame, total);
        memset(changed + total, 0, 32);
        if (below(4) == 0)
            length = below(2) ? below(total) : total + below(32);
        for (uint32_t changes = below(4); changes; changes--)
            changed[below(below(2) ? ZJE_SIZEOF_ENVELOPE : total)] ^= (uint8_t)(1u << below(8));
        const int same = length >= total && !memcmp(changed, frame, total);
        const int kind = changed[ZJE_ENVELOPE_WHAT];
        const int refusal = open_copy(a, changed, length, out, &got);
        if ((refusal == 0) != same && !(same && kind != ZJE_WHAT_PDU))
            bad = wrong(same ? "a right frame is refused" : "a changed frame is believed", round);
        const int again = open_copy(a, frame, total, out, &got);
        if (again != (same ? DP_R_REPLAYED : 0))
            bad = wrong("the right frame after the changed one", round);
        if (!again && (got != size || memcmp(out, pdu, size)))
            bad = wrong("another PDU comes out", round);
        struct dp_hello hello;
        while (dp_hello_take(a, &hello) || dp_hello_strange(a, &hello)) /* bound: four */
            ;
    }
    guard_free(&a->guard);
    guard_free(&b->guard);
    free(a);
    free(b);
    return bad;
}

int main(int argc, char **argv)
{
    const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    const uint32_t hidden = ZJE_SUITE_AES_256_GCM + ZJE_ENCRYPTED;
    return run(ZJE_SUITE_AES_256_GCM, rounds) || run(hidden, rounds) || batches(ZJE_SUITE_AES_256_GCM, rounds / 64) ||
           batches(hidden, rounds / 64);
}
