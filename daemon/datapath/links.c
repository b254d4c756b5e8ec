/* The links of this station: 0..DP_LINKS_MAX, each with a socket of its own.
 *
 * What the core has to send goes out on every link that can take it, or (spread.c) on one of them, sealed once, the same bytes on each. What comes in on any
 * link goes to the core, which knows no links and takes the second copy for a duplicate. A link that has failed, or whose queue is
 * full, holds up no other: it misses frames. Only while no link takes a frame does the core keep it.
 */
#include "internal.h"

#define EACH_LINK(l, ls) for (__typeof__(&(ls)->link[0]) l = (ls)->link; l < (ls)->link + (ls)->count; l++)

void links_init(struct dp_links *ls, uint32_t count, int epoll, struct dp_above above)
{
    struct dp_batch *b = &ls->batch;
    ls->count = count;
    ls->above = above;
    for (uint32_t i = 0; i < DP_TX_BATCH; i++)
        b->messages[i].msg_hdr.msg_iov = b->parts[i];
    for (uint32_t i = 0; i < count; i++)
        link_init(&ls->link[i], epoll, EVENT_LINK + i);
}

void links_close(struct dp_links *ls)
{
    EACH_LINK(l, ls)
        link_close(l);
}

/* ---- the loop's part ---- */
uint32_t links_receive(struct dp_links *ls, uint64_t now, uint32_t *drained)
{
    uint32_t frames = 0;
    *drained = 1;
    EACH_LINK(l, ls)
        frames += link_receive(l, &ls->above, now, drained);
    return frames;
}

uint32_t links_of_streams(const struct dp_links *ls)
{
    uint32_t sum = 0;
    EACH_LINK(l, ls)
        sum += l->of_streams;
    return sum;
}

static int any_ready(const struct dp_links *ls, uint64_t now)
{
    EACH_LINK(l, ls)
        if (link_ready(l, now))
            return 1;
    return 0;
}

static void seal_batch(struct dp_batch *b, const struct dp_above *above)
{
    const struct dp_guard *g = above->guard;
    const struct zj_api *api = above->api;
    const struct zj_core *core = above->core;
    for (uint32_t i = 0; i < b->count; i++) {
        b->to[i] = api->address(core, b->frames[i].data);
        b->messages[i].msg_hdr.msg_iovlen = 1 + guard_seal(g, i, &b->frames[i], b->room[i], b->parts[i] + 1);
    }
}

/* Frames first..end - 1 on all links. Returns how many of them the link that has come furthest is done with: sent or dropped. */
static uint32_t transmit_on_all(struct dp_links *ls, uint32_t first, uint32_t end, uint64_t now)
{
    uint32_t done[DP_LINKS_MAX] = {0}, most = 0, links = 0;
    for (uint32_t i = 0; i < ls->count; i++) {
        if (link_ready(&ls->link[i], now)) {
            done[i] = link_transmit(&ls->link[i], &ls->batch, first, end, now);
            links |= 1u << i;
        }
        if (done[i] > most)
            most = done[i];
    }
    for (uint32_t i = 0; i < ls->count; i++)
        if (ls->link[i].fd >= 0)
            ls->link[i].counters.tx_missed += most - done[i];
    for (uint32_t i = first; ls->count > 1 && i < first + most; i++) {
        spread_again(ls->above.spread, &ls->batch.frames[i]);
        spread_went(ls->above.spread, &ls->batch.frames[i], links, now);
    }
    return most;
}

/* The same over the links of a set: each on one of them, or on all. */
static uint32_t transmit_spread(struct dp_links *ls, uint32_t first, uint32_t end, uint32_t mask, uint64_t now)
{
    struct dp_spread *s = ls->above.spread;
    uint32_t ready = 0, most = 0, took = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        if (link_ready(&ls->link[__builtin_ctz(rest)], now))
            ready |= rest & -rest;
    if (!ready)
        return 0;
    if (s->how != DP_SPREAD_SET)
        ready = 1u << spread_least(s, ready);
    for (uint32_t rest = ready; rest; rest &= rest - 1) {
        const uint32_t i = (uint32_t)__builtin_ctz(rest), done = link_transmit(&ls->link[i], &ls->batch, first, end, now);
        took |= done ? 1u << i : 0;
        most = done > most ? done : most;
        for (uint32_t k = first; k < first + done; k++)
            spread_loaded(s, i, ls->batch.frames[k].size);
    }
    for (uint32_t k = first; k < first + most; k++)
        spread_went(s, &ls->batch.frames[k], took, now);
    return most;
}

