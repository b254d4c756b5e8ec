/* Lanes: who hears the whole messages of a process, as the machines have said. They end with anything but such a message. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t place_of(uint32_t station, uint32_t client, const uint8_t *head) {
    return (station * 31 + client * 17 + ipc_big(head + MSG_PID)) % IPC_LANES;
}

int ipc_lane(struct ipc *s, uint32_t station, uint32_t client, const void *head, uint32_t size, uint32_t node, const uint32_t *hearers,
             int count, uint32_t sender) {
    const uint8_t *h = head;
    if (size < MSG_NAME || size > HEAD_MAX || size != MSG_NAME + (uint32_t)h[MSG_NAME_LENGTH] || count < 0)
        return -EINVAL;
    struct ipc_lane *l = malloc(sizeof *l + (size_t)count * sizeof *l->hearers);
    if (!l)
        return -ENOMEM;
    *l = (struct ipc_lane){.station = station, .client = client, .node = node, .sender = sender, .head_size = size};
    l->count = count;
    memcpy(l->head, head, size);
    if (count)
        memcpy(l->hearers, hearers, (size_t)count * sizeof *hearers);
    struct ipc_lane **first = &s->lanes[place_of(station, client, head)];
    l->next = *first;
    *first = l;
    s->has_lanes = true;
    return 0;
}

void ipc_lanes_clear(struct ipc *s, int sending) {
    s->sending = sending != 0;
    if (!s->has_lanes)
        return;
    for (int k = 0; k < IPC_LANES; k++)
        while (s->lanes[k]) {
            struct ipc_lane *next = s->lanes[k]->next;
            free(s->lanes[k]);
            s->lanes[k] = next;
        }
    s->has_lanes = false;
}

static const struct ipc_lane *lane_of(const struct ipc *s, uint32_t station, uint32_t client, const uint8_t *m, uint32_t size) {
    if (!s->has_lanes || size < MSG_NAME + MSG_WHOLE)
        return NULL;
    for (const struct ipc_lane *l = s->lanes[place_of(station, client, m)]; l; l = l->next)
        if (l->station == station && l->client == client && size >= l->head_size + MSG_WHOLE && !memcmp(m, l->head, l->head_size))
            return m[l->head_size] == 0 && ipc_big(m + l->head_size + 1) == size - l->head_size - MSG_WHOLE ? l : NULL;
    return NULL;
}

/* One message. 1: done; 0: the machines have to see it; negative: an error. */
static int take(struct ipc *s, uint32_t station, uint32_t client, bool own, const uint8_t *m, uint32_t size) {
    const struct ipc_lane *l = lane_of(s, station, client, m, size);
    if (!l)
        return 0;
    int error = l->count ? ipc_deliver(s, l->hearers, l->count, l->node, m, size) : 0;
    if (!error && own)
        error = ipc_own_back(s, m, size);
    if (error)
        return error;
    struct ipc_connection *k = own && l->sender ? ipc_connection_find(s, l->sender) : NULL;
    if (k)
        k->way_bytes -= (int64_t)MESSAGE_BYTES + size - l->head_size - MSG_WHOLE;
    return 1;
}

int64_t ipc_lanes_take(struct ipc *s, uint32_t station, uint32_t client, int own, const void *data, uint32_t size, uint32_t *at) {
    const uint8_t *m = data;
    if (!size || m[0] != BUNDLE) {
        if (*at)
            return IPC_ALL;
        int done = take(s, station, client, own != 0, m, size);
        if (!done)
            return size;
        return done < 0 ? done : IPC_ALL;
    }
    if (!*at)
        *at = 1;
    while (*at < size) {
        if (size - *at < LENGTH || ipc_big(m + *at) > size - *at - LENGTH)
            return IPC_MALFORMED_REST;
        uint32_t length = ipc_big(m + *at);
        int done = take(s, station, client, own != 0, m + *at + LENGTH, length);
        if (done < 0)
            return done;
        *at += LENGTH;
        if (!done)
            return length;
        *at += length;
    }
    return IPC_ALL;
}

int64_t ipc_way_bytes(const struct ipc *s, uint32_t connection) {
    const struct ipc_connection *k = &s->connections[connection & (IPC_CONNECTIONS_MAX - 1)];
    return k->c && k->number == connection ? k->way_bytes : 0;
}

void ipc_way_add(struct ipc *s, uint32_t connection, int64_t bytes) {
    struct ipc_connection *k = ipc_connection_find(s, connection);
    if (k)
        k->way_bytes += bytes;
}
