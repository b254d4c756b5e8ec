/* The socket: opening, reading, writing, waiting, closing. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_DEFAULT "/run/zenjun/zenjund.sock"
#define SOCKET_VARIABLE "ZENJUN_SOCKET"
#define READ_BYTES ((size_t)256 * 1024) /* room for a read at least */
#define READS_MAX 8u                    /* of one step, so that sending is not starved */
#define INBOX_MAX (UINT64_C(8) << 20)
#define OUTPUT_MAX (UINT64_C(1) << 20)
#define HARD_FACTOR 8u                  /* while a call waits for an answer, so many times the inbox's limit is read */
#define SECOND INT64_C(1000000000)
#define HERE_BYTES 4096u /* or more: a page */
#define MILLISECOND INT64_C(1000000)
#define RETRY_FIRST (20 * MILLISECOND)
#define RETRY_MAX (500 * MILLISECOND)
#define NEVER INT64_MAX
#define SPENT INT64_MIN /* a deadline behind which the last look has been taken */

int64_t zjc_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

int64_t zjc_until(int ms) { return ms < 0 ? NEVER : zjc_now() + ms * MILLISECOND; }

void zjc_say(struct zenjun *z, const char *text) { snprintf(z->reason, sizeof z->reason, "%s", text); }

void zjc_end(struct zenjun *z, int error, const char *text)
{
    if (z->ended)
        return;
    /* What the daemon has said before it closed is worth more than that it has closed. */
    if (z->fatal && error != ZENJUN_E_PROTOCOL && error != ZENJUN_E_NO_MEMORY)
        error = z->fatal;
    else if (text)
        zjc_say(z, text);
    z->ended = error;
    z->out.from = z->out.to = 0;
}

int zjc_forked(const struct zenjun *z) { return z->here ? !*z->here : getpid() != z->owner; }

int zjc_usable(const struct zenjun *z) { return zjc_forked(z) ? ZENJUN_E_FORKED : z->ended; }

/* A byte that the kernel sets to 0 in a child: asking for the process costs more than sending a small message. */
static const volatile uint8_t *mark_here(void)
{
    uint8_t *page = mmap(NULL, HERE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, HERE_BYTES, MADV_WIPEONFORK)) {
        munmap(page, HERE_BYTES);
        return NULL;
    }
    *page = 1;
    return page;
}

/* ---- writing */

int zjc_room(struct buffer *b, size_t size)
{
    size_t wanted = b->size ? b->size : READ_BYTES;
    uint8_t *fresh;

    if (b->from == b->to)
        b->from = b->to = 0;
    if (b->size - b->to >= size)
        return 0;
    if (b->from >= pending(b) && b->size - pending(b) >= size) {
        memmove(b->bytes, b->bytes + b->from, pending(b)); /* each byte at most once for each that has been taken */
        b->to -= b->from;
        b->from = 0;
        return 0;
    }
    while (wanted - b->to < size)
        wanted *= 2u;
    fresh = realloc(b->bytes, wanted);
    if (!fresh)
        return ZENJUN_E_NO_MEMORY;
    b->bytes = fresh;
    b->size = wanted;
    return 0;
}

static void append(struct buffer *b, const void *bytes, size_t size)
{
    if (size)
        memcpy(b->bytes + b->to, bytes, size);
    b->to += size;
}

