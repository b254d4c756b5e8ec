/* The server: libqb's functions and callbacks, descriptors, and what has come in. connection.c has what belongs to one connection. */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS_MAX 64 /* descriptors that are served in one turn */
#define OWN_EVENTS (EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP) /* poll's numbers are the same */
#define RETRY_NS 1000000
#define NATIVE 4 /* QB_IPC_NATIVE: shared memory */
#define RATE_SLOW 2 /* QB_IPCS_RATE_SLOW: one request a call */
#define BATCH_REQUESTS 50 /* of one program in one turn, for Python */
#define BATCH_ALL 400 /* with those that go to zenjund at once */
#define BATCH_BYTES (1u << 20) /* and no more after these */
#define HANDSHAKES_MAX 128 /* descriptors of those who have not said who they are: anybody may connect */

static _Thread_local char why[256];
static struct ipc *the; /* libqb's poll functions have no argument for it, hence one server a process */

const char *ipc_why(void) { return why; }
struct ipc *ipc_the(void) { return the; }

/* ---- libqb's loop, as far as its server needs one */

void ipc_wake(struct ipc *s) {
    uint64_t one = 1;
    ssize_t written = write(s->wake, &one, sizeof one);
    (void)written; /* full: it is awake */
}

static int32_t job_add(int priority, void *data, ipc_job_fn run) {
    (void)priority;
    struct ipc *s = the;
    if (s->jobs_count == s->jobs_max) {
        uint32_t max = s->jobs_max ? 2 * s->jobs_max : 16;
        struct ipc_job *jobs = realloc(s->jobs, max * sizeof *jobs);
        if (!jobs)
            return -ENOMEM;
        s->jobs = jobs, s->jobs_max = max;
    }
    s->jobs[s->jobs_count++] = (struct ipc_job){run, data};
    ipc_wake(s);
    return 0;
}

static struct ipc_watch *watch_at(struct ipc *s, int fd) {
    return fd >= 0 && (uint32_t)fd < s->watches_max && s->watches[fd].run ? &s->watches[fd] : NULL;
}

/* Tell epoll what a descriptor is watched for: of a paused connection only its end. */
static int watch_set(struct ipc *s, int fd, int operation) {
    const struct ipc_watch *w = &s->watches[fd];
    uint32_t events = (uint32_t)w->events & OWN_EVENTS;
    if (w->paused)
        events &= ~(uint32_t)(EPOLLIN | EPOLLPRI);
    struct epoll_event e = {.events = events, .data.u64 = (uint64_t)w->turn << 32 | (uint32_t)fd};
    return epoll_ctl(s->poll, operation, fd, &e) ? -errno : 0;
}

static enum ipc_whose whose(struct ipc *s, const void *data) {
    return s->starting ? IPC_SERVICE : ipc_connection_of(s, data) ? IPC_CONNECTION : IPC_HANDSHAKE;
}

/* Whoever has been silent for longest makes room. */
static void turn_out(struct ipc *s) {
    struct ipc_watch *oldest = NULL;
    for (uint32_t fd = 0; fd < s->watches_max; fd++) {
        struct ipc_watch *w = &s->watches[fd];
        if (w->run && w->whose == IPC_HANDSHAKE && (!oldest || (int32_t)(w->since - oldest->since) < 0))
            oldest = w;
    }
    if (!oldest)
        return;
    oldest->whose = IPC_TURNED_OUT;
    s->handshakes--;
    shutdown((int)(oldest - s->watches), SHUT_RDWR);
}

static int32_t watch_add(int priority, int32_t fd, int32_t events, void *data, ipc_ready_fn run) {
    (void)priority;
    struct ipc *s = the;
    if (fd < 0)
        return -EBADF;
    if ((uint32_t)fd >= s->watches_max) {
        uint32_t max = (uint32_t)fd + 64;
        struct ipc_watch *watches = realloc(s->watches, max * sizeof *watches);
        if (!watches)
            return -ENOMEM;
        memset(watches + s->watches_max, 0, (max - s->watches_max) * sizeof *watches);
        s->watches = watches, s->watches_max = max;
    }
    struct ipc_watch *w = &s->watches[fd];
    *w = (struct ipc_watch){.run = run, .data = data, .events = events, .turn = w->turn + 1, .whose = whose(s, data)};
    int error = watch_set(s, fd, EPOLL_CTL_ADD);
    if (error) {
        w->run = NULL;
    } else if (w->whose == IPC_HANDSHAKE) {
        w->since = s->handshakes_ever++;
        if (++s->handshakes > HANDSHAKES_MAX)
            turn_out(s);
    }
    return error;
}

