/* Messages of process groups, which programs send by the ten thousand: from libcpg's request to the message of the stand-ins' group, and
 * from that to libcpg's event. The layouts are those of daemon/corosync/table.py and proto/service/corosync/messages.py; a test
 * compares them with what these write. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>

#define REQUEST_MCAST 2
#define REQUEST_LENGTH 32 /* offsets in the request */
#define REQUEST_DATA 40
#define DATA_MAX (1u << 20)
#define EVENT_DELIVER 5
#define EVENT_SIZE 8 /* offsets in the event */
#define EVENT_ERROR 16
#define EVENT_NAME_LENGTH 24
#define EVENT_NAME 32
#define EVENT_LENGTH 160
#define EVENT_NODE 168
#define EVENT_PID 176
#define EVENT_DATA 184
#define CS_OK 1

static void put(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); } /* libqb's is the machine's order */

int ipc_route(struct ipc *s, uint32_t connection, const void *head, uint32_t size) {
    struct ipc_connection *k = ipc_connection_find(s, connection);
    if (size > HEAD_MAX)
        return -EINVAL;
    if (!k)
        return 0;
    if (size)
        memcpy(k->head, head, size);
    k->head_size = size;
    return 0;
}

/* Straight into the row of own messages, if the machines would do that. */
static bool goes_at_once(const struct ipc *s, const struct ipc_connection *k) {
    return s->sending && k->asked != s->clears && k->way_bytes < WAY_MAX && ipc_own_has_room(s) && s->own.freed == s->own.end &&
           ipc_takes_events(s, k->number);
}

/* Numbers of a request are read once: it stands in the program's memory. False: it is another one, or malformed. */
bool ipc_say(struct ipc *s, struct ipc_connection *k, const void *request, size_t size) {
    int32_t id;
    uint32_t length;
    if (size < REQUEST_DATA)
        return false;
    memcpy(&id, request, sizeof id);
    memcpy(&length, (const uint8_t *)request + REQUEST_LENGTH, sizeof length);
    if (id != REQUEST_MCAST || length > DATA_MAX || length > size - REQUEST_DATA)
        return false;
    uint32_t whole = k->head_size + MSG_WHOLE + length;
    bool at_once = goes_at_once(s, k);
    uint8_t *to = at_once ? ipc_own_push(s, whole) : ipc_bytes_new(s, whole);
    struct ipc_item *item = to && !at_once ? ipc_item_new(s, IPC_SAID) : NULL;
    if (!to || !(at_once || item))
        return false;
    memcpy(to, k->head, k->head_size);
    to[k->head_size] = 0;
    ipc_put_big(to + k->head_size + 1, length);
    memcpy(to + k->head_size + MSG_WHOLE, (const uint8_t *)request + REQUEST_DATA, length);
    s->said_bytes += whole;
    if (at_once) {
        s->own.freed = s->own.end;
        k->way_bytes += MESSAGE_BYTES + (int64_t)length;
        return true;
    }
    k->asked = s->clears;
    item->connection = k->number, item->service = k->service, item->size = whole, item->at = (uint64_t)(to - s->bytes);
    return true;
}

int ipc_deliver(struct ipc *s, const uint32_t *connections, int count, uint32_t node, const void *message, uint32_t size) {
    const uint8_t *m = message;
    if (size < MSG_NAME + MSG_WHOLE || m[MSG_NAME_LENGTH] > MSG_NAME_MAX || size < MSG_NAME + MSG_WHOLE + (uint32_t)m[MSG_NAME_LENGTH])
        return -EINVAL;
    uint32_t name = m[MSG_NAME_LENGTH], length = size - MSG_NAME - name - MSG_WHOLE;
    if (m[MSG_NAME + name] || ipc_big(m + MSG_NAME + name + 1) != length)
        return -EINVAL;
    uint8_t e[EVENT_DATA] = {0};
    put(e, EVENT_DELIVER);
    put(e + EVENT_SIZE, EVENT_DATA + length);
    put(e + EVENT_ERROR, CS_OK);
    put(e + EVENT_NAME_LENGTH, name);
    memcpy(e + EVENT_NAME, m + MSG_NAME, name);
    put(e + EVENT_LENGTH, length);
    put(e + EVENT_NODE, node);
    put(e + EVENT_PID, ipc_big(m + MSG_PID));
    const void *data = m + MSG_NAME + name + MSG_WHOLE;
    ipc_event_of(s, connections, count, (struct iovec[2]){{e, sizeof e}, {(void *)(uintptr_t)data, length}});
    return 0;
}
