"""The statements that readers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turnd.store.checksum import WHOLE, blob, columns


@dataclass(frozen=True, slots=True)
class PageQueries:
    """How to read one page: first the sizes that decide where it ends, then its rows."""

    sizes: str
    rows: str
    """Position, seq, blob, and whether the row is whole."""


_ROW: Final = f"{blob('stored')}, {WHOLE}({columns('stored')})"

SESSION_PAGE: Final = PageQueries(
    sizes="SELECT seq, length(event) FROM events WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
    # What the index says of a row counts for as much as what the row says.
    rows=f"SELECT stored.position, found.seq, {_ROW} "  # noqa: S608 - our own names
    "AND stored.session = found.session AND stored.seq = found.seq FROM events AS found "
    "CROSS JOIN events AS stored ON stored.position = found.position "
    "WHERE found.session = ? AND found.seq > ? AND found.seq <= ? ORDER BY found.seq",
)
PAGE_OF_ALL: Final = PageQueries(
    sizes="SELECT position, length(event) FROM events WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
    rows=f"SELECT position, CAST(seq AS INTEGER), {_ROW} FROM events AS stored "  # noqa: S608 - our own names
    "WHERE position > ? AND position <= ? ORDER BY position",
)
OWNER: Final = """
    SELECT id, found.seq FROM events AS found INDEXED BY events_of_session
    LEFT JOIN sessions ON key = found.session WHERE +found.position = ?
"""
"""Whose event is at a position, as the index has it; reads all of the index."""
ONE_SESSION: Final = "SELECT key, id, last_seq, updated_us, session FROM sessions WHERE id = ?"
UNSETTLED: Final = (
    "SELECT key, id, last_seq, updated_us, session FROM sessions WHERE unsettled ORDER BY depth DESC, key"
)
WITH_PREFIX: Final = "SELECT id FROM sessions WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
NEWEST: Final = """
    SELECT key, id, last_seq, updated_us, session FROM sessions
    WHERE key < :before_key
        AND (:statuses = '[]' OR status IN (SELECT value FROM json_each(:statuses)))
        AND (:cwd = '' OR cwd = :cwd)
        AND (:include_children OR parent = '')
    ORDER BY key DESC LIMIT :limit
"""
NEWEST_CHILDREN: Final = """
    SELECT key, id, last_seq, updated_us, session FROM sessions
    WHERE parent = :parent AND parent <> ''
        AND key < :before_key
        AND (:statuses = '[]' OR status IN (SELECT value FROM json_each(:statuses)))
        AND (:cwd = '' OR cwd = :cwd)
    ORDER BY key DESC LIMIT :limit
"""
TOTALS: Final = """
    WITH RECURSIVE tree (root, id) AS (
        SELECT sessions.id, sessions.id FROM json_each(?) JOIN sessions ON sessions.id = json_each.value
        UNION
        SELECT tree.root, sessions.id FROM tree
        JOIN sessions ON sessions.parent = tree.id AND sessions.parent <> ''
    )
    SELECT tree.root, count(*), sum(cost_nano_usd), sum(input_tokens), sum(output_tokens),
        max(EXISTS (SELECT 1 FROM usage_ledger WHERE usage_ledger.session = sessions.key AND estimated)),
        max(EXISTS (SELECT 1 FROM usage_ledger WHERE usage_ledger.session = sessions.key AND unpriced))
    FROM tree JOIN sessions USING (id) GROUP BY tree.root
"""
ANSWER: Final = "SELECT method, digest, answer FROM requests WHERE request_id = ?"
LAST_KEY: Final = "SELECT coalesce(max(key), 0) FROM sessions"
COUNT: Final = "SELECT count(*) FROM sessions"
