/* The loop: receive, read, offer, step, send, deliver, write; and when to stop, rest or linger. */
#include "internal.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS 64
#define SECOND_NS 1000000000ull

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
}

int dp_create(const struct dp_config *cfg, const struct zj_api *api, struct zj_core *core, struct dp **out)
{
    *out = NULL;
    if (cfg->size != sizeof *cfg || !api || api->version != ZJ_API_VERSION || api->size != sizeof *api || !core)
        return -EINVAL;
    if (cfg->self >= ZJW_STATIONS_MAX || cfg->ethertype < 0x600 || cfg->ethertype > 0xffff || !(cfg->group_mac[0] & 1) ||
        cfg->links > DP_LINKS_MAX || cfg->message_max > ZJW_MESSAGE_MAX || cfg->queue_bytes_max > 1ull << 30 ||
        cfg->ring_bytes > 1u << 30 || cfg->stations > ZJW_STATIONS_MAX || cfg->frame_max > 65535)
        return -EINVAL;
    struct dp *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    const int unguarded = guard_init(&d->guard, cfg);
    if (unguarded) {
        guard_free(&d->guard);
        free(d);
        return unguarded;
    }
    d->cfg = *cfg;
    d->cfg.hello_key = NULL; /* only lent */
    d->api = api;
    d->core = core;
    d->pairs.self = cfg->self;
    clients_init(d);
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    d->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    d->spread.self = cfg->self;
    d->pieces.stations = cfg->stations ? cfg->stations : ZJW_STATIONS_MAX;
    d->pieces.frame_max = cfg->frame_max ? cfg->frame_max : 65535;
    if (cfg->links) {
        d->hearing = dp_map(sizeof *d->hearing);
        if (d->hearing) {
            d->hearing->self = cfg->self;
            d->hearing->several = cfg->links > 1;
        }
    }
    links_init(&d->links, cfg->links, d->epoll,
               (struct dp_above){.api = api, .core = core, .guard = &d->guard, .pairs = &d->pairs, .hearing = d->hearing,
                                 .spread = &d->spread, .pieces = &d->pieces});
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = EVENT_TIMER};
    if (d->epoll < 0 || d->timer < 0 || epoll_ctl(d->epoll, EPOLL_CTL_ADD, d->timer, &event)) {
        const int error = -errno;
        dp_destroy(d);
        return error;
    }
    d->group_data = malloc(ZJW_MESSAGE_MAX);
    if (!d->group_data || (cfg->links && !d->hearing)) {
        dp_destroy(d);
        return -ENOMEM;
    }
    /* Rests are shorter than the 50 us by which the kernel otherwise rounds them up. Of this thread only. */
    (void)prctl(PR_SET_TIMERSLACK, 1000);
    *out = d;
    return 0;
}

void dp_destroy(struct dp *d)
{
    if (!d)
        return;
    links_close(&d->links);
    clients_free(d);
    guard_free(&d->guard);
    pieces_free(&d->pieces);
    pairs_forget_asked(&d->pairs);
    if (d->hearing)
        dp_unmap(d->hearing, sizeof *d->hearing);
    if (d->timer >= 0)
        close(d->timer);
    if (d->epoll >= 0)
        close(d->epoll);
    free(d);
}

void dp_core(struct dp *d, struct zj_core *core, uint32_t stations)
{
    d->core = d->links.above.core = core;
    if (stations != d->pieces.stations) { /* what was not whole is asked for again */
        pieces_free(&d->pieces);
        memset(d->pieces.set, 0, sizeof d->pieces.set);
        d->pieces.stations = stations;
    }
    d->again = d->api->asked_again(core); /* of another core's PDUs nothing is known */
}

int dp_fd(const struct dp *d) { return d->epoll; }

void dp_counters(struct dp *d, struct dp_counters *out)
{
    *out = d->counters;
    links_add_counters(&d->links, out);
    out->rx_pieced = d->pieces.whole;
    out->rx_piece_bad = d->pieces.bad;
    out->tx_pieced = d->links.tx_pieced;
}

uint64_t dp_memory(const struct dp *d)
{
    uint64_t bytes = sizeof *d + (d->hearing ? sizeof *d->hearing : 0) + links_memory(&d->links) + pieces_memory(&d->pieces) + d->sends.cap + d->group_touched;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used)
            bytes += d->clients[i].in_cap + (d->clients[i].handles ? DP_HANDLES_MAX * sizeof(struct dp_bound) : 0) +
                     queue_memory(&d->clients[i]);
    return bytes;
}

/* ---- timer ---- */
/* due 0: off, 1: at once. */
static void arm(struct dp *d, uint64_t due)
{
    if (due == d->armed)
        return;
    const struct itimerspec when = {.it_value = timespec_of(due)};
    if (timerfd_settime(d->timer, TFD_TIMER_ABSTIME, &when, NULL) == 0)
        d->armed = due;
}

