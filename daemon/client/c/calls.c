/* Calls of programs: joining, sending, asking, waiting for answers. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define VERSION_TEXT "1.0.0"
#define PARTS_MAX 1024
#define SEND_TO_MAX 16u /* handles of one message: GROUPS_MAX of proto/multicast/codec.py */
#define DIRECT_BYTES 65536u /* a message from this size on is written from where it lies, if nothing waits before it */
#define COMMAND_BYTES 64u

const char *zenjun_version(void) { return VERSION_TEXT; }

const char *zenjun_reason(const struct zenjun *z) { return z->reason; }

const struct zenjun_welcome *zenjun_welcome(const struct zenjun *z) { return z->welcomed ? &z->welcome : NULL; }

const struct zenjun_facts *zenjun_facts(struct zenjun *z)
{
    z->facts = (struct zenjun_facts){
        .size = sizeof z->facts,
        .sent = z->sent,
        .unread = z->seen - z->in.from,
        .unwritten = pending(&z->out),
        .instance = z->instance,
        .quorum = z->instance && z->quorum && !z->outside && !z->ended,
        .fenced = z->fenced,
        .ended = z->ended,
    };
    for (int level = 0; level < ZENJUN_LEVELS; level++)
        z->facts.done[level] = zjc_reached(z, z->counts[level]);
    return &z->facts;
}

/* Whether something may be queued: 0, or an error. */
static int may_put(const struct zenjun *z)
{
    if (z->ended)
        return z->ended;
    return z->welcomed && !z->deaf && pending(&z->out) < z->output_max ? 0 : ZENJUN_E_AGAIN;
}

/* ---- requests */

/* Queue a request. handle: of the join that it stands behind, 0: none. */
static int ask(struct zenjun *z, unsigned kind, const void *body, size_t size, uint32_t handle, uint32_t *id)
{
    uint8_t head[DP_REQUEST] = {0};
    const struct iovec parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)body, size}};
    int at = 0, error = zjc_usable(z);

    error = error ? error : may_put(z);
    if (error)
        return error;
    while (at < (int)DP_REQUESTS_MAX && z->requests[at].used)
        at++;
    if (at == (int)DP_REQUESTS_MAX)
        return ZENJUN_E_AGAIN;
    do
        z->last_id++;
    while (!z->last_id || zjc_request(z, z->last_id) >= 0);
    put_le(head + DP_REQUEST_ID, 4, z->last_id);
    put_le(head + DP_REQUEST_KIND, 2, kind);
    error = zjc_put(z, DP_F_REQUEST, 0, 0, parts, 2);
    if (error)
        return error;
    z->requests[at] = (struct request){.id = z->last_id, .kind = (uint16_t)kind, .handle = (uint16_t)handle, .used = 1};
    if (id)
        *id = z->last_id;
    return 0;
}

int zenjun_status(struct zenjun *z, uint32_t *id) { return ask(z, DP_K_STATUS, NULL, 0, 0, id); }

int zenjun_stations(struct zenjun *z, uint32_t *id) { return ask(z, DP_K_MEMBERS, NULL, 0, 0, id); }

static int is_name(const char *group)
{
    const size_t size = group ? strlen(group) : 0;

    return size >= 1 && size <= DP_GROUP_NAME_MAX;
}

int zenjun_members(struct zenjun *z, const char *group, uint32_t *id)
{
    return is_name(group) ? ask(z, DP_K_MEMBERS, group, strlen(group), 0, id) : ZENJUN_E_NAME;
}

int zenjun_expel(struct zenjun *z, uint32_t station, uint32_t *id)
{
    char text[COMMAND_BYTES];
    const int size = snprintf(text, sizeof text, "{\"command\": \"expel\", \"station\": %u}", (unsigned)station);

    return ask(z, DP_K_ADMIN, text, (size_t)size, 0, id);
}

int zenjun_leave_cluster(struct zenjun *z, uint32_t *id)
{
    static const char text[] = "{\"command\": \"leave\"}";

    return ask(z, DP_K_ADMIN, text, sizeof text - 1u, 0, id);
}

/* ---- groups */

