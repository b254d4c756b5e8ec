/*
 * One agreement for every instance, a proposal that is not built (docs/formal.md, docs/adr/0008): three stations, explored exhaustively within bounds.
 *
 * An instance's number is its ballot. A station prepares it, as a change of its instance or as an opening; a quorum of the three promises; it
 * composes the descriptor (parent, members, cut, place); the members start it.
 *
 * Modelled, each step by itself and in any order: sending, accepting, clocks, holds; preparing, promising, composing from any quorum of promises, starting;
 * withdrawing; a crash with restart. What is stored in the state as said (promises, descriptors, PDUs) may be read at any time, again, or never: loss,
 * delay, repetition and reordering. Acknowledgements and clocks only grow within an incarnation, so that reading the present ones
 * stands for all that were said; what an incarnation has said stays after its end. A station that is dead or cut off is one that takes no more steps.
 *
 * Releasing (level preack) happens at once when it may, in all configurations but those with lag=1.
 *
 * PDUs are few and known by their index, which also decides between equal clocks: stations are alike then, and states that differ only in which
 * station is which are one. Each of the two orders of such a pair occurs. Between parts of different instances the instance decides.
 *
 * A number belongs to the station that first uses it; which of two stations' numbers is greater is free. The durable bound is the highest number promised.
 */
#include "model.h"

struct Options {
    int numbers = 3, data = 2, crashes = 0, out = 0, removals = 3, lag = 0, hear = 0, opens = 9, changes = 9, withdrawals = 9, senders = 7;
    int progress = 0, strict = 0;
    u64 limit = 40000000;
    unsigned checks = ~0u;
};
static Options opt;
static bool off[R_COUNT];
static const char *rule_names[] = {
#define X(name) #name,
    RULES(X)
#undef X
};
static bool rule(Rule r) { return !off[r]; }

/* What follows from the descriptors and the PDUs sent. */
struct Derived {
    u16 chain[NUMBERS]; /* the instance and all that it goes back to */
    u8 alive[NUMBERS];  /* PDUs of the instance and of what it goes back to that are not void there */
    u8 before[NUMBERS]; /* of these, what stands before the instance's event */
};

static Derived derive(const State &s)
{
    Derived d;
    memset(&d, 0, sizeof d);
    for (int n = 1; n < NUMBERS; n++) {
        const Descriptor &e = s.desc[n];
        if (!e.members) continue;
        d.chain[n] = u16(1u << n | (e.parent ? d.chain[e.parent] : 0));
        u8 old = e.parent ? d.alive[e.parent] : 0, pre = e.parent ? d.before[e.parent] : 0, keep = 0;
        u16 going = e.parent ? u16(e.members & ~e.joins) : 0;
        if (e.open) {
            keep = rule(R_void_beyond) ? old & e.cut : old;
            pre = keep & e.cut;
        } else {
            for (int p = 0; p < PDUS; p++) if (in_set(old, p)) {
                int from = s.pdu[p].from - 1;
                bool stays = in_set(going, from), ended = !in_set(s.desc[e.parent].members, from) && in_set(pre, p);
                if (!stays && !ended && !in_set(e.cut, p)) pre &= u8(~(1u << p)); /* beyond the limit */
                else {
                    keep |= u8(1u << p);
                    if (!stays || s.pdu[p].clock <= e.place) pre |= u8(1u << p);
                }
            }
        }
        d.before[n] = pre;
        for (int p = 0; p < PDUS; p++) if (s.pdu[p].from && s.pdu[p].inst == n) keep |= 1 << p;
        d.alive[n] = keep;
    }
    return d;
}

static bool less_pdu(const State &s, int a, int b) { return s.pdu[a].clock != s.pdu[b].clock ? s.pdu[a].clock < s.pdu[b].clock : a < b; }
static int life_of(const State &s, int st) { return st + STATIONS * s.inc[st]; }
static bool is_now(const State &s, int l) { return s.inc[station(l)] == l / STATIONS; }

