/* The guard of a cluster whose frames prove their sender: envelope and tag under a session, HELLO, and the checks of a receiver.
 *
 * Which sessions there are is Python's to say (proto/trust.py); here is what happens to each frame. The layout is that of
 * proto/envelope.py, whose `Reader` has the same checks in the same order. AES-256-GCM is libcrypto's, fetched once; a context per
 * session has its key, and only the nonce is set per frame: fetching in each call halves the speed (openssl#20625). */
#include "internal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <sys/random.h>

#include "zj_envelope.h"

#define WINDOW 8192u
#define WORDS 256u                             /* of bits, a ring over twice the window: a jump clears what it passes */
#define IV_BYTES 12
#define FRAME_MAX 65536u
#define LINE 64u                               /* of the processor's caches */
#define HIDDEN_MAX (LINE + FRAME_MAX + LINE)   /* bytes of the longest frame that is made hidden, and what lines it up */
#define CHALLENGES 256u                        /* more than leave within CHALLENGE_NS */
#define CHALLENGE_NS 2000000000ull
#define READ_PER_STATION 2u
#define UNREAD_NS 640000000ull                 /* a station whose frames are of no known session is to hear a HELLO once in so long */
#define WRITE_NS 10000000000ull                /* for so long at most a process may wait for its disk without counting as asleep */

/* A session that is read. */
struct session_read {
    EVP_CIPHER_CTX *cipher;                    /* NULL: none */
    uint8_t id[4];
    uint64_t first, top, unsequenced, heard, order;
    uint64_t seen[WORDS];
};

/* What is kept of a station's HELLOs between two visits of Python's: one of all, each with the same chance; that with the latest
 * clock; of those that return a challenge of this station's the latest. Recorded ones crowd out neither the second nor, where clocks
 * have gone back, the third. */
enum { HELLO_SOME, HELLO_LATEST, HELLO_FRESH, HELLO_PLACES };
struct hello_place { uint32_t size; uint64_t clock, returned; uint8_t data[DP_HELLO_MAX]; };
struct hellos { uint32_t heard; struct hello_place place[HELLO_PLACES]; };
struct challenge { uint64_t number, at; };
struct hello_key { EVP_MAC_CTX *mac; uint32_t id; }; /* mac: keyed once, and copied for each frame */

struct sealed {
    EVP_CIPHER *suite;
    EVP_CIPHER_CTX *cipher;                    /* of the own session; NULL: none yet */
    EVP_CIPHER_CTX *own;                       /* opens what it has sealed */
    uint8_t id[4];
    uint64_t next;                             /* number */
    uint32_t cluster, self, stations;
    uint8_t suite_number, encrypts;
    EVP_MAC *hmac;
    struct hello_key hello_key[DP_KEYS_MAX];
    uint32_t hello_keys;
    uint64_t unread, unread_due[ZJW_STATIONS_MAX]; /* by bit: stations of which a frame of no known session has come; not again before */
    uint64_t pause_ns, awake, planned, added, random;
    int64_t slept, as_if_ns;                   /* dp_slept as last seen, and what tests add to it */
    uint8_t asleep;                            /* this process did not run for a while: nothing is sealed until there is a new session */
    uint64_t hello_due, hellos;                /* by bit: stations whose HELLO waits */
    uint32_t hello_turn;                       /* station whose HELLO is given next */
    struct challenge challenge[CHALLENGES];    /* of this station's HELLOs, a ring */
    uint32_t challenges;
    uint8_t strange_is_new;
    struct hello_place strange;                /* the last one whose tag was wrong */
    struct hellos hello[ZJW_STATIONS_MAX];
    struct session_read read[ZJW_STATIONS_MAX][READ_PER_STATION];
    uint8_t plain[FRAME_MAX];                  /* of the frame being opened */
    uint8_t *hidden;                           /* frames on their way out, close to each other: a batch takes few lines of the caches */
    uint32_t hidden_end[DP_TX_BATCH];          /* of the batch: where the frame in each slot ends */
};

/* ---- the cipher ---- */
/* One that opens has the nonce of number 0, of which only the last eight bytes change. */
static EVP_CIPHER_CTX *keyed(const EVP_CIPHER *suite, const uint8_t key[32], int seals)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    uint8_t nonce[IV_BYTES] = {0};
    if (c && EVP_CipherInit_ex2(c, suite, key, NULL, seals, NULL) == 1 &&
        (seals || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_IV_FIXED, -1, nonce) == 1))
        return c;
    EVP_CIPHER_CTX_free(c);
    return NULL;
}

