/* What must hold in every state. */
#pragma once

enum { CHECK_KEPT = 1, CHECK_PASSED = 2, CHECK_SAME = 4, CHECK_PLACE = 8, CHECK_NUMBER = 16, CHECK_ORDER = 32, CHECK_OWN = 64, CHECK_PROGRESS = 128 };
static u64 excused;

static u8 released_in(const State &s, int x, int e)
{
    u8 out = 0;
    for (int p = 0; p < PDUS; p++) if (s.life[x].in[p] == e) out |= u8(1u << p);
    return out;
}

/* Something in more stands before something in less, and is not in it. */
static bool has_gap(const State &s, u8 less, u8 more)
{
    for (int p = 0; p < PDUS; p++) if (in_set(less, p))
        for (int q = 0; q < PDUS; q++) if (in_set(more & ~less, q) && less_pdu(s, q, p)) return true;
    return false;
}

/* V4, to the letter: every promiser of f that was in m has lost its memory of it, by a restart before it promised f. */
static bool lost_memory(const State &s, int m, int f)
{
    bool any = false;
    for (int st = 0; st < STATIONS; st++) if (in_set(s.desc[f].promisers, st)) {
        int was = -1, then = s.ballot[f].of[st].life;
        for (int l = st; l < LIVES; l += STATIONS) if (in_set(s.desc[m].members, l)) was = l;
        if (was < 0) continue;
        any = true;
        bool lost = false;
        for (int l = was; l < then; l += STATIONS) lost |= s.life[l].crashed;
        if (!lost) return false;
    }
    return any;
}

static const char *passed_over(const State &s, const Derived &d, int n)
{
    for (int m = 1; m < n; m++) {
        bool out = false;
        for (int x = 0; x < LIVES; x++) out |= in_set(s.life[x].alone, m);
        if (!out || in_set(d.chain[n], m)) continue;
        if (lost_memory(s, m, next_in(d, m, n))) excused++;
        else return "an instance that has released is passed over";
    }
    return nullptr;
}

/* An instance that x has released was passed over by what n goes back to, under the exception of V4. */
static bool excepted(const State &s, const Derived &d, int x, int n)
{
    int m = s.life[x].events ? 31 - __builtin_clz(s.life[x].events) : 0;
    return m && m < n && !in_set(d.chain[n], m) && lost_memory(s, m, next_in(d, m, n));
}

/* PDUs that all members of e have accepted. */
static u8 shared(const State &s, int e)
{
    u8 all = 0xff;
    for (int k = 0; k < LIVES; k++) if (in_set(s.desc[e].members, k)) all &= s.life[k].acc;
    return all;
}

static const char *kept(const State &s, const Derived &d, int n)
{
    for (int x = 0; x < LIVES; x++) {
        int cur = s.life[x].cur;
        if (cur > n && !in_set(d.chain[cur], n) && lost_memory(s, n, next_in(d, n, cur))) continue; /* the exception of V4 */
        for (int e = 1; e < n; e++) if (in_set(d.chain[n], e)) {
            u8 mine = released_in(s, x, e), all = part(d, e, n);
            if (excepted(s, d, x, n)) { /* lost may be what only the members of the instance passed over had */
                if (mine & shared(s, e) & ~d.alive[n]) return "what all members had accepted is lost";
                continue;
            }
            if (mine & ~all) return "what a station has released is not in the next instance's past";
            if (has_gap(s, mine, all)) return "the next instance's past has something in front of what a station has released";
        }
    }
    return nullptr;
}

static const char *alike(const State &s, const Derived &d)
{
    for (int x = 0; x < LIVES; x++) for (int y = 0; y < LIVES; y++) if (x != y) {
        int m = s.life[x].events ? 31 - __builtin_clz(s.life[x].events) : 0, n = s.life[y].events ? 31 - __builtin_clz(s.life[y].events) : 0;
        if (excepted(s, d, x, n) || excepted(s, d, y, m)) continue;
        for (int e = 1; e <= opt.numbers && (opt.checks & CHECK_SAME); e++) {
            u8 a = released_in(s, x, e), b = released_in(s, y, e);
            if ((a & ~b) && (b & ~a)) return "two stations have released different PDUs of one instance";
            if (has_gap(s, a, b)) return "a station has released what stands behind what it lacks";
        }
        if (opt.checks & CHECK_PLACE) for (int p = 0; p < PDUS; p++) {
            int a = s.life[x].in[p], b = s.life[y].in[p];
            if (a && b && a < b && in_set(d.chain[b], a)) return "a PDU stands before a view event at one station, behind it at another";
        }
    }
    for (int x = 0; x < LIVES && (opt.checks & CHECK_PLACE); x++) {
        const Life &me = s.life[x];
        for (int n = 2; n <= opt.numbers; n++) if (in_set(me.events, n) && s.desc[n].members) {
            int e = s.desc[n].parent;
            if (!e || !in_set(me.events, e)) continue;
            if (released_in(s, x, e) != (d.before[n] & d.alive[me.cur] & ~d.before[e])) return "a station has ended an instance at another place than agreed";
        }
    }
    return nullptr;
}

