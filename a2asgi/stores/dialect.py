"""What the SQL of every engine is made of: statements and their steps, an engine's dialect, and the schema."""

import json
from collections.abc import Callable, Collection, Generator, Sequence
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias, TypeVar

from a2asgi.errors import StoreBroken


class Statement(NamedTuple):
    """SQL with its parameters; with `many`, one execution for each row of parameters."""

    sql: str
    params: Sequence[Any] = ()
    many: bool = False


Rows: TypeAlias = Sequence[Sequence[Any]]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Statement | list[Statement], Sequence[Any], Result]
"""Yields a statement and is sent its rows; or several that read, and is sent the rows of each."""
Now: TypeAlias = Callable[[], int]
"""Tells the time by the store's clock in milliseconds, once a transaction holds its locks."""


class Dialect(NamedTuple):
    """What differs between engines.

    `name` is the type of text that is compared and sorted by its code points, `serial` of a number that is given to a
    row. `any_of` takes one parameter, a list as `list_param` writes it. Where several write at once, `hold` keeps a
    row from others until the end, and `expirable` is the log with whatever a purge must hold beside it. `tell` sends
    its one parameter to whoever listens, once it is committed.
    """

    integer: str
    serial: str
    name: str
    any_of: str
    list_param: Callable[[Collection[Any]], Any]
    table_exists: str
    hold: str
    expirable: str
    tell: str = ""

    def among(self, values: Collection[Any]) -> tuple[str, Any]:
        """The condition of being one of these, and its parameter; a single one needs no list, which costs more."""
        if len(values) == 1:
            return "= ?", next(iter(values))
        return self.any_of, self.list_param(values)


def listed(steps: Steps[Result]) -> Generator[list[Statement], Sequence[Rows], Result]:
    """The same steps for who executes them, each as a list of statements."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, list):
                step = steps.send((yield step))
            else:
                [rows] = yield [step]
                step = steps.send(rows)
    except StopIteration as end:
        result: Result = end.value
        return result


FIRST_SCHEMA = (
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


VERSIONS = (FIRST_SCHEMA, ("ALTER TABLE a2_sessions ADD COLUMN watched_until_ms {integer}",))
"""What each version of the schema adds to the one before."""

SCHEMA_VERSION = len(VERSIONS)


def migrate(dialect: Dialect) -> Steps[str]:
    """Bring the schema to the version that this code knows, in one transaction, and answer the database's id."""
    version, new_id = 0, token_hex(16)
    if (yield Statement(dialect.table_exists, ("a2_meta",))):
        [[text]] = yield Statement("SELECT value FROM a2_meta WHERE key = 'schema'")
        version = int(text)
    if version > SCHEMA_VERSION:
        raise StoreBroken(
            f"the store has schema {version}, this version of a2 knows up to {SCHEMA_VERSION}: upgrade a2"
        )
    for sql in (sql for added in VERSIONS[version:] for sql in added):
        yield Statement(sql.format(integer=dialect.integer, serial=dialect.serial, name=dialect.name))
    if version < SCHEMA_VERSION:
        rows = [("schema", str(SCHEMA_VERSION)), ("id", new_id)]
        yield Statement("DELETE FROM a2_meta WHERE key = 'schema'")
        yield Statement("INSERT INTO a2_meta (key, value) VALUES (?, ?)", rows, many=True)
        return new_id
    [[known_id]] = yield Statement(ID_OF_DATABASE)
    return str(known_id)


ID_OF_DATABASE = "SELECT value FROM a2_meta WHERE key = 'id'"
"""By which a connection of the caller's is known to be one to the store's database."""


def json_list(values: Collection[Any]) -> str:
    """A list as one text parameter."""
    return json.dumps(list(values))
