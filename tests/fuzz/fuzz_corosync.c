/* The stand-in's server of libqb's IPC, with a libqb that does what the input says: programs connect, send requests whose header and
 * size lie, take no events and end, while the host routes, answers, delivers, pauses and ends.
 *
 * Invariants: an item's bytes are within what came in; each connection that was opened is closed at most once; a message of a process
 * group is what a second reading of the request makes of it; an event is what a second reading of the message makes of it; own
 * messages go out and come back in the order in which they were made, and a bundle ends where a second reading does.
 * Input: steps, one byte each and what belongs to it. */
#include "../../daemon/corosync/ipc/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                           \
        }                                                                      \
    } while (0)

#define PROGRAMS 6
#define BUFFER 2048
#define STEPS_MAX 400

struct program {
    void *context;
    int service; /* 0: there is none */
    bool let_in, slow;
    uint32_t number;
};

static struct program programs[PROGRAMS];
static struct ipc_hands hands;
static const uint8_t *at, *end_of_input;
static uint32_t delivered_size;
static uint8_t delivered[1 << 16];
static int sends; /* programs send at once; else the row of own messages is compared with a second one */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t take(int bytes)
{
    uint32_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | (at < end_of_input ? *at++ : 0);
    return value;
}

static void take_bytes(uint8_t *to, size_t size)
{
    for (size_t k = 0; k < size; k++)
        to[k] = (uint8_t)take(1);
}

/* ---- libqb, as far as the server uses it: found by dlsym() in this program */

void *qb_ipcs_create(const char *name, int32_t service, int type, struct ipc_hands *given);
void qb_ipcs_destroy(void *service);
int32_t qb_ipcs_run(void *service);
void qb_ipcs_poll_handlers_set(void *service, struct ipc_polls *polls);
ssize_t qb_ipcs_response_send(void *c, const void *data, size_t size);
ssize_t qb_ipcs_event_send(void *c, const void *data, size_t size);
ssize_t qb_ipcs_event_sendv(void *c, const struct iovec *parts, size_t count);
void qb_ipcs_disconnect(void *c);
int32_t qb_ipcs_service_id_get(void *c);
void qb_ipcs_context_set(void *c, void *context);
void *qb_ipcs_context_get(void *c);
int32_t qb_ipcs_connection_stats_get(void *c, struct ipc_stats *stats, int32_t clear);
int32_t qb_ipcs_connection_get_buffer_size(void *c);
void qb_ipcs_request_rate_limit(void *service, int rate);

static int served;

void *qb_ipcs_create(const char *name, int32_t service, int type, struct ipc_hands *given)
{
    (void)name, (void)service, (void)type;
    hands = *given;
    return &served;
}

static void leave(struct program *p)
{
    if (!p->service)
        return;
    if (p->let_in)
        hands.closed(p);
    hands.destroyed(p);
    *p = (struct program){0};
}

void qb_ipcs_destroy(void *service)
{
    (void)service;
    for (int k = 0; k < PROGRAMS; k++)
        leave(&programs[k]);
}

int32_t qb_ipcs_run(void *service) { return service == &served ? 0 : -EINVAL; }
void qb_ipcs_poll_handlers_set(void *service, struct ipc_polls *polls) { (void)service, (void)polls; }

ssize_t qb_ipcs_response_send(void *c, const void *data, size_t size)
{
    (void)data;
    return ((struct program *)c)->slow ? -EAGAIN : (ssize_t)size;
}

ssize_t qb_ipcs_event_send(void *c, const void *data, size_t size)
{
    if (((struct program *)c)->slow)
        return -EAGAIN;
    delivered_size = (uint32_t)(size < sizeof delivered ? size : sizeof delivered);
    memcpy(delivered, data, delivered_size);
    return (ssize_t)size;
}

ssize_t qb_ipcs_event_sendv(void *c, const struct iovec *parts, size_t count)
{
    size_t size = 0;
    if (((struct program *)c)->slow)
        return -EAGAIN;
    for (size_t k = 0; k < count; size += parts[k++].iov_len)
        if (size + parts[k].iov_len <= sizeof delivered)
            memcpy(delivered + size, parts[k].iov_base, parts[k].iov_len);
    delivered_size = (uint32_t)(size < sizeof delivered ? size : sizeof delivered);
    return (ssize_t)size;
}

void qb_ipcs_disconnect(void *c) { leave(c); }
int32_t qb_ipcs_service_id_get(void *c) { return ((struct program *)c)->service; }
void qb_ipcs_context_set(void *c, void *context) { ((struct program *)c)->context = context; }
void *qb_ipcs_context_get(void *c) { return ((struct program *)c)->context; }

int32_t qb_ipcs_connection_stats_get(void *c, struct ipc_stats *stats, int32_t clear)
{
    (void)c, (void)clear;
    stats->pid = 7;
    return 0;
}

int32_t qb_ipcs_connection_get_buffer_size(void *c) { return c ? BUFFER : 0; }
void qb_ipcs_request_rate_limit(void *service, int rate) { (void)service, (void)rate; }

