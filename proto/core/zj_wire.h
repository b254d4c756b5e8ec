/* Generated from proto/wire.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */
#ifndef ZJ_WIRE_H
#define ZJ_WIRE_H

#define ZJW_VERSION 1u
#define ZJW_STATIONS_MAX 64u
#define ZJW_MESSAGE_MAX 16777216u
#define ZJW_NAK_RANGES_MAX 64u
#define ZJW_OPEN_NAME_MAX 64u

#define ZJW_KIND_DATA 1u
#define ZJW_KIND_CONFIRM 2u
#define ZJW_KIND_NAK 3u
#define ZJW_KIND_OPEN 4u
#define ZJW_KIND_STOP 5u
#define ZJW_KIND_STOP_ACK 6u
#define ZJW_KIND_RCV 7u
#define ZJW_KIND_RCV_ACK 8u
#define ZJW_KIND_RST 9u
#define ZJW_KIND_RSTC 10u
#define ZJW_KIND_SERVICE 11u

#define ZJW_FLAG_PACK 1u
#define ZJW_FLAG_POLL 2u
#define ZJW_FLAG_NEED_ACK 4u
#define ZJW_FLAG_BYE 8u
#define ZJW_FLAG_FENCED 16u
#define ZJW_FLAG_OP 32u
#define ZJW_FLAG_RELAYED 64u
#define ZJW_FLAG_PAIR 128u

#define ZJW_TYPE_USER 0u
#define ZJW_TYPE_GROUP 1u
#define ZJW_TYPE_SERVICE 2u
#define ZJW_TYPE_REPORT 3u
#define ZJW_TYPE_DECIDE 4u
#define ZJW_TYPE_HELD 5u
#define ZJW_TYPE_STABLE 6u
#define ZJW_TYPE_RELAY 7u
#define ZJW_TYPE_VIEW 255u

#define ZJW_MFLAG_FRAGMENT 1u
#define ZJW_MFLAG_LAST 2u
#define ZJW_MFLAG_OP 4u

#define ZJW_OFLAG_STARTED 1u
#define ZJW_OFLAG_OUTDATED 2u
#define ZJW_OFLAG_CONFIGURED 4u

#define ZJW_ORDERING_TOTAL 0u
#define ZJW_ORDERING_FIFO 1u
#define ZJW_ORDERING_ABCAST 2u
#define ZJW_ORDERING_TOKEN 3u

/* Common header of every PDU; ack[n] follows, then pack[n] if the PACK flag is set, then the payload. */
#define ZJW_SIZEOF_HEADER 48u
#define ZJW_HEADER_CLUSTER 0u /* u32: CRC-32 of the cluster name; first, so that the kernel filter can look at it */
#define ZJW_HEADER_VERSION 4u /* u8: protocol version, 1 */
#define ZJW_HEADER_KIND 5u /* u8: PDU kind */
#define ZJW_HEADER_FLAGS 6u /* u8: header flags */
#define ZJW_HEADER_STATIONS 7u /* u8: n, length of the vectors: stations of the roster; PAIR: 2 */
#define ZJW_HEADER_SRC 8u /* u8: source station, 1..n */
#define ZJW_HEADER_TARGET 9u /* u8: NAK: station asked to retransmit; POLL: station asked to answer, or 0; CONFIRM without POLL: the only station that it is sent to, or 0; PAIR: the other; otherwise 0 */
#define ZJW_HEADER_LENGTH 10u /* u16: payload bytes after the vectors; what follows is padding */
#define ZJW_HEADER_INCARNATION 12u /* u32: of the source: grows with each restart of its daemon */
#define ZJW_HEADER_INSTANCE 16u /* u32: instance that the source was in when it sent this */
#define ZJW_HEADER_SEQ 20u /* u32: sequenced kinds: number in the stream; others: the source's next number */
#define ZJW_HEADER_CLOCK 24u /* u64: logical clock; unsequenced: every later sequenced PDU of the source has a larger one; bus: instance << 32 | epoch */
#define ZJW_HEADER_FREE_BUFFERS 32u /* u32: receive buffers that the source has free, in PDUs, times n */
#define ZJW_HEADER_FRAME_MAX 36u /* u16: largest PDU that the source can receive now, bytes */
#define ZJW_HEADER_BOUND 38u /* u16: CONFIRM that speaks for all: 1 + (clock - T), 65535: no T (rule C8); otherwise 0 */
#define ZJW_HEADER_CHECK 40u /* u64: CRC-32C of header (without this field) and vectors << 32 | CRC-32C of the payload */

