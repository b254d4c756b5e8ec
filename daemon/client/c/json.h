/* Reading JSON of the daemon, and the memory for what is read. */
#ifndef ZENJUN_JSON_H
#define ZENJUN_JSON_H

#include <stddef.h>
#include <stdint.h>

/* Memory for the parts of one item: given back all at once, kept for the next one. */
struct chunk;
struct arena {
    struct chunk *first, *now;
    size_t used; /* bytes of `now` */
    size_t whole; /* of all pieces together, when there were several: the next one is as large */
};

/* So many bytes, zeroed, aligned for any struct of the library; NULL: no memory. They stay where they are until the reset. */
void *zjc_take(struct arena *a, size_t size);
void zjc_reset(struct arena *a);
void zjc_free(struct arena *a);

/* A cursor in a text. After an error (ZENJUN_E_PROTOCOL, ZENJUN_E_NO_MEMORY) every call gives 0, NULL or "" and changes nothing, so
 * that it is looked at once, behind the last one. */
struct json {
    const char *at, *end;
    struct arena *arena; /* for strings */
    int error;
};

#define JSON_KEY_BYTES 32u /* of the keys that are looked for; a longer one comes as "" */

void zjc_json(struct json *j, struct arena *arena, const void *text, size_t size);
/* Nothing but white space may follow. */
void zjc_json_end(struct json *j);
/* The next character that is no white space; 0 at the end. */
char zjc_json_peek(struct json *j);
/* Enter an array, or an object: c is the bracket that opens it. */
void zjc_json_enter(struct json *j, char c);
/* Inside of it, with *begun 0 before the first: 1 another element (key) follows, 0 it has ended. */
int zjc_json_element(struct json *j, int *begun);
int zjc_json_key(struct json *j, int *begun, char key[JSON_KEY_BYTES]);
/* One value of any kind. */
void zjc_json_skip(struct json *j);
/* Elements of the array that comes next, which is not read. */
size_t zjc_json_count(const struct json *j);
/* A whole number, 0..max; anything else is an error. */
uint64_t zjc_json_number(struct json *j, uint64_t max);
/* true or false */
int zjc_json_bool(struct json *j);
/* A string, or null for ""; in the arena. What C or UTF-8 cannot hold (NUL, a single surrogate) becomes U+FFFD. */
const char *zjc_json_string(struct json *j);

#endif
