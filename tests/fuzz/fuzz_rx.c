/* A station under attack: an open instance is fed PDUs, time and local work in any order. Some stations are ends of a link (PAIR).
 *
 * Input: four bytes of configuration (see configure()), then operations, each a byte and what it needs (see run()). So that the fuzzer
 * gets beyond identity and checksum, a PDU operation has a byte of REPAIR_ bits: what of the header the harness makes to fit the
 * station before the PDU is handed over. A mutator that knows the operations and the fields does half of the mutations.
 *
 * The station removes others and lets them in as it likes: the agreement is the engine's, and the engine trusts no PDU either.
 *
 * Invariants (station_is_sound, deliver, transmit): cursors of each stream in order and never going back, matrix minima true over the
 * members, nobody has acknowledged what was not sent, levels in order and never going back, deliveries and view events in (clock, src)
 * order inside their bounds, every frame for the wire passes the codec's own check and fits the frame limit. */
#include "harness.h"

#define FRAME_MAX 600u
#define MESSAGE_MAX 4096u
#define STATIONS_MAX 5u
#define OPERATIONS_MAX 400

enum operation { OP_PDU, OP_PDU_TOO, OP_STEP, OP_TIME, OP_OFFER, OP_TIMERS, OP_LIFE, OP_WORK, OP_MEMBER, OP_COUNT };
enum repair { REPAIR_IDENTITY = 1, REPAIR_SOURCE = 2, REPAIR_INSTANCE = 4, REPAIR_SEQ = 8, REPAIR_VECTORS = 16, REPAIR_CLOCK = 32, REPAIR_SEAL = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

struct station {
    zj_core *core, *all; /* all: of a link, the other station's core of all stations */
    struct zj_config config;
    uint64_t now;
    uint32_t instance;
    uint64_t members;
    uint32_t incarnations[64];
    /* what was seen last, since the instance was entered */
    uint64_t positions[ZJ_LEVELS];
    struct zj_peer peers[STATIONS_MAX];
    uint64_t al[STATIONS_MAX * STATIONS_MAX];
    int delivered, at_view; /* at_view: the last was a view event */
    uint64_t clock, position;
    uint32_t src, index;
    uint64_t op_clock[STATIONS_MAX];
};
#define VIEW(instance) (1000u + (instance))

static void begin(struct station *s)
{
    memset(s->positions, 0, sizeof s->positions);
    memset(s->peers, 0, sizeof s->peers);
    memset(s->al, 0, sizeof s->al);
    memset(s->op_clock, 0, sizeof s->op_clock);
    s->delivered = s->at_view = 0;
}

static void enter(struct station *s)
{
    s->members = (UINT64_C(1) << s->config.stations) - 1;
    for (uint32_t h = 0; h < s->config.stations; h++)
        s->incarnations[h] = INCARNATION(h);
    CHECK(zj_open(s->core, s->now, s->instance, VIEW(s->instance), s->incarnations, FRAME_MAX) == 0);
    begin(s);
}

/* As a joiner: the stations of `voters` are members before, the others come with this one. */
static void join(struct station *s, uint32_t voters, uint32_t seq)
{
    struct zj_start start[STATIONS_MAX];
    uint32_t n = s->config.stations;
    voters &= ((1u << n) - 1) & ~(1u << s->config.self);
    if (!voters)
        return;
    uint64_t place = (uint64_t)s->instance << 32 | seq;
    s->instance++;
    for (uint32_t h = 0; h < n; h++) {
        s->incarnations[h] = INCARNATION(h) + (h == s->config.self);
        start[h] = (struct zj_start){.role = voters >> h & 1 ? 1 : 2, .incarnation = s->incarnations[h], .seq = seq, .clock = place};
    }
    s->members = (UINT64_C(1) << n) - 1;
    CHECK(zj_join(s->core, s->now, s->instance, VIEW(s->instance), start, place, (uint32_t)__builtin_ctz(voters), FRAME_MAX) == 0);
    begin(s);
}

static void configure(struct station *s, struct input *in)
{
    static const uint32_t firsts[] = {0, 0xfffffff8u, 0x7ffffffcu, 0xffffffffu};
    uint32_t a = take8(in), b = take8(in), c = take8(in), d = take8(in);
    struct zj_config *f = &s->config;
    *f = (struct zj_config){
        .size = sizeof *f, .stations = 1 + a % STATIONS_MAX, .cluster = CLUSTER, .slots = 4u << b % 4, .frame_max = FRAME_MAX,
        .message_max = MESSAGE_MAX, .first_seq = firsts[d % 4], .seed = d, .confirm_delay_ns = 200000, .nak_delay_ns = 100000,
        .nak_retry_ns = 500000, .nak_retry_max_ns = 8000000, .poll_delay_ns = 2000000, .poll_delay_max_ns = 64000000,
        .retransmit_gap_ns = 300000,
    };
    f->self = a / STATIONS_MAX % f->stations;
    f->window = 1 + c % (f->slots / 2);
    if (f->stations == 2 && d & 0x80) {
        struct zj_config all = *f;
        f->pair[0] = 2;
        f->pair[1] = 5;
        all.stations = 6;
        all.self = f->pair[1 - f->self] - 1;
        CHECK(zj_create(&all, &s->all) == 0);
    }
    s->now = 1;
    s->instance = INSTANCE;
    CHECK(zj_create(f, &s->core) == 0);
    enter(s);
}

static void stream_is_sound(const struct station *s, uint32_t h, const struct zj_peer *p, const uint64_t *al)
{
    const struct zj_peer *old = &s->peers[h];
    uint32_t n = s->config.stations, slots = s->config.slots;
    uint64_t least = UINT64_MAX;

    CHECK(p->base <= p->ordered && p->ordered <= p->req && p->req <= p->top);
    CHECK(p->req - p->base <= slots && p->top - p->base <= 2 * (uint64_t)slots);
    CHECK(p->gaps <= p->top - p->req);
    CHECK(p->base <= p->min_al && p->acked <= p->min_al);
    for (uint32_t j = 0; j < n; j++) {
        uint64_t v = al[h * n + j];
        if (!(s->members >> j & 1))
            continue;
        least = v < least ? v : least;
        /* nobody has what does not exist (of itself, a liar may say so: nobody else counts it); of what is being removed, others may */
        CHECK(v <= p->top || j == h || p->closing);
        CHECK(v >= s->al[h * n + j]); /* acknowledgements are not taken back */
    }
    CHECK(least == p->min_al && p->member == (s->members >> h & 1));
    CHECK(!p->closing || (p->member && p->req <= p->limit && p->top <= p->limit));
    CHECK(p->req >= old->req && p->top >= old->top && p->base >= old->base && p->min_al >= old->min_al);
    CHECK(p->acked >= old->acked && p->ordered >= old->ordered && p->clock >= old->clock);
    CHECK(p->clock < UINT64_C(1) << 63);
    if (h == s->config.self)
        CHECK(p->req == p->top && p->gaps == 0);
}

static void station_is_sound(struct station *s)
{
    uint64_t positions[ZJ_LEVELS], al[STATIONS_MAX * STATIONS_MAX];
    uint32_t n = s->config.stations;

    if (!zj_is_open(s->core))
        return;
    zj_matrix(s->core, al);
    for (uint32_t h = 0; h < n; h++) {
        struct zj_peer p;
        zj_peer(s->core, h, &p);
        stream_is_sound(s, h, &p, al);
        s->peers[h] = p;
    }
    memcpy(s->al, al, n * n * sizeof *al);
    zj_positions(s->core, positions);
    CHECK(positions[ZJ_ORDERED] >= positions[ZJ_PREACK] && positions[ZJ_PREACK] >= positions[ZJ_ACK]);
    for (int level = 0; level < ZJ_LEVELS; level++) {
        CHECK(positions[level] >= s->positions[level]);
        s->positions[level] = positions[level];
    }
    uint64_t at, digest;
    uint32_t counted;
    zj_digest(s->core, &counted, &at, &digest);
    CHECK(at <= positions[ZJ_ORDERED]);
}

static void deliver(struct station *s, uint32_t max)
{
    struct zj_message m;
    volatile uint8_t sink = 0;
    while (max-- && zj_next(s->core, &m) == 1) {
        uint32_t n = s->config.stations;
        if (m.type == ZJW_TYPE_VIEW) {
            CHECK(m.size == ZJW_SIZEOF_VIEW + 4 * n && m.view_src < n && m.index == 0xffff && m.src == s->config.self);
            CHECK(!s->delivered || m.clock > s->clock || (m.clock == s->clock && m.view_src >= s->src));
            m.src = m.view_src;
        } else {
            CHECK(m.size <= MESSAGE_MAX && m.src < n && m.type <= (s->all ? ZJW_TYPE_RELAY : ZJW_TYPE_SERVICE) && m.stage <= ZJ_PLACED && !m.data == (m.stage == ZJ_PLACED));
        }
        for (uint32_t i = 0; m.data && i < m.size; i++)
            sink ^= m.data[i]; /* the sanitizer looks */
        if (m.stage == ZJ_ACCEPTED) {
            CHECK(m.clock >= s->op_clock[m.src]);
            s->op_clock[m.src] = m.clock;
            continue;
        }
        if (m.type == ZJW_TYPE_VIEW) {
            CHECK(m.position == UINT64_MAX || !s->delivered || s->at_view || m.position >= s->position);
        } else if (s->delivered && !s->at_view && m.position == s->position) {
            CHECK(m.clock == s->clock && m.src == s->src && m.index > s->index);
        } else {
            CHECK(!s->delivered || s->position == UINT64_MAX || m.position > s->position);
            CHECK(!s->delivered || m.clock > s->clock || (m.clock == s->clock && m.src > s->src));
        }
        s->delivered = 1;
        s->at_view = m.type == ZJW_TYPE_VIEW;
        s->clock = m.clock;
        s->position = m.position;
        s->src = m.src;
        s->index = m.index;
    }
    (void)sink;
}

static void transmit(struct station *s, uint32_t max)
{
    struct zj_frame frames[16];
    uint32_t got;
    while (max && (got = zj_tx(s->core, frames, max < 16 ? max : 16))) {
        for (uint32_t k = 0; k < got; k++) {
            CHECK(frames[k].size <= FRAME_MAX);
            if (s->all)
                CHECK(zj_pair_asks(s->all, frames[k].data, frames[k].size));
            else
                CHECK(zj_check(frames[k].data, frames[k].size, CLUSTER, s->config.stations) == ZJ_DROP_NONE);
        }
        zj_tx_done(s->core, s->now, got);
        max -= got;
    }
}

static void control(struct station *s)
{
    struct zj_control c;
    volatile uint8_t sink = 0;
    while (zj_control(s->core, &c))
        for (uint32_t i = 0; i < c.size; i++)
            sink ^= c.data[i];
    (void)sink;
}

/* A small signed number, mostly near 0. */
static uint32_t delta(uint32_t byte) { return (uint32_t)((int8_t)byte / 16); }

/* Make parts of the header fit what this station expects, as `repair` says; the bytes there become offsets from that. */
static void mend(const struct station *s, uint8_t *b, size_t size, uint32_t repair)
{
    uint32_t n = s->config.stations;
    if (size < ZJW_SIZEOF_HEADER)
        return;
    if (repair & REPAIR_IDENTITY) {
        put32(b + ZJW_HEADER_CLUSTER, CLUSTER);
        b[ZJW_HEADER_VERSION] = ZJW_VERSION;
        b[ZJW_HEADER_STATIONS] = (uint8_t)n;
        b[ZJW_HEADER_KIND] = (uint8_t)(1 + (b[ZJW_HEADER_KIND] - 1u) % ZJW_KIND_RCV_ACK);
        if (s->all)
            b[ZJW_HEADER_FLAGS] |= ZJW_FLAG_PAIR;
    }
    if (repair & REPAIR_SOURCE && s->all) {
        b[ZJW_HEADER_SRC] = (uint8_t)s->config.pair[1 - s->config.self];
        b[ZJW_HEADER_TARGET] = (uint8_t)s->config.pair[s->config.self];
    } else if (repair & REPAIR_SOURCE && n > 1) {
        uint32_t other = (b[ZJW_HEADER_SRC] + n - 1) % n;
        b[ZJW_HEADER_SRC] = (uint8_t)(1 + (other == s->config.self ? (other + 1) % n : other));
        b[ZJW_HEADER_TARGET] = (uint8_t)(b[ZJW_HEADER_TARGET] % (n + 1));
    }
    uint32_t src = s->all ? 1 - s->config.self : b[ZJW_HEADER_SRC] - 1u;
    struct zj_peer p;
    zj_peer(s->core, src < n ? src : 0, &p);
    if (repair & REPAIR_INSTANCE) {
        put32(b + ZJW_HEADER_INSTANCE, s->instance + (uint32_t)((int8_t)b[ZJW_HEADER_INSTANCE + 3] / 64));
        put32(b + ZJW_HEADER_INCARNATION, src < n ? s->incarnations[src] : 1);
        size_t view = ZJW_SIZEOF_HEADER + 8 * (size_t)n + ZJW_CONFIRM_VIEW;
        if (b[ZJW_HEADER_KIND] == ZJW_KIND_CONFIRM && view + 4 <= size)
            put32(b + view, VIEW(s->instance));
    }
    if (repair & REPAIR_SEQ)
        put32(b + ZJW_HEADER_SEQ, (uint32_t)p.req + delta(b[ZJW_HEADER_SEQ + 3]));
    if (repair & REPAIR_CLOCK)
        put64(b + ZJW_HEADER_CLOCK, p.clock + 1 + (uint64_t)(b[ZJW_HEADER_CLOCK + 7] % 8));
    uint32_t vectors = b[ZJW_HEADER_FLAGS] & ZJW_FLAG_PACK ? 2 : 1;
    if (repair & REPAIR_VECTORS && size >= ZJW_SIZEOF_HEADER + 4 * (size_t)n * vectors)
        for (uint32_t v = 0; v < vectors; v++)
            for (uint32_t h = 0; h < n; h++) {
                uint8_t *at = b + ZJW_SIZEOF_HEADER + 4 * (v * n + h);
                zj_peer(s->core, h, &p);
                put32(at, (uint32_t)(v ? p.min_al : p.req) + delta(at[3]));
            }
    if (repair & REPAIR_SEAL)
        zj_add_checksum(b, (uint32_t)size);
}

static void receive(struct station *s, struct input *in)
{
    uint32_t repair = take8(in), size = take16(in) % (FRAME_MAX + 64);
    static const uint8_t macs[2][6] = {{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}};
    if (size > in->left)
        size = (uint32_t)in->left;
    const uint8_t *bytes = take(in, size);
    uint8_t *b = malloc(size ? size : 1); /* of its own, so that the sanitizer sees a read beyond it */
    CHECK(b);
    if (size)
        memcpy(b, bytes, size);
    mend(s, b, size, repair);
    int drop = s->all ? zj_pair_rx(s->core, s->now, b, size, macs[size & 1], repair >> 7)
                      : zj_rx(s->core, s->now, b, size, repair & 0x80 ? NULL : macs[size & 1]);
    if (s->all) {
        CHECK(!zj_pair_asks(s->core, b, size));
        (void)zj_pair_asks(s->all, b, size);
    }
    CHECK(drop >= 0 && drop < ZJ_DROP_COUNT);
    free(b); /* the core keeps no pointer */
}

static void offer(struct station *s, struct input *in)
{
    static uint8_t bytes[MESSAGE_MAX + 8];
    uint32_t a = take8(in), size = a & 0x80 ? take16(in) % (MESSAGE_MAX + 8) : a & 0x7f;
    struct zj_offer m = {.data = bytes, .size = size, .group = a, .client = 1, .type = (uint8_t)(a % (s->all ? 9 : 5)), .need_ack = a & 1,
                         .ordering = a >> 1 & 1};
    if (size > MESSAGE_MAX || m.type > (s->all ? ZJW_TYPE_RELAY : ZJW_TYPE_SERVICE)) {
        CHECK(zj_offer(s->core, &m) < 0);
        return;
    }
    for (int turn = 0; turn < 8; turn++) { /* a station alone drains its window itself; others may leave it part of the way */
        if (zj_offer(s->core, &m) == 1)
            return;
        s->now += 1000;
        zj_step(s->core, s->now, 1);
        deliver(s, 1000);
        transmit(s, 1000);
    }
    if (m.done) { /* nothing finishes it any more in this instance: as after a fatal error of its client */
        s->instance++;
        enter(s);
    }
}

/* ---- membership ---- */

static void votes(struct station *s)
{
    struct zj_vote v;
    volatile uint8_t sink = 0;
    while (zj_proposal(s->core, &v)) {
        CHECK(v.src < s->config.stations && v.src != s->config.self && v.size >= ZJW_SIZEOF_HEADER);
        CHECK(v.kind == ZJW_KIND_STOP || v.kind == ZJW_KIND_STOP_ACK || v.kind == ZJW_KIND_RCV_ACK);
        for (uint32_t i = 0; i < v.size; i++)
            sink ^= v.data[i];
    }
    (void)sink;
}

static void propose(struct station *s, uint32_t h, uint32_t kind)
{
    uint8_t payload[ZJW_SIZEOF_PROPOSAL + ZJW_SIZEOF_CHANGE] = {0};
    uint64_t seq, clock;
    struct zj_peer before, after;
    payload[ZJW_PROPOSAL_CHANGES] = 1;
    payload[ZJW_SIZEOF_PROPOSAL] = (uint8_t)(h + 1);
    zj_peer(s->core, s->config.self, &before);
    if (zj_propose(s->core, s->now, kind, payload, sizeof payload, &seq, &clock))
        return;
    zj_peer(s->core, s->config.self, &after);
    CHECK(seq + 1 == after.req && seq >= before.req && clock == after.clock);
}

/* What of a message stays in pieces in a stream that ends is the core's business; what the station knows of h begins anew. */
static void commit(struct station *s, uint32_t h)
{
    struct zj_commit change = {.instance = s->instance + 1, .view = VIEW(s->instance + 1), .members = s->members ^ UINT64_C(1) << h,
                               /* Behind everything that may be delivered by now; the engine votes first, which does the same. */
                               .place_clock = zj_clock(s->core), .place_src = s->config.stations - 1, .frame_max = FRAME_MAX};
    struct zj_peer p;
    if (h == s->config.self)
        return;
    change.joined = change.members & ~s->members;
    memcpy(change.incarnations, s->incarnations, sizeof change.incarnations);
    change.incarnations[h]++;
    for (uint32_t k = 0; k < s->config.stations; k++) {
        zj_peer(s->core, k, &p);
        change.vote_seq[k] = p.req - 1;
    }
    int done = zj_commit(s->core, s->now, &change);
    CHECK(done == 0 || done == 1);
    if (done)
        return;
    s->instance++;
    s->members = change.members;
    memcpy(s->incarnations, change.incarnations, sizeof s->incarnations);
    memset(s->peers, 0, sizeof s->peers);
    memset(s->al, 0, sizeof s->al);
    s->op_clock[h] = 0;
}

static void membership(struct station *s, struct input *in)
{
    uint32_t a = take8(in), b = take8(in), h = b % s->config.stations;
    struct zj_peer p;
    if (s->all)
        return; /* a link has no members that change */
    zj_peer(s->core, h, &p);
    switch (a % 8) {
    case 0:
        zj_limit(s->core, s->now, h, p.req + (a >> 3) % 4);
        s->peers[h].top = 0; /* what stands beyond counts as not there */
        break;
    case 1: zj_limit(s->core, s->now, h, UINT64_MAX); break;
    case 2: propose(s, h, a & 8 ? ZJW_KIND_STOP : a & 16 ? ZJW_KIND_STOP_ACK : ZJW_KIND_RCV_ACK); break;
    case 3: commit(s, h); break;
    case 4: zj_wait_for(s->core, h, a & 8 ? UINT64_MAX : zj_clock(s->core) + b, (uint32_t)(b & 2047)); break;
    case 5: zj_block(s->core, a & 8); break;
    case 6:
        zj_set_state(s->core, b, a);
        zj_report_progress(s->core, a & 8);
        zj_probe(s->core, s->now, h);
        break;
    case 7: votes(s); break;
    }
}

static void run(struct station *s, struct input *in)
{
    switch ((enum operation)(take8(in) % OP_COUNT)) {
    case OP_PDU:
    case OP_PDU_TOO: receive(s, in); break;
    case OP_STEP: zj_step(s->core, s->now, take8(in) & 1); break;
    case OP_TIME: s->now += (uint64_t)take16(in) * 1000; break;
    case OP_OFFER: offer(s, in); break;
    case OP_TIMERS: {
        uint32_t a = take8(in);
        if (a & 1)
            zj_nak(s->core, s->now);
        if (a & 2)
            zj_poll(s->core, s->now);
        if (a & 4)
            zj_heartbeat(s->core, s->now, a & 8 ? ZJW_FLAG_BYE : 0);
        break;
    }
    case OP_LIFE: {
        uint32_t a = take8(in);
        if (a < 16) {
            zj_close(s->core);
            CHECK(!zj_is_open(s->core));
            if (a & 1)
                zj_flush(s->core, VIEW(s->instance - (a >> 1 & 1)), a); /* OP_WORK takes what is left */
        } else if (a < 48 || !zj_is_open(s->core)) {
            s->instance++;
            enter(s);
        } else if (a < 64 && !s->all) {
            join(s, a, a & 8 ? 0xfffffff0u : a);
        } else if (a < 128) {
            zj_set_frame_max(s->core, 512 + a);
        } else {
            zj_want_ack(s->core, a & 1);
        }
        break;
    }
    case OP_MEMBER: membership(s, in); break;
    case OP_WORK:
    case OP_COUNT:
        votes(s);
        zj_step(s->core, s->now, 1);
        deliver(s, take8(in));
        transmit(s, 1000);
        control(s);
        break;
    }
    station_is_sound(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct station s;
    memset(&s, 0, sizeof s);
    configure(&s, &in);
    for (int k = 0; k < OPERATIONS_MAX && in.left; k++)
        run(&s, &in);
    s.now += 100000000;
    votes(&s);
    zj_step(s.core, s.now, 1);
    deliver(&s, 100000);
    transmit(&s, 100000);
    station_is_sound(&s);
    zj_destroy(s.core);
    if (s.all)
        zj_destroy(s.all);
    return 0;
}

/* ---- mutation that knows the format ---- */

#define RECORDS_MAX 128
struct record { size_t at, size; };

static size_t records_of(const uint8_t *data, size_t size, struct record *out)
{
    static const uint8_t plain[OP_COUNT] = {0, 0, 2, 3, 2, 2, 2, 2, 3};
    size_t k = 0, at = 4;
    while (at < size && k < RECORDS_MAX) {
        uint32_t op = data[at] % OP_COUNT;
        size_t length = plain[op];
        if (op <= OP_PDU_TOO)
            length = at + 4 <= size ? 4 + get16(data + at + 2) % (FRAME_MAX + 64) : size - at;
        else if (op == OP_OFFER && at + 1 < size && data[at + 1] & 0x80)
            length = 4;
        if (length > size - at)
            length = size - at;
        out[k++] = (struct record){at, length};
        at += length;
    }
    return k;
}

static void mutate_pdu(uint8_t *pdu, size_t size, unsigned random)
{
    static const uint16_t fields[] = {
        ZJW_HEADER_KIND, ZJW_HEADER_FLAGS, ZJW_HEADER_SRC, ZJW_HEADER_TARGET, ZJW_HEADER_LENGTH, ZJW_HEADER_LENGTH + 1, ZJW_HEADER_SEQ,
        ZJW_HEADER_SEQ + 3, ZJW_HEADER_CLOCK, ZJW_HEADER_CLOCK + 7, ZJW_HEADER_FREE_BUFFERS + 3, ZJW_HEADER_FRAME_MAX,
    };
    static const uint8_t values[] = {0, 1, 2, 3, 4, 0x10, 0x20, 0x40, 0x7f, 0x80, 0xe0, 0xf0, 0xff};
    size_t at = fields[random % (sizeof fields / sizeof *fields)];
    if (random & 0x1000 && size > ZJW_SIZEOF_HEADER) /* vectors and payload; in vectors, the low byte counts */
        at = ZJW_SIZEOF_HEADER + ((random >> 13) % (size - ZJW_SIZEOF_HEADER) | (random & 0x800 ? 3 : 0));
    if (at < size)
        pdu[at] = values[(random >> 5) % sizeof values];
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    struct record list[RECORDS_MAX];
    size_t count = records_of(data, size, list);
    unsigned random = seed * 2654435761u;
    if (seed % 2 || count < 2)
        return LLVMFuzzerMutate(data, size, max_size);
    struct record *a = &list[(random >> 3) % count], *b = &list[(random >> 11) % count];
    uint8_t copy[FRAME_MAX + 128];
    switch (random >> 28 & 7) {
    case 0: /* again: duplicates */
        if (size + a->size > max_size || a->size > sizeof copy)
            break;
        memcpy(copy, data + a->at, a->size);
        memmove(data + b->at + a->size, data + b->at, size - b->at);
        memcpy(data + b->at, copy, a->size);
        return size + a->size;
    case 1: /* lost */
        memmove(data + a->at, data + a->at + a->size, size - a->at - a->size);
        return size - a->size;
    case 2: /* later than its neighbour */
        if (a + 1 == list + count || a->size > sizeof copy)
            break;
        memcpy(copy, data + a->at, a->size);
        memmove(data + a->at, data + a[1].at, a[1].size);
        memcpy(data + a->at + a[1].size, copy, a->size);
        return size;
    case 3:
        if (data[a->at] % OP_COUNT <= OP_PDU_TOO && a->size > 1)
            data[a->at + 1] ^= (uint8_t)(1u << (random >> 20) % 8); /* repair it differently */
        return size;
    default:
        if (data[a->at] % OP_COUNT <= OP_PDU_TOO && a->size > 4) {
            mutate_pdu(data + a->at + 4, a->size - 4, random >> 4);
            return size;
        }
        break;
    }
    return LLVMFuzzerMutate(data, size, max_size);
}
