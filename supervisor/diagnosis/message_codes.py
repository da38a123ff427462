"""Recognises the codes of services that print no code: their messages stand for one.

libpq has an SQLSTATE, but prints only the message; SQLite prints the text of its result code; Redis
writes the code as the first word, which redis-py removes. So such a message counts as a code, but
only if the service speaks: at the head of the message, behind the name of its exceptions or tools.
If a user's own program prints "no such table", that is no code.
"""

from __future__ import annotations

import re

_NAME = r"(?<![\w.])"
_POSTGRES = re.compile(rf"{_NAME}(?:psycopg2?|asyncpg)\.[\w.]+\)?:? |^(?:psql|pg_\w+): ")
_SAID_BY_POSTGRES = (
    rf"(?:\b(?:FATAL|ERROR):  |{_NAME}(?:psycopg2?|asyncpg)\.[\w.]+\)?:? |"
    r"connection to server [^\n]{1,200} failed: )"
)
_SQLITE = rf"{_NAME}sqlite3\.\w+\)?:? "
_REDIS = rf"{_NAME}(?:redis|valkey|aioredis)\."
_WANDB = rf"{_NAME}wandb\.[\w.]+: "

_QUOTED = r'"[^"\n]*"'
_MESSAGES = (
    # PostgreSQL's utils/init/postinit.c, libpq/auth.c and hba.c, libpq's fe-auth.c
    ("sqlstate:3D000", rf"database {_QUOTED} does not exist"),
    ("sqlstate:28P01", rf"password authentication failed for user {_QUOTED}"),
    ("sqlstate:28P01", r"fe_sendauth: no password supplied"),
    ("sqlstate:28000", rf"role {_QUOTED} (?:does not exist|is not permitted to log in)"),
    ("sqlstate:28000", r"no pg_hba\.conf entry for |pg_hba\.conf rejects connection "),
    ("sqlstate:42501", rf"permission denied for (?:\w+ )?(?:{_QUOTED}|\w+)"),
    # tcop/backend_startup.c (before: postmaster.c), storage/lmgr/proc.c, tcop/postgres.c
    (
        "sqlstate:57P03",
        r"the database system is (?:starting up|shutting down|in recovery mode|"
        r"not (?:yet )?accepting connections)",
    ),
    (
        "sqlstate:53300",
        r"sorry, too many clients already|remaining connection slots are reserved|"
        r"too many connections for (?:role|database) ",
    ),
    ("sqlstate:57P01", r"terminating connection due to administrator command"),
    # parser/parse_relation.c and catalog/namespace.c
    ("sqlstate:42P01", rf"relation {_QUOTED} does not exist"),
    ("sqlstate:42703", rf"column (?:{_QUOTED}|[\w.]+) (?:of relation {_QUOTED} )?does not exist"),
    ("sqlstate:3F000", rf"schema {_QUOTED} does not exist"),
)
_TEXTS = (
    # sqlite3ErrStr in SQLite's main.c (sqlite.org/rescode.html), and its parser's SQLITE_ERROR
    (
        "sqlite:ERROR",
        r"no such (?:table|column|index|function|module|view|savepoint|collation sequence)\b|"
        r"near \"[^\n]{0,200}\": syntax error|incomplete input|table \S+ (?:already exists|"
        r"has no column named |has \d+ columns but )",
    ),
    ("sqlite:READONLY", r"attempt to write a readonly database"),
    ("sqlite:CORRUPT", r"database disk image is malformed|malformed database schema"),
    ("sqlite:NOTADB", r"file is not a database|file is encrypted or is not a database"),
    ("sqlite:BUSY", r"database is locked"),
    ("sqlite:LOCKED", r"database (?:table|schema) is locked"),
    ("sqlite:PROTOCOL", r"locking protocol"),
    ("sqlite:IOERR", r"disk I/O error"),
)
_FORMS = (
    *((code, re.compile(rf"{_SAID_BY_POSTGRES}(?:{said})")) for code, said in _MESSAGES),
    *((code, re.compile(rf"{_SQLITE}(?:{said})")) for code, said in _TEXTS),
    # wandb_login.py and lib/wbauth/authenticate.py
    (
        "wandb:no-key",
        re.compile(rf"{_WANDB}(?:No API key configured|api_key not configured)", re.IGNORECASE),
    ),
)
_PREFIXES = (
    # redis.io/docs/latest/develop/reference/protocol-spec: "the first upper-case word is the error
    # prefix"; for a pipeline redis-py names the command before it
    re.compile(
        rf"{_REDIS}[\w.]+: (?:Command # \d+ \([^\n]{{0,200}}?\) of pipeline caused error: )?"
        r"([A-Z]{2,}) "
    ),
    re.compile(r"^\(error\) ([A-Z]{2,}) "),  # redis-cli
    # redis-py removes the prefixes that have an exception type of their own (_parsers/base.py)
    re.compile(rf"{_REDIS}(?:asyncio\.)?exceptions\.(\w+)Error\b"),
)


def codes_of_messages(text: str) -> frozenset[str]:
    """Returns the codes that the messages of services in `text` stand for."""
    found = {code for code, form in _FORMS if form.search(text)}
    if not _POSTGRES.search(text):
        found = {code for code in found if not code.startswith("sqlstate:")}
    found |= {f"redis:{match[1]}" for form in _PREFIXES for match in form.finditer(text)}
    return frozenset(found)