/* Envelope and body, as associated data; the body as text where out is not NULL. */
static int run(EVP_CIPHER_CTX *c, const uint8_t *envelope, const uint8_t *body, uint32_t size, uint8_t *out)
{
    int n;
    return EVP_CipherUpdate(c, NULL, &n, envelope, ZJE_SIZEOF_ENVELOPE) == 1 && EVP_CipherUpdate(c, out, &n, body, (int)size) == 1;
}

/* ---- sending ---- */
void envelope_put(uint8_t *p, uint32_t cluster, uint32_t self, uint32_t suite, uint32_t what, uint32_t piece, const uint8_t id[4],
                  uint32_t length, uint64_t number)
{
    be32(p + ZJE_ENVELOPE_CLUSTER, cluster);
    p[ZJE_ENVELOPE_VERSION] = ZJE_VERSION;
    p[ZJE_ENVELOPE_WHAT] = (uint8_t)what;
    p[ZJE_ENVELOPE_TX] = (uint8_t)(self + 1);
    p[ZJE_ENVELOPE_SUITE] = (uint8_t)suite;
    be16(p + ZJE_ENVELOPE_LENGTH, length);
    be16(p + ZJE_ENVELOPE_PIECE, piece);
    memcpy(p + ZJE_ENVELOPE_SESSION, id, 4);
    be64(p + ZJE_ENVELOPE_NUMBER, number);
}

static void put_envelope(const struct sealed *s, uint8_t *p, uint32_t what, uint32_t piece, const uint8_t id[4], uint32_t length,
                         uint64_t number)
{
    envelope_put(p, s->cluster, s->self, s->suite_number, what, piece, id, length, number);
}

int sealed_can_seal(const struct dp_guard *g)
{
    sealed_awake(g, dp_now());
    return g->sealed->cipher && !g->sealed->asleep;
}

/* Where the frame of this slot is made; its body begins a line. */
static uint8_t *hidden_at(struct sealed *s, uint32_t slot, uint32_t size)
{
    if (slot >= DP_TX_BATCH)
        return s->hidden + (uint64_t)DP_TX_BATCH * HIDDEN_MAX + LINE - ZJE_SIZEOF_ENVELOPE;
    const uint32_t at = slot ? s->hidden_end[slot - 1] : 0;
    s->hidden_end[slot] = (at + LINE + size + ZJE_TAG_BYTES + LINE - 1) & ~(LINE - 1);
    return s->hidden + at + LINE - ZJE_SIZEOF_ENVELOPE;
}

static uint32_t seal_as(const struct dp_guard *g, uint32_t what, uint32_t piece, uint32_t slot, const struct zj_frame *pdu,
                        uint8_t room[DP_OVERHEAD_MAX], struct iovec parts[DP_GUARD_PARTS])
{
    struct sealed *s = g->sealed;
    uint8_t *envelope = s->encrypts ? hidden_at(s, slot, pdu->size) : room, *body = s->encrypts ? envelope + ZJE_SIZEOF_ENVELOPE : NULL;
    uint8_t *tag = body ? body + pdu->size : room + ZJE_SIZEOF_ENVELOPE, rest[16], nonce[IV_BYTES] = {0};
    int n;
    be64(nonce + IV_BYTES - sizeof s->next, s->next);
    put_envelope(s, envelope, what, piece, s->id, pdu->size, s->next++);
    /* A number is used up whatever becomes of the frame: two seals under one break the cipher. Size -1: all of the nonce. */
    const OSSL_PARAM with[] = {OSSL_PARAM_construct_octet_string(OSSL_CIPHER_PARAM_AEAD_TLS1_IV_FIXED, nonce, (size_t)-1),
                               OSSL_PARAM_construct_end()};
    if (EVP_CIPHER_CTX_set_params(s->cipher, with) != 1 || !run(s->cipher, envelope, pdu->data, pdu->size, body) ||
        EVP_EncryptFinal_ex(s->cipher, rest, &n) != 1 || EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_AEAD_GET_TAG, ZJE_TAG_BYTES, tag) != 1)
        memset(tag, 0, ZJE_TAG_BYTES); /* nobody takes it */
    parts[0] = (struct iovec){envelope, ZJE_SIZEOF_ENVELOPE + (body ? pdu->size + ZJE_TAG_BYTES : 0)};
    if (body)
        return 1;
    parts[1] = (struct iovec){(void *)(uintptr_t)pdu->data, pdu->size};
    parts[2] = (struct iovec){tag, ZJE_TAG_BYTES};
    return 3;
}