static int32_t watch_mod(int priority, int32_t fd, int32_t events, void *data, ipc_ready_fn run) {
    (void)priority;
    struct ipc_watch *w = watch_at(the, fd);
    if (!w)
        return -EBADF;
    w->run = run, w->data = data, w->events = events;
    return watch_set(the, fd, EPOLL_CTL_MOD);
}

static int32_t watch_del(int32_t fd) {
    struct ipc_watch *w = watch_at(the, fd);
    if (!w)
        return -EBADF;
    w->run = NULL;
    if (w->whose == IPC_HANDSHAKE)
        the->handshakes--;
    return epoll_ctl(the->poll, EPOLL_CTL_DEL, fd, NULL) ? -errno : 0;
}

/* A connection's descriptor has its libqb connection as data: the request channel. */
void ipc_watch_pause(struct ipc *s, const void *data, bool paused) {
    for (uint32_t fd = 0; fd < s->watches_max; fd++)
        if (s->watches[fd].run && s->watches[fd].data == data && s->watches[fd].paused != paused) {
            s->watches[fd].paused = paused;
            watch_set(s, (int)fd, EPOLL_CTL_MOD);
        }
}

void ipc_alarm(struct ipc *s) {
    struct itimerspec in = {.it_value.tv_nsec = RETRY_NS};
    timerfd_settime(s->alarm, 0, &in, NULL);
}

/* ---- what has come in */

/* Every connection ends once before the items are cleared, so IPC_CLOSED always has room. */
struct ipc_item *ipc_item_new(struct ipc *s, int kind) {
    if (kind != IPC_CLOSED && s->items_count + IPC_CONNECTIONS_MAX >= s->items_max) {
        uint32_t max = s->items_max ? 2 * s->items_max : 2 * IPC_CONNECTIONS_MAX;
        struct ipc_item *items = realloc(s->items, max * sizeof *items);
        if (!items)
            return NULL;
        s->items = items, s->items_max = max;
    }
    struct ipc_item *item = &s->items[s->items_count++];
    *item = (struct ipc_item){.kind = kind};
    ipc_wake(s);
    return item;
}

uint8_t *ipc_bytes_new(struct ipc *s, uint32_t size) {
    if (s->bytes_count + size > s->bytes_max) {
        uint64_t max = 2 * (s->bytes_count + size);
        uint8_t *bytes = realloc(s->bytes, max);
        if (!bytes)
            return NULL;
        s->bytes = bytes, s->bytes_max = max;
    }
    uint8_t *at = s->bytes + s->bytes_count;
    s->bytes_count += size;
    return at;
}

/* ---- the server */

static int load(struct ipc_qb *qb, const char *library) {
    qb->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!qb->library) {
        snprintf(why, sizeof why, "%s", dlerror());
        return -1;
    }
    struct {
        const char *name;
        void *to;
    } const functions[] = {
        {"qb_ipcs_create", &qb->create},         {"qb_ipcs_destroy", &qb->destroy},
        {"qb_ipcs_run", &qb->run},               {"qb_ipcs_poll_handlers_set", &qb->polls_set},
        {"qb_ipcs_response_send", &qb->respond}, {"qb_ipcs_event_send", &qb->event},
        {"qb_ipcs_event_sendv", &qb->event_of},  {"qb_ipcs_disconnect", &qb->disconnect},
        {"qb_ipcs_service_id_get", &qb->service},
        {"qb_ipcs_context_set", &qb->set},       {"qb_ipcs_context_get", &qb->get},
        {"qb_ipcs_connection_stats_get", &qb->stats}, {"qb_ipcs_connection_get_buffer_size", &qb->buffer_size},
        {"qb_ipcs_request_rate_limit", &qb->rate},
    };
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        void *found = dlsym(qb->library, functions[k].name);
        if (!found) {
            snprintf(why, sizeof why, "%s has no function %s", library, functions[k].name);
            return -1;
        }
        memcpy(functions[k].to, &found, sizeof found);
    }
    return 0;
}

