/* What the engine and other modules read: peers, counters, names, and the functions of the core as a table. */
#include "order/order.h"

int zj_unstable(const zj_core *c)
{
    const struct stream *me = &c->st[c->self];
    return c->is_open && (c->send.building || me->min_al < c->send.next || released(c) < c->order.preack);
}

void zj_peer(const zj_core *c, uint32_t h, struct zj_peer *out)
{
    memset(out, 0, sizeof *out);
    if (h >= c->n)
        return;
    const struct stream *s = &c->st[h];
    uint32_t gaps = 0;
    if (c->is_open)
        for (uint64_t q = s->req; q < s->top && q < s->base + c->cfg.slots; q++)
            gaps += !meta_of(c, s, q)->present;
    *out = (struct zj_peer){.heard_ns = s->heard, .req = s->req, .top = s->top, .base = s->base, .min_al = s->min_al,
                            .acked = s->acked, .ordered = s->ordered, .clock = s->clock, .ack_moved_ns = s->ack_moved,
                            .incarnation = s->incarnation, .free_buffers = s->free_buffers, .frame_max = s->frame_max,
                            .gaps = gaps, .left = s->left, .fenced = s->fenced, .member = (uint8_t)is_member(c, h),
                            .closing = s->closing, .limit = s->closed_at, .state = s->peer.state, .trans = s->peer.trans,
                            .instance = s->peer.instance, .view = s->peer.view};
    memcpy(out->mac, s->mac, 6);
}

const struct zj_counters *zj_counters(const zj_core *c) { return &c->count; }
uint64_t zj_clock(const zj_core *c) { return c->order.main->clock(c); }

const char *zj_drop_name(uint32_t drop)
{
    switch ((enum zj_drop)drop) { /* no default: -Wswitch names a missing one */
    case ZJ_DROP_NONE: return "none";
    case ZJ_DROP_SHORT: return "short";
    case ZJ_DROP_CLUSTER: return "cluster";
    case ZJ_DROP_VERSION: return "version";
    case ZJ_DROP_KIND: return "kind";
    case ZJ_DROP_STATIONS: return "stations";
    case ZJ_DROP_SOURCE: return "source";
    case ZJ_DROP_OWN: return "own";
    case ZJ_DROP_LENGTH: return "length";
    case ZJ_DROP_CHECK: return "check";
    case ZJ_DROP_PAYLOAD: return "payload";
    case ZJ_DROP_CLOSED: return "closed";
    case ZJ_DROP_INSTANCE: return "instance";
    case ZJ_DROP_INCARNATION: return "incarnation";
    case ZJ_DROP_ACK: return "ack";
    case ZJ_DROP_WINDOW: return "window";
    case ZJ_DROP_CLOCK: return "clock";
    case ZJ_DROP_CONTROL_FULL: return "control_full";
    case ZJ_DROP_MEMBER: return "member";
    case ZJ_DROP_REMOVED: return "removed";
    case ZJ_DROP_EPOCH: return "epoch";
    case ZJ_DROP_RESET: return "reset";
    case ZJ_DROP_REPEATED: return "repeated";
    case ZJ_DROP_COUNT: break;
    }
    return "unknown";
}

const struct zj_api *zj_api(void)
{
    static const struct zj_api api = {
        .version = ZJ_API_VERSION, .size = sizeof api, .rx = zj_rx, .step = zj_step, .tx = zj_tx, .tx_done = zj_tx_done,
        .offer = zj_offer, .next = zj_next, .positions = zj_positions, .nak_due = zj_nak_due, .poll_due = zj_poll_due,
        .confirm_due = zj_confirm_due, .nak = zj_nak, .poll = zj_poll, .pair_rx = zj_pair_rx,
        .pair_to_group = zj_pair_to_group, .pair_asks = zj_pair_asks, .address = zj_address, .limit_size = zj_limit_size,
        .pdu_max = zj_pdu_max, .asked_again = zj_asked_again, .beat = zj_beat, .beat_due = zj_beat_due,
        .silence_due = zj_silence_due, .pressed = zj_pressed, .passed = zj_passed,
    };
    return &api;
}