/* The last clock of life k in instance n that others may count; own: that it counts itself. */
static int counted(const State &s, int k, int n, bool own)
{
    const Life &y = s.life[k];
    if (y.cur != n) return y.cur > n && !rule(R_clock_instance) ? 255 : y.said[n];
    if (!y.hold || !rule(R_hold) || !rule(own ? R_hold_own : R_hold_said)) return y.clock;
    return std::min(y.clock, y.hold);
}

static int next_in(const Derived &d, int e, int cur)
{
    for (int n = e + 1; n <= cur; n++) if (in_set(d.chain[cur], n)) return n;
    return 0;
}

/* PDUs between the event of e and that of the instance after it, as cur has it. */
static u8 part(const Derived &d, int e, int cur)
{
    int f = next_in(d, e, cur);
    return f ? d.before[f] & d.alive[cur] & ~d.before[e] : d.alive[e] & ~d.before[e];
}

static void release_pdu(State &s, int x, int p, int e)
{
    Life &me = s.life[x];
    for (int q = 0; q < PDUS; q++) if (me.in[q] == e && less_pdu(s, p, q)) s.wrong = BAD_ORDER;
    me.in[p] = u8(e);
}

static bool accepted_by(const State &s, int k, int p)
{
    if (in_set(s.life[k].acc, p)) return true;
    if (!rule(R_same_life)) for (int l = station(k); l < LIVES; l += STATIONS) if (in_set(s.life[l].acc, p)) return true;
    return false;
}

static bool has_spoken(const State &s, int k, int n)
{
    if (in_set(s.life[k].spoken, n)) return true;
    if (!rule(R_same_life)) for (int l = station(k); l < LIVES; l += STATIONS) if (s.life[l].cur >= n) return true;
    return false;
}

/* Everything before p in instance e has been accepted by x, as far as x can know. f: the next instance, if x is in it; else 0. */
static bool order_known(const State &s, const Derived &d, int x, int p, int e, int f)
{
    for (int k = 0; k < LIVES; k++) if (in_set(s.desc[e].members, k)) {
        if (f && !in_set(s.desc[f].members, k)) continue; /* all below its limit has been accepted */
        if (f && s.desc[f].open) continue;                /* the base is known */
        if (k != x && !(f && in_set(s.life[k].spoken, f)) && counted(s, k, e, false) < s.pdu[p].clock) return false;
        if (k == x && !f && counted(s, k, e, true) < s.pdu[p].clock) return false;
        for (int q = 0; q < PDUS; q++)
            if (in_set(d.alive[e], q) && s.pdu[q].from == k + 1 && s.pdu[q].clock <= s.pdu[p].clock && !in_set(s.life[x].acc, q)) return false;
    }
    return true;
}

static bool event_known(const State &s, const Derived &d, int x, int n)
{
    for (int k = 0; k < LIVES; k++) if (in_set(s.desc[n].members, k)) {
        bool joins = in_set(s.desc[n].joins, k);
        if (!rule(R_all_speak) && k != x) continue;
        if (joins && !rule(R_joiners_speak)) continue;
        if (!has_spoken(s, k, n)) return false;
        if (!rule(R_held_by_new) && k != x) continue;
        for (int p = 0; p < PDUS; p++) if (in_set(d.before[n], p) && !accepted_by(s, k, p)) return false;
    }
    return true;
}