/* For a wait that ends at `end`, or an event ends it: one that is there already must not be the timer's. */
static void disarm(struct dp *d, uint64_t end)
{
    if (d->armed && (d->armed < end || d->armed == DP_FIRED))
        arm(d, 0);
}

static uint64_t engine_due(const struct dp *d, uint64_t deadline)
{
    return min64(min64(deadline, d->api->poll_due(d->core)), d->api->silence_due(d->core));
}

static uint64_t next_due(const struct dp *d, uint64_t deadline, uint64_t now)
{
    uint64_t due = engine_due(d, deadline);
    /* A confirmation is the core's own business in zj_step; one that is over and still there must not turn the loop hot. */
    due = min64(due, max64(d->api->confirm_due(d->core), now + DP_CONFIRM_GUARD_NS));
    due = min64(due, d->api->nak_due(d->core));
    due = min64(due, d->api->beat_due(d->core));
    due = min64(due, links_retry_at(&d->links));
    due = min64(due, guard_due(&d->guard));
    if (d->hearing && d->hearing->due)
        due = min64(due, d->hearing->due);
    if (d->pairs.open)
        due = min64(due, max64(pairs_due(&d->links.above), now + DP_CONFIRM_GUARD_NS));
    due = min64(due, overlap_due(d));
    due = min64(due, rates_due(d));
    return min64(due, clients_due(d));
}

static void take_events(struct dp *d, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t about = events[i].data.u64;
        if (about == EVENT_TIMER)
            d->armed = DP_FIRED;
        else if (about >= EVENT_LINK)
            link_event(&d->links.link[about - EVENT_LINK], events[i].events);
        else
            clients_event(d, (uint32_t)about, events[i].events);
    }
}

static void look_for_events(struct dp *d)
{
    struct epoll_event events[EVENTS];
    if (!d->looked)
        take_events(d, events, epoll_wait(d->epoll, events, EVENTS, 0));
    d->looked = 0;
}

/* ---- delivery ---- */
static void hand_to_python(struct dp *d, const struct zj_message *m)
{
    if (m->size > d->group_touched)
        d->group_touched = m->size;
    if (m->size)
        memcpy(d->group_data, m->data, m->size);
    d->group = (struct dp_group){.data = d->group_data, .clock = m->clock, .position = m->position, .size = m->size,
                                 .group = m->group, .client = m->client, .index = m->index, .src = m->src, .type = m->type,
                                 .view_src = m->view_src};
    d->group_waits = 1;
}

static void deliver_fifo(struct dp *d, const struct zj_message *m)
{
    if (m->type != ZJW_TYPE_USER)
        return;
    if (m->stage == ZJ_ACCEPTED)
        clients_accept(d, m);
    else
        clients_placed(d, m);
}

/* Messages delivered. A message that is Python's stops delivery until dp_group_done(). */
static uint32_t deliver(struct dp *d, uint32_t *more)
{
    uint32_t count = 0;
    uint64_t bytes = 0;
    struct zj_message m;
    while (!d->group_waits) {
        if (count == DP_DELIVER_MESSAGES || bytes >= DP_DELIVER_BYTES) {
            *more = 1;
            break;
        }
        if (d->api->next(d->core, &m) != 1)
            break;
        count++;
        bytes += m.size;
        if (m.stage != ZJ_DELIVERED) /* of programs only: with any other type it makes no sense, here as at every station */
            deliver_fifo(d, &m);
        else if (m.type == ZJW_TYPE_USER)
            clients_deliver(d, &m);
        else
            hand_to_python(d, &m);
    }
    return count;
}

int dp_group(struct dp *d, struct dp_group *out)
{
    if (!d->group_waits)
        return 0;
    *out = d->group;
    return 1;
}

void dp_group_done(struct dp *d) { d->group_waits = 0; }

/* ---- the turn ---- */
static void rest(struct dp *d)
{
    const struct timespec t = timespec_of(d->cfg.rest_ns);
    d->counters.rests++;
    nanosleep(&t, NULL);
}

/* 1: something came, and has been looked at if the kernel can wait and look in one call; 0: nothing did; -1: a signal. */
static int wait_for_event(struct dp *d, uint64_t ns)
{
    const struct timespec t = timespec_of(ns);
#ifdef SYS_epoll_pwait2
    if (!d->cannot_wait) {
        struct epoll_event events[EVENTS];
        const int count = (int)syscall(SYS_epoll_pwait2, d->epoll, events, EVENTS, &t, NULL, 0);
        if (count >= 0 || errno == EINTR) {
            d->looked = count > 0;
            take_events(d, events, count);
            return count > 0 ? 1 : count;
        }
        d->cannot_wait = 1; /* before Linux 5.11, or not allowed */
    }
#endif
    struct pollfd p = {.fd = d->epoll, .events = POLLIN};
    return ppoll(&p, 1, &t, NULL);
}