static int watch_own(int poll, int fd, uint64_t mark) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = mark};
    return fd < 0 ? -1 : epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
}

static int timer(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); }

struct ipc *ipc_create(const char *library, uint64_t queue_bytes_max) {
    if (the) {
        snprintf(why, sizeof why, "there is a server in this process already");
        return NULL;
    }
    struct ipc *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(why, sizeof why, "no memory");
        return NULL;
    }
    s->queue_bytes_max = queue_bytes_max;
    s->outer = epoll_create1(EPOLL_CLOEXEC);
    s->poll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->alarm = timer();
    s->pace = timer();
    s->order.watched = -1;
    the = s;
    if (s->outer < 0 || s->poll < 0 || watch_own(s->outer, s->poll, MARK_PROGRAMS) || watch_own(s->outer, s->wake, MARK_WAKE) ||
        watch_own(s->outer, s->alarm, MARK_ALARM) || watch_own(s->outer, s->pace, MARK_PACE)) {
        snprintf(why, sizeof why, "%s", strerror(errno));
        ipc_destroy(s);
        return NULL;
    }
    if (load(&s->qb, library)) {
        ipc_destroy(s);
        return NULL;
    }
    s->hands = ipc_hands;
    s->polls = (struct ipc_polls){job_add, watch_add, watch_mod, watch_del};
    return s;
}

void ipc_destroy(struct ipc *s) {
    ipc_order_close(s);
    ipc_lanes_clear(s, 0);
    for (int k = 0; k < s->services_count; k++)
        s->qb.destroy(s->services[k]);
    for (uint32_t slot = 0; slot < IPC_CONNECTIONS_MAX; slot++)
        ipc_connection_free(s, slot);
    int own[] = {s->outer, s->poll, s->wake, s->alarm, s->pace};
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        if (own[k] >= 0)
            close(own[k]);
    /* libqb stays loaded: it has threads' and process-wide state of its own */
    free(s->jobs), free(s->watches), free(s->items), free(s->bytes), free(s->uids), free(s->gids), free(s->own.bytes);
    the = NULL;
    free(s);
}

int ipc_serve(struct ipc *s, const char *name, int service) {
    if (s->services_count == IPC_SERVICES_MAX)
        return -ENOSPC;
    void *made = s->qb.create(name, service, NATIVE, &s->hands);
    if (!made)
        return -ENOMEM;
    s->qb.polls_set(made, &s->polls);
    s->qb.rate(made, RATE_SLOW);
    s->starting = true;
    int error = s->qb.run(made); /* after an error it has freed the service */
    s->starting = false;
    if (error)
        return error;
    s->services[s->services_count++] = made;
    return 0;
}

static int list_set(uint32_t **list, int *length, const uint32_t *values, int count) {
    uint32_t *copy = malloc(sizeof *copy * (size_t)(count ? count : 1));
    if (!copy)
        return -ENOMEM;
    if (count)
        memcpy(copy, values, sizeof *copy * (size_t)count);
    free(*list);
    *list = copy, *length = count;
    return 0;
}

int ipc_allow(struct ipc *s, const uint32_t *uids, int uids_count, const uint32_t *gids, int gids_count) {
    int error = list_set(&s->uids, &s->uids_count, uids, uids_count);
    return error ? error : list_set(&s->gids, &s->gids_count, gids, gids_count);
}

int ipc_fd(const struct ipc *s) { return s->outer; }

static void run_jobs(struct ipc *s) {
    uint32_t count = s->jobs_count; /* what they add runs in the next turn */
    for (uint32_t k = 0; k < count; k++) {
        struct ipc_job job = s->jobs[k];
        job.run(job.data);
    }
    s->jobs_count -= count;
    if (s->jobs_count)
        memmove(s->jobs, s->jobs + count, s->jobs_count * sizeof *s->jobs);
}

static struct ipc_watch *watch_still(struct ipc *s, int fd, uint32_t turn) {
    struct ipc_watch *w = watch_at(s, fd);
    return w && w->turn == turn ? w : NULL; /* NULL: closed meanwhile, perhaps used again */
}

/* A program writes a request into the shared memory, then a byte to the socket. libqb reads what is in the memory and then waits for
 * as many bytes, however long the program takes for them. Hence one request for each byte that is there already. */
