/* Which link a frame takes, where there are several.
 *
 * First sendings of own DATA may be spread, each over one link; all else goes out on all. It is remembered by which link each own
 * PDU went. When DP_EVIDENCE of them in a row that went over one link alone are asked for, and these were sent over DP_EVIDENCE_NS or
 * longer, that link is doubtful: nothing is spread any more until Python has heard more (dp_links_use). So a link that dies under
 * load costs round trips, not time-outs. A queue that is full somewhere loses as many in a row, but all at once.
 */
#include "internal.h"

static struct dp_went *place(struct dp_spread *s, const struct zj_frame *f) { return &s->went[from32(f->data + ZJW_HEADER_SEQ) & (DP_WENT - 1)]; }

static int is_same(const struct dp_went *w, const struct zj_frame *f)
{
    return w->links && w->seq == from32(f->data + ZJW_HEADER_SEQ) && w->instance == from32(f->data + ZJW_HEADER_INSTANCE);
}

static int is_own_data(const struct dp_spread *s, const struct zj_frame *f)
{
    return f->kind == ZJW_KIND_DATA && f->data[ZJW_HEADER_SRC] == s->self + 1;
}

int spread_may(struct dp_spread *s, const struct zj_frame *f) { return is_own_data(s, f) && !is_same(place(s, f), f); }

void spread_went(struct dp_spread *s, const struct zj_frame *f, uint32_t links, uint64_t now)
{
    if (!is_own_data(s, f))
        return;
    struct dp_went *w = place(s, f);
    if (is_same(w, f)) {
        w->links |= (uint8_t)links;
        return;
    }
    *w = (struct dp_went){.seq = from32(f->data + ZJW_HEADER_SEQ), .instance = from32(f->data + ZJW_HEADER_INSTANCE),
                          .links = (uint8_t)links, .at = now};
    if (links && !(links & (links - 1)))
        w->nth = ++s->alone[__builtin_ctz(links)];
}

void spread_again(struct dp_spread *s, const struct zj_frame *f)
{
    if (!is_own_data(s, f))
        return;
    const struct dp_went *w = place(s, f);
    if (!is_same(w, f) || w->links & (w->links - 1))
        return;
    const uint32_t link = (uint32_t)__builtin_ctz(w->links);
    s->run[link] = w->nth == s->last[link] + 1 ? s->run[link] + 1 : 1;
    s->last[link] = w->nth;
    if (s->run[link] == 1)
        s->began[link] = w->at;
    if (s->run[link] >= DP_EVIDENCE && w->at - s->began[link] >= DP_EVIDENCE_NS && !(s->doubtful >> link & 1)) {
        s->doubtful |= 1u << link;
        s->doubt_is_new = 1;
    }
}

/* ---- the choice ---- */
/* How much has been sent lately: a quiet station doubles its frames, a busy one has both links' rate. Where every frame takes all
 * links, no station can send more than one of them carries, however much it has to send: so one that waits for the others'
 * confirmations is busy, too. */
static int is_busy(struct dp_spread *s, uint32_t frames, int pressed, uint64_t now)
{
    if (now - s->since > DP_BUSY_SPAN_NS) {
        s->before = now - s->since > 2 * DP_BUSY_SPAN_NS ? 0 : s->lately;
        s->lately = 0;
        s->since = now;
    }
    s->lately += frames;
    return pressed || s->lately >= DP_BUSY_FRAMES || s->before >= DP_BUSY_FRAMES;
}

uint32_t spread_over(struct dp_spread *s, uint32_t frames, int pressed, uint64_t now)
{
    const int busy = is_busy(s, frames, pressed, now), several = (s->mask & (s->mask - 1)) != 0;
    if (s->doubtful)
        return 0;
    switch (s->how) {
    case DP_SPREAD_AUTO:
        return busy && several ? s->mask : 0;
    case DP_SPREAD_STRIPE:
        return several ? s->mask : 0;
    case DP_SPREAD_SET:
        return s->mask;
    default:
        return 0;
    }
}

uint32_t spread_least(const struct dp_spread *s, uint32_t links)
{
    uint32_t best = (uint32_t)__builtin_ctz(links);
    for (uint32_t rest = links; rest; rest &= rest - 1) {
        const uint32_t l = (uint32_t)__builtin_ctz(rest);
        if (s->load[l] < s->load[best])
            best = l;
    }
    return best;
}

void spread_loaded(struct dp_spread *s, uint32_t link, uint32_t bytes)
{
    s->load[link] += (uint64_t)bytes * DP_WEIGHT / (s->weight[link] ? s->weight[link] : DP_WEIGHT);
    uint64_t least = UINT64_MAX;
    for (uint32_t rest = s->mask; rest; rest &= rest - 1)
        least = min64(least, s->load[__builtin_ctz(rest)]);
    /* A link that could take nothing for a while has not earned the whole line for as long afterwards. */
    for (uint32_t rest = s->mask; rest; rest &= rest - 1) {
        uint64_t *load = &s->load[__builtin_ctz(rest)];
        *load = min64(*load - least, DP_AHEAD_BYTES);
    }
}

int dp_links_use(struct dp *d, uint32_t how, uint32_t mask)
{
    if (how > DP_SPREAD_SET || mask >> d->links.count)
        return -EINVAL;
    d->spread.how = how;
    d->spread.mask = mask;
    d->spread.doubtful = 0;
    d->spread.doubt_is_new = 0;
    memset(d->spread.run, 0, sizeof d->spread.run);
    return 0;
}

int dp_link_weight(struct dp *d, uint32_t link, uint32_t mbit)
{
    if (link >= d->links.count)
        return -EINVAL;
    d->spread.weight[link] = mbit;
    return 0;
}

uint32_t dp_links_doubtful(const struct dp *d) { return d->spread.doubtful; }
