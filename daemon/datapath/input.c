/* Input: reading clients in bulk, parsing, offering to the core.
 *
 * A client's frames keep their order. SENDs go to the core in turns with the other clients'; any other frame waits at the head
 * of the input until Python has taken it, and what follows it waits too. A SEND that the core refuses for now stays at the head
 * and the socket is not read further: that is the back-pressure.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>

void clients_event(struct dp *d, uint32_t slot, uint32_t events)
{
    struct dp_client *c = &d->clients[slot];
    if (!c->used || c->fd < 0)
        return;
    if (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
        c->hung_up = 1;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP | EPOLLERR)) {
        c->can_read = 1;
        if (!c->closing && !c->end)
            set_add(&d->work, slot);
    }
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
        c->can_write = 1;
        if (queue_writable(&c->q) || c->closing)
            set_add(&d->dirty, slot);
    }
}

/* A large message has gone: give its memory back. Not where it is consumed, for dp_take's data lies there until the next turn. */
static void input_shrink(struct dp_client *c)
{
    if (c->in_cap == DP_INPUT_BYTES || c->in_start < c->in_end)
        return;
    if (mremap(c->in, c->in_cap, DP_INPUT_BYTES, 0) != MAP_FAILED)
        c->in_cap = DP_INPUT_BYTES;
}

/* 1: with an input of this size the programs of the client's user would hold too much unfinished. */
static int beyond_user(const struct dp *d, const struct dp_client *c, uint64_t cap)
{
    if (!c->bounded || !d->user_input_max)
        return 0;
    uint64_t all = cap - c->in_cap; /* what each connection has at least is bounded by their number */
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used && d->clients[i].bounded && d->clients[i].user == c->user)
            all += d->clients[i].in_cap - min64(d->clients[i].in_cap, DP_INPUT_BYTES);
    return all > d->user_input_max;
}

/* Make room for `need` bytes from in_start on, and for a read worth its system call. -EDQUOT: its user has too much. */
static int input_room(const struct dp *d, struct dp_client *c, uint32_t need)
{
    const uint32_t have = c->in_end - c->in_start;
    if (c->in_start && (c->in_cap - c->in_start < need || c->in_cap - c->in_end < c->in_cap / 4)) {
        memmove(c->in, c->in + c->in_start, have);
        c->in_start = 0;
        c->in_end = have;
    }
    if (c->in_cap >= need)
        return 0;
    const uint32_t cap = (need + 4095u) & ~4095u;
    if (beyond_user(d, c, cap))
        return -EDQUOT;
    uint8_t *in = mremap(c->in, c->in_cap, cap, MREMAP_MAYMOVE);
    if (in == MAP_FAILED)
        return -ENOMEM;
    c->in = in;
    c->in_cap = cap;
    return 0;
}

/* 0: there is no room for so many bytes, and the client has been cut off for it. */
static int has_room(struct dp *d, struct dp_client *c, uint32_t need)
{
    const int error = input_room(d, c, need);
    if (error == -EDQUOT)
        client_many(d, c, "clients.input_bytes_per_user");
    else if (error)
        client_no_memory(d, c);
    return !error;
}

/* 1: something came; 0: nothing now, or the end. */
static int input_read(struct dp *d, struct dp_client *c)
{
    if (!c->can_read || c->eof)
        return 0;
    for (;;) {
        const uint32_t room = c->in_cap - c->in_end;
        const ssize_t n = recv(c->fd, c->in + c->in_end, room, MSG_DONTWAIT);
        d->counters.client_reads++;
        if (n > 0) {
            c->in_end += (uint32_t)n;
            d->counters.client_bytes_in += (uint64_t)n;
            if ((uint32_t)n < room && !c->hung_up)
                c->can_read = 0; /* an edge will tell of more */
            return 1;
        }
        if (n == 0) {
            c->eof = 1;
            return 0;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN) {
            c->can_read = 0;
            return 0;
        }
        if (errno == ECONNRESET && !c->hung_up) {
            c->hung_up = 1; /* it closed with our frames unread; what it sent before can still be read */
            continue;
        }
        c->eof = 1;
        c->end_error = errno == ECONNRESET ? 0 : -errno;
        return 0;
    }
}

#define SEND_TO_LIST (DP_SEND_TO + 2u * 16u) /* bytes of the longest list of handles */

enum head { HEAD_NONE, HEAD_PART, HEAD_SEND, HEAD_WAIT, HEAD_OVERLAP, HEAD_CONTROL, HEAD_REFUSED, HEAD_BAD };

