/* Capture files as bytes in a caller's buffer: pcap and pcapng records, link layers, PDUs. No allocation, no I/O; nothing is read
 * beyond `size`, and no length in the file is believed before it is checked. Plain C that cffi parses: no macros but numbers, no bodies. */
#ifndef ZP_CAPTURE_H
#define ZP_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#define ZP_INTERFACES_MAX 1024
#define ZP_NAME_MAX 64
#define ZP_RECORD_MAX 16777216
#define ZP_FRAME_MAX 262144

enum zp_format { ZP_UNKNOWN = 0, ZP_PCAP = 1, ZP_PCAPNG = 2 };

/* What zp_next and its like return. Negative: damage; nothing behind it can be found. */
enum zp_result {
    ZP_MORE = 0,           /* no whole record is left: `need` bytes are wanted from `at` on */
    ZP_FRAME = 1,
    ZP_BORDER = 2,         /* zp_scan: `at` is the first record border at or beyond `border` */
    ZP_FULL = 3,           /* decoding: the columns have no room for one more */
    ZP_E_MAGIC = -1,       /* neither pcap nor pcapng; detail: its first four bytes */
    ZP_E_VERSION = -2,     /* detail: major version */
    ZP_E_RECORD = -3,      /* pcap: a record of so many bytes cannot be */
    ZP_E_ORDER = -4,       /* pcapng: no byte-order magic in a section header */
    ZP_E_BLOCK = -5,       /* pcapng: a block of so many bytes cannot be */
    ZP_E_TRAILER = -6,     /* pcapng: the length at the end of a block is another one */
    ZP_E_INTERFACE = -7,   /* pcapng: a frame of an interface that is not described */
    ZP_E_CAPTURED = -8,    /* pcapng: more bytes captured than the block has */
    ZP_E_INTERFACES = -9   /* pcapng: more than ZP_INTERFACES_MAX interfaces in one section */
};

struct zp_interface {      /* of a pcapng section; a pcap file has one */
    uint32_t link;         /* LINKTYPE_ number */
    uint32_t snaplen;      /* 0: no limit */
    int64_t offset_s;      /* added to time stamps */
    uint64_t mul, div;     /* ns = ticks * mul / div >> shift */
    uint32_t shift, pad;
};

struct zp_state {          /* what the records before a border say about those behind it; plain data, copied with a split */
    uint32_t format;       /* enum zp_format; ZP_UNKNOWN: at the beginning of the file */
    uint32_t big;          /* 1: big-endian */
    uint32_t interfaces, pad;
    uint64_t frame;        /* index in the file of the next frame, from 0 */
    uint64_t own_mac;      /* set by the caller: frames without a direction from this address go out, others come in; 0: not known */
    struct zp_interface interface[ZP_INTERFACES_MAX]; /* the first `interfaces` count; keep last */
};

struct zp_walk {
    const uint8_t *data;   /* bytes of the file from offset `base` on; set by the caller, as are the next three */
    uint64_t size;
    uint64_t base;
    uint64_t at;           /* next record, from `data` on; moved */
    uint64_t need;         /* after ZP_MORE */
    uint64_t error_at;     /* after an error: offset in the file */
    uint64_t detail;       /* after an error: the number that is wrong */
    struct zp_state state; /* zero, or as it was at a border */
    char name[ZP_INTERFACES_MAX][ZP_NAME_MAX]; /* of the interfaces whose description this walk has passed; cut, ends with 0 */
};

struct zp_frame {
    uint64_t offset;       /* of its record, in the (unpacked) file */
    uint64_t index;        /* in the file, from 0 */
    int64_t time_ns;       /* since 1970 UTC; 0 without has_time */
    const uint8_t *data;   /* from the link-layer header on; valid as long as the caller's buffer */
    uint32_t captured;
    uint32_t wire;         /* bytes it had on the wire; more than captured: cut by the snap length */
    uint32_t link;         /* LINKTYPE_ number */
    uint32_t interface;
    uint8_t has_time;
    uint8_t direction;     /* 0 unknown, 1 in, 2 out: pcapng flags, packet type of a cooked capture, else by own_mac */
    uint8_t pad[6];
};

/* The next frame; blocks that are none are passed over. */
int zp_next(struct zp_walk *w, struct zp_frame *f);