static void release_events(State &s, const Derived &d, int x)
{
    Life &me = s.life[x];
    int born = me.spoken ? __builtin_ctz(me.spoken) : 0, last = me.events ? 31 - __builtin_clz(me.events) : 0;
    for (int n = me.cur; n > last; n--) if (in_set(d.chain[me.cur], n) && n >= born && event_known(s, d, x, n)) {
        for (int e = std::max(born, last); e && e < n; e = next_in(d, e, n)) {
            int f = next_in(d, e, n);
            u8 todo = d.before[f] & d.alive[n] & ~d.before[e];
            for (;;) {
                int first = -1;
                for (int p = 0; p < PDUS; p++) if (in_set(todo, p) && !me.in[p] && (first < 0 || less_pdu(s, p, first))) first = p;
                if (first < 0) break;
                release_pdu(s, x, first, e);
            }
        }
        for (int e = std::max(born, last); e && e <= n; e = next_in(d, e, n)) me.events |= u8(1u << e);
        me.alone |= u8(1u << n);
        if (!rule(R_pass_over) && in_set(s.desc[n].joins, x))
            for (int p = 0; p < PDUS; p++) if (in_set(d.before[n], p) && in_set(me.acc, p) && !in_set(s.desc[n].cut, p) && !me.in[p]) release_pdu(s, x, p, n);
        return;
    }
}

/* Life x releases all that it may. */
static void release(State &s, const Derived &d, int x)
{
    Life &me = s.life[x];
    if (!is_now(s, x) || !me.cur || me.frozen) return;
    release_events(s, d, x);
    if (!me.events) return;
    int e = 31 - __builtin_clz(me.events), f = next_in(d, e, me.cur);
    if (f && rule(R_rest_with_event)) return;
    u16 who = s.desc[e].members;
    u8 todo = part(d, e, me.cur);
    for (;;) {
        int first = -1;
        for (int p = 0; p < PDUS; p++) if (in_set(todo & me.acc, p) && !me.in[p] && (first < 0 || less_pdu(s, p, first))) first = p;
        if (first < 0 || (rule(R_clocks) && !order_known(s, d, x, first, e, f))) return;
        for (int k = 0; k < LIVES; k++) if (in_set(who, k) && !accepted_by(s, k, first)) return;
        release_pdu(s, x, first, e);
    }
}

static bool visible(const State &s, const Derived &d, int x, int p)
{
    const Life &me = s.life[x];
    int from = s.pdu[p].from - 1;
    if (from < 0 || from == x || !me.cur) return false;
    if (!in_set(s.desc[me.cur].members, from) || in_set(me.acc, p)) return false;
    bool early = !rule(R_sent_later) && s.pdu[p].inst > me.cur && s.desc[s.pdu[p].inst].members && in_set(d.chain[s.pdu[p].inst], me.cur);
    int seen = early ? s.pdu[p].inst : me.cur;
    if (!in_set(d.alive[seen], p)) return false;
    for (int q = 0; q < p; q++) if (s.pdu[q].from == from + 1 && in_set(d.alive[seen], q) && !in_set(me.acc, q)) return false;
    return true;
}

static bool may_accept(const State &s, const Derived &d, int x, int p)
{
    const Life &me = s.life[x];
    if (me.frozen && rule(R_freeze)) return false;
    if (!visible(s, d, x, p)) return false;
    int from = s.pdu[p].from - 1;
    if (!in_set(me.closed, from)) return true;
    for (int n = me.cur + 1; n <= opt.numbers; n++) {
        const Descriptor &e = s.desc[n];
        if (e.members && !e.open && e.parent == me.cur && in_set(e.members, x) && !in_set(e.joins, x) && s.promised[station(x)] <= n && in_set(e.cut, p)) return true;
    }
    return false;
}

static bool ever_member(const State &s, int l)
{
    for (int n = 1; n < NUMBERS; n++) if (in_set(s.desc[n].members, l)) return true;
    return false;
}

/* Whether a change or an opening of these would be an instance at all. */
static bool has_quorum(unsigned stations) { return count(stations) * 2 > STATIONS; }

static void promise(State &s, int st, int n)
{
    int l = life_of(s, st);
    Ballot &b = s.ballot[n];
    Life &me = s.life[l];
    b.promised |= u8(1u << st);
    u8 rel = 0;
    for (int p = 0; p < PDUS; p++) if (me.in[p]) rel |= u8(1u << p);
    b.of[st] = {u8(l), me.cur, me.acc, rel, me.clock};
    s.promised[st] = u8(n);
    if (!me.cur) return;
    if (!me.hold || !rule(R_first_hold)) me.hold = me.clock;
    if (b.open) me.frozen = 1;
    else if (rule(R_close)) me.closed |= b.remove;
}

