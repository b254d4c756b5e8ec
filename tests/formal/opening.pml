/* How instances get their numbers: the OPEN agreement beside the votes of living instances, for Spin (checked with 6.5.2).
 * docs/formal.md tells what it shows, and what the split between this model and agreement.pml assumes.
 *
 * Mirrors proto/opening.py, class Opening, with what engine.py, joining.py and membership.py do around it. Steps have the names of
 * the code where it has one: issue, adopt, agree, told (an OPEN that says STARTED), began (an OPEN that brings the proposal's view
 * as its past), vote, commit, let_in, renew, and crash, which is followed by a restart at once.
 *
 * The unit is a LIFE: one incarnation of one station; life l is incarnation l / N of station l % N. A set of lives is a code of two
 * bits for each station, 0: no member, else the incarnation + 1. A proposal is (number, set): what its members bring from the past
 * belongs to their lives and is not told apart. A life issues at most one proposal of each number, so that `issued` holds them all.
 *
 * The channel: each OPEN that was ever sent may be read by anybody at any time, again and again, or never. The code keeps the last
 * OPEN heard of each station, and judges a proposal complete when the last ones of all its members name it. Since any of them may
 * be the last to arrive, that is the same as "each member has issued it", and no record of what was heard is needed. What is
 * heard of highest numbers is asked when it is used. Candidates for a proposal are the newest lives: one that names a life which
 * has ended can be complete only if that life issued it, and then it is taken over from there (adopt).
 *
 * A living instance: its members vote for one next set, and go on to it when every voter is known to have every vote. That they
 * agree on one is what agreement.pml shows; here it is assumed. Whose vote is for something else is one who does not vote.
 *
 * Left out: time, the order of messages, what is delivered between instances (agreement.pml has it), listening (a station that
 * listens issues nothing), a state file that is lost, more than one daemon with one station number, the bus.
 *
 * Every question and step is C, since Promela's guards cannot loop: `steps` lists what can happen in the present state, and the
 * process takes any of them. The state is in Promela variables only. pan -r tells an error's story in words.
 *
 * Parameters (-D): N stations, INCS lives of each, VMAX highest number that is issued or voted for, QUORUM, REQUIRED (bitmap of
 * stations), CRASHES, RENEWALS, VOTES and ISSUES (how many crashes; new lives of a running process; instances that are chosen by
 * votes; proposals issued, all lives together), CHECK (bitmap of properties), BREAK_* (one rule left out).
 * VMAX and the numbers of faults are bounds of the search: what lies beyond them is not looked at.
 */
#ifndef N
#define N 3
#endif
#ifndef INCS
#define INCS 3
#endif
#ifndef VMAX
#define VMAX 4
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef REQUIRED
#define REQUIRED 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef RENEWALS
#define RENEWALS 0
#endif
#ifndef VOTES
#define VOTES 0
#endif
#ifndef ISSUES
#define ISSUES 6
#endif
#ifndef CHECK
#define CHECK 15
#endif

#define NL (N * INCS)
#define V1 (VMAX + 1)
#if N > 4 || INCS > 3 || VMAX > 7
#error "unsupported size"
#endif

#define NUMBER 1 /* one instance number, one set of lives, and one way in which it came about */
#define GROWS 2  /* a station enters only higher numbers than it has been in */
#define FOUND 4  /* two that have found two proposals complete are not members of both */
#define PASSED 8 /* nobody passes over a proposal that it has issued, and from which another one comes along with it */

#define UNBORN 0
#define PROPOSING 1
#define ACTIVE 2
#define ENDED 3

byte st[NL];            /* UNBORN .. ENDED */
byte inst[NL];          /* number of the instance it is in, or was in last; 0: none */
byte first[NL];         /* number of the first instance that it was in, 0: none */
byte opened[NL];        /* number of the proposal that it has started, 0: none */
byte issued[NL * V1];   /* by life and number: the set it has issued, 0: none */
byte high[N];           /* on disk: highest number issued, voted for or seen */
byte low[N];            /* Opening._floor: numbers up to it may have been used in a way that this life does not know */
byte been[N];           /* highest number of an instance that the station has been in */
byte set_of[V1];        /* what the first who entered an instance of this number counts as its members */
byte by_vote[V1];       /* and whether it came there by votes */
byte next[V1];          /* what is voted for under this number, 0: nothing */
short voted;            /* lives that have voted in their present, or last, instance */
short knows;            /* lives that have all those votes */
short agreed;            /* lives that have found a proposal complete themselves */
short crashed;
byte crashes = CRASHES;
byte renewals = RENEWALS;
byte votes = VOTES;
byte issues = ISSUES;   /* how many proposals are issued, all lives together */
byte bad;