/* DATA payload: messages one after the other, each a message header, a fragment header if FRAGMENT is set, and its bytes. */
#define ZJW_SIZEOF_MESSAGE 12u
#define ZJW_MESSAGE_SIZE 0u /* u32: bytes of this message, or of this fragment, in this PDU */
#define ZJW_MESSAGE_GROUP 4u /* u32: CRC-32 of the group's name */
#define ZJW_MESSAGE_CLIENT 8u /* u16: sending program, numbered by its daemon; 0 is the daemon itself */
#define ZJW_MESSAGE_TYPE 10u /* u8: message type */
#define ZJW_MESSAGE_MFLAGS 11u /* u8: message flags */

/* Follows the message header if FRAGMENT is set. One fragmented message per station at a time; whole ones may come between. */
#define ZJW_SIZEOF_FRAGMENT 8u
#define ZJW_FRAGMENT_TOTAL 0u /* u32: bytes of the whole message */
#define ZJW_FRAGMENT_OFFSET 4u /* u32: position of this fragment in the message, bytes */

/* CONFIRM payload. A CONFIRM on a timer is the heartbeat. */
#define ZJW_SIZEOF_CONFIRM 40u
#define ZJW_CONFIRM_STATE 0u /* u64: bitmap, bit j - 1: station j is regarded as stopped (peer state S, AS or SSA) */
#define ZJW_CONFIRM_TRANS 8u /* u64: bitmap: station j is being agreed (AS, SA) */
#define ZJW_CONFIRM_POSITION 16u /* u64: number of PDUs delivered since the view event of instance `counted` that the digest covers */
#define ZJW_CONFIRM_DIGEST 24u /* u64: running digest of the delivered order at that position */
#define ZJW_CONFIRM_COUNTED 32u /* u32: instance whose view event the position counts from */
#define ZJW_CONFIRM_VIEW 36u /* u32: view hash of the instance in the header: its number and its members' incarnations */

/* NAK payload, followed by `count` ranges. */
#define ZJW_SIZEOF_NAK 8u
#define ZJW_NAK_STREAM 0u /* u8: station whose PDUs are missing, 1..n */
#define ZJW_NAK_COUNT 1u /* u8: number of ranges, 1..64 */
#define ZJW_NAK_PAD 2u /* u16: 0 */
#define ZJW_NAK_STREAM_INCARNATION 4u /* u32: incarnation of that stream */

/* One run of missing PDUs. */
#define ZJW_SIZEOF_RANGE 8u
#define ZJW_RANGE_FIRST 0u /* u32: first missing seq */
#define ZJW_RANGE_SPAN 4u /* u32: number of PDUs from there, at least 1 */

/* OPEN payload, followed by `members` members and the host name (UTF-8). */
#define ZJW_SIZEOF_OPEN 28u
#define ZJW_OPEN_PROPOSAL 0u /* u32: instance number proposed; 0: nothing proposed yet */
#define ZJW_OPEN_HIGHEST 4u /* u32: highest instance number the sender has ever proposed or seen */
#define ZJW_OPEN_FINGERPRINT 8u /* u32: CRC-32 of the options that must be equal in the whole cluster */
#define ZJW_OPEN_AGE_MS 12u /* u32: how long the sender's daemon has been running; decides between two daemons with one station number */
#define ZJW_OPEN_BOOT 16u /* u64: random number that the daemon draws when it starts */
#define ZJW_OPEN_MEMBERS 24u /* u8: number of members in the proposal; nothing proposed: 1, the sender itself */
#define ZJW_OPEN_OFLAGS 25u /* u8: open flags */
#define ZJW_OPEN_NAME_LENGTH 26u /* u16: bytes of the host name after the members */