int zjc_put(struct zenjun *z, unsigned type, unsigned flags, uint32_t handle, const struct iovec *parts, int n)
{
    uint8_t header[DP_HEADER];
    size_t size = 0;

    for (int i = 0; i < n; i++)
        size += parts[i].iov_len;
    if (zjc_room(&z->out, sizeof header + size))
        return ZENJUN_E_NO_MEMORY;
    put_le(header + DP_HEADER_SIZE, 4, size);
    header[DP_HEADER_TYPE] = (uint8_t)type;
    header[DP_HEADER_FLAGS] = (uint8_t)flags;
    put_le(header + DP_HEADER_HANDLE, 2, handle);
    append(&z->out, header, sizeof header);
    for (int i = 0; i < n; i++)
        append(&z->out, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

void zjc_flush(struct zenjun *z)
{
    while (!z->ended && !z->deaf && pending(&z->out)) {
        ssize_t put = send(z->fd, z->out.bytes + z->out.from, pending(&z->out), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (put >= 0) {
            z->out.from += (size_t)put;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            z->deaf = 1; /* the daemon has closed: reading finds out why */
            z->out.from = z->out.to = 0;
        }
    }
}

/* ---- reading */

static int may_read(const struct zenjun *z, int answer)
{
    const uint64_t unread = z->seen - z->in.from;

    return unread < z->inbox_max || (answer && unread < HARD_FACTOR * z->inbox_max) || z->closing;
}

/* Room for a read, and for all of the frame that has begun to come. */
static int make_room(struct zenjun *z)
{
    const size_t before = z->in.from, part = z->in.to - z->seen;
    const size_t rest = z->need > part ? z->need - part : 0;
    const int error = zjc_room(&z->in, rest > READ_BYTES / 2u ? rest : READ_BYTES / 2u);

    z->seen -= before - z->in.from; /* all of it may have been moved */
    return error;
}

static void at_end(struct zenjun *z, int error)
{
    char text[REASON_BYTES];

    if (error) {
        snprintf(text, sizeof text, "the connection to the daemon broke: %s", strerror(error));
        zjc_end(z, ZENJUN_E_DISCONNECTED, text);
    } else if (z->in.to > z->seen) {
        zjc_end(z, ZENJUN_E_DISCONNECTED,
                "the daemon closed the connection in the middle of a frame: it has ended, or it disconnected this program for not "
                "reading and no longer keeps the reason");
    } else {
        zjc_end(z, ZENJUN_E_DISCONNECTED, NULL);
    }
}

static void read_some(struct zenjun *z, int answer)
{
    for (unsigned i = 0; i < READS_MAX && !z->ended && may_read(z, answer); i++) {
        size_t room;
        ssize_t got;

        if (make_room(z)) {
            zjc_end(z, ZENJUN_E_NO_MEMORY, NULL);
            return;
        }
        room = z->in.size - z->in.to;
        got = recv(z->fd, z->in.bytes + z->in.to, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (z->deaf)
                at_end(z, EPIPE);
            return;
        }
        if (got <= 0) {
            at_end(z, got ? errno : 0);
            return;
        }
        z->in.to += (size_t)got;
        zjc_arrive(z);
        if ((size_t)got < room / 2u && !z->deaf) /* the socket is empty, or nearly so */
            return;
    }
}

int zenjun_fd(const struct zenjun *z) { return z->fd; }

short zenjun_events(const struct zenjun *z)
{
    return (short)((may_read(z, 0) ? POLLIN : 0) | (pending(&z->out) ? POLLOUT : 0));
}

int zenjun_step(struct zenjun *z)
{
    int error = zjc_usable(z);

    if (error)
        return error;
    zjc_flush(z);
    read_some(z, 0);
    return z->ended;
}

int zjc_turn(struct zenjun *z, int64_t *end, int answer)
{
    struct pollfd p = {.fd = z->fd};
    int64_t left;
    struct timespec t;
    int reading, ready;

    if (zjc_forked(z))
        return ZENJUN_E_FORKED;
    zjc_flush(z);
    reading = may_read(z, answer);
    p.events = (short)((reading ? POLLIN : 0) | (pending(&z->out) ? POLLOUT : 0));
    if (!p.events)
        return ZENJUN_E_INBOX_FULL;
    if (*end == SPENT)
        return ZENJUN_E_TIMEOUT;
    left = *end == NEVER ? NEVER : *end - zjc_now();
    if (left <= 0) {
        left = 0;
        *end = SPENT; /* a last look, whatever comes */
    }
    t.tv_sec = (time_t)(left / SECOND);
    t.tv_nsec = (long)(left % SECOND);
    ready = ppoll(&p, 1, left == NEVER ? NULL : &t, NULL);
    if (ready < 0)
        return errno == EINTR ? ZENJUN_E_INTERRUPTED : ZENJUN_E_SYSTEM;
    if (!ready)
        return *end == SPENT ? ZENJUN_E_TIMEOUT : 0;
    if (reading)
        read_some(z, answer);
    else if (p.revents & (POLLHUP | POLLERR))
        at_end(z, EPIPE);
    zjc_flush(z);
    return 0;
}

/* ---- opening */

static int unreachable(int error)
{
    switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case EAGAIN: return ZENJUN_E_NOT_REACHABLE;
    case EACCES:
    case EPERM: return ZENJUN_E_PERMISSION;
    default: return ZENJUN_E_SYSTEM;
    }
}

/* A descriptor connected to the daemon, or an error. A Unix socket connects at once or not at all. */
static int reach(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd, error;

    if (!path)
        path = getenv(SOCKET_VARIABLE);
    if (!path || !*path)
        path = SOCKET_DEFAULT;
    if (strlen(path) >= sizeof a.sun_path)
        return ZENJUN_E_INVALID;
    strcpy(a.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return ZENJUN_E_SYSTEM;
    while (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        if (errno == EINTR)
            continue;
        error = errno;
        close(fd);
        return unreachable(error);
    }
    return fd;
}

static void dispose(struct zenjun *z)
{
    zjc_free(&z->arena);
    zjc_free(&z->scratch);
    zjc_free(&z->kept);
    free(z->in.bytes);
    free(z->out.bytes);
    free(z->refused);
    free(z->lost);
    if (z->fd >= 0)
        close(z->fd);
    if (z->here)
        munmap((void *)(uintptr_t)z->here, HERE_BYTES);
    free(z);
}

/* Bytes of the name that fit, without a part of a character at the end. */
static size_t cut(const char *name)
{
    size_t size = strlen(name);

    if (size > DP_PROGRAM_NAME_MAX)
        for (size = DP_PROGRAM_NAME_MAX; size && ((unsigned char)name[size] & 0xc0u) == 0x80u;)
            size--;
    return size;
}

int zenjun_open(const char *socket, const char *name, struct zenjun **z)
{
    char named[DP_PROGRAM_NAME_MAX];
    uint8_t hello[DP_HELLO];
    struct iovec parts[2] = {{hello, sizeof hello}, {named, name ? cut(name) : 0}};
    struct zenjun *made;

    *z = NULL;
    made = calloc(1, sizeof *made);
    if (!made)
        return ZENJUN_E_NO_MEMORY;
    made->owner = getpid();
    made->here = mark_here();
    made->inbox_max = INBOX_MAX;
    made->output_max = OUTPUT_MAX;
    made->quorum = 1;
    made->need = DP_HEADER;
    for (size_t i = 0; i < parts[1].iov_len; i++) /* the name goes to logs and terminals */
        named[i] = (unsigned char)name[i] < 0x20u || name[i] == 0x7f ? '?' : name[i];
    memcpy(hello + DP_HELLO_MAGIC, DP_MAGIC, sizeof DP_MAGIC - 1u);
    put_le(hello + DP_HELLO_LOWEST, 2, DP_VERSION);
    put_le(hello + DP_HELLO_HIGHEST, 2, DP_VERSION);
    made->fd = reach(socket);
    if (made->fd < 0 || zjc_put(made, DP_F_HELLO, 0, 0, parts, 2)) {
        const int error = made->fd < 0 ? made->fd : ZENJUN_E_NO_MEMORY;

        dispose(made);
        return error;
    }
    zjc_flush(made);
    *z = made;
    return 0;
}

static int greet(const char *socket, const char *name, int timeout_ms, struct zenjun **z)
{
    int64_t end = zjc_until(timeout_ms);
    int error = zenjun_open(socket, name, z);

    while (!error && !(*z)->welcomed)
        error = (*z)->ended ? (*z)->ended : zjc_turn(*z, &end, 1);
    if (error && *z) {
        dispose(*z);
        *z = NULL;
    }
    return error;
}

int zenjun_connect(const char *socket, const char *name, int patience_ms, int timeout_ms, struct zenjun **z)
{
    const int64_t end = zjc_until(patience_ms);
    int64_t pause = RETRY_FIRST;

    for (;;) {
        const int error = greet(socket, name, timeout_ms, z);
        const int64_t left = end == NEVER ? NEVER : end - zjc_now();
        struct timespec t;

        if (error != ZENJUN_E_NOT_REACHABLE && error != ZENJUN_E_CLOSING && error != ZENJUN_E_BUSY)
            return error;
        if (left <= 0)
            return error;
        pause = pause < left ? pause : left;
        t = (struct timespec){.tv_sec = (time_t)(pause / SECOND), .tv_nsec = (long)(pause % SECOND)};
        if (nanosleep(&t, NULL))
            return ZENJUN_E_INTERRUPTED;
        pause = 2 * pause < RETRY_MAX ? 2 * pause : RETRY_MAX;
    }
}

int zenjun_close(struct zenjun *z, int ms)
{
    int64_t end = zjc_until(ms);
    int error;

    if (!z)
        return 0;
    error = zjc_usable(z);
    if (!error) {
        error = zjc_put(z, DP_F_BYE, 0, 0, NULL, 0);
        z->closing = 1;
        z->in.from = z->seen;
        while (!error && !z->ended)
            error = zjc_turn(z, &end, 1);
        if (!error && (z->ended != ZENJUN_E_DISCONNECTED || z->deaf || z->in.to > z->seen))
            error = z->ended;
    }
    dispose(z);
    return error;
}

int zenjun_set(struct zenjun *z, int setting, uint64_t value)
{
    if (!value) /* nothing would be read or sent any more */
        return ZENJUN_E_INVALID;
    switch (setting) {
    case ZENJUN_INBOX_MAX: z->inbox_max = value < SIZE_MAX / 64u ? value : SIZE_MAX / 64u; return 0;
    case ZENJUN_OUTPUT_MAX: z->output_max = value < SIZE_MAX / 64u ? value : SIZE_MAX / 64u; return 0;
    default: return ZENJUN_E_INVALID;
    }
}
