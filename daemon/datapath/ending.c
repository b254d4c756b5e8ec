/* How a connection ends: by the client's own fault, which it is told; by Python; when its last words have been written. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

void take_push(struct dp *d, struct dp_client *c)
{
    if (c->in_take || !(c->taking || c->more || (c->end && !c->end_told)))
        return;
    c->in_take = 1;
    d->take[(d->take_head + d->take_count++) % DP_CLIENTS_MAX] = (uint16_t)c->slot;
}

void client_end(struct dp *d, struct dp_client *c, int error)
{
    set_del(&d->work, c->slot);
    c->taking = 0;
    if (c->end)
        return;
    c->end = 1;
    c->end_error = error;
    take_push(d, c);
}

static void slot_free(struct dp *d, struct dp_client *c)
{
    queue_clear(d, c);
    queue_free(c);
    rates_leave(d, c);
    dp_unmap(c->in, c->in_cap);
    free(c->handles);
    set_del(&d->work, c->slot);
    set_del(&d->owning, c->slot);
    set_del(&d->closing, c->slot);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

void client_close(struct dp *d, struct dp_client *c)
{
    orphan_keep(d, c);
    if (c->fd >= 0) {
        (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* before close, as for the link */
        close(c->fd);
        c->fd = -1;
    }
    set_del(&d->work, c->slot);
    set_del(&d->dirty, c->slot);
    set_del(&d->closing, c->slot);
    if (c->removed)
        slot_free(d, c);
}

/* From here on only what is queued is written. */
void client_start_closing(struct dp *d, struct dp_client *c, uint64_t close_at)
{
    orphan_keep(d, c);
    set_del(&d->work, c->slot);
    c->taking = 0;
    c->closing = 1;
    c->close_at = close_at;
    set_add(&d->closing, c->slot);
    set_add(&d->dirty, c->slot);
}

/* ---- errors to the client ---- */
#define ERROR_BYTES 512u

static uint32_t error_frame(uint8_t out[ERROR_BYTES], const char *code, const char *message, uint16_t handle, uint64_t send)
{
    char *body = (char *)out + DP_HEADER;
    const size_t room = ERROR_BYTES - DP_HEADER;
    int n = send ? snprintf(body, room, "{\"code\":\"%s\",\"message\":\"%s\",\"handle\":%u,\"send\":%llu}", code, message,
                            (unsigned)handle, (unsigned long long)send)
                 : snprintf(body, room, "{\"code\":\"%s\",\"message\":\"%s\"}", code, message);
    if (n < 0 || (size_t)n >= room)
        n = 0;
    put_header(out, (uint32_t)n, DP_F_ERROR, (uint8_t)(send ? 0u : DP_ERROR_CLOSES), handle);
    return DP_HEADER + (uint32_t)n;
}

/* A SEND is not for us; the connection stays. */
void client_refuse(struct dp *d, struct dp_client *c, const char *code, const char *message, uint16_t handle)
{
    uint8_t frame[ERROR_BYTES];
    const uint32_t size = error_frame(frame, code, message, handle, ++c->sends);
    (void)queue_urgent(d, c, frame, size, NULL, 0); /* when full, the client has unread errors enough */
}

/* The client's own fault: tell it why, tell Python, close. */
void client_fail(struct dp *d, struct dp_client *c, const char *code, const char *message, int error, int keep_released)
{
    if (c->closing)
        return;
    uint8_t frame[ERROR_BYTES];
    const uint32_t size = error_frame(frame, code, message, 0, 0);
    queue_cut(d, c, keep_released);
    (void)queue_append(d, c, frame, size, NULL, 0, ZJ_ORDERED, 0);
    client_end(d, c, error);
    client_start_closing(d, c, dp_now() + DP_CLOSE_NS);
}

void client_slow(struct dp *d, struct dp_client *c)
{
    if (c->closing)
        return;
    char text[160];
    snprintf(text, sizeof text, "%llu bytes were waiting to be read, the limit (queue_bytes_max) is %llu",
             (unsigned long long)queue_bytes(&c->q), (unsigned long long)d->cfg.queue_bytes_max);
    d->counters.slow_disconnects++;
    client_fail(d, c, "slow-receiver", text, DP_E_SLOW, 0);
}

void client_many(struct dp *d, struct dp_client *c, const char *option)
{
    char text[160];
    snprintf(text, sizeof text, "this user's programs, or those of all users, take more memory than %s allows", option);
    client_fail(d, c, "too-many-bytes", text, DP_E_MANY, 0);
}

void client_no_memory(struct dp *d, struct dp_client *c)
{
    client_fail(d, c, "busy", "the daemon has no memory left for this connection", -ENOMEM, 0);
}