uint32_t sealed_seal(const struct dp_guard *g, uint32_t slot, const struct zj_frame *pdu, uint8_t room[DP_OVERHEAD_MAX],
                     struct iovec parts[DP_GUARD_PARTS])
{
    return seal_as(g, ZJE_WHAT_PDU, 0, slot, pdu, room, parts);
}

uint32_t sealed_whole(const struct dp_guard *g, uint32_t what, uint32_t piece, const struct zj_frame *body, uint8_t *out)
{
    uint8_t room[DP_OVERHEAD_MAX];
    struct iovec parts[DP_GUARD_PARTS];
    const uint32_t count = seal_as(g, what, piece, DP_TX_BATCH, body, room, parts);
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(out + total, parts[i].iov_base, parts[i].iov_len);
        total += (uint32_t)parts[i].iov_len;
    }
    return total;
}

/* ---- HELLO ---- */
static EVP_MAC_CTX *keyed_mac(EVP_MAC *hmac, const uint8_t key[32])
{
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    EVP_MAC_CTX *c = EVP_MAC_CTX_new(hmac);
    if (c && EVP_MAC_init(c, key, 32, params) == 1)
        return c;
    EVP_MAC_CTX_free(c);
    return NULL;
}

static int hello_tag(const EVP_MAC_CTX *mac, const uint8_t *frame, uint32_t size, uint8_t out[ZJE_TAG_BYTES])
{
    uint8_t whole[EVP_MAX_MD_SIZE];
    size_t n = 0;
    EVP_MAC_CTX *c = EVP_MAC_CTX_dup(mac);
    const int is_made = c && EVP_MAC_update(c, frame, size) == 1 && EVP_MAC_final(c, whole, &n, sizeof whole) == 1;
    EVP_MAC_CTX_free(c);
    if (!is_made || n < ZJE_TAG_BYTES)
        return 0;
    memcpy(out, whole, ZJE_TAG_BYTES);
    return 1;
}

uint32_t sealed_hello(const struct dp_guard *g, uint32_t key, const uint8_t *body, uint32_t size, uint8_t out[DP_HELLO_MAX])
{
    struct sealed *s = g->sealed;
    const uint32_t end = ZJE_SIZEOF_ENVELOPE + size;
    if (size < ZJE_SIZEOF_HELLO || end + ZJE_TAG_BYTES > DP_HELLO_MAX || key >= s->hello_keys)
        return 0;
    const uint64_t challenge = from64(body + ZJE_HELLO_CHALLENGE);
    if (!s->challenges || s->challenge[(s->challenges - 1) % CHALLENGES].number != challenge) /* the parts of a HELLO have one */
        s->challenge[s->challenges++ % CHALLENGES] = (struct challenge){challenge, dp_now()};
    put_envelope(g->sealed, out, ZJE_WHAT_HELLO, 0, body + ZJE_HELLO_HELLO_SESSION, size, s->hello_key[key].id);
    memcpy(out + ZJE_SIZEOF_ENVELOPE, body, size);
    return hello_tag(s->hello_key[key].mac, out, end, out + end) ? end + ZJE_TAG_BYTES : 0;
}

/* ---- the window: RFC 6479 ---- */
static int window_look(const struct session_read *r, uint64_t number)
{
    if (number < r->first || (r->top >= WINDOW && number <= r->top - WINDOW))
        return DP_R_LATE;
    if (number > r->top)
        return 0;
    return r->seen[number / 64 % WORDS] >> number % 64 & 1 ? DP_R_REPLAYED : 0;
}

static void window_mark(struct session_read *r, uint64_t number)
{
    if (number > r->top) {
        const uint64_t words = number / 64 - r->top / 64;
        for (uint64_t i = 1; i <= min64(words, WORDS); i++) /* bound: WORDS */
            r->seen[(r->top / 64 + i) % WORDS] = 0;
        r->top = number;
    }
    r->seen[number / 64 % WORDS] |= 1ull << number % 64;
}

