/* A load through libcpg: cpgbench SECONDS SIZE [RATE [FILE]]. Without RATE a flood: sends as long as the library takes messages, and says how
 * many of its own have come back in that time: "TP/s SIZE: NUMBER". With a rate it sends so many a second, with rate 0 the next one when
 * the last one is back, and says how long they took: "us: COUNT P50 P99"; FILE gets when each was due and how long it took. With 0 seconds it only listens, until it is killed; with the
 * third word "change" it sends ten messages, one at a time, whenever a process has left, and says how long each took: "left: US…".
 * Linked with any libcpg.so.4; declares what it uses, so no headers are needed. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct cpg_name {
    uint32_t length;
    char value[128];
};
struct cpg_callbacks {
    void (*deliver)(uint64_t, const struct cpg_name *, uint32_t node, uint32_t pid, void *, size_t);
    void (*confchg)(uint64_t, const struct cpg_name *, const void *, size_t, const void *, size_t, const void *, size_t);
};
int cpg_initialize(uint64_t *handle, struct cpg_callbacks *callbacks);
int cpg_join(uint64_t handle, const struct cpg_name *group);
int cpg_fd_get(uint64_t handle, int *fd);
int cpg_dispatch(uint64_t handle, int how);
int cpg_mcast_joined(uint64_t handle, int guarantee, const struct iovec *parts, unsigned count);
int cpg_local_get(uint64_t handle, unsigned *node);

enum { OK = 1, TRY_AGAIN = 6, DISPATCH_ALL = 2, DISPATCH_BLOCKING = 3, AGREED = 2 };

static uint32_t here;
static uint64_t came, next_number, wrong;
static double *took; /* seconds, of each message that has come back; NULL: a flood */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void deliver(uint64_t handle, const struct cpg_name *group, uint32_t node, uint32_t pid, void *data, size_t size) {
    uint64_t number;
    double sent;
    (void)handle, (void)group;
    if (node != here || pid != (uint32_t)getpid() || size < sizeof number)
        return;
    memcpy(&number, data, sizeof number);
    if (took && size >= sizeof number + sizeof sent) {
        memcpy(&sent, (char *)data + sizeof number, sizeof sent);
        took[came] = now() - sent;
    }
    wrong += number != came++;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* Waits for what comes, at most so long. */
static void listen_for(uint64_t handle, int fd, double seconds) {
    struct timespec t = {.tv_nsec = seconds > 0 ? (long)(seconds * 1e9) : 0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (ppoll(&p, 1, &t, NULL) > 0)
        cpg_dispatch(handle, DISPATCH_ALL);
}

/* Each message's second of sending, of CLOCK_MONOTONIC, and the microseconds it took, one a line, in their order. */
static int written(const char *path, double began, double rate) {
    FILE *file = fopen(path, "w");
    if (!file)
        return 1;
    for (uint64_t k = 0; k < came; k++)
        fprintf(file, "%.6f %.0f\n", began + (double)k / rate, took[k] * 1e6);
    return fclose(file);
}

/* One at a time, or at a rate. 0: all have come back. path: a file for the times of each, or NULL. */
static int steadily(uint64_t handle, int fd, struct iovec *part, double seconds, double rate, const char *path) {
    uint64_t most = (uint64_t)(seconds * (rate > 0 ? rate : 100000)) + 2;
    double began = now(), end = began + seconds;
    took = calloc(most, sizeof *took);
    for (double t = began; t < end && next_number < most; t = now()) {
        double due = rate > 0 ? began + (double)next_number / rate : came == next_number ? t : t + 0.1;
        if (due > t) {
            listen_for(handle, fd, due - t < 0.1 ? due - t : 0.1);
            continue;
        }
        memcpy(part->iov_base, &next_number, sizeof next_number);
        memcpy((char *)part->iov_base + sizeof next_number, rate > 0 ? &due : &t, sizeof t);
        int code = cpg_mcast_joined(handle, AGREED, part, 1);
        if (code != OK && code != TRY_AGAIN)
            return 1;
        next_number += code == OK;
        listen_for(handle, fd, code == OK ? 0 : 0.001);
    }
    for (double give_up = now() + 60; came < next_number && now() < give_up;)
        listen_for(handle, fd, 0.1);
    if (path && rate > 0 && written(path, began, rate))
        return 1;
    qsort(took, came, sizeof *took, by_size);
    printf("us: %llu %.0f %.0f\n", (unsigned long long)came, took[came / 2] * 1e6, took[came * 99 / 100] * 1e6);
    return came != next_number || wrong;
}

static size_t gone; /* processes that have left */

static void confchg(uint64_t handle, const struct cpg_name *group, const void *members, size_t m, const void *left, size_t l,
                    const void *joined, size_t j) {
    (void)handle, (void)group, (void)members, (void)m, (void)left, (void)joined, (void)j;
    gone += l;
}

/* What a program sees that has something to say when others have left. Until it is killed. */
static void at_changes(uint64_t handle, int fd, struct iovec *part) {
    for (;;) {
        listen_for(handle, fd, 0.5);
        if (!gone)
            continue;
        gone = 0;
        printf("left:");
        for (int k = 0; k < 10; k++) {
            double sent = now();
            memcpy(part->iov_base, &next_number, sizeof next_number);
            while (cpg_mcast_joined(handle, AGREED, part, 1) == TRY_AGAIN)
                listen_for(handle, fd, 0.0001);
            for (next_number++; came < next_number;)
                listen_for(handle, fd, 0.5);
            printf(" %.0f", (now() - sent) * 1e6);
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    struct cpg_callbacks callbacks = {deliver, confchg};
    struct cpg_name group = {8, "cpgbench"};
    uint64_t handle;
    unsigned node;
    int fd;
    if (argc < 3 || cpg_initialize(&handle, &callbacks) != OK || cpg_local_get(handle, &node) != OK ||
        cpg_fd_get(handle, &fd) != OK || cpg_join(handle, &group) != OK)
        return 1;
    here = node;
    double seconds = atof(argv[1]);
    size_t size = (size_t)atol(argv[2]);
    char *data = calloc(1, size < 16 ? 16 : size);
    struct iovec part = {data, size < 16 ? 16 : size};
    while (seconds <= 0 && argc == 3)
        cpg_dispatch(handle, DISPATCH_BLOCKING);
    if (argc > 3 && !strcmp(argv[3], "change"))
        at_changes(handle, fd, &part);
    if (argc > 3)
        return steadily(handle, fd, &part, seconds, atof(argv[3]), argc > 4 ? argv[4] : NULL);
    double began = now(), end = began + seconds;
    while (now() < end) {
        memcpy(data, &next_number, sizeof next_number);
        int code = cpg_mcast_joined(handle, AGREED, &part, 1);
        if (code == OK) {
            next_number++;
        } else if (code == TRY_AGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            poll(&p, 1, 1);
        } else {
            fprintf(stderr, "cpg_mcast_joined: %d\n", code);
            return 1;
        }
        if (code == TRY_AGAIN || size > 4096 || next_number % 16 == 0)
            cpg_dispatch(handle, DISPATCH_ALL);
    }
    printf("TP/s %zu: %.0f\n", size, (double)came / (now() - began));
    double give_up = now() + 60;
    while (came < next_number && now() < give_up) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, 100);
        cpg_dispatch(handle, DISPATCH_ALL);
    }
    if (came != next_number || wrong) {
        fprintf(stderr, "%llu of %llu came, %llu of them wrong\n", (unsigned long long)came, (unsigned long long)next_number,
                (unsigned long long)wrong);
        return 1;
    }
    return 0;
}
