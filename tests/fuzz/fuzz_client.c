/* libzenjun: whatever bytes the daemon sends, between calls of a program.
 *
 * Input: operations, each one byte and what it needs. 0: so many bytes (u16, little-endian) come from the daemon. The others are
 * calls; see below. Invariant: no call waits, all that an item points to can be read, text ends, numbers are in bounds, and after
 * the connection has ended nothing comes any more. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                           \
        }                                                                      \
    } while (0)

enum { BYTES, NEXT, JOIN, LEAVE, SEND, ASK, SENT, WAIT, SEND_ONLY, SEND_TO, OPERATIONS };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char welcome[] = "{\"version\": 3, \"station\": 1, \"stations\": 2, \"cluster\": \"c\", \"client\": 1, \"message_max\": 100, "
                              "\"queue_bytes_max\": 100, \"instance\": 7, \"orders\": [\"total\", \"token\"]}";
static volatile size_t sum; /* of all that has been read, so that it is read */

static void text(const char *t)
{
    CHECK(t);
    sum += strlen(t);
}

static void members(const struct zenjun_member *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK(list[i]->size == sizeof **list && list[i]->station <= 255 && list[i]->client <= 65535);
        text(list[i]->name);
    }
}

static void stations(const struct zenjun_station *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK(list[i]->size == sizeof **list && list[i]->station <= 255);
        text(list[i]->host);
        text(list[i]->reason);
        text(list[i]->state);
        text(list[i]->peer_state);
    }
}

static void read_item(const struct zenjun_item *item, uint64_t sent)
{
    CHECK(item->size == sizeof *item);
    switch (item->kind) {
    case ZENJUN_MESSAGE:
        for (size_t i = 0; i < item->length; i++)
            sum += ((const uint8_t *)item->data)[i];
        CHECK(item->handle >= 1 && item->handle <= ZENJUN_HANDLES_MAX && item->context);
        break;
    case ZENJUN_VIEW:
        CHECK(item->context);
        text(item->view->group);
        text(item->view->reason);
        members(item->view->members, item->view->members_count);
        members(item->view->joined, item->view->joined_count);
        members(item->view->left, item->view->left_count);
        break;
    case ZENJUN_EVENT:
        text(item->event->name);
        text(item->event->json);
        text(item->event->reason);
        stations(item->event->stations, item->event->stations_count);
        stations(item->event->joined, item->event->joined_count);
        stations(item->event->left, item->event->left_count);
        break;
    case ZENJUN_DONE: CHECK(item->done[0] <= sent && item->done[1] <= sent && item->done[2] <= sent); break;
    case ZENJUN_REPLY:
        text(item->reply->message);
        text(item->reply->json);
        members(item->reply->members, item->reply->members_count);
        stations(item->reply->stations, item->reply->stations_count);
        break;
    case ZENJUN_REFUSED:
        CHECK(item->refusal->error < 0 && item->refusal->number <= sent);
        text(item->refusal->code);
        text(item->refusal->message);
        break;
    case ZENJUN_READY: CHECK(item->context); break;
    default: CHECK(!"a kind that the header does not have");
    }
}

/* A connection to `*peer`, by a socket that listens for the life of this process. */
static struct zenjun *connected(int *peer)
{
    static int listening = -1;
    static struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct zenjun *z;
    uint8_t header[DP_HEADER] = {0};

    if (listening < 0) {
        snprintf(a.sun_path, sizeof a.sun_path, "/tmp/fuzz_client.%d", (int)getpid());
        unlink(a.sun_path);
        listening = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(!bind(listening, (struct sockaddr *)&a, sizeof a) && !listen(listening, 8));
    }
    CHECK(zenjun_open(a.sun_path, "fuzz", &z) == 0);
    *peer = accept(listening, NULL, NULL);
    CHECK(*peer >= 0);
    put_le(header + DP_HEADER_SIZE, 4, sizeof welcome - 1u);
    header[DP_HEADER_TYPE] = DP_F_WELCOME;
    CHECK(write(*peer, header, sizeof header) == (ssize_t)sizeof header);
    CHECK(write(*peer, welcome, sizeof welcome - 1u) == (ssize_t)(sizeof welcome - 1u));
    CHECK(zenjun_step(z) == 0 && zenjun_welcome(z) && zenjun_welcome(z)->instance == 7);
    return z;
}

static void operate(struct zenjun *z, uint8_t op, uint32_t *last, uint64_t *sent)
{
    const struct zenjun_item *item;
    const struct iovec parts[2] = {{(void *)(uintptr_t) "ab", 2}, {NULL, 0}};
    uint32_t id;

    switch (op) {
    case NEXT:
        if (zenjun_next(z, &item) > 0)
            read_item(item, *sent);
        break;
    case JOIN:
    case SEND_ONLY: zenjun_join(z, "g", ZENJUN_DEFAULT, 0, op == JOIN ? 0 : ZENJUN_SEND_ONLY, z, last); break;
    case LEAVE: zenjun_leave(z, *last); break;
    case SEND:
        if (zenjun_send(z, *last, parts, 2, (int)(*sent % 4u) - 1, sent) == 0)
            CHECK(*sent == zenjun_facts(z)->sent);
        break;
    case SEND_TO: {
        const uint32_t to[3] = {*last, 1, 2};

        if (zenjun_send_to(z, to, (int)(*sent % 4u), parts, 2, (int)(*sent % 4u) - 1, sent) == 0)
            CHECK(*sent == zenjun_facts(z)->sent);
        break;
    }
    case ASK: (zenjun_facts(z)->sent % 2u ? zenjun_status : zenjun_stations)(z, &id); break;
    case SENT: CHECK(zenjun_wait_sent(z, *sent, ZENJUN_ACK, 0) <= 0); break;
    case WAIT: CHECK(zenjun_wait(z, 0) <= 0 && zenjun_wait_joined(z, *last, 0) <= 0); break;
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size;
    const struct zenjun_item *item;
    uint32_t last = 0;
    uint64_t sent = 0;
    int peer;

    if (size > 65536)
        return 0;
    struct zenjun *z = connected(&peer);
    while (data < end) {
        const uint8_t op = *data++ % OPERATIONS;
        char drain[4096];

        if (op == BYTES && end - data >= 2) {
            size_t count = (size_t)data[0] | (size_t)data[1] << 8;

            data += 2;
            count = count < (size_t)(end - data) ? count : (size_t)(end - data);
            if (count)
                CHECK(send(peer, data, count, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)count);
            data += count;
            zenjun_step(z);
        } else {
            operate(z, op, &last, &sent);
        }
        while (recv(peer, drain, sizeof drain, MSG_DONTWAIT) > 0) {
        }
    }
    close(peer);
    while (zenjun_step(z) == 0) {
    }
    while (zenjun_next(z, &item) > 0)
        read_item(item, sent);
    CHECK(zenjun_facts(z)->ended < 0 && zenjun_next(z, &item) < 0 && !item);
    text(zenjun_reason(z));
    text(zenjun_strerror(zenjun_facts(z)->ended));
    zenjun_close(z, 0);
    return 0;
}
