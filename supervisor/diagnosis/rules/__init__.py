"""The rule table: which failures can never succeed, which are worth another try, and why.

The rules are ordered data; the first one that matches decides. A verdict answers this question:
what would happen if the same job were started again, unchanged? If nobody knows, the verdict is
RESTART: a failure that comes back with the same signature ends the job anyway.

The order is the precedence. Statuses and exception types both mislead: a full disk is reported as
RESOURCE_EXHAUSTED, a lost peer as INTERNAL, an object store's outage as ValueError. So first come
the few types that no outside cause is ever reported as. Then come the rules about what a text says
in particular: about the world outside, then about the program. Then come status codes, then
exception types. Last comes how the process ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules.code import CODE_ERROR_TYPES
from supervisor.diagnosis.rules.code import RULES as _CODE_RULES
from supervisor.diagnosis.rules.code import RULES_WITHOUT_CONTEXT as _CODE_RULES_WITHOUT_CONTEXT
from supervisor.diagnosis.rules.compiler import RULES as _COMPILER_RULES
from supervisor.diagnosis.rules.exceptions import RULES as _EXCEPTION_RULES
from supervisor.diagnosis.rules.exceptions import SIGTERM_RULE as _SIGTERM_RULE
from supervisor.diagnosis.rules.exits import RULES as _EXIT_RULES
from supervisor.diagnosis.rules.hardware import LOST_WORKER as LOST_WORKER
from supervisor.diagnosis.rules.hardware import RULES as _HARDWARE_RULES
from supervisor.diagnosis.rules.host import DISK_FULL as DISK_FULL
from supervisor.diagnosis.rules.host import FULL_DISK_RULES as FULL_DISK_RULES
from supervisor.diagnosis.rules.host import KILLED as KILLED
from supervisor.diagnosis.rules.host import RULES as _HOST_RULES
from supervisor.diagnosis.rules.host import STATE_NOT_FINITE as STATE_NOT_FINITE
from supervisor.diagnosis.rules.io import RULES as _IO_RULES
from supervisor.diagnosis.rules.native import RULES as _NATIVE_RULES
from supervisor.diagnosis.rules.program import RULES as _PROGRAM_RULES
from supervisor.diagnosis.rules.rule import GUARD_LOST as GUARD_LOST
from supervisor.diagnosis.rules.rule import NO_OOM_KILL as NO_OOM_KILL
from supervisor.diagnosis.rules.rule import NO_SPACE as NO_SPACE
from supervisor.diagnosis.rules.rule import NO_STEP_TOLD as NO_STEP_TOLD
from supervisor.diagnosis.rules.rule import OOM_KILLED as OOM_KILLED
from supervisor.diagnosis.rules.rule import PEER_ENDED_FIRST as PEER_ENDED_FIRST
from supervisor.diagnosis.rules.rule import STILL_RUNNING as STILL_RUNNING
from supervisor.diagnosis.rules.rule import TOLD_TO_STOP as TOLD_TO_STOP
from supervisor.diagnosis.rules.rule import Rule as Rule
from supervisor.diagnosis.rules.rule import any_occurs as any_occurs
from supervisor.diagnosis.rules.rule import any_pattern_matches as any_pattern_matches
from supervisor.diagnosis.rules.rule import codes_match as codes_match
from supervisor.diagnosis.rules.rule import codes_wanted as codes_wanted
from supervisor.diagnosis.rules.rule import leftmost_match as leftmost_match
from supervisor.diagnosis.rules.rule import matched_text as matched_text
from supervisor.diagnosis.rules.rule import names_match as names_match
from supervisor.diagnosis.rules.setup import LOADER_RULES as _LOADER_RULES
from supervisor.diagnosis.rules.setup import RULES as _SETUP_RULES
from supervisor.diagnosis.rules.training_state import NOT_FINITE as NOT_FINITE
from supervisor.diagnosis.rules.training_state import NOT_NUMBERS as NOT_NUMBERS
from supervisor.diagnosis.rules.training_state import RULES as _TRAINING_STATE_RULES
from supervisor.diagnosis.rules.training_state import UNDECODABLE_RULES as UNDECODABLE_RULES
from supervisor.diagnosis.speakers import NOT_IO

_STORE_RULES = (
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


def rules_for_jobs_in_a_store(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Returns `rules` for a job whose model_dir is in an object store.

    `store_trouble_is_free` is set for the rules that match trouble with the store, because such
    trouble is no failure of the program.
    """
    return tuple(replace(rule, store_trouble_is_free=rule.name in _STORE_RULES) for rule in rules)


def _without_io_speakers(rule: Rule) -> Rule:
    """Returns the rule; one that is FATAL by words alone no longer matches errors of I/O libraries.

    There the words may come from a server, or be about a packet. A rule that names its speakers is
    returned unchanged.
    """
    by_words = rule.patterns and not rule.codes and set(rule.types) <= {"BaseException"}
    if rule.verdict is Verdict.FATAL and by_words and not rule.speakers:
        return replace(rule, speakers=NOT_IO)
    return rule


_ORDERED: tuple[Rule, ...] = (
    # The SIGTERM handler may have a bug, but the SIGTERM itself is not the program's fault.
    replace(
        _SIGTERM_RULE,
        name="code-error-on-sigterm",
        types=(*CODE_ERROR_TYPES, "AssertionError"),
        without_context=True,
    ),
    # No outside cause is reported as one of these types: a TypeError about `read_timeout` is no
    # timeout.
    *_CODE_RULES_WITHOUT_CONTEXT,
    # Outside causes are reported under any type and status, and a lost connection to a store reads
    # like a lost peer. So these rules come before those about the machine and the program.
    *_HOST_RULES,
    *_IO_RULES,
    # Before the rules about device memory: a compiler out of memory also says RESOURCE_EXHAUSTED.
    *_COMPILER_RULES,
    *_HARDWARE_RULES,
    # After `backend-missing`, which knows the libraries of devices; before rules about words that
    # names of libraries and symbols have, too.
    *_LOADER_RULES,
    # Before the rules about these words alone: a damaged checkpoint is reported as NOT_FOUND,
    # DATA_LOSS or a wrong shape.
    *_TRAINING_STATE_RULES,
    # The words of a text, and last its bare status, tell more than its type (ValueError) does.
    *_PROGRAM_RULES,
    *_SETUP_RULES,
    *_CODE_RULES,
    *_NATIVE_RULES,
    # The type decides if no rule above knows the text. The last of these matches any exception.
    *_EXCEPTION_RULES,
    # How the process ended decides if there is no error text. The last rule matches every end.
    *_EXIT_RULES,
)
RULES = tuple(_without_io_speakers(rule) for rule in _ORDERED)