struct zp_scan {           /* totals, added to; set first_ns to INT64_MAX and last_ns to INT64_MIN before */
    uint64_t frames, bytes;
    int64_t first_ns, last_ns; /* smallest and largest time stamp */
    uint64_t timed;        /* frames with a time stamp */
    uint64_t links;        /* bit 0: Ethernet, 1: SLL, 2: SLL2, 3: another link type, 4: our EtherType in one of them, 5: frames of ours
                            * (or too short to tell) cut by the snap length, 6: frames of ours in one direction on several interfaces,
                            * 7: frames of links (flag PAIR) */
    uint64_t seen[3];      /* interface of the first frame of ours, plus 1, by direction; keep from call to call */
    uint64_t pieces, since_piece; /* PIECEs that can be read; frames since the last one, */
    int64_t now_ns, piece_ns;     /* and the time stamps of the last frame, and of the last one of these */
};
/* Over all whole records, counting. ZP_BORDER when the next record begins at or beyond file offset `border`, and no PDU in pieces is on
 * both sides of it. */
int zp_scan(struct zp_walk *w, uint64_t border, uint32_t ethertype, struct zp_scan *s);

/* Who speaks in a capture, to tell whose it is. */
struct zp_census {
    uint64_t pdus;         /* valid ones of ours so far */
    uint64_t out[64];      /* sent by the capturing machine, by source station (index: station - 1) */
    uint64_t own[64];      /* of these, what only its source sends: no DATA or vote, which others repeat for it, nothing relayed */
    uint64_t all[64];
    uint64_t mac[64], weight[64]; /* the source address that most of them came from */
    uint32_t cluster[64], n[64]; /* of the first that went out, or of the first; n 0: none */
};
/* Over all whole records, until `enough` PDUs have been seen (ZP_FULL). */
int zp_census(struct zp_walk *w, uint32_t ethertype, uint64_t enough, struct zp_census *c);

/* ---- link layer ---- */
struct zp_link {
    uint64_t src_mac, dst_mac; /* 48 bits; ZP_NO_MAC: the link layer does not say */
    const uint8_t *pdu;    /* what follows the link-layer header and all VLAN tags */
    uint32_t captured;     /* bytes of it that are there */
    uint32_t wire;         /* bytes of it on the wire */
    uint32_t frame;        /* bytes of the whole frame on the wire, as on Ethernet */
    uint32_t ethertype;    /* after all tags; 0: the frame is too short, or its link layer has none */
    int32_t vlan;          /* of the outermost tag, 0..4095; -1: untagged */
    uint32_t direction;    /* as in zp_frame */
    uint32_t known;        /* 0: a link type that we cannot read */
};
void zp_link(const struct zp_frame *f, struct zp_link *out);

/* ---- PDUs ---- */
enum zp_problem {          /* the numbers of frames/problem.py */
    ZP_P_NONE = 0,
    ZP_P_CUT = 1,          /* not all of it was captured */
    ZP_P_SHORT = 2,        /* shorter than header and vectors */
    ZP_P_VERSION = 3,
    ZP_P_KIND = 4,         /* a kind that is not known */
    ZP_P_STATIONS = 5,     /* number of stations not 1..64 */
    ZP_P_SOURCE = 6,       /* source or target out of range */
    ZP_P_LENGTH = 7,       /* its length goes beyond the frame */
    ZP_P_CHECK = 8,        /* a checksum: of header and vectors, or of the payload */
    ZP_P_PAYLOAD = 9,      /* counts, offsets or sizes inside do not fit */
    ZP_P_ASIDE = 10        /* nothing is wrong: an envelope that holds no PDU, a hidden one, or a piece of one */
};

