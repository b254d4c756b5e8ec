/* JSON bodies of frames to the structs of zenjun.h. Unknown members are passed over; what must be there is counted. */
#include "internal.h"

#include <string.h>

#define STATION_MAX 255u
#define CLIENT_MAX 65535u
#define IS(word) (strcmp(key, word) == 0)

/* A member that must be there has been read. */
#define GOT(bit) (got |= 1u << (bit))

static uint32_t small(struct json *j, uint32_t max) { return (uint32_t)zjc_json_number(j, max); }

static int done(struct json *j, int complete)
{
    zjc_json_end(j);
    if (j->error)
        return j->error;
    return complete ? 0 : ZENJUN_E_PROTOCOL;
}

/* A list of orders' names, as bits. */
static uint32_t orders(struct json *j)
{
    static const char *const names[] = {"total", "op", "abcast", "token"};
    uint32_t found = 0;
    int begun = 0;

    zjc_json_enter(j, '[');
    while (zjc_json_element(j, &begun)) {
        const char *name = zjc_json_string(j);

        for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
            if (strcmp(name, names[k]) == 0)
                found |= 1u << k;
    }
    return found;
}

int zjc_decode_welcome(struct zenjun_welcome *w, uint32_t *known, struct arena *a, const uint8_t *body, size_t size)
{
    char key[JSON_KEY_BYTES];
    unsigned got = 0;
    struct json j;
    int begun = 0;

    *w = (struct zenjun_welcome){.size = sizeof *w, .cluster = "", .medium = "switched"};
    *known = 0;
    zjc_json(&j, a, body, size);
    zjc_json_enter(&j, '{');
    while (zjc_json_key(&j, &begun, key)) {
        if (IS("version"))
            GOT(0), w->version = small(&j, UINT32_MAX);
        else if (IS("station"))
            GOT(1), w->station = small(&j, STATION_MAX);
        else if (IS("stations"))
            GOT(2), w->stations = small(&j, STATION_MAX);
        else if (IS("cluster"))
            GOT(3), w->cluster = zjc_json_string(&j);
        else if (IS("client"))
            GOT(4), w->client = small(&j, CLIENT_MAX);
        else if (IS("message_max"))
            GOT(5), w->message_max = zjc_json_number(&j, DP_FRAME_MAX - DP_CONTROL_MAX);
        else if (IS("queue_bytes_max"))
            GOT(6), w->queue_bytes_max = zjc_json_number(&j, UINT64_MAX);
        else if (IS("instance"))
            GOT(7), w->instance = zjc_json_number(&j, UINT64_MAX);
        else if (IS("mtu"))
            w->mtu = small(&j, UINT32_MAX);
        else if (IS("payload_max"))
            w->payload_max = small(&j, UINT32_MAX);
        else if (IS("medium"))
            w->medium = zjc_json_string(&j);
        else if (IS("orders"))
            *known = orders(&j);
        else
            zjc_json_skip(&j);
    }
    return done(&j, got == 0xffu);
}

/* ---- lists: arrays of pointers, so that the structs can grow */

/* Memory for the pointers and structs of the list that comes next. NULL: none, or it is empty. */
static void **reserve(struct json *j, size_t size, size_t *count)
{
    void **out;
    char *each;

    *count = zjc_json_count(j);
    if (!*count)
        return NULL;
    out = zjc_take(j->arena, *count * sizeof *out);
    each = out ? zjc_take(j->arena, *count * size) : NULL;
    if (!each) {
        j->error = ZENJUN_E_NO_MEMORY;
        return NULL;
    }
    for (size_t i = 0; i < *count; i++)
        out[i] = each + i * size;
    return out;
}

/* The list that comes next: `read` fills one struct of `size` bytes from each element. After an error it counts as empty. */
static void **list(struct json *j, size_t size, size_t *count, void (*read)(struct json *, void *))
{
    void **out = reserve(j, size, count);
    size_t at = 0;
    int begun = 0;

    zjc_json_enter(j, '[');
    while (zjc_json_element(j, &begun) && at < *count)
        read(j, out[at++]);
    if (j->error)
        *count = 0;
    return out;
}

/* One member: [station, client, name]. */
static void member(struct json *j, void *out)
{
    struct zenjun_member *m = out;
    int begun = 0, part = 0;

    *m = (struct zenjun_member){.size = sizeof *m, .name = ""};
    zjc_json_enter(j, '[');
    for (; zjc_json_element(j, &begun); part++) {
        if (part == 0)
            m->station = small(j, STATION_MAX);
        else if (part == 1)
            m->client = small(j, CLIENT_MAX);
        else if (part == 2)
            m->name = zjc_json_string(j);
        else
            zjc_json_skip(j);
    }
    if (part < 3 && !j->error)
        j->error = ZENJUN_E_PROTOCOL;
}

