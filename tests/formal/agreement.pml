/* The stop and recovery agreement of dynamic membership, for Spin (checked with 6.5.2). docs/formal.md tells what it shows.
 *
 * Mirrors proto/membership.py, class Membership, with what engine.py, opening.py and joining.py do around it. Steps and
 * questions have the names of the code where it has one: suspect, on_heard, on_recovering, adopt, _equalise, _wanted, _propose,
 * _complete, _decided, _go_on, _commit, _removed_by (without the underscore); receive is on_vote, start is Joining.on_confirm,
 * used_up the answer OUTDATED of opening.py.
 *
 * The unit is a LIFE: one incarnation of one station. Life l is incarnation l / N of station l % N; an instance is a set of
 * lives. Every life has one stream of sequenced PDUs, kept in log_* for all to see: PDUs never change once they are sent, so
 * that what a station has of a stream is one number, req. Retransmission is one step: a life takes the next PDU of a stream if
 * anybody who is alive has it. What nobody alive has is lost.
 *
 * What is known by acknowledgements is not kept. "l knows that j has the vote" is asked as "j has the vote": req never falls,
 * and a CONFIRM that said so, or that said that j has gone on by this very proposal, may have reached l at any moment since. So
 * each run here is a run with some such CONFIRMs, and each run with CONFIRMs is one here. For the same reason a joiner may
 * start as soon as the votes exist and a member says that it is in, and an ended life keeps its req: what was known of it stays
 * known.
 *
 * Left out: the order of messages and clocks (rules 4 and 4a; where a view event stands follows from the votes), levels of
 * delivery, freeing of buffers, time (a time-out may run out at any moment; only giving up waits until nothing else can
 * happen), the probing of doubtful stations (it only delays proposals), the messages of opening (one step of all at once),
 * frames of a dead station that are still under way when it is suspected, and a state file that is lost.
 *
 * With HANDOVER the end of an instance is modelled too: clocks, what a life has released when it ends (its claim: a view, and what
 * comes after it), giving up at any moment, the flush when all open again, which is the end of the run. Lives 0..N-1 only have
 * streams, and only they are let in. A claim is the largest that the acknowledgements allow, which anybody may have had: what holds of it
 * holds of a smaller one, since all go by the largest.
 *
 * The questions are C functions, because Promela's guards cannot loop; each step is one d_step, so that no half-done step is
 * seen. The state is in Promela variables only. pan -r tells an error's story in words.
 *
 * Parameters (-D): N stations, INCS lives of each, LEN PDUs of a stream, VMAX instances, QUORUM, REQUIRED (bitmap of stations),
 * OUT (bitmap of stations that start as recovering), CRASHES and CRASHERS (how many lives crash, bitmap of which may), RESTART,
 * FALSE, FALSE_PAIRS and FALSE_LIVES (how many suspicions without cause; bit N * who + whom, by station; bitmap of whom), DATAS
 * and SENDERS (how many data PDUs, bitmap of whose), CHECK (bitmap of properties, below), HANDOVER, BREAK_* (one
 * rule left out).
 */
#ifndef N
#define N 3
#endif
#ifndef INCS
#define INCS 2
#endif
#ifndef LEN
#define LEN 6
#endif
#ifndef VMAX
#define VMAX 6
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef REQUIRED
#define REQUIRED 0
#endif
#ifndef OUT
#define OUT 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef CRASHERS
#define CRASHERS 0
#endif
#ifndef RESTART
#define RESTART 1
#endif
#ifndef FALSE
#define FALSE 0
#endif
#ifndef FALSE_PAIRS
#define FALSE_PAIRS 0
#endif
#ifndef FALSE_LIVES
#define FALSE_LIVES ((1 << (N * INCS)) - 1)
#endif
#ifndef DATAS
#define DATAS 0
#endif
#ifndef SENDERS
#define SENDERS 0
#endif
#ifndef CHECK
#define CHECK 31
#endif

#define NL (N * INCS)
#if NL != 6 && NL != 8 && NL != 9 && NL != 12 || N > 4 || LEN > 15
#error "unsupported size"
#endif

/* Properties. BOUND is not one of the protocol: LEN, VMAX or INCS was too small for this configuration, which is always told. */
#define SAME 1    /* one instance number, one set of lives */
#define ONE 2     /* at most one instance at a time can work on its own */
#define CUT 4     /* whoever removes a life has accepted the same of it: neither more nor less than the vote says */
#define AGREED 8  /* when nothing can happen any more, all that live are in one instance and wait for nothing */
#define SMOOTH 16 /* nobody has to give up: only what crashed or was removed ends */
#define BOUND 32
/* With HANDOVER: what is released when an instance ends, and what those who open the next one deliver of it. */
#define HELD 64   /* who flushes to a claim has, up to there, what the claimant has released, and nothing else */
#define ALIKE 128 /* who was a member of a view that somebody comes from knows it, and all who do end alike */

#define UNBORN 0
#define RECOVERING 1
#define ACTIVE 2
#define ENDED 3

