"""Tables as Spark DataFrames, and joins of them: for notebooks and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from . import schema


def read(spark: Any, folder: Path | str, table: str) -> Any:
    """A table as a DataFrame; an empty one if nothing was ever written to it."""
    return schema.read(spark, folder, table)


def message_lives(spark: Any, folder: Path | str) -> Any:
    """One row per message and station that has it, as a DataFrame:

    station, src, incarnation, seq, index, first_seq, group, client, size; sent_ns (by the source's clock, null without its
    capture), seen_ns, ordered_ns, preack_ns, acked_ns (by the station's clock); pdus: PDUs that carry it; shared: messages in the
    last of them; frames, frame_bytes: transmissions of these PDUs by all stations whose captures are there, and their bytes;
    retransmissions: frames beyond one for each PDU; received: copies that reached this station; lost: copies that others sent and
    that did not reach it. Costs of PDUs that carry several messages are not divided."""
    for table in ("messages", "order", "transmissions"):
        read(spark, folder, table).createOrReplaceTempView(f"zj_{table}")
    return spark.sql(_LIVES)


_LIVES: Final = """
WITH wire AS (
  SELECT src, incarnation, seq, sum(sent) AS sent, max(bytes / (sent + received)) AS size
  FROM zj_transmissions WHERE kind = 1 GROUP BY src, incarnation, seq
), here AS (
  SELECT station, src, incarnation, seq, sum(sent) AS sent, sum(received) AS received
  FROM zj_transmissions WHERE kind = 1 GROUP BY station, src, incarnation, seq
), parts AS (
  SELECT station, src, incarnation, seq, index, explode(sequence(coalesce(first_seq, seq), seq)) AS part FROM zj_messages
), cost AS (
  SELECT p.station, p.src, p.incarnation, p.seq, p.index, count(*) AS pdus, sum(w.sent) AS frames,
         cast(sum(w.sent * w.size) AS bigint) AS frame_bytes, sum(greatest(w.sent - 1, 0)) AS retransmissions,
         sum(coalesce(h.received, 0)) AS received,
         sum(CASE WHEN p.station = p.src THEN 0
                  ELSE greatest(w.sent - coalesce(h.sent, 0) - coalesce(h.received, 0), 0) END) AS lost
  FROM parts p
  LEFT JOIN wire w ON w.src = p.src AND w.incarnation = p.incarnation AND w.seq = p.part
  LEFT JOIN here h ON h.station = p.station AND h.src = p.src AND h.incarnation = p.incarnation AND h.seq = p.part
  GROUP BY p.station, p.src, p.incarnation, p.seq, p.index
)
SELECT m.station, m.src, m.incarnation, m.seq, m.index, m.first_seq, m.group, m.client, m.size,
       s.sent_ns, o.seen_ns, o.ordered_ns, o.preack_ns, o.acked_ns,
       c.pdus, o.messages AS shared, c.frames, c.frame_bytes, c.retransmissions, c.received, c.lost
FROM zj_messages m
JOIN zj_order o ON o.station = m.station AND o.src = m.src AND o.incarnation = m.incarnation AND o.seq = m.seq
LEFT JOIN zj_order s ON s.station = m.src AND s.src = m.src AND s.incarnation = m.incarnation
                    AND s.seq = coalesce(m.first_seq, m.seq)
JOIN cost c ON c.station = m.station AND c.src = m.src AND c.incarnation = m.incarnation AND c.seq = m.seq
           AND c.index = m.index
"""