/* Whether a link of the set is merely busy: its queue is full, and has not been for long. */
static int is_worth_waiting(const struct dp_links *ls, uint32_t mask)
{
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const struct dp_link *l = &ls->link[__builtin_ctz(rest)];
        if (l->fd >= 0 && !l->error && l->tries < DP_SWALLOWED_TRIES)
            return 1;
    }
    return 0;
}

/* Returns how many frames, from the front, are done with. */
static uint32_t transmit_batch(struct dp_links *ls, uint64_t now)
{
    struct dp_batch *b = &ls->batch;
    const struct dp_above *above = &ls->above;
    const uint32_t mask = ls->count > 1 ? spread_over(above->spread, b->count, above->api->pressed(above->core), now) : 0;
    if (!mask)
        return transmit_on_all(ls, 0, b->count, now);
    uint32_t at = 0;
    while (at < b->count) {
        const int may = spread_may(ls->above.spread, &b->frames[at]);
        uint32_t end = at + 1;
        while (end < b->count && (!may || end < at + DP_CHUNK) && spread_may(ls->above.spread, &b->frames[end]) == may)
            end++;
        uint32_t done = may ? transmit_spread(ls, at, end, mask, now) : transmit_on_all(ls, at, end, now);
        for (uint32_t k = 1; may && !done && k < ls->count; k++)
            done = transmit_spread(ls, at, end, mask, now); /* whom the kernel has refused waits now: the next one's turn */
        if (may && !done && !is_worth_waiting(ls, mask))
            done = transmit_on_all(ls, at, end, now); /* the links that are meant have failed: they hold up no other */
        at += done;
        if (!done)
            break;
    }
    return at;
}

/* ---- one PDU by itself: to a pair, or in pieces ---- */
struct by_itself { const struct dp_pair *pair; int to_group; uint32_t waits, failed; }; /* links (bits) on which some of it did not go */

static void send_by_itself(struct dp_links *ls, struct by_itself *way, const struct zj_frame *pdu, const struct iovec *parts,
                           uint32_t count, uint64_t now)
{
    for (uint32_t i = 0; i < ls->count; i++) {
        struct dp_link *l = &ls->link[i];
        if ((way->waits | way->failed) >> i & 1)
            continue;
        if (!link_ready(l, now)) {
            *(l->fd >= 0 && !l->error ? &way->waits : &way->failed) |= 1u << i;
            continue;
        }
        const int error = link_send(l, way->to_group || !(way->pair->known >> i & 1) ? NULL : way->pair->mac[i], parts, count);
        if (error == -ENOBUFS && l->base && pdu->size > l->base && ++l->swallowed > DP_SWALLOWED_TRIES) {
            l->too_large = 1; /* as in link_transmit: it stays, and goes in pieces */
            l->swallowed = 0;
            link_rested(l);
            way->waits |= 1u << i;
        } else if (error == -EAGAIN || error == -ENOBUFS) {
            link_wait(l, now);
            way->waits |= 1u << i;
        } else if (error) {
            way->failed |= 1u << i;
            l->too_large |= error == -EMSGSIZE && l->base && pdu->size > l->base;
        } else {
            link_rested(l);
            if (l->base && pdu->size > l->base)
                l->swallowed = 0;
        }
    }
}

