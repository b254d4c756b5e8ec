/* Generated from daemon/clientwire.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */
#ifndef DP_CLIENT_H
#define DP_CLIENT_H

#define DP_VERSION 3u
#define DP_VERSION_MIN 1u
#define DP_MAGIC "ZENJ"
#define DP_HANDLES_MAX 1024u /* per client: handles 1..DP_HANDLES_MAX - 1 */
#define DP_GROUP_NAME_MAX 128u /* bytes */
#define DP_PROGRAM_NAME_MAX 64u /* bytes */
#define DP_REQUESTS_MAX 64u /* of one connection without an answer */
#define DP_CONTROL_MAX 65536u /* body of any frame of a client except SEND */
#define DP_FRAME_MAX 16842752u /* body of any frame */

#define DP_F_HELLO 1u
#define DP_F_JOIN 2u
#define DP_F_LEAVE 3u
#define DP_F_SEND 4u
#define DP_F_STATUS 5u
#define DP_F_BYE 6u
#define DP_F_MEMBERS 7u
#define DP_F_ADMIN 8u
#define DP_F_REQUEST 9u
#define DP_F_SEND_TO 10u
#define DP_F_WELCOME 65u
#define DP_F_MESSAGE 66u
#define DP_F_VIEW 67u
#define DP_F_EVENT 68u
#define DP_F_DONE 69u
#define DP_F_ERROR 70u
#define DP_F_STATUS_REPLY 71u
#define DP_F_MEMBERS_REPLY 72u
#define DP_F_ADMIN_REPLY 73u
#define DP_F_REPLY 74u

#define DP_K_STATUS 1u
#define DP_K_MEMBERS 2u
#define DP_K_ADMIN 3u

#define DP_LEVEL 3u /* the level in the flags of JOIN and SEND */
#define DP_JOIN_OPEN 4u
#define DP_JOIN_SEND_ONLY 8u
#define DP_JOIN_NO_SELF 16u
#define DP_JOIN_OP 32u
#define DP_SEND_NOTIFY 4u
#define DP_MESSAGE_OWN 1u
#define DP_ERROR_CLOSES 1u

/* The header of every frame. */
#define DP_HEADER 8u /* bytes */
#define DP_HEADER_SIZE 0u /* u32: bytes of the body that follows this header; at most 16842752 */
#define DP_HEADER_TYPE 4u /* u8: frame type */
#define DP_HEADER_FLAGS 5u /* u8: per type */
#define DP_HEADER_HANDLE 6u /* u16: the connection's number for a group, 0 where no group is meant */

/* The body of HELLO. The program's name follows: UTF-8, at most 64 bytes, printable. */
#define DP_HELLO 8u /* bytes */
#define DP_HELLO_MAGIC 0u /* 4 bytes: `ZENJ` */
#define DP_HELLO_LOWEST 4u /* u16: lowest version that the client speaks */
#define DP_HELLO_HIGHEST 6u /* u16: highest version that it speaks */

/* The body of JOIN begins with this from version 3 on; the group's name follows. */
#define DP_JOIN 4u /* bytes */
#define DP_JOIN_ORDERING 0u /* u8: order of delivery, table below */
#define DP_JOIN_PAD 1u /* 3 bytes: 0 */

/* The body of SEND_TO begins with this. */
#define DP_SEND_TO 2u /* bytes */
#define DP_SEND_TO_COUNT 0u /* u16: handles that follow, 1..16 */

/* The body of REQUEST begins with this; what follows depends on the kind. */
#define DP_REQUEST 8u /* bytes */
#define DP_REQUEST_ID 0u /* u32: chosen by the client; not that of a request of this connection that has no answer yet */
#define DP_REQUEST_KIND 4u /* u16: what is asked, table below */
#define DP_REQUEST_PAD 6u /* 2 bytes: 0 */

/* The body of REPLY begins with this; a JSON object follows. */
#define DP_REPLY 8u /* bytes */
#define DP_REPLY_ID 0u /* u32: of the request */
#define DP_REPLY_STATUS 4u /* u16: 0 it succeeded; 1 it failed, and the JSON has `code` and `message` as in ERROR */
#define DP_REPLY_PAD 6u /* 2 bytes: 0 */

/* The body of MESSAGE begins with this; the message follows. (`clock`, `station`, `index`) is its order key, its place in the total order. */
#define DP_MESSAGE 16u /* bytes */
#define DP_MESSAGE_CLOCK 0u /* u64: order key: logical clock */
#define DP_MESSAGE_INDEX 8u /* u16: order key: number of the message in its PDU */
#define DP_MESSAGE_CLIENT 10u /* u16: number of the sending client at its station */
#define DP_MESSAGE_STATION 12u /* u8: order key: sending station, 1..n */
#define DP_MESSAGE_PAD 13u /* 3 bytes: 0 */

/* The body of DONE: how many of this client's messages (all groups, in order of sending) have reached each level since it connected. */
#define DP_DONE 24u /* bytes */
#define DP_DONE_ORDERED 0u /* u64: own messages that have reached ordered */
#define DP_DONE_PREACK 8u /* u64: own messages that have reached preack */
#define DP_DONE_ACK 16u /* u64: own messages that have reached ack */

#endif
