/* Reading JSON; see json.h. Nothing here recurses: depth comes from the other side. */
#include "json.h"
#include "zenjun.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 16384u
#define ALIGNMENT 16u
#define DEPTH_MAX 64u
#define REPLACEMENT 0xfffdu

struct chunk {
    struct chunk *next;
    size_t size;
};
#define CHUNK_HEAD ((sizeof(struct chunk) + ALIGNMENT - 1u) / ALIGNMENT * ALIGNMENT)

static struct chunk *another(struct arena *a, size_t size)
{
    struct chunk *made, *next = a->now ? a->now->next : a->first;

    if (next && next->size >= size)
        return next;
    made = malloc(CHUNK_HEAD + size);
    if (!made)
        return NULL;
    made->next = next;
    made->size = size;
    if (a->now)
        a->now->next = made;
    else
        a->first = made;
    return made;
}

void *zjc_take(struct arena *a, size_t size)
{
    uint8_t *found;

    if (size > SIZE_MAX / 2u)
        return NULL;
    size = (size + ALIGNMENT - 1u) / ALIGNMENT * ALIGNMENT;
    if (!a->now || a->now->size - a->used < size) {
        const size_t least = a->whole > CHUNK_BYTES ? a->whole : CHUNK_BYTES;
        struct chunk *next = another(a, size > least ? size : least);

        if (!next)
            return NULL;
        a->now = next;
        a->used = 0;
    }
    found = (uint8_t *)a->now + CHUNK_HEAD + a->used;
    a->used += size;
    memset(found, 0, size);
    return found;
}

static size_t drop(struct arena *a)
{
    struct chunk *c = a->first;
    size_t whole = 0;

    while (c) {
        struct chunk *next = c->next;

        whole += c->size;
        free(c);
        c = next;
    }
    a->first = NULL;
    return whole;
}

void zjc_reset(struct arena *a)
{
    if (a->first && a->first->next) /* one piece from now on: a chain would grow by each item that is larger than those before */
        a->whole = drop(a);
    a->now = NULL;
    a->used = 0;
}

void zjc_free(struct arena *a)
{
    drop(a);
    memset(a, 0, sizeof *a);
}

/* ---- the cursor */

static void fail(struct json *j, int error)
{
    if (!j->error)
        j->error = error;
    j->at = j->end;
}

void zjc_json(struct json *j, struct arena *arena, const void *text, size_t size)
{
    j->at = text;
    j->end = j->at + size;
    j->arena = arena;
    j->error = 0;
}

char zjc_json_peek(struct json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
    return j->at < j->end ? *j->at : '\0';
}

void zjc_json_end(struct json *j)
{
    (void)zjc_json_peek(j);
    if (j->at < j->end)
        fail(j, ZENJUN_E_PROTOCOL);
}

void zjc_json_enter(struct json *j, char c)
{
    if (zjc_json_peek(j) != c || j->at == j->end)
        fail(j, ZENJUN_E_PROTOCOL);
    else
        j->at++;
}

/* Whether another element follows in what `close` closes. */
static int more(struct json *j, int *begun, char close)
{
    char c = zjc_json_peek(j);

    if (j->error)
        return 0;
    if (c == close) {
        j->at++;
        return 0;
    }
    if (*begun) {
        if (c != ',') {
            fail(j, ZENJUN_E_PROTOCOL);
            return 0;
        }
        j->at++;
        c = zjc_json_peek(j);
    }
    *begun = 1;
    if (j->at == j->end || c == close)
        fail(j, ZENJUN_E_PROTOCOL);
    return !j->error;
}

int zjc_json_element(struct json *j, int *begun) { return more(j, begun, ']'); }

/* Past the string that begins here; its text lies between *from and *to. */
static void pass_string(struct json *j, const char **from, const char **to)
{
    const char *p = j->at;

    *from = *to = p;
    if (zjc_json_peek(j) != '"') {
        fail(j, ZENJUN_E_PROTOCOL);
        return;
    }
    for (p = j->at + 1; p < j->end && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20u)
            break;
        if (*p == '\\' && ++p == j->end)
            break;
    }
    if (p >= j->end || *p != '"') {
        fail(j, ZENJUN_E_PROTOCOL);
        return;
    }
    *from = j->at + 1;
    *to = p;
    j->at = p + 1;
}

int zjc_json_key(struct json *j, int *begun, char key[JSON_KEY_BYTES])
{
    const char *from, *to;

    key[0] = '\0';
    if (!more(j, begun, '}'))
        return 0;
    pass_string(j, &from, &to);
    if (!j->error && zjc_json_peek(j) != ':')
        fail(j, ZENJUN_E_PROTOCOL);
    if (j->error)
        return 0;
    j->at++;
    if ((size_t)(to - from) < JSON_KEY_BYTES) {
        memcpy(key, from, (size_t)(to - from));
        key[to - from] = '\0';
    }
    return 1;
}

/* Past a number or a word; whether it is a well-formed one does not matter to who skips it. */
static void skip_word(struct json *j)
{
    const char *from = j->at;

    while (j->at < j->end && ((*j->at >= '0' && *j->at <= '9') || (*j->at >= 'a' && *j->at <= 'z') || *j->at == '-' ||
                              *j->at == '+' || *j->at == '.' || *j->at == 'E' || *j->at == 'N' || *j->at == 'I'))
        j->at++;
    if (j->at == from)
        fail(j, ZENJUN_E_PROTOCOL);
}

