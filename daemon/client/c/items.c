/* Items: made of frames when they are taken. */
#include "internal.h"

#include <string.h>

static void release(struct handle *h) { memset(h, 0, sizeof *h); }

static void message(struct zenjun *z, const uint8_t *p, uint32_t size)
{
    const uint8_t *body = p + DP_HEADER;
    struct zenjun_item *item = &z->item;

    item->kind = ZENJUN_MESSAGE;
    item->data = body + DP_MESSAGE;
    item->length = size - DP_MESSAGE;
    item->place.clock = get_le(body + DP_MESSAGE_CLOCK, 8);
    item->place.index = (uint32_t)get_le(body + DP_MESSAGE_INDEX, 2);
    item->place.station = body[DP_MESSAGE_STATION];
    item->client = (uint32_t)get_le(body + DP_MESSAGE_CLIENT, 2);
    item->own = (p[DP_HEADER_FLAGS] & DP_MESSAGE_OWN) != 0;
}

/* 1: it is an item; 0: nobody's; or an error. So are those below. */
static int view(struct zenjun *z, const uint8_t *body, uint32_t size)
{
    struct handle *h = &z->handles[z->item.handle];
    struct zenjun_view *v = &z->parts.view;
    int error = zjc_decode_view(v, z, &z->arena, body, size), discard = h->discard;

    if (error || h->state == HANDLE_FREE)
        return error;
    if (!v->here)
        release(h);
    else if (!h->entered && !zjc_has_self(z, v->members, v->members_count))
        return 0; /* a former membership's, with the same handle */
    else
        h->entered = 1;
    z->item.kind = ZENJUN_VIEW;
    z->item.view = v;
    return !discard;
}

static int event(struct zenjun *z, const uint8_t *body, uint32_t size)
{
    struct zenjun_event *e = &z->parts.event;
    int error = zjc_decode_event(e, &z->arena, body, size);

    if (error)
        return error;
    if (e->undecided_first)
        e->undecided_first = zjc_number(z, e->undecided_first);
    if (e->type == ZENJUN_EVENT_OPEN || e->type == ZENJUN_EVENT_REOPENED)
        for (uint32_t i = 1; i < HANDLES; i++)
            if (z->handles[i].forgotten)
                release(&z->handles[i]);
    z->item.kind = ZENJUN_EVENT;
    z->item.event = e;
    return 1;
}

static int refusal(struct zenjun *z, const uint8_t *p, uint32_t size)
{
    struct zenjun_refusal *r = &z->parts.refusal;
    uint32_t handle = z->item.handle;
    int error;

    if (p[DP_HEADER_FLAGS] & DP_ERROR_CLOSES)
        return 0;
    error = zjc_decode_error(r, &handle, &z->arena, p + DP_HEADER, size);
    if (error)
        return error;
    z->item.kind = ZENJUN_REFUSED;
    z->item.refusal = r;
    z->item.handle = handle;
    z->item.context = handle < HANDLES ? z->handles[handle].context : NULL;
    if (handle < HANDLES && z->handles[handle].error && z->handles[handle].state == HANDLE_GONE && !r->number)
        release(&z->handles[handle]);
    return 1;
}

static int reply(struct zenjun *z, const uint8_t *body, uint32_t size)
{
    struct zenjun_reply *r = &z->parts.reply;
    const int at = zjc_request(z, (uint32_t)get_le(body + DP_REPLY_ID, 4));
    const struct request asked = at < 0 ? (struct request){0} : z->requests[at];
    int error;

    if (at < 0)
        return ZENJUN_E_PROTOCOL;
    z->requests[at].used = 0;
    if (asked.handle) {
        struct handle *h = &z->handles[asked.handle];

        if (!h->send_only || h->state != HANDLE_JOINED)
            return 0;
        h->entered = 1;
        z->item.kind = ZENJUN_READY;
        z->item.handle = asked.handle;
        z->item.context = h->context;
        return 1;
    }
    error = zjc_decode_reply(r, asked.kind, &z->arena, body, size);
    z->item.kind = ZENJUN_REPLY;
    z->item.reply = r;
    return error ? error : 1;
}

static int control(struct zenjun *z, const uint8_t *p, uint32_t size)
{
    const uint8_t *body = p + DP_HEADER;

    zjc_reset(&z->arena);
    switch (p[DP_HEADER_TYPE]) {
    case DP_F_VIEW: return view(z, body, size);
    case DP_F_EVENT: return event(z, body, size);
    case DP_F_ERROR: return refusal(z, p, size);
    case DP_F_REPLY: return reply(z, body, size);
    case DP_F_DONE:
        z->item.kind = ZENJUN_DONE;
        for (unsigned level = 0; level < ZENJUN_LEVELS; level++)
            z->item.done[level] = zjc_reached(z, get_le(body + 8u * level, 8));
        return 1;
    default: return 0;
    }
}

int zenjun_next(struct zenjun *z, const struct zenjun_item **item)
{
    *item = NULL;
    if (zjc_forked(z))
        return ZENJUN_E_FORKED;
    while (z->in.from < z->seen) {
        const uint8_t *p = z->in.bytes + z->in.from;
        const uint32_t size = frame_size(p), handle = frame_handle(p);
        const struct handle *h = &z->handles[handle];
        int found;

        z->in.from += DP_HEADER + size;
        if (p[DP_HEADER_TYPE] != DP_F_MESSAGE || z->item.kind != ZENJUN_MESSAGE) /* messages have the same fields */
            memset(&z->item, 0, sizeof z->item);
        z->item.size = sizeof z->item;
        z->item.handle = handle;
        z->item.context = h->context;
        if (p[DP_HEADER_TYPE] == DP_F_MESSAGE) {
            found = h->entered && !h->discard;
            if (found)
                message(z, p, size);
        } else {
            found = control(z, p, size);
        }
        if (found < 0) { /* it could be read when it arrived: there is no memory now */
            zjc_end(z, found, NULL);
            z->in.from = z->seen;
            break;
        }
        if (found) {
            *item = &z->item;
            return 1;
        }
    }
    return z->ended;
}
