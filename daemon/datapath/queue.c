/* What is to be written to one client.
 *
 * A byte ring holds whole frames in the order of delivery. A client of level preack or ack may be given a frame only when that
 * level's position has passed it: `released` is how far the ring may be written, `marks` say what moves it on. Two small side
 * buffers hold frames that go between frames of the ring: urgent ones (errors, events) and the DONE frame.
 */
#include "internal.h"

#include <stdlib.h>

/* ---- ring ---- */
static uint32_t contiguous(const struct dp_queue *q, uint64_t at, uint64_t end)
{
    const uint32_t index = (uint32_t)(at & (q->cap - 1u));
    return (uint32_t)min64(end - at, q->cap - index);
}

static void copy_in(struct dp_queue *q, uint64_t at, const uint8_t *data, uint32_t size)
{
    const uint32_t first = contiguous(q, at, at + size);
    memcpy(q->ring + (at & (q->cap - 1u)), data, first);
    if (first < size)
        memcpy(q->ring, data + first, size - first);
}

static uint32_t frame_size_at(const struct dp_queue *q, uint64_t at)
{
    uint8_t b[4];
    for (uint32_t i = 0; i < 4; i++)
        b[i] = q->ring[(at + i) & (q->cap - 1u)];
    return DP_HEADER + get32(b);
}

/* cap: a power of two that takes what is queued. */
static int resize(struct dp_queue *q, uint64_t cap)
{
    uint8_t *ring = dp_map(cap);
    if (!ring)
        return -ENOMEM;
    for (uint64_t at = q->written; at < q->tail;) {
        uint32_t run = contiguous(q, at, q->tail);
        run = (uint32_t)min64(run, cap - (at & (cap - 1)));
        memcpy(ring + (at & (cap - 1)), q->ring + (at & (q->cap - 1u)), run);
        at += run;
    }
    dp_unmap(q->ring, q->cap);
    q->ring = ring;
    q->cap = (uint32_t)cap;
    return 0;
}

/* With a ring of this capacity the programs of the client's user (-EDQUOT), or those of all such users (-EUSERS), would take too much;
 * 0: not so. The smallest ring is always allowed. */
static int beyond_users(const struct dp *d, const struct dp_client *c, uint64_t cap)
{
    if (!c->bounded || !(d->user_queue_max || d->users_queue_max) || cap <= DP_OUTPUT_BYTES_MIN)
        return 0;
    uint64_t mine = cap - c->q.cap, all = mine;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) {
        const struct dp_client *other = &d->clients[i];
        if (!other->used || !other->bounded)
            continue;
        all += other->q.cap;
        mine += other->user == c->user ? other->q.cap : 0;
    }
    if (d->user_queue_max && mine > d->user_queue_max)
        return -EDQUOT;
    return d->users_queue_max && all > d->users_queue_max ? -EUSERS : 0;
}

static int reserve(struct dp *d, struct dp_client *c, uint64_t size)
{
    struct dp_queue *q = &c->q;
    const uint64_t used = q->tail - q->written;
    if (used + size <= q->cap)
        return 0;
    uint64_t cap = q->cap ? q->cap : DP_OUTPUT_BYTES_MIN;
    while (cap < used + size)
        cap *= 2;
    if (cap > d->queue_cap_max)
        return -ENOMEM;
    const int beyond = beyond_users(d, c, cap);
    return beyond ? beyond : resize(q, cap);
}

/* ---- embargo ---- */
static int passed(const struct dp *d, uint32_t level, uint64_t position)
{
    return level == ZJ_ORDERED || position + 1 <= d->positions[level]; /* UINT64_MAX: nothing stands before it */
}

static int release_mark(struct dp *d, struct dp_client *c, uint32_t level, uint64_t position)
{
    struct dp_queue *q = &c->q;
    if (q->mark_count == 0 && passed(d, level, position)) {
        q->released = q->tail;
        return 0;
    }
    if (q->mark_count) {
        struct dp_release_mark *last = &q->marks[(q->mark_head + q->mark_count - 1) & (q->mark_cap - 1u)];
        if (last->level == level && (level == ZJ_ORDERED || last->position == position)) {
            last->end = q->tail;
            return 0;
        }
    }
    if (q->mark_count == q->mark_cap) {
        const uint32_t cap = q->mark_cap ? q->mark_cap * 2 : 64;
        struct dp_release_mark *marks = malloc(cap * sizeof *marks);
        if (!marks)
            return -ENOMEM;
        for (uint32_t i = 0; i < q->mark_count; i++)
            marks[i] = q->marks[(q->mark_head + i) & (q->mark_cap - 1u)];
        free(q->marks);
        q->marks = marks;
        q->mark_cap = cap;
        q->mark_head = 0;
    }
    q->marks[(q->mark_head + q->mark_count++) & (q->mark_cap - 1u)] =
        (struct dp_release_mark){.position = position, .end = q->tail, .level = level};
    set_add(&d->marked, c->slot);
    return 0;
}