void zjc_json_skip(struct json *j)
{
    const char *from, *to;
    char open[DEPTH_MAX]; /* brackets */
    int begun[DEPTH_MAX];
    unsigned depth = 0;

    for (;;) {
        const char c = zjc_json_peek(j);

        if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX) {
                fail(j, ZENJUN_E_PROTOCOL);
                return;
            }
            open[depth] = c;
            begun[depth++] = 0;
            j->at++;
        } else if (c == '"') {
            pass_string(j, &from, &to);
        } else {
            skip_word(j);
        }
        for (;;) { /* to the next value, out of what has ended */
            char key[JSON_KEY_BYTES];

            if (!depth || j->error)
                return;
            if (open[depth - 1u] == '{' ? zjc_json_key(j, &begun[depth - 1u], key) : zjc_json_element(j, &begun[depth - 1u]))
                break;
            depth--;
        }
    }
}

size_t zjc_json_count(const struct json *j)
{
    struct json copy = *j;
    size_t count = 0;
    int begun = 0;

    zjc_json_enter(&copy, '[');
    while (zjc_json_element(&copy, &begun)) {
        zjc_json_skip(&copy);
        count++;
    }
    return copy.error ? 0 : count;
}

uint64_t zjc_json_number(struct json *j, uint64_t max)
{
    uint64_t value = 0;
    const char *from;

    (void)zjc_json_peek(j);
    for (from = j->at; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        const uint64_t digit = (uint64_t)(*j->at - '0');

        if (value > (max - digit) / 10u || digit > max) {
            fail(j, ZENJUN_E_PROTOCOL);
            return 0;
        }
        value = value * 10u + digit;
    }
    if (j->at == from || (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')))
        fail(j, ZENJUN_E_PROTOCOL);
    return j->error ? 0 : value;
}

static int word(struct json *j, const char *text)
{
    const size_t size = strlen(text);

    (void)zjc_json_peek(j);
    if ((size_t)(j->end - j->at) < size || memcmp(j->at, text, size) != 0)
        return 0;
    j->at += size;
    return 1;
}

int zjc_json_bool(struct json *j)
{
    if (word(j, "true"))
        return 1;
    if (!word(j, "false"))
        fail(j, ZENJUN_E_PROTOCOL);
    return 0;
}

/* ---- strings */

static int hex4(const char *p, const char *end, uint32_t *value)
{
    if (end - p < 4)
        return 0;
    *value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;

        if (digit < 0)
            return 0;
        *value = *value << 4 | (uint32_t)digit;
    }
    return 1;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80u) {
        *to++ = (char)c;
    } else if (c < 0x800u) {
        *to++ = (char)(0xc0u | c >> 6);
        *to++ = (char)(0x80u | (c & 0x3fu));
    } else if (c < 0x10000u) {
        *to++ = (char)(0xe0u | c >> 12);
        *to++ = (char)(0x80u | (c >> 6 & 0x3fu));
        *to++ = (char)(0x80u | (c & 0x3fu));
    } else {
        *to++ = (char)(0xf0u | c >> 18);
        *to++ = (char)(0x80u | (c >> 12 & 0x3fu));
        *to++ = (char)(0x80u | (c >> 6 & 0x3fu));
        *to++ = (char)(0x80u | (c & 0x3fu));
    }
    return to;
}

/* What follows a backslash at *from, at most 4 bytes to `to`. Moves *from behind it. NULL: no escape. */
static char *put_escape(const char **from, const char *end, char *to)
{
    static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    const char c = *(*from)++, *found;
    uint32_t high, low;

    if (c != 'u') {
        found = c ? strchr(names, c) : NULL;
        if (!found)
            return NULL;
        *to++ = means[found - names];
        return to;
    }
    if (!hex4(*from, end, &high))
        return NULL;
    *from += 4;
    if (high >= 0xd800u && high < 0xdc00u && end - *from >= 6 && (*from)[0] == '\\' && (*from)[1] == 'u' &&
        hex4(*from + 2, end, &low) && low >= 0xdc00u && low < 0xe000u) {
        *from += 6;
        return put_utf8(to, 0x10000u + ((high - 0xd800u) << 10) + (low - 0xdc00u));
    }
    return put_utf8(to, high == 0 || (high >= 0xd800u && high < 0xe000u) ? REPLACEMENT : high);
}

const char *zjc_json_string(struct json *j)
{
    const char *from, *to;
    char *text, *at;

    if (word(j, "null"))
        return "";
    pass_string(j, &from, &to);
    if (j->error)
        return "";
    text = at = zjc_take(j->arena, (size_t)(to - from) + 1u); /* no escape is shorter than what it stands for */
    if (!text) {
        fail(j, ZENJUN_E_NO_MEMORY);
        return "";
    }
    while (from < to) {
        if (*from != '\\') {
            *at++ = *from++;
            continue;
        }
        from++;
        at = put_escape(&from, to, at);
        if (!at) {
            fail(j, ZENJUN_E_PROTOCOL);
            return "";
        }
    }
    *at = '\0';
    return text;
}
