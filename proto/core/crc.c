/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), by the processor's instruction where it has one. */
#include "zj_int.h"

static uint32_t table[8][256];
static int have_sse42;

__attribute__((constructor)) static void init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int k = 0; k < 8; k++)
            r = r & 1 ? r >> 1 ^ 0x82F63B78u : r >> 1;
        table[0][i] = r;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
#if defined(__x86_64__)
    __builtin_cpu_init();
    have_sse42 = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, uint32_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        a ^= crc;
        crc = table[7][a & 0xff] ^ table[6][a >> 8 & 0xff] ^ table[5][a >> 16 & 0xff] ^ table[4][a >> 24] ^
              table[3][b & 0xff] ^ table[2][b >> 8 & 0xff] ^ table[1][b >> 16 & 0xff] ^ table[0][b >> 24];
    }
    while (n--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
/* The instruction takes three cycles but a new one can start in each: three lanes at a time, joined by multiplying by x^(8 LANE),
 * which is linear and so a look-up per byte. */
#define LANE 128u
static uint32_t past_lane[4][256];

__attribute__((constructor)) static void init_lanes(void)
{
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t r = b << 8 * k;
            for (uint32_t bit = 0; bit < 8 * LANE; bit++)
                r = r & 1 ? r >> 1 ^ 0x82F63B78u : r >> 1;
            past_lane[k][b] = r;
        }
}

static uint32_t shifted(uint32_t r)
{
    return past_lane[0][r & 0xff] ^ past_lane[1][r >> 8 & 0xff] ^ past_lane[2][r >> 16 & 0xff] ^ past_lane[3][r >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t by_sse42(uint32_t crc, const uint8_t *p, uint32_t n)
{
    uint64_t a = crc;
    for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
        uint64_t b = 0, c = 0;
        for (uint32_t i = 0; i < LANE; i += 8) {
            uint64_t x, y, z;
            memcpy(&x, p + i, 8);
            memcpy(&y, p + LANE + i, 8);
            memcpy(&z, p + 2 * LANE + i, 8);
            a = __builtin_ia32_crc32di(a, x);
            b = __builtin_ia32_crc32di(b, y);
            c = __builtin_ia32_crc32di(c, z);
        }
        a = shifted(shifted((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        a = __builtin_ia32_crc32di(a, v);
    }
    uint32_t s = (uint32_t)a;
    while (n--)
        s = __builtin_ia32_crc32qi(s, *p++);
    return s;
}
#endif

uint32_t zj_crc32c(uint32_t crc, const uint8_t *data, uint32_t size)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (have_sse42)
        return ~by_sse42(crc, data, size);
#endif
    return ~by_table(crc, data, size);
}
