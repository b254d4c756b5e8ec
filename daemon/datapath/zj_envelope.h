/* Generated from proto/envelope.py by `python -m zenjun.tools.generate`; a test fails when it is stale. */
#ifndef ZJ_ENVELOPE_H
#define ZJ_ENVELOPE_H

#define ZJE_VERSION 2u
#define ZJE_TAG_BYTES 16u
#define ZJE_ECHOES_PER_PART 16u
#define ZJE_WHAT_PDU 1u
#define ZJE_WHAT_HELLO 2u
#define ZJE_WHAT_LINKS 3u
#define ZJE_WHAT_PROBE 4u
#define ZJE_WHAT_PIECE 5u
#define ZJE_SUITE_NONE 0u
#define ZJE_SUITE_AES_256_GCM 1u
#define ZJE_ENCRYPTED 16u /* added to a suite: the body is hidden */

/* Before the body of every frame of a cluster whose frames prove their sender. A tag of 16 bytes follows the body. */
#define ZJE_SIZEOF_ENVELOPE 24u
#define ZJE_ENVELOPE_CLUSTER 0u /* 4 bytes: CRC-32 of the cluster name, as in a PDU: the kernel's filter looks at it */
#define ZJE_ENVELOPE_VERSION 4u /* 1 bytes: 2; a frame without an envelope has 1 here */
#define ZJE_ENVELOPE_WHAT 5u /* 1 bytes: what the body is: 1 PDU, 2 HELLO, 3 LINKS, 4 PROBE, 5 PIECE */
#define ZJE_ENVELOPE_TX 6u /* 1 bytes: station that put the frame on the wire, 1..n; the PDU names the one whose PDU it is */
#define ZJE_ENVELOPE_SUITE 7u /* 1 bytes: 0 none; 1 AES-256-GCM; 16 more: the body is encrypted */
#define ZJE_ENVELOPE_LENGTH 8u /* 2 bytes: bytes of the body; the tag follows it, then padding */
#define ZJE_ENVELOPE_PIECE 10u /* 2 bytes: PIECE: its place, from 0, and how many the PDU has, a byte each; else 0 */
#define ZJE_ENVELOPE_SESSION 12u /* 4 bytes: first bytes of the session under which tx seals; suite 0: of a random number, drawn at its start */
#define ZJE_ENVELOPE_NUMBER 16u /* 8 bytes: of the frame in its session: from 1, one more for every frame sealed; HELLO: id of the key of its tag */

/* HELLO body, followed by `keys` ids of 4 bytes and the echoes. Its tag is HMAC-SHA-256, cut to 16 bytes. */
#define ZJE_SIZEOF_HELLO 88u
#define ZJE_HELLO_HELLO_SESSION 0u /* 32 bytes: the session that this station seals under, or is about to: random bytes */
#define ZJE_HELLO_CHALLENGE 32u /* 8 bytes: random; who sends it back within 2 s is alive now */
#define ZJE_HELLO_CLOCK 40u /* 8 bytes: wall clock, ns since 1970: which of two HELLOs is later, and nothing else */
#define ZJE_HELLO_NEXT 48u /* 8 bytes: number of the next frame under this session: what is older is not read */
#define ZJE_HELLO_BOOT 56u /* 8 bytes: random number that the daemon draws when it starts */
#define ZJE_HELLO_INCARNATION 64u /* 4 bytes: of this life of the daemon */
#define ZJE_HELLO_INSTANCE 68u /* 4 bytes: instance that the station is in, 0: in none */
#define ZJE_HELLO_FINGERPRINT 72u /* 4 bytes: CRC-32 of the options that must be equal in the whole cluster */
#define ZJE_HELLO_AGE_MS 76u /* 4 bytes: how long the daemon has been running */
#define ZJE_HELLO_LINK 80u /* 1 bytes: number of the link, from 1 */
#define ZJE_HELLO_PART 81u /* 1 bytes: which 16 stations the echoes are about, from 0: echo i is station 16 * part + i + 1's */
#define ZJE_HELLO_STATIONS 82u /* 1 bytes: n: stations of the roster */
#define ZJE_HELLO_KEYS 83u /* 1 bytes: number of key ids, 1..4 */
#define ZJE_HELLO_SENDING 84u /* 1 bytes: which of them this station seals with, from 0 */
#define ZJE_HELLO_PAD 85u /* 3 bytes: 0 */

/* What a HELLO says to one station. */
#define ZJE_SIZEOF_ECHO 20u
#define ZJE_ECHO_PROVEN 0u /* 4 bytes: first bytes of that station's session that is proven here, 0: none */
#define ZJE_ECHO_ECHO 4u /* 8 bytes: one of its challenges that was heard, 0: none */
#define ZJE_ECHO_OTHER 12u /* 8 bytes: another one of them, 0: none other */

/* PROBE body: whoever gets it has had a frame of this size. Zeros follow. */
#define ZJE_SIZEOF_PROBE 8u
#define ZJE_PROBE_PROBE_LINK 0u /* 1 bytes: number of the link, from 1 */
#define ZJE_PROBE_ANSWER 1u /* 1 bytes: 1: LINKS is wanted at once; 0: with the next one */
#define ZJE_PROBE_ROUND 2u /* 2 bytes: one more (modulo 2^16) for each try; LINKS names the last one heard */
#define ZJE_PROBE_BYTES 4u /* 2 bytes: of the whole frame behind the Ethernet header */
#define ZJE_PROBE_PROBE_PAD 6u /* 2 bytes: 0 */

#endif
