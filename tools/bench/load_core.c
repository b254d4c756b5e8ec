/* The measuring part of the load client; see load.h. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define OPEN_NS (20 * SECOND)      /* longest wait for the daemon and for the group to be complete */
#define REFUSED_NS 100000ull       /* pause after a refused send */
#define BODY_CHECK_EVERY 256u      /* the whole body is compared once in so many messages; a power of two */
#define BURST_MAX 4096u            /* messages made, and */
#define BURST_NS 1000000ull        /* time spent, before the input is looked at again */
#define EVENTS_MAX 16u
#define EVENT_BYTES 96u
#define PHASES_MAX 8u
#define COMMANDS_NS (SECOND / 200) /* how often the parent's lines are looked for while the window is open */

static const uint32_t magic = 0x5a4c4431u;
enum type { T_DATA = 1, T_END = 2 };

struct header { /* host byte order: all stations are this machine */
    uint32_t magic;
    uint16_t id, type;
    uint64_t seq;
    uint64_t sent; /* when it was handed to the backend first */
    uint64_t due;  /* when it should have been, mode rate; otherwise 0 */
};
_Static_assert(sizeof(struct header) == ZL_HEADER_BYTES, "the size limits count on it");

/* Log-linear histogram of nanoseconds: 128 steps to a power of two, so a value is off by less than 0.8 %. */
#define STEP_BITS 7u
#define SLOTS ((64u - STEP_BITS) << STEP_BITS)
struct histogram {
    uint64_t count, max;
    double sum;
    uint32_t slots[SLOTS];
};

static struct zl_options options;
static const struct zl_backend *backend;
static struct zl_go window;

static struct histogram from_self, from_others, from_due;
static uint32_t members_now, ends;
static uint64_t window_messages, window_bytes;
static uint64_t delivered, digest, own_delivered, last_delivery, gap_max;
static uint64_t gap_by_phase[PHASES_MAX];
static uint64_t late_by_phase[PHASES_MAX]; /* the longest time by which this program ran later than it had asked for */
static uint32_t phase;
static uint64_t expected[ZL_IDS_MAX + 1];
static uint64_t bad_seq, bad_size, bad_body, foreign;
static uint64_t sent, refused;
static uint8_t *pattern;
static char events[EVENTS_MAX][EVENT_BYTES];
static uint32_t events_count;

uint64_t zl_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

short zl_poll(int fd, short wanted, uint64_t until)
{
    struct pollfd p = {.fd = fd, .events = wanted};
    uint64_t now = until ? zl_now() : 0;
    uint64_t left = until > now ? until - now : 0;
    struct timespec t = {.tv_sec = (time_t)(left / SECOND), .tv_nsec = (long)(left % SECOND)};

    return ppoll(&p, 1, &t, NULL) > 0 ? p.revents : 0;
}

uint32_t zl_slot_of(uint64_t value)
{
    if (value < (1u << STEP_BITS))
        return (uint32_t)value;
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(value);
    uint32_t step = (uint32_t)(value >> (exponent - STEP_BITS)) & ((1u << STEP_BITS) - 1u);

    return ((exponent - STEP_BITS + 1u) << STEP_BITS) + step;
}

uint64_t zl_value_of(uint32_t slot)
{
    if (slot < (1u << STEP_BITS))
        return slot;
    uint32_t exponent = (slot >> STEP_BITS) + STEP_BITS - 1u;
    uint64_t step = slot & ((1u << STEP_BITS) - 1u);
    uint64_t width = 1ull << (exponent - STEP_BITS);

    return ((1ull << STEP_BITS) + step) * width + width / 2u; /* the middle of the slot */
}

static void add(struct histogram *h, uint64_t value)
{
    h->count++;
    h->sum += (double)value;
    if (value > h->max)
        h->max = value;
    h->slots[zl_slot_of(value)]++;
}

/* The value that a share of at least `q` of all values does not exceed, µs. */
static double quantile(const struct histogram *h, double q)
{
    uint64_t rank = (uint64_t)(q * (double)h->count), seen = 0;

    if (rank >= h->count)
        rank = h->count - 1;
    for (uint32_t i = 0; i < SLOTS; i++) {
        seen += h->slots[i];
        if (seen > rank)
            return (double)zl_value_of(i) / 1e3;
    }
    return 0;
}