static const struct zenjun_member *const *members(struct json *j, size_t *count)
{
    return (const struct zenjun_member *const *)(void *)list(j, sizeof(struct zenjun_member), count, member);
}

/* One station as an object. */
static void station_object(struct json *j, struct zenjun_station *s)
{
    char key[JSON_KEY_BYTES];
    int begun = 0, named = 0;

    zjc_json_enter(j, '{');
    while (zjc_json_key(j, &begun, key)) {
        if (IS("station"))
            named = 1, s->station = small(j, STATION_MAX);
        else if (IS("incarnation"))
            s->incarnation = zjc_json_number(j, UINT64_MAX);
        else if (IS("member"))
            s->member = zjc_json_bool(j);
        else if (IS("host"))
            s->host = zjc_json_string(j);
        else if (IS("reason"))
            s->reason = zjc_json_string(j);
        else if (IS("state"))
            s->state = zjc_json_string(j);
        else if (IS("letter"))
            s->peer_state = zjc_json_string(j);
        else
            zjc_json_skip(j);
    }
    if (!named && !j->error)
        j->error = ZENJUN_E_PROTOCOL;
}

/* One station: its number, an object, or [station, incarnation, host]. */
static void station(struct json *j, void *out)
{
    struct zenjun_station *s = out;
    int begun = 0, part = 0;

    *s = (struct zenjun_station){.size = sizeof *s, .host = "", .reason = "", .state = "", .peer_state = ""};
    switch (zjc_json_peek(j)) {
    case '{': station_object(j, s); break;
    case '[':
        s->member = 1;
        zjc_json_enter(j, '[');
        for (; zjc_json_element(j, &begun); part++) {
            if (part == 0)
                s->station = small(j, STATION_MAX);
            else if (part == 1)
                s->incarnation = zjc_json_number(j, UINT64_MAX);
            else if (part == 2)
                s->host = zjc_json_string(j);
            else
                zjc_json_skip(j);
        }
        if (part < 3 && !j->error)
            j->error = ZENJUN_E_PROTOCOL;
        break;
    default: s->station = small(j, STATION_MAX);
    }
}

static const struct zenjun_station *const *stations(struct json *j, size_t *count)
{
    return (const struct zenjun_station *const *)(void *)list(j, sizeof(struct zenjun_station), count, station);
}

int zjc_has_self(const struct zenjun *z, const struct zenjun_member *const *who, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (who[i]->station == z->welcome.station && who[i]->client == z->welcome.client)
            return 1;
    return 0;
}

int zjc_decode_view(struct zenjun_view *v, const struct zenjun *z, struct arena *a, const uint8_t *body, size_t size)
{
    char key[JSON_KEY_BYTES];
    unsigned got = 0;
    struct json j;
    int begun = 0, error;

    *v = (struct zenjun_view){.size = sizeof *v, .group = "", .reason = ""};
    zjc_json(&j, a, body, size);
    zjc_json_enter(&j, '{');
    while (zjc_json_key(&j, &begun, key)) {
        if (IS("group"))
            GOT(0), v->group = zjc_json_string(&j);
        else if (IS("reason"))
            GOT(1), v->reason = zjc_json_string(&j);
        else if (IS("clock"))
            GOT(2), v->place.clock = zjc_json_number(&j, UINT64_MAX);
        else if (IS("station"))
            GOT(3), v->place.station = small(&j, STATION_MAX);
        else if (IS("index"))
            GOT(4), v->place.index = small(&j, UINT32_MAX);
        else if (IS("instance"))
            GOT(5), v->instance = zjc_json_number(&j, UINT64_MAX);
        else if (IS("members"))
            GOT(6), v->members = members(&j, &v->members_count);
        else if (IS("joined"))
            GOT(7), v->joined = members(&j, &v->joined_count);
        else if (IS("left"))
            GOT(8), v->left = members(&j, &v->left_count);
        else
            zjc_json_skip(&j);
    }
    error = done(&j, got == 0x1ffu);
    v->here = !error && !zjc_has_self(z, v->left, v->left_count);
    return error;
}

static int event_type(const char *name)
{
    static const char *const names[] = {"",       "open",     "view",     "blocked", "unblocked",
                                        "closed", "expelled", "reopened", "fenced",  "closing"};

    for (int i = 1; i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(names[i], name))
            return i;
    return ZENJUN_EVENT_OTHER;
}

/* A copy that ends in NUL. */
static const char *text(struct json *j, const uint8_t *body, size_t size)
{
    char *out = zjc_take(j->arena, size + 1u);

    if (!out) {
        j->error = ZENJUN_E_NO_MEMORY;
        return "";
    }
    memcpy(out, body, size);
    return out;
}