static const char *violation(const State &s)
{
    if (s.wrong == BAD_TWICE && (opt.checks & CHECK_NUMBER)) return "one number, two instances";
    if (s.wrong == BAD_ORDER && (opt.checks & CHECK_ORDER)) return "a station releases out of order";
    if (s.wrong == BAD_OWN && (opt.checks & CHECK_OWN)) return "a station drops what it has released";
    Derived d = derive(s);
    for (int n = 2; n <= opt.numbers; n++) if (s.desc[n].members) {
        bool started = false, event = false;
        for (int l = 0; l < LIVES; l++) {
            started |= in_set(s.life[l].spoken, n);
            event |= s.life[l].events && 31 - __builtin_clz(s.life[l].events) == n;
        }
        const char *bad = nullptr;
        if (started && (opt.checks & CHECK_PASSED)) bad = passed_over(s, d, n);
        if (!bad && (event || opt.strict) && (opt.checks & CHECK_KEPT)) bad = kept(s, d, n);
        if (bad) return bad;
    }
    return alike(s, d);
}

/* ---- progress: those who hear each other, a quorum, can come to an instance that releases ---- */

static State best;
static bool found;
static unsigned wanted;
static int wanted_number;
static void pick(const State &t, Step step)
{
    if (step.kind != K_COMPOSE || step.number != wanted_number || stations_of(step.set) != wanted || found) return;
    for (int l = 0; l < LIVES; l++) if (in_set(step.set, l) && !is_now(t, l) && l != life_of(t, station(l)) + STATIONS) return;
    best = t;
    found = true;
}

static bool held_by(const State &s, unsigned q, int p)
{
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st) && in_set(s.life[life_of(s, st)].acc, p)) return true;
    return false;
}

/* All that the stations of q can do without a new number: accept, start, take a new incarnation. */
static void calm(State &s, unsigned q, int from)
{
    for (bool again = true; again;) {
        again = false;
        settle(s);
        Derived d = derive(s);
        for (int st = 0; st < STATIONS && !again; st++) if (in_set(q, st)) {
            int x = life_of(s, st);
            for (int n = opt.numbers; n >= from && !again; n--) for (int l = x; l <= x + STATIONS && l < LIVES; l += STATIONS)
                if (!again && s.desc[n].members && s.life[x].cur < n && start_possible(s, d, l, n)) {
                    start(s, l, n);
                    again = true;
                }
            for (int p = 0; p < PDUS && !again; p++) if (may_accept(s, d, x, p) && held_by(s, q, p)) {
                s.life[x].acc |= u8(1u << p);
                s.life[x].clock = std::max(s.life[x].clock, s.pdu[p].clock);
                again = true;
            }
            for (int k = 0; k < LIVES && !again; k++)
                if (s.life[x].cur && in_set(q, station(k)) && is_now(s, k) && s.life[k].cur == s.life[x].cur && s.life[k].clock > s.life[x].clock) {
                    s.life[x].clock = s.life[k].clock;
                    again = true;
                }
            if (!again && !rule(R_keeps_current) && s.life[x].cur && expelled(s, x) && x + STATIONS < LIVES) {
                bool named = false; /* it may be about to start as a joiner */
                for (int n = 2; n <= opt.numbers; n++) named |= s.desc[n].members && n > s.life[x].cur && in_set(s.desc[n].members, x + STATIONS);
                if (!named && std::max(int(s.inc[st]), int(s.named[st])) + 1 < INCS) {
                    end_life(s, st);
                    again = true;
                }
            }
        }
    }
    settle(s);
}

static bool at_work(const State &s, unsigned q)
{
    int n = 0;
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st)) n = std::max(n, int(s.life[life_of(s, st)].cur));
    if (n < 1 || stations_of(s.desc[n].members) != q) return false;
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st)) {
        int l = life_of(s, st);
        if (s.life[l].cur != n || !in_set(s.life[l].events, n) || s.life[l].frozen) return false;
    }
    return true;
}

static bool attempt(State &s, unsigned q, bool open, int n)
{
    int by = -1;
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st) && (by < 0 || s.life[life_of(s, st)].cur > s.life[life_of(s, by)].cur)) by = st;
    int l = life_of(s, by), cur = s.life[l].cur;
    if (open ? !rule(R_opens) : !cur || s.life[l].frozen) return false;
    State t = s;
    Ballot &b = t.ballot[n];
    b.state = PREPARED;
    b.owner = u8(by + 1);
    b.by = u8(l + 1);
    b.open = open;
    b.parent = u8(open ? 0 : cur);
    if (!open) for (int k = 0; k < LIVES; k++) if (in_set(t.desc[cur].members, k) && (!in_set(q, station(k)) || t.life[k].cur != cur || !is_now(t, k))) b.remove |= life_bit(k);
    promise(t, by, n);
    for (int st = 0; st < STATIONS; st++) if (in_set(q, st) && may_promise(t, st, n)) promise(t, st, n);
    found = false;
    wanted = q;
    wanted_number = n;
    agreement_steps(t, derive(t), pick);
    s = found ? best : t;
    return found;
}

static bool comes_to_work(const State &s, unsigned q)
{
    int numbers = opt.numbers, lag = opt.lag;
    bool done = false;
    opt.lag = 0;
    for (int way = 0; way < 4 && !done; way++) {
        State t = s;
        opt.numbers = numbers + 3;
        calm(t, q, way & 1 ? 2 : numbers + 1);
        done = at_work(t, q);
        for (int k = 1; k <= 3 && !done; k++) {
            attempt(t, q, way & 2 || k == 3, numbers + k);
            calm(t, q, way & 1 ? 2 : numbers + k);
            done = at_work(t, q);
        }
    }
    opt.numbers = numbers;
    opt.lag = lag;
    return done;
}