struct zp_pdu {
    const uint8_t *bytes;  /* header, vectors, payload: `size` bytes, without padding */
    const uint8_t *ack, *pack, *payload; /* pack NULL if absent; entries of 4 bytes, network order */
    uint64_t clock, check;
    uint32_t size, length;
    uint32_t cluster, incarnation, instance, seq, free_buffers;
    uint32_t frame_max;
    uint8_t kind, flags, n, src, target, pad[3]; /* src 1..n */
};
/* Bytes of the envelope before the PDU; 0: none, or the PDU is hidden. */
uint32_t zp_envelope(const uint8_t *bytes, uint32_t captured, uint32_t wire);
/* Whether it is a frame with an envelope but without a PDU that can be read: HELLO, LINKS, PROBE, PIECE, an encrypted PDU. */
int zp_aside(const uint8_t *bytes, uint32_t captured, uint32_t wire);
/* Of such a frame: whether a PDU that nobody reads here is in it, whole or in part; and whether it is a part that can be read. */
int zp_hides(const uint8_t *bytes);
int zp_piece(const uint8_t *bytes);
/* Read and judge a PDU by itself, behind its envelope if it has one. Returns enum zp_problem; all of *p is valid only with ZP_P_NONE,
 * `kind` (0: not there) always. */
int zp_pdu(const uint8_t *bytes, uint32_t captured, uint32_t wire, struct zp_pdu *p);
uint32_t zp_crc32c(uint32_t crc, const uint8_t *data, uint32_t size);

/* ---- PDUs in pieces ---- */
struct zp_pieces;
struct zp_pieces *zp_pieces_new(void); /* NULL: no memory */
void zp_pieces_free(struct zp_pieces *g);
/* A frame with a PIECE that can be read (zp_piece). ZP_P_NONE: it is the last one of a PDU, which is in p until the next call; frame:
 * bytes of all its frames. ZP_P_ASIDE: others are to come, or it has come before. Otherwise what is wrong. now: its time, INT64_MIN:
 * not known. */
int zp_pieces_take(struct zp_pieces *g, int64_t now, const struct zp_link *l, struct zp_pdu *p, uint32_t *frame);
void zp_pieces_again(struct zp_pieces *g, const struct zp_link *l); /* the frame that made a PDU whole will come once more */

/* ---- columns ----
 * Arrow's layout: values, bitmaps has_X (least bit first, 1: not null), offsets of lists. Names are the tables' columns. NULL: not
 * wanted. Every pointer has room for `capacity` rows. */
struct zp_frames {
    uint64_t rows, capacity;
    int64_t *frame, *offset, *time_ns, *src_mac, *dst_mac;
    int32_t *captured, *wire, *ethertype, *vlan;
    int8_t *direction, *kind, *problem;
    uint8_t *has_time_ns, *has_ethertype, *has_vlan, *has_src_mac, *has_dst_mac, *has_kind;
    int32_t *data_offsets; /* capacity + 1 */
    uint8_t *data;         /* the captured bytes, of longer ones the first ZP_FRAME_MAX */
    uint64_t data_capacity; /* at least ZP_FRAME_MAX */
};
struct zp_pdus {
    uint64_t rows, capacity;
    int64_t *frame, *time_ns, *cluster, *incarnation, *instance, *seq, *clock, *free_buffers, *check;
    int32_t *wire, *length, *frame_max;
    int8_t *direction, *kind, *flags, *n, *src, *target;
    int64_t *state, *trans, *position, *digest, *counted, *view;
    uint8_t *has_time_ns;
    uint8_t *has_confirm;  /* of the six above */
    int32_t *ack_offsets, *pack_offsets; /* capacity + 1 */
    int64_t *ack, *pack;
    uint8_t *has_pack;
    uint64_t vector_capacity; /* entries that each of ack and pack has room for, at least 64 */
    int32_t *payload_offsets; /* capacity + 1 */
    uint8_t *payload;
    uint64_t payload_capacity; /* at least 65536 */
};
struct zp_filter {         /* what is wanted, all of it; frames without a time stamp are not if one of the times is asked for */
    int64_t from_ns, to_ns; /* both inclusive; INT64_MIN and INT64_MAX: any, and no time stamp as well */
    uint64_t kinds;        /* bit k: kind k; ~0: any, and other people's frames as well */
    uint64_t sources;      /* bit s - 1: source s; ~0 likewise */
};
/* Rows for all records that are there, until the columns are full (ZP_FULL) or nothing is left (ZP_MORE, or damage). `frames` or
 * `pdus` may be NULL. pieces: what has begun, from call to call; a PDU that becomes whole is one of its last frame, of the bytes of all
 * its frames; NULL: they are left out. */
int zp_decode(struct zp_walk *w, uint32_t ethertype, const struct zp_filter *filter, struct zp_frames *frames, struct zp_pdus *pdus,
              struct zp_pieces *pieces);

#endif