static void print_histogram(const char *name, const struct histogram *h)
{
    if (!h->count) {
        printf(",\"%s\":null", name);
        return;
    }
    printf(",\"%s\":{\"count\":%" PRIu64 ",\"mean_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f}", name,
           h->count, h->sum / (double)h->count / 1e3, quantile(h, .5), quantile(h, .99), quantile(h, .999), (double)h->max / 1e3);
}

void zl_pattern(uint8_t *to, size_t size)
{
    uint32_t x = 0x9e3779b9u;

    for (size_t i = 0; i < size; i++) {
        x = x * 1664525u + 1013904223u;
        to[i] = (uint8_t)(x >> 24);
    }
}

void zl_members(uint32_t members)
{
    members_now = members;
    if (options.watch) {
        printf("GROUP %" PRIu64 " %u\n", zl_now(), members);
        fflush(stdout);
    }
}

void zl_stations(uint64_t mask)
{
    if (options.watch) {
        printf("STATIONS %" PRIu64 " %" PRIx64 "\n", zl_now(), mask);
        fflush(stdout);
    }
}

void zl_event(const char *text)
{
    if (events_count < EVENTS_MAX)
        snprintf(events[events_count], EVENT_BYTES, "%s", text);
    events_count++;
}

void zl_deliver(const uint8_t *message, size_t size)
{
    struct header h;

    if (size < sizeof h || (memcpy(&h, message, sizeof h), h.magic != magic) || h.id < 1 || h.id > ZL_IDS_MAX) {
        foreign++;
        return;
    }
    if (h.type == T_END) {
        ends++;
        return;
    }
    uint64_t now = zl_now();

    if (size != options.size || message[size - 1] != (uint8_t)h.seq)
        bad_size++;
    else if (h.seq % BODY_CHECK_EVERY == 0 && memcmp(message + sizeof h, pattern + sizeof h, size - sizeof h - 1))
        bad_body++;
    if (h.seq != expected[h.id])
        bad_seq++;
    expected[h.id] = h.seq + 1;
    delivered++;
    digest = (digest ^ ((uint64_t)h.id << 56) ^ h.seq) * 0xff51afd7ed558ccdull; /* order matters: each step multiplies */
    digest ^= digest >> 32;
    if (now >= window.w0 && now < window.w1) {
        window_messages++;
        window_bytes += size;
        add(h.id == options.id ? &from_self : &from_others, now - h.sent);
        if (h.due)
            add(&from_due, now - h.due);
        if (last_delivery > window.w0) {
            uint64_t gap = now - last_delivery;

            if (gap > gap_max)
                gap_max = gap;
            if (gap > gap_by_phase[phase])
                gap_by_phase[phase] = gap;
        }
    }
    last_delivery = now;
    if (h.id == options.id)
        own_delivered = h.seq + 1;
}

/* 1 taken, 0 no room or refused, -1 broken. A refused message keeps the time of its first attempt. */
static int send_one(enum type type, uint64_t due)
{
    static uint64_t pending_since;
    uint8_t *slot = backend->slot();

    if (!slot)
        return 0;
    if (!pending_since)
        pending_since = zl_now();
    struct header h = {.magic = magic, .id = (uint16_t)options.id, .type = (uint16_t)type, .seq = sent, .sent = pending_since, .due = due};

    memcpy(slot, &h, sizeof h);
    slot[options.size - 1] = (uint8_t)sent;
    int taken = backend->commit();

    if (taken == 0)
        refused++;
    else
        pending_since = 0;
    if (taken == 1 && type == T_DATA)
        sent++;
    return taken;
}

/* Send what the mode allows now. Returns when something will be allowed next (ns; w1 if only a delivery can tell), 0 when the
 * backend is broken. */
static uint64_t produce(uint64_t now)
{
    uint32_t limit = options.mode == ZL_CLOSED ? 1u : options.inflight;

    for (uint32_t burst = 0; burst < BURST_MAX; burst++) {
        uint64_t due = 0;

        if (options.mode == ZL_RATE) {
            /* senders take turns instead of all sending at the same moment */
            double offset = (double)(options.id - 1u) / (double)options.senders;
            due = window.t0 + (uint64_t)(((double)sent + offset) * 1e9 / options.rate);
            if (due > now)
                return due;
        } else if (sent - own_delivered >= limit) {
            return window.w1;
        }
        int taken = send_one(T_DATA, due);

        if (taken < 0)
            return 0;
        if (taken == 0)
            return now + REFUSED_NS;
        if (burst % 16u == 15u && zl_now() - now > BURST_NS)
            break;
    }
    return now; /* more at once, after a look at the input */
}

