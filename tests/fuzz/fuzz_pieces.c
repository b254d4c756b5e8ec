/* Pieces of PDUs, PROBEs and LINKS, as they come from other stations once their tags have been found right.
 *
 * Input: frames, each: what (1 byte), tx, first byte of the session, number (2), place and count, what has passed in ms, size (2),
 * filler. Invariants: a PDU that is put together is within the largest one, its bytes are those of its pieces and can be read, and
 * what is held is bounded. The room is malloc's here, so that whatever leaves it is found. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                           \
        }                                                                      \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STATIONS = 3, FRAME_MAX = 3000, HEAD = 10, LINKS_COUNT = 2 };

void *dp_map(size_t size) { return calloc(1, size); }
void dp_unmap(void *p, size_t size)
{
    (void)size;
    free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t sum = 0;
    struct dp_pieces pieces = {.frame_max = FRAME_MAX, .stations = STATIONS};
    struct dp_hearing *hearing = calloc(1, sizeof *hearing);
    uint64_t now = 1000000000ull;
    while (hearing && size >= HEAD) {
        const uint32_t body = ((uint32_t)data[8] << 8 | data[9]) % (FRAME_MAX + 200), end = ZJE_SIZEOF_ENVELOPE + body;
        uint8_t *frame = malloc(end); /* just so large: a read behind it is found */
        CHECK(frame);
        memset(frame, data[4], end);
        frame[ZJE_ENVELOPE_TX] = data[1];
        memset(frame + ZJE_ENVELOPE_SESSION, data[2], 4);
        memset(frame + ZJE_ENVELOPE_NUMBER, 0, 8);
        frame[ZJE_ENVELOPE_NUMBER + 6] = data[3];
        frame[ZJE_ENVELOPE_NUMBER + 7] = data[4];
        frame[ZJE_ENVELOPE_PIECE] = data[5];
        frame[ZJE_ENVELOPE_PIECE + 1] = data[6];
        now += (uint64_t)data[7] * 1000000;
        for (uint32_t i = 0; i < body && i < size - HEAD && i < 64; i++)
            frame[ZJE_SIZEOF_ENVELOPE + i] = data[HEAD + i];
        const struct zj_frame whole = {.data = frame, .size = end}, rest = {.data = frame + ZJE_SIZEOF_ENVELOPE, .size = body};
        const uint32_t link = data[0] >> 4 & 1;
        struct zj_frame pdu;
        switch (data[0] & 3) {
        case 0:
            hearing_probe(hearing, link, &whole, &rest, now);
            break;
        case 1:
            hearing_links(hearing, link, &whole, &rest, now);
            break;
        default:
            hearing_piece(hearing, link, &whole, now);
            if (pieces_take(&pieces, &whole, &rest, now, &pdu)) {
                CHECK(pdu.size >= ZJW_SIZEOF_HEADER && pdu.size <= FRAME_MAX);
                sum = 0;
                for (uint32_t i = 0; i < pdu.size; i++)
                    sum += pdu.data[i];
                CHECK(pdu.size >= body && sum <= 255u * pdu.size); /* all of it can be read */
            }
        }
        CHECK(pieces_memory(&pieces) <= (uint64_t)STATIONS * DP_PIECE_SETS * FRAME_MAX);
        free(frame);
        const size_t used = HEAD + min64(size - HEAD, body < 8 ? body : 8);
        data += used;
        size -= used;
    }
    for (uint32_t link = 0; hearing && link < LINKS_COUNT; link++)
        for (uint32_t tx = 0; tx < ZJW_STATIONS_MAX; tx++)
            CHECK(hearing->said[link][tx].size <= DP_LINKS_SAID_MAX && hearing->heard[link][tx].largest <= 65535);
    pieces_free(&pieces);
    free(hearing);
    return 0;
}
