/* The batches of face.h. */
#include "face.h"

#include <string.h>

_Static_assert(sizeof(struct zj_face_message) == 40, "proto/core/core.py unpacks it as =QQIIIHHBBBB4x");

uint32_t zj_face_deliver(zj_core *c, uint8_t *buf, uint32_t cap, struct zj_face_message *out, uint32_t max,
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

uint32_t zj_face_tx(zj_core *c, uint64_t now, uint8_t *buf, uint32_t cap, uint32_t *sizes, uint32_t max)
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