/* ---- what happens */

static uint32_t read32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static uint32_t big(const uint8_t *from) { return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3]; }

/* A request in memory that ends where the program's does. */
static void request(struct ipc *s, struct program *p)
{
    uint8_t *memory = malloc(BUFFER);
    size_t count = take(1) * 4u;
    memset(memory, 0, BUFFER);
    take_bytes(memory, count);
    uint32_t kind = take(1);
    if (kind & 1)
        memcpy(memory, &(uint32_t){2}, 4); /* a message for the group */
    if (kind & 2)
        memcpy(memory + 32, &(uint32_t){(uint32_t)count}, 4);
    uint64_t before = (uint64_t)(s->items_count), own = s->own.end;
    size_t said = kind & 4 ? take(4) : kind & 8 ? BUFFER : count;
    hands.process(p, memory, said);
    if (s->items_count > before && s->items[before].kind == IPC_SAID) {
        const struct ipc_item *item = &s->items[before];
        const uint8_t *m = s->bytes + item->at;
        uint32_t head = 7u + m[6], length = read32(memory + 32);
        CHECK(said <= BUFFER && read32(memory) == 2 && 40 + (uint64_t)length <= said);
        CHECK(item->size == head + 5 + length && m[head] == 0 && big(m + head + 1) == length);
        CHECK(!memcmp(m + head + 5, memory + 40, length));
    }
    if (s->own.end > own) { /* it goes out at once */
        const uint8_t *m = s->own.bytes + (own - s->own.base) + 4;
        uint32_t head = 7u + m[6], length = read32(memory + 32);
        CHECK(s->sending && s->items_count == before && s->own.freed == s->own.end);
        CHECK(s->own.end - own == 4 + head + 5 + length && big(m + head + 1) == length && !memcmp(m + head + 5, memory + 40, length));
    }
    free(memory);
}

static void route(struct ipc *s, uint32_t number)
{
    uint8_t head[HEAD_MAX + 8] = {1, 4};
    uint32_t name = take(1) % 140;
    head[6] = (uint8_t)name;
    take_bytes(head + 2, 4);
    int done = ipc_route(s, number, head, take(1) & 1 ? 7 + name : 0);
    CHECK(done == 0 || (done == -EINVAL && name > 128));
}

static void deliver(struct ipc *s, const uint32_t *numbers)
{
    size_t size = take(1) * 2u;
    uint8_t *m = malloc(size ? size : 1);
    take_bytes(m, size);
    uint32_t name = size > 6 ? m[6] : 0;
    if (take(1) & 1 && size >= 12u + name) { /* made to fit */
        m[7 + name] = 0;
        uint32_t length = (uint32_t)size - 12 - name;
        uint8_t *to = m + 8 + name;
        to[0] = 0, to[1] = 0, to[2] = (uint8_t)(length >> 8), to[3] = (uint8_t)length;
    }
    delivered_size = 0;
    int done = ipc_deliver(s, numbers, PROGRAMS, 3, m, (uint32_t)size);
    CHECK(done == 0 || done == -EINVAL);
    if (!done && delivered_size) {
        CHECK(size >= 12u + name && delivered_size == 184 + size - 12 - name && read32(delivered + 8) == delivered_size);
        CHECK(read32(delivered + 24) == name && !memcmp(delivered + 32, m + 7, name) && read32(delivered + 168) == 3);
        CHECK(!memcmp(delivered + 184, m + 12 + name, size - 12 - name) && read32(delivered + 176) == big(m + 2));
    }
    free(m);
}

/* A message of the group, perhaps a bundle, from a source that has a lane or has none. */
static void lanes(struct ipc *s, const uint32_t *numbers)
{
    size_t size = take(1) * 4u;
    uint32_t name = take(1) % 8, from = 0;
    uint8_t *b = malloc(size ? size : 1), head[HEAD_MAX] = {1, 2, 0, 0, 0, 9, (uint8_t)name};
    take_bytes(b, size);
    take_bytes(head + 7, name);
    uint32_t kind = take(1);
    if (kind & 1)
        CHECK(!ipc_lane(s, 1, 2, head, 7 + name, 3, numbers, PROGRAMS, kind & 2 ? numbers[0] : 0));
    if (kind & 4 && size >= 17 + name) { /* a bundle whose first message begins so, and is whole */
        uint32_t length = (uint32_t)(size / 2) > 12 + name ? (uint32_t)(size / 2) : 12 + name;
        b[0] = 2, b[1] = 0, b[2] = 0, b[3] = (uint8_t)(length >> 8), b[4] = (uint8_t)length;
        memcpy(b + 5, head, 7 + name);
        uint8_t *to = b + 5 + 7 + name;
        length -= 12 + name;
        to[0] = 0, to[1] = 0, to[2] = 0, to[3] = (uint8_t)(length >> 8), to[4] = (uint8_t)length;
    }
    for (;;) {
        uint32_t before = from;
        int64_t rest = ipc_lanes_take(s, 1, 2, sends && kind & 8, b, (uint32_t)size, &from);
        CHECK(from >= before && from <= size);
        if (rest < 0) {
            CHECK(rest == IPC_ALL || rest == IPC_MALFORMED_REST || (rest == -EINVAL && kind & 8));
            break;
        }
        CHECK((uint64_t)rest <= size - from);
        from += (uint32_t)rest;
        if (from == size && (!size || b[0] != 2))
            break;
    }
    free(b);
}

