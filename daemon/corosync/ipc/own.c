/* Own messages under way: those of local programs and of the stand-in itself that have no place in the order yet, in their order.
 *
 * One row of bytes, each message behind its length (big-endian, 4 bytes), so that those that go out together are a bundle as they stand.
 * Offsets count from the first byte there ever was; `base` is that of bytes[0]. back <= sent <= freed <= end: before `back` they have
 * come back, before `sent` libzenjun has them, before `freed` they may go out. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES (1u << 16)
#define KEPT_BYTES (4u << 20)

static uint32_t length_at(const struct ipc_own *o, uint64_t offset) { return ipc_big(o->bytes + (offset - o->base)); }

uint8_t *ipc_own_push(struct ipc *s, uint32_t size) {
    struct ipc_own *o = &s->own;
    uint64_t held = o->end - o->back, wanted = held + LENGTH + size;
    if (o->end - o->base + LENGTH + size > o->size) {
        if (o->back - o->base >= held && wanted <= o->size) { /* each byte is moved at most once for each that has come back */
            memmove(o->bytes, o->bytes + (o->back - o->base), held);
        } else {
            uint64_t most = o->size ? o->size : FIRST_BYTES;
            while (most < 2 * wanted)
                most *= 2;
            uint8_t *bytes = malloc(most);
            if (!bytes)
                return NULL;
            if (held)
                memcpy(bytes, o->bytes + (o->back - o->base), held);
            free(o->bytes);
            o->bytes = bytes, o->size = most;
        }
        o->base = o->back;
    }
    uint8_t *to = o->bytes + (o->end - o->base);
    ipc_put_big(to, size);
    o->end += LENGTH + size;
    o->count++;
    return to + LENGTH;
}

int ipc_own_add(struct ipc *s, const void *data, uint32_t size) {
    uint8_t *to = ipc_own_push(s, size);
    if (!to)
        return -ENOMEM;
    if (size)
        memcpy(to, data, size);
    return 0;
}

static bool is_at(const struct ipc_own *o, uint64_t offset, const void *data, uint32_t size) {
    return length_at(o, offset) == size && !memcmp(o->bytes + (offset - o->base) + LENGTH, data, size);
}

int ipc_own_free(struct ipc *s, const void *data, uint32_t size) {
    struct ipc_own *o = &s->own;
    if (o->freed == o->end || !is_at(o, o->freed, data, size))
        return -EINVAL;
    o->freed += LENGTH + size;
    ipc_wake(s); /* the next turn sends it, with all that is free by then */
    return 0;
}

static void drop_memory(struct ipc_own *o) {
    if (o->back != o->end)
        return;
    o->base = o->end;
    if (o->size > KEPT_BYTES) {
        free(o->bytes);
        o->bytes = NULL, o->size = 0;
    }
}

int ipc_own_back(struct ipc *s, const void *data, uint32_t size) {
    struct ipc_own *o = &s->own;
    if (o->back == o->sent || !is_at(o, o->back, data, size))
        return -EINVAL;
    o->back += LENGTH + size;
    o->count--;
    drop_memory(o);
    return 0;
}

void ipc_own_clear(struct ipc *s) {
    struct ipc_own *o = &s->own;
    o->back = o->sent = o->freed = o->end;
    o->count = 0;
    drop_memory(o);
}

uint32_t ipc_own_count(const struct ipc *s) { return s->own.count; }

uint64_t ipc_own_bytes(const struct ipc *s, const uint8_t **bytes) {
    const struct ipc_own *o = &s->own;
    *bytes = o->size ? o->bytes + (o->back - o->base) : NULL;
    return o->end - o->back;
}

int ipc_own_has_room(const struct ipc *s) { return s->own.end - s->own.sent < UNSENT_MAX; }

/* A LIST goes out alone: a stand-in of before there were bundles can read it, and so finds out that this one is another. */
static bool stands_alone(const struct ipc_own *o, uint64_t offset) {
    return length_at(o, offset) > 1 && o->bytes[offset - o->base + LENGTH + 1] == KIND_LIST;
}

uint32_t ipc_own_next(const struct ipc *s, const uint8_t **bytes, uint32_t *size) {
    const struct ipc_own *o = &s->own;
    uint64_t end = o->sent;
    uint32_t count = 0;
    while (end < o->freed) {
        uint64_t next = end + LENGTH + length_at(o, end);
        if (count && (next - o->sent > BUNDLE_BYTES || stands_alone(o, end)))
            break;
        end = next;
        if (!count++ && stands_alone(o, o->sent))
            break;
    }
    if (count) {
        *bytes = o->bytes + (o->sent - o->base);
        *size = (uint32_t)(end - o->sent);
    }
    return count;
}

void ipc_own_sent(struct ipc *s, uint32_t size) { s->own.sent += size; }