static void serve_program(struct ipc *s, int fd, uint32_t turn, int32_t events) {
    const uint64_t bytes = s->bytes_count, own = s->own.end;
    const uint32_t items = s->items_count;
    for (uint32_t k = 0; k < BATCH_ALL && s->items_count - items < BATCH_REQUESTS; k++) {
        if (s->bytes_count - bytes + s->own.end - own >= BATCH_BYTES)
            return;
        struct ipc_watch *w = watch_still(s, fd, turn);
        int announced = 0;
        if (!w || (k && (w->paused || ioctl(fd, FIONREAD, &announced) || announced <= 0)))
            return;
        const void *c = w->data;
        uint64_t before = s->processed;
        if (w->run(fd, k ? EPOLLIN : events, w->data) < 0)
            watch_del(fd);
        if (!(k || events & EPOLLIN))
            return;
        struct ipc_connection *connection = watch_still(s, fd, turn) ? ipc_connection_of(s, c) : NULL;
        if (connection && s->processed == before)
            ipc_connection_break(s, connection); /* a byte without a request */
        if (!connection || connection->ending)
            return;
    }
}

static void serve_ready(struct ipc *s, const struct epoll_event *e) {
    int fd = (int)(uint32_t)e->data.u64;
    uint32_t turn = (uint32_t)(e->data.u64 >> 32);
    struct ipc_watch *w = watch_still(s, fd, turn);
    if (!w)
        return;
    if (w->whose == IPC_CONNECTION)
        serve_program(s, fd, turn, (int32_t)e->events);
    else if (w->run(fd, (int32_t)e->events, w->data) < 0)
        watch_del(fd);
}

static void serve_programs(struct ipc *s) {
    struct epoll_event ready[EVENTS_MAX];
    int count = epoll_wait(s->poll, ready, EVENTS_MAX, 0), k = 0;
    for (; k < count && s->bytes_count < TURN_BYTES; k++)
        serve_ready(s, &ready[(s->first + (uint32_t)k) % (uint32_t)count]);
    s->first += (uint32_t)k; /* those who are left out come first */
}

/* Read programs, or do not, for PACE_NS at most. */
static void pace(struct ipc *s, bool paced) {
    struct itimerspec in = {.it_value.tv_nsec = paced ? PACE_NS : 0};
    struct epoll_event e = {.events = paced ? 0 : EPOLLIN, .data.u64 = MARK_PROGRAMS};
    timerfd_settime(s->pace, 0, &in, NULL);
    epoll_ctl(s->outer, EPOLL_CTL_MOD, s->poll, &e);
    s->paced = paced;
}

static uint64_t emptied(int fd) {
    uint64_t count = 0;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count ? count : 0;
}

int ipc_turn(struct ipc *s) {
    struct epoll_event ready[5];
    bool flush = false, programs = false;
    int count = epoll_wait(s->outer, ready, (int)(sizeof ready / sizeof *ready), 0);
    for (int k = 0; k < count; k++) {
        uint64_t mark = ready[k].data.u64;
        if (mark == MARK_WAKE)
            emptied(s->wake);
        flush = (mark == MARK_ALARM && emptied(s->alarm)) || flush;
        programs = mark == MARK_PROGRAMS || programs;
        if (mark == MARK_PACE && emptied(s->pace) && s->paced)
            pace(s, false);
    }
    s->said_bytes = 0;
    if (programs && !s->paced)
        serve_programs(s);
    run_jobs(s);
    ipc_end_broken(s);
    if (flush)
        ipc_flush(s);
    ipc_order_turn(s);
    if (s->paced && !s->own.count)
        pace(s, false);
    else if (!s->paced && s->said_bytes && s->said_bytes < PACE_BYTES && s->own.count >= PACE_MESSAGES)
        pace(s, true);
    return (int)s->items_count;
}

const struct ipc_item *ipc_items(const struct ipc *s) { return s->items; }
const uint8_t *ipc_bytes(const struct ipc *s) { return s->bytes; }

void ipc_clear(struct ipc *s) {
    s->items_count = 0;
    s->bytes_count = 0;
    s->clears++;
    s->order.told = false;
    if (s->bytes_max > BYTES_KEPT) {
        free(s->bytes);
        s->bytes = NULL, s->bytes_max = 0;
    }
}