byte st[NL];             /* UNBORN .. ENDED */
byte inst[NL];           /* instance number the life is in */
short up[NL];            /* its members, a bitmap of lives */
short closed[NL];        /* members whose removal it has proposed, or would if there were a quorum */
byte limit[NL * N];      /* of these, by station: nothing at or above is accepted (rule 1) */
short forgiven[NL];      /* members whose suspicion it took back: what it was told of them before counts no more */
short joins[NL];         /* lives it proposes to let in */
short let_in[NL];        /* lives of which it knows that they were members once */
byte req[NL * NL];       /* row: who; column: next PDU that it accepts of whose stream. The own one: how many it has sent */
byte log_inst[NL * LEN]; /* the streams: instance in which the PDU was sent, */
short log_set[NL * LEN]; /* the proposed members, 0: data, */
int log_req[NL * LEN];   /* and of each removed station REQ, four bits by station */
#ifdef HANDOVER
byte clk[NL];            /* clock of a life: 16 for each instance, and the PDUs that it has seen */
byte log_clock[NL * LEN]; /* of the PDUs: (clock, station) is their place in the order */
short place[VMAX + 1];   /* of the view event: that of the last vote for it */
byte joined[NL];         /* the instance that it was let into, 0: it was not */
byte went[NL];           /* ended lives: the instance it was in last, */
byte view[NL];           /* the instance of the view that it claims, 0: none, */
int claim[NL];           /* and what it has released in all, a bitmap of PDUs */
#ifdef BREAK_LAST
int shown[NL];           /* what its programs have been given, which may be more than it claims */
#endif
#endif
byte promised[N];        /* on disk: highest instance number proposed or seen */
#ifdef BREAK_BATCH
byte noted[NL * NL];     /* row: who; column: next PDU that it looks at of whose stream */
#endif
short crashed;           /* bitmap of lives that crashed */
short seen_set[VMAX + 1]; /* what was carried out under each number, by the first who did */
int seen_req[VMAX + 1];
byte crashes = CRASHES;
byte wrong = FALSE;
byte datas = DATAS;
byte bad;