/* Refused by its header alone: the body is never collected. */
static enum head refuse_head(struct dp *d, struct dp_client *c, const char *code, const char *text, uint16_t handle, uint32_t size)
{
    client_refuse(d, c, code, text, handle);
    c->skip = size;
    input_consume(c, DP_HEADER);
    return HEAD_REFUSED;
}

/* What stands at the head of the input; takes a refused frame off. *size: body bytes. */
static enum head input_head(struct dp *d, struct dp_client *c, uint32_t *size)
{
    for (;;) {
        const uint32_t have = c->in_end - c->in_start;
        if (c->skip) {
            const uint32_t run = c->skip < have ? c->skip : have;
            c->skip -= run;
            input_consume(c, run);
            if (c->skip)
                return HEAD_NONE;
            continue;
        }
        if (have < DP_HEADER)
            return HEAD_PART;
        const uint8_t *p = c->in + c->in_start;
        const uint8_t type = frame_type(p), flags = frame_flags(p);
        const uint16_t handle = frame_handle(p);
        *size = frame_size(p);
        if (*size > DP_FRAME_MAX || (!is_message(type) && *size > DP_CONTROL_MAX))
            return HEAD_BAD;
        if (type == DP_F_SEND_TO) {
            if ((flags & DP_LEVEL) >= ZJ_LEVELS)
                return HEAD_BAD;
            if (*size > d->cfg.message_max + SEND_TO_LIST) {
                char text[96];
                snprintf(text, sizeof text, "a message of more than %u bytes, which is message_max", (unsigned)d->cfg.message_max);
                return refuse_head(d, c, "too-large", text, handle, *size);
            }
        }
        if (type == DP_F_SEND && !c->begun) {
            const struct dp_bound *b = handle < DP_HANDLES_MAX ? &c->handles[handle] : NULL;
            if ((flags & DP_LEVEL) >= ZJ_LEVELS)
                return HEAD_BAD;
            const char *code = NULL;
            char text[128];
            if (*size > d->cfg.message_max) {
                code = "too-large";
                snprintf(text, sizeof text, "a message of %u bytes; message_max is %u", (unsigned)*size,
                         (unsigned)d->cfg.message_max);
            } else if (!b || !b->bound) {
                code = "bad-handle";
                snprintf(text, sizeof text, "no group is joined as handle %u", (unsigned)handle);
            } else if (!b->may_send) {
                code = "not-member";
                snprintf(text, sizeof text, "handle %u is not for sending", (unsigned)handle);
            }
            if (code)
                return refuse_head(d, c, code, text, handle, *size);
            if (b->may_send == DP_MAY_WAIT)
                return HEAD_WAIT;
            if (b->ordering >= ZJ_ORDERINGS && have - DP_HEADER >= *size)
                return d->hold ? HEAD_WAIT : multi_sends(d) && b->direct ? HEAD_OVERLAP : HEAD_CONTROL;
        }
        if (have - DP_HEADER < *size)
            return HEAD_PART;
        if (type == DP_F_SEND_TO && d->hold)
            return HEAD_WAIT;
        if (type == DP_F_SEND_TO && multi_sends(d))
            return HEAD_OVERLAP;
        return type == DP_F_SEND ? HEAD_SEND : HEAD_CONTROL;
    }
}

int input_has_message(struct dp *d, struct dp_client *c, uint64_t now)
{
    uint32_t size = 0;
    if (c->taking || c->closing || c->end || c->held || c->paused || input_must_pause(d, c))
        return 0;
    return input_head(d, c, &size) == HEAD_CONTROL && is_message(frame_type(c->in + c->in_start)) && !rates_wait(d, c, now);
}

/* 1: taken; 0: refused for now. */
static int offer(struct dp *d, struct dp_client *c, uint32_t size)
{
    const uint8_t *p = c->in + c->in_start;
    const uint32_t level = frame_flags(p) & DP_LEVEL;
    struct zj_offer m = head_offer(d, c);
    const int taken = d->api->offer(d->core, &m);
    if (taken == 0) { /* m.done may have gone back to 0: a part taken before a join is sent anew */
        if (m.done && !c->begun) {
            c->begun = 1;
            c->part = c->handles[frame_handle(p)];
        }
        c->offered = m.done;
        return 0;
    }
    c->offered = c->begun = 0;
    if (taken > 0) {
        c->sends++;
        c->sent++;
        if (frame_flags(p) & DP_SEND_NOTIFY && c->notify[level] < c->sent)
            c->notify[level] = c->sent;
    } else {
        char text[96];
        snprintf(text, sizeof text, "a message of %u bytes cannot be sent", (unsigned)size);
        client_refuse(d, c, "too-large", text, frame_handle(p));
    }
    input_consume(c, DP_HEADER + size);
    return 1;
}