static bool may_promise(const State &s, int st, int n)
{
    const Ballot &b = s.ballot[n];
    int l = life_of(s, st);
    const Life &me = s.life[l];
    if (b.state != PREPARED || in_set(b.promised, st) || n <= s.promised[st] || me.cur >= n) return false;
    if (rule(R_stranger) && n <= s.bound[st]) return false;
    if (b.open) return true;
    if (me.frozen && rule(R_frozen_opens)) return false;
    if (me.cur > b.parent && rule(R_greater_refuses)) return false;
    if (in_set(s.desc[b.parent].members, l) && me.cur < b.parent && rule(R_member_starts)) return false;
    return true;
}

static bool start_possible(const State &s, const Derived &d, int l, int n)
{
    const Descriptor &e = s.desc[n];
    int st = station(l), now = life_of(s, st);
    if (!in_set(e.members, l)) return false;
    if (rule(R_start_promised) && s.promised[st] > n) return false;
    bool joins = in_set(e.joins, l);
    if (joins) {
        if (rule(R_stranger_starts) && n <= s.bound[st]) return false;
        bool led = !(e.members & ~e.joins);
        for (int k = 0; k < LIVES; k++) led |= in_set(e.members & ~e.joins, k) && in_set(s.life[k].spoken, n);
        if (rule(R_joiner_waits) && !led) return false;
        if (l == now) return !s.life[l].cur;
        return l == now + STATIONS && s.life[now].cur < n;
    }
    if (l != now || (s.life[l].cur != e.parent && (rule(R_new_life) || !e.open || s.life[l].cur >= n))) return false;
    if (!rule(R_limits_held)) return true;
    u8 need = e.open ? e.cut : 0;
    if (!e.open) for (int p = 0; p < PDUS; p++) if (in_set(e.cut & d.alive[e.parent], p) && !in_set(e.members, s.pdu[p].from - 1)) need |= u8(1u << p);
    return (s.life[l].acc & need) == need;
}

static void start(State &s, int l, int n)
{
    const Descriptor &e = s.desc[n];
    int st = station(l);
    s.inc[st] = u8(l / STATIONS);
    Life &me = s.life[l];
    if (in_set(e.joins, l)) me.acc |= e.cut;
    else {
        me.said[e.parent] = u8(counted(s, l, e.parent, false));
    }
    me.cur = u8(n);
    me.spoken |= u8(1u << n);
    me.closed = 0;
    me.frozen = 0;
    me.hold = 0;
    if (rule(R_clock_jump)) me.clock = u8(n * CLOCK_STEP);
    else if (in_set(e.joins, l)) me.clock = 1;
    if (s.promised[st] < n) s.promised[st] = u8(n);
}

/* ---- the steps ---- */

using Emit = void (*)(const State &, Step);

static void settle(State &s)
{
    /* What nobody can compose any more is spent: it is one state, whatever it was. */
    for (int n = 2; n <= opt.numbers; n++) {
        Ballot &b = s.ballot[n];
        if (b.state == PREPARED && (!is_now(s, b.by - 1) || (!b.open && s.life[b.by - 1].cur != b.parent) || s.life[b.by - 1].cur >= n)) {
            u8 owner = b.owner;
            memset(&b, 0, sizeof b);
            b.state = SPENT;
            b.owner = owner;
        }
    }
    Derived d = derive(s);
    if (!opt.lag) for (int l = 0; l < LIVES; l++) release(s, d, l);
}