c_code {
#define BIT(l) (1 << (l))
#define IN(set, l) (((set) >> (l)) & 1)
#define STATION(l) ((l) % N)
#define REQ(l, x) now.req[(l) * NL + (x)]
#define LIMIT(l, x) now.limit[(l) * N + STATION(x)]
#define VOTE(l, s) ((l) * LEN + (s))
#define R(numbers, x) (((numbers) >> (4 * STATION(x))) & 15)
#define EACH(l) for (int l = 0; l < NL; l++)
#define EACH_IN(l, set) for (int l = 0; l < NL; l++) if (IN(set, l))

static void fail(int property, const char *why)
{
    if (property == BOUND || (property & CHECK)) {
        now.bad |= (unsigned char)property;
        Printf("  *** %s\n", why);
    }
}

static int stations(int set)
{
    int mask = 0;
    EACH_IN(l, set) mask |= BIT(STATION(l));
    return mask;
}

/* Rule 3. */
static int quorate(int set)
{
#ifdef BREAK_QUORUM
    return set != 0;
#else
    int mask = stations(set);
    return __builtin_popcount((unsigned)mask) >= QUORUM && (mask & REQUIRED) == REQUIRED;
#endif
}

static int staying(int l) { return now.up[l] & ~now.closed[l]; }

/* The first PDU in k's stream, below `below`, that votes for (set, numbers) at instance v; -1: none. */
static int vote_of(int k, int below, int v, int set, int numbers)
{
    for (int s = 0; s < below; s++)
        if (now.log_set[VOTE(k, s)] == set && now.log_inst[VOTE(k, s)] == v && now.log_req[VOTE(k, s)] == numbers) return s;
    return -1;
}

/* What l proposes now: removals before joins. 0: nothing, or it could not be agreed. */
static int wanted(int l, int *set, int *numbers)
{
    *numbers = 0;
    if (now.closed[l]) {
        *set = staying(l);
        EACH_IN(x, now.closed[l]) {
#ifndef BREAK_EQUALISE
            if (REQ(l, x) != LIMIT(l, x)) return 0; /* Once they are in, not per PDU. */
#endif
            *numbers |= REQ(l, x) << (4 * STATION(x));
        }
        return quorate(*set);
    }
    *set = now.up[l] | now.joins[l];
    return now.joins[l] != 0;
}

/* The own vote in this instance that l gave last, of those for joins only if so asked; -1: none. */
static int last_vote(int l, int joins)
{
    for (int s = REQ(l, l) - 1; s >= 0 && now.log_inst[VOTE(l, s)] >= now.inst[l]; s--) {
        int set = now.log_set[VOTE(l, s)];
        if (set && now.log_inst[VOTE(l, s)] == now.inst[l] && (!joins || !(now.up[l] & ~set))) return s;
    }
    return -1;
}

/* Rule 2: votes grow (votes.takes_in). Joins let in whoever an earlier one did, in that life or a later one; removals come after
 * joins, remove whoever an earlier one did, and end their streams there or later. */
static int takes_in(int l, int set, int numbers)
{
#ifndef BREAK_GROW
    int s = last_vote(l, 0);
    if (s < 0) return 1;
    int before = now.log_set[VOTE(l, s)], said = now.log_req[VOTE(l, s)];
    int stop = now.up[l] & ~set, stopped = now.up[l] & ~before;
    if (!stop != !stopped) return stop != 0;
    if (stop) {
        if (set & ~before) return 0;
        EACH_IN(x, stopped) if (R(numbers, x) < R(said, x)) return 0;
        return 1;
    }
    EACH_IN(x, before & ~set) {
        int later = 0;
        EACH_IN(y, set) later |= STATION(y) == STATION(x) && y > x;
        if (!later) return 0;
    }
#endif
    return 1;
}

/* Whom an own vote lets in, though a stop that was taken back has made l forget that they asked: they count as asking, too, when
 * somebody does. */
static int voted_for(int l)
{
    int out = 0;
#ifndef BREAK_GROW
    int s = last_vote(l, 1);
    if (s >= 0) EACH_IN(x, now.log_set[VOTE(l, s)] & ~now.up[l] & ~now.let_in[l]) {
        int later = 0;
        EACH_IN(y, now.joins[l]) later |= STATION(y) == STATION(x) && y > x;
        if (!later) out |= BIT(x);
    }
#endif
    return out;
}

static int can_propose(int l)
{
    int set, numbers;
    if (now.st[l] != ACTIVE || !wanted(l, &set, &numbers) || !takes_in(l, set, numbers)) return 0;
    return vote_of(l, REQ(l, l), now.inst[l], set, numbers) < 0; /* A vote stands: it is not repeated. */
}

static void send(int l, int set, int numbers)
{
    int s = REQ(l, l);
    if (s >= LEN) {
        fail(BOUND, "LEN is too small");
        return;
    }
    now.log_inst[VOTE(l, s)] = now.inst[l];
    now.log_set[VOTE(l, s)] = set;
    now.log_req[VOTE(l, s)] = numbers;
#ifdef HANDOVER
    now.log_clock[VOTE(l, s)] = ++now.clk[l];
#endif
    REQ(l, l)++;
}

static void propose(int l)
{
    int set, numbers;
    wanted(l, &set, &numbers);
    if (now.promised[STATION(l)] < now.inst[l] + 1) now.promised[STATION(l)] = (unsigned char)(now.inst[l] + 1);
    Printf("life %d proposes instance %d = %x, REQ %x, as its PDU %d\n", l, now.inst[l] + 1, set, numbers, REQ(l, l));
    send(l, set, numbers);
}

/* Limits are what anybody whom l still trusts says it has accepted, and at least what l has itself. Asked of all votes
 * accepted, not
 * of the newest only: one that came before l closed x counts as well; one of who is closed meanwhile does not any more. */
static void equalise(int l)
{
#ifndef BREAK_EQUALISE
    EACH_IN(x, now.closed[l]) {
        int most = REQ(l, x);
        EACH_IN(k, staying(l)) for (int s = 0; s < REQ(l, k); s++) {
            int set = now.log_set[VOTE(k, s)], said = R(now.log_req[VOTE(k, s)], x);
            if (set && now.log_inst[VOTE(k, s)] == now.inst[l] && !IN(set, x) && said > most) most = said;
        }
        LIMIT(l, x) = (unsigned char)most;
    }
#endif
}

/* Has a member that l still trusts, in a vote that keeps l, proposed to remove x? */
static int accused(int l, int x)
{
    EACH_IN(k, staying(l)) if (k != l) for (int s = 0; s < REQ(l, k); s++) {
        int set = now.log_set[VOTE(k, s)];
        if (set && now.log_inst[VOTE(k, s)] == now.inst[l] && IN(set, l) && !IN(set, x)) return 1;
    }
    return 0;
}

/* AAS: a stop that l is told of and has not closed yet. It wins over a recovery as well. */
static int told(int l)
{
    EACH_IN(x, staying(l)) if (x != l && !IN(now.forgiven[l], x) && accused(l, x)) return 1;
    return 0;
}

static int is_silent(int x)
{
#ifdef BREAK_RESTART
    /* Without rule 7 the station's next life hides that the last one ended. */
    EACH(y) if (STATION(y) == STATION(x) && y > x && (now.st[y] == RECOVERING || now.st[y] == ACTIVE)) return 0;
#endif
    return now.st[x] == ENDED;
}

static int suspectable(int l, int x)
{
    return l != x && now.st[l] == ACTIVE && IN(staying(l), x);
}

/* Own time-out, a restart seen, or a notice that was adopted. */
static int can_suspect(int l, int x)
{
    if (!suspectable(l, x)) return 0;
    return is_silent(x) || (!IN(now.forgiven[l], x) && accused(l, x));
}

/* Also of a joiner that was let in and has not started, as if it had missed a vote that nobody can repeat. */
static int can_suspect_wrongly(int l, int x)
{
    int may = IN(FALSE_LIVES, x) && IN(FALSE_PAIRS, N * STATION(l) + STATION(x));
    return now.wrong && may && suspectable(l, x) && now.st[x] != ENDED;
}

static void suspect(int l, int x, int wrongly)
{
    Printf("life %d closes life %d at %d%s\n", l, x, REQ(l, x), wrongly ? ", without cause" : "");
    if (wrongly) now.wrong--;
    now.closed[l] |= BIT(x);
    now.joins[l] = 0; /* Stop wins: joiners will have to ask again. */
    LIMIT(l, x) = REQ(l, x);
    equalise(l);
    if (can_propose(l)) propose(l);
}

/* Of whom l has never proposed the removal, because there was no quorum for it: what it may take back (rule 3). Who has
 * restarted or
 * was removed elsewhere is not taken back. */
static int unproposed(int l)
{
    int named = 0;
    for (int s = 0; s < REQ(l, l); s++)
        if (now.log_set[VOTE(l, s)] && now.log_inst[VOTE(l, s)] == now.inst[l]) named |= now.up[l] & ~now.log_set[VOTE(l, s)];
    EACH_IN(x, now.closed[l]) EACH(y) if (STATION(y) == STATION(x) && y > x && now.st[y] != UNBORN) named |= BIT(x);
    return now.closed[l] & ~named;
}

static int can_hear(int l)
{
    if (now.st[l] != ACTIVE || quorate(staying(l))) return 0;
    EACH_IN(x, unproposed(l)) if (now.st[x] == ACTIVE) return 1;
    return 0;
}

static void on_heard(int l)
{
    int back = unproposed(l);
    Printf("life %d hears of %x again\n", l, back);
    now.closed[l] &= ~back;
    now.forgiven[l] |= back;
    EACH_IN(x, back) LIMIT(l, x) = 0;
    equalise(l);
}

static int can_receive(int l, int x)
{
    int s = REQ(l, x);
    if (l == x || now.st[l] != ACTIVE || !IN(now.up[l], x)) return 0;
#ifndef BREAK_CLOSE
    if (IN(now.closed[l], x) && s >= LIMIT(l, x)) return 0;
#endif
    EACH(k) if (k != l && now.st[k] == ACTIVE && REQ(k, x) > s) return 1;
    return 0;
}

static void receive(int l, int x)
{
    Printf("life %d accepts PDU %d of life %d\n", l, REQ(l, x), x);
    int set = now.log_set[VOTE(x, REQ(l, x))];
    if (set && now.log_inst[VOTE(x, REQ(l, x))] == now.inst[l]) now.forgiven[l] &= set; /* Told anew. */
#ifdef HANDOVER
    if (now.clk[l] < now.log_clock[VOTE(x, REQ(l, x))]) now.clk[l] = now.log_clock[VOTE(x, REQ(l, x))];
#endif
    REQ(l, x)++;
    if (told(l)) now.joins[l] = 0;
    equalise(l);
}

/* What l has accepted of k, and so acknowledged, it has looked at as well. */
static int noted(int l, int k)
{
#ifdef BREAK_BATCH
    if (k != l) return now.noted[l * NL + k];
#endif
    return REQ(l, k);
}

static int can_note(int l, int x) { return l != x && now.st[l] == ACTIVE && noted(l, x) < REQ(l, x); }

static void note(int l, int x)
{
#ifdef BREAK_BATCH
    Printf("life %d looks at PDU %d of life %d\n", l, now.noted[l * NL + x], x);
    now.noted[l * NL + x]++;
#endif
}

/* Rule 2, first half: every voter's stream, as far as l has it, holds the vote, and what is removed was accepted to the same
 * number. */
static int complete(int l, int set, int numbers)
{
    EACH_IN(k, set & now.up[l]) if (vote_of(k, noted(l, k), now.inst[l], set, numbers) < 0) return 0;
#ifndef BREAK_CLOSE
    EACH_IN(x, now.up[l] & ~set) if (REQ(l, x) != R(numbers, x)) return 0;
#endif
    return 1;
}

/* Rule 2, second half: every voter has every vote, and l was told so. */
static int decided(int l, int set, int numbers)
{
    int voters = set & now.up[l];
    if (!complete(l, set, numbers)) return 0;
#ifndef BREAK_DECIDE
    EACH_IN(k, voters) {
        int s = vote_of(k, REQ(l, k), now.inst[l], set, numbers);
        EACH_IN(j, voters) {
            if (REQ(j, k) <= s) return 0;
#ifdef BREAK_LATER
            /* Deaf to stations that have gone on: nothing that they say of a later instance counts as an acknowledgement. */
            if (now.st[j] != ACTIVE || now.inst[j] != now.inst[l]) return 0;
#endif
        }
    }
#endif
    return 1;
}

/* Does l judge its vote s at all? A RCV_ACK stays a promise when a removal begins. */
static int judged(int l, int s)
{
    if (!now.log_set[VOTE(l, s)] || now.log_inst[VOTE(l, s)] != now.inst[l]) return 0;
#ifdef BREAK_PROMISE
    if (now.closed[l] && (now.log_set[VOTE(l, s)] & now.up[l]) == now.up[l]) return 0;
#endif
    return 1;
}

static int can_go_on(int l)
{
    if (now.st[l] != ACTIVE) return 0;
    for (int s = 0; s < REQ(l, l); s++)
        if (judged(l, s) && decided(l, now.log_set[VOTE(l, s)], now.log_req[VOTE(l, s)])) return 1;
    return 0;
}

static void note_instance(int v, int set, int numbers)
{
    if (!now.seen_set[v]) {
        now.seen_set[v] = set;
        now.seen_req[v] = numbers;
    }
    if (now.seen_set[v] != set) fail(SAME, "one number, two sets of members");
    if (now.seen_req[v] != numbers) fail(CUT, "one number, two numbers of PDUs accepted of what was removed");
}

static void enter(int l, int v, int set)
{
    now.inst[l] = (unsigned char)v;
    now.up[l] = set;
    now.let_in[l] |= set;
    if (now.promised[STATION(l)] < v) now.promised[STATION(l)] = (unsigned char)v;
}

#ifdef HANDOVER
/* Order: 4 times the clock, and the station. */
static int key(int k, int s) { return 4 * now.log_clock[VOTE(k, s)] + STATION(k); }

static int place_of(int l, int set, int numbers)
{
    int last = 0;
    EACH_IN(k, set & now.up[l]) {
        int at = key(k, vote_of(k, REQ(l, k), now.inst[l], set, numbers));
        if (at > last) last = at;
    }
    return last;
}

#define PDU(k, s) (1 << ((k) * LEN + (s)))
#if N * LEN > 30 /* only lives 0..N-1 have streams here */
#error "too many PDUs for a bitmap"
#endif

/* What stands at or before it is passed over silently by who was let in. */
static int before(int l) { return now.joined[l] ? now.place[now.joined[l]] : 0; }

/* Who is let in, and has not started yet, will begin just behind each voter's vote. */
static int holds(int m, int k, int s)
{
    if (REQ(m, k) > s) return 1;
    if (now.st[m] != RECOVERING) return 0;
    for (int t = s; t < REQ(k, k); t++) if (now.log_set[VOTE(k, t)] && IN(now.log_set[VOTE(k, t)], m)) return 1;
    return 0;
}

/* Rule 5: all members of the view that let l in have said something in it, and have what l has passed over. */
static int shared(int l, int members)
{
#ifndef BREAK_SHARED
    int former = now.seen_set[now.joined[l] - 1];
    EACH_IN(m, members) {
        if ((now.st[m] == ACTIVE ? now.inst[m] : now.went[m]) < now.joined[l]) return 0;
        if (IN(former, m)) EACH_IN(x, former) for (int t = 0; t < REQ(x, x); t++)
            if (key(x, t) <= before(l) && REQ(m, x) <= t) return 0;
    }
#endif
    return 1;
}

/* What l releases, by what `members` have accepted, of what stands at or before `end`: the beginning of the order in which l waits
 * for the members' streams, as far as it and they hold it. Acknowledgements that l may have had count. Of who was removed only
 * what l has accepted is in the order. */
static int releases(int l, int members, int end)
{
    int out = 0;
    for (;;) {
        int k = -1, s = 0, at = 1 << 14;
        for (int x = 0; x < N; x++) for (int t = 0; t < REQ(IN(members, x) ? x : l, x); t++)
            if (!(out & PDU(x, t)) && key(x, t) < at && key(x, t) > before(l)) {
                k = x;
                s = t;
                at = key(x, t);
            }
        if (k < 0 || at > end || REQ(l, k) <= s || now.log_inst[VOTE(k, s)] > now.inst[l]) return out; /* rule 4a */
        EACH_IN(m, members) if (!holds(m, k, s) || (m != k && 4 * now.clk[m] + STATION(m) < at)) return out;
        out |= PDU(k, s);
        if (k == l && now.log_set[VOTE(k, s)] && now.log_inst[VOTE(k, s)] == now.inst[l]) return out; /* rule 4 */
    }
}

/* Does all that stands before the event of view v belong to a map? */
static int out_with(int l, int map, int v)
{
    for (int x = 0; x < N; x++) for (int t = 0; t < REQ(IN(now.up[l], x) ? x : l, x); t++)
        if (v > now.joined[l] && key(x, t) > before(l) && key(x, t) <= now.place[v] && !(map & PDU(x, t))) return 0;
    return 1;
}

/* When its life ends: the claim, at its largest. A removal is released as a whole, and several, one behind the other, with the
 * last of them: until its event is out what the members of the view before the first have brought is all. */
static void claims(int l)
{
    int v = now.inst[l], w = v, now_all = releases(l, now.up[l], 1 << 14);
    now.claim[l] = now_all;
    while (w > 1 && !out_with(l, now.claim[l], w)) { /* the view event is not out */
        w--;
#ifndef BREAK_RELEASE
        now.claim[l] = releases(l, now.seen_set[w], now.place[w + 1]);
#endif
    }
    now.view[l] = (unsigned char)w;
#ifdef BREAK_LAST
    now.shown[l] = now.claim[l] | now_all; /* levels that move on after the end */
#endif
    now.went[l] = (unsigned char)v;
#ifdef BREAK_EVENT
    if (now.joined[l] && !shared(l, now.up[l])) now.view[l] = 0;
#else
    /* Once a removal is under way, only its event tells that the others have it all. */
    if (now.joined[l] && !shared(l, now.seen_set[now.joined[l]]) && (now.view[l] < v || !shared(l, now.up[l]))) now.view[l] = 0;
#endif
}

/* Does l, which has ended, know view w, which somebody has carried out? It was in it, or (late_change) its own votes were complete
 * for that very set. */
static int knows(int l, int w)
{
    if (w <= now.went[l]) return 1;
#ifndef BREAK_LATE
    int v = now.went[l], up = now.seen_set[v], set = now.seen_set[w];
    for (int s = 0; w == v + 1 && s < REQ(l, l); s++) {
        int numbers = now.log_req[VOTE(l, s)], all = now.log_set[VOTE(l, s)] == set && now.log_inst[VOTE(l, s)] == v;
        EACH_IN(k, set & up) all &= vote_of(k, REQ(l, k), v, set, numbers) >= 0;
        EACH_IN(x, up & ~set) all &= REQ(l, x) == R(numbers, x);
        if (all) return 1;
    }
#endif
    return 0;
}

/* What a life that has ended has released: what it claims, for the end is the last word. */
#ifdef BREAK_LAST
#define RELEASED(l) now.shown[l]
#else
#define RELEASED(l) now.claim[l]
#endif

static int count(int map) { return __builtin_popcount((unsigned)map); }

/* Of a map: what stands behind the view event. */
static int behind(int map, int v)
{
    int out = 0;
    for (int x = 0; x < N; x++) for (int t = 0; t < LEN; t++)
        if (map & PDU(x, t) && (v < 2 || key(x, t) > now.place[v])) out |= PDU(x, t);
    return out;
}

/* Engine._flush: l delivers of what it has all before the view, and so many PDUs after it. */
static int flushed(int l, int v, int reached)
{
    int out = 0;
    for (;;) {
        int best = 0, at = 1 << 14;
        for (int x = 0; x < N; x++) for (int t = 0; t < REQ(l, x); t++)
            if (!(out & PDU(x, t)) && key(x, t) < at && key(x, t) > before(l)) {
                best = PDU(x, t);
                at = key(x, t);
            }
        if (!best || (behind(best, v) && count(behind(out, v)) >= reached)) return out;
        out |= best;
    }
}

/* Life x goes on from the life before, whose process it is. */
static int goes_on(int x) { return x >= N && now.st[x] == RECOVERING && !IN(now.crashed, x - N) && now.view[x - N]; }

static void check_handover(void)
{
    int end[NL], at[NL];
    EACH(x) if (goes_on(x)) {
        int l = x - N, v = 0, most = 0, whose = 0;
        EACH(y) if (goes_on(y)) {
            int w = now.view[y - N], reached = count(behind(now.claim[y - N], w));
#ifdef BREAK_OWN
            if (y != x) continue; /* to its own claim only */
#endif
            if (knows(l, w) && (w > v || (w == v && reached > most))) {
                v = w;
                most = reached;
                whose = y - N;
            }
            if (!knows(l, w) && IN(now.seen_set[w], l)) fail(ALIKE, "a member of a view does not know it");
        }
        at[x] = v;
        end[x] = flushed(l, v, most);
        Printf("life %d flushes to instance %d + %d, the claim of life %d\n", l, v, most, whose);
        EACH(y) if (goes_on(y) && now.view[y - N] == v) {
            int claimed = behind(now.claim[y - N], v);
            if (now.joined[l] > v) continue;
            if (behind(RELEASED(y - N), v) & ~end[x]) fail(HELD, "it does not deliver what the claimant has released");
            if (count(claimed) == most && behind(end[x], v) & ~claimed) fail(HELD, "it delivers what the claimant has not released");
        }
        EACH(y) if (y < x && goes_on(y) && at[y] == v) {
            int since = now.joined[l] > now.joined[y - N] ? now.joined[l] : now.joined[y - N];
            if (since <= v && behind(end[y], since) != behind(end[x], since)) fail(ALIKE, "two who know the same views end differently");
        }
    }
}
#endif

static void commit(int l, int set, int numbers)
{
    int gone = now.up[l] & ~set, v = now.inst[l] + 1;
    Printf("life %d carries out instance %d = %x, REQ %x\n", l, v, set, numbers);
    if (v > VMAX) {
        fail(BOUND, "VMAX is too small");
        return;
    }
    note_instance(v, set, numbers);
    EACH_IN(x, gone) {
        if (REQ(l, x) != R(numbers, x)) fail(CUT, "it has accepted another number of PDUs than was agreed");
        LIMIT(l, x) = 0;
    }
#ifdef HANDOVER
    now.place[v] = (short)place_of(l, set, numbers);
    if (now.clk[l] < 16 * v) now.clk[l] = (unsigned char)(16 * v);
#endif
    now.closed[l] &= set;
    now.forgiven[l] = 0;
    now.joins[l] = gone ? 0 : now.joins[l] & ~set;
    enter(l, v, set);
    equalise(l);
}

static void go_on(int l)
{
    for (int s = 0; s < REQ(l, l); s++) {
        int set = now.log_set[VOTE(l, s)], numbers = now.log_req[VOTE(l, s)];
        if (!judged(l, s) || !complete(l, set, numbers)) continue;
#ifdef BREAK_EARLIEST
        /* The newest that is decided hides an earlier one. */
        int later = 0;
        for (int t = s + 1; t < REQ(l, l); t++)
            later |= judged(l, t) && decided(l, now.log_set[VOTE(l, t)], now.log_req[VOTE(l, t)]);
        if (later) continue;
#endif
        commit(l, set, numbers);
        return;
    }
}

/* RCV of x heard. Not while a stop is being agreed, not before the station's last life is removed (rule 7), and never for a life
 * that was a member already: it may yet start in the instance that had it, and its votes there would meet its new membership
 * here. */
static int can_hear_rcv(int l, int x)
{
#ifdef HANDOVER
    if (x >= N) return 0;
#endif
#ifndef BREAK_TWICE
    if (IN(now.let_in[l], x)) return 0;
#endif
    if (now.st[l] != ACTIVE || now.st[x] != RECOVERING || now.closed[l] || IN(now.up[l] | now.joins[l], x)) return 0;
    return !told(l) && !(stations(now.up[l]) & BIT(STATION(x)));
}

static void on_recovering(int l, int x)
{
    Printf("life %d hears RCV of life %d\n", l, x);
    EACH_IN(y, now.joins[l]) if (STATION(y) == STATION(x)) now.joins[l] &= ~BIT(y);
    now.joins[l] |= BIT(x);
    now.joins[l] |= voted_for(l);
    if (can_propose(l)) propose(l);
}

/* Adopted from the votes of others, though no RCV came: the joiner may be dead already, and then has to be removed again. */
static int can_adopt(int l, int x)
{
    if (now.st[l] != ACTIVE || now.closed[l] || IN(now.up[l] | now.joins[l], x)) return 0;
    if (told(l) || stations(now.up[l] | now.joins[l]) & BIT(STATION(x))) return 0;
#ifndef BREAK_TWICE
    if (IN(now.let_in[l], x)) return 0;
#endif
    EACH_IN(k, now.up[l]) if (k != l) for (int s = 0; s < REQ(l, k); s++)
        if (now.log_inst[VOTE(k, s)] == now.inst[l] && IN(now.log_set[VOTE(k, s)], x)) return 1;
    return 0;
}

static void adopt(int l, int x)
{
    Printf("life %d adopts the recovery of life %d\n", l, x);
    now.joins[l] |= BIT(x);
    now.joins[l] |= voted_for(l);
    if (can_propose(l)) propose(l);
}

/* Rule 5: a member says that x is in, and x may have collected the votes of all who let it in. */
static int can_start(int x, int m)
{
    int set = now.up[m], v = now.inst[m];
    if (now.st[x] != RECOVERING || now.st[m] != ACTIVE || !IN(set, x)) return 0;
    EACH_IN(k, set & now.seen_set[v - 1]) if (vote_of(k, REQ(k, k), v - 1, set, 0) < 0) return 0;
    return 1;
}

static void start(int x, int m)
{
    int set = now.up[m], v = now.inst[m];
    Printf("life %d starts in instance %d = %x\n", x, v, set);
    note_instance(v, set, 0);
    EACH_IN(k, set & now.seen_set[v - 1]) REQ(x, k) = (unsigned char)(vote_of(k, REQ(k, k), v - 1, set, 0) + 1);
#ifdef BREAK_BATCH
    EACH(k) now.noted[x * NL + k] = REQ(x, k);
#endif
#ifdef HANDOVER
    now.joined[x] = (unsigned char)v;
    now.clk[x] = (unsigned char)(16 * v);
#endif
    now.st[x] = ACTIVE;
    enter(x, v, set);
}

/* A member that had x in an instance, and has it in none now, answers its RCV: this life is used up. (Joining.missed takes a
 * new life
 * earlier, from what the joiner sees itself. To the others that is a joiner that crashes and comes back.) */
static int used_up(int x)
{
#ifndef BREAK_TWICE
    if (now.st[x] != RECOVERING) return 0;
    EACH(m) if (now.st[m] == ACTIVE && IN(now.let_in[m], x) && !IN(now.up[m], x)) return 1;
#endif
    return 0;
}

static void end_life(int l)
{
#ifdef HANDOVER
    if (now.st[l] == ACTIVE) claims(l);
#endif
    now.st[l] = ENDED;
    now.inst[l] = 0;
    now.up[l] = now.closed[l] = now.forgiven[l] = now.joins[l] = now.let_in[l] = 0;
    for (int s = 0; s < N; s++) now.limit[l * N + s] = 0;
}

static void next_life(int l)
{
    if (l + N >= NL) {
        fail(BOUND, "INCS is too small");
        return;
    }
    now.st[l + N] = RECOVERING;
}

/* Rule 6: a complete proposal removes l, or somebody is in a later instance without it. */
static int removed_by(int l)
{
    if (now.st[l] != ACTIVE) return 0;
#ifdef BREAK_EXPEL
    return 0;
#endif
    EACH(m) if (now.st[m] == ACTIVE && now.inst[m] > now.inst[l] && !IN(now.up[m], l)) return 1;
    EACH_IN(k, now.up[l]) for (int s = 0; k != l && s < REQ(l, k); s++) {
        int set = now.log_set[VOTE(k, s)], all = 1;
        if (!set || now.log_inst[VOTE(k, s)] != now.inst[l] || IN(set, l)) continue;
        EACH_IN(j, set & now.up[l]) all &= vote_of(j, REQ(l, j), now.inst[l], set, now.log_req[VOTE(k, s)]) >= 0;
        if (all) return 1;
    }
    return 0;
}

static void expelled(int l)
{
    Printf("life %d is expelled\n", l);
    end_life(l);
    next_life(l);
}

static void renew(int x)
{
    Printf("life %d is told that it is used up\n", x);
    end_life(x);
    next_life(x);
}

/* Rule 6, last: a stop, or a joiner that is waited for, is not agreed. Only when nothing else can happen, as the longest of the
 * time-outs. */
static int can_give_up(int l)
{
    if (now.st[l] != ACTIVE) return 0;
#ifdef HANDOVER
    return l < N; /* at any moment, as the end of a pause or of a time-out elsewhere */
#endif
    for (int s = 0; s < REQ(l, l); s++) if (now.log_inst[VOTE(l, s)] == now.inst[l] && now.log_set[VOTE(l, s)] & ~now.up[l]) return 1;
    return now.closed[l] != 0;
}

static int anybody_gives_up(void)
{
    EACH(l) if (can_give_up(l)) return 1;
    return 0;
}

static void give_up(int l)
{
    Printf("life %d gives up\n", l);
    fail(SMOOTH, "somebody had to give up");
    end_life(l);
    next_life(l);
}

static int can_crash(int l) { return now.crashes && IN(CRASHERS, l) && (now.st[l] == ACTIVE || now.st[l] == RECOVERING); }

static void crash(int l)
{
    Printf("life %d crashes\n", l);
    now.crashes--;
    now.crashed |= BIT(l);
    end_life(l);
}

static int can_restart(int l)
{
    return RESTART && IN(now.crashed, l) && (l + N >= NL || now.st[l + N] == UNBORN);
}

static void restart(int l)
{
    Printf("station %d starts again as life %d\n", STATION(l), l + N);
    next_life(l);
}

static int can_send_data(int l)
{
    return now.datas && IN(SENDERS, l) && now.st[l] == ACTIVE && quorate(staying(l));
}

static void send_data(int l)
{
    Printf("life %d sends data as its PDU %d\n", l, REQ(l, l));
    now.datas--;
    send(l, 0, 0);
}

/* Opening again, as one step: nobody is in an instance, and a quorum is there. */
static int can_open(void)
{
    int set = 0;
    EACH(l) {
        if (now.st[l] == ACTIVE) return 0;
        if (now.st[l] == RECOVERING) set |= BIT(l);
    }
    return quorate(set);
}

static void open_again(void)
{
    int set = 0, v = 0;
    EACH(l) if (now.st[l] == RECOVERING) {
        set |= BIT(l);
        if (now.promised[STATION(l)] > v) v = now.promised[STATION(l)];
    }
#ifdef BREAK_NUMBER
    v = 1; /* The number was not on disk. */
#endif
    v++;
    Printf("instance %d = %x is opened\n", v, set);
#ifdef HANDOVER
    check_handover();
    EACH_IN(l, set) end_life(l); /* that is all */
    return;
#endif
    if (v > VMAX) {
        fail(BOUND, "VMAX is too small");
        return;
    }
    note_instance(v, set, 0);
    EACH_IN(l, set) {
        now.st[l] = ACTIVE;
        enter(l, v, set);
    }
}

/* l, and all whom it still counts as members, are in the same place: together they can decide, send and deliver without
 * anybody. */
static int works(int l)
{
    if (now.st[l] != ACTIVE || !quorate(staying(l))) return 0;
    EACH_IN(j, staying(l)) if (now.st[j] != ACTIVE || now.inst[j] != now.inst[l] || now.up[j] != now.up[l]) return 0;
    return 1;
}

static void check_one(void)
{
    int first = -1;
    EACH(l) if (works(l)) {
        if (first < 0) first = l;
        else if (now.inst[l] != now.inst[first] || now.up[l] != now.up[first]) fail(ONE, "two instances work at the same time");
    }
}

static void check_agreed(void)
{
    int living = 0;
    EACH(l) if (now.st[l] == ACTIVE || now.st[l] == RECOVERING) living |= BIT(l);
    EACH_IN(l, living)
        if (now.st[l] != ACTIVE || now.up[l] != living || now.closed[l] || now.joins[l]) {
            fail(AGREED, "the end, without one instance of all that live");
            return;
        }
}

static void begin(void)
{
    int members = 0;
    for (int l = 0; l < N; l++) {
        now.st[l] = IN(OUT, l) ? RECOVERING : ACTIVE;
        if (!IN(OUT, l)) members |= BIT(l);
    }
    EACH_IN(l, members) enter(l, 1, members);
    for (int s = 0; s < N; s++) now.promised[s] = 1;
    note_instance(1, members, 0);
}
}