static void event_member(struct json *j, const char *key, struct zenjun_event *e)
{
    if (IS("event"))
        e->name = zjc_json_string(j);
    else if (IS("instance"))
        e->instance = zjc_json_number(j, UINT64_MAX);
    else if (IS("reason"))
        e->reason = zjc_json_string(j);
    else if (IS("station"))
        e->station = small(j, STATION_MAX);
    else if (IS("clock"))
        e->place.clock = zjc_json_number(j, UINT64_MAX);
    else if (IS("index"))
        e->place.index = small(j, UINT32_MAX);
    else if (IS("undecided"))
        e->undecided = zjc_json_number(j, UINT64_MAX);
    else if (IS("first"))
        e->undecided_first = zjc_json_number(j, UINT64_MAX);
    else if (IS("forgotten"))
        e->forgotten = zjc_json_number(j, UINT64_MAX);
    else if (IS("unsafe"))
        e->unsafe = zjc_json_bool(j);
    else if (IS("quorum"))
        e->quorum = zjc_json_bool(j);
    else if (IS("stations") || IS("members"))
        e->stations = stations(j, &e->stations_count);
    else if (IS("joined") && zjc_json_peek(j) != '[')
        e->admitted = zjc_json_bool(j);
    else if (IS("joined"))
        e->joined = stations(j, &e->joined_count);
    else if (IS("left"))
        e->left = stations(j, &e->left_count);
    else
        zjc_json_skip(j);
}

int zjc_decode_event(struct zenjun_event *e, struct arena *a, const uint8_t *body, size_t size)
{
    char key[JSON_KEY_BYTES];
    struct json j;
    int begun = 0;

    *e = (struct zenjun_event){.size = sizeof *e, .quorum = 1, .name = "", .reason = "", .json = ""};
    zjc_json(&j, a, body, size);
    zjc_json_enter(&j, '{');
    while (zjc_json_key(&j, &begun, key))
        event_member(&j, key, e);
    e->json = text(&j, body, size);
    e->type = event_type(e->name);
    if (e->type == ZENJUN_EVENT_VIEW) {
        e->place.station = e->station; /* there `station` is of the place */
        e->station = 0;
    }
    return done(&j, *e->name != '\0');
}

int zjc_decode_error(struct zenjun_refusal *r, uint32_t *handle, struct arena *a, const uint8_t *body, size_t size)
{
    char key[JSON_KEY_BYTES];
    struct json j;
    int begun = 0;

    *r = (struct zenjun_refusal){.size = sizeof *r, .code = "", .message = ""};
    zjc_json(&j, a, body, size);
    zjc_json_enter(&j, '{');
    while (zjc_json_key(&j, &begun, key)) {
        uint32_t named;

        if (IS("code"))
            r->code = zjc_json_string(&j);
        else if (IS("message"))
            r->message = zjc_json_string(&j);
        else if (IS("send"))
            r->number = zjc_json_number(&j, UINT64_MAX);
        else if (IS("handle")) {
            named = small(&j, CLIENT_MAX);
            *handle = named ? named : *handle;
        } else
            zjc_json_skip(&j);
    }
    r->error = zjc_error_number(r->code);
    return done(&j, 1);
}

int zjc_decode_reply(struct zenjun_reply *r, unsigned kind, struct arena *a, const uint8_t *body, size_t size)
{
    char key[JSON_KEY_BYTES];
    const char *code = "";
    struct json j;
    int begun = 0;

    *r = (struct zenjun_reply){.size = sizeof *r, .message = "", .json = ""};
    if (size < DP_REPLY)
        return ZENJUN_E_PROTOCOL;
    r->id = (uint32_t)get_le(body + DP_REPLY_ID, 4);
    zjc_json(&j, a, body + DP_REPLY, size - DP_REPLY);
    r->json = text(&j, body + DP_REPLY, size - DP_REPLY);
    zjc_json_enter(&j, '{');
    while (zjc_json_key(&j, &begun, key)) {
        if (IS("message") && zjc_json_peek(&j) == '"')
            r->message = zjc_json_string(&j);
        else if (IS("code") && zjc_json_peek(&j) == '"')
            code = zjc_json_string(&j);
        else if (IS("members") && kind == DP_K_MEMBERS)
            r->members = members(&j, &r->members_count);
        else if (IS("detail") && kind == DP_K_MEMBERS)
            r->stations = stations(&j, &r->stations_count);
        else
            zjc_json_skip(&j);
    }
    r->error = get_le(body + DP_REPLY_STATUS, 2) ? zjc_error_number(code) : 0;
    return done(&j, 1);
}