/* ---- receiving ---- */
static struct session_read *find(struct sealed *s, uint32_t tx, const uint8_t id[4])
{
    for (uint32_t i = 0; tx < s->stations && i < READ_PER_STATION; i++)
        if (s->read[tx][i].cipher && !memcmp(s->read[tx][i].id, id, 4))
            return &s->read[tx][i];
    return NULL;
}

static void keep(struct hello_place *place, const uint8_t *frame, uint32_t size)
{
    place->size = size;
    place->clock = from64(frame + ZJE_SIZEOF_ENVELOPE + ZJE_HELLO_CLOCK);
    memcpy(place->data, frame, size);
}

/* When the challenge was drawn, if that is CHALLENGE_NS ago at most and this station has said it; else 0. */
static uint64_t drawn_at(const struct sealed *s, const uint8_t *p, uint64_t now)
{
    const uint64_t number = from64(p);
    for (uint32_t i = 0; number && i < CHALLENGES; i++) /* an unused place has 0 */
        if (s->challenge[i].number == number && now - s->challenge[i].at <= CHALLENGE_NS)
            return s->challenge[i].at;
    return 0;
}

/* When the latest challenge was drawn that a HELLO returns; 0: it is not fresh. */
static uint64_t returned_at(const struct sealed *s, const uint8_t *frame, uint32_t end)
{
    const uint8_t *hello = frame + ZJE_SIZEOF_ENVELOPE;
    const uint32_t at = ZJE_SIZEOF_ENVELOPE + ZJE_SIZEOF_HELLO + 4u * hello[ZJE_HELLO_KEYS] +
                        s->self % ZJE_ECHOES_PER_PART * ZJE_SIZEOF_ECHO;
    const uint64_t now = dp_now();
    if (at + ZJE_SIZEOF_ECHO > end)
        return 0;
    return max64(drawn_at(s, frame + at + ZJE_ECHO_ECHO, now), drawn_at(s, frame + at + ZJE_ECHO_OTHER, now));
}

/* A fresh one, unless one is kept that was made later: what was recorded in the last seconds is fresh as well, and must not crowd out
 * the HELLO of another session. */
static void keep_fresh(struct hello_place *place, const uint8_t *frame, uint32_t end, uint64_t returned)
{
    const uint64_t clock = from64(frame + ZJE_SIZEOF_ENVELOPE + ZJE_HELLO_CLOCK);
    if (place->size && (returned < place->returned || (returned == place->returned && clock < place->clock)))
        return;
    keep(place, frame, end);
    place->returned = returned;
}

/* xorshift64: the sender of recorded HELLOs is not to know which of them is kept. */
static uint32_t below(struct sealed *s, uint32_t limit)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (uint32_t)(s->random >> 32) % limit;
}

static int has_tag_of(const struct hello_key *key, const uint8_t *frame, uint32_t end)
{
    uint8_t tag[ZJE_TAG_BYTES];
    return hello_tag(key->mac, frame, end, tag) && !CRYPTO_memcmp(tag, frame + end, sizeof tag);
}

static const struct hello_key *key_of(const struct sealed *s, uint64_t id)
{
    for (uint32_t k = 0; k < s->hello_keys; k++)
        if (s->hello_key[k].id == id)
            return &s->hello_key[k];
    return NULL;
}

/* The key that its session is made of, if that is ours. A session is proven under that one only, so that whoever has one key can
 * prove nothing under another. 0: it names none. */
static int own_key_of(const struct sealed *s, const uint8_t *hello, uint32_t size, const struct hello_key **key)
{
    const uint32_t at = ZJE_SIZEOF_HELLO + 4u * hello[ZJE_HELLO_SENDING];
    *key = NULL;
    if (hello[ZJE_HELLO_SENDING] >= hello[ZJE_HELLO_KEYS] || at + 4 > size)
        return 0;
    *key = key_of(s, from32(hello + at));
    return 1;
}

/* Why a HELLO does not count, 0: it does; one look at a tag at most where it names its key. Where the key of its session is not
 * ours, it is for Python to say so. */
