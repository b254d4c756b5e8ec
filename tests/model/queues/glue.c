/* What of the data path decides by which link a frame goes, and what is missing for good: spread.c and hearing.c, without sockets. */
#include "internal.h"

#include <stdlib.h>

struct model { struct dp_spread spread; struct dp_hearing hearing; uint32_t all; };

struct model *model_new(uint32_t self, uint32_t links)
{
    struct model *m = calloc(1, sizeof *m);
    m->spread.self = m->hearing.self = self;
    m->hearing.several = links > 1;
    m->spread.how = DP_SPREAD_AUTO;
    m->spread.mask = m->all = (1u << links) - 1;
    return m;
}

/* Data takes this link alone. */
void model_passive(struct model *m, uint32_t link)
{
    m->spread.how = DP_SPREAD_SET;
    m->spread.mask = 1u << link;
}

void model_free(struct model *m) { free(m); }

static struct zj_frame frame_of(const uint8_t *pdu, uint32_t size)
{
    return (struct zj_frame){.data = pdu, .size = size, .kind = pdu[ZJW_HEADER_KIND]};
}

/* Into links[i], as bits, which ones frame i of a batch takes (as transmit_batch does where every link is ready); their bytes follow
 * each other. evidence_now: as spread_went is told. */
void model_batch(struct model *m, const uint8_t *bytes, const uint32_t *sizes, uint32_t count, int pressed, uint64_t now,
                 uint64_t evidence_now, uint32_t *links)
{
    struct dp_spread *s = &m->spread;
    const uint32_t all = m->all, mask = all & (all - 1) ? spread_over(s, count, pressed, now) : 0;
    uint32_t in_chunk = 0, one = 0;
    for (uint32_t i = 0; i < count; bytes += sizes[i++]) {
        const struct zj_frame f = frame_of(bytes, sizes[i]);
        if (mask && spread_may(s, &f)) {
            if (in_chunk++ % DP_CHUNK == 0)
                one = spread_least(s, mask);
            spread_loaded(s, one, f.size);
            links[i] = 1u << one;
        } else {
            in_chunk = 0;
            spread_again(s, &f);
            links[i] = all;
        }
        spread_went(s, &f, links[i], evidence_now);
    }
}

uint32_t model_doubtful(const struct model *m) { return m->spread.doubtful; }

/* The judge has looked into it. */
void model_trust(struct model *m)
{
    m->spread.doubtful = 0;
    memset(m->spread.run, 0, sizeof m->spread.run);
}

int model_is_double(struct model *m, uint32_t link, const uint8_t *pdu, uint32_t size, uint64_t now)
{
    const struct zj_frame f = frame_of(pdu, size);
    const int is = hearing_is_double(&m->hearing, link, &f, now);
    if (is)
        hearing_copy(&m->hearing, link, &f, now);
    return is;
}

void model_accepted(struct model *m, uint32_t link, const uint8_t *pdu, uint32_t size, uint64_t now)
{
    const struct zj_frame f = frame_of(pdu, size);
    hearing_accepted(&m->hearing, link, &f, &f, now);
}

/* The next station of which something has gone by; 0: none. */
int model_passed(struct model *m, uint64_t now, uint32_t *src, uint32_t *below, uint64_t *wait_ns)
{
    if (!m->hearing.moved)
        return 0;
    *src = (uint32_t)__builtin_ctzll(m->hearing.moved);
    m->hearing.moved &= m->hearing.moved - 1;
    *below = hearing_passed(&m->hearing, *src, now, wait_ns);
    return 1;
}
