/* The codec alone: zj_check() on any bytes, as they are and with header identity and checksums made to fit.
 *
 * Invariant: what zj_check() passes is consistent by a second, independent reading; zj_add_checksum() makes what passes pass again.
 * Input: one byte of stations, then a frame. */
#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t head_of(const uint8_t *b) { return ZJW_SIZEOF_HEADER + (b[ZJW_HEADER_FLAGS] & ZJW_FLAG_PACK ? 8u : 4u) * b[ZJW_HEADER_STATIONS]; }

static void data_is_sound(const uint8_t *p, const uint8_t *end, int op)
{
    while (p < end) {
        CHECK((size_t)(end - p) >= ZJW_SIZEOF_MESSAGE);
        CHECK(p[ZJW_MESSAGE_TYPE] <= ZJW_TYPE_SERVICE && (op || !(p[ZJW_MESSAGE_MFLAGS] & ZJW_MFLAG_OP)));
        uint64_t size = get32(p + ZJW_MESSAGE_SIZE);
        uint32_t flags = p[ZJW_MESSAGE_MFLAGS];
        p += ZJW_SIZEOF_MESSAGE;
        if (flags & ZJW_MFLAG_FRAGMENT) {
            CHECK((size_t)(end - p) >= ZJW_SIZEOF_FRAGMENT);
            uint64_t total = get32(p + ZJW_FRAGMENT_TOTAL), offset = get32(p + ZJW_FRAGMENT_OFFSET);
            CHECK(total <= ZJW_MESSAGE_MAX && offset + size <= total && size > 0);
            CHECK(((flags & ZJW_MFLAG_LAST) != 0) == (offset + size == total));
            p += ZJW_SIZEOF_FRAGMENT;
        }
        CHECK(size <= (uint64_t)(end - p));
        p += size;
    }
}

static void sound(const uint8_t *b, size_t size, uint32_t stations)
{
    CHECK(size >= ZJW_SIZEOF_HEADER && b[ZJW_HEADER_STATIONS] == stations);
    CHECK(b[ZJW_HEADER_SRC] >= 1 && b[ZJW_HEADER_SRC] <= stations && b[ZJW_HEADER_TARGET] <= stations);
    uint32_t head = head_of(b), length = get16(b + ZJW_HEADER_LENGTH);
    CHECK(head + length <= size);
    const uint8_t *p = b + head;
    switch (b[ZJW_HEADER_KIND]) {
    case ZJW_KIND_DATA: data_is_sound(p, p + length, b[ZJW_HEADER_FLAGS] & ZJW_FLAG_OP); break;
    case ZJW_KIND_CONFIRM: CHECK(length == ZJW_SIZEOF_CONFIRM); break;
    case ZJW_KIND_NAK:
        CHECK(length == ZJW_SIZEOF_NAK + ZJW_SIZEOF_RANGE * (uint32_t)p[ZJW_NAK_COUNT]);
        CHECK(p[ZJW_NAK_STREAM] >= 1 && p[ZJW_NAK_STREAM] <= stations);
        break;
    case ZJW_KIND_STOP:
    case ZJW_KIND_STOP_ACK:
    case ZJW_KIND_RCV_ACK:
        CHECK(length == ZJW_SIZEOF_PROPOSAL + ZJW_SIZEOF_CHANGE * (uint32_t)p[ZJW_PROPOSAL_CHANGES] && p[ZJW_PROPOSAL_CHANGES]);
        for (uint32_t i = 0; i < p[ZJW_PROPOSAL_CHANGES]; i++) {
            const uint8_t *change = p + ZJW_SIZEOF_PROPOSAL + ZJW_SIZEOF_CHANGE * i;
            CHECK(change[ZJW_CHANGE_CHANGED] >= 1 && change[ZJW_CHANGE_CHANGED] <= stations);
            CHECK(!i || change[ZJW_CHANGE_CHANGED] > (change - ZJW_SIZEOF_CHANGE)[ZJW_CHANGE_CHANGED]);
        }
        break;
    case ZJW_KIND_RCV:
    case ZJW_KIND_OPEN: {
        uint32_t whole = ZJW_SIZEOF_OPEN + ZJW_SIZEOF_MEMBER * (uint32_t)p[ZJW_OPEN_MEMBERS] + get16(p + ZJW_OPEN_NAME_LENGTH);
        if (p[ZJW_OPEN_OFLAGS] & ZJW_OFLAG_CONFIGURED && length > whole) {
            CHECK(length >= whole + ZJW_SIZEOF_CONFIGURATION);
            const uint8_t *told = p + whole;
            whole += ZJW_SIZEOF_CONFIGURATION + get16(told + ZJW_CONFIGURATION_OPTIONS_LENGTH) +
                     get16(told + ZJW_CONFIGURATION_PROPOSED_LENGTH);
        }
        CHECK(length == whole);
        break;
    }
    case ZJW_KIND_RST:
    case ZJW_KIND_RSTC:
        CHECK(length == ZJW_SIZEOF_RESET);
        break;
    default: CHECK(!"a kind that is not implemented");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 65536)
        return 0;
    uint32_t stations = 1 + data[0] % ZJW_STATIONS_MAX;
    size--;
    uint8_t *b = malloc(size ? size : 1); /* of its own, so that the sanitizer sees a read beyond it */
    CHECK(b);
    memcpy(b, data + 1, size);

    int drop = zj_check(b, (uint32_t)size, CLUSTER, stations);
    CHECK(drop >= 0 && drop < ZJ_DROP_COUNT && zj_drop_name((uint32_t)drop));
    if (!drop)
        sound(b, size, stations);
    if (size >= ZJW_SIZEOF_HEADER) {
        put32(b + ZJW_HEADER_CLUSTER, CLUSTER);
        b[ZJW_HEADER_VERSION] = ZJW_VERSION;
        b[ZJW_HEADER_STATIONS] = (uint8_t)stations;
        zj_add_checksum(b, (uint32_t)size);
        drop = zj_check(b, (uint32_t)size, CLUSTER, stations);
        CHECK(drop != ZJ_DROP_CHECK && drop != ZJ_DROP_LENGTH && drop != ZJ_DROP_CLUSTER && drop != ZJ_DROP_VERSION);
        if (!drop) {
            sound(b, size, stations);
            b[size - 1] ^= 1; /* the last byte is covered */
            CHECK(zj_check(b, (uint32_t)size, CLUSTER, stations) != ZJ_DROP_NONE);
        }
    }
    free(b);
    return 0;
}
