"""The rule table: which failures can never succeed, which are worth another try, and why.

Ordered data; the first rule that matches decides. The question that each verdict answers is: what
would happen if the same job were started again, unchanged? Where the answer is not known it is
RESTART, because the signature rule ends a failure that comes back the same.

The order is the precedence. Statuses and exception types both mislead (a full disk is reported as
RESOURCE_EXHAUSTED, a lost peer as INTERNAL, an object store's outage as ValueError), so rules about
what a text says in particular come first: those about the world outside before those about the
program. Then come status codes, then exception types, and how a process ended comes last. Before
all of them are the few types that no outside cause is ever reported as.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules.code import ALONE as _ERRORS_OF_CODE_ALONE
from supervisor.diagnosis.rules.code import ERRORS_OF_CODE
from supervisor.diagnosis.rules.code import RULES as _OF_THE_CODE
from supervisor.diagnosis.rules.compiler import RULES as _OF_COMPILERS
from supervisor.diagnosis.rules.exceptions import ON_SIGTERM as _ON_SIGTERM
from supervisor.diagnosis.rules.exceptions import RULES as _OF_THE_TYPE
from supervisor.diagnosis.rules.exits import RULES as _OF_THE_EXIT
from supervisor.diagnosis.rules.hardware import RULES as _OF_THE_MACHINE
from supervisor.diagnosis.rules.host import DISK_FULL as DISK_FULL
from supervisor.diagnosis.rules.host import OF_A_FULL_DISK as OF_A_FULL_DISK
from supervisor.diagnosis.rules.host import RULES as _OF_THE_WORLD
from supervisor.diagnosis.rules.io import RULES as _OF_IO
from supervisor.diagnosis.rules.native import RULES as _OF_NATIVE_CODE
from supervisor.diagnosis.rules.program import RULES as _OF_THE_PROGRAM
from supervisor.diagnosis.rules.rule import GUARD_LOST as GUARD_LOST
from supervisor.diagnosis.rules.rule import NO_OOM_KILL as NO_OOM_KILL
from supervisor.diagnosis.rules.rule import NO_SPACE as NO_SPACE
from supervisor.diagnosis.rules.rule import NO_STEP_TOLD as NO_STEP_TOLD
from supervisor.diagnosis.rules.rule import OOM_KILLED as OOM_KILLED
from supervisor.diagnosis.rules.rule import PEER_FELL as PEER_FELL
from supervisor.diagnosis.rules.rule import STILL_RUNNING as STILL_RUNNING
from supervisor.diagnosis.rules.rule import TOLD_TO_STOP as TOLD_TO_STOP
from supervisor.diagnosis.rules.rule import Rule as Rule
from supervisor.diagnosis.rules.rule import codes_match as codes_match
from supervisor.diagnosis.rules.rule import found as found
from supervisor.diagnosis.rules.rule import matching_codes as matching_codes
from supervisor.diagnosis.rules.rule import names_match as names_match
from supervisor.diagnosis.rules.rule import occurs as occurs
from supervisor.diagnosis.rules.rule import says as says
from supervisor.diagnosis.rules.rule import words as words
from supervisor.diagnosis.rules.setup import RULES as _OF_THE_SETUP
from supervisor.diagnosis.rules.training_state import RULES as _OF_THE_STATE
from supervisor.diagnosis.speakers import NOT_IO

_OF_A_STORE = (
    "rejected-credentials",
    "expired-credentials",
    "quota-code",
    "rate-limit",
    "quota",
    "passing-code",
    "passing-type",
    "passing-words",
    "storage",
    "broken-transfer",
    "lost-upload",
)


def in_a_bucket(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules for a job that is kept in an object store, as its checkpoints are: trouble with
    that is no failure of the program."""
    return tuple(replace(rule, of_a_store=rule.name in _OF_A_STORE) for rule in rules)


def _spares_io(rule: Rule) -> Rule:
    """A rule that knows a FATAL by words alone is not about what an I/O library says, unless it
    names its speakers: the word may be a server's, or of a packet."""
    by_words = rule.patterns and not rule.codes and set(rule.types) <= {"BaseException"}
    if rule.verdict is Verdict.FATAL and by_words and not rule.speakers:
        return replace(rule, speakers=NOT_IO)
    return rule


_ORDERED: tuple[Rule, ...] = (
    # A handler of SIGTERM may be wrong; that it was called is no fault of the program.
    replace(
        _ON_SIGTERM,
        name="code-error-on-sigterm",
        types=(*ERRORS_OF_CODE, "AssertionError"),
        alone=True,
    ),
    # Types that no outside cause is reported as: a TypeError about `read_timeout` is no timeout.
    *_ERRORS_OF_CODE_ALONE,
    # The world outside is reported under any type and status, and lost connections to a store are
    # worded as lost peers are: so it comes before what the machine and the program say.
    *_OF_THE_WORLD,
    *_OF_IO,
    # A compiler that runs out of memory says RESOURCE_EXHAUSTED: before device memory, below.
    *_OF_COMPILERS,
    *_OF_THE_MACHINE,
    # A damaged checkpoint is reported as NOT_FOUND, DATA_LOSS or a shape: before these words alone.
    *_OF_THE_STATE,
    # What the text says, and at last its bare status, tells more than a ValueError does.
    *_OF_THE_PROGRAM,
    *_OF_THE_SETUP,
    *_OF_THE_CODE,
    *_OF_NATIVE_CODE,
    # The type counts where the text says nothing that a rule above knows; any exception has one.
    *_OF_THE_TYPE,
    # How the process ended counts where nothing was said; the last rule matches every end.
    *_OF_THE_EXIT,
)
RULES = tuple(_spares_io(rule) for rule in _ORDERED)
