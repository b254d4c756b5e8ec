/* What stations bring from their last instance to the next ones, for Spin (checked with 6.5.2). docs/formal.md tells what it shows.
 *
 * Mirrors proto/opening.py and proto/handover.py (`bind`, `_flush`, `_fits`) beside opening.pml, which has the numbers and sets of
 * proposals but not what their members bring. Here a proposal is (number, lives, pasts): two of one number and set that say different
 * pasts are two. Steps have the names of the code where it has one.
 *
 * At the beginning all stations have been in instance 1 and it has ended; each has released 0 .. RELEASED PDUs of it at level preack,
 * so that all have accepted as many as anybody has released. Instances that are opened have one PDU: a member accepts it,
 * releases it when all members have accepted it, and its instance may end at any moment.
 *
 * The channel is that of opening.pml: any OPEN that was ever sent may be read at any time, again and again, or never. So whoever
 * proposes may know any past that a life has ever said of itself.
 *
 * Assumed (opening.pml shows it): a number has one set of lives. Left out: votes, listening, time.
 *
 * A LIFE is one incarnation of one station; life l is incarnation l / N of station l % N. A proposal's content is a code of seven
 * bits for each station: incarnation + 1 (2 bits, 0: no member), number of the instance it comes from (3 bits, 0: none), PDUs of that
 * (2 bits).
 *
 * Parameters (-D): N stations, INCS lives of each, VMAX highest number, QUORUM, RELEASED, ISSUES (proposals issued, all lives
 * together), RENEWALS (new lives of a process whose opening starts again), CRASHES, CHECK (bitmap of properties), BREAK_*.
 */
#ifndef N
#define N 3
#endif
#ifndef INCS
#define INCS 2
#endif
#ifndef VMAX
#define VMAX 3
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef RELEASED
#define RELEASED 1
#endif
#ifndef ISSUES
#define ISSUES 5
#endif
#ifndef RENEWALS
#define RENEWALS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef CHECK
#define CHECK 7
#endif

#define NL (N * INCS)
#define V1 (VMAX + 1)
#if N > 4 || INCS > 3 || VMAX > 7 || RELEASED > 3
#error "unsupported size"
#endif

#define TOGETHER 1 /* who starts one instance from one former one ends that at the same place */
#define ONWARD 2   /* who goes on later, with nobody who has gone on before, ends the former instance no earlier */
#define HELD 4     /* nobody is to deliver what it has not accepted, nor less than it has released */

#define PROPOSING 1
#define ACTIVE 2

byte st[N];
byte life[N];           /* incarnation of the present life */
byte inst[N];           /* the instance that it is in, or was in last; 0: its process knows none */
byte rel[N];            /* PDUs of it released here */
byte past[N];           /* what its process brings of that: Opening.past.reached */
byte high[N];           /* on disk: highest number issued or started */
int issued[NL * V1];    /* by life and number: the content of what it has issued, 0: nothing */
int said[NL];           /* the pasts that it has said of itself, a bit for each (instance, PDUs) */
byte started[N * V1];   /* by station and number: its incarnation there + 1, 0: it was not in that instance */
byte accepted[V1];      /* stations that have accepted the PDU of an instance */
byte ends[V1 * V1];     /* by former instance and number of the next: PDUs delivered + 1 by those that went on with nobody before them */
byte ends_any[V1 * V1]; /* the same of all */
byte most;              /* PDUs of instance 1 released by anybody */
byte issues = ISSUES;
byte renewals = RENEWALS;
byte crashes = CRASHES;
byte chosen;            /* stations whose place in instance 1 is known */
byte bad;