/* limit: bytes of the largest PDU that goes in one frame. */
static void cut(struct dp_links *ls, struct by_itself *way, const struct zj_frame *pdu, uint32_t limit, uint64_t now)
{
    const struct dp_guard *g = ls->above.guard;
    const uint32_t frame = limit + g->ops->overhead, around = guard_around(g), room = frame > around ? frame - around : 0;
    const uint32_t count = room ? (pdu->size + room - 1) / room : DP_PIECES_MAX + 1;
    if (count > DP_PIECES_MAX) { /* it never will go: the engine notices */
        way->failed = (1u << ls->count) - 1;
        return;
    }
    const uint32_t each = (pdu->size + count - 1) / count, all = (1u << ls->count) - 1;
    for (uint32_t place = 0; place < count && (way->waits | way->failed) != all; place++) {
        const uint32_t at = place * each;
        const struct zj_frame slice = {.data = pdu->data + at, .size = min32(each, pdu->size - at)};
        const struct iovec part = {ls->whole, guard_whole(g, ZJE_WHAT_PIECE, place << 8 | count, &slice, ls->whole)};
        send_by_itself(ls, way, &slice, &part, 1, now);
    }
}

/* On every link that can take it; 0: none has room for it now. */
static int transmit_by_itself(struct dp_links *ls, const struct dp_pair *p, const struct zj_frame *pdu, uint32_t limit, uint64_t now)
{
    struct by_itself way = {.pair = p, .to_group = !p || ls->above.api->pair_to_group(p->core, pdu->data)};
    if (pdu->size > limit) {
        cut(ls, &way, pdu, limit, now);
    } else {
        uint8_t room[DP_OVERHEAD_MAX];
        struct iovec parts[DP_GUARD_PARTS];
        send_by_itself(ls, &way, pdu, parts, guard_seal(ls->above.guard, DP_TX_BATCH, pdu, room, parts), now);
    }
    const uint32_t all = (1u << ls->count) - 1, sent = all & ~(way.waits | way.failed);
    ls->tx_pieced += sent && pdu->size > limit;
    for (uint32_t i = 0; sent && i < ls->count; i++)
        ls->link[i].counters.tx_missed += ls->count > 1 && ls->link[i].fd >= 0 && !(sent >> i & 1);
    return sent || !way.waits; /* what no link will ever take is dropped: it is asked for again */
}

/* An interface has refused a PDU above base. */
static int shrink(struct dp_links *ls)
{
    uint32_t large = 0;
    for (uint32_t i = 0; i < ls->count; i++) {
        large |= (uint32_t)ls->link[i].too_large << i;
        ls->link[i].too_large = 0;
    }
    if (!large)
        return 0;
    ls->large |= large;
    ls->above.api->limit_size(ls->above.core, ls->base, ls->base);
    return 1;
}

/* Whether what is asked for again and again goes in pieces: it was sent twice and has not come, and so were others, at the same
 * time. That is how it looks where frames have become smaller; Python finds out, and what is under way need not wait for that. */
static int is_suspect(struct dp_links *ls, uint64_t now)
{
    const uint32_t asked = ls->above.api->asked_again(ls->above.core);
    if (now - ls->asked_since > DP_AGAIN_SPAN_NS || asked < ls->asked) {
        ls->asked = min32(asked, ls->asked_last);
        ls->asked_since = now;
    }
    ls->asked_last = asked;
    return ls->base && asked - ls->asked >= DP_AGAIN_LARGE;
}

/* Bytes of a PDU of this kind that goes whole. */
static uint32_t limit_of(const struct zj_frame *f, uint32_t limit, uint32_t suspect)
{
    return f->again && f->size <= DP_PIECES_MAX / 2 * suspect ? min32(limit, suspect) : limit;
}

/* Frames of the batch, from the front, that need not go in pieces. suspect: bytes of the largest of those asked for again that goes
 * whole, 0: the limit counts for them, too. */
static uint32_t count_whole(const struct dp_batch *b, uint32_t limit, uint32_t suspect)
{
    uint32_t i = 0;
    while (i < b->count && b->frames[i].size <= limit_of(&b->frames[i], limit, suspect))
        i++;
    return i;
}