c_code {
#define BIT(l) (1 << (l))
#define IN(map, l) (((map) >> (l)) & 1)
#define STATION(l) ((l) % N)
#define OF(set, s) (((set) >> (2 * (s))) & 3)
#define HAS(set, l) (OF(set, STATION(l)) == (l) / N + 1)
#define ONLY(l) (((l) / N + 1) << (2 * STATION(l)))
#define WITHOUT(set, s) ((set) & ~(3 << (2 * (s))))
#define ISSUED(l, v) now.issued[(l) * V1 + (v)]
#define EACH(l) for (int l = 0; l < NL; l++)
#define EACH_IN(l, set) for (int l = 0; l < NL; l++) if (HAS(set, l))
#define EACH_STATION(s) for (int s = 0; s < N; s++)

enum { ISSUE, ADOPT, AGREE, TOLD, BEGAN, CHOOSE, VOTE, LEARN, COMMIT, LET_IN, RENEW, CRASH };

struct step { unsigned char kind, life, number, set; };

static struct step list[256];
static int listed;
static char listed_of[sizeof(State)];
static int listed_valid;

static int called[N]; /* in a story: what a station was called at its beginning */
#define WHO(l) ((l) / N * N + called[STATION(l)])

static int told_set(int set)
{
    int out = 0;
    EACH_STATION(s) out |= OF(set, s) << (2 * called[s]);
    return out;
}

static void fail(int property, const char *why)
{
    if (property & CHECK) {
        now.bad |= (unsigned char)property;
        Printf("  *** %s\n", why);
    }
}

static int quorate(int set)
{
    int mask = 0;
    EACH_STATION(s) if (OF(set, s)) mask |= BIT(s);
#ifdef BREAK_QUORUM
    return mask != 0;
#else
    return __builtin_popcount((unsigned)mask) >= QUORUM && (mask & REQUIRED) == REQUIRED;
#endif
}

static int latest(int l)
{
    for (int v = VMAX; v; v--) if (ISSUED(l, v)) return v;
    return 0;
}

/* Every member has issued it. */
static int complete(int l, int v)
{
    EACH_IN(k, ISSUED(l, v)) if (ISSUED(k, v) != ISSUED(l, v)) return 0;
    return 1;
}

static int newest(int s)
{
    for (int i = INCS - 1; i >= 0; i--) if (now.st[i * N + s] != UNBORN) return i * N + s;
    return s;
}

/* The life whose instance life k's process was in last, -1: none that it remembers. */
static int last_in(int k)
{
    for (int j = k - N; j >= 0 && !IN(now.crashed, j); j -= N) if (now.first[j]) return j;
    return -1;
}

/* A proposal that l has issued, and that the past of k is the instance of; 0: none. */
static int began(int l, int k)
{
    int j = last_in(k);
    if (j < 0 || STATION(k) == STATION(l) || now.opened[j] != now.inst[j]) return 0;
    return ISSUED(l, now.inst[j]) && ISSUED(l, now.inst[j]) == ISSUED(j, now.inst[j]) ? now.inst[j] : 0;
}

static int passes_over(int l, int set)
{
    EACH_IN(k, set) if (began(l, k)) return 1;
    return 0;
}

/* It has heard all of them. */
static int heard_began(int l, int set)
{
#ifdef BREAK_BEGAN
    return 0;
#else
    return passes_over(l, set);
#endif
}

/* It was told of the set, by k: what all its members bring stands in there. */
static int told_began(int l, int set, int k)
{
#if defined(BREAK_BEGAN)
    return 0;
#elif defined(BREAK_PASTS)
    return began(l, k) != 0;
#else
    return passes_over(l, set);
#endif
}

static void add(int kind, int l, int v, int set)
{
    if (v > VMAX) return; /* the bound */
    if (listed < 256) list[listed++] = (struct step){(unsigned char)kind, (unsigned char)l, (unsigned char)v, (unsigned char)set};
    else fail(127, "too many steps");
}

/* Opening._consider: a new number for a set, above all that it knows of: its own and what any OPEN has said. */
static void add_issues(int l, int set, int last)
{
    int seen = 0;
    if ((last && ISSUED(l, last) == set) || heard_began(l, set)) return;
    EACH_STATION(s) {
        int v = (now.high[s] > now.high[STATION(l)] ? now.high[s] : now.high[STATION(l)]) + 1;
#ifdef BREAK_HIGHEST
        v = last + 1; /* it counts from what this life has issued */
#endif
        if (!(seen >> v & 1) && v > last) add(ISSUE, l, v, set);
        seen |= 1 << v;
    }
}

/* A number that another member has for the set already: for candidates of its own, or, when nothing is agreed for a while, any set
 * with itself in it (Settling.settle, which looks at `low` also where this life has issued something). */
static void add_adopts(int l, int last)
{
    int above = last ? last : now.low[STATION(l)];
#ifdef BREAK_FORGET
    above = last;
#endif
    EACH(k) if (k != l) for (int v = above + 1; v <= VMAX; v++) {
        int set = ISSUED(k, v), twice = 0;
        if (!set || !HAS(set, l) || ISSUED(l, v) == set || told_began(l, set, k)) continue;
        for (int j = 0; j < k; j++) twice |= j != l && ISSUED(j, v) == set && !told_began(l, set, j);
        if (!twice) add(ADOPT, l, v, set);
    }
}

static void add_sets(int l, int s, int set, int last)
{
    if (s == N) {
        if (quorate(set)) add_issues(l, set, last);
        return;
    }
    if (s == STATION(l)) {
        add_sets(l, s + 1, set | ONLY(l), last);
        return;
    }
    add_sets(l, s + 1, set, last);
    add_sets(l, s + 1, set | ONLY(newest(s)), last);
}

/* May l vote at all? Rule 8: others may start what this life has issued yet. */
static int may_vote(int l)
{
    int v = now.inst[l];
    if (now.st[l] != ACTIVE || IN(now.voted, l)) return 0;
#ifndef BREAK_ISSUED
    if (v < latest(l)) return 0;
#endif
    return 1;
}

/* Was it in instance v? Then, if it has gone on, by the votes there. */
static int was_in(int k, int v) { return now.first[k] && now.first[k] <= v && now.inst[k] >= v; }

static int all_voted(int v)
{
    EACH_IN(k, now.set_of[v]) if (HAS(now.next[v + 1], k) && (!was_in(k, v) || (now.inst[k] == v && !IN(now.voted, k)))) return 0;
    return 1;
}

static int is_voter(int l) { return now.next[now.inst[l] + 1] && HAS(now.next[now.inst[l] + 1], l); }

static int decided(int v)
{
    EACH_IN(k, now.set_of[v]) if (HAS(now.next[v + 1], k) && (!was_in(k, v) || (now.inst[k] == v && !IN(now.knows, k)))) return 0;
    return 1;
}

/* A member that may have been in an instance before is not let in again, as far as the voters know. */
static int fresh(int x, int v)
{
    for (int w = 1; w <= v; w++) if (now.set_of[w] && HAS(now.set_of[w], x)) return 0;
    return now.st[x] != UNBORN;
}

static void add_choices(int l)
{
    int v = now.inst[l], set = now.set_of[v];
    if (v == VMAX || now.next[v + 1] || !now.votes) return;
    EACH_STATION(s) if (s != STATION(l) && OF(set, s)) {
        if (quorate(WITHOUT(set, s))) add(CHOOSE, l, v + 1, WITHOUT(set, s));
        for (int t = 0; t < s; t++) if (t != STATION(l) && OF(set, t) && quorate(WITHOUT(WITHOUT(set, s), t)))
            add(CHOOSE, l, v + 1, WITHOUT(WITHOUT(set, s), t));
    }
    EACH(x) if (!OF(set, STATION(x)) && fresh(x, v)) add(CHOOSE, l, v + 1, set | ONLY(x));
}

static int has_next(int l) { return l + N < NL; }

static void find_steps(void)
{
    listed = 0;
    EACH(l) {
        int s = STATION(l), v = now.inst[l];
        if (now.st[l] == PROPOSING) {
            int last = latest(l);
            if (now.issues) {
                add_sets(l, 0, 0, last);
                add_adopts(l, last);
            }
            for (int w = 1; w <= VMAX; w++) if (ISSUED(l, w)) {
                int told = 0, over = 0;
                EACH(k) if (k != l && now.opened[k] == w && ISSUED(k, w) == ISSUED(l, w)) told |= !told_began(l, ISSUED(l, w), k);
                EACH(k) over |= now.st[k] != UNBORN && began(l, k) == w;
#ifdef BREAK_LATEST
                if (complete(l, w) && !heard_began(l, ISSUED(l, w))) add(AGREE, l, w, 0);
#else
                if (w == last && complete(l, w) && !heard_began(l, ISSUED(l, w))) add(AGREE, l, w, 0);
#endif
                if (told) add(TOLD, l, w, 0);
#ifndef BREAK_BEGAN
                if (over) add(BEGAN, l, w, 0);
#endif
            }
            for (int w = 2; w <= VMAX; w++) if (now.next[w] && HAS(now.next[w], l) && now.by_vote[w] && now.set_of[w] == now.next[w])
                add(LET_IN, l, w, now.next[w]);
        }
        if (now.st[l] == ACTIVE) {
            if (may_vote(l)) {
                add_choices(l);
                if (is_voter(l)) add(VOTE, l, v + 1, 0);
            }
            if (is_voter(l) && IN(now.voted, l) && !IN(now.knows, l) && all_voted(v)) add(LEARN, l, v + 1, 0);
            if (is_voter(l) && IN(now.knows, l) && decided(v)) add(COMMIT, l, v + 1, 0);
        }
        if (now.st[l] == PROPOSING || now.st[l] == ACTIVE) {
            if (has_next(l) && now.renewals) add(RENEW, l, 0, 0);
            if (has_next(l) && now.crashes) add(CRASH, l, 0, 0);
        }
        (void)s;
    }
}

static int steps(int k)
{
    if (!listed_valid || memcmp(listed_of, &now, sizeof(State))) {
        find_steps();
        memcpy(listed_of, &now, sizeof(State));
        listed_valid = 1;
    }
    return k < listed;
}

static void note(int s, int v)
{
    if (now.high[s] < v) now.high[s] = (unsigned char)v;
}

static void enter(int l, int v, int set, int vote)
{
    int s = STATION(l);
    if (!now.set_of[v]) {
        now.set_of[v] = (unsigned char)set;
        now.by_vote[v] = (unsigned char)vote;
    }
    if (now.set_of[v] != set) fail(NUMBER, "one number, two sets of members");
    else if (now.by_vote[v] != vote) fail(NUMBER, "one number, by votes and by opening");
    if (v <= now.been[s]) fail(GROWS, "a station enters an instance below one that it has been in");
    if (v > now.been[s]) now.been[s] = (unsigned char)v;
    now.st[l] = ACTIVE;
    now.inst[l] = (unsigned char)v;
    if (!now.first[l]) now.first[l] = (unsigned char)v;
    now.voted &= ~BIT(l);
    now.knows &= ~BIT(l);
}

static void issue(int l, int v, int set)
{
    ISSUED(l, v) = (unsigned char)set;
    now.issues--;
    note(STATION(l), v);
}

static void start(int l, int v, int agreed)
{
    if (passes_over(l, ISSUED(l, v))) fail(PASSED, "it passes over a proposal that it has issued, and another one comes from");
    now.opened[l] = (unsigned char)v;
    EACH_IN(k, ISSUED(l, v)) {
        int w = now.opened[k];
        if (IN(now.agreed & agreed, k) && now.st[k] == ACTIVE && now.inst[k] == w && w != v && HAS(ISSUED(k, w), l))
            fail(FOUND, "two members of two proposals have found different ones complete");
    }
    if (agreed) now.agreed |= BIT(l);
    enter(l, v, ISSUED(l, v), 0);
}

/* A new life of the same process: what the last one has issued is nothing for it. */
static void new_life(int l)
{
    int s = STATION(l), used = latest(l);
    if (now.st[l] == ACTIVE && now.inst[l] > used) used = now.inst[l];
    if (used > now.low[s]) now.low[s] = (unsigned char)used;
    now.st[l] = ENDED;
    now.st[l + N] = PROPOSING;
}

#if REQUIRED == 0
/* Stations are alike: of the states that differ only in their numbers one is kept, the smallest. */
#define LIVES(array) EACH(l) to->array[at(l, p)] = from->array[l]
#define STATIONS(array) EACH_STATION(s) to->array[p[s]] = from->array[s]

static int at(int l, const int *p) { return l / N * N + p[STATION(l)]; }

static unsigned char renamed(int set, const int *p)
{
    int out = 0;
    EACH_STATION(s) out |= OF(set, s) << (2 * p[s]);
    return (unsigned char)out;
}

static short renamed_lives(int map, const int *p)
{
    int out = 0;
    EACH(l) if (IN(map, l)) out |= BIT(at(l, p));
    return (short)out;
}

static void rename_stations(State *to, const State *from, const int *p)
{
    memcpy(to, from, sizeof(State));
    LIVES(st);
    LIVES(inst);
    LIVES(first);
    LIVES(opened);
    STATIONS(high);
    STATIONS(low);
    STATIONS(been);
    EACH(l) for (int v = 0; v < V1; v++) to->issued[at(l, p) * V1 + v] = renamed(from->issued[l * V1 + v], p);
    for (int v = 0; v < V1; v++) {
        to->set_of[v] = renamed(from->set_of[v], p);
        to->next[v] = renamed(from->next[v], p);
    }
    to->voted = renamed_lives(from->voted, p);
    to->knows = renamed_lives(from->knows, p);
    to->agreed = renamed_lives(from->agreed, p);
    to->crashed = renamed_lives(from->crashed, p);
}

static void smallest(void)
{
    static State from, to;
    int best = 0, p[N], digits[N];
    memcpy(&from, &now, sizeof(State));
    for (int code = 1; code < 1 << (2 * N); code++) {
        int used = 0;
        EACH_STATION(s) used |= BIT(p[s] = code >> (2 * s) & 3);
        if (used != BIT(N) - 1) continue;
        rename_stations(&to, &from, p);
        if (memcmp(&to, &now, sizeof(State)) >= 0) continue;
        memcpy(&now, &to, sizeof(State));
        best = code;
        memcpy(digits, p, sizeof(p));
    }
    if (best) {
        int before[N];
        memcpy(before, called, sizeof(called));
        EACH_STATION(s) called[digits[s]] = before[s];
    }
}
#else
static void smallest(void) { }
#endif

static void take(int k)
{
    struct step t = list[k];
    int l = t.life, v = t.number, s = STATION(l);
    listed_valid = 0;
    switch (t.kind) {
    case ISSUE:
    case ADOPT:
        Printf("life %d %s instance %d = %x\n", WHO(l), t.kind == ISSUE ? "issues" : "adopts", v, told_set(t.set));
        issue(l, v, t.set);
        break;
    case AGREE:
    case TOLD:
    case BEGAN:
        Printf("life %d starts instance %d = %x%s\n", WHO(l), v, told_set(ISSUED(l, v)), t.kind == TOLD ? ", told that it was started" : t.kind == BEGAN ? ", told that it was and has ended" : "");
        start(l, v, t.kind == AGREE ? -1 : 0);
        break;
    case CHOOSE:
        now.votes--;
        now.next[v] = t.set; /* fall through */
    case VOTE:
        Printf("life %d votes for instance %d = %x\n", WHO(l), v, told_set(now.next[v]));
        now.voted |= BIT(l);
#ifndef BREAK_PROMISED
        note(s, v);
        if (now.low[s] < now.high[s]) now.low[s] = now.high[s];
#endif
        break;
    case LEARN:
        Printf("life %d has all votes for instance %d\n", WHO(l), v);
        now.knows |= BIT(l);
        break;
    case COMMIT:
        Printf("life %d goes on to instance %d = %x\n", WHO(l), v, told_set(now.next[v]));
        enter(l, v, now.next[v], 1);
        break;
    case LET_IN:
        Printf("life %d is let into instance %d = %x\n", WHO(l), v, told_set(t.set));
        note(s, v);
        if (now.low[s] < now.high[s]) now.low[s] = now.high[s];
        enter(l, v, t.set, 1);
        break;
    case RENEW:
        Printf("life %d ends, its process goes on as life %d\n", WHO(l), WHO(l) + N);
        now.renewals--;
        new_life(l);
        break;
    default:
        Printf("life %d crashes, and its station starts again as life %d\n", WHO(l), WHO(l) + N);
        now.crashes--;
        now.crashed |= BIT(l);
        new_life(l);
#ifdef BREAK_DISK
        now.high[s] = 0;
#endif
        now.low[s] = now.high[s];
    }
}

static void begin(void)
{
    EACH_STATION(s) {
        now.st[s] = PROPOSING;
        called[s] = s;
    }
}
}

#define STEP(k) :: d_step { c_expr { steps (k) } -> c_code { take(k); smallest(); }; assert(bad == 0) }
#define STEPS_8(k) STEP(k) STEP(k + 1) STEP(k + 2) STEP(k + 3) STEP(k + 4) STEP(k + 5) STEP(k + 6) STEP(k + 7)
#define STEPS_32(k) STEPS_8(k) STEPS_8(k + 8) STEPS_8(k + 16) STEPS_8(k + 24)

active proctype cluster()
{
    d_step { c_code { begin(); }; assert(bad == 0) }
    do
    STEPS_32(0) STEPS_32(32) STEPS_32(64) STEPS_32(96) STEPS_32(128) STEPS_32(160) STEPS_32(192) STEPS_32(224)
    :: c_expr { !steps (0) } -> break
    od
}
