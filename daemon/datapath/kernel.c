/* What the files of the data path ask of the kernel alike: the clock, and memory that costs nothing until it is touched. */
#include "internal.h"

#include <sys/mman.h>
#include <time.h>

uint64_t dp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int64_t dp_slept(void)
{
    struct timespec t;
    /* The time between the two readings makes the difference smaller, never larger. */
    return clock_gettime(CLOCK_BOOTTIME, &t) ? 0 : (int64_t)t.tv_sec * 1000000000ll + t.tv_nsec - (int64_t)dp_now();
}

void *dp_map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void dp_unmap(void *p, size_t size)
{
    if (p)
        munmap(p, size);
}