static uint32_t new_handle(struct zenjun *z)
{
    /* Rising, so that frames still under way for a group just left do not meet a new one of the same handle. */
    for (uint32_t i = 0; i < ZENJUN_HANDLES_MAX; i++) {
        z->last_handle = z->last_handle % ZENJUN_HANDLES_MAX + 1u;
        if (z->handles[z->last_handle].state == HANDLE_FREE)
            return z->last_handle;
    }
    return 0;
}

int zenjun_join(struct zenjun *z, const char *group, int level, int order, unsigned flags, void *context, uint32_t *handle)
{
    uint8_t head[DP_JOIN] = {0};
    struct iovec parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)group, 0}};
    int error = zjc_usable(z);
    uint32_t number;

    *handle = 0;
    error = error ? error : may_put(z);
    if (error)
        return error;
    if (!is_name(group))
        return ZENJUN_E_NAME;
    if (order < ZENJUN_ORDER_TOTAL || order > ZENJUN_ORDER_TOKEN || flags & ~(JOIN_FLAGS | (unsigned)ZENJUN_DISCARD))
        return ZENJUN_E_INVALID;
    if (level == ZENJUN_DEFAULT)
        level = order == ZENJUN_ORDER_OP                 ? ZENJUN_ORDERED
                : strcmp(z->welcome.medium, "bus") == 0 ? ZENJUN_ACK
                                                         : ZENJUN_PREACK;
    if (level < 0 || level >= ZENJUN_LEVELS || (order == ZENJUN_ORDER_OP && level != ZENJUN_ORDERED) ||
        (order > ZENJUN_ORDER_OP && level == ZENJUN_ACK))
        return ZENJUN_E_LEVEL;
    number = new_handle(z);
    if (!number)
        return ZENJUN_E_HANDLES;
    head[DP_JOIN_ORDERING] = (uint8_t)order;
    parts[1].iov_len = strlen(group);
    if (flags & ZENJUN_SEND_ONLY) { /* room for both, or for none */
        int used = 0;

        for (unsigned i = 0; i < DP_REQUESTS_MAX; i++)
            used += z->requests[i].used;
        if (used == (int)DP_REQUESTS_MAX || zjc_room(&z->out, 2u * (DP_HEADER + sizeof head + DP_REQUEST + DP_GROUP_NAME_MAX)))
            return used == (int)DP_REQUESTS_MAX ? ZENJUN_E_AGAIN : ZENJUN_E_NO_MEMORY;
    }
    error = zjc_put(z, DP_F_JOIN, (flags & JOIN_FLAGS) | (unsigned)level, number, parts, 2);
    if (error)
        return error;
    z->handles[number] = (struct handle){
        .context = context,
        .state = HANDLE_JOINING,
        .send_only = (flags & ZENJUN_SEND_ONLY) != 0,
        .discard = (flags & ZENJUN_DISCARD) != 0,
    };
    *handle = number;
    /* A handle that only sends gets no view: it is there when what stands behind the JOIN is answered. may_put() was asked for both. */
    if (flags & ZENJUN_SEND_ONLY) {
        const uint64_t limit = z->output_max;

        z->output_max = UINT64_MAX;
        error = ask(z, DP_K_MEMBERS, group, strlen(group), number, NULL);
        z->output_max = limit;
    }
    return error;
}

static struct handle *usable_handle(struct zenjun *z, uint32_t handle)
{
    struct handle *h = handle < HANDLES ? &z->handles[handle] : NULL;

    return h && (h->state == HANDLE_JOINING || h->state == HANDLE_JOINED) ? h : NULL;
}

int zenjun_leave(struct zenjun *z, uint32_t handle)
{
    struct handle *h = usable_handle(z, handle);
    int error = zjc_usable(z);

    if (error)
        return error;
    if (!h)
        return ZENJUN_E_BAD_HANDLE;
    error = zjc_put(z, DP_F_LEAVE, 0, handle, NULL, 0);
    if (error)
        return error;
    if (h->send_only || !z->instance)
        memset(h, 0, sizeof *h);
    else
        h->state = HANDLE_LEAVING;
    return 0;
}

