/* The seven steps by which managers change the directory (mode "seven"), for Spin (checked with 6.5.2). docs/formal.md tells what it
 * shows.
 *
 * The rules are U1-U6, U9 and U10 of the directory's design; F1-F6 are rules as the DONA paper on terminal management prints them, or
 * as one may be tempted to write them. N managers, each with a number of updates to make. Each has one lock. An attempt asks for all
 * locks (REQ, GRANT), sends its DATA to all, commits when all have it (DONE), and says so (CONF). A refused REQ is remembered where
 * it came, so nothing is sent for it (BUSY only counts, and is left out).
 *
 * Below is a group in which each sender's messages come in its order (U1): one stream for each manager, and how far each other one has
 * read it. A crash cuts a stream at any place behind what a survivor has read; a survivor has the view without the crashed
 * manager when it has read up to there. Streams are not ordered against each other, nor are views at different managers.
 *
 * A crashed manager comes back, when all have the view without it, as a joiner: it reads what is sent from then on, its attempt COPY
 * takes all locks, it copies the rows, and its DATA says that it is active. Whoever is in state 2 then says its REQ again: the joiner
 * has not read it. Rows are a number of commits and a hash of their owners
 * in order.
 *
 * Every step is C, as in opening.pml. Parameters (-D): UPDATES (of each manager, two bits each), CRASHES and CRASHERS (how many crashes, of
 * whom), RESTART, OUT (the joiner from the start, as a bitmap), CHECK (bitmap of properties), BREAK_* (one rule left out, or as printed).
 */
#ifndef N
#define N 3
#endif
#ifndef UPDATES
#define UPDATES 0x15
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef CRASHERS
#define CRASHERS 7
#endif
#ifndef RESTART
#define RESTART 0
#endif
#ifndef OUT
#define OUT 0
#endif
#ifndef CHECK
#define CHECK 63
#endif
#ifndef LEN
#define LEN 20
#endif

#define ONE 1      /* one attempt is in state 4 at a time */
#define SERVED 2   /* nobody serves a version below one that was served, and a version is served with one content */
#define EQUAL 4    /* when nothing can happen any more, all are active, free and equal */
#define LOCKED 8   /* no lock is held for a manager that is not in the view */
#define FAIR 16    /* no attempt is in state 4 while an active manager has an older one that waits */
#define KEPT 32    /* what a caller was told is done is there in the end */

#define IDLE 0
#define WAITING 1  /* has given its own lock away, asks when it is free */
#define ASKING 2   /* state 2 */
#define SENT 4     /* state 4 */

/* One byte of a message: kind | owner << 3 | number of the asking << 5. */
#define INFO 0     /* the DATA of COPY: "I am active" */
#define REQ 1
#define GRANT 2
#define RELEASE 3
#define DATA 4
#define DONE 5
#define CONF 6
#define HERE 7     /* BREAK_REJOIN: the joiner tells that it is active */

byte up = (1 << N) - 1;
byte serving = ((1 << N) - 1) & ~OUT;
byte st[N];
byte lock[N];          /* owner + 1, 0: free; states 5 and 7 are a lock of another one without and with its DATA */
byte kept[N];          /* has the DATA of the lock's owner */
byte waiting[N];       /* whose REQs are remembered */
byte asked[N * N];     /* by manager and owner: number of the asking of the last REQ */
byte got[N];           /* GRANTs of the own attempt */
byte done[N];          /* its DONEs */
byte skipped[N];       /* whom its failed list names: BREAK_LIST */
byte view[N];
byte manager[N];       /* who is active as far as it knows */
byte ask[N];           /* number of the asking of the own attempt */
byte age[N];           /* of the own attempt */
byte seen[N];          /* largest counter */
byte todo[N];
byte copy[N];          /* its attempt is COPY */
byte version[N];
short content[N];
byte sent[N];
byte read[N * N];      /* by sender and reader */
byte stream[N * LEN];
byte served;
short served_content;
byte promised;         /* version that a caller was told */
byte crashes = CRASHES;
byte bad;