c_code {
#define BIT(l) (1 << (l))
#define STATION(l) ((l) % N)
#define OF(content, s) (((content) >> (7 * (s))) & 127)
#define LIFE(part) ((part) & 3)
#define FROM(part) (((part) >> 2) & 7)
#define COUNT(part) (((part) >> 5) & 3)
#define PART(incarnation, from, count) (((incarnation) + 1) | (from) << 2 | (count) << 5)
#define ISSUED(l, v) now.issued[(l) * V1 + (v)]
#define STARTED(s, v) now.started[(s) * V1 + (v)]
#define SAYS(from, count) BIT((from) * 4 + (count))
#define EACH_STATION(s) for (int s = 0; s < N; s++)

enum { RELEASED_OF_1, ISSUE, AGAIN, ADOPT, AGREE, TOLD, BEGAN, ACCEPT, RELEASE, END, RENEW, CRASH };

struct step { unsigned char kind, station, number; int content; };

static struct step list[512];
static int listed;
static char listed_of[sizeof(State)];
static int listed_valid;

static void fail(int property, const char *why)
{
    if (property & CHECK) {
        now.bad |= (unsigned char)property;
        Printf("  *** %s\n", why);
    }
}

static int present(int s) { return now.life[s] * N + s; }

static int latest(int l)
{
    for (int v = VMAX; v; v--) if (ISSUED(l, v)) return v;
    return 0;
}

static int quorate(int content)
{
    int count = 0;
    EACH_STATION(s) count += LIFE(OF(content, s)) != 0;
    return count >= QUORUM;
}

static int lives_of(int content)
{
    int out = 0;
    EACH_STATION(s) out |= LIFE(OF(content, s)) << (7 * s);
    return out;
}

/* Are these one proposal? */
static int same(int content, int other)
{
#ifdef BREAK_PASTS
    return lives_of(content) == lives_of(other); /* whatever its members bring */
#else
    return content == other;
#endif
}

/* Every member has issued it. */
static int complete(int content, int v)
{
    EACH_STATION(s) {
        int part = OF(content, s);
        if (LIFE(part) && !same(content, ISSUED((LIFE(part) - 1) * N + s, v))) return 0;
    }
    return 1;
}

/* What a station has started under this number. */
static int began_as(int s, int v) { return ISSUED((STARTED(s, v) - 1) * N + s, v); }

/* Do these pasts tell of an instance that this life has issued itself? Then it starts that first. */
static int tells_of_issued(int l, int content)
{
    EACH_STATION(s) {
        int v = FROM(OF(content, s));
        if (s != STATION(l) && v > 1 && ISSUED(l, v) && STARTED(s, v) && lives_of(ISSUED(l, v)) == lives_of(began_as(s, v))) return 1;
    }
    return 0;
}

/* SwitchedHandover._target: as far as any member that comes from there has it released. */
static int target(int s, int content)
{
    int out = -1;
    EACH_STATION(k) {
        int part = OF(content, k);
        if (LIFE(part) && now.inst[s] && FROM(part) == now.inst[s] && (int)COUNT(part) > out) out = COUNT(part);
    }
    return out;
}

static int bound(int s, int content)
{
    int t = target(s, content);
    return t < 0 ? now.past[s] : t;
}

/* Opening._fits: it says of this station what that brings, or leads to the same. */
static int fits(int s, int content)
{
    int part = OF(content, s);
    if (FROM(part) != now.inst[s]) return 0;
#ifdef BREAK_FITS
    return 1;
#else
    return COUNT(part) == now.past[s] || bound(s, content) == now.past[s];
#endif
}

static void add(int kind, int s, int v, int content)
{
    if (v > VMAX) return; /* the bound */
    for (int i = 0; i < listed; i++) if (list[i].kind == kind && list[i].station == s && list[i].number == v && list[i].content == content) return;
    if (listed < 512) list[listed++] = (struct step){(unsigned char)kind, (unsigned char)s, (unsigned char)v, content};
    else fail(127, "too many steps");
}

/* Opening._candidates: the others' newest lives, with any past that they have said. */
static void add_issues(int s, int k, int content)
{
    int l = present(s);
    if (k == N) {
        int last = latest(l), own = 127 << (7 * s);
        if (!quorate(content) || tells_of_issued(l, content)) return;
        if (last && (ISSUED(l, last) & ~own) == (content & ~own)) return; /* nothing has come or gone */
        for (int v = now.high[s] + 1; v <= VMAX; v++) add(ISSUE, s, v, content);
        return;
    }
    if (k == s) {
        add_issues(s, k + 1, content | PART(now.life[s], now.inst[s], now.past[s]) << (7 * s));
        return;
    }
    add_issues(s, k + 1, content);
    for (int from = 0; from < V1; from++) for (int count = 0; count < 4; count++)
        if (now.said[present(k)] & SAYS(from, count)) add_issues(s, k + 1, content | PART(now.life[k], from, count) << (7 * k));
}

static void add_adopts(int s)
{
    int l = present(s);
    for (int k = 0; k < NL; k++) for (int v = now.high[s] + 1; v <= VMAX; v++) {
        int content = ISSUED(k, v);
        if (content && LIFE(OF(content, s)) == now.life[s] + 1 && fits(s, content) && !tells_of_issued(l, content)) add(ADOPT, s, v, content);
    }
}

static void find_steps(void)
{
    listed = 0;
    EACH_STATION(s) {
        if (now.chosen == BIT(N) - 1) break;
        if (!(now.chosen >> s & 1)) {
            for (int count = 0; count <= RELEASED; count++) add(RELEASED_OF_1, s, 0, count);
            return;
        }
    }
    EACH_STATION(s) {
        int l = present(s);
        if (now.st[s] == PROPOSING) {
            int last = latest(l);
            if (now.issues) {
                add_issues(s, 0, 0);
                add_adopts(s);
                if (last) for (int v = now.high[s] + 1; v <= VMAX; v++) add(AGAIN, s, v, ISSUED(l, last)); /* Settling._choose */
            }
            for (int v = 2; v <= VMAX; v++) if (ISSUED(l, v)) {
                if (v == last && complete(ISSUED(l, v), v)) add(AGREE, s, v, 0);
                EACH_STATION(k) if (k != s && STARTED(k, v) && lives_of(began_as(k, v)) == lives_of(ISSUED(l, v))) {
                    if (same(began_as(k, v), ISSUED(l, v))) add(TOLD, s, v, 0);
                    for (int i = STARTED(k, v); i < INCS; i++) for (int count = 0; count < 4; count++)
                        if (now.said[i * N + k] & SAYS(v, count)) add(BEGAN, s, v, 0);
                }
            }
            if (now.life[s] + 1 < INCS && now.renewals) add(RENEW, s, 0, 0);
        } else {
            int members = 0;
            EACH_STATION(k) if (LIFE(OF(ISSUED(l, now.inst[s]), k))) members |= BIT(k);
            if (!(now.accepted[now.inst[s]] >> s & 1)) add(ACCEPT, s, 0, 0);
            if (!now.rel[s] && (now.accepted[now.inst[s]] & members) == members) add(RELEASE, s, 0, 0);
            if (now.life[s] + 1 < INCS) add(END, s, 0, 0);
        }
        if (now.chosen && now.life[s] + 1 < INCS && now.crashes) add(CRASH, s, 0, 0);
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

static void say(int s) { now.said[present(s)] |= SAYS(now.inst[s], now.past[s]); }

static void issue(int s, int v, int content)
{
    ISSUED(present(s), v) = content;
    now.issues--;
    now.high[s] = (unsigned char)v;
#ifndef BREAK_BIND
    now.past[s] = (unsigned char)bound(s, content);
#endif
    say(s);
}

/* The rest of the last instance, before instance v begins. */
static void flush(int s, int v, int content)
{
    int from = now.inst[s], later = 0, count = target(s, content);
    if (!from) return;
    EACH_STATION(k) later |= LIFE(OF(content, k)) && FROM(OF(content, k)) > from;
    if (count < (int)now.rel[s]) fail(HELD, "it delivers less than it has released");
    if (count > (int)(from == 1 ? now.most : now.accepted[from] >> s & 1)) fail(HELD, "it is to deliver what it has not accepted");
    if (now.ends_any[from * V1 + v] && now.ends_any[from * V1 + v] != count + 1) fail(TOGETHER, "two that go on together end differently");
    now.ends_any[from * V1 + v] = (unsigned char)(count + 1);
    if (later) return;
    now.ends[from * V1 + v] = (unsigned char)(count + 1);
    for (int a = 0; a < V1; a++) for (int b = a + 1; b < V1; b++) {
        int first = now.ends[from * V1 + a], second = now.ends[from * V1 + b];
        if (first && second && second < first) fail(ONWARD, "who goes on later ends the former instance earlier");
    }
}

static void start(int s, int v)
{
    int l = present(s), content = ISSUED(l, v);
    flush(s, v, content);
    STARTED(s, v) = now.life[s] + 1;
    now.st[s] = ACTIVE;
    now.inst[s] = (unsigned char)v;
    now.rel[s] = 0;
    now.past[s] = 0;
    if (now.high[s] < v) now.high[s] = (unsigned char)v;
}

static void new_life(int s)
{
    now.life[s]++;
    now.st[s] = PROPOSING;
    say(s);
}

/* Stations are alike: of the states that differ only in their numbers one is kept, the smallest. */
static int called[N]; /* in a story: what a station was called at its beginning */
#define STATIONS(array) EACH_STATION(s) to->array[p[s]] = from->array[s]

static unsigned char renamed_stations(int map, const int *p)
{
    int out = 0;
    EACH_STATION(s) if (map >> s & 1) out |= BIT(p[s]);
    return (unsigned char)out;
}

static int renamed(int content, const int *p)
{
    int out = 0;
    EACH_STATION(s) out |= OF(content, s) << (7 * p[s]);
    return out;
}

static void rename_stations(State *to, const State *from, const int *p)
{
    memcpy(to, from, sizeof(State));
    STATIONS(st);
    STATIONS(life);
    STATIONS(inst);
    STATIONS(rel);
    STATIONS(past);
    STATIONS(high);
    for (int i = 0; i < INCS; i++) EACH_STATION(s) {
        to->said[i * N + p[s]] = from->said[i * N + s];
        for (int v = 0; v < V1; v++) to->issued[(i * N + p[s]) * V1 + v] = renamed(from->issued[(i * N + s) * V1 + v], p);
    }
    for (int v = 0; v < V1; v++) {
        EACH_STATION(s) to->started[p[s] * V1 + v] = from->started[s * V1 + v];
        to->accepted[v] = renamed_stations(from->accepted[v], p);
    }
    to->chosen = renamed_stations(from->chosen, p);
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

static void take(int k)
{
    struct step t = list[k];
    int s = t.station, v = t.number;
    listed_valid = 0;
    switch (t.kind) {
    case RELEASED_OF_1:
        Printf("station %d has released %d of instance 1\n", called[s], t.content);
        now.rel[s] = now.past[s] = (unsigned char)t.content;
        if (t.content > now.most) now.most = (unsigned char)t.content;
        now.chosen |= BIT(s);
        say(s);
        break;
    case ISSUE:
    case AGAIN:
    case ADOPT:
        Printf("station %d, life %d, %s instance %d:", called[s], now.life[s], t.kind == ISSUE ? "issues" : t.kind == ADOPT ? "adopts" : "issues again", v);
        EACH_STATION(m) if (LIFE(OF(t.content, m)))
            Printf(" %d.%d from %d+%d", called[m], LIFE(OF(t.content, m)) - 1, FROM(OF(t.content, m)), COUNT(OF(t.content, m)));
        Printf("\n");
        issue(s, v, t.content);
        break;
    case AGREE:
    case TOLD:
    case BEGAN:
        Printf("station %d starts instance %d%s\n", called[s], v, t.kind == TOLD ? ", told that it was started" : t.kind == BEGAN ? ", told that it was and has ended" : "");
        start(s, v);
        break;
    case ACCEPT:
        Printf("station %d accepts the PDU of instance %d\n", called[s], now.inst[s]);
        now.accepted[now.inst[s]] |= BIT(s);
        break;
    case RELEASE:
        Printf("station %d releases the PDU of instance %d\n", called[s], now.inst[s]);
        now.rel[s] = 1;
        break;
    case END:
        Printf("station %d: instance %d ends\n", called[s], now.inst[s]);
#ifdef BREAK_CLAIM
        now.past[s] = now.accepted[now.inst[s]] >> s & 1; /* what it has accepted, whoever else has */
#else
        now.past[s] = now.rel[s];
#endif
        new_life(s);
        break;
    case RENEW:
        Printf("station %d takes a new life\n", called[s]);
        now.renewals--;
        new_life(s);
        break;
    default:
        Printf("station %d crashes and starts again\n", called[s]);
        now.crashes--;
        now.inst[s] = now.rel[s] = now.past[s] = 0;
        new_life(s);
    }
}

static void begin(void)
{
    EACH_STATION(s) {
        now.st[s] = PROPOSING;
        now.inst[s] = now.high[s] = 1;
        called[s] = s;
    }
}
}

#define STEP(k) :: d_step { c_expr { steps (k) } -> c_code { take(k); smallest(); }; assert(bad == 0) }
#define STEPS_8(k) STEP(k) STEP(k + 1) STEP(k + 2) STEP(k + 3) STEP(k + 4) STEP(k + 5) STEP(k + 6) STEP(k + 7)
#define STEPS_32(k) STEPS_8(k) STEPS_8(k + 8) STEPS_8(k + 16) STEPS_8(k + 24)
#define STEPS_256(k) STEPS_32(k) STEPS_32(k + 32) STEPS_32(k + 64) STEPS_32(k + 96) STEPS_32(k + 128) STEPS_32(k + 160) STEPS_32(k + 192) STEPS_32(k + 224)

active proctype cluster()
{
    d_step { c_code { begin(); }; assert(bad == 0) }
    do
    STEPS_256(0) STEPS_256(256)
    :: c_expr { !steps (0) } -> break
    od
}
