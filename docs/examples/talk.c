/* talk NAME: sends each line of its input to the group `talk`, and prints what anybody sends there, in one order for all.
 *
 *     cc -o talk talk.c $(pkg-config --cflags --libs zenjun) */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zenjun.h>

static int say(const struct zenjun_item *item) /* 0: our own leave */
{
    if (item->kind == ZENJUN_MESSAGE)
        printf("station %u: %.*s\n", (unsigned)item->place.station, (int)item->length, (const char *)item->data);
    if (item->kind == ZENJUN_VIEW)
        printf("%zu in the group (%s)\n", item->view->members_count, item->view->reason);
    if (item->kind == ZENJUN_EVENT)
        printf("cluster: %s\n", item->event->name);
    if (item->kind == ZENJUN_REFUSED)
        fprintf(stderr, "refused: %s\n", item->refusal->message);
    fflush(stdout);
    return item->kind != ZENJUN_VIEW || item->view->here;
}

int main(int argc, char **argv)
{
    struct zenjun *z;
    const struct zenjun_item *item;
    char line[1000];
    uint32_t group = 0;
    uint64_t number = 0;
    int error = zenjun_connect(NULL, argc > 1 ? argv[1] : "talk", 5000, 5000, &z), more = 1;

    setvbuf(stdin, NULL, _IONBF, 0); /* poll() does not see what stdio has read ahead */
    if (!error)
        error = zenjun_join(z, "talk", ZENJUN_DEFAULT, ZENJUN_ORDER_TOTAL, 0, NULL, &group);
    while (!error) {
        struct pollfd p[2] = {{zenjun_fd(z), 0, 0}, {more ? STDIN_FILENO : -1, POLLIN, 0}};

        error = zenjun_step(z); /* also the last items are taken before its error counts */
        while (zenjun_next(z, &item) > 0)
            if (!say(item))
                return zenjun_close(z, 5000) ? 1 : 0;
        p[0].events = zenjun_events(z);
        if (error || poll(p, 2, -1) < 0 || !p[1].revents)
            continue;
        if (fgets(line, sizeof line, stdin)) {
            const struct iovec part = {line, strcspn(line, "\n")};

            error = zenjun_send(z, group, &part, 1, ZENJUN_PREACK, &number);
        } else { /* the end of the input: wait until everybody has the last line, and leave */
            more = 0;
            error = number ? zenjun_wait_sent(z, number, ZENJUN_PREACK, 5000) : 0;
            error = error ? error : zenjun_leave(z, group);
        }
    }
    fprintf(stderr, "talk: %s %s\n", zenjun_strerror(error), z ? zenjun_reason(z) : "");
    zenjun_close(z, 0);
    return 1;
}
