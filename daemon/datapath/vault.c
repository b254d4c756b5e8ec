/* The keys of the cluster, in one block of memory that is neither swapped nor dumped nor inherited, and zeroed when they go. Key files
 * are read into it, and what is derived from a key is made here; outside are places, ids and sizes only.
 */
#include "internal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEXT_MAX 4096u                         /* of a key file */
#define PLACES 16u                             /* those that are held, and those of a file that is looked at */
#define DERIVED (2u * DP_KEYS_MAX)
#define SHORT_KEY 16u
#define LONG_KEY 32u
_Static_assert(SHORT_KEY == DP_KEY_BYTES, "of a seal");

struct kept { uint8_t bytes[LONG_KEY]; uint32_t size, id; }; /* size 0: none */

struct dp_vault {
    struct kept kept[PLACES];
    uint8_t derived[DERIVED][LONG_KEY];
    uint8_t first[LONG_KEY];                   /* HKDF's first step */
    uint8_t text[TEXT_MAX + 1];
    uint32_t locked;
};

struct dp_vault *dp_vault_new(void)
{
    struct dp_vault *v = dp_map(sizeof *v);
    if (!v)
        return NULL;
    v->locked = mlock(v, sizeof *v) == 0;
    (void)madvise(v, sizeof *v, MADV_DONTDUMP);
    (void)madvise(v, sizeof *v, MADV_WIPEONFORK);
    return v;
}

void dp_vault_free(struct dp_vault *v)
{
    if (!v)
        return;
    OPENSSL_cleanse(v, sizeof *v);
    dp_unmap(v, sizeof *v);
}

int dp_vault_locked(const struct dp_vault *v) { return (int)v->locked; }

/* ---- ids: BLAKE2s of 4 bytes, `person` zenjunky (RFC 7693); a key is one block ---- */
static uint32_t rotr(uint32_t x, unsigned b) { return x >> b | x << (32 - b); }

