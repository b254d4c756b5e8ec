/* Shared by the fuzz targets: reading the input, and an assertion that names itself. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zj.h"
#include "zj_wire.h"

#define CLUSTER 0x7a656e6au
#define INSTANCE 3u
#define INCARNATION(station) (100u + (station)) /* of station index 0.. */

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                           \
        }                                                                      \
    } while (0)

static inline uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t get32(const uint8_t *p) { return get16(p) << 16 | get16(p + 2); }
static inline void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void put32(uint8_t *p, uint32_t v)
{
    put16(p, v >> 16);
    put16(p + 2, v);
}
static inline void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)(v >> 32));
    put32(p + 4, (uint32_t)v);
}

struct input { const uint8_t *at; size_t left; };

static inline const uint8_t *take(struct input *in, size_t size) /* NULL: not so much left */
{
    if (size > in->left)
        return NULL;
    const uint8_t *p = in->at;
    in->at += size;
    in->left -= size;
    return p;
}

static inline uint32_t take8(struct input *in)
{
    const uint8_t *p = take(in, 1);
    return p ? *p : 0;
}

static inline uint32_t take16(struct input *in)
{
    const uint8_t *p = take(in, 2);
    return p ? get16(p) : 0;
}

#endif