/* The questions are written with a space before the parenthesis: Spin takes a call for a side effect otherwise. They have
 * none. */
#define STEP(question, action) :: d_step { c_expr { question } -> c_code { action; check_one(); }; assert(bad == 0) }
#ifdef BREAK_BATCH
#define NOTE(l, x) STEP(can_note (l, x), note(l, x))
#else
#define NOTE(l, x)
#endif
#define PAIR(l, x) \
    STEP(can_receive (l, x), receive(l, x)) \
    NOTE(l, x) \
    STEP(can_suspect (l, x), suspect(l, x, 0)) \
    STEP(can_suspect_wrongly (l, x), suspect(l, x, 1)) \
    STEP(can_adopt (l, x), adopt(l, x)) \
    STEP(can_hear_rcv (l, x), on_recovering(l, x)) \
    STEP(can_start (l, x), start(l, x))
#if NL > 6
#define PAIRS_7_8(l) PAIR(l, 6) PAIR(l, 7)
#else
#define PAIRS_7_8(l)
#endif
#if NL > 8
#define PAIRS_9(l) PAIR(l, 8)
#else
#define PAIRS_9(l)
#endif
#if NL > 9
#define PAIRS_10_12(l) PAIR(l, 9) PAIR(l, 10) PAIR(l, 11)
#else
#define PAIRS_10_12(l)
#endif
#ifdef HANDOVER
#define GIVE_UP_EARLY(l) STEP(can_give_up (l), give_up(l))
#else
#define GIVE_UP_EARLY(l)
#endif
#define LIFE(l) \
    PAIR(l, 0) PAIR(l, 1) PAIR(l, 2) PAIR(l, 3) PAIR(l, 4) PAIR(l, 5) PAIRS_7_8(l) PAIRS_9(l) PAIRS_10_12(l) \
    STEP(can_propose (l), propose(l)) \
    STEP(can_hear (l), on_heard(l)) \
    STEP(can_go_on (l), go_on(l)) \
    STEP(removed_by (l), expelled(l)) \
    STEP(used_up (l), renew(l)) \
    STEP(can_crash (l), crash(l)) \
    STEP(can_restart (l), restart(l)) \
    STEP(can_send_data (l), send_data(l)) \
    GIVE_UP_EARLY(l)

#define GIVE_UP(l) STEP(can_give_up (l), give_up(l))

active proctype cluster()
{
    d_step { c_code { begin(); }; assert(bad == 0) }
    do
    LIFE(0) LIFE(1) LIFE(2) LIFE(3) LIFE(4) LIFE(5)
#if NL > 6
    LIFE(6) LIFE(7)
#endif
#if NL > 8
    LIFE(8)
#endif
#if NL > 9
    LIFE(9) LIFE(10) LIFE(11)
#endif
    STEP(can_open (), open_again())
    /* Nothing can happen: whoever still waits for a removal gives up, one after the other. Else this is the end. */
    :: timeout ->
        if
        GIVE_UP(0) GIVE_UP(1) GIVE_UP(2) GIVE_UP(3) GIVE_UP(4) GIVE_UP(5)
#if NL > 6
        GIVE_UP(6) GIVE_UP(7)
#endif
#if NL > 8
        GIVE_UP(8)
#endif
#if NL > 9
        GIVE_UP(9) GIVE_UP(10) GIVE_UP(11)
#endif
        :: d_step { c_expr { !anybody_gives_up () } -> c_code { check_agreed(); }; assert(bad == 0) } -> break
        fi
    od
}
