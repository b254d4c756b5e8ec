/* Breadth first, so that the first failure is a shortest one; states as 64-bit hashes, those that differ only in which station is which as one. */
#pragma once
#include <array>
#include <ctime>
#include <deque>

struct Entry {
    u64 hash;
    u32 from;
};
static std::vector<Entry> entries;
static std::vector<u32> table;
static std::vector<State> layer, coming;
static std::vector<std::array<int, STATIONS>> renamings;

static u64 hash_of(const State &s)
{
    const u8 *p = reinterpret_cast<const u8 *>(&s);
    u64 h = 0x9e3779b97f4a7c15ull, w;
    for (size_t i = 0; i < sizeof s; i += 8) {
        w = 0;
        memcpy(&w, p + i, std::min<size_t>(8, sizeof s - i));
        h = (h ^ w) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 29;
}

static int moved(int l, const std::array<int, STATIONS> &p) { return l / STATIONS * STATIONS + p[station(l)]; }
static u16 moved_set(u16 set, const std::array<int, STATIONS> &p)
{
    u16 out = 0;
    for (unsigned rest = set; rest; rest &= rest - 1) out |= life_bit(moved(__builtin_ctz(rest), p));
    return out;
}
static u8 moved_stations(u8 set, const std::array<int, STATIONS> &p)
{
    u8 out = 0;
    for (int st = 0; st < STATIONS; st++) if (in_set(set, st)) out |= u8(1u << p[st]);
    return out;
}

static State renamed(const State &s, const std::array<int, STATIONS> &p)
{
    State t = s;
    for (int l = 0; l < LIVES; l++) {
        Life &to = t.life[moved(l, p)];
        to = s.life[l];
        to.closed = moved_set(to.closed, p);
    }
    for (int st = 0; st < STATIONS; st++) {
        t.inc[p[st]] = s.inc[st];
        t.promised[p[st]] = s.promised[st];
        t.bound[p[st]] = s.bound[st];
        t.named[p[st]] = s.named[st];
    }
    for (int n = 0; n < NUMBERS; n++) if (s.ballot[n].state || s.desc[n].members) {
        const Ballot &b = s.ballot[n];
        Ballot &c = t.ballot[n];
        if (b.owner) c.owner = u8(p[b.owner - 1] + 1);
        if (b.by) c.by = u8(moved(b.by - 1, p) + 1);
        c.promised = moved_stations(b.promised, p);
        c.remove = moved_set(b.remove, p);
        for (int st = 0; st < STATIONS; st++) {
            Snapshot &o = c.of[p[st]];
            o = b.of[st];
            if (in_set(b.promised, st)) o.life = u8(moved(o.life, p));
        }
        t.desc[n].members = moved_set(s.desc[n].members, p);
        t.desc[n].joins = moved_set(s.desc[n].joins, p);
        t.desc[n].promisers = moved_stations(s.desc[n].promisers, p);
    }
    for (int i = 0; i < PDUS; i++) if (s.pdu[i].from) t.pdu[i].from = u8(moved(s.pdu[i].from - 1, p) + 1);
    return t;
}

static u64 canonical(const State &s)
{
    u64 least = hash_of(s);
    for (size_t i = 1; i < renamings.size(); i++) least = std::min(least, hash_of(renamed(s, renamings[i])));
    return least;
}

static bool insert(u64 h, u32 from)
{
    if (entries.size() * 2 >= table.size()) {
        table.assign(std::max<size_t>(1 << 16, table.size() * 2), 0);
        for (u32 i = 0; i < entries.size(); i++) {
            size_t k = entries[i].hash & (table.size() - 1);
            while (table[k]) k = (k + 1) & (table.size() - 1);
            table[k] = i + 1;
        }
    }
    size_t k = h & (table.size() - 1);
    while (table[k]) {
        if (entries[table[k] - 1].hash == h) return false;
        k = (k + 1) & (table.size() - 1);
    }
    entries.push_back({h, from});
    table[k] = u32(entries.size());
    return true;
}

static u32 here;
static const char *failed;
static u32 failed_at;
static u64 transitions;
static char words[80];

static void visit(const State &t0, Step)
{
    if (failed) return;
    transitions++;
    State t = t0;
    settle(t);
    if (!insert(canonical(t), here)) return;
    failed = violation(t);
    if (!failed && (opt.checks & CHECK_PROGRESS) && opt.progress && entries.back().hash % unsigned(opt.progress) == 0)
        for (unsigned q = 3; q < 8 && !failed; q++) if (has_quorum(q) && !comes_to_work(t, q)) {
            snprintf(words, sizeof words, "no instance of %s%s%s can start and release", q & 1 ? "0 " : "", q & 2 ? "1 " : "", q & 4 ? "2" : "");
            failed = words;
        }
    failed_at = u32(entries.size() - 1);
    coming.push_back(t);
}

/* ---- the story of a failure ---- */

static std::vector<std::pair<State, Step>> options_here;
static void collect(const State &t, Step step)
{
    State u = t;
    settle(u);
    options_here.push_back({u, step});
}

static std::string name(int l)
{
    return std::to_string(station(l)) + std::string(size_t(l / STATIONS), '\'');
}
static std::string names(u16 set)
{
    std::string out;
    for (int l = 0; l < LIVES; l++) if (in_set(set, l)) out += (out.empty() ? "" : " ") + name(l);
    return "{" + out + "}";
}
static std::string pdus(const State &s, u8 set)
{
    std::string out;
    for (int p = 0; p < PDUS; p++) if (in_set(set, p)) out += (out.empty() ? "" : " ") + std::string(1, char('a' + p));
    (void)s;
    return "[" + out + "]";
}

static void tell(const State &was, const State &s, Step e)
{
    std::string me = "station " + name(e.who), line;
    const Descriptor &d = s.desc[e.number];
    switch (e.kind) {
    case K_PREPARE: line = me + " prepares " + std::to_string(e.number) + (e.other ? ", an opening" : ", a change" + (e.set ? " without " + names(e.set) : std::string())); break;
    case K_PROMISE: line = me + " promises " + std::to_string(e.number); break;
    case K_COMPOSE:
        line = me + " composes " + std::to_string(e.number) + " = " + names(d.members) + " after " + std::to_string(d.parent) + ", joining " + names(d.joins) + ", cut " + pdus(s, d.cut) +
               (d.open ? "" : ", place at clock " + std::to_string(d.place % CLOCK_STEP));
        break;
    case K_START: line = me + " starts " + std::to_string(e.number); break;
    case K_RENEW: line = me + " takes a new incarnation"; break;
    case K_CRASH: line = me + " crashes and its station starts again"; break;
    case K_WITHDRAW: line = me + " withdraws with " + std::to_string(e.number); break;
    case K_ACCEPT: line = me + " accepts " + std::string(1, char('a' + e.other)) + " of " + name(s.pdu[e.other].from - 1); break;
    case K_SEND: line = me + " sends " + std::string(1, char('a' + e.other)) + " in " + std::to_string(e.number) + ", clock " + std::to_string(s.pdu[e.other].clock % CLOCK_STEP); break;
    case K_HEAR: line = me + " hears the clock of " + name(e.other); break;
    case K_RELEASE: line = me + " releases"; break;
    default: line = "instance 1 = " + names(d.members);
    }
    printf("  %s\n", line.c_str());
    for (int l = 0; l < LIVES; l++) {
        for (int n = 1; n < NUMBERS; n++) if (in_set(s.life[l].events, n) && !in_set(was.life[l].events, n)) printf("      station %s: event of %d\n", name(l).c_str(), n);
        for (int p = 0; p < PDUS; p++) if (s.life[l].in[p] && !was.life[l].in[p]) printf("      station %s: releases %c in %d\n", name(l).c_str(), 'a' + p, s.life[l].in[p]);
    }
}

static void story(const State &first)
{
    std::vector<u64> path;
    for (u32 i = failed_at; i; i = entries[i].from) path.push_back(entries[i].hash);
    State s = first, none;
    memset(&none, 0, sizeof none);
    tell(s, s, {K_BEGIN, 0, 1, 0, 0});
    for (size_t i = path.size(); i--;) {
        options_here.clear();
        all_steps(s, collect);
        for (auto &o : options_here) if (canonical(o.first) == path[i]) {
            tell(s, o.first, o.second);
            s = o.first;
            break;
        }
    }
    printf("  *** %s\n", failed);
}

static State initial()
{
    State s;
    memset(&s, 0, sizeof s);
    for (int st = 0; st < STATIONS; st++) {
        s.promised[st] = 1;
        if (opt.out > STATIONS - 1 - st) continue;
        Life &me = s.life[st];
        me.cur = 1;
        me.clock = CLOCK_STEP;
        me.spoken = me.events = me.alone = 2;
        s.desc[1].members |= life_bit(st);
    }
    s.ballot[1].state = COMPOSED;
    s.crashes = u8(opt.crashes);
    return s;
}

static bool set_option(const std::string &word)
{
    static const std::pair<const char *, int *> all[] = {
        {"numbers", &opt.numbers}, {"data", &opt.data}, {"crashes", &opt.crashes}, {"out", &opt.out}, {"removals", &opt.removals}, {"lag", &opt.lag}, {"hear", &opt.hear},
        {"opens", &opt.opens}, {"changes", &opt.changes}, {"withdrawals", &opt.withdrawals}, {"senders", &opt.senders}, {"progress", &opt.progress}, {"strict", &opt.strict}};
    if (word[0] == '-') {
        for (int r = 0; r < R_COUNT; r++) if (word.substr(1) == rule_names[r]) {
            off[r] = true;
            return true;
        }
        return false;
    }
    size_t at = word.find('=');
    if (at == std::string::npos) return false;
    std::string key = word.substr(0, at), value = word.substr(at + 1);
    if (key == "limit") { opt.limit = strtoull(value.c_str(), nullptr, 0); return true; }
    if (key == "checks") { opt.checks = unsigned(strtoul(value.c_str(), nullptr, 0)); return true; }
    for (auto &o : all) if (key == o.first) { *o.second = int(strtol(value.c_str(), nullptr, 0)); return true; }
    return false;
}

int main(int count_of, char **word)
{
    for (int i = 1; i < count_of; i++) if (!set_option(word[i])) { fprintf(stderr, "unknown: %s\n", word[i]); return 2; }
    std::array<int, STATIONS> p{{0, 1, 2}};
    do {
        bool same = true;
        for (int st = 0; st < STATIONS; st++) same &= in_set(opt.senders, st) == in_set(opt.senders, p[st]);
        if (same) renamings.push_back(p);
    } while (std::next_permutation(p.begin(), p.end()));
    State first = initial();
    insert(canonical(first), 0);
    coming.push_back(first);
    int depth = 0;
    for (u32 at = 0; !coming.empty() && !failed && entries.size() < opt.limit; depth++) {
        layer.swap(coming);
        coming.clear();
        for (const State &s : layer) {
            here = at++;
            all_steps(s, visit);
            if (failed || entries.size() >= opt.limit) break;
        }
    }
    bool complete = coming.empty() && !failed && entries.size() < opt.limit;
    if (failed) story(first);
    printf("errors: %d\nstates: %zu\ntransitions: %llu\ndepth: %d\ncomplete: %d\nexcused: %llu\nseconds: %.1f\n", failed ? 1 : 0, entries.size(), (unsigned long long)transitions, depth, complete,
           (unsigned long long)excused, double(clock()) / CLOCKS_PER_SEC);
    return 0;
}