static int look_at_tag(struct sealed *s, const uint8_t *frame, uint32_t end)
{
    const uint64_t named = from64(frame + ZJE_ENVELOPE_NUMBER); /* 0: by a version that does not name it */
    const struct hello_key *its, *under;
    if (!own_key_of(s, frame + ZJE_SIZEOF_ENVELOPE, end - ZJE_SIZEOF_ENVELOPE, &its))
        return DP_R_HELLO;
    if (named && its && its->id != named)
        return DP_R_HELLO; /* its copy under the right key counts */
    const struct hello_key *key = named ? key_of(s, named) : NULL;
    under = key && has_tag_of(key, frame, end) ? key : NULL;
    for (uint32_t k = 0; !named && !under && k < s->hello_keys; k++)
        under = has_tag_of(&s->hello_key[k], frame, end) ? &s->hello_key[k] : NULL;
    if (under)
        return its && its != under ? DP_R_HELLO : 0;
    keep(&s->strange, frame, end);
    s->strange_is_new = 1;
    return DP_R_TAG;
}

/* Its tag is looked at here, so that a flood costs no more than that. */
static int take_hello(struct sealed *s, const uint8_t *frame, uint32_t end)
{
    const uint32_t tx = frame[ZJE_ENVELOPE_TX] - 1u;
    int error;
    if (end < ZJE_SIZEOF_ENVELOPE + ZJE_SIZEOF_HELLO || end > DP_HELLO_MAX)
        return DP_R_SIZE;
    if (tx >= s->stations || frame[ZJE_SIZEOF_ENVELOPE + ZJE_HELLO_PART] != s->self / ZJE_ECHOES_PER_PART)
        return DP_R_HELLO; /* a part that is about others: not worth a look at its tag */
    if ((error = look_at_tag(s, frame, end)) != 0)
        return error;
    struct hellos *h = &s->hello[tx];
    if (!(s->hellos >> tx & 1))
        h->heard = h->place[HELLO_SOME].size = h->place[HELLO_LATEST].size = h->place[HELLO_FRESH].size = 0;
    s->hellos |= 1ull << tx;
    const uint64_t returned = returned_at(s, frame, end);
    if (returned) {
        keep_fresh(&h->place[HELLO_FRESH], frame, end, returned);
        return DP_R_HELLO;
    }
    struct hello_place *latest = &h->place[HELLO_LATEST];
    if (!latest->size || from64(frame + ZJE_SIZEOF_ENVELOPE + ZJE_HELLO_CLOCK) >= latest->clock)
        keep(latest, frame, end);
    else if (below(s, ++h->heard) == 0)
        keep(&h->place[HELLO_SOME], frame, end);
    return DP_R_HELLO;
}

/* A frame of a session that nobody has proven here: where the station is alive, its HELLO has been lost. */
static int unproven(struct sealed *s, uint32_t tx, uint64_t now)
{
    if (tx < s->stations && now >= s->unread_due[tx]) {
        s->unread |= 1ull << tx;
        s->unread_due[tx] = now + UNREAD_NS;
    }
    return DP_R_UNPROVEN;
}

/* A PDU of another station than the frame's: only what is in a stream, or a CONFIRM that is passed on. And an unsequenced PDU is
 * not taken after a later one: what it says has been said anew. */
static int of_sender(const struct sealed *s, struct session_read *r, uint32_t tx, uint64_t number, const uint8_t *pdu, uint32_t size)
{
    if (size < ZJW_SIZEOF_HEADER)
        return DP_R_SIZE;
    if (is_of_stream(pdu))
        return 0;
    const int relayed = pdu[ZJW_HEADER_KIND] == ZJW_KIND_CONFIRM && pdu[ZJW_HEADER_FLAGS] & ZJW_FLAG_RELAYED;
    if (!relayed && pdu[ZJW_HEADER_SRC] != tx + 1)
        return DP_R_SPOOFED;
    if (number < r->unsequenced)
        return DP_R_REORDERED;
    for (const struct session_read *o = s->read[tx]; o < s->read[tx] + READ_PER_STATION; o++)
        if (o->cipher && o->order > r->order && o->unsequenced)
            return DP_R_REORDERED; /* it seals under a later session by now */
    r->unsequenced = number;
    return 0;
}

/* Whether the tag behind a body of so many bytes is that of the cipher's session. plain: for the text; NULL: it is not encrypted.
 * Tag and nonce are set by one call; EVP_CipherInit_ex2 would ask for the length of the nonce each time, by name. */
