/* What arrives, frame by frame: what it means for the connection. Items are made of the same frames later, when they are taken
 * (items.c), so that a program can wait for an answer while messages before it are unread. */
#include "internal.h"

#include <stdlib.h>

/* ---- numbers of messages
 *
 * The daemon counts the messages that it has not refused. A program's numbers count its SENDs, and stay what they are. */

uint64_t zjc_number(const struct zenjun *z, uint64_t count)
{
    uint64_t number = count;

    for (size_t i = 0; i < z->refused_count && z->refused[i].first <= number; i++)
        number += z->refused[i].last - z->refused[i].first + 1u;
    return count ? number : 0;
}

uint64_t zjc_reached(const struct zenjun *z, uint64_t count)
{
    const uint64_t number = zjc_number(z, count);

    return number < z->sent ? number : z->sent;
}

/* Room for one more element. 0, NO_MEMORY. */
static int grow(void **array, size_t each, size_t count, size_t *size)
{
    void *fresh;
    size_t wanted;

    if (count < *size)
        return 0;
    wanted = *size ? 2u * *size : 16u;
    fresh = realloc(*array, wanted * each);
    if (!fresh)
        return ZENJUN_E_NO_MEMORY;
    *array = fresh;
    *size = wanted;
    return 0;
}

static int on_refused(struct zenjun *z, uint64_t number, int error)
{
    struct refused *last = z->refused_count ? &z->refused[z->refused_count - 1u] : NULL;

    if (number < 1 || number > z->sent || (last && number <= last->last))
        return ZENJUN_E_PROTOCOL; /* the daemon reads a program's messages in their order */
    if (last && last->error == error && last->last + 1u == number) {
        last->last = number;
        return 0;
    }
    if (grow((void **)&z->refused, sizeof *z->refused, z->refused_count, &z->refused_size))
        return ZENJUN_E_NO_MEMORY;
    z->refused[z->refused_count++] = (struct refused){number, number, error};
    return 0;
}

static int on_reopened(struct zenjun *z, const struct zenjun_event *e)
{
    const uint64_t first = e->undecided_first ? e->undecided_first : z->counts[1] + 1u;
    struct lost lost;

    if (first > z->sent + 1u || e->undecided > z->sent + 1u - first)
        return ZENJUN_E_PROTOCOL;
    lost.end = zjc_number(z, first + e->undecided);
    for (int level = 0; level < ZENJUN_LEVELS; level++) {
        const uint64_t next = z->counts[level] + 1u;

        lost.from[level] = zjc_number(z, level == ZENJUN_ACK || next > first ? next : first);
        /* what belonged to the former instance counts as done from here on */
        if (z->counts[level] < first + e->undecided - 1u)
            z->counts[level] = first + e->undecided - 1u;
    }
    if (lost.from[ZENJUN_ACK] >= lost.end && lost.from[ZENJUN_PREACK] >= lost.end)
        return 0;
    if (grow((void **)&z->lost, sizeof *z->lost, z->lost_count, &z->lost_size))
        return ZENJUN_E_NO_MEMORY;
    z->lost[z->lost_count++] = lost;
    return 0;
}

static int on_done(struct zenjun *z, const uint8_t *body, size_t size)
{
    if (size < DP_DONE)
        return ZENJUN_E_PROTOCOL;
    for (unsigned level = 0; level < ZENJUN_LEVELS; level++) {
        const uint64_t count = get_le(body + 8u * level, 8);

        if (count > z->sent || zjc_number(z, count) > z->sent)
            return ZENJUN_E_PROTOCOL;
        if (count > z->counts[level])
            z->counts[level] = count;
    }
    return 0;
}

/* ---- state of the connection */

static int on_welcome(struct zenjun *z, const uint8_t *body, size_t size)
{
    int error;

    if (z->welcomed)
        return ZENJUN_E_PROTOCOL;
    error = zjc_decode_welcome(&z->welcome, &z->orders, &z->kept, body, size);
    if (error)
        return error;
    if (z->welcome.version != DP_VERSION)
        return ZENJUN_E_PROTOCOL; /* no other was offered */
    z->instance = z->welcome.instance;
    z->welcomed = 1;
    return 0;
}

static int on_view(struct zenjun *z, uint32_t handle, const uint8_t *body, size_t size)
{
    struct handle *h = &z->handles[handle];
    struct zenjun_view *v = &z->arriving.view;
    int error;

    if (!z->welcomed)
        return ZENJUN_E_PROTOCOL;
    error = zjc_decode_view(v, z, &z->scratch, body, size);
    if (error || h->state == HANDLE_FREE || h->state == HANDLE_GONE)
        return error;
    if (!v->here)
        h->state = HANDLE_GONE;
    else if (h->state == HANDLE_JOINING && zjc_has_self(z, v->members, v->members_count))
        h->state = HANDLE_JOINED;
    return 0;
}