int queue_append(struct dp *d, struct dp_client *c, const uint8_t *head, uint32_t head_size, const uint8_t *body,
                 uint32_t body_size, uint32_t level, uint64_t position)
{
    struct dp_queue *q = &c->q;
    const int error = reserve(d, c, (uint64_t)head_size + body_size);
    if (error)
        return error;
    copy_in(q, q->tail, head, head_size);
    if (body_size)
        copy_in(q, q->tail + head_size, body, body_size);
    q->tail += (uint64_t)head_size + body_size;
    q->busy = 1;
    if (release_mark(d, c, level, position)) {
        q->tail -= (uint64_t)head_size + body_size;
        return -ENOMEM;
    }
    if (queue_writable(q))
        set_add(&d->dirty, c->slot);
    return 0;
}

void queue_release(struct dp *d, struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    while (q->mark_count) {
        const struct dp_release_mark *m = &q->marks[q->mark_head];
        if (!passed(d, m->level, m->position))
            break;
        q->released = m->end;
        q->mark_head = (q->mark_head + 1) & (q->mark_cap - 1u);
        q->mark_count--;
    }
    if (q->mark_count == 0)
        set_del(&d->marked, c->slot);
    if (queue_writable(q))
        set_add(&d->dirty, c->slot);
}

/* ---- side buffers ---- */
int queue_urgent(struct dp *d, struct dp_client *c, const uint8_t *head, uint32_t head_size, const uint8_t *body,
                 uint32_t body_size)
{
    struct dp_side_buffer *u = &c->q.urgent;
    if (u->off == u->size) {
        u->off = u->size = 0;
        u->at = c->q.boundary;
    }
    const uint64_t need = (uint64_t)u->size + head_size + body_size;
    if (need > DP_URGENT_MAX_BYTES)
        return -ENOBUFS;
    if (need > u->cap) {
        uint32_t cap = u->cap ? u->cap : 1024;
        while (cap < need)
            cap *= 2;
        uint8_t *data = realloc(u->data, cap);
        if (!data)
            return -ENOMEM;
        u->data = data;
        u->cap = cap;
    }
    memcpy(u->data + u->size, head, head_size);
    if (body_size)
        memcpy(u->data + u->size + head_size, body, body_size);
    u->size = (uint32_t)need;
    set_add(&d->dirty, c->slot);
    return 0;
}