static int has_tag(EVP_CIPHER_CTX *c, const uint8_t *p, uint32_t size, uint8_t *plain)
{
    uint8_t tag[ZJE_TAG_BYTES], number[8], rest[16];
    const uint32_t end = ZJE_SIZEOF_ENVELOPE + size;
    int n;
    memcpy(number, p + ZJE_ENVELOPE_NUMBER, sizeof number);
    memcpy(tag, p + end, sizeof tag);
    const OSSL_PARAM with[] = {OSSL_PARAM_construct_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, tag, sizeof tag),
                               OSSL_PARAM_construct_octet_string(OSSL_CIPHER_PARAM_AEAD_TLS1_SET_IV_INV, number, sizeof number),
                               OSSL_PARAM_construct_end()};
    if (EVP_CIPHER_CTX_set_params(c, with) != 1)
        return 0;
    if (!plain) /* they follow each other: one call */
        return EVP_CipherUpdate(c, NULL, &n, p, (int)end) == 1 && EVP_DecryptFinal_ex(c, rest, &n) == 1;
    return run(c, p, p + ZJE_SIZEOF_ENVELOPE, size, plain) && EVP_DecryptFinal_ex(c, rest, &n) == 1;
}

int sealed_is_own(const struct dp_guard *g, const struct zj_frame *frame)
{
    struct sealed *s = g->sealed;
    const uint8_t *p = frame->data;
    if (!s)
        return 1;
    const uint32_t size = from16(p + ZJE_ENVELOPE_LENGTH);
    const uint64_t number = from64(p + ZJE_ENVELOPE_NUMBER);
    return s->own && p[ZJE_ENVELOPE_WHAT] != ZJE_WHAT_HELLO && ZJE_SIZEOF_ENVELOPE + size + ZJE_TAG_BYTES <= frame->size &&
           !memcmp(p + ZJE_ENVELOPE_SESSION, s->id, sizeof s->id) && number && number < s->next &&
           has_tag(s->own, p, size, s->encrypts ? s->plain : NULL);
}

int sealed_open(const struct dp_guard *g, struct zj_frame *frame, uint64_t now)
{
    struct sealed *s = g->sealed;
    const uint8_t *p = frame->data;
    int error;
    if (frame->size < ZJE_SIZEOF_ENVELOPE)
        return DP_R_SIZE;
    if (p[ZJE_ENVELOPE_VERSION] != ZJE_VERSION)
        return DP_R_VERSION;
    const uint32_t size = from16(p + ZJE_ENVELOPE_LENGTH), end = ZJE_SIZEOF_ENVELOPE + size, tx = p[ZJE_ENVELOPE_TX] - 1u;
    if (end + ZJE_TAG_BYTES > frame->size)
        return DP_R_SIZE;
    if (p[ZJE_ENVELOPE_WHAT] == ZJE_WHAT_HELLO)
        return take_hello(s, p, end);
    const uint32_t what = p[ZJE_ENVELOPE_WHAT];
    if (what < ZJE_WHAT_PDU || what > ZJE_WHAT_PIECE || p[ZJE_ENVELOPE_SUITE] != s->suite_number ||
        (from16(p + ZJE_ENVELOPE_PIECE) != 0) != (what == ZJE_WHAT_PIECE))
        return DP_R_SUITE;
    if (tx == s->self)
        return DP_R_OWN;
    struct session_read *r = find(s, tx, p + ZJE_ENVELOPE_SESSION);
    if (!r)
        return unproven(s, tx, now);
    const uint64_t number = from64(p + ZJE_ENVELOPE_NUMBER);
    if ((error = window_look(r, number)) != 0)
        return error;
    uint8_t *plain = s->encrypts ? s->plain : NULL;
    if (!has_tag(r->cipher, p, size, plain))
        return DP_R_TAG;
    window_mark(r, number);
    r->heard = now;
    *frame = (struct zj_frame){.data = plain ? plain : p + ZJE_SIZEOF_ENVELOPE, .size = size};
    return what == ZJE_WHAT_PDU ? of_sender(s, r, tx, number, frame->data, size) : guard_word(what);
}

/* ---- sessions ---- */
static void forget(struct session_read *r)
{
    EVP_CIPHER_CTX_free(r->cipher); /* which clears the key */
    memset(r, 0, sizeof *r);
}