/* The frame at the head of the input wants an answer and changes nothing. */
static int asks_only(const struct dp_client *c)
{
    const uint8_t *p = c->in + c->in_start;
    const uint8_t type = frame_type(p);
    if (type == DP_F_REQUEST && frame_size(p) >= DP_REQUEST) {
        const uint16_t kind = get16(p + DP_HEADER + DP_REQUEST_KIND);
        return kind == DP_K_STATUS || kind == DP_K_MEMBERS;
    }
    return type == DP_F_STATUS || type == DP_F_MEMBERS;
}

/* A whole message stands at the head, for the core or for Python. */
static int is_for_sending(const struct dp_client *c, enum head head)
{
    return head == HEAD_SEND || head == HEAD_OVERLAP || (head == HEAD_CONTROL && is_message(frame_type(c->in + c->in_start)));
}

enum served { SERVED_DRY, SERVED_BLOCKED, SERVED_QUANTUM };

static enum served for_python(struct dp *d, struct dp_client *c)
{
    c->taking = 1;
    take_push(d, c);
    return SERVED_DRY;
}

/* 1: sent, or refused; 0: not now; -1: for Python. */
static int send_head(struct dp *d, struct dp_client *c, enum head head, uint32_t size, int only_partial)
{
    if (head == HEAD_REFUSED)
        return 1;
    if (head == HEAD_SEND)
        return (d->hold || only_partial) && !c->begun ? 0 : offer(d, c, size);
    const int sent = multi_send(d, c);
    if (sent > 0)
        input_consume(c, DP_HEADER + size);
    return sent;
}

/* Serve one client until it has nothing, the core has no room, or its quantum is over; a quantum that the core's lack of room
 * cuts short goes on the next time, or one client could have all the room for ever. *taken counts messages and reads. */
static enum served serve(struct dp *d, struct dp_client *c, uint64_t now, int only_partial, uint32_t *taken)
{
    for (;;) {
        if (c->quantum >= DP_QUANTUM_BYTES) {
            c->quantum = 0;
            return SERVED_QUANTUM;
        }
        if (c->taking || c->closing || c->end || c->held)
            return SERVED_DRY;
        if (!c->paused && input_must_pause(d, c))
            c->paused = 1;
        if (c->paused && !c->begun)
            return SERVED_DRY; /* clients_write() takes it up again */
        uint32_t size = 0;
        int sent = 0;
        const enum head head = input_head(d, c, &size);
        if (!c->begun && is_for_sending(c, head) && rates_wait(d, c, now))
            return SERVED_DRY; /* rates_release() takes it up again */
        switch (head) {
        case HEAD_BAD:
            client_fail(d, c, "protocol", "a frame with a size or a level beyond the limit", DP_E_PROTOCOL, 1);
            return SERVED_DRY;
        case HEAD_CONTROL:
            if (c->broken && asks_only(c)) { /* nobody reads the answer */
                input_consume(c, DP_HEADER + size);
                ++*taken;
                c->quantum += DP_QUANTUM_MESSAGE;
                continue;
            }
            return for_python(d, c);
        case HEAD_WAIT:
            return SERVED_BLOCKED;
        case HEAD_OVERLAP:
        case HEAD_SEND:
        case HEAD_REFUSED: /* errors pile up too: look whether to pause before the next */
            sent = send_head(d, c, head, size, only_partial);
            if (sent <= 0)
                return sent ? for_python(d, c) : SERVED_BLOCKED;
            ++*taken;
            if (head != HEAD_REFUSED)
                rates_count(d, c, size, now);
            c->quantum += (head == HEAD_REFUSED ? 0 : size) + DP_QUANTUM_MESSAGE;
            continue;
        case HEAD_NONE:
            size = 0;
            break;
        case HEAD_PART:
            break;
        }
        input_shrink(c);
        if (!c->can_read && !c->eof) {
            c->quantum = 0;
            return SERVED_DRY;
        }
        if (!has_room(d, c, DP_HEADER + size))
            return SERVED_DRY;
        if (input_read(d, c)) {
            ++*taken;
            c->quantum += DP_QUANTUM_READ;
            continue;
        }
        if (c->eof) /* all before it has been taken; what is left is less than a frame */
            client_end(d, c, c->end_error);
        return SERVED_DRY;
    }
}