static void prepare_steps(const State &s, Emit emit)
{
    for (int st = 0; st < STATIONS; st++) {
        int l = life_of(s, st), cur = s.life[l].cur;
        int low = std::max({int(s.promised[st]), cur, rule(R_stranger) ? int(s.bound[st]) : 0});
        int opens = 0, changes = 0;
        for (int n = 2; n <= opt.numbers; n++) if (s.ballot[n].by) (s.ballot[n].open ? opens : changes)++;
        for (int n = std::max(2, low + 1); n <= opt.numbers; n++) {
            if (s.ballot[n].owner && s.ballot[n].owner != st + 1) continue;
            if (s.ballot[n].state == PREPARED && is_now(s, s.ballot[n].by - 1)) continue;
            for (int open = 0; open < 2; open++) {
                if (open ? opens >= opt.opens : changes >= opt.changes || !cur || (s.life[l].frozen && rule(R_frozen_opens))) continue;
                u16 of = open ? 0 : s.desc[cur].members;
                for (u16 rem = of;; rem = u16((rem - 1) & of)) {
                    if (!in_set(rem, l) && count(rem) <= opt.removals) {
                        State t = s;
                        Ballot &b = t.ballot[n];
                        memset(&b, 0, sizeof b);
                        b.state = PREPARED;
                        b.owner = u8(st + 1);
                        b.by = u8(l + 1);
                        b.open = u8(open);
                        b.parent = u8(open ? 0 : cur);
                        b.remove = rem;
                        promise(t, st, n);
                        emit(t, {K_PREPARE, u8(l), u8(n), u8(open), rem});
                    }
                    if (!rem) break;
                }
            }
        }
    }
}

static void composed(const State &s, int n, const Descriptor &e, Emit emit)
{
    State t = s;
    Ballot &b = t.ballot[n];
    b.state = COMPOSED;
    b.promised = e.promisers;
    for (int st = 0; st < STATIONS; st++) {
        u8 life = in_set(e.promisers, st) ? b.of[st].life : 0;
        memset(&b.of[st], 0, sizeof b.of[st]);
        b.of[st].life = life;
    }
    if (t.desc[n].members && memcmp(&t.desc[n], &e, sizeof e)) t.wrong = BAD_TWICE;
    t.desc[n] = e;
    for (int l = 0; l < LIVES; l++) if (in_set(e.members, l)) t.named[station(l)] = std::max(t.named[station(l)], u8(l / STATIONS));
    emit(t, {K_COMPOSE, u8(b.by - 1), u8(n), e.promisers, e.members});
}

static void compose_change(const State &s, const Derived &d, int n, unsigned q, Emit emit)
{
    const Ballot &b = s.ballot[n];
    int by = b.by - 1, par = b.parent;
    u16 want = s.desc[par].members & ~b.remove, stay = 0, asks = 0;
    Descriptor e;
    memset(&e, 0, sizeof e);
    e.parent = u8(par);
    e.promisers = u8(q);
    for (int st = 0; st < STATIONS; st++) {
        int l = life_of(s, st);
        if (in_set(q, st)) {
            const Snapshot &o = b.of[st];
            if (o.cur == par) {
                if (in_set(want, o.life)) stay |= life_bit(o.life);
                u8 all = rule(R_begin_promised) || in_set(b.remove, station(o.life)) ? o.acc : 0;
                e.cut |= all;
                e.place = std::max(e.place, o.clock);
            }
            l = o.life;
        }
        /* Who asks: an incarnation that was never a member; a station that promises knows its own. */
        bool fresh = !s.life[l].cur && !(rule(R_never_member) && ever_member(s, l)), out = !(stations_of(want) >> st & 1) && is_now(s, l);
        if (fresh && out) asks |= life_bit(l);
        else if (rule(R_keeps_current) && out && !in_set(s.desc[par].members, l) && l + STATIONS < LIVES && !ever_member(s, l + STATIONS)) asks |= life_bit(l + STATIONS);
        if (!rule(R_newest) && s.inc[st] && !in_set(q, st)) {
            int old = l - STATIONS;
            if (!ever_member(s, old) && !(stations_of(want) >> st & 1)) asks |= life_bit(old);
        }
    }
    if (stay != want && rule(R_members_promise)) return;
    if (!rule(R_cut_all)) e.cut = b.of[station(by)].acc;
    if (!rule(R_place_all)) e.place = b.of[station(by)].clock;
    if (!rule(R_begin_promised)) /* streams that go on: as the proposer has them now */
        for (int p = 0; p < PDUS; p++) if (s.pdu[p].from && in_set(want, s.pdu[p].from - 1)) e.cut = u8((e.cut & ~(1u << p)) | (s.life[by].acc & 1u << p));
    e.cut &= d.alive[par];
    if (!rule(R_members_promise)) stay = want;
    for (u16 in = asks;; in = u16((in - 1) & asks)) {
        bool one = true;
        for (int st = 0; st < STATIONS; st++) if (count(in & (0x249u << st)) > 1) one = false;
        Descriptor f = e;
        f.members = stay | in;
        f.joins = in;
        bool idle = f.members == s.desc[par].members;
        if (one && !idle && (has_quorum(stations_of(f.members)) || !rule(R_members_quorum))) composed(s, n, f, emit);
        if (!in) break;
    }
}