uint32_t links_transmit(struct dp_links *ls, uint64_t now, uint32_t *more)
{
    const struct zj_api *api = ls->above.api;
    struct dp_batch *b = &ls->batch;
    uint32_t total = 0;
    for (uint32_t batch = 0; batch < DP_TX_BATCHES;) {
        if (!any_ready(ls, now) || !guard_can_seal(ls->above.guard))
            return total;
        b->count = api->tx(ls->above.core, b->frames, DP_TX_BATCH);
        if (b->count == 0) {
            EACH_LINK(l, ls)
                if (link_ready(l, now))
                    link_rested(l); /* what it waited for room for has gone by another link, or with its instance */
            return total;
        }
        const uint32_t limit = api->pdu_max(ls->above.core), suspect = is_suspect(ls, now) ? ls->base : 0;
        const uint32_t whole = count_whole(b, limit, suspect);
        uint32_t done;
        if (whole) {
            b->count = whole;
            seal_batch(b, &ls->above);
            done = transmit_batch(ls, now);
        } else {
            b->count = 1;
            done = (uint32_t)transmit_by_itself(ls, NULL, &b->frames[0], limit_of(&b->frames[0], limit, suspect), now);
        }
        if (done)
            api->tx_done(ls->above.core, now, done);
        total += done;
        if (shrink(ls))
            continue; /* bound: PDUs above base go in pieces now */
        if (!done)
            return total; /* a link may be ready that these frames are not for; the others say when they are (links_retry_at) */
        batch += done == b->count; /* else no link is ready any more, or one that lagged has its turn */
    }
    *more = 1;
    return total;
}

/* ---- cores of two stations ---- */

struct of_pair { struct dp_pair *pair; uint32_t count; }; /* frames of one core */

/* Whether a PDU goes with others in one call. What is above base may be swallowed by a link, which only who sends it by itself sees. */
static int goes_with_others(const struct dp_links *ls, const struct zj_frame *f, uint32_t limit)
{
    return f->size <= limit && (!ls->base || f->size <= ls->base);
}

/* Put what the cores of pairs have to send into the batch, as far as it goes with others. Returns of how many cores it is. If the
 * batch stays empty, *alone has the core whose first frame, b->frames[0], has to go by itself, or NULL: there is none. */
static uint32_t gather(struct dp_links *ls, uint32_t limit, struct of_pair of[DP_TX_BATCH], struct dp_pair **alone)
{
    const struct zj_api *api = ls->above.api;
    struct dp_batch *b = &ls->batch;
    uint32_t cores = 0;
    b->count = 0;
    *alone = NULL;
    for (uint64_t rest = ls->above.pairs->open; rest && b->count < DP_TX_BATCH; rest &= rest - 1) {
        struct dp_pair *p = &ls->above.pairs->at[__builtin_ctzll(rest)];
        api->limit_size(p->core, limit, limit); /* of the cluster: what a pair's stations can receive is not all */
        const uint32_t first = b->count, end = first + api->tx(p->core, b->frames + first, DP_TX_BATCH - first);
        for (; b->count < end && goes_with_others(ls, &b->frames[b->count], limit); b->count++)
            b->of[b->count] = api->pair_to_group(p->core, b->frames[b->count].data) ? NULL : p;
        if (b->count > first)
            of[cores++] = (struct of_pair){p, b->count - first};
        if (b->count < end) {
            *alone = b->count ? NULL : p;
            break; /* else it is the first one of the next batch */
        }
    }
    return cores;
}

/* The batch of pairs on all links; as transmit_on_all, but each frame has an address of its own on each link. */
static uint32_t transmit_to_pairs(struct dp_links *ls, uint64_t now)
{
    struct dp_batch *b = &ls->batch;
    uint32_t done[DP_LINKS_MAX] = {0}, most = 0;
    for (uint32_t k = 0; k < b->count; k++)
        b->messages[k].msg_hdr.msg_iovlen = 1 + guard_seal(ls->above.guard, k, &b->frames[k], b->room[k], b->parts[k] + 1);
    for (uint32_t i = 0; i < ls->count; i++) {
        if (!link_ready(&ls->link[i], now))
            continue;
        for (uint32_t k = 0; k < b->count; k++)
            b->to[k] = b->of[k] && b->of[k]->known >> i & 1 ? b->of[k]->mac[i] : NULL;
        done[i] = link_transmit(&ls->link[i], b, 0, b->count, now);
        most = done[i] > most ? done[i] : most;
    }
    for (uint32_t i = 0; ls->count > 1 && i < ls->count; i++)
        if (ls->link[i].fd >= 0)
            ls->link[i].counters.tx_missed += most - done[i];
    return most;
}