int dp_seal_under(struct dp *d, const uint8_t id[4], const uint8_t key[32])
{
    struct sealed *s = d->guard.sealed;
    if (!s || (s->cipher && !memcmp(s->id, id, sizeof s->id)))
        return -EINVAL; /* a session twice would begin again at number 1 */
    EVP_CIPHER_CTX *cipher = keyed(s->suite, key, 1), *own = keyed(s->suite, key, 0);
    if (!cipher || !own) {
        EVP_CIPHER_CTX_free(cipher);
        EVP_CIPHER_CTX_free(own);
        return -ENOMEM;
    }
    EVP_CIPHER_CTX_free(s->cipher);
    EVP_CIPHER_CTX_free(s->own);
    s->cipher = cipher;
    s->own = own;
    memcpy(s->id, id, 4);
    s->next = 1;
    s->asleep = 0;
    s->awake = dp_now();
    s->planned = 0;
    return 0;
}

int dp_session_read(struct dp *d, uint32_t tx, const uint8_t id[4], const uint8_t key[32], uint64_t first)
{
    struct sealed *s = d->guard.sealed;
    if (!s || tx >= s->stations || !first || find(s, tx, id))
        return -EINVAL;
    for (uint32_t i = 0; i < READ_PER_STATION; i++) {
        struct session_read *r = &s->read[tx][i];
        if (r->cipher)
            continue;
        r->cipher = keyed(s->suite, key, 0);
        if (!r->cipher)
            return -ENOMEM;
        memcpy(r->id, id, 4);
        r->first = first;
        r->top = first - 1;
        r->heard = dp_now();
        r->order = ++s->added;
        return 0;
    }
    return -ENOSPC;
}

int dp_session_forget(struct dp *d, uint32_t tx, const uint8_t id[4])
{
    struct session_read *r = d->guard.sealed ? find(d->guard.sealed, tx, id) : NULL;
    if (!r)
        return -ENOENT;
    forget(r);
    return 0;
}

uint64_t dp_session_heard(struct dp *d, uint32_t tx, const uint8_t id[4])
{
    const struct session_read *r = d->guard.sealed ? find(d->guard.sealed, tx, id) : NULL;
    return r ? r->heard : 0;
}

int dp_asleep(const struct dp *d) { return d->guard.sealed && d->guard.sealed->asleep; }

uint64_t dp_next_number(const struct dp *d) { return d->guard.sealed ? d->guard.sealed->next : 0; }

/* ---- HELLO, for Python ---- */
static void give(struct dp_hello *out, const struct hello_place *place)
{
    memcpy(out->data, place->data, place->size);
    out->size = place->size;
}

int dp_hello_take(struct dp *d, struct dp_hello *out)
{
    struct sealed *s = d->guard.sealed;
    if (!s || !s->hellos)
        return 0;
    while (!(s->hellos >> s->hello_turn & 1)) /* bound: ZJW_STATIONS_MAX; in turn, so that a flood of one's keeps no other's away */
        s->hello_turn = (s->hello_turn + 1) % ZJW_STATIONS_MAX;
    struct hello_place *place = s->hello[s->hello_turn].place;
    while (!place->size) /* bound: HELLO_PLACES; a station that is marked has one */
        place++;
    give(out, place);
    place->size = 0;
    for (place = s->hello[s->hello_turn].place; place < s->hello[s->hello_turn].place + HELLO_PLACES; place++)
        if (place->size)
            return 1;
    s->hellos &= ~(1ull << s->hello_turn);
    s->hello_turn = (s->hello_turn + 1) % ZJW_STATIONS_MAX;
    return 1;
}

static void forget_keys(struct hello_key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        EVP_MAC_CTX_free(keys[i].mac); /* which clears the key */
}

int dp_hello_keys(struct dp *d, uint32_t count, const uint8_t *keys, const uint32_t *ids)
{
    struct sealed *s = d->guard.sealed;
    if (!s || !count || count > DP_KEYS_MAX)
        return -EINVAL;
    struct hello_key made[DP_KEYS_MAX] = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        made[i] = (struct hello_key){keyed_mac(s->hmac, keys + 32 * i), ids[i]};
        if (!made[i].mac) {
            forget_keys(made, count);
            return -ENOMEM;
        }
    }
    forget_keys(s->hello_key, s->hello_keys);
    memcpy(s->hello_key, made, sizeof made);
    s->hello_keys = count;
    return 0;
}

uint64_t dp_unread(struct dp *d)
{
    struct sealed *s = d->guard.sealed;
    const uint64_t unread = s ? s->unread : 0;
    if (s)
        s->unread = 0;
    return unread;
}