static const uint32_t IV[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

static const uint8_t SIGMA[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static void mix(uint32_t *v, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotr(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotr(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotr(v[b] ^ v[c], 7);
}

static uint32_t id_of(const uint8_t *key, uint32_t size)
{
    uint32_t m[16] = {0}, v[16], h[8];
    uint8_t person[8] = {'z', 'e', 'n', 'j', 'u', 'n', 'k', 'y'};
    memcpy(m, key, size);
    memcpy(h, IV, sizeof h);
    h[0] ^= 0x01010000u | 4u;
    for (uint32_t i = 0; i < 8; i++)
        h[6 + i / 4] ^= (uint32_t)person[i] << 8 * (i % 4);
    memcpy(v, h, sizeof h);
    memcpy(v + 8, IV, sizeof IV);
    v[12] ^= size;
    v[14] = ~v[14];
    for (uint32_t i = 0; i < 16; i++)
        m[i] = le32toh(m[i]);
    for (uint32_t r = 0; r < 10; r++) {
        const uint8_t *s = SIGMA[r];
        for (uint32_t i = 0; i < 4; i++)
            mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (uint32_t i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    const uint32_t id = __builtin_bswap32(h[0] ^ v[0] ^ v[8]); /* as its bytes are written */
    OPENSSL_cleanse(m, sizeof m);
    OPENSSL_cleanse(v, sizeof v);
    return id;
}

/* ---- places ---- */
/* Its place: one that has it, or a free one; negative: there is none. */
static int keep(struct dp_vault *v, const uint8_t *key, uint32_t size)
{
    int at = -ENOSPC;
    for (uint32_t i = 0; i < PLACES; i++) {
        const struct kept *k = &v->kept[i];
        if (k->size == size && !CRYPTO_memcmp(k->bytes, key, size))
            return (int)i;
        if (!k->size && at < 0)
            at = (int)i;
    }
    if (at >= 0) {
        struct kept *k = &v->kept[at];
        memcpy(k->bytes, key, size);
        k->size = size;
        k->id = id_of(key, size);
    }
    return at;
}

static void tell(const struct dp_vault *v, int place, struct dp_vault_key *out)
{
    *out = (struct dp_vault_key){.place = (uint32_t)place, .size = v->kept[place].size, .id = v->kept[place].id};
}

int dp_vault_put(struct dp_vault *v, const uint8_t *key, uint32_t size, struct dp_vault_key *out)
{
    if (size != SHORT_KEY && size != LONG_KEY)
        return -EINVAL;
    const int at = keep(v, key, size);
    if (at < 0)
        return at;
    tell(v, at, out);
    return 0;
}

void dp_vault_only(struct dp_vault *v, uint32_t places)
{
    for (uint32_t i = 0; i < PLACES; i++)
        if (!(places >> i & 1))
            OPENSSL_cleanse(&v->kept[i], sizeof v->kept[i]);
}

const uint8_t *dp_vault_key(const struct dp_vault *v, uint32_t place)
{
    return place < PLACES && v->kept[place].size ? v->kept[place].bytes : NULL;
}

/* ---- key files, as `parse` of daemon/key.py ---- */
static int digit(uint8_t c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

/* Ends of lines, and blanks within them, for Python's str. */
static int is_end(uint8_t c) { return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e); }
static int is_blank(uint8_t c) { return is_end(c) || c == ' ' || c == '\t' || c == 0x1f; }

struct word { uint32_t line, at, size; };

/* Lines that are neither empty nor comments: so many, of which the first `most` are in out. */
static uint32_t words_of(const uint8_t *text, uint32_t size, struct word *out, uint32_t most)
{
    uint32_t count = 0, line = 1, at = 0;
    while (at < size) {
        uint32_t end = at, begin = at;
        while (end < size && !is_end(text[end]))
            end++;
        while (begin < end && is_blank(text[begin]))
            begin++;
        uint32_t stop = begin;
        while (stop < end && !is_blank(text[stop]))
            stop++;
        if (stop > begin && text[begin] != '#') {
            if (count < most)
                out[count] = (struct word){line, begin, stop - begin};
            count++;
        }
        at = end + 1 + (end + 1 < size && text[end] == '\r' && text[end + 1] == '\n');
        line++;
    }
    return count;
}

static int is_key(const uint8_t *text, struct word w, int alone)
{
    for (uint32_t i = 0; i < w.size; i++)
        if (digit(text[w.at + i]) < 0)
            return 0;
    return w.size == 2 * LONG_KEY || (alone && w.size == 2 * SHORT_KEY);
}

static int parse(struct dp_vault *v, uint32_t size, struct dp_vault_file *out)
{
    struct word words[TEXT_MAX / (2 * SHORT_KEY)];
    const uint32_t most = sizeof words / sizeof *words, count = words_of(v->text, size, words, most);
    if (size > TEXT_MAX || !count)
        return DP_VAULT_NO_KEY;
    for (uint32_t i = 0; i < min32(count, most); i++)
        if (!is_key(v->text, words[i], count == 1)) {
            out->line = words[i].line;
            return count == 1 ? DP_VAULT_NO_KEY : DP_VAULT_BAD_LINE;
        }
    out->count = count;
    if (count > DP_KEYS_MAX)
        return DP_VAULT_TOO_MANY;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *key = v->first;
        for (uint32_t k = 0; k < words[i].size / 2; k++)
            key[k] = (uint8_t)(digit(v->text[words[i].at + 2 * k]) << 4 | digit(v->text[words[i].at + 2 * k + 1]));
        const int at = keep(v, key, words[i].size / 2);
        if (at < 0)
            return at;
        tell(v, at, &out->key[i]);
        for (uint32_t k = 0; k < i; k++)
            if (out->key[k].id == out->key[i].id)
                return DP_VAULT_TWICE;
    }
    return 0;
}

int dp_vault_read(struct dp_vault *v, int fd, struct dp_vault_file *out)
{
    uint32_t size = 0;
    int result = 0;
    *out = (struct dp_vault_file){0};
    while (size <= TEXT_MAX) {
        const ssize_t n = read(fd, v->text + size, TEXT_MAX + 1 - size);
        if (n < 0 && errno == EINTR)
            continue;
        result = n < 0 ? -errno : 0;
        if (n <= 0)
            break;
        size += (uint32_t)n;
    }
    if (!result)
        result = parse(v, size, out);
    OPENSSL_cleanse(v->text, sizeof v->text);
    OPENSSL_cleanse(v->first, sizeof v->first);
    return result;
}

/* ---- what is derived: HKDF-SHA-256 without salt (RFC 5869), one block ---- */
static int hmac(const uint8_t *key, const uint8_t *data, size_t size, uint8_t out[LONG_KEY])
{
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    size_t made = 0;
    return EVP_Q_mac(NULL, "HMAC", NULL, NULL, params, key, LONG_KEY, data, size, out, LONG_KEY, &made) && made == LONG_KEY;
}

int dp_vault_derive(struct dp_vault *v, uint32_t place, const uint8_t *info, uint32_t size, uint32_t to)
{
    static const uint8_t salt[LONG_KEY];
    uint8_t whole[DP_VAULT_INFO_MAX + 1];
    const uint8_t *key = dp_vault_key(v, place);
    if (!key || v->kept[place].size != LONG_KEY || to >= DERIVED || size > DP_VAULT_INFO_MAX)
        return -EINVAL;
    memcpy(whole, info, size);
    whole[size] = 1;
    const int is_made = hmac(salt, key, LONG_KEY, v->first) && hmac(v->first, whole, size + 1, v->derived[to]);
    OPENSSL_cleanse(v->first, sizeof v->first);
    return is_made ? 0 : -ENOTSUP;
}

const uint8_t *dp_vault_derived(const struct dp_vault *v) { return v->derived[0]; }

void dp_vault_wipe(struct dp_vault *v) { OPENSSL_cleanse(v->derived, sizeof v->derived); }
