/* Batches for the Python face: one call for many messages or frames. Copies out; the core knows nothing of it. */
#ifndef ZJ_FACE_H
#define ZJ_FACE_H

#include <string.h>

#include "zj.h"

struct zj_face_message { /* a message whose bytes lie in the caller's buffer at `offset` */
    uint64_t clock, position;
    uint32_t offset, size, group;
    uint16_t client, index;
    uint8_t src, type, stage, view_src, pad[4];
};
_Static_assert(sizeof(struct zj_face_message) == 40, "proto/core/core.py unpacks it as =QQIIIHHBBBB4x");

/* Up to max messages in order, their bytes into buf; those of stage ZJ_PLACED come without bytes, size 0. A message larger
 * than cap, or than what is left of it, ends the batch and comes as *large, pointing into the core (data NULL: none). Returns how
 * many are in out, *large not counted. */
static uint32_t zj_face_deliver(zj_core *c, uint8_t *buf, uint32_t cap, struct zj_face_message *out, uint32_t max,
                                struct zj_message *large)
{
    uint32_t count = 0, used = 0;
    struct zj_message m;

    large->data = NULL;
    while (count < max && zj_next(c, &m) == 1) {
        if (!m.data)
            m.size = 0;
        if (m.size > cap - used) {
            *large = m;
            break;
        }
        if (m.size)
            memcpy(buf + used, m.data, m.size);
        out[count++] = (struct zj_face_message){
            .clock = m.clock, .position = m.position, .offset = used, .size = m.size, .group = m.group,
            .client = m.client, .index = m.index, .src = m.src, .type = m.type, .stage = m.stage, .view_src = m.view_src,
        };
        used += m.size;
    }
    return count;
}

/* Up to max frames taken off the transmit queue, one after the other in buf. Returns how many; 0: the queue is empty.
 * cap: at least 65535. */
static uint32_t zj_face_tx(zj_core *c, uint64_t now, uint8_t *buf, uint32_t cap, uint32_t *sizes, uint32_t max)
{
    uint32_t count = 0, used = 0;
    struct zj_frame f[16];

    while (count < max) {
        uint32_t want = max - count < 16 ? max - count : 16;
        uint32_t got = zj_tx(c, f, want), fit = 0;
        while (fit < got && f[fit].size <= cap - used) {
            memcpy(buf + used, f[fit].data, f[fit].size);
            used += f[fit].size;
            sizes[count++] = f[fit++].size;
        }
        if (fit)
            zj_tx_done(c, now, fit);
        if (fit < got || !got)
            break;
    }
    return count;
}

#endif