static int on_event(struct zenjun *z, const uint8_t *body, size_t size)
{
    struct zenjun_event *e = &z->arriving.event;
    int error = zjc_decode_event(e, &z->scratch, body, size);

    if (error)
        return error;
    switch (e->type) {
    case ZENJUN_EVENT_BLOCKED: z->quorum = e->quorum; break;
    case ZENJUN_EVENT_UNBLOCKED: z->quorum = 1; break;
    case ZENJUN_EVENT_VIEW: z->instance = e->instance; break;
    case ZENJUN_EVENT_CLOSED:
    case ZENJUN_EVENT_EXPELLED: z->outside = 1; break;
    case ZENJUN_EVENT_OPEN:
    case ZENJUN_EVENT_REOPENED:
        z->quorum = 1;
        z->outside = 0;
        z->instance = e->instance;
        /* The daemon joins the groups again by itself; what was being left is forgotten with the instance. */
        for (uint32_t i = 1; i < HANDLES; i++)
            if (z->handles[i].state == HANDLE_LEAVING) {
                z->handles[i].state = HANDLE_GONE;
                z->handles[i].forgotten = 1;
            }
        return e->type == ZENJUN_EVENT_REOPENED ? on_reopened(z, e) : 0;
    case ZENJUN_EVENT_FENCED: z->fenced = 1; break;
    case ZENJUN_EVENT_CLOSING: z->fatal = z->fatal ? z->fatal : ZENJUN_E_CLOSING; break;
    default: break;
    }
    return 0;
}

static int is_refused_join(const struct handle *h)
{
    return h->state == HANDLE_JOINING || (h->state == HANDLE_LEAVING && !h->entered);
}

static int on_error(struct zenjun *z, unsigned flags, uint32_t handle, const uint8_t *body, size_t size)
{
    struct zenjun_refusal *r = &z->arriving.refusal;
    int error = zjc_decode_error(r, &handle, &z->scratch, body, size);

    if (error)
        return error;
    if (flags & DP_ERROR_CLOSES) {
        z->fatal = r->error;
        zjc_say(z, r->message);
        if (!z->welcomed)
            zjc_end(z, r->error, NULL);
        return 0;
    }
    if (handle < HANDLES && !r->number && is_refused_join(&z->handles[handle])) {
        struct handle *h = &z->handles[handle];

        /* Behind the refusal of a join that was left comes that of the LEAVE, which finds no group. */
        if (h->state == HANDLE_JOINING || h->error)
            h->state = HANDLE_GONE;
        h->error = h->error ? h->error : r->error;
    } else if (r->number) {
        return on_refused(z, r->number, r->error);
    }
    return 0;
}

int zjc_request(const struct zenjun *z, uint32_t id)
{
    for (int i = 0; i < (int)DP_REQUESTS_MAX; i++)
        if (z->requests[i].used && z->requests[i].id == id)
            return i;
    return -1;
}

static int on_reply(struct zenjun *z, const uint8_t *body, size_t size)
{
    struct request *asked;
    int error, at;

    if (size < DP_REPLY)
        return ZENJUN_E_PROTOCOL;
    at = zjc_request(z, (uint32_t)get_le(body + DP_REPLY_ID, 4));
    if (at < 0 || z->requests[at].answered)
        return ZENJUN_E_PROTOCOL;
    asked = &z->requests[at];
    error = zjc_decode_reply(&z->arriving.reply, asked->kind, &z->scratch, body, size);
    if (error)
        return error;
    asked->answered = 1;
    if (asked->handle && z->handles[asked->handle].state == HANDLE_JOINING)
        z->handles[asked->handle].state = HANDLE_JOINED; /* an ERROR would have come before */
    return 0;
}

/* One frame but a MESSAGE. */
static int on_frame(struct zenjun *z, const uint8_t *p, uint32_t size)
{
    const uint8_t *body = p + DP_HEADER;
    const uint32_t handle = frame_handle(p);

    zjc_reset(&z->scratch);
    if (handle >= HANDLES)
        return ZENJUN_E_PROTOCOL;
    switch (p[DP_HEADER_TYPE]) {
    case DP_F_WELCOME: return on_welcome(z, body, size);
    case DP_F_VIEW: return on_view(z, handle, body, size);
    case DP_F_EVENT: return on_event(z, body, size);
    case DP_F_DONE: return on_done(z, body, size);
    case DP_F_ERROR: return on_error(z, p[DP_HEADER_FLAGS], handle, body, size);
    case DP_F_REPLY: return on_reply(z, body, size);
    default: return ZENJUN_E_PROTOCOL;
    }
}

int zjc_is_item(const struct zenjun *z, const uint8_t *p)
{
    const struct handle *h = &z->handles[frame_handle(p)];

    switch (p[DP_HEADER_TYPE]) {
    case DP_F_MESSAGE: return h->entered && !h->discard;
    case DP_F_VIEW: return h->state != HANDLE_FREE;
    case DP_F_ERROR: return !(p[DP_HEADER_FLAGS] & DP_ERROR_CLOSES);
    case DP_F_WELCOME: return 0;
    default: return 1;
    }
}

void zjc_arrive(struct zenjun *z)
{
    while (!z->ended) {
        const uint8_t *p = z->in.bytes + z->seen;
        const size_t have = z->in.to - z->seen;
        uint32_t size;
        int error;

        z->need = DP_HEADER;
        if (have < DP_HEADER)
            return;
        size = frame_size(p);
        if (size > DP_FRAME_MAX) {
            zjc_end(z, ZENJUN_E_PROTOCOL, "the daemon announced a frame above the limit");
            return;
        }
        z->need = DP_HEADER + size;
        if (have < z->need)
            return;
        if (p[DP_HEADER_TYPE] == DP_F_MESSAGE)
            error = size < DP_MESSAGE || frame_handle(p) >= HANDLES ? ZENJUN_E_PROTOCOL : 0;
        else
            error = on_frame(z, p, size);
        if (error) {
            zjc_end(z, error, error == ZENJUN_E_PROTOCOL ? "the daemon sent a frame that cannot be read" : NULL);
            return;
        }
        /* What nobody will take does not stay. */
        if (z->in.from == z->seen && (z->closing || !zjc_is_item(z, p)))
            z->in.from += z->need;
        z->seen += z->need;
    }
}
