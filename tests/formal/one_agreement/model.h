/* One agreement for every instance: the state of three stations and the derived sets. The head of model.cpp says what is modelled. */
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr int STATIONS = 3, INCS = 4, LIVES = STATIONS * INCS, PDUS = 3, NUMBERS = 8;
/* A clock is instance * 8 + n: whoever starts an instance jumps there. */
constexpr int CLOCK_STEP = 8;

/* Rules that can be left out, by name. */
#define RULES(X) \
    X(schema_quorum) X(stranger) X(start_promised) X(cut_all) X(base_all) X(base_least) X(joiners_speak) X(all_speak) X(same_life) \
    X(freeze) X(members_promise) X(hold_said) X(hold_own) X(hold) X(begin_promised) X(place_all) X(clock_instance) X(frozen_opens) \
    X(close) X(limits_held) X(sent_later) X(greater_refuses) X(member_starts) X(thaw) X(withdraw_number) X(durable) X(members_quorum) \
    X(new_life) X(clock_jump) X(pass_over) X(void_beyond) X(never_member) X(newest) X(expelled_only) X(keep_promised) \
    X(held_by_new) X(rest_with_event) X(stranger_starts) X(first_hold) X(joiner_waits) X(keeps_current) X(opens) X(clocks)
enum Rule {
#define X(name) R_##name,
    RULES(X)
#undef X
    R_COUNT
};

/* What happened, for the story. */
enum Kind { K_BEGIN, K_PREPARE, K_PROMISE, K_COMPOSE, K_START, K_RENEW, K_CRASH, K_WITHDRAW, K_ACCEPT, K_SEND, K_HEAR, K_RELEASE };
struct Step {
    u8 kind, who, number, other;
    u16 set;
};

#pragma pack(push, 1)
struct Pdu {
    u8 from, inst, clock; /* from: life + 1; 0: not sent */
};
struct Descriptor {
    u8 parent, open, place, promisers, cut; /* cut: PDUs */
    u16 members, joins;
};
struct Snapshot {
    u8 life, cur, acc, rel, clock;
};
struct Ballot {
    u8 state, owner, by, open, parent, promised; /* owner: station + 1; by: life + 1; promised: stations */
    u16 remove;
    Snapshot of[STATIONS];
};
struct Life {
    u8 cur, clock, hold, frozen, acc, events, alone, spoken, crashed; /* acc: PDUs; instances by bit: events released, alone: not only with that of a later one */
    u16 closed;
    u8 in[PDUS];       /* instance in which it released the PDU; 0: not */
    u8 said[NUMBERS];  /* last clock that counts, of the instances that it has left */
};
struct State {
    Life life[LIVES];
    u8 inc[STATIONS], promised[STATIONS], bound[STATIONS], named[STATIONS]; /* named: highest incarnation that a descriptor names */
    Ballot ballot[NUMBERS];
    Descriptor desc[NUMBERS]; /* members == 0: none */
    Pdu pdu[PDUS];
    u8 crashes, wrong; /* wrong: a step that must not happen, see BAD_ */
};
#pragma pack(pop)

enum { NONE, PREPARED, COMPOSED, SPENT };
enum { BAD_NONE, BAD_TWICE, BAD_ORDER, BAD_OWN };

inline int station(int l) { return l % STATIONS; }
inline u16 life_bit(int l) { return u16(1u << l); }
inline bool in_set(unsigned set, int k) { return set >> k & 1; }
inline int count(unsigned set) { return __builtin_popcount(set); }
inline unsigned stations_of(unsigned lives) {
    unsigned out = 0;
    for (; lives; lives >>= STATIONS) out |= lives & 7;
    return out;
}
