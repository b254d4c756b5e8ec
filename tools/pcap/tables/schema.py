"""The tables that captures are turned into: every column with its type, unit and meaning, once.

Arrow schemas (what the Parquet files hold), Spark schemas (what a reader asks for) and the tables of ``docs/captures-tables.md``
are made from here (the last by ``tools/generate.py``). A table lies in ``DIR/<table>/station=N/part-*.parquet``; ``station`` is
the folder's name and not in the files, which Spark and Arrow both read as a column. ``files`` has no such folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..frames.problem import Problem

if TYPE_CHECKING:
    import pyarrow as pa

TYPES: Final = {
    "byte": ("int8", "tinyint"),
    "int": ("int32", "int"),
    "long": ("int64", "bigint"),
    "bool": ("bool_", "boolean"),
    "text": ("string", "string"),
    "longs": ("list", "array<bigint>"),
}
"""Our names of types → (Arrow's, Spark's)."""


class Finding(IntEnum):
    """What the replay of one station's capture noticed (``findings.what``)."""

    GAP = 1  # the station has acknowledged PDUs that its capture does not hold: the capture has a hole
    CONFLICT = 2  # two PDUs with one number and different contents
    SENDER_ORDER = 3  # a later PDU of a source has no larger clock
    CAUSALITY = 4  # a PDU's ack vector names PDUs that come after it
    PROMISE = 5  # a PDU's clock is below what its source had promised
    DIGEST = 6  # announced by the station itself, and not what its own frames give
    VIEW_UNKNOWN = 7  # the station is in an instance whose beginning the capture does not show
    NEVER_SENT = 8  # a station acknowledges PDUs that this station has not sent
    RESUMED = 9  # the replay had to start again in the middle of an instance


@dataclass(frozen=True, slots=True)
class Column:
    """One column: type of ``TYPES``, unit ("" where there is none), meaning in one line, whether it may be null."""

    name: str
    type: str
    unit: str
    meaning: str
    null: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``partitioned``: it lies in folders ``station=N``."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partitioned: bool = True

    def names(self) -> list[str]:
        """All columns, ``station`` first where there is one."""
        return [column.name for column in self.columns]


def _c(name: str, kind: str, unit: str, meaning: str, *, null: bool = False) -> Column:
    return Column(name, kind, unit, meaning, null)


STATION: Final = _c("station", "int", "1..n", "capturing station (name of the folder)")
_FILE: Final = _c("file", "int", "", "number of the file in `files`")
_FRAME: Final = _c("frame", "long", "from 0", "index of the frame in its file")
_TIME: Final = _c("time_ns", "long", "ns since 1970", "when the capturing machine's clock saw the frame", null=True)
_DIRECTION: Final = _c("direction", "byte", "", "0 unknown, 1 in, 2 out, from the capture")
_KIND: Final = _c("kind", "byte", "", "kind of the PDU (numbers: protocol.md)")
_SRC: Final = _c("src", "byte", "1..n", "source station of the PDU")
_INCARNATION: Final = _c("incarnation", "long", "", "incarnation of the source's daemon")
_SEQ: Final = _c(
    "seq",
    "long",
    "PDUs",
    "number in the source's stream, unwrapped to 64 bits (what a late capture missed of it is lost: mod 2³²)",
)
_CLOCK: Final = _c("clock", "long", "", "logical clock; (clock, src) is the place in the order")
_VIEW: Final = _c("view", "long", "", "instance whose view event precedes it", null=True)
_VIEW_HASH: Final = _c("view_hash", "long", "", "view hash: that instance's number and its members' incarnations", null=True)
_CHECK: Final = _c("check", "long", "", "the header's checksums: of header and vectors << 32 | of the payload")

FRAMES: Final = Table(
    "frames",
    "Every frame of the captures, other people's as well.",
    (
        STATION,
        _FILE,
        _FRAME,
        _c("offset", "long", "bytes", "where the frame's record begins in its file"),
        _TIME,
        _DIRECTION,
        _c("captured", "int", "bytes", "kept by the capture"),
        _c("wire", "int", "bytes", "on the wire, with the Ethernet header"),
        _c("ethertype", "int", "", "after VLAN tags", null=True),
        _c("vlan", "int", "", "VLAN number of the outermost tag", null=True),
        _c("src_mac", "long", "", "source address, 48 bits", null=True),
        _c("dst_mac", "long", "", "destination address, 48 bits", null=True),
        _c("kind", "byte", "", "kind of the PDU; null: not ours", null=True),
        _c(
            "problem",
            "byte",
            "",
            "0 fine, else what is wrong with a frame of ours: " + ", ".join(f"{p.value} {p.name.lower()}" for p in Problem if p),
        ),
    ),
)