/* Where events follow each other closely, the next one is waited for here: a return to Python, and through its loop to sleep,
 * costs as much as the event itself. */
static int may_stay(const struct dp *d, uint64_t now)
{
    return d->cfg.stay_ns && now - d->active_at < d->cfg.stay_ns / 4;
}

/* A control PDU may end the instance, and what was in order before it would be lost: delivery goes first, for a bounded time. */
static uint32_t hold_control(struct dp *d, uint32_t status, uint32_t undelivered)
{
    if (status & ZJ_S_CONTROL && (undelivered || d->group_waits) && d->control_held < DP_CONTROL_HELD_MAX) {
        d->control_held++;
        return status & ~(uint32_t)ZJ_S_CONTROL;
    }
    d->control_held = 0;
    return status;
}

static uint32_t wants(struct dp *d, uint32_t status, uint64_t now)
{
    uint32_t want = 0;
    if (status & ZJ_S_CONTROL)
        want |= DP_W_CONTROL;
    if (d->group_waits)
        want |= DP_W_GROUP;
    if (d->take_count)
        want |= DP_W_CLIENT;
    if (guard_due(&d->guard) <= now)
        want |= DP_W_TRUST;
    if (links_error_is_new(&d->links))
        want |= DP_W_LINK;
    if (status & ZJ_S_FENCED && !d->fenced)
        want |= DP_W_FENCED;
    if (d->pairs.news | d->pairs.asked | d->multi.unlinked || d->multi.foreign_count ||
        (d->multi.machine && !d->multi.sends && d->multi.has_room))
        want |= DP_W_PAIR;
    if (d->spread.doubt_is_new || d->links.large || (d->hearing && d->hearing->due && d->hearing->due <= now) ||
        (d->api->asked_again(d->core) != d->again && now >= d->again_rest))
        want |= DP_W_SAID;
    return want;
}

/* Where frames come over several links, one that is missing may still be on its way over another one. */
static void tell_passed(struct dp *d, uint64_t now)
{
    struct dp_hearing *h = d->hearing;
    if (!h || !h->several)
        return;
    for (; h->moved; h->moved &= h->moved - 1) {
        const uint32_t src = (uint32_t)__builtin_ctzll(h->moved);
        uint64_t wait_ns;
        const uint32_t below = hearing_passed(h, src, now, &wait_ns);
        d->api->passed(d->core, src, below, wait_ns);
    }
}

/* NAKs and the heartbeat that are due; what a step after it reports. */
static uint32_t repair_and_beat(struct dp *d, uint64_t now, uint32_t drained, int over)
{
    tell_passed(d, now);
    if (drained && d->api->nak_due(d->core) <= now)
        d->api->nak(d->core, now); /* thousands a second where frames are lost: too many for the engine's timer */
    return (drained || over) && d->api->beat(d->core, now) ? d->api->step(d->core, now, drained) : 0;
}

/* What links of two stations have brought, and what follows from it; frames sent. */
static uint32_t turn_pairs(struct dp *d, uint64_t now, uint32_t drained, uint32_t *work, uint32_t *more)
{
    if (d->pairs.open)
        pairs_step(&d->links.above, now, drained);
    const uint32_t done = overlap_turn(d, now, more);
    *work += done;
    if (!d->pairs.open)
        return 0;
    if (done)
        pairs_step(&d->links.above, now, drained);
    return links_transmit_pairs(&d->links, now);
}

