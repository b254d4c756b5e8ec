/* A thread that brings a file to the disk, so that a sync neither waits for the interpreter nor keeps it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "vfs.h"

struct zb_disk {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int told;     /* an eventfd, written once a sync */
    int fd;       /* to be synced; -1: nothing is */
    int error;    /* of the last sync */
    int64_t ns;   /* how long it took */
    int is_over;  /* zb_disk_close has been called: the thread frees everything */
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *run(void *argument)
{
    struct zb_disk *disk = argument;
    pthread_mutex_lock(&disk->mutex);
    for (;;) {
        while (disk->fd < 0 && !disk->is_over)
            pthread_cond_wait(&disk->changed, &disk->mutex);
        if (disk->fd < 0)
            break;
        const int fd = disk->fd;
        pthread_mutex_unlock(&disk->mutex);
        const int64_t began = now_ns();
        const int error = fdatasync(fd) ? errno : 0;
        const int64_t ns = now_ns() - began;
        close(fd);
        pthread_mutex_lock(&disk->mutex);
        disk->fd = -1;
        disk->error = error;
        disk->ns = ns;
        const uint64_t one = 1;
        if (!disk->is_over && write(disk->told, &one, sizeof one) != sizeof one)
            disk->error = errno; /* impossible: it counts to 2^64 */
    }
    pthread_mutex_unlock(&disk->mutex);
    close(disk->told);
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->mutex);
    free(disk);
    return NULL;
}

struct zb_disk *zb_disk_open(void)
{
    struct zb_disk *disk = calloc(1, sizeof *disk);
    if (!disk)
        return NULL;
    disk->fd = -1;
    disk->told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_t thread;
    if (disk->told < 0 || pthread_mutex_init(&disk->mutex, NULL) || pthread_cond_init(&disk->changed, NULL) ||
        pthread_create(&thread, NULL, run, disk)) {
        if (disk->told >= 0)
            close(disk->told);
        free(disk);
        return NULL;
    }
    pthread_detach(thread);
    return disk;
}

int zb_disk_told(const struct zb_disk *disk)
{
    return disk->told;
}

int zb_disk_sync(struct zb_disk *disk, int fd)
{
    pthread_mutex_lock(&disk->mutex);
    const int is_free = disk->fd < 0;
    if (is_free)
        disk->fd = fd;
    pthread_mutex_unlock(&disk->mutex);
    if (is_free)
        pthread_cond_signal(&disk->changed); /* not before: the thread would wake up to wait for the mutex */
    return is_free ? 0 : EBUSY;
}

int zb_disk_take(struct zb_disk *disk, int *error, int64_t *ns)
{
    uint64_t count;
    if (read(disk->told, &count, sizeof count) != sizeof count)
        return 0;
    pthread_mutex_lock(&disk->mutex);
    *error = disk->error;
    *ns = disk->ns;
    pthread_mutex_unlock(&disk->mutex);
    return 1;
}

void zb_disk_close(struct zb_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    disk->is_over = 1;
    pthread_cond_signal(&disk->changed);
    pthread_mutex_unlock(&disk->mutex);
}