PDUS: Final = Table(
    "pdus",
    "Every whole, valid PDU: the fields of its header, and those of a CONFIRM. One that went in PIECEs is a row of the last one "
    "of them that came, `wire` that of all of them.",
    (
        STATION,
        _FILE,
        _FRAME,
        _TIME,
        _DIRECTION,
        _c("wire", "int", "bytes", "on the wire, with the Ethernet header"),
        _c("cluster", "long", "", "CRC-32 of the cluster's name"),
        _KIND,
        _c("flags", "byte", "", "header flags"),
        _c("n", "byte", "", "stations of the schema"),
        _SRC,
        _c("target", "byte", "1..n", "station asked (NAK, POLL), or the only one that a CONFIRM is for; 0: none"),
        _c("length", "int", "bytes", "payload"),
        _INCARNATION,
        _c("instance", "long", "", "instance the source was in when it sent this"),
        _c("seq", "long", "PDUs", "as on the wire, 32 bits: own number, or the source's next one"),
        _CLOCK,
        _c("free_buffers", "long", "PDUs × n", "receive buffers the source has free"),
        _c("frame_max", "int", "bytes", "largest PDU the source can take now"),
        _CHECK,
        _c("ack", "longs", "PDUs", "ack vector A: entry h - 1 is the next number expected from h"),
        _c("pack", "longs", "PDUs", "pack vector P: every station has all PDUs below", null=True),
        _c("state", "long", "bitmap", "CONFIRM: stations held to be stopped", null=True),
        _c("trans", "long", "bitmap", "CONFIRM: stations being agreed", null=True),
        _c("position", "long", "PDUs", "CONFIRM: PDUs after the view event of `counted` that the digest covers", null=True),
        _c("digest", "long", "", "CONFIRM: running digest of the delivered order there", null=True),
        _c("counted", "long", "", "CONFIRM: instance from whose view event `position` counts", null=True),
        _c("view", "long", "", "CONFIRM: view hash of the header's instance", null=True),
    ),
)

ORDER: Final = Table(
    "order",
    "One row per sequenced PDU that the station came to deliver, in its order, as the rules of the protocol give it from what"
    " the station sent and received.",
    (
        STATION,
        _VIEW,
        _VIEW_HASH,
        _c(
            "position",
            "long",
            "PDUs",
            "how many since that view event, from 1; null: the capture does not show all of them",
            null=True,
        ),
        _CLOCK,
        _SRC,
        _INCARNATION,
        _SEQ,
        _KIND,
        _c("payload_crc", "long", "", "CRC-32C of the payload"),
        _c("head_crc", "long", "", "CRC-32C of header and vectors"),
        _c("messages", "int", "", "messages and fragments in it"),
        _c("bytes", "int", "bytes", "payload"),
        _c("copies", "int", "frames", "how often it was received, or sent by the station itself"),
        _c("sent_ns", "long", "ns since 1970", "own PDUs: first transmission", null=True),
        _c("seen_ns", "long", "ns since 1970", "first receipt (own ones: first transmission)", null=True),
        _c("accepted_ns", "long", "ns since 1970", "all before it in its stream were there", null=True),
        _c("ordered_ns", "long", "ns since 1970", "its place was fixed", null=True),
        _c("preack_ns", "long", "ns since 1970", "every station was known to have it, and all before it in the order", null=True),
        _c("acked_ns", "long", "ns since 1970", "every station was known to know that", null=True),
        _FILE,
        _c("frame", "long", "from 0", "index of its first frame in its file"),
    ),
)

MESSAGES: Final = Table(
    "messages",
    "One row per message and station that delivered it; a fragmented message is at the place of its last fragment.",
    (
        STATION,
        _VIEW,
        _CLOCK,
        _SRC,
        _INCARNATION,
        _SEQ,
        _c("index", "int", "from 0", "which message of its PDU"),
        _c("first_seq", "long", "PDUs", "number of the PDU with its first fragment; `seq` if it is whole", null=True),
        _c("group", "long", "", "CRC-32 of its group's name"),
        _c("client", "int", "", "sending program, numbered by its daemon"),
        _c("type", "byte", "", "message type"),
        _c("mflags", "byte", "", "message flags"),
        _c("size", "long", "bytes", "of the whole message"),
        _c("op", "bool", "", "of a group that keeps only each sender's order"),
    ),
)

