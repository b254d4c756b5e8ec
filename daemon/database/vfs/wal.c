/* The checksum of a write-ahead log, as https://www.sqlite.org/fileformat2.html#checksum_algorithm describes it. */
#include "vfs.h"

static uint32_t word_at(const unsigned char *p, int big_endian)
{
    const uint32_t little = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    return big_endian ? __builtin_bswap32(little) : little;
}

void zb_wal_sum(const unsigned char *data, size_t size, int big_endian, uint32_t sum[2])
{
    for (size_t at = 0; at + 8 <= size; at += 8) {
        sum[0] += word_at(data + at, big_endian) + sum[1];
        sum[1] += word_at(data + at + 4, big_endian) + sum[0];
    }
}