void dp_hello_rest(struct dp *d, uint64_t until)
{
    if (d->guard.sealed)
        d->guard.sealed->hello_due = until;
}

int dp_hello_strange(struct dp *d, struct dp_hello *out)
{
    struct sealed *s = d->guard.sealed;
    if (!s || !s->strange_is_new)
        return 0;
    give(out, &s->strange);
    s->strange_is_new = 0;
    return 1;
}

uint64_t sealed_due(const struct dp_guard *g)
{
    const struct sealed *s = g->sealed;
    return s->asleep ? 0 : s->hellos || s->unread ? s->hello_due : UINT64_MAX;
}

/* What was planned is no pause. A machine that was asleep may have been copied meanwhile, however short that was. */
void sealed_awake(const struct dp_guard *g, uint64_t now)
{
    struct sealed *s = g->sealed;
    const int64_t slept = dp_slept() + s->as_if_ns;
    if (s->awake && slept - s->slept > DP_SLEPT_NS)
        s->asleep = 1;
    if (!s->awake || slept > s->slept)
        s->slept = slept;
    if (s->pause_ns && s->awake && now > s->awake && now - s->awake > s->pause_ns && now > s->planned && now - s->planned > s->pause_ns)
        s->asleep = 1;
    s->awake = now;
}

int dp_has_written(struct dp *d, uint64_t since)
{
    struct sealed *s = d->guard.sealed;
    const uint64_t now = dp_now();
    if (!s || since > now || now - since > WRITE_NS)
        return 0;
    sealed_awake(&d->guard, since); /* a pause before that is one */
    s->awake = s->awake ? now : 0;
    return !s->asleep;
}

int dp_as_if_slept(struct dp *d, uint64_t ns)
{
    if (!d->guard.sealed)
        return -EINVAL;
    d->guard.sealed->as_if_ns += (int64_t)ns;
    return 0;
}

void sealed_plan(const struct dp_guard *g, uint64_t due) { g->sealed->planned = due; }

/* ---- start and end ---- */
int sealed_init(struct dp_guard *g, const struct dp_config *cfg)
{
    if (cfg->stations < 1 || cfg->stations > ZJW_STATIONS_MAX || cfg->self >= cfg->stations ||
        (cfg->suite & ~ZJE_ENCRYPTED) != ZJE_SUITE_AES_256_GCM)
        return -EINVAL;
    struct sealed *s = g->sealed = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->cluster = cfg->cluster;
    s->self = cfg->self;
    s->stations = cfg->stations;
    s->suite_number = (uint8_t)cfg->suite;
    s->encrypts = (cfg->suite & ZJE_ENCRYPTED) != 0;
    s->pause_ns = cfg->pause_ns;
    s->hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    s->hello_key[0] = (struct hello_key){s->hmac ? keyed_mac(s->hmac, cfg->hello_key) : NULL, cfg->hello_id};
    s->hello_keys = 1;
    if (getrandom(&s->random, sizeof s->random, 0) != sizeof s->random || !s->random)
        s->random = 1; /* which of several HELLOs is kept can then be foreseen, nothing else */
    uint8_t tag[ZJE_TAG_BYTES] = {0};
    s->suite = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    s->hidden = s->encrypts ? dp_map((size_t)DP_TX_SLOTS * HIDDEN_MAX) : NULL;
    const int can = s->suite && s->hello_key[0].mac && hello_tag(s->hello_key[0].mac, tag, 0, tag);
    if (can && (s->hidden || !s->encrypts))
        return 0;
    sealed_free(g);
    return can ? -ENOMEM : -ENOTSUP;
}

void sealed_free(struct dp_guard *g)
{
    struct sealed *s = g->sealed;
    if (!s)
        return;
    for (uint32_t h = 0; h < ZJW_STATIONS_MAX; h++)
        for (uint32_t i = 0; i < READ_PER_STATION; i++)
            forget(&s->read[h][i]);
    forget_keys(s->hello_key, s->hello_keys);
    EVP_MAC_free(s->hmac);
    EVP_CIPHER_CTX_free(s->cipher);
    EVP_CIPHER_CTX_free(s->own);
    EVP_CIPHER_free(s->suite);
    if (s->hidden)
        dp_unmap(s->hidden, (size_t)DP_TX_SLOTS * HIDDEN_MAX);
    OPENSSL_cleanse(s, sizeof *s);
    free(s);
    g->sealed = NULL;
}
