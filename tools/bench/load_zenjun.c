/* Backend for zenjund: docs/client-protocol.md in bulk. Messages are made in a ring of ready frames, of which as many as fit
 * go out with one writev; reads are of 256 KiB and more. */
#define _GNU_SOURCE
#include "dp_client.h"
#include "load.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define OUT_BYTES (256u * 1024u)
#define IN_BYTES (256u * 1024u)
#define READS_MAX 8u /* per turn, so that sending is not starved */
#define RETRY_NS 20000000ull
#define HANDLE 1u
#define EVENT_TEXT 90u
#define VERSION_MAX UINT16_C(2) /* newest version whose JOIN and events this program knows */

static int fd = -1;
static int welcome, lost;
static struct {
    uint8_t *bytes;
    size_t frame;     /* bytes of one frame */
    uint64_t frames;  /* places in the ring */
    uint64_t made;    /* frames committed so far */
    uint64_t written; /* bytes of them written so far */
} out;
static struct {
    uint8_t *bytes;
    size_t size, have;
} in;

static void put_header(uint8_t *to, uint32_t size, uint8_t type, uint8_t flags, uint16_t handle)
{
    uint32_t s = htole32(size);
    uint16_t h = htole16(handle);

    memcpy(to + DP_HEADER_SIZE, &s, sizeof s);
    to[DP_HEADER_TYPE] = type;
    to[DP_HEADER_FLAGS] = flags;
    memcpy(to + DP_HEADER_HANDLE, &h, sizeof h);
}

/* Number of elements of the array `members` in a VIEW's JSON object: commas and brackets at its own depth, outside strings. */
static uint32_t count_members(const char *text, size_t size)
{
    static const char key[] = "\"members\"";
    const char *at = memmem(text, size, key, sizeof key - 1), *end = text + size;
    uint32_t depth = 0, count = 0;
    int quoted = 0;

    if (!at)
        return 0;
    for (at += sizeof key - 1; at < end; at++) {
        if (quoted) {
            if (*at == '\\')
                at++;
            else if (*at == '"')
                quoted = 0;
        } else if (*at == '"') {
            quoted = 1;
        } else if (*at == '[') {
            count += ++depth == 2;
        } else if (*at == ']' && --depth == 0) {
            break;
        }
    }
    return count;
}

/* The stations in the array `members` of an EVENT's JSON object, bit k - 1 for station k: its elements are numbers, or arrays
 * that begin with one. 0 if there is no such array. */
static uint64_t stations_of(const char *text, size_t size)
{
    static const char key[] = "\"members\"";
    const char *at = memmem(text, size, key, sizeof key - 1), *end = text + size;
    uint32_t depth = 0, number = 0;
    int quoted = 0, first = 0, reading = 0;
    uint64_t mask = 0;

    if (!at)
        return 0;
    for (at += sizeof key - 1; at < end; at++) {
        if (quoted) {
            if (*at == '\\')
                at++;
            else if (*at == '"')
                quoted = 0;
            continue;
        }
        if (reading && *at >= '0' && *at <= '9') {
            number = number * 10u + (uint32_t)(*at - '0');
            continue;
        }
        if (reading && number >= 1 && number <= ZL_IDS_MAX)
            mask |= 1ull << (number - 1u);
        reading = 0;
        if (*at == '"')
            quoted = 1;
        else if (*at == '[')
            first = ++depth <= 2u;
        else if (*at == ']' && --depth == 0)
            break;
        else if (*at == ',')
            first = depth == 1u;
        else if (first && *at >= '0' && *at <= '9') {
            number = (uint32_t)(*at - '0');
            reading = 1;
            first = 0;
        }
    }
    return mask;
}

static void on_text(const char *what, const uint8_t *body, size_t size)
{
    char text[EVENT_TEXT];

    snprintf(text, sizeof text, "%s %.*s", what, (int)(size < sizeof text ? size : sizeof text), (const char *)body);
    zl_event(text);
}

static void on_frame(uint8_t type, uint8_t flags, const uint8_t *body, size_t size)
{
    switch (type) {
    case DP_F_MESSAGE:
        if (size >= DP_MESSAGE)
            zl_deliver(body + DP_MESSAGE, size - DP_MESSAGE);
        else
            lost = 1;
        break;
    case DP_F_WELCOME:
        welcome = 1;
        break;
    case DP_F_VIEW:
        zl_members(count_members((const char *)body, size));
        break;
    case DP_F_EVENT: {
        uint64_t stations = stations_of((const char *)body, size);

        if (stations) /* open, view, reopened */
            zl_stations(stations);
        on_text("event", body, size);
        break;
    }
    case DP_F_ERROR:
        on_text("error", body, size);
        fprintf(stderr, "load: the daemon says %.*s\n", (int)size, (const char *)body);
        lost |= (flags & DP_ERROR_CLOSES) != 0;
        break;
    default: /* DONE and replies: nothing asked for */
        break;
    }
}

