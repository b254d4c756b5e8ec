/* How fast the programs of one user may send: messages and bytes a second, over all their connections.
 *
 * A client whose user has sent all that it may for now is set aside with its message at the head of its input: it is not read, and
 * what it writes waits in its socket. Nothing is refused and nothing is lost. What a user has sent is kept as the time at which it
 * would have been sent at exactly the rate (GCRA); that may lie DP_RATE_BURST_NS ahead, so that bursts pass. A message of any size
 * passes when there is any room, and is paid for afterwards.
 */
#include "internal.h"

#define SECOND_NS 1000000000ull

uint64_t dp_rate_after(uint64_t due, uint64_t now, uint64_t units, uint64_t rate)
{
    return rate ? max64(due, now) + units * SECOND_NS / rate : 0;
}

uint64_t dp_rate_free(uint64_t due, uint64_t now)
{
    return due > now + DP_RATE_BURST_NS ? due - DP_RATE_BURST_NS + DP_RATE_STEP_NS : 0;
}

/* The place of this user; of one without a client the one that owes least is taken. There are as many places as clients. */
uint32_t rates_enter(struct dp *d, uint32_t user)
{
    uint32_t place = DP_CLIENTS_MAX;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) {
        const struct dp_user *u = &d->users[i], *best = place < DP_CLIENTS_MAX ? &d->users[place] : NULL;
        if (u->known && u->id == user) { /* one whose programs have just gone still owes what they have sent */
            place = i;
            break;
        }
        if (!u->clients && (!best || max64(u->due[0], u->due[1]) < max64(best->due[0], best->due[1])))
            place = i;
    }
    struct dp_user *u = &d->users[place];
    if (!u->known || u->id != user)
        *u = (struct dp_user){.id = user, .known = 1};
    u->clients++;
    return place;
}

void rates_leave(struct dp *d, struct dp_client *c)
{
    if (c->bounded)
        d->users[c->place].clients--;
    set_del(&d->late, c->slot);
}

void dp_user_rates(struct dp *d, uint64_t messages, uint64_t bytes)
{
    d->rate[0] = messages;
    d->rate[1] = bytes;
    for (uint32_t i = 0; i < DP_CLIENTS_MAX; i++) /* who waits is judged anew */
        d->users[i].due[0] = d->users[i].due[1] = d->users[i].free_at = 0;
}

static int is_rated(const struct dp *d, const struct dp_client *c) { return c->bounded && (d->rate[0] || d->rate[1]); }

int rates_wait(struct dp *d, struct dp_client *c, uint64_t now)
{
    if (!is_rated(d, c))
        return 0;
    struct dp_user *u = &d->users[c->place];
    if (now >= u->free_at && !set_has(&d->late, c->slot)) {
        u->free_at = max64(dp_rate_free(u->due[0], now), dp_rate_free(u->due[1], now));
        if (!u->free_at)
            return 0;
    }
    if (!set_has(&d->late, c->slot)) {
        set_add(&d->late, c->slot);
        d->counters.client_throttles++;
    }
    return 1;
}

void rates_count(struct dp *d, const struct dp_client *c, uint32_t size, uint64_t now)
{
    if (!is_rated(d, c))
        return;
    struct dp_user *u = &d->users[c->place];
    u->due[0] = dp_rate_after(u->due[0], now, 1, d->rate[0]);
    u->due[1] = dp_rate_after(u->due[1], now, size, d->rate[1]);
}

/* The next one of a user's that wait, behind the one that was let go before: at once they would go in the order of their slots, and
 * the first one would have all. */
static uint32_t next_of(const struct dp *d, uint32_t place)
{
    const uint32_t turn = d->users[place].turn;
    uint32_t first = DP_CLIENTS_MAX;
    SET_EACH(i, &d->late) {
        if (d->clients[i].place != place)
            continue;
        if (i >= turn)
            return i;
        if (first == DP_CLIENTS_MAX)
            first = i;
    }
    return first;
}

uint32_t rates_release(struct dp *d, uint64_t now)
{
    struct dp_set looked = d->late;
    uint32_t more = 0;
    while (set_any(&looked)) {
        const uint32_t place = d->clients[set_next(&looked, 0)].place;
        struct dp_user *u = &d->users[place];
        const uint32_t next = now >= u->free_at ? next_of(d, place) : DP_CLIENTS_MAX;
        if (next < DP_CLIENTS_MAX) {
            set_del(&d->late, next);
            set_add(&d->work, next);
            u->turn = next + 1;
        }
        SET_EACH(i, &looked) {
            if (d->clients[i].place != place)
                continue;
            set_del(&looked, i);
            more |= next < DP_CLIENTS_MAX && i != next;
        }
    }
    return more;
}

uint64_t rates_due(const struct dp *d)
{
    uint64_t due = UINT64_MAX;
    SET_EACH(i, &d->late)
        due = min64(due, max64(d->users[d->clients[i].place].free_at, 1));
    return due;
}
