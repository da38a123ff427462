"""Judges the end of an attempt again, by what is kept of it, to see every rule that matches.

The verdict in the journal counts: the supervisor had all evidence, and this may be another version.
If the output of the attempt is gone, the traceback and the root line in the journal are judged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supervisor.adapters.stores.bucket import bucket
from supervisor.cli.explained import OwnRules
from supervisor.config.own_rules import RuleConfig
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.explanation import Explanation, explain
from supervisor.diagnosis.failure import Evidence, Failure, HostFacts, RankEvidence, WorkerExit
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.rules import (
    GUARD_LOST,
    NO_OOM_KILL,
    NO_SPACE,
    OOM_KILLED,
    RULES,
    rules_for_jobs_in_a_store,
)
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import in_time
from supervisor.files.attempts import attempt_folder
from supervisor.host.notice import Notice
from supervisor.narrative.attempt_account import Account
from supervisor.prepare import rules_of
from supervisor.protocol.failure_record import MAX_RECORD, FailureRecord, parse_failure_record
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import UnreadableError, read

_MAX_LOG = 80 << 20
"""Bytes; an attempt keeps at most 64 MiB of output of each rank."""
_MAX_STACKS = 1 << 20
_PARTS = ("first.log", "previous.log", "log")
_NEVER_REACHED = Success(step=10**18)
_PLACE = "autorestart.rules[{}] of the config in the journal"


@dataclass(slots=True)
class Kept:
    """What is left of the evidence, and what the rules make of it."""

    explanation: Explanation | None = None
    """None: no rule can be tried."""
    logs: list[str] = field(default_factory=list)
    """The name of each rank's output, by the number of the rank."""
    own: OwnRules = field(default_factory=OwnRules)
    missing: list[str] = field(default_factory=list)
    """What is not there any more, or cannot be read, in words."""
    from_journal: bool = False
    """Whether no output was left, so that the text in the journal was judged."""
    warnings: list[str] = field(default_factory=list)

    def agrees(self, failure: Failure) -> bool:
        """Whether the rules give the verdict that is in the journal."""
        return self.explanation is not None and self.explanation.failure.rule == failure.rule


def judged_again(
    account: Account, failure: Failure, place: Path | Uri, config: Sequence[dict[str, Any]] | None
) -> Kept:
    """Returns what the rules make of what is kept of the attempt; `config` is the resolved config
    of each phase."""
    kept = Kept()
    kept.own = _own_rules(config, account.ended.before.phase, kept)
    ours = rules_for_jobs_in_a_store(RULES) if isinstance(place, Uri) else RULES
    ranks = tuple(_ranks(account, place, kept))
    kept.logs = [f"rank{number}.log" for number in range(_world_size(ranks))]
    if not any(rank.output or rank.record for rank in ranks):
        kept.from_journal = True
        ranks = (_rank_of_journal(account, failure),)
        kept.logs = ["the journal"] * _world_size(ranks)
    evidence = Evidence(ranks, host=_host_facts(failure))

    def warn(notice: Notice) -> None:
        kept.warnings.append(str(notice))

    redact = Redactor(os.environ).text
    rules = (*kept.own.rules, *ours)
    kept.explanation = in_time(
        lambda rules: explain(evidence, _success(account), rules, redact), rules, warn
    )
    return kept


def _world_size(ranks: Sequence[RankEvidence]) -> int:
    return 1 + max((rank.exit.rank for rank in ranks), default=-1)


def _success(account: Account) -> Success:
    """Returns a success that the evidence does not show: the attempt failed."""
    success = account.limits.success
    return success if success.step is not None else _NEVER_REACHED


def _own_rules(config: Sequence[dict[str, Any]] | None, phase: int, kept: Kept) -> OwnRules:
    try:
        bodies = (config or [])[phase]["trainer"]["init"]["autorestart"]["rules"]
        rules = rules_of([RuleConfig.model_validate(each) for each in bodies])
    except (IndexError, KeyError, TypeError):
        return OwnRules()
    except ValidationError as error:
        kept.warnings.append(f"the rules of the config in the journal are left out: {error}")
        return OwnRules()
    return OwnRules(rules, tuple(_PLACE.format(number) for number in range(len(rules))))


def _host_facts(failure: Failure) -> HostFacts:
    """Returns the facts of the host that the rule of the verdict needs: they were known then."""
    facts = {fact for rule in RULES if rule.name == failure.rule for fact in rule.facts}
    oom_kills = 1 if OOM_KILLED in facts else 0 if NO_OOM_KILL in facts else None
    return HostFacts(
        oom_kills, guard_lost=GUARD_LOST in facts, free_disk=0 if NO_SPACE in facts else None
    )


def _ranks(account: Account, place: Path | Uri, kept: Kept) -> Iterator[RankEvidence]:
    """Yields what is left of the evidence of each rank."""
    directory = account.ended.before.directory
    folder = f"{directory}/{attempt_folder(account.attempt)}"
    for number, ended in enumerate(account.exits):
        name = f"{folder}/rank{ended.rank}"
        parts = [_content(place, f"{name}.{part}", _MAX_LOG, kept) for part in _PARTS]
        if not any(part is not None for part in parts):
            kept.missing.append(f"{name}.log")
        yield RankEvidence(
            ended,
            _record(place, f"{name}.failure.json", kept),
            _digest(parts),
            account.stage,
            number < account.ended_before_kill,
            (_content(place, f"{name}.stacks.txt", _MAX_STACKS, kept) or b"").decode(
                "utf-8", "replace"
            ),
        )


def _digest(parts: Sequence[bytes | None]) -> str:
    digest = LogDigest()
    for part in parts:
        digest.feed(part or b"")
    return digest.text()


def _record(place: Path | Uri, name: str, kept: Kept) -> FailureRecord | None:
    data = _content(place, name, MAX_RECORD, kept)
    try:
        return parse_failure_record(data, name) if data is not None else None
    except UnreadableError as error:
        kept.missing.append(str(error))
        return None


def _content(place: Path | Uri, name: str, limit: int, kept: Kept) -> bytes | None:
    """Returns the content of a file of the attempt; None: it is not there, or cannot be read."""
    try:
        if isinstance(place, Path):
            return read(place / name, limit, below=place)
        return bucket(place).read(name, limit).data
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        kept.missing.append(f"{name}: {error.strerror or error}")
        return None


def _rank_of_journal(account: Account, failure: Failure) -> RankEvidence:
    """Returns the evidence of the rank of the root cause that the journal itself has."""
    ended = next((each for each in account.exits if each.rank == failure.rank), None)
    ended = ended or WorkerExit(failure.rank)
    known = failure.traceback or ("" if failure.root_cause == failure.exit else failure.root_cause)
    return RankEvidence(
        ended, None, _digest([f"{known}\n".encode()] if known else []), account.stage
    )
