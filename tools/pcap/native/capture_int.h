/* Inside of the capture module: shared by its C files, not parsed by cffi. */
#ifndef ZP_CAPTURE_INT_H
#define ZP_CAPTURE_INT_H

#include <string.h>

#include "capture.h"
#include "zj_wire.h"

#define ZP_NO_MAC UINT64_MAX
#define ZP_NO_TIME INT64_MIN
#define ZP_PIECE_NS INT64_C(500000000) /* so long pieces of a PDU are waited for (rule J18 of docs/links.md) */
enum { LINK_ETHERNET = 1, LINK_SLL = 113, LINK_SLL2 = 276 };

/* network order */
static inline uint32_t be16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t be32(const uint8_t *p) { return be16(p) << 16 | be16(p + 2); }
static inline uint64_t be64(const uint8_t *p) { return (uint64_t)be32(p) << 32 | be32(p + 4); }

static inline int is_vote(uint32_t kind) { return kind == ZJW_KIND_STOP || kind == ZJW_KIND_STOP_ACK || kind == ZJW_KIND_RCV_ACK; }

#endif
