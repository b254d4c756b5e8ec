/* Captures of a run that never was, for benchmarks and tests: valid PDUs of n stations that take turns, as one of them sees them. */
#ifndef ZP_GENERATE_H
#define ZP_GENERATE_H

#include <stdint.h>

struct zp_generate {
    uint32_t stations, station; /* n; whose capture, 1..n */
    uint32_t cluster, instance, incarnation, confirm_every; /* one CONFIRM after so many DATA, the stations in turn; 0: none */
    int64_t start_ns, step_ns;  /* time of the first PDU, and from one to the next */
    uint64_t next;         /* PDU of the whole run that comes next, from 0; advanced */
    uint64_t frames, messages; /* so far */
    uint64_t seed;
};
/* pcapng enhanced packet blocks (little-endian, interface 0 in ns, direction flags) into out[0..room), whole ones, until the room
 * or `until`, the number of PDUs of the run, is reached. Returns the bytes written; room must be at least 4096. */
uint64_t zp_generate(struct zp_generate *g, uint8_t *out, uint64_t room, uint64_t until);

#endif