static int next_line(char *to, size_t room, uint64_t until);

/* What the parent has said since: 0, or -1 when it has gone. */
static int take_commands(uint64_t now)
{
    char line[16];
    int got;

    while ((got = next_line(line, sizeof line, 0)) > 0) {
        if (!strcmp(line, "MARK") && phase + 1u < PHASES_MAX) {
            phase++;
        } else if (!strcmp(line, "STOP") && now < window.w1) {
            window.end -= window.w1 - now;
            window.w1 = now;
        }
    }
    return got;
}

static int run_window(void)
{
    uint64_t commands_at = 0, planned = UINT64_MAX;
    int sender = options.mode != ZL_IDLE && options.id <= options.senders;
    int closing = sender; /* an END marker is still to be sent */

    while (zl_now() < window.t0)
        if (backend->turn(window.t0))
            return -1;
    for (;;) {
        uint64_t now = zl_now(), until = window.w1;

        if (now > planned && now >= window.w0 && now < window.w1 && now - planned > late_by_phase[phase])
            late_by_phase[phase] = now - planned;
        if (options.watch && now >= commands_at) {
            if (take_commands(now))
                return -1;
            commands_at = now + COMMANDS_NS;
        }
        if (now >= window.end || (now >= window.w1 && !closing && ends >= options.senders))
            return 0;
        if (now < window.w1) {
            if (sender && (until = produce(now)) == 0)
                return -1;
            if (until > window.w1)
                until = window.w1;
        } else {
            until = window.end;
            if (closing) {
                int taken = send_one(T_END, 0);

                if (taken < 0)
                    return -1;
                closing = taken == 0;
                until = taken ? now : now + REFUSED_NS;
            }
        }
        if (options.watch && until > commands_at)
            until = commands_at;
        planned = until > now ? until : now;
        if (backend->turn(until > now ? until : 0))
            return -1;
    }
}

static void by_phase(const char *name, const uint64_t *ns)
{
    printf(",\"%s\":[", name);
    for (uint32_t i = 0; i <= phase; i++)
        printf("%s%.1f", i ? "," : "", (double)ns[i] / 1e6);
    printf("]");
}

static void report(int broken)
{
    printf("RESULT {\"id\":%u,\"broken\":%s,\"members\":%u,\"window_messages\":%" PRIu64 ",\"window_bytes\":%" PRIu64, options.id,
           broken ? "true" : "false", members_now, window_messages, window_bytes);
    printf(",\"delivered\":%" PRIu64 ",\"sent\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"ends\":%u,\"digest\":\"%016" PRIx64 "\"", delivered, sent,
           refused, ends, digest);
    printf(",\"bad\":{\"seq\":%" PRIu64 ",\"size\":%" PRIu64 ",\"body\":%" PRIu64 ",\"foreign\":%" PRIu64 "},\"gap_max_ms\":%.1f", bad_seq,
           bad_size, bad_body, foreign, (double)gap_max / 1e6);
    by_phase("gap_max_ms_by_phase", gap_by_phase);
    by_phase("late_max_ms_by_phase", late_by_phase);
    print_histogram("self", &from_self);
    print_histogram("others", &from_others);
    print_histogram("due", &from_due);
    printf(",\"events_count\":%u,\"events\":[", events_count);
    for (uint32_t i = 0; i < events_count && i < EVENTS_MAX; i++) {
        printf("%s\"", i ? "," : "");
        for (const char *c = events[i]; *c; c++)
            if (*c == '"' || *c == '\\')
                printf("\\%c", *c);
            else if ((unsigned char)*c >= ' ' && (unsigned char)*c < 0x7f)
                putchar(*c);
        putchar('"');
    }
    printf("]}\n");
    fflush(stdout);
}

