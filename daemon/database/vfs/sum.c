/* The aggregate zenjun_sum(value, ...): a number for a set of rows, whatever their order. */
#include "internal.h"

SQLITE_EXTENSION_INIT3

/* Two sums of the rows' hashes, and their count. */
struct sum {
    uint64_t hashes[2];
    uint64_t rows;
};

static const uint64_t seeds[2] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

/* Bytes as words of eight, the first byte the lowest, so that it is the same on every machine. */
static uint64_t mix_bytes(uint64_t hash, const unsigned char *data, int size)
{
    hash = mix(hash, (uint64_t)size);
    for (int at = 0; at < size; at += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8 && at + i < size; i++)
            word |= (uint64_t)data[at + i] << (8 * i);
        hash = mix(hash, word);
    }
    return hash;
}

static uint64_t mix_value(uint64_t hash, sqlite3_value *value)
{
    const int type = sqlite3_value_type(value);
    hash = mix(hash, (uint64_t)type);
    if (type == SQLITE_INTEGER)
        return mix(hash, (uint64_t)sqlite3_value_int64(value));
    if (type == SQLITE_FLOAT) {
        const double number = sqlite3_value_double(value);
        uint64_t word;
        memcpy(&word, &number, sizeof word);
        return mix(hash, word);
    }
    if (type == SQLITE_NULL)
        return hash;
    const unsigned char *data = sqlite3_value_blob(value);
    return mix_bytes(hash, data, data ? sqlite3_value_bytes(value) : 0);
}

static void step(sqlite3_context *context, int count, sqlite3_value **values)
{
    struct sum *sum = sqlite3_aggregate_context(context, sizeof *sum);
    if (!sum) {
        sqlite3_result_error_nomem(context);
        return;
    }
    for (int k = 0; k < 2; k++) {
        uint64_t hash = seeds[k];
        for (int i = 0; i < count; i++)
            hash = mix_value(hash, values[i]);
        sum->hashes[k] += mix(hash, seeds[k]);
    }
    sum->rows++;
}

static void final(sqlite3_context *context)
{
    const struct sum *sum = sqlite3_aggregate_context(context, 0);
    unsigned char out[3 * 8] = {0};
    if (sum) {
        const uint64_t words[3] = {sum->hashes[0], sum->hashes[1], sum->rows};
        for (int i = 0; i < (int)sizeof out; i++)
            out[i] = (unsigned char)(words[i / 8] >> (8 * (i % 8)));
    }
    sqlite3_result_blob(context, out, sizeof out, SQLITE_TRANSIENT);
}

int zb_add_sum(void *connection)
{
    if (!zb_unix)
        return SQLITE_MISUSE;
    return sqlite3_create_function_v2(connection, "zenjun_sum", -1, SQLITE_UTF8, NULL, NULL, step, final, NULL);
}