static void turn(struct dp *d, uint64_t deadline, uint64_t until, struct dp_turn_result *out)
{
    uint64_t now = dp_now();
    uint64_t slice_end = now + d->cfg.slice_ns;
    const uint64_t stay_end = may_stay(d, now) && now < until ? min64(now + d->cfg.stay_ns, until) : 0;
    uint32_t want, status;
    d->counters.turns++;
    pairs_forget_asked(&d->pairs); /* whom Python wanted to hear it has opened a core for */
    for (;;) {
        uint32_t drained, more = 0, undelivered = 0;
        const uint32_t received = links_receive(&d->links, now, &drained);
        look_for_events(d);
        uint32_t work = clients_offer(d, now, &more), progress = received + work;
        now = dp_now();
        status = d->api->step(d->core, now, drained);
        status |= repair_and_beat(d, now, drained, now >= slice_end);
        /* Frames first: other stations wait for them, our clients only for us. */
        uint32_t sent = links_transmit(&d->links, now, &more);
        sent += turn_pairs(d, now, drained, &work, &more);
        status |= d->pairs.pending ? ZJ_S_PENDING : 0;
        clients_release(d);
        work += deliver(d, &undelivered);
        progress += sent + work;
        more |= undelivered;
        status = hold_control(d, status, undelivered);
        clients_release(d);
        now = dp_now();
        clients_write(d, now);
        want = wants(d, status, now);
        const int over = now >= slice_end;
        if (now >= engine_due(d, deadline) && (drained || over))
            want |= DP_W_DEADLINE; /* judged only once the ring is empty: a silent peer's frames may lie in it */
        if (want)
            break;
        if (work || (progress && status & ZJ_S_PENDING)) /* heartbeats call for no answer */
            d->active_at = now;
        if (!drained || more || progress) {
            if (over) {
                want |= DP_W_MORE;
                break;
            }
            if (!drained || more)
                continue;
            if (links_of_streams(&d->links) >= DP_LOAD_RX || sent >= DP_LOAD_TX)
                d->loaded_until = now + DP_LOAD_NS;
            if (progress && set_any(&d->work) && status & ZJ_S_ROOM)
                continue; /* refused before the step, welcome after it */
        }
        /* Under load sleep by the clock, so that frames wake nobody; else wait for the next one. */
        if (d->cfg.rest_ns && now < d->loaded_until && !over) {
            links_mute(&d->links);
            rest(d);
            now = dp_now();
            continue;
        }
        links_unmute(&d->links);
        const uint64_t due = next_due(d, deadline, now), end = min64(due, stay_end ? stay_end : now + d->cfg.linger_ns);
        if (end <= now || (!stay_end && (!(status & ZJ_S_PENDING) || over)))
            break;
        disarm(d, end);
        if (stay_end)
            d->counters.waits++;
        else
            d->counters.lingers++;
        const int came = wait_for_event(d, end - now);
        now = dp_now();
        slice_end = stay_end ? now + d->cfg.slice_ns : slice_end;
        if (came < 0 || (!came && !stay_end && d->api->nak_due(d->core) > now))
            break;
    }
    d->fenced = (status & ZJ_S_FENCED) != 0;
    if (want & DP_W_LINK)
        links_error_told(&d->links);
    if (want & DP_W_SAID) {
        d->spread.doubt_is_new = 0;
        d->again_rest = now + DP_AGAIN_REST_NS;
    }
    links_unmute(&d->links);
    clients_tidy(d, now);
    const uint64_t due = next_due(d, deadline, now);
    guard_plan(&d->guard, want ? now : due);
    /* Work left for after Python's part: the descriptor stays readable, so that nothing is forgotten if it just returns. */
    arm(d, want ? 1 : due == UINT64_MAX ? 0 : max64(due, 2));
    d->deadline = deadline;
    d->planned = min64(deadline, due);
    *out = (struct dp_turn_result){.want = want, .status = status, .now = now, .next_due = due};
}

int dp_turn(struct dp *d, uint64_t deadline, uint64_t until, struct dp_turn_result *out)
{
    if (d->has_result) /* of a turn that dp_again has made */
        *out = d->result;
    else
        turn(d, deadline, until, out);
    d->has_result = 0;
    return 0;
}

void dp_again(struct dp *d)
{
    const uint64_t now = dp_now();
    if (d->alone && (now <= d->planned || now - d->planned <= DP_PAUSE_NS)) {
        turn(d, d->deadline, UINT64_MAX, &d->result);
        if (!(d->result.want & ~(uint32_t)DP_W_MORE))
            return; /* with work left the descriptor stays readable */
        d->has_result = 1;
    }
    d->began = now; /* the time of that turn counts as Python's */
    d->wanted(d->wanted_by);
    d->began = 0;
}

uint64_t dp_active(const struct dp *d) { return d->active_at; }

uint64_t dp_began(const struct dp *d) { return d->began; }

void dp_on_want(struct dp *d, void (*wanted)(void *), void *by)
{
    d->wanted = wanted;
    d->wanted_by = by;
}

void dp_alone(struct dp *d, uint32_t yes) { d->alone = yes != 0; }

uint64_t dp_planned(const struct dp *d) { return d->planned; }

void dp_plan(struct dp *d, uint64_t at) { d->planned = at; }

int dp_flush(struct dp *d)
{
    uint32_t more = 1;
    uint64_t now = dp_now();
    for (uint32_t pass = 0; more && pass < 64; pass++) {
        more = 0;
        links_transmit(&d->links, now, &more);
        now = dp_now();
    }
    if (d->pairs.open)
        links_transmit_pairs(&d->links, now);
    const uint64_t retry_at = links_retry_at(&d->links);
    if (more)
        arm(d, 1);
    else if (retry_at != UINT64_MAX)
        arm(d, d->armed ? min64(d->armed, retry_at) : retry_at);
    return 0;
}