static int read_some(void)
{
    for (uint32_t i = 0; i < READS_MAX; i++) {
        size_t room = in.size - in.have, at = 0;
        ssize_t got = recv(fd, in.bytes + in.have, room, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (got <= 0)
            return -1;
        in.have += (size_t)got;
        while (in.have - at >= DP_HEADER) {
            uint32_t size;

            memcpy(&size, in.bytes + at + DP_HEADER_SIZE, sizeof size);
            size = le32toh(size);
            if (size > in.size - DP_HEADER) {
                fprintf(stderr, "load: a frame of %u bytes from the daemon\n", size);
                return -1;
            }
            if (in.have - at < DP_HEADER + size)
                break;
            on_frame(in.bytes[at + DP_HEADER_TYPE], in.bytes[at + DP_HEADER_FLAGS], in.bytes + at + DP_HEADER, size);
            at += DP_HEADER + size;
        }
        in.have -= at;
        if (at && in.have)
            memmove(in.bytes, in.bytes + at, in.have); /* less than one frame */
        if (lost)
            return -1;
        if ((size_t)got < room / 2) /* the socket is empty, or nearly so */
            return 0;
    }
    return 0;
}

static uint64_t pending(void) { return out.made * out.frame - out.written; }

static int write_some(void)
{
    size_t ring = out.frame * out.frames;

    while (pending()) {
        size_t from = out.written % ring, left = pending();
        size_t first = left < ring - from ? left : ring - from;
        struct iovec v[2] = {{out.bytes + from, first}, {out.bytes, left - first}};
        ssize_t put = writev(fd, v, left > first ? 2 : 1);

        if (put < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        out.written += (uint64_t)put;
    }
    return 0;
}

static int turn(uint64_t until)
{
    if (write_some())
        return -1;
    short ready = zl_poll(fd, pending() ? POLLIN | POLLOUT : POLLIN, until);

    return ready & (POLLIN | POLLHUP | POLLERR) ? read_some() : 0;
}

static uint8_t *slot(void)
{
    /* a frame partly written still holds its place */
    if (out.made - out.written / out.frame >= out.frames)
        return NULL;
    return out.bytes + out.made % out.frames * out.frame + DP_HEADER;
}

static int commit(void)
{
    out.made++;
    return 1;
}

static int reach(const char *path, uint64_t end)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof a.sun_path) {
        fprintf(stderr, "load: socket path too long: %s\n", path);
        return -1;
    }
    strcpy(a.sun_path, path);
    for (;;) {
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
            return 0;
        int error = errno;

        if (fd >= 0)
            close(fd);
        if (zl_now() >= end) {
            fprintf(stderr, "load: %s: %s\n", path, strerror(error));
            return -1;
        }
        poll(NULL, 0, (int)(RETRY_NS / 1000000ull)); /* the daemon may be starting */
    }
}

static int open_zenjun(const struct zl_options *o, uint64_t end)
{
    static const char program[] = "bench";
    uint8_t body[DP_HELLO + sizeof program - 1];
    const uint16_t lowest = htole16(DP_VERSION_MIN), highest = htole16(VERSION_MAX);
    uint8_t frame[DP_HEADER + DP_GROUP_NAME_MAX];
    size_t name = strlen(o->group);

    if (name < 1 || name > DP_GROUP_NAME_MAX || reach(o->target, end))
        return -1;
    out.frame = DP_HEADER + o->size;
    out.frames = OUT_BYTES / out.frame > 2 ? OUT_BYTES / out.frame : 2;
    out.bytes = malloc(out.frame * out.frames);
    in.size = IN_BYTES + DP_HEADER + DP_MESSAGE + o->size;
    in.bytes = malloc(in.size);
    if (!out.bytes || !in.bytes) {
        fprintf(stderr, "load: no memory\n");
        return -1;
    }
    for (uint64_t i = 0; i < out.frames; i++) {
        put_header(out.bytes + i * out.frame, o->size, DP_F_SEND, (uint8_t)o->level, HANDLE);
        zl_pattern(out.bytes + i * out.frame + DP_HEADER, o->size);
    }
    memcpy(body + DP_HELLO_MAGIC, DP_MAGIC, sizeof DP_MAGIC - 1);
    memcpy(body + DP_HELLO_LOWEST, &lowest, sizeof lowest);
    memcpy(body + DP_HELLO_HIGHEST, &highest, sizeof highest);
    memcpy(body + DP_HELLO, program, sizeof program - 1);
    put_header(frame, sizeof body, DP_F_HELLO, 0, 0);
    memcpy(frame + DP_HEADER, body, sizeof body);
    if (write(fd, frame, DP_HEADER + sizeof body) != (ssize_t)(DP_HEADER + sizeof body))
        return -1;
    while (!welcome) { /* JOIN only then, so that a refusal is told apart from a failed join */
        if (zl_now() >= end || (zl_poll(fd, POLLIN, end) && read_some())) {
            fprintf(stderr, "load: no welcome from %s\n", o->target);
            return -1;
        }
    }
    put_header(frame, (uint32_t)name, DP_F_JOIN, (uint8_t)o->level, HANDLE);
    memcpy(frame + DP_HEADER, o->group, name);
    if (write(fd, frame, DP_HEADER + name) != (ssize_t)(DP_HEADER + name))
        return -1;
    return fcntl(fd, F_SETFL, O_NONBLOCK);
}

static void close_zenjun(void)
{
    close(fd);
    free(out.bytes);
    free(in.bytes);
}

int zl_load_main(int argc, char **argv)
{
    static const struct zl_backend zenjun = {"zenjun", open_zenjun, slot, commit, turn, close_zenjun};

    return zl_run(argc, argv, &zenjun);
}