/* ---- own messages ---- */
static int own_count_push(struct dp_own_count *l, uint64_t position)
{
    if (l->tail != l->head) {
        struct dp_own *last = &l->at[(l->tail - 1) & (l->cap - 1u)];
        if (last->position == position) {
            last->count++;
            return 0;
        }
        if (l->tail - l->head == DP_OWN_MAX) {
            /* A level that nobody waits for may lag without bound: counting late is right, counting early would not be. */
            last->position = position;
            last->count++;
            return 0;
        }
    }
    if (l->tail - l->head == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : 64;
        struct dp_own *at = malloc(cap * sizeof *at);
        if (!at)
            return -ENOMEM;
        for (uint64_t i = l->head; i < l->tail; i++)
            at[i & (cap - 1u)] = l->at[i & (l->cap - 1u)];
        free(l->at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->tail++ & (l->cap - 1u)] = (struct dp_own){position, 1};
    return 0;
}

/* One of the client's messages stands at this place of the order. */
int queue_count_own(struct dp *d, struct dp_client *c, uint64_t position)
{
    if (c->counted[ZJ_ORDERED] == c->sent - c->between_tail)
        return 0; /* not one of this connection's */
    for (uint32_t i = 0; i < 2; i++) {
        const int error = own_count_push(&c->own_counts[i], position);
        if (error)
            return error;
    }
    c->counted[ZJ_ORDERED]++;
    set_add(&d->owning, c->slot);
    return 0;
}

/* How many of the first own messages have reached a level, with those between. */
static uint64_t done_at(struct dp_client *c, uint32_t level)
{
    uint64_t *head = &c->between_head[level];
    for (; *head != c->between_tail; ++*head) {
        const struct dp_between *m = &c->between[*head & (c->between_cap - 1u)];
        if (c->counted[level] + *head < m->number - 1)
            break;
        if (m->levels <= level)
            return m->number - 1;
    }
    return c->counted[level] + *head;
}

static void count_done(struct dp_client *c)
{
    if (!c->between_tail) {
        memcpy(c->done, c->counted, sizeof c->done);
        return;
    }
    c->done[ZJ_ORDERED] = done_at(c, ZJ_ORDERED);
    c->done[ZJ_PREACK] = done_at(c, ZJ_PREACK);
    /* Those between have no level ack. Where others lag there, counting late is right. */
    const uint64_t acked = c->counted[ZJ_ACK];
    const uint64_t done = acked == c->counted[ZJ_PREACK] ? c->done[ZJ_PREACK] : min64(acked, c->done[ZJ_PREACK]);
    c->done[ZJ_ACK] = max64(c->done[ZJ_ACK], done);
}

int dp_own_sent(struct dp *d, uint32_t slot, uint32_t level, uint32_t notify, uint64_t *number)
{
    struct dp_client *c = client_live(d, slot);
    if (!c || level >= ZJ_LEVELS)
        return -ENOENT;
    const uint64_t first = min64(c->between_head[ZJ_ORDERED], c->between_head[ZJ_PREACK]);
    if (c->between_tail - first == c->between_cap) {
        const uint32_t cap = c->between_cap ? c->between_cap * 2 : 64;
        struct dp_between *between = malloc(cap * sizeof *between);
        if (!between)
            return -ENOMEM;
        for (uint64_t i = first; i < c->between_tail; i++)
            between[i & (cap - 1u)] = c->between[i & (c->between_cap - 1u)];
        free(c->between);
        c->between = between;
        c->between_cap = cap;
    }
    *number = ++c->sent;
    c->sends++;
    c->between[c->between_tail++ & (c->between_cap - 1u)] = (struct dp_between){.number = *number};
    if (notify && c->notify[level] < *number)
        c->notify[level] = *number;
    set_add(&d->owning, slot);
    return 0;
}

int dp_own_done(struct dp *d, uint32_t slot, uint64_t number, uint32_t level)
{
    struct dp_client *c = client_live(d, slot);
    if (!c || level >= ZJ_LEVELS)
        return -ENOENT;
    uint64_t low = min64(c->between_head[ZJ_ORDERED], c->between_head[ZJ_PREACK]), high = c->between_tail;
    while (low < high) { /* numbers ascend */
        const uint64_t middle = low + (high - low) / 2;
        struct dp_between *m = &c->between[middle & (c->between_cap - 1u)];
        if (m->number == number) {
            m->levels = m->levels > level + 1 ? m->levels : level + 1;
            set_add(&d->owning, slot);
            return 0;
        }
        if (m->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return -ENOENT;
}

void queue_forget_own(struct dp *d, struct dp_client *c)
{
    for (uint32_t level = 0; level < ZJ_LEVELS; level++) {
        c->done[level] = c->sent;
        c->counted[level] = c->sent - c->between_tail;
    }
    c->between_head[ZJ_ORDERED] = c->between_head[ZJ_PREACK] = c->between_tail;
    c->own_counts[0].head = c->own_counts[0].tail = c->own_counts[1].head = c->own_counts[1].tail = 0;
    set_add(&d->owning, c->slot);
}

/* Take the counts on to the positions reached, and have a DONE frame written if one changed that somebody asked for. It stands
 * behind the frames released by now. While one waits to be written, later counts wait: they would overtake messages. */
void queue_done(struct dp *d, struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    for (uint32_t i = 0; i < 2; i++) {
        struct dp_own_count *l = &c->own_counts[i];
        const uint64_t position = d->positions[i + 1];
        for (; l->head != l->tail && l->at[l->head & (l->cap - 1u)].position < position; l->head++)
            c->counted[i + 1] += l->at[l->head & (l->cap - 1u)].count;
    }
    count_done(c);
    int news = 0;
    for (uint32_t level = 0; level < ZJ_LEVELS; level++)
        news |= c->done[level] > c->reported[level] && c->reported[level] < c->notify[level];
    if (!news) {
        if (c->own_counts[0].head == c->own_counts[0].tail && c->own_counts[1].head == c->own_counts[1].tail)
            set_del(&d->owning, c->slot);
        return;
    }
    if (q->done.size > q->done.off || c->closing || c->broken)
        return;
    put_header(q->done_bytes, DP_DONE, DP_F_DONE, 0, 0);
    for (uint32_t level = 0; level < ZJ_LEVELS; level++) {
        put64(q->done_bytes + DP_HEADER + DP_DONE / ZJ_LEVELS * level, c->done[level]);
        c->reported[level] = c->done[level];
    }
    q->done = (struct dp_side_buffer){.data = q->done_bytes, .size = sizeof q->done_bytes, .at = q->released};
    set_add(&d->dirty, c->slot);
}

/* ---- cutting ---- */
/* Drop what is not begun; with `released` only what is under embargo. A frame partly written is kept whole. */
void queue_cut(struct dp *d, struct dp_client *c, int released)
{
    struct dp_queue *q = &c->q;
    if (!released) {
        q->released = q->boundary;
        if (q->done.off == 0)
            q->done.size = 0;
        if (q->urgent.off == 0)
            q->urgent.size = 0;
    }
    q->tail = q->released;
    q->mark_count = 0;
    set_del(&d->marked, c->slot);
}

/* MESSAGE frames among those that stand from one offset to another. */
static uint64_t messages_between(const struct dp_queue *q, uint64_t at, uint64_t end)
{
    uint64_t count = 0;
    for (; at < end; at += frame_size_at(q, at))
        count += q->ring[(at + DP_HEADER_TYPE) & (q->cap - 1u)] == DP_F_MESSAGE;
    return count;
}

/* How many messages queue_forget would drop. */
uint64_t queue_embargoed(const struct dp *d, const struct dp_client *c)
{
    const struct dp_queue *q = &c->q;
    uint64_t count = 0, from = q->released;
    for (uint32_t i = 0; i < q->mark_count; i++) {
        const struct dp_release_mark *m = &q->marks[(q->mark_head + i) & (q->mark_cap - 1u)];
        if (!passed(d, m->level, m->position))
            count += messages_between(q, from, m->end);
        from = m->end;
    }
    return count;
}

/* Drop the embargoed frames whose own level has not passed them; those of other levels behind them stay. Returns how many
 * messages have gone. */
uint64_t queue_forget(struct dp *d, struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    const uint64_t count = queue_embargoed(d, c);
    uint64_t to = q->released, from = q->released;
    for (; q->mark_count; q->mark_count--, q->mark_head = (q->mark_head + 1) & (q->mark_cap - 1u)) {
        const struct dp_release_mark *m = &q->marks[q->mark_head];
        if (!passed(d, m->level, m->position)) {
            from = m->end;
            continue;
        }
        while (from < m->end) {
            uint32_t run = contiguous(q, from, m->end);
            run = (uint32_t)min64(run, contiguous(q, to, to + run));
            memmove(q->ring + (to & (q->cap - 1u)), q->ring + (from & (q->cap - 1u)), run);
            from += run;
            to += run;
        }
    }
    q->tail = q->released = to;
    set_del(&d->marked, c->slot);
    set_add(&d->dirty, c->slot); /* also if nothing is left: a client may have been paused by what has gone */
    return count;
}

/* Nobody reads any more: drop all. */
void queue_clear(struct dp *d, struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    q->written = q->boundary = q->released = q->tail = 0;
    q->mark_count = 0;
    q->urgent.size = q->urgent.off = q->done.size = q->done.off = 0;
    set_del(&d->marked, c->slot);
    set_del(&d->dirty, c->slot);
}

/* ---- writing ---- */
#define PIECES 8u

static uint32_t add_ring(const struct dp_queue *q, struct iovec *iov, struct dp_side_buffer **owner, uint32_t n, uint64_t at,
                         uint64_t end)
{
    while (at < end) {
        const uint32_t run = contiguous(q, at, end);
        iov[n] = (struct iovec){q->ring + (at & (q->cap - 1u)), run};
        owner[n++] = NULL;
        at += run;
    }
    return n;
}

/* Put together what may be written, in order; returns the number of pieces. */
static uint32_t gather(struct dp_queue *q, struct iovec iov[PIECES], struct dp_side_buffer *owner[PIECES])
{
    struct dp_side_buffer *first = &q->urgent, *second = &q->done;
    const int urgent = q->urgent.off < q->urgent.size, done = q->done.off < q->done.size;
    /* At one place the one already begun goes first. */
    if (!urgent || (done && (q->done.at < q->urgent.at || (q->done.at == q->urgent.at && q->done.off)))) {
        first = &q->done;
        second = &q->urgent;
    }
    uint64_t at = q->written;
    uint32_t n = 0;
    struct dp_side_buffer *const sides[2] = {first, second};
    for (uint32_t i = 0; i < 2; i++) {
        struct dp_side_buffer *s = sides[i];
        if (s->off == s->size)
            continue;
        n = add_ring(q, iov, owner, n, at, s->at);
        at = s->at;
        iov[n] = (struct iovec){s->data + s->off, s->size - s->off};
        owner[n++] = s;
    }
    return add_ring(q, iov, owner, n, at, q->released);
}

static void consume(struct dp_queue *q, const struct iovec *iov, struct dp_side_buffer *const *owner, uint64_t bytes)
{
    for (uint32_t i = 0; bytes; i++) {
        const uint32_t run = (uint32_t)min64(bytes, iov[i].iov_len);
        if (owner[i])
            owner[i]->off += run;
        else
            q->written += run;
        bytes -= run;
    }
    if (q->written == q->released) {
        q->boundary = q->written;
    } else if (q->written > q->boundary) {
        /* The headers passed over have been written but not yet overwritten. */
        uint64_t at = q->boundary;
        while (at < q->written)
            at += frame_size_at(q, at);
        q->boundary = at;
    }
}

/* Write what may be written. 0: done with it; -EAGAIN: the socket is full; other negative errno: the peer is gone. */
int queue_write(struct dp *d, struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    while (queue_writable(q)) {
        struct iovec iov[PIECES];
        struct dp_side_buffer *owner[PIECES];
        const uint32_t pieces = gather(q, iov, owner);
        uint64_t total = 0;
        for (uint32_t i = 0; i < pieces; i++)
            total += iov[i].iov_len;
        const struct msghdr message = {.msg_iov = iov, .msg_iovlen = pieces};
        const ssize_t n = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        d->counters.client_writes++;
        d->counters.client_bytes_out += (uint64_t)n;
        consume(q, iov, owner, (uint64_t)n);
        if ((uint64_t)n < total)
            return -EAGAIN;
        if (q->done.size)
            queue_done(d, c); /* counts that waited for the DONE frame just written */
    }
    if (q->written == q->tail) {
        /* Start over at the ring's first byte: a client that keeps up uses the same few pages, which stay in the cache. */
        q->written = q->boundary = q->released = q->tail = 0;
        q->urgent.at = q->done.at = 0;
    }
    return 0;
}

/* ---- memory ---- */
void queue_tidy(struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    if (!q->busy && q->written == q->tail && q->cap > DP_OUTPUT_BYTES_MIN) {
        dp_unmap(q->ring, q->cap);
        q->ring = NULL;
        q->cap = 0;
        q->written = q->boundary = q->released = q->tail = 0;
        q->urgent.at = q->done.at = 0;
    }
    if (q->urgent.size == q->urgent.off && q->urgent.cap > 64 * 1024) {
        free(q->urgent.data);
        q->urgent = (struct dp_side_buffer){.at = q->boundary};
    }
    if (!q->mark_count && q->mark_cap > 4096) {
        free(q->marks);
        q->marks = NULL;
        q->mark_cap = q->mark_head = 0;
    }
    q->busy = 0;
}

/* Nothing more will be queued: keep only the memory of what is. */
void queue_shrink(struct dp_client *c)
{
    struct dp_queue *q = &c->q;
    uint64_t cap = 4096;
    while (cap < q->tail - q->written)
        cap *= 2;
    if (cap < q->cap)
        (void)resize(q, cap);
}

void queue_free(struct dp_client *c)
{
    dp_unmap(c->q.ring, c->q.cap);
    free(c->q.marks);
    free(c->q.urgent.data);
    free(c->own_counts[0].at);
    free(c->own_counts[1].at);
    free(c->between);
    c->between = NULL;
    c->between_cap = 0;
    memset(&c->q, 0, sizeof c->q);
    memset(c->own_counts, 0, sizeof c->own_counts);
}

uint64_t queue_memory(const struct dp_client *c)
{
    return c->q.cap + c->q.urgent.cap + (uint64_t)c->between_cap * sizeof(struct dp_between) + (uint64_t)c->q.mark_cap * sizeof(struct dp_release_mark) +
           ((uint64_t)c->own_counts[0].cap + c->own_counts[1].cap) * sizeof(struct dp_own);
}
