/* Batches for the Python face: one call for many messages or frames. Copies out; the core knows nothing of it. */
#ifndef ZJ_FACE_H
#define ZJ_FACE_H

#include "zj.h"

struct zj_face_message { /* a message whose bytes lie in the caller's buffer at `offset` */
    uint64_t clock, position;
    uint32_t offset, size, group;
    uint16_t client, index;
    uint8_t src, type, stage, view_src, pad[4];
};

/* Up to max messages in order, their bytes into buf; those of stage ZJ_PLACED come without bytes, size 0. A message larger
 * than cap, or than what is left of it, ends the batch and comes as *large, pointing into the core (data NULL: none). Returns how
 * many are in out, *large not counted. */
uint32_t zj_face_deliver(zj_core *c, uint8_t *buf, uint32_t cap, struct zj_face_message *out, uint32_t max,
                         struct zj_message *large);

/* Up to max frames taken off the transmit queue, one after the other in buf. Returns how many; 0: the queue is empty.
 * cap: at least 65535. */
uint32_t zj_face_tx(zj_core *c, uint64_t now, uint8_t *buf, uint32_t cap, uint32_t *sizes, uint32_t max);

#endif
