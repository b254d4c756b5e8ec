/* What of the data path sends by several links: links.c and link.c as they are, on interfaces whose queues are numbers of this
 * program's. VARIANT: 0; 1: shared_backoff, a link whose queue is full makes the others wait; 2: stripe_votes, whatever is sent
 * takes one link.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#if VARIANT == 1
static int waits_for_any(const struct dp_link *l, uint64_t now);
#define link_ready waits_for_any
#elif VARIANT == 2
#define spread_may(s, f) ((void)(s), (void)(f), 1)
#endif

#include "links.c"

#undef link_ready
#undef spread_may

struct model_links {
    struct dp_links links;
    struct zj_api api;
    struct dp_guard guard;
    struct dp_spread spread;
    uint32_t room[DP_LINKS_MAX], took[DP_TX_BATCH];
};
static struct model_links *now_sending;

#if VARIANT == 1
static int waits_for_any(const struct dp_link *l, uint64_t now)
{
    const struct dp_links *ls = &now_sending->links;
    for (uint32_t i = 0; i < ls->count; i++)
        if (!link_ready(&ls->link[i], now))
            return 0;
    return link_ready(l, now);
}
#endif

/* In place of the kernel's: of frames of the batch, as many as there is room for on the link; they are those from the given one on. */
int model_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    struct model_links *m = now_sending;
    const uint32_t first = (uint32_t)(messages - m->links.batch.messages);
    uint32_t sent = 0;
    (void)flags;
    for (; sent < count && m->room[fd]; sent++, m->room[fd]--)
        m->took[first + sent] |= 1u << fd;
    if (sent)
        return (int)sent;
    errno = ENOBUFS;
    return -1;
}

static const uint8_t *no_address(const struct zj_core *core, const uint8_t *pdu)
{
    (void)core;
    (void)pdu;
    return NULL;
}

static int is_pressed;
static int pressed(const struct zj_core *core)
{
    (void)core;
    return is_pressed;
}

static uint32_t seal_nothing(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                             struct iovec parts[DP_GUARD_PARTS])
{
    (void)g, (void)slot, (void)pdu, (void)room, (void)parts;
    return 0;
}

struct model_links *sending_new(uint32_t self, uint32_t links)
{
    static const struct dp_guard_ops plain = {.seal = seal_nothing};
    struct model_links *m = calloc(1, sizeof *m);
    m->api = (struct zj_api){.address = no_address, .pressed = pressed};
    m->guard.ops = &plain;
    m->spread = (struct dp_spread){.self = self, .how = DP_SPREAD_AUTO, .mask = (1u << links) - 1};
    links_init(&m->links, links, -1, (struct dp_above){.api = &m->api, .guard = &m->guard, .spread = &m->spread});
    for (uint32_t i = 0; i < links; i++)
        m->links.link[i].fd = (int)i;
    return m;
}

void sending_use(struct model_links *m, uint32_t how) { m->spread.how = how; }

void sending_free(struct model_links *m) { free(m); }

/* As many of the frames, from the front, as some link has taken; into links[i], as bits, which ones frame i went by. room: frames
 * that there is room for in the queue of each link. */
uint32_t sending_batch(struct model_links *m, const uint8_t *bytes, const uint32_t *sizes, uint32_t count, int press, const uint32_t *room,
                       uint64_t now, uint32_t *links)
{
    struct dp_batch *b = &m->links.batch;
    b->count = count;
    for (uint32_t i = 0; i < count; bytes += sizes[i++])
        b->frames[i] = (struct zj_frame){.data = bytes, .size = sizes[i], .kind = bytes[ZJW_HEADER_KIND]};
    memcpy(m->room, room, sizeof m->room);
    memset(m->took, 0, sizeof m->took);
    now_sending = m;
    is_pressed = press;
    seal_batch(b, &m->links.above);
    const uint32_t done = transmit_batch(&m->links, now);
    memcpy(links, m->took, count * sizeof *links);
    return done;
}