TRANSMISSIONS: Final = Table(
    "transmissions",
    "One row per PDU that the station had on its wire (of one PDU several rows if copies came very late: add them).",
    (
        STATION,
        _SRC,
        _KIND,
        _INCARNATION,
        _c("seq", "long", "PDUs", "as in `order`; of PDUs outside the stream: the source's next number, 32 bits"),
        _CHECK,
        _c("sent", "int", "frames", "sent by this station"),
        _c("received", "int", "frames", "received by it"),
        _c("first_ns", "long", "ns since 1970", "first of them", null=True),
        _c("last_ns", "long", "ns since 1970", "last of them", null=True),
        _c("bytes", "long", "bytes", "of all of them, without the Ethernet header"),
        _c("relayed", "int", "frames", "of them sent or relayed by a station other than the source, as far as the capture shows"),
    ),
)

VIEWS: Final = Table(
    "views",
    "One row per view event of the station, in its order.",
    (
        STATION,
        _c("view", "long", "", "number of the instance that begins here"),
        _c("view_hash", "long", "", "its view hash"),
        _c("time_ns", "long", "ns since 1970", "when the station was first seen in it", null=True),
        _c("place_clock", "long", "", "it follows (place_clock, place_src) immediately; null: not seen", null=True),
        _c("place_src", "byte", "1..n", "see place_clock; 0: nothing precedes it", null=True),
        _c("members", "long", "bitmap", "bit j - 1: station j is a member; null: not known", null=True),
        _c("incarnations", "longs", "", "of the members, 0: none", null=True),
        _c("joined", "long", "bitmap", "members that were not before; null: not known", null=True),
        _c("left", "long", "bitmap", "those who are not any more", null=True),
        _c("seed", "long", "", "digest that the order starts from; null: not known", null=True),
        _c("complete", "bool", "", "the rows of `order` begin with the view event and have no hole"),
        _c("from_clock", "long", "", "places beyond this clock are covered by `order`", null=True),
        _c("to_clock", "long", "", "places up to and with this clock are covered by `order`; null: none", null=True),
    ),
)

INSTANCES: Final = Table(
    "instances",
    "Time line of what stations report of themselves and of each other: one row per change in the PDUs that this station saw.",
    (
        STATION,
        _c("src", "byte", "1..n", "speaker"),
        _c("incarnation", "long", "", "of the speaker"),
        _TIME,
        _c("instance", "long", "", "that the sender reports to be in"),
        _c("view_hash", "long", "", "of that instance; null: its last PDU was no CONFIRM", null=True),
        _c("state", "long", "bitmap", "stations that it regards as stopped", null=True),
        _c("trans", "long", "bitmap", "stations being agreed on", null=True),
        _c("flags", "byte", "", "header flags BYE and FENCED"),
        _FILE,
        _FRAME,
    ),
)

ANNOUNCED: Final = Table(
    "announced",
    "Digests of the delivered order, as reported in CONFIRMs; one row per change.",
    (
        STATION,
        _c("src", "byte", "1..n", "speaker"),
        _c("incarnation", "long", "", "of the speaker"),
        _c("counted", "long", "", "instance from whose view event the position counts"),
        _c("position", "long", "PDUs", "delivered since then"),
        _c("digest", "long", "", "running digest there"),
        _TIME,
        _FILE,
        _FRAME,
        _c("derived", "long", "", "what this station's own frames give for that position; null: not known", null=True),
    ),
)

CONTROL: Final = Table(
    "control",
    "Every control PDU but CONFIRM.",
    (
        STATION,
        _FILE,
        _FRAME,
        _TIME,
        _DIRECTION,
        _KIND,
        _SRC,
        _c("target", "byte", "1..n", "station asked (NAK); 0: none"),
        _INCARNATION,
        _c("instance", "long", "", "of the source"),
        _c("seq", "long", "PDUs", "as on the wire"),
        _CLOCK,
        _c("proposal", "long", "", "OPEN: instance proposed; votes: instance + 1; RST, RSTC: epoch", null=True),
        _c("members", "long", "bitmap", "OPEN, RCV: stations listed; votes: members of the proposed instance", null=True),
        _c(
            "changed", "long", "bitmap", "votes: stations removed or admitted; NAK: the station whose PDUs are missing", null=True
        ),
        _c("count", "long", "", "NAK: how many PDUs are asked for; OPEN, RCV: members; votes: changes", null=True),
        _c("first", "long", "", "NAK: first number asked for; votes: value of the first change", null=True),
        _c("bytes", "int", "bytes", "without the Ethernet header"),
    ),
)