/* Returns how many frames are done with; 0: there are none, or no link has room for them now. */
static uint32_t transmit_some_of_pairs(struct dp_links *ls, uint64_t now)
{
    const struct zj_api *api = ls->above.api;
    const uint32_t limit = api->pdu_max(ls->above.core);
    struct of_pair of[DP_TX_BATCH];
    struct dp_pair *alone;
    const uint32_t cores = gather(ls, limit, of, &alone);
    if (alone) {
        const uint32_t done = (uint32_t)transmit_by_itself(ls, alone, &ls->batch.frames[0], limit, now);
        api->tx_done(alone->core, now, done);
        return done;
    }
    const uint32_t done = cores ? transmit_to_pairs(ls, now) : 0;
    for (uint32_t k = 0, rest = done; k < cores && rest; k++) {
        const uint32_t count = min32(rest, of[k].count);
        api->tx_done(of[k].pair->core, now, count);
        rest -= count;
    }
    return done;
}

uint32_t links_transmit_pairs(struct dp_links *ls, uint64_t now)
{
    uint32_t total = 0, done;
    if (!guard_can_seal(ls->above.guard))
        return 0;
    do {
        done = any_ready(ls, now) ? transmit_some_of_pairs(ls, now) : 0;
        total += done;
    } while (shrink(ls) || done); /* bound: windows; PDUs above base go in pieces after a refusal */
    return total;
}

void links_mute(struct dp_links *ls)
{
    EACH_LINK(l, ls)
        link_mute(l);
}

void links_unmute(struct dp_links *ls)
{
    EACH_LINK(l, ls)
        link_unmute(l);
}

uint64_t links_retry_at(const struct dp_links *ls)
{
    uint64_t due = UINT64_MAX;
    EACH_LINK(l, ls)
        if (l->retry_at && !l->error)
            due = min64(due, l->retry_at);
    return due;
}

int links_error_is_new(const struct dp_links *ls)
{
    int any = 0;
    EACH_LINK(l, ls)
        any |= l->error_is_new;
    return any;
}

void links_error_told(struct dp_links *ls)
{
    EACH_LINK(l, ls)
        l->error_is_new = 0;
}

uint64_t links_memory(const struct dp_links *ls)
{
    uint64_t bytes = 0;
    EACH_LINK(l, ls)
        bytes += l->ring_bytes;
    return bytes;
}

/* ---- the API's part ---- */
int dp_link_open(struct dp *d, uint32_t link, const char *ifname, struct dp_link_info *out)
{
    if (link >= d->links.count)
        return -EINVAL;
    struct dp_link *l = &d->links.link[link];
    const int error = link_open(l, &d->cfg, ifname);
    if (error == 0) {
        *out = (struct dp_link_info){.ring_bytes = l->ring_bytes, .ifindex = l->ifindex, .mtu = l->mtu};
        memcpy(out->mac, l->header + sizeof out->mac, sizeof out->mac);
    }
    return error;
}

void dp_link_close(struct dp *d, uint32_t link)
{
    if (link < d->links.count)
        link_close(&d->links.link[link]);
}

int dp_link_error(const struct dp *d, uint32_t link) { return link < d->links.count ? d->links.link[link].error : -EINVAL; }

int dp_link_counters(struct dp *d, uint32_t link, struct dp_link_counters *out)
{
    if (link >= d->links.count)
        return -EINVAL;
    link_count_drops(&d->links.link[link]);
    *out = d->links.link[link].counters;
    return 0;
}