c_code {
#define BIT(l) (1 << (l))
#define IN(map, l) (((map) >> (l)) & 1)
#define EACH(i) for (int i = 0; i < N; i++)
#define READ(s, r) now.read[(s) * N + (r)]
#define ASKED(k, o) now.asked[(k) * N + (o)]

enum { START, RECEIVE, VIEW, CRASH, REJOIN, TIMER, SILENCE, LIST, COPIED };

struct step { unsigned char kind, who, other; };
static struct step list[64];
static int listed;
static const char *names[] = {"INFO", "REQ", "GRANT", "RELEASE", "DATA", "DONE", "CONF", "HERE"};

static void fail(int property, const char *why)
{
    if (property & CHECK) {
        now.bad |= (unsigned char)property;
        Printf("  *** %s\n", why);
    }
}

static void send(int s, int kind, int owner, int number)
{
    if (now.sent[s] >= LEN || number > 7) {
        now.bad = 255;
        Printf("  *** a bound of the model is too small\n");
        return;
    }
    now.stream[s * LEN + now.sent[s]++] = (unsigned char)(kind | owner << 3 | number << 5);
}

/* Whether a's attempt goes before b's. */
static int older(int a, int b)
{
#ifdef BREAK_AGE
    return a < b;
#else
    return now.age[a] < now.age[b];
#endif
}

static int needed(int i)
{
    return now.manager[i] & now.view[i] & ~BIT(i);
}

static void freed(int i);

static void commit(int i, int owner, int copying)
{
    if (copying) {
        if (IN(now.view[i], owner)) now.manager[i] |= BIT(owner);
    } else if (IN(now.serving, i)) {
        now.version[i]++;
        now.content[i] = (short)(now.content[i] * 4 + owner + 1);
    }
}

/* What the owner's attempt may do now. */
static void advance(int i)
{
    if (now.st[i] == ASKING && !(needed(i) & ~now.got[i])) {
        now.st[i] = SENT;
        now.done[i] = 0;
        EACH(j) if (j != i && IN(now.up & now.view[i], j)) {
            if (now.st[j] == SENT) fail(ONE, "two attempts are in state 4");
            if ((now.st[j] == ASKING || now.st[j] == WAITING) && IN(now.serving, j) && now.age[j] < now.age[i])
                fail(FAIR, "an attempt overtakes an older one");
        }
#ifndef BREAK_REJOIN
        if (now.copy[i]) EACH(j) if (IN(now.serving & now.up & now.view[i], j)) {
            now.version[i] = now.version[j];
            now.content[i] = now.content[j];
            break;
        }
#endif
        send(i, now.copy[i] ? INFO : DATA, i, now.ask[i]);
    }
    if (now.st[i] == SENT && !(now.got[i] & now.view[i] & ~now.done[i] & ~now.skipped[i])) {
        commit(i, i, now.copy[i]);
        if (now.copy[i]) {
            now.serving |= BIT(i);
            now.manager[i] |= BIT(i);
        } else
            now.promised = now.version[i];
        send(i, CONF, i, now.ask[i]);
        now.st[i] = IDLE;
        now.copy[i] = 0;
        now.todo[i]--;
        freed(i);
    }
}

static void request(int i)
{
    now.lock[i] = (unsigned char)(i + 1);
    now.st[i] = ASKING;
    now.got[i] = now.skipped[i] = 0;
    now.ask[i]++;
    send(i, REQ, i, now.ask[i]);
    advance(i);
}

static void freed(int i)
{
    int best = -1;
    now.lock[i] = now.kept[i] = 0;
    EACH(o) if (IN(now.waiting[i], o) || (o == i && now.st[i] == WAITING)) if (best < 0 || older(o, best)) best = o;
    if (best == i) request(i);
    else if (best >= 0) {
        now.waiting[i] &= (unsigned char)~BIT(best);
        now.lock[i] = (unsigned char)(best + 1);
        send(i, GRANT, best, ASKED(i, best));
    }
}

static void receive(int i, int s)
{
    int m = now.stream[s * LEN + READ(s, i)], kind = m & 7, o = m >> 3 & 3, number = m >> 5;
    int mine = now.lock[i] == o + 1;
    READ(s, i)++;
    Printf("station %d reads %s of station %d%s\n", i, names[kind], s, (kind == GRANT || kind == DONE) && o != i ? ", for another" : "");
    switch (kind) {
    case REQ:
        if (mine && number == ASKED(i, o)) break; /* said again for a joiner */
        ASKED(i, o) = (unsigned char)number;
        if (now.seen[i] < now.age[o] >> 2) now.seen[i] = now.age[o] >> 2;
        if (now.st[i] == ASKING && now.lock[i] == i + 1 && older(o, i)) {
            send(i, RELEASE, i, now.ask[i]);
            now.st[i] = WAITING;
            now.lock[i] = 0;
        }
        if (!now.lock[i]) {
            now.lock[i] = (unsigned char)(o + 1);
            send(i, GRANT, o, number);
        } else
            now.waiting[i] |= BIT(o);
        break;
    case GRANT:
        if (o != i || now.st[i] != ASKING) break;
#ifndef BREAK_NUMBER
        if (number != now.ask[i]) break;
#endif
        now.got[i] |= BIT(s);
        advance(i);
        break;
    case RELEASE:
        now.waiting[i] &= (unsigned char)~BIT(o);
        if (mine) freed(i);
        break;
    case INFO:
    case DATA:
        if (mine && IN(now.skipped[o], i)) freed(i);
        else if (mine) {
            now.kept[i] = kind == INFO ? 2 : 1;
            send(i, DONE, o, number);
        }
        break;
    case DONE:
        if (o != i || now.st[i] != SENT) break;
        now.done[i] |= BIT(s);
        advance(i);
        break;
    case CONF:
        now.waiting[i] &= (unsigned char)~BIT(o);
        if (!mine || IN(now.skipped[o], i)) break;
        if (now.kept[i]) commit(i, o, now.kept[i] == 2);
        freed(i);
        break;
    case HERE:
        now.manager[i] |= BIT(s);
        break;
    }
}

static void leave(int i, int c)
{
    int mine = now.lock[i] == c + 1, kept = now.kept[i];
    now.view[i] &= (unsigned char)~BIT(c);
    now.manager[i] &= (unsigned char)~BIT(c);
    now.waiting[i] &= (unsigned char)~BIT(c);
#ifndef BREAK_STRUCK
    now.got[i] &= (unsigned char)~BIT(c);
#endif
#ifdef BREAK_VIEW
    if (now.lock[i] && now.lock[i] != i + 1 && !kept) mine = 1;
#endif
#ifdef BREAK_KEPT
    kept = 0;
#endif
#ifndef BREAK_OWNER
    if (mine) {
        if (kept) commit(i, c, kept == 2);
        freed(i);
    }
#endif
    advance(i);
    if (now.lock[i] == c + 1) fail(LOCKED, "a lock outlives its owner's view");
}

static void forget(int c)
{
    now.st[c] = now.lock[c] = now.kept[c] = now.waiting[c] = now.got[c] = now.done[c] = now.skipped[c] = 0;
    now.view[c] = now.manager[c] = now.ask[c] = now.age[c] = now.seen[c] = now.copy[c] = now.todo[c] = 0;
    now.version[c] = now.content[c] = 0;
    EACH(j) {
        ASKED(c, j) = 0;
        READ(j, c) = 0;
    }
}

static void crash(int c, int cut)
{
    now.crashes--;
    now.up &= (unsigned char)~BIT(c);
    now.serving &= (unsigned char)~BIT(c);
    for (int k = cut; k < now.sent[c]; k++) now.stream[c * LEN + k] = 0;
    now.sent[c] = (unsigned char)cut;
    forget(c);
}

static void join(int c)
{
    now.up |= BIT(c);
    now.copy[c] = now.todo[c] = 1;
    EACH(j) if (IN(now.up, j)) {
        now.view[j] |= BIT(c);
        now.view[c] |= BIT(j);
        now.manager[c] |= now.manager[j];
        READ(j, c) = now.sent[j];
        ASKED(j, c) = 0;
#ifndef BREAK_AGAIN
        if (now.st[j] == ASKING) send(j, REQ, j, now.ask[j]);
#endif
    }
}

static void check(void)
{
    /* What all have read need not be kept: it makes states the same that go on in the same way. */
    EACH(s) {
        int least = now.sent[s];
        EACH(r) if (r != s && IN(now.up, r) && IN(now.view[r], s) && READ(s, r) < least) least = READ(s, r);
        for (int k = 0; k < LEN; k++) now.stream[s * LEN + k] = k + least < now.sent[s] ? now.stream[s * LEN + k + least] : 0;
        now.sent[s] -= (unsigned char)least;
        EACH(r) READ(s, r) = (unsigned char)(r != s && IN(now.up, r) && IN(now.view[r], s) ? READ(s, r) - least : 0);
    }
    EACH(i) if (IN(now.up & now.serving, i) && !now.lock[i]) {
        if (now.version[i] < now.served) fail(SERVED, "an old version is served after a newer one");
        if (now.version[i] == now.served && now.content[i] != now.served_content) fail(SERVED, "one version is served with two contents");
        if (now.version[i] > now.served) {
            now.served = now.version[i];
            now.served_content = now.content[i];
        }
    }
}

static void finish(void)
{
    EACH(i) if (IN(now.up, i)) {
        if (!IN(now.serving, i) || now.lock[i] || now.st[i] || now.todo[i]) fail(EQUAL, "the end, and an attempt is not over");
        EACH(j) if (IN(now.up, j) && (now.version[i] != now.version[j] || now.content[i] != now.content[j]))
            fail(EQUAL, "the end, and two managers differ");
        if (now.version[i] < now.promised) fail(KEPT, "what a caller was told is done is lost");
    }
}

static void add(int kind, int who, int other)
{
    list[listed].kind = (unsigned char)kind;
    list[listed].who = (unsigned char)who;
    list[listed++].other = (unsigned char)other;
}

/* Whether there is a step number k in the present state. */
static int steps(int k)
{
    listed = 0;
    EACH(i) if (IN(now.up, i)) {
#ifdef BREAK_REJOIN
        if (now.st[i] == IDLE && now.todo[i] && IN(now.serving, i)) add(START, i, 0);
#else
        if (now.st[i] == IDLE && now.todo[i]) add(START, i, 0);
#endif
        EACH(s) if (s != i && IN(now.view[i], s)) {
            if (READ(s, i) < now.sent[s]) add(RECEIVE, i, s);
            else if (!IN(now.up, s)) add(VIEW, i, s);
        }
#ifdef BREAK_RESTORE
        if (now.kept[i]) add(TIMER, i, 0);
#endif
#ifdef BREAK_SILENCE
        if (now.st[i] == ASKING) add(SILENCE, i, 0);
#endif
#ifdef BREAK_LIST
        EACH(j) if (now.st[i] == SENT && IN(now.got[i] & ~now.done[i] & ~now.skipped[i], j)) add(LIST, i, j);
#endif
#ifdef BREAK_REJOIN
        if (now.copy[i] && now.todo[i]) EACH(j) if (IN(now.serving & now.up, j)) add(COPIED, i, j);
        if (!now.copy[i] && now.todo[i] && !IN(now.serving, i)) add(COPIED, i, i);
#endif
    }
    EACH(c) {
        if (IN(now.up & CRASHERS, c) && now.crashes) {
            int least = 0;
            EACH(r) if (r != c && IN(now.up, r) && READ(c, r) > least) least = READ(c, r);
            for (int cut = least; cut <= now.sent[c]; cut++) add(CRASH, c, cut);
        }
        if (RESTART && !IN(now.up, c)) {
            int known = 0;
            EACH(r) if (IN(now.up, r) && IN(now.view[r], c)) known = 1;
            if (!known) add(REJOIN, c, 0);
        }
    }
    return k < listed;
}

static void take(int k)
{
    steps(k);
    struct step t = list[k];
    int i = t.who;
    switch (t.kind) {
    case START:
        Printf("station %d begins %s\n", i, now.copy[i] ? "COPY" : "an update");
        now.seen[i]++;
        now.age[i] = (unsigned char)(now.seen[i] << 2 | i);
        if (now.lock[i]) now.st[i] = WAITING;
        else request(i);
        break;
    case RECEIVE:
        receive(i, t.other);
        break;
    case VIEW:
        Printf("station %d has the view without station %d\n", i, t.other);
        leave(i, t.other);
        break;
    case CRASH:
        Printf("station %d crashes, %d of its messages are still to be read\n", i, t.other);
        crash(i, t.other);
        break;
    case REJOIN:
        Printf("station %d joins\n", i);
        join(i);
        break;
    case TIMER:
        Printf("station %d hears no CONF and restores the old data\n", i);
        freed(i);
        break;
    case SILENCE:
        Printf("station %d takes silence for consent\n", i);
        now.st[i] = SENT;
        now.done[i] = 0;
        EACH(j) if (j != i && IN(now.up, j) && now.st[j] == SENT) fail(ONE, "two attempts are in state 4");
        send(i, DATA, i, now.ask[i]);
        advance(i);
        break;
    case LIST:
        Printf("station %d puts station %d on its failed list\n", i, t.other);
        now.skipped[i] |= BIT(t.other);
        advance(i);
        break;
    default:
        if (t.other != i) {
            Printf("station %d copies the rows of station %d\n", i, t.other);
            now.version[i] = now.version[t.other];
            now.content[i] = now.content[t.other];
            now.copy[i] = 0;
        } else {
            Printf("station %d says that it is active\n", i);
            now.serving |= BIT(i);
            now.manager[i] |= BIT(i);
            now.todo[i] = 0;
            send(i, HERE, i, 0);
        }
    }
    check();
    if (!steps(0)) finish();
}

static void begin(void)
{
    EACH(i) {
        now.view[i] = (1 << N) - 1;
        now.manager[i] = now.serving;
        now.copy[i] = IN(OUT, i);
        now.todo[i] = IN(OUT, i) ? 1 : (UPDATES) >> (2 * i) & 3;
    }
}
}

#define STEP(k) :: d_step { c_expr { steps (k) } -> c_code { take(k); }; assert(bad == 0) }
#define STEPS_8(k) STEP(k) STEP(k + 1) STEP(k + 2) STEP(k + 3) STEP(k + 4) STEP(k + 5) STEP(k + 6) STEP(k + 7)

active proctype managers()
{
    d_step { c_code { begin(); }; assert(bad == 0) }
    do
    STEPS_8(0) STEPS_8(8) STEPS_8(16) STEPS_8(24)
    :: c_expr { !steps (0) } -> break
    od
}