/* One member of a proposed instance, and how far it got in the last one: all deliver up to the highest of these first. */
#define ZJW_SIZEOF_MEMBER 17u
#define ZJW_MEMBER_STATION 0u /* u8: station, 1..n */
#define ZJW_MEMBER_MEMBER_INCARNATION 1u /* u32: its incarnation */
#define ZJW_MEMBER_PAST 5u /* u32: view hash of the last view that its daemon process had delivered at level preack, 0: none */
#define ZJW_MEMBER_REACHED 9u /* u64: PDUs after that view that were at preack there when its instance ended; highest bit: began by votes */

/* STOP, STOP_ACK and RCV_ACK payload, followed by `changes` changes. Proposes instance + 1 of the header's instance. */
#define ZJW_SIZEOF_PROPOSAL 25u
#define ZJW_PROPOSAL_STATE 0u /* u64: as in CONFIRM */
#define ZJW_PROPOSAL_TRANS 8u /* u64: as in CONFIRM; clear for a stop that its sender is sure of */
#define ZJW_PROPOSAL_MEMBERS 16u /* u64: bitmap, bit j - 1: station j is in the proposed instance */
#define ZJW_PROPOSAL_CHANGES 24u /* u8: number of changes, 1..64 */

/* One station that is removed (STOP, STOP_ACK) or admitted (RCV_ACK). Sorted by station. */
#define ZJW_SIZEOF_CHANGE 5u
#define ZJW_CHANGE_CHANGED 0u /* u8: station, 1..n */
#define ZJW_CHANGE_VALUE 1u /* u32: removed: the next seq accepted from it; admitted: its incarnation */

/* RST and RSTC payload (bus medium). */
#define ZJW_SIZEOF_RESET 8u
#define ZJW_RESET_EPOCH 0u /* u32: number of the reset within the instance, from 1 */
#define ZJW_RESET_RESET_VIEW 4u /* u32: view hash of the instance, as in CONFIRM */

/* A view event as the core delivers it (never on the wire), followed by n incarnations of 4 bytes, 0: no member. */
#define ZJW_SIZEOF_VIEW 32u
#define ZJW_VIEW_VINSTANCE 0u /* u32: number of the instance that begins here */
#define ZJW_VIEW_HASH 4u /* u32: its view hash */
#define ZJW_VIEW_OPERATIONAL 8u /* u64: bitmap, bit j - 1: station j is a member */
#define ZJW_VIEW_JOINED 16u /* u64: bitmap: it was no member before */
#define ZJW_VIEW_LEFT 24u /* u64: bitmap: it was before, in this or another incarnation */

/* At the end of an OPEN with open flag CONFIGURED (docs/changing.md). Options: JSON objects in UTF-8. */
#define ZJW_SIZEOF_CONFIGURATION 20u
#define ZJW_CONFIGURATION_NUMBER 0u /* u32: of the sender's configuration; 0: that of the files */
#define ZJW_CONFIGURATION_KEPT 4u /* u32: an instance under it in which something has reached preack, after the ballots that the sender has seen; 0: none */
#define ZJW_CONFIGURATION_BALLOT 8u /* u64: place in the order, or number of a proposal * 2^32, at which the next configuration is proposed; 0: none is */
#define ZJW_CONFIGURATION_OPTIONS_LENGTH 16u /* u16: bytes of its options */
#define ZJW_CONFIGURATION_PROPOSED_LENGTH 18u /* u16: bytes of the options of the next one */

#endif
