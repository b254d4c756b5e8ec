/* Backend for zenjund, on libzenjun: what is measured is what a program in C gets. */
#define _GNU_SOURCE
#include "load.h"
#include "zenjun.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define RETRY_MS 20
#define WELCOME_MS 5000
#define EVENT_TEXT 90u
#define OUT_BYTES (256u * 1024u)

static struct zenjun *z;
static uint32_t group;
static uint8_t *message;
static size_t message_bytes;
static uint64_t room; /* bytes that may be queued before the next turn */

static void on_event(const struct zenjun_event *e)
{
    char text[EVENT_TEXT];
    uint64_t mask = 0;

    if (e->type == ZENJUN_EVENT_OPEN || e->type == ZENJUN_EVENT_VIEW || e->type == ZENJUN_EVENT_REOPENED) {
        for (size_t i = 0; i < e->stations_count; i++)
            if (e->stations[i]->station >= 1 && e->stations[i]->station <= ZL_IDS_MAX)
                mask |= 1ull << (e->stations[i]->station - 1u);
        zl_stations(mask);
    }
    snprintf(text, sizeof text, "event %s", e->json);
    zl_event(text);
}

static void on_refusal(const struct zenjun_refusal *r)
{
    char text[EVENT_TEXT];

    snprintf(text, sizeof text, "error %s: %s", r->code, r->message);
    zl_event(text);
    fprintf(stderr, "load: the daemon refuses: %s\n", r->message);
}

/* Hand over what has come: how many items, or the error that ended the connection. */
static int take(void)
{
    const struct zenjun_item *item;
    int found, count = 0;

    for (; (found = zenjun_next(z, &item)) > 0; count++) {
        switch (item->kind) {
        case ZENJUN_MESSAGE: zl_deliver(item->data, item->length); break;
        case ZENJUN_VIEW: zl_members((uint32_t)item->view->members_count); break;
        case ZENJUN_EVENT: on_event(item->event); break;
        case ZENJUN_REFUSED: on_refusal(item->refusal); break;
        default: break; /* nothing else is asked for */
        }
    }
    return found ? found : count;
}

static int turn(uint64_t until)
{
    int taken;

    zenjun_step(z); /* its error comes again from take(), behind what came before it */
    taken = take();
    if (!taken && until && zl_poll(zenjun_fd(z), zenjun_events(z), until)) {
        zenjun_step(z);
        taken = take();
    }
    room = zenjun_facts(z)->unwritten;
    room = room < OUT_BYTES ? OUT_BYTES - room : 0;
    if (taken < 0)
        fprintf(stderr, "load: %s %s\n", zenjun_strerror(taken), zenjun_reason(z));
    return taken < 0 ? -1 : 0;
}

static uint8_t *slot(void) { return room ? message : NULL; }

static int commit(void)
{
    const struct iovec part = {message, message_bytes};
    const int error = zenjun_send(z, group, &part, 1, ZENJUN_SENT, NULL);

    room -= message_bytes < room ? message_bytes : room;
    return error == ZENJUN_E_AGAIN ? 0 : error ? -1 : 1;
}

/* Connected and welcomed. 0, or an error with the reason on standard error. */
static int reach(const char *path, uint64_t end)
{
    int error;

    while ((error = zenjun_open(path, "bench", &z)) == ZENJUN_E_NOT_REACHABLE && zl_now() < end)
        poll(NULL, 0, RETRY_MS); /* the daemon may be starting */
    while (!error && !zenjun_welcome(z))
        error = zenjun_wait(z, WELCOME_MS);
    if (error)
        fprintf(stderr, "load: %s: %s %s\n", path, zenjun_strerror(error), z ? zenjun_reason(z) : "");
    return error;
}

static int open_zenjun(const struct zl_options *o, uint64_t end)
{
    int error;

    message_bytes = o->size;
    message = malloc(message_bytes);
    if (!message || reach(o->target, end))
        return -1;
    zl_pattern(message, message_bytes);
    error = zenjun_join(z, o->group, (int)o->level, (int)o->order, 0, NULL, &group);
    if (error)
        fprintf(stderr, "load: group %s: %s\n", o->group, zenjun_strerror(error));
    return error ? -1 : 0;
}

static void close_zenjun(void)
{
    zenjun_close(z, 0);
    free(message);
}

int zl_load_main(int argc, char **argv)
{
    static const struct zl_backend zenjun = {"zenjun", open_zenjun, slot, commit, turn, close_zenjun};

    return zl_run(argc, argv, &zenjun);
}