static int send_now(struct dp_links *ls, const struct iovec *parts, uint32_t count)
{
    int first_error = -ENOTCONN, sent = 0;
    EACH_LINK(l, ls) {
        const int error = link_send(l, NULL, parts, count);
        sent |= error == 0;
        if (error && first_error == -ENOTCONN)
            first_error = error;
    }
    return sent ? 0 : first_error;
}

int dp_links_send(struct dp *d, const uint8_t *pdu, uint32_t size)
{
    const struct zj_frame frame = {.data = pdu, .size = size};
    uint8_t room[DP_OVERHEAD_MAX];
    struct iovec parts[DP_GUARD_PARTS];
    if (!guard_can_seal(&d->guard))
        return -EAGAIN;
    return send_now(&d->links, parts, guard_seal(&d->guard, DP_TX_BATCH, &frame, room, parts));
}

static int send_whole(struct dp *d, uint32_t link, uint32_t what, const uint8_t *body, uint32_t size)
{
    const struct zj_frame said = {.data = body, .size = size};
    if (!guard_can_seal(&d->guard))
        return -EAGAIN;
    const struct iovec part = {d->links.whole, guard_whole(&d->guard, what, 0, &said, d->links.whole)};
    return link_send(&d->links.link[link], NULL, &part, 1);
}

int dp_links_say(struct dp *d, uint32_t link, const uint8_t *body, uint32_t size)
{
    return link >= d->links.count || size > DP_LINKS_SAID_MAX ? -EINVAL : send_whole(d, link, ZJE_WHAT_LINKS, body, size);
}

int dp_probe(struct dp *d, uint32_t link, const uint8_t *body, uint32_t size, uint32_t bytes)
{
    uint8_t *padded = d->links.probe;
    const uint32_t around = guard_around(&d->guard);
    if (link >= d->links.count || bytes > 65535 || bytes < around + size)
        return -EINVAL;
    memcpy(padded, body, size);
    memset(padded + size, 0, bytes - around - size);
    return send_whole(d, link, ZJE_WHAT_PROBE, padded, bytes - around);
}

int dp_limit_size(struct dp *d, uint32_t limit, uint32_t base)
{
    if (base > limit)
        return -EINVAL;
    d->links.base = base;
    for (uint32_t i = 0; i < d->links.count; i++)
        d->links.link[i].base = base;
    d->api->limit_size(d->core, limit, base);
    return 0;
}

uint32_t dp_links_large(struct dp *d, uint32_t *again)
{
    const uint32_t large = d->links.large, asked = d->api->asked_again(d->core);
    *again = asked - d->again;
    d->again = asked;
    d->links.large = 0;
    return large;
}

int dp_hello_send(struct dp *d, const uint8_t *body, uint32_t size)
{
    uint8_t frame[DP_HELLO_MAX];
    uint32_t bytes;
    int error = -EINVAL;
    for (uint32_t key = 0; d->guard.sealed && (bytes = sealed_hello(&d->guard, key, body, size, frame)) != 0; key++) { /* bound: DP_KEYS_MAX */
        const struct iovec part = {frame, bytes};
        error = send_now(&d->links, &part, 1);
    }
    return error;
}

void links_add_counters(struct dp_links *ls, struct dp_counters *sum)
{
    EACH_LINK(l, ls) {
        link_count_drops(l);
        const struct dp_link_counters *c = &l->counters;
        sum->rx_batches += c->rx_batches;
        sum->rx_frames += c->rx_frames;
        sum->rx_kernel_drops += c->rx_kernel_drops;
        sum->rx_truncated += c->rx_truncated;
        sum->rx_losing += c->rx_losing;
        sum->rx_double += c->rx_double;
        for (uint32_t i = 0; i < DP_REFUSALS; i++)
            sum->rx_refused[i] += c->rx_refused[i];
        sum->tx_batches += c->tx_batches;
        sum->tx_frames += c->tx_frames;
        sum->tx_bytes += c->tx_bytes;
        sum->tx_busy += c->tx_busy;
        sum->tx_too_long += c->tx_too_long;
        sum->tx_errors += c->tx_errors;
    }
}
