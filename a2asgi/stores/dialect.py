"""What the SQL of every engine is made of: statements and their steps, an engine's dialect, and the schema."""

import json
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from a2asgi.errors import StoreBroken

SCHEMA_VERSION = 1


class Statement(NamedTuple):
    """SQL with its parameters; with `many`, one execution for each row of parameters."""

    sql: str
    params: Sequence[Any] = ()
    many: bool = False


Rows: TypeAlias = Sequence[Sequence[Any]]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Statement, Rows, Result]
Now: TypeAlias = Callable[[], int]
"""Tells the time by the store's clock in milliseconds, once a transaction holds its locks."""


class Dialect(NamedTuple):
    """What differs between engines.

    `name` is the type of text that is compared and sorted by its code points, `serial` of a number that is given to a
    row. `any_of` takes one parameter, a list as `list_param` writes it. Where several write at once, `hold` keeps a
    row from others until the end, `hold_free` takes only rows that nobody holds, and `expirable` is the log with
    whatever a purge must hold beside it.
    """

    integer: str
    serial: str
    name: str
    any_of: str
    list_param: Callable[[Collection[Any]], Any]
    table_exists: str
    hold: str
    hold_free: str
    expirable: str


SCHEMA = (
    "CREATE TABLE a2_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE a2_sessions (id {serial} PRIMARY KEY, contract {name} NOT NULL, session_id {name} NOT NULL,"
    " last_seq {integer} NOT NULL, wake_at_ms {integer}, UNIQUE (contract, session_id))",
    "CREATE INDEX a2_sessions_wake ON a2_sessions (contract, wake_at_ms) WHERE wake_at_ms IS NOT NULL",
    "CREATE TABLE a2_log (session {integer} NOT NULL, seq {integer} NOT NULL, id {name} NOT NULL, type TEXT NOT NULL,"
    " payload TEXT NOT NULL, cause TEXT, created_at_ms {integer} NOT NULL, ending_kind TEXT, ending_reason TEXT,"
    " expires_at_ms {integer}, UNIQUE (session, seq), UNIQUE (session, id))",
    "CREATE INDEX a2_log_expired ON a2_log (expires_at_ms) WHERE expires_at_ms IS NOT NULL",
    "CREATE TABLE a2_work (session {integer} NOT NULL, seq {integer} NOT NULL, lane {name} NOT NULL,"
    " head {integer} NOT NULL, attempt {integer} NOT NULL, failures {integer} NOT NULL, lost {integer} NOT NULL,"
    " ready_at_ms {integer} NOT NULL, holder TEXT, expires_at_ms {integer}, parked_until_ms {integer},"
    " dead_type TEXT, dead_message TEXT, dead_at_ms {integer}, key {name}, progress TEXT, PRIMARY KEY (session, seq))",
    "CREATE INDEX a2_work_key ON a2_work (session, key) WHERE key IS NOT NULL",
    "CREATE INDEX a2_work_lane ON a2_work (session, lane, seq)",
    "CREATE INDEX a2_work_head ON a2_work (session, seq) WHERE head = 1",
    "CREATE INDEX a2_work_dead ON a2_work (session, seq) WHERE dead_at_ms IS NOT NULL",
    "CREATE TABLE a2_timers (session {integer} NOT NULL, id {name} NOT NULL, due_at_ms {integer},"
    " delay_ms {integer}, drafts TEXT, key {name}, rule TEXT, PRIMARY KEY (session, id))",
    "CREATE INDEX a2_timers_key ON a2_timers (session, key) WHERE key IS NOT NULL",
    "CREATE INDEX a2_timers_due ON a2_timers (session, due_at_ms) WHERE due_at_ms IS NOT NULL",
)


def migrate(dialect: Dialect) -> Steps[None]:
    """Create the schema, or check that it is one that this version knows. Run it in one transaction."""
    if not (yield Statement(dialect.table_exists, ("a2_meta",))):
        for sql in SCHEMA:
            yield Statement(sql.format(integer=dialect.integer, serial=dialect.serial, name=dialect.name))
        yield Statement("INSERT INTO a2_meta (key, value) VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        return
    [[version]] = yield Statement("SELECT value FROM a2_meta WHERE key = 'schema'")
    if int(version) > SCHEMA_VERSION:
        raise StoreBroken(
            f"the store has schema {version}, this version of a2 knows up to {SCHEMA_VERSION}: upgrade a2"
        )


def json_list(values: Collection[Any]) -> str:
    """A list as one text parameter."""
    return json.dumps(list(values))
