/* Preloaded into a program: counts and logs what it does to one folder, and lets it die, or fail, at a chosen step.
 *
 * ZJ_SHIM_FOLDER  paths that begin with this are watched, and descriptors opened on them
 * ZJ_SHIM_LOG     file to which each step is appended after it was done, one line each: line k is step k
 * ZJ_SHIM_AT      number of the step at which something happens, from 0
 * ZJ_SHIM_DO      what: "before" or "after" (SIGKILL), "half" (a write of the first half, then SIGKILL), or an errno to fail with
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define FDS 1024

enum what { NOTHING, BEFORE, AFTER, HALF, FAIL };

static char folder[1024];
static int log_fd = -1;
static long at = -1, steps;
static enum what what;
static int fail_with;
static unsigned char watched[FDS];

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ZJ_SHIM_FOLDER"), *log = getenv("ZJ_SHIM_LOG");
    const char *number = getenv("ZJ_SHIM_AT"), *how = getenv("ZJ_SHIM_DO");
    if (!path || !log || strlen(path) >= sizeof folder)
        _exit(99);
    strcpy(folder, path);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        _exit(99);
    if (number && how) {
        at = atol(number);
        fail_with = atoi(how);
        what = fail_with ? FAIL : !strcmp(how, "before") ? BEFORE : !strcmp(how, "after") ? AFTER : HALF;
    }
}

static int ours(const char *path)
{
    return log_fd >= 0 && path && !strncmp(path, folder, strlen(folder));
}

static int ours_fd(int fd)
{
    return log_fd >= 0 && fd >= 0 && fd < FDS && watched[fd];
}

static void say(const char *format, ...)
{
    char line[16384];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line || syscall(SYS_write, log_fd, line, (size_t)n) != n)
        _exit(99);
}

static const char *hex(const void *data, size_t size)
{
    static char text[8192];
    if (2 * size >= sizeof text)
        _exit(99);
    for (size_t k = 0; k < size; k++)
        sprintf(text + 2 * k, "%02x", ((const unsigned char *)data)[k]);
    text[2 * size] = 0;
    return text;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* The next step is about to be done. Nonzero: it fails instead, errno is set. */
static int step(void)
{
    if (steps++ != at)
        return 0;
    if (what == BEFORE)
        die();
    if (what == FAIL) {
        errno = fail_with;
        return 1;
    }
    return 0;
}

/* It has been done (and logged). */
static void done(void)
{
    if (steps - 1 == at && (what == AFTER || what == HALF))
        die();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_watched(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode)
{
    if (!ours(path))
        return real(path, flags, mode);
    if (step())
        return -1;
    int fd = real(path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        watched[fd] = 1;
        say("open %d %s %s\n", fd, flags & O_TRUNC ? "trunc" : flags & O_CREAT ? "create" : "read", path);
    } else {
        say("failed open %s\n", path);
    }
    done();
    return fd;
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT ? (mode_t)va_arg(args, unsigned) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_watched(REAL(open), path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_watched(REAL(open64), path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t size)
{
    if (!ours_fd(fd))
        return REAL(write)(fd, data, size);
    if (step())
        return -1;
    ssize_t n = REAL(write)(fd, data, steps - 1 == at && what == HALF ? size / 2 : size);
    if (n >= 0)
        say("write %d %s\n", fd, hex(data, (size_t)n));
    else
        say("failed write %d\n", fd);
    done();
    return n;
}

int fsync(int fd)
{
    if (!ours_fd(fd))
        return REAL(fsync)(fd);
    if (step())
        return -1;
    int result = REAL(fsync)(fd);
    say(result ? "failed fsync %d\n" : "fsync %d\n", fd);
    done();
    return result;
}

int close(int fd)
{
    if (!ours_fd(fd))
        return REAL(close)(fd);
    if (step())
        return -1;
    watched[fd] = 0;
    int result = REAL(close)(fd);
    say("close %d\n", fd);
    done();
    return result;
}

int rename(const char *from, const char *to)
{
    if (!ours(from) && !ours(to))
        return REAL(rename)(from, to);
    if (step())
        return -1;
    int result = REAL(rename)(from, to);
    say(result ? "failed rename %s %s\n" : "rename %s %s\n", from, to);
    done();
    return result;
}

int unlink(const char *path)
{
    if (!ours(path))
        return REAL(unlink)(path);
    if (step())
        return -1;
    int result = REAL(unlink)(path);
    int error = errno;
    say("unlink %s\n", path); /* also of what is not there: a program's way to leave a mark in the log */
    done();
    errno = error;
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    if (!ours(path))
        return REAL(mkdir)(path, mode);
    if (step())
        return -1;
    int result = REAL(mkdir)(path, mode);
    int error = errno;
    say(result ? "failed mkdir %s\n" : "mkdir %s\n", path);
    done();
    errno = error;
    return result;
}
