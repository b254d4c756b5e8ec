/* Heartbeats, and how long the members have been silent: what an idle station looks at at every wake-up, so that the engine is woken
 * only by a change. The rules are those of heartbeat.py and watch.py, which set what is counted here. */
#include "zj_int.h"

void zj_beats(zj_core *c, uint64_t interval_ns, uint64_t pause_ns, uint64_t late_ns)
{
    c->beat.interval = interval_ns;
    c->beat.pause = pause_ns;
    c->beat.late = late_ns;
    c->beat.due = c->beat.planned = ZJ_NEVER;
}

void zj_beats_begin(zj_core *c, uint64_t now)
{
    c->beat.heard = c->count.rx_confirm;
    c->beat.due = now + c->beat.interval;
}

void zj_beats_end(zj_core *c) { c->beat.due = ZJ_NEVER; }

/* ---- silence ---- */
void zj_watch(zj_core *c, uint64_t members, uint64_t since, uint64_t quiet_ns, uint64_t lag_at)
{
    c->watch.members = members & ~(1ull << c->self);
    c->watch.since = since;
    c->watch.quiet = quiet_ns;
    c->watch.lag_at = lag_at;
    c->beat.planned = zj_silence_due(c);
}

/* PDUs of a member are not everywhere yet, or memory lacks. */
static int lags(const zj_core *c)
{
    for (uint32_t i = 0; i < c->listed; i++)
        if (c->st[c->list[i]].min_al < c->st[c->list[i]].req)
            return 1;
    return zj_starves(c);
}

uint64_t zj_silence_due(const zj_core *c)
{
    uint64_t due = ZJ_NEVER;
    if (!c->is_open)
        return due;
    if (c->watch.lag_at != ZJ_NEVER && lags(c))
        due = c->watch.lag_at;
    if (!c->watch.quiet)
        return due;
    for (uint32_t h = 0; h < c->n; h++) {
        if (!(c->watch.members >> h & 1))
            continue;
        const uint64_t heard = c->st[h].heard > c->watch.since ? c->st[h].heard : c->watch.since;
        if (heard + c->watch.quiet < due)
            due = heard + c->watch.quiet;
    }
    return due;
}

/* ---- time ---- */
void zj_tick(zj_core *c, uint64_t now)
{
    if (c->beat.pause && now > c->beat.ran && now - c->beat.ran > c->beat.pause)
        c->beat.pauses++;
    if (now > c->beat.ran)
        c->beat.ran = now;
}

/* All beat along with the first, which saves each a wake-up: another's CONFIRM has woken this station anyway. */
static int joins(zj_core *c, uint64_t now)
{
    const uint64_t heard = c->count.rx_confirm;
    if (heard == c->beat.heard)
        return 0;
    c->beat.heard = heard;
    return now - c->txq.last_word > c->beat.interval / 2;
}

uint32_t zj_beat(zj_core *c, uint64_t now)
{
    uint32_t sent = 0;
    zj_tick(c, now);
    if (c->beat.due != ZJ_NEVER) {
        const int joined = joins(c, now);
        if (joined)
            c->beat.due = now;
        const uint64_t planned = c->beat.due < c->beat.planned ? c->beat.due : c->beat.planned;
        if (now > planned && now - planned >= c->beat.late) {
            c->beat.lates++;
            c->beat.late_at = now;
        }
        if (c->beat.due <= now) {
            uint64_t next = c->txq.last + c->beat.interval; /* any PDU is as good: what was sent meanwhile is looked at only now */
            if (joined || next <= now) {
                zj_heartbeat(c, now, 0);
                next = now + c->beat.interval;
                sent = 1;
            }
            c->beat.due = next;
        }
    }
    /* A PDU after an idle time can make it due in the past: no fault of this station. */
    const uint64_t due = zj_silence_due(c);
    c->beat.planned = due < now ? now : due;
    return sent;
}

uint64_t zj_beat_due(const zj_core *c) { return c->is_open ? c->beat.due : ZJ_NEVER; }

uint64_t zj_pauses(const zj_core *c) { return c->beat.pauses; }

uint64_t zj_late(const zj_core *c, uint64_t *at)
{
    *at = c->beat.late_at;
    return c->beat.lates;
}