/* Python's messages first: they are few, and joins and leaves must not wait behind data. 1: all taken. */
static int offer_pending(struct dp *d, uint32_t *taken)
{
    struct dp_pending *s = &d->sends;
    while (s->count) {
        struct zj_offer m;
        memcpy(&m, s->data + s->head, sizeof m);
        m.data = s->data + s->head + sizeof m;
        m.done = s->offered;
        const int result = d->api->offer(d->core, &m);
        s->offered = m.done;
        if (result == 0)
            return 0;
        s->offered = 0;
        s->head += (uint32_t)((sizeof m + m.size + 7u) & ~7u);
        s->count--;
        ++*taken;
    }
    s->head = s->tail = 0;
    return 1;
}

/* Messages and reads done. *more: stopped by the bound on one pass. */
uint32_t clients_offer(struct dp *d, uint64_t now, uint32_t *more)
{
    uint32_t taken = 0, rounds = 0;
    *more |= rates_release(d, now);
    d->multi.blocked = 0;
    if (d->orphan.map && d->api->offer(d->core, &d->orphan.m)) {
        orphan_free(d);
        taken++;
    }
    const int only_partial = !offer_pending(d, &taken);
    struct dp_set todo = d->work;
    while (set_any(&todo)) {
        uint32_t i = set_next(&todo, d->turn);
        if (i == DP_CLIENTS_MAX)
            i = set_next(&todo, 0);
        switch (serve(d, &d->clients[i], now, only_partial, &taken)) {
        case SERVED_DRY:
            set_del(&d->work, i);
            set_del(&todo, i);
            break;
        case SERVED_BLOCKED:
            set_del(&todo, i);
            continue; /* keeps its turn: the next room is its */
        case SERVED_QUANTUM:
            rounds++;
            break;
        }
        d->turn = i + 1 == DP_CLIENTS_MAX ? 0 : i + 1;
        if (rounds >= 16) {
            *more = 1;
            break;
        }
    }
    *more |= d->multi.blocked && sending_next_has_gone(d);
    return taken;
}

int dp_send(struct dp *d, uint16_t client, uint32_t group, uint8_t type, uint8_t need_ack, const uint8_t *data, uint32_t size)
{
    struct dp_pending *s = &d->sends;
    const struct zj_offer m = {.size = size, .group = group, .client = client, .type = type, .need_ack = need_ack};
    const uint64_t need = (sizeof m + size + 7u) & ~7ull;
    if (size > d->cfg.message_max)
        return -EMSGSIZE;
    if (s->tail - s->head + need > DP_SEND_MAX_BYTES)
        return -ENOBUFS;
    if (s->tail + need > s->cap && s->head) {
        memmove(s->data, s->data + s->head, s->tail - s->head);
        s->tail -= s->head;
        s->head = 0;
    }
    if (s->tail + need > s->cap) {
        uint32_t cap = s->cap ? s->cap : 16 * 1024;
        while (cap < s->tail + need)
            cap *= 2;
        uint8_t *grown = realloc(s->data, cap);
        if (!grown)
            return -ENOMEM;
        s->data = grown;
        s->cap = cap;
    }
    memcpy(s->data + s->tail, &m, sizeof m);
    if (size)
        memcpy(s->data + s->tail + sizeof m, data, size);
    s->tail += (uint32_t)need;
    s->count++;
    return 0;
}

void dp_hold(struct dp *d, uint32_t yes) { d->hold = yes != 0; }

/* Whole SENDs in a client's input. */
static int unsent(const struct dp_client *c)
{
    int count = 0;
    uint64_t at = (uint64_t)c->in_start + c->skip;
    while (at + DP_HEADER <= c->in_end) {
        const uint8_t *p = c->in + at;
        const uint64_t end = at + DP_HEADER + frame_size(p);
        if (end > c->in_end)
            break;
        count += frame_type(p) == DP_F_SEND;
        at = end;
    }
    return count;
}

int dp_unsent(const struct dp *d)
{
    int count = (int)d->sends.count + (d->orphan.map != NULL);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        if (d->clients[i].used && !d->clients[i].closing)
            count += unsent(&d->clients[i]);
    return count;
}

/* An instance has ended: nothing is half taken any more. A client's own messages go again as a whole; what Python has sent spoke of
 * the groups of that instance. */
void input_reset(struct dp *d)
{
    d->sends.offered = d->sends.count = d->sends.head = d->sends.tail = 0;
    orphan_free(d);
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++)
        d->clients[i].offered = d->clients[i].begun = 0;
}

void input_free(struct dp *d)
{
    orphan_free(d);
    free(d->sends.data);
}