CONTROL_RATES: Final = Table(
    "control_rates",
    "CONFIRMs counted per source and second.",
    (
        STATION,
        _SRC,
        _DIRECTION,
        _c("second", "long", "s since 1970", "begin of the second; null: the capture has no times", null=True),
        _c("confirms", "int", "frames", "CONFIRMs"),
        _c("polls", "int", "frames", "of them with the flag POLL"),
        _c("relayed", "int", "frames", "of them passed on by another station"),
        _c("bytes", "long", "bytes", "of all of them, without the Ethernet header"),
    ),
)

FINDINGS: Final = Table(
    "findings",
    "What the replay of a station's capture noticed, one row each: "
    + ", ".join(f"{f.value} {f.name.lower()}" for f in Finding)
    + ".",
    (
        STATION,
        _c("what", "byte", "", "number, see above"),
        _VIEW,
        _SRC,
        _INCARNATION,
        _c("seq", "long", "PDUs", "first number concerned"),
        _c("count", "long", "PDUs", "how many numbers from there"),
        _c("clock", "long", "", "place concerned; gap: the last known before it", null=True),
        _c("until_clock", "long", "", "gap: the first known PDU after it; others: the clock it contradicts", null=True),
        _TIME,
        _FILE,
        _FRAME,
        _c("other_src", "byte", "1..n", "the other PDU or station that it contradicts; 0: none"),
        _c("other_value", "long", "", "its number, checksum or digest", null=True),
        _c("value", "long", "", "what was there instead", null=True),
    ),
)

FILES: Final = Table(
    "files",
    "The captures.",
    (
        _c("file", "int", "", "its number in the other tables"),
        _c("path", "text", "", "as given"),
        _c("station", "int", "1..n", "whose capture it is"),
        _c("format", "text", "", "pcap or pcapng, with the compression"),
        _c("link_types", "text", "", "link-layer types in it"),
        _c("frames", "long", "frames", "whole ones"),
        _c("bytes", "long", "bytes", "size of the file"),
        _c("first_ns", "long", "ns since 1970", "least time stamp", null=True),
        _c("last_ns", "long", "ns since 1970", "greatest time stamp", null=True),
        _c("truncated", "bool", "", "ends in the middle of a record"),
        _c("cut", "bool", "", "frames of ours in it are cut by the snap length"),
        _c("tail_bytes", "long", "bytes", "after the last whole record"),
        _c("problem", "text", "", "what is wrong with it, with the offset", null=True),
    ),
    partitioned=False,
)

TABLES: Final = {
    table.name: table
    for table in (
        FILES,
        FRAMES,
        PDUS,
        ORDER,
        MESSAGES,
        TRANSMISSIONS,
        VIEWS,
        INSTANCES,
        ANNOUNCED,
        CONTROL,
        CONTROL_RATES,
        FINDINGS,
    )
}


def arrow(table: str | Table, *, station: bool = False) -> pa.Schema:
    """Schema of the table's files; with *station* also that column, which the files do not have."""
    import pyarrow

    made = TABLES[table] if isinstance(table, str) else table
    columns = [column for column in made.columns if station or not made.partitioned or column is not STATION]

    def kind(column: Column) -> pa.DataType:
        name = TYPES[column.type][0]
        return pyarrow.list_(pyarrow.field("item", pyarrow.int64())) if name == "list" else getattr(pyarrow, name)()

    return pyarrow.schema([pyarrow.field(column.name, kind(column), nullable=column.null) for column in columns])


def spark(table: str | Table) -> str:
    """Spark's schema of the table as DDL text, ``station`` with it."""
    made = TABLES[table] if isinstance(table, str) else table
    return ", ".join(f"`{column.name}` {TYPES[column.type][1]}" for column in made.columns)


def read(spark_session: Any, folder: Path | str, table: str) -> Any:
    """The table under *folder* as a Spark DataFrame; an empty one if it was never written."""
    path = f"{folder}/{table}"
    if "://" not in path and not Path(path).is_dir():
        return spark_session.createDataFrame([], spark(table))
    return spark_session.read.schema(spark(table)).parquet(path)


# ---- documentation ----


def _markdown(table: Table) -> str:
    from ...frametables import table as aligned

    rows = (
        (f"`{c.name}`", TYPES[c.type][1], c.unit, c.meaning + ("; may be null" if c.null and "null" not in c.meaning else ""))
        for c in table.columns
    )
    return f"{table.meaning}\n\n{aligned(('column', 'type', 'unit', 'meaning'), rows)}"


def refresh(text: str) -> str:
    """The page with its generated blocks up to date. Raises KeyError for a table that does not exist."""
    from ...frametables import fill

    return fill(text, {name: _markdown(table) for name, table in TABLES.items()})
