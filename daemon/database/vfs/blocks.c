/* Files that go from one site to another: what takes long for each of their blocks, in one call without the interpreter. */
#define _GNU_SOURCE
#include "vfs.h"

#include <fcntl.h>
#include <string.h>

enum { LANES = 4, WORD = 8 };

static const uint64_t starts[LANES] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0xd6e8feb86659fd93u};

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

/* Eight bytes, the first one the lowest, so that sums are the same on every machine. */
static uint64_t word_at(const unsigned char *data)
{
    uint64_t word = 0;
    for (int i = 0; i < WORD; i++) /* one load, for the compiler */
        word |= (uint64_t)data[i] << (8 * i);
    return word;
}

/* Of one block. Four sums side by side: each step waits for the one before it. */
static uint64_t sum_of(const unsigned char *data, size_t size, uint64_t seed)
{
    uint64_t lanes[LANES];
    size_t at = 0;
    for (int i = 0; i < LANES; i++)
        lanes[i] = mix(starts[i], seed);
    for (; at + LANES * WORD <= size; at += LANES * WORD)
        for (int i = 0; i < LANES; i++)
            lanes[i] = mix(lanes[i], word_at(data + at + (size_t)i * WORD));
    for (; at < size; at += WORD) {
        unsigned char rest[WORD] = {0};
        memcpy(rest, data + at, size - at < WORD ? size - at : WORD);
        lanes[0] = mix(lanes[0], word_at(rest));
    }
    uint64_t sum = mix(seed, size);
    for (int i = 0; i < LANES; i++)
        sum = mix(sum, lanes[i]);
    return mix(sum, starts[0]);
}

void zb_block_sums(const unsigned char *data, size_t size, size_t block, uint64_t seed, unsigned char *out)
{
    for (size_t at = 0; at < size; at += block) {
        const uint64_t sum = sum_of(data + at, size - at < block ? size - at : block, seed);
        for (int i = 0; i < WORD; i++)
            *out++ = (unsigned char)(sum >> (8 * i));
    }
}

void zb_write_out(int fd, int64_t at, int64_t size)
{
    sync_file_range(fd, at, size, SYNC_FILE_RANGE_WRITE);
}