static void compose_open(const State &s, const Derived &d, int n, unsigned q, Emit emit)
{
    const Ballot &b = s.ballot[n];
    Descriptor e;
    memset(&e, 0, sizeof e);
    e.open = 1;
    e.promisers = u8(q);
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st)) e.parent = std::max(e.parent, b.of[st].cur);
    u8 base = 0xff, most = 0;
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st)) {
        const Snapshot &o = b.of[st];
        bool going = e.parent && (o.cur == e.parent || (!rule(R_new_life) && o.cur));
        if (going) {
            e.members |= life_bit(o.life);
            base &= o.acc;
            most |= rule(R_base_least) ? 0 : o.rel;
            e.place = std::max(e.place, o.clock);
        } else {
            int l = o.cur || ever_member(s, o.life) ? o.life + STATIONS : o.life;
            if (l >= LIVES) return;
            e.members |= life_bit(l);
            e.joins |= life_bit(l);
        }
    }
    if (!e.parent) base = 0;
    if (!rule(R_base_least)) base = most;
    if (!rule(R_base_all) && e.parent) base = b.of[station(b.by - 1)].cur == e.parent ? b.of[station(b.by - 1)].acc : 0;
    e.cut = e.parent ? base & d.alive[e.parent] : 0;
    composed(s, n, e, emit);
}

static void agreement_steps(const State &s, const Derived &d, Emit emit)
{
    for (int n = 2; n <= opt.numbers; n++) {
        const Ballot &b = s.ballot[n];
        if (b.state != PREPARED) continue;
        for (int st = 0; st < STATIONS; st++) if (may_promise(s, st, n)) {
            State t = s;
            promise(t, st, n);
            emit(t, {K_PROMISE, u8(life_of(s, st)), u8(n), 0, 0});
        }
        for (unsigned q = 1; q < 1u << STATIONS; q++) {
            if ((q & ~b.promised) || !in_set(q, station(b.by - 1))) continue;
            unsigned of = (1u << STATIONS) - 1;
            if (!rule(R_schema_quorum) && !b.open) of = stations_of(s.desc[b.parent].members);
            if (count(q & of) * 2 <= count(of)) continue;
            if (b.open) compose_open(s, d, n, q, emit);
            else compose_change(s, d, n, q, emit);
        }
    }
    for (int n = 2; n <= opt.numbers; n++) if (s.desc[n].members)
        for (int l = 0; l < LIVES; l++) if (start_possible(s, d, l, n)) {
            State t = s;
            for (int p = 0; p < PDUS; p++) /* what it has released of an instance that it now leaves, and drops */
                if (!in_set(s.desc[n].joins, l) && s.life[l].in[p] && !in_set(d.before[n], p)) t.wrong = BAD_OWN;
            start(t, l, n);
            emit(t, {K_START, u8(l), u8(n), 0, 0});
        }
}

static bool expelled(const State &s, int l)
{
    for (int n = s.life[l].cur + 1; n <= opt.numbers; n++) if (s.desc[n].members && !in_set(s.desc[n].members, l))
        for (int k = 0; k < LIVES; k++) if (in_set(s.life[k].spoken, n)) return true;
    return false;
}