/* The parent's next line, without its end: 1 there, 0 not yet, -1 the parent has gone or says what cannot be. */
static int next_line(char *to, size_t room, uint64_t until)
{
    static char text[128];
    static size_t have;

    for (;;) {
        char *end = memchr(text, '\n', have);

        if (end) {
            size_t size = (size_t)(end - text);

            if (size >= room)
                return -1;
            memcpy(to, text, size);
            to[size] = 0;
            have -= size + 1u;
            memmove(text, end + 1, have);
            return 1;
        }
        if (have == sizeof text)
            return -1;
        if (!zl_poll(STDIN_FILENO, POLLIN, until))
            return 0;
        ssize_t got = read(STDIN_FILENO, text + have, sizeof text - have);

        if (got <= 0)
            return -1;
        have += (size_t)got;
    }
}

int zl_wait_go(struct zl_go *go, uint64_t until)
{
    char line[128];
    int got = next_line(line, sizeof line, until);

    if (got <= 0)
        return got;
    return sscanf(line, "GO %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &go->t0, &go->w0, &go->w1, &go->end) == 4 ? 1 : -1;
}

void zl_wait_end(void)
{
    char drop[64];

    while (read(STDIN_FILENO, drop, sizeof drop) > 0 || errno == EINTR)
        errno = 0;
}

const char *zl_argument(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 0; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], name))
            return argv[i + 1];
    return otherwise;
}

static uint32_t number(int argc, char **argv, const char *name, const char *otherwise)
{
    return (uint32_t)strtoul(zl_argument(argc, argv, name, otherwise), NULL, 10);
}

static int zl_parse(int argc, char **argv)
{
    static const char *const modes[] = {"throughput", "closed", "rate", "idle"};
    const char *mode = zl_argument(argc, argv, "--mode", "throughput");
    uint32_t m = 0;

    while (m < 4u && strcmp(mode, modes[m]) != 0)
        m++;
    options = (struct zl_options){.id = number(argc, argv, "--id", "1"),
                                  .stations = number(argc, argv, "--stations", "1"),
                                  .senders = number(argc, argv, "--senders", "1"),
                                  .size = number(argc, argv, "--size", "64"),
                                  .inflight = number(argc, argv, "--inflight", "1024"),
                                  .level = number(argc, argv, "--level", "1"),
                                  .order = number(argc, argv, "--order", "0"),
                                  .mode = (enum zl_mode)m,
                                  .watch = number(argc, argv, "--watch", "0") != 0,
                                  .rate = strtod(zl_argument(argc, argv, "--rate", "1000"), NULL),
                                  .target = zl_argument(argc, argv, "--target", ""),
                                  .group = zl_argument(argc, argv, "--group", "bench")};
    return m < 4u && options.stations >= 1 && options.stations <= ZL_IDS_MAX && options.id >= 1 && options.id <= options.stations &&
                   options.senders <= options.stations && (options.senders > 0) == (options.mode != ZL_IDLE) &&
                   options.size >= ZL_SIZE_MIN && options.size <= ZL_SIZE_MAX && options.inflight >= 1 && options.level <= 2 &&
                   (options.mode != ZL_RATE || options.rate > 0)
               ? 0
               : -1;
}

int zl_run(int argc, char **argv, const struct zl_backend *b)
{
    uint64_t limit = zl_now() + OPEN_NS;
    int go = 0;

    prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0); /* nobody else would end this process if the parent were killed */
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    backend = b;
    if (zl_parse(argc, argv)) {
        fprintf(stderr, "load: wrong arguments\n");
        return 2;
    }
    window = (struct zl_go){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    pattern = malloc(options.size);
    if (!pattern) {
        fprintf(stderr, "load: no memory\n");
        return 1;
    }
    zl_pattern(pattern, options.size);
    if (backend->open(&options, limit))
        return 1;
    while (members_now != options.stations) {
        if (zl_now() >= limit) {
            fprintf(stderr, "load: %u of %u members in the group after %llu s\n", members_now, options.stations, OPEN_NS / SECOND);
            return 1;
        }
        if (backend->turn(zl_now() + SECOND / 10)) {
            fprintf(stderr, "load: connection lost while waiting for the group\n");
            return 1;
        }
    }
    printf("READY %s\n", backend->name);
    fflush(stdout);
    while (!go) {
        go = zl_wait_go(&window, zl_now() + SECOND / 200);
        if (go < 0 || backend->turn(0))
            return 1;
    }
    int broken = run_window();

    report(broken);
    zl_wait_end();
    backend->close();
    free(pattern);
    return 0;
}