int zenjun_wait_joined(struct zenjun *z, uint32_t handle, int ms)
{
    int64_t end = zjc_until(ms);

    if (handle >= HANDLES || z->handles[handle].state == HANDLE_FREE)
        return ZENJUN_E_BAD_HANDLE;
    if (zjc_forked(z))
        return ZENJUN_E_FORKED;
    for (;;) {
        const struct handle *h = &z->handles[handle];
        int error;

        if (h->state == HANDLE_JOINED)
            return 0;
        if (h->state != HANDLE_JOINING)
            return h->error ? h->error : ZENJUN_E_BAD_HANDLE;
        error = z->ended ? z->ended : zjc_turn(z, &end, 1);
        if (error)
            return error;
    }
}

/* ---- sending */

/* Write a large message from where it lies, as far as the socket takes it; what is left is queued. */
static int send_direct(struct zenjun *z, unsigned type, unsigned flags, uint32_t handle, const struct iovec *parts, int n, size_t size)
{
    uint8_t header[DP_HEADER];
    struct iovec all[PARTS_MAX + 1]; /* parts: PARTS_MAX at most, with the list of handles */
    struct msghdr m = {.msg_iov = all, .msg_iovlen = (size_t)n + 1u};
    ssize_t put;
    size_t passed;

    if (zjc_room(&z->out, sizeof header + size)) /* first, for a frame that has begun must be ended */
        return ZENJUN_E_NO_MEMORY;
    put_le(header + DP_HEADER_SIZE, 4, size);
    header[DP_HEADER_TYPE] = (uint8_t)type;
    header[DP_HEADER_FLAGS] = (uint8_t)flags;
    put_le(header + DP_HEADER_HANDLE, 2, handle);
    all[0] = (struct iovec){header, sizeof header};
    memcpy(all + 1, parts, (size_t)n * sizeof *parts);
    put = sendmsg(z->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    passed = put > 0 ? (size_t)put : 0; /* an error shows again when the rest is written */
    for (int i = 0; i <= n; i++) {
        const size_t skip = passed < all[i].iov_len ? passed : all[i].iov_len;

        passed -= skip;
        if (all[i].iov_len > skip) {
            memcpy(z->out.bytes + z->out.to, (const uint8_t *)all[i].iov_base + skip, all[i].iov_len - skip);
            z->out.to += all[i].iov_len - skip;
        }
    }
    return 0;
}

/* Queue a message to the group of `handle`, or to those of a list in front of the parts, `listed` bytes long, with handle 0. */
static int queue(struct zenjun *z, uint32_t handle, const struct iovec *parts, int n, size_t listed, int level, uint64_t *number)
{
    const unsigned type = listed ? DP_F_SEND_TO : DP_F_SEND;
    const unsigned flags = level < 0 ? 0u : (unsigned)level | DP_SEND_NOTIFY;
    uint64_t size = 0;
    int error = zjc_forked(z) ? ZENJUN_E_FORKED : may_put(z);

    if (error == ZENJUN_E_AGAIN && z->welcomed) { /* perhaps the socket takes some by now */
        error = zjc_usable(z);
        if (!error)
            zjc_flush(z);
        error = error ? error : may_put(z);
    }
    if (error)
        return error;
    if (n < 0 || n > PARTS_MAX || level < ZENJUN_SENT || level >= ZENJUN_LEVELS)
        return ZENJUN_E_INVALID;
    if (z->fenced)
        return ZENJUN_E_FENCED;
    if (!listed && !usable_handle(z, handle))
        return ZENJUN_E_BAD_HANDLE;
    for (int i = 0; i < n; i++) {
        if (parts[i].iov_len > z->welcome.message_max)
            return ZENJUN_E_TOO_LARGE;
        size += parts[i].iov_len;
    }
    if (size - listed > z->welcome.message_max)
        return ZENJUN_E_TOO_LARGE;
    if (size >= DIRECT_BYTES && !pending(&z->out) && !(error = zjc_usable(z)))
        error = send_direct(z, type, flags, handle, parts, n, (size_t)size);
    else if (!error)
        error = zjc_put(z, type, flags, handle, parts, n);
    if (error)
        return error;
    z->sent++;
    if (number)
        *number = z->sent;
    return 0;
}

int zenjun_send(struct zenjun *z, uint32_t handle, const struct iovec *parts, int n, int level, uint64_t *number)
{
    return queue(z, handle, parts, n, 0, level, number);
}

int zenjun_send_to(struct zenjun *z, const uint32_t *handles, int count, const struct iovec *parts, int n, int level, uint64_t *number)
{
    uint8_t list[DP_SEND_TO + 2u * SEND_TO_MAX];
    struct iovec all[PARTS_MAX];
    const int error = zjc_usable(z);

    if (error)
        return error;
    if (!z->welcomed)
        return ZENJUN_E_AGAIN;
    if (!(z->orders >> ZENJUN_ORDER_TOKEN & 1u)) /* the daemon does not know the frame, and would close the connection */
        return ZENJUN_E_GROUPS;
    if (count < 1 || count > (int)SEND_TO_MAX || n < 0 || n >= PARTS_MAX)
        return ZENJUN_E_INVALID;
    put_le(list + DP_SEND_TO_COUNT, 2, (unsigned)count);
    for (int i = 0; i < count; i++) {
        if (!usable_handle(z, handles[i]))
            return ZENJUN_E_BAD_HANDLE;
        put_le(list + DP_SEND_TO + 2 * i, 2, handles[i]);
    }
    all[0] = (struct iovec){list, DP_SEND_TO + 2u * (unsigned)count};
    if (n)
        memcpy(all + 1, parts, (size_t)n * sizeof *parts);
    return queue(z, 0, all, n + 1, all[0].iov_len, level, number);
}

/* What is known of a message: 1 it has reached the level, 0 nothing yet, or its error. */
static int fate(const struct zenjun *z, uint64_t number, int level)
{
    for (size_t i = 0; i < z->refused_count && z->refused[i].first <= number; i++)
        if (number <= z->refused[i].last)
            return z->refused[i].error;
    if (level == ZENJUN_SENT)
        return !pending(&z->out) && !z->deaf;
    for (size_t i = 0; i < z->lost_count; i++)
        if (number >= z->lost[i].from[level] && number < z->lost[i].end)
            return ZENJUN_E_UNDECIDED;
    return zjc_reached(z, z->counts[level]) >= number;
}

int zenjun_wait_sent(struct zenjun *z, uint64_t number, int level, int ms)
{
    int64_t end = zjc_until(ms);

    if (number < 1 || number > z->sent || level < ZENJUN_SENT || level >= ZENJUN_LEVELS)
        return ZENJUN_E_INVALID;
    if (zjc_forked(z))
        return ZENJUN_E_FORKED;
    for (;;) {
        int error = fate(z, number, level);

        if (error)
            return error > 0 ? 0 : error;
        if (z->ended)
            return z->ended;
        if (z->fenced && level != ZENJUN_SENT)
            return ZENJUN_E_FENCED;
        error = zjc_turn(z, &end, 1);
        if (error)
            return error;
    }
}

/* ---- waiting for items */

int zenjun_wait(struct zenjun *z, int ms)
{
    const int welcomed = z->welcomed;
    int64_t end = zjc_until(ms);

    if (zjc_forked(z))
        return ZENJUN_E_FORKED;
    for (;;) {
        int error;

        while (z->in.from < z->seen && !zjc_is_item(z, z->in.bytes + z->in.from))
            z->in.from += DP_HEADER + frame_size(z->in.bytes + z->in.from);
        if (z->in.from < z->seen || z->welcomed != welcomed)
            return 0;
        error = z->ended ? z->ended : zjc_turn(z, &end, 0);
        if (error)
            return error;
    }
}

int zenjun_recv(struct zenjun *z, const struct zenjun_item **item, int ms)
{
    int64_t end = zjc_until(ms);

    for (;;) {
        int error = zenjun_next(z, item);

        if (error)
            return error > 0 ? 0 : error;
        error = zjc_turn(z, &end, 0);
        if (error)
            return error;
    }
}