static void end_life(State &s, int st)
{
    s.inc[st] = u8(std::max(int(s.inc[st]), int(s.named[st])) + 1);
}

static void station_steps(const State &s, Emit emit)
{
    for (int st = 0; st < STATIONS; st++) {
        int l = life_of(s, st);
        const Life &me = s.life[l];
        int after = std::max(int(s.inc[st]), int(s.named[st])) + 1;
        if (after < INCS && me.cur && ((!rule(R_keeps_current) && expelled(s, l)) || (!rule(R_expelled_only) && me.frozen))) {
            State t = s;
            end_life(t, st);
            if (!rule(R_keep_promised)) t.promised[st] = 0;
            emit(t, {K_RENEW, u8(l), 0, 0, 0});
        }
        if (after < INCS && s.crashes) {
            State t = s;
            t.crashes--;
            t.life[l].crashed = 1;
            end_life(t, st);
            t.bound[st] = rule(R_durable) ? std::max(s.promised[st], s.bound[st]) : 0;
            t.promised[st] = 0;
            emit(t, {K_CRASH, u8(l), 0, 0, 0});
        }
        if (opt.withdrawals && me.cur && me.hold && s.promised[st] > me.cur && (!me.frozen || !rule(R_thaw))) {
            int used = 0;
            for (int n = 2; n <= opt.numbers; n++) used += s.ballot[n].state == SPENT;
            for (int n = s.promised[st] + 1; n <= opt.numbers && used < opt.withdrawals; n++) if (!s.ballot[n].owner) {
                State t = s;
                if (rule(R_withdraw_number)) {
                    t.ballot[n].owner = u8(st + 1);
                    t.ballot[n].state = SPENT;
                    t.promised[st] = u8(n);
                }
                t.life[l].hold = 0;
                t.life[l].closed = 0;
                t.life[l].frozen = 0;
                emit(t, {K_WITHDRAW, u8(l), u8(n), 0, 0});
            }
        }
    }
}

static void data_steps(const State &s, const Derived &d, Emit emit)
{
    int sent = 0;
    while (sent < PDUS && s.pdu[sent].from) sent++;
    for (int st = 0; st < STATIONS; st++) {
        int x = life_of(s, st);
        const Life &me = s.life[x];
        if (!me.cur) continue;
        if (sent < opt.data && in_set(opt.senders, st) && (!me.frozen || !rule(R_freeze))) {
            State t = s;
            Life &m = t.life[x];
            m.clock++;
            m.acc |= u8(1u << sent);
            t.pdu[sent] = {u8(x + 1), me.cur, m.clock};
            emit(t, {K_SEND, u8(x), me.cur, u8(sent), 0});
        }
        for (int p = 0; p < sent; p++) if (may_accept(s, d, x, p)) {
            State t = s;
            Life &m = t.life[x];
            m.acc |= u8(1u << p);
            m.clock = std::max(m.clock, s.pdu[p].clock);
            emit(t, {K_ACCEPT, u8(x), 0, u8(p), 0});
        }
        if (opt.hear) for (int k = 0; k < LIVES; k++) if (k != x && s.life[k].cur == me.cur && s.life[k].clock > me.clock && in_set(s.desc[me.cur].members, k)) {
            State t = s;
            t.life[x].clock = s.life[k].clock;
            emit(t, {K_HEAR, u8(x), 0, u8(k), 0});
        }
        if (opt.lag) {
            State t = s;
            release(t, d, x);
            if (memcmp(&t, &s, sizeof t)) emit(t, {K_RELEASE, u8(x), 0, 0, 0});
        }
    }
}

static void all_steps(const State &s, Emit emit)
{
    Derived d = derive(s);
    prepare_steps(s, emit);
    agreement_steps(s, d, emit);
    station_steps(s, emit);
    data_steps(s, d, emit);
}

#include "properties.h"
#include "search.h"
