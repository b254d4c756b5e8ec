/* A stand-in for the core behind struct zj_api, steered by the tests: it keeps what it is given and gives out what it is told. */
struct double_core {
    /* receive */
    uint64_t rx_frames, rx_bytes;
    uint32_t rx_sizes[65536];       /* of the first so many */
    uint64_t rx_marks[65536];       /* bytes 4..11 of those PDUs */
    uint8_t rx_mac[6];
    /* step */
    uint64_t steps, steps_drained;
    uint32_t status;                /* reported by every step, with ZJ_S_ROOM while there is some */
    /* transmit: `tx_left` frames of tx_size bytes, numbered in bytes 4..11 */
    uint64_t tx_left, tx_sent;
    uint32_t tx_size, tx_cluster;
    uint32_t tx_src;             /* then they are DATA of this station, numbered in its stream from tx_seq */
    uint64_t tx_seq;
    int pressed;                 /* 1: as much is in flight as may be */
    uint32_t tx_again;           /* 1: they have been asked for more than once */
    /* offer */
    uint64_t room;                  /* messages that may still be taken */
    uint32_t piece;                 /* 0: whole messages; otherwise bytes taken per call */
    uint32_t rx_drop;               /* why every PDU is refused; 0: none is */
    uint32_t refuse_size;           /* messages of this size can never be sent; 0: none */
    uint64_t offered;               /* taken whole */
    uint32_t echo;                  /* 1: what is taken becomes deliverable, at the position of the step */
    struct zj_offer *log;           /* data is a copy of the double's */
    uint32_t log_count, log_cap, next_at;
    struct double_place { uint64_t position, clock; uint8_t src, stage, view_src; } *log_place;
    uint32_t self;
    /* order */
    uint64_t position;              /* of what is delivered next */
    uint64_t positions[3];
    uint64_t beat_due, silence_due;
    uint32_t beats;
    uint64_t nak_due, poll_due, confirm_due, nak_at; /* nak_at: when NAKs were asked for last */
    uint32_t naks;
    uint32_t passed_station, passed_below;           /* as last told by zj_passed */
    uint64_t passed_wait_ns;
    uint32_t limit, base, again;    /* as the data path has set them; 0: not. What is asked for again */
    void *partial;                  /* whose message is being taken in pieces */
    uint32_t anew;                  /* 1: what has been taken of it is to be offered again from its beginning, once */
};

struct double_core *double_create(uint32_t self);
void double_destroy(struct double_core *c);
const struct zj_api *double_api(void);
/* Make a message deliverable. */
void double_deliver(struct double_core *c, uint32_t group, uint16_t client, uint8_t src, uint8_t type, uint8_t stage, uint64_t clock,
                    const uint8_t *data, uint32_t size);