/* The row of own messages, against a second one. */
static struct { uint8_t first; uint32_t size; } row[64];
static uint32_t row_back, row_sent, row_freed, row_end; /* as in ipc_own, in messages */

static void own(struct ipc *s)
{
    uint8_t data[300];
    uint32_t what = take(1) % 6, size = take(1);
    memset(data, (int)take(1), sizeof data);
    if (what < 2 && row_end < 64) {
        CHECK(!ipc_own_add(s, data, size));
        row[row_end].first = data[0], row[row_end++].size = size;
    } else if (what == 2 && row_freed < row_end) {
        memset(data, row[row_freed].first, sizeof data);
        CHECK(!ipc_own_free(s, data, row[row_freed++].size));
    } else if (what == 3) {
        const uint8_t *bytes = NULL;
        uint32_t bytes_count = 0, count = ipc_own_next(s, &bytes, &bytes_count), next = 0;
        CHECK((count == 0) == (row_sent == row_freed) && count <= row_freed - row_sent);
        for (uint32_t k = 0; k < count; k++) {
            CHECK(big(bytes + next) == row[row_sent].size && (!row[row_sent].size || bytes[next + 4] == row[row_sent].first));
            next += 4 + row[row_sent++].size;
        }
        CHECK(next == bytes_count);
        ipc_own_sent(s, bytes_count);
    } else if (what == 4 && row_back < row_end) {
        memset(data, row[row_back].first, sizeof data);
        int done = ipc_own_back(s, data, row[row_back].size);
        CHECK(done == (row_back < row_sent ? 0 : -EINVAL));
        row_back += !done;
    } else if (what == 5 && size > 200) {
        ipc_own_clear(s);
        row_back = row_sent = row_freed = row_end = 0;
    }
    CHECK(s->own.count == row_end - row_back);
}

static void send_all(struct ipc *s)
{
    const uint8_t *bytes;
    uint32_t count;
    while (ipc_own_next(s, &bytes, &count))
        ipc_own_sent(s, count);
    CHECK(s->own.sent == s->own.end);
}

static void look(struct ipc *s, int *open)
{
    int count = ipc_turn(s);
    const struct ipc_item *items = ipc_items(s);
    for (int k = 0; k < count; k++) {
        CHECK(items[k].at + items[k].size <= s->bytes_count);
        *open += (items[k].kind == IPC_OPENED) - (items[k].kind == IPC_CLOSED);
        CHECK(*open >= 0);
    }
    ipc_clear(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    at = data, end_of_input = data + size;
    memset(programs, 0, sizeof programs);
    struct ipc *s = ipc_create(NULL, 1 << 14);
    CHECK(s && !ipc_serve(s, "cpg", 2));
    CHECK(!ipc_allow(s, &(uint32_t){5}, 1, &(uint32_t){6}, 1));
    int open = 0;
    sends = size && data[0] & 1;
    row_back = row_sent = row_freed = row_end = 0;
    for (int step = 0; step < STEPS_MAX && at < end_of_input; step++) {
        uint32_t what = take(1), which = take(1) % PROGRAMS;
        struct program *p = &programs[which];
        uint32_t numbers[PROGRAMS], number = take(1) & 1 ? take(4) : p->number;
        for (int k = 0; k < PROGRAMS; k++)
            numbers[k] = programs[k].number;
        switch (what % 15) {
        case 0:
            if (p->service)
                break;
            p->service = 2;
            p->let_in = !hands.accept(p, take(1) % 7, take(1) % 7);
            if (p->let_in)
                hands.created(p), p->number = s->items[s->items_count - 1].connection;
            else
                *p = (struct program){0};
            break;
        case 1:
        case 2:
            if (p->let_in)
                request(s, p);
            break;
        case 3: leave(p); break;
        case 4: route(s, number); break;
        case 5: deliver(s, numbers); break;
        case 6: p->slow = !p->slow && p->service; break;
        case 7: ipc_event(s, numbers, PROGRAMS, data, (uint32_t)(size < 1000 ? size : 1000)); break;
        case 8: ipc_answer(s, number, data, (uint32_t)(size < 100 ? size : 100)); break;
        case 9: ipc_end(s, number); break;
        case 10: ipc_flush(s), ipc_pause(s, number, (int)take(1) & 1), (void)ipc_waiting(s, number); break;
        case 11: lanes(s, numbers); break;
        case 12:
            if (sends)
                send_all(s);
            else
                own(s);
            break;
        case 13: ipc_lanes_clear(s, sends && take(1) & 1); break;
        default: look(s, &open);
        }
    }
    look(s, &open);
    ipc_destroy(s);
    return 0;
}
