"""The statements that readers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PageQueries:
    """How to read one page: first the sizes that decide where it ends, then its rows."""

    sizes: str
    rows: str


SESSION_PAGE: Final = PageQueries(
    sizes="SELECT seq, length(event) FROM events WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
    rows="SELECT position, seq, event FROM events WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq",
)
PAGE_OF_ALL: Final = PageQueries(
    sizes="SELECT position, length(event) FROM events WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
    rows="SELECT position, seq, event FROM events WHERE position > ? AND position <= ? ORDER BY position",
)
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
    SELECT tree.root, count(*), sum(cost_nano_usd), sum(input_tokens), sum(output_tokens)
    FROM tree JOIN sessions USING (id) GROUP BY tree.root
"""
ANSWER: Final = "SELECT method, digest, answer FROM requests WHERE request_id = ?"
LAST_KEY: Final = "SELECT coalesce(max(key), 0) FROM sessions"
COUNT: Final = "SELECT count(*) FROM sessions"
