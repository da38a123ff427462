"""Turns a config into everything that a run needs to know before it touches model_dir."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.adapters.stores.bucket import bucket
from supervisor.config.feasible_rungs import (
    FeasibleRungs,
    Layouts,
    allowed_counts,
    command_layouts,
    devices_per_accelerator,
    make_ladder,
    unusable_rungs,
)
from supervisor.config.judgement import Remedy
from supervisor.config.load import Job, load_job
from supervisor.config.own_rules import RuleConfig
from supervisor.config.plan import PhasePlan, plan_phases
from supervisor.config.problems import ConfigError, Problem, key_path, shown
from supervisor.config.rule_checks import name_of
from supervisor.config.schema import Phase
from supervisor.config.secret_names import flags
from supervisor.config.training.check import CheckedSections, check
from supervisor.core.liveness import FIRST_INITIALISING
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.examples import failed
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.redaction import Redactor, flags_in, own_sections
from supervisor.diagnosis.rules import RULES, Rule, rules_for_jobs_in_a_store
from supervisor.diagnosis.success import Success
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import Stage


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and resolved job."""

    job: Job
    plans: tuple[PhasePlan, ...]
    policy: RestartPolicy
    ladders: tuple[FeasibleRungs, ...]
    """The numbers of devices that each phase can run on."""
    rules: tuple[tuple[Rule, ...], ...]
    """All rules of each phase, in the order in which they are tried."""

    def redactor(self, environ: Mapping[str, str]) -> Redactor:
        """Returns a redactor for all secrets of the job: those in `environ`, in the phases'
        environment variables and command lines (also those of probes, preemptions and
        notifications), those from secret files and stores, and the URLs of webhooks."""
        given = (
            each
            for plan in self.plans
            for each in (plan.env, flags(plan.argv), *flags_in(own_sections(plan.params)))
        )
        known = (value for plan in self.plans for value in plan.secrets.values())
        return Redactor(environ, *given, known=(*known, *self._webhooks(environ)))

    def _webhooks(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Yields the URL of each webhook, and the part of it that is the secret."""
        for phase in self.job.phases:
            for webhook in (each.webhook for each in phase.init.notify if each.webhook is not None):
                url = webhook.url_in(environ)
                yield from (url, url.partition("://")[2], url.partition("://")[2].partition("/")[2])

    def refusal(self, problems: Sequence[Problem]) -> ConfigError:
        """Returns the error for these problems, with the config's secrets redacted."""
        text = self.redactor({}).text
        return ConfigError([replace(each, message=text(each.message)) for each in problems])


def config_rules(phase: Phase) -> tuple[Rule, ...]:
    """Returns the rules of the phase's config; they are tried before ours."""
    return rules_of(phase.init.autorestart.rules)


def rules_of(configs: Sequence[RuleConfig]) -> tuple[Rule, ...]:
    """Returns the rules of `autorestart.rules`."""
    free = Remedy.WAIT_FOR_CAPACITY
    return tuple(
        Rule(
            name=name_of(rule, number),
            verdict=rule.verdict,
            cause=rule.cause or f"rule {rule.name or number} of the config",
            reason=rule.reason or "The config says so.",
            advice=rule.advice or "See autorestart.rules in the config.",
            types=tuple(rule.type),
            patterns=() if rule.regex is None else (rule.regex,),
            from_config=True,
            certain=rule.verdict == Verdict.FATAL and rule.certain is not False,
            signals=tuple(rule.signal),
            exit_codes=tuple(rule.exit_code),
            stages=tuple(rule.stage),
            transient=bool(rule.transient),
            remedy=rule.remedy,
            charge=Charge.NOTHING if rule.remedy == free else Charge.RESTARTS,
        )
        for number, rule in enumerate(configs, 1)
    )


def places_of_rules(job: Job, index: int) -> tuple[str, ...]:
    """Returns the file, line and key of each rule of a phase's config."""
    base = (*job.locations[index], "init", "autorestart", "rules")
    count = len(job.phases[index].init.autorestart.rules)
    places = ((*base, number) for number in range(count))
    return tuple(f"{job.source.origin(place)}: {key_path(place)}" for place in places)


def prepare(path: Path, overrides: Sequence[str]) -> Prepared:
    """Read, check and resolve the config at `path`; starts nothing. Raises what `prepare_job`
    raises."""
    return prepare_job(load_job(path, overrides))


def prepare_job(job: Job) -> Prepared:
    """Check and resolve a job; starts nothing.

    Raises:
        ConfigError: the config is wrong; the error has all problems of the step that failed.
    """
    checked = [_checked(job, index) for index in range(len(job.phases))]
    problems = [
        job.problem(index, where, message)
        for index, found in enumerate(checked)
        for where, message in found.problems
    ]
    problems += _success_files_without_client(job)
    if problems:
        raise ConfigError(problems)
    layouts = [_layouts(*pair) for pair in zip(job.phases, checked, strict=True)]
    problems = [
        job.source.problem((*job.locations[index], *where), message)
        for index, phase in enumerate(job.phases)
        for where, message in unusable_rungs(phase, layouts[index])
    ]
    if problems:
        raise ConfigError(problems)
    ladders = tuple(make_ladder(*pair) for pair in zip(job.phases, layouts, strict=True))
    plans = plan_phases(job, [found.params for found in checked], ladders)
    ours = RULES if job.remote is None else rules_for_jobs_in_a_store(RULES)
    rules = tuple((*config_rules(phase), *ours) for phase in job.phases)
    prepared = Prepared(job, plans, _policy(job, plans), ladders, rules)
    if problems := list(_failed_examples(prepared)):
        raise prepared.refusal(problems)
    return prepared


def _failed_examples(prepared: Prepared) -> Iterator[Problem]:
    """Yields a problem for each example of a config's rule that does not get its verdict."""
    job = prepared.job
    for index, phase in enumerate(job.phases):
        examples = [rule.examples for rule in phase.init.autorestart.rules]
        success = prepared.policy.phases[index].success
        for rule, number, why in failed(examples, prepared.rules[index], success):
            where = ("init", "autorestart", "rules", rule, "examples", number)
            text = examples[rule][number].text
            told = "" if text is None else f" (text {shown(text)})"
            yield job.problem(index, where, f"{why}; correct the rule or the example{told}")


def _success_files_without_client(job: Job) -> Iterator[Problem]:
    """Yields a problem for each `success.file` in a bucket whose client library is not installed:
    we could never see that file."""
    for index, phase in enumerate(job.phases):
        success = phase.command.success if phase.command is not None else None
        place = Uri.parse(success.file) if success is not None and success.file else None
        try:
            if place is not None:
                bucket(place)
        except ImportError as error:
            location = (*job.locations[index], "command", "success", "file")
            yield job.source.problem(location, f"cannot be looked for: {error}")


def _checked(job: Job, index: int) -> CheckedSections:
    """Returns the checked trainer sections of a phase; empty for a command."""
    phase = job.phases[index]
    if phase.fit is None:
        return CheckedSections()
    trainer = phase.model_dump(mode="json", exclude_none=True, exclude={"start_from", "faults"})
    trainer["init"]["checkpoint"].setdefault("directory", str(job.shown_model_dir))
    factor = devices_per_accelerator(phase)
    counts = [factor * count for count in allowed_counts(phase)]
    writes_data = any(earlier.fit is None for earlier in job.phases[:index])
    return check(trainer, counts, data_may_grow=writes_data)


def _layouts(phase: Phase, checked: CheckedSections) -> Layouts:
    """Returns how the phase's program runs on each number of devices, or why it cannot."""
    if phase.fit is None:
        return command_layouts(phase)
    factor = devices_per_accelerator(phase)
    return {count // factor: layout for count, layout in checked.layouts.items()}


def _policy(job: Job, plans: Sequence[PhasePlan]) -> RestartPolicy:
    """Returns the policy of the job. Grace period, backoff, preemption notice, regrow and the waits
    for capacity come from the first phase's config and hold for the whole job."""
    restart = job.phases[0].init.autorestart
    return RestartPolicy(
        phases=tuple(_phase_policy(job, index, plan) for index, plan in enumerate(plans)),
        grace_period=restart.grace_period,
        preemption_notice=restart.preemption.notice,
        backoff_first=restart.backoff.first,
        backoff_max=restart.backoff.max,
        wait_for_capacity=restart.wait_for_capacity,
        wait_for_replacement=restart.wait_for_replacement,
        regrow_at_checkpoint=restart.regrow == "at_checkpoint",
        regrow_after=restart.regrow_after,
        replaceable=job.phases[0].init.provision is not None,
    )


def _phase_policy(job: Job, index: int, plan: PhasePlan) -> PhasePolicy:
    restart = job.phases[index].init.autorestart
    return PhasePolicy(
        name=plan.name,
        max_num_restarts=restart.max_num_restarts,
        max_num_preemptions=restart.max_num_preemptions,
        max_total_restarts=restart.max_total_restarts,
        repeated_failure_limit=restart.repeated_failure_limit,
        reports_stages=_is_watched_from_its_start(plan, restart.deadlines),
        deadlines=restart.deadlines,
        success=Success(
            exit_code=plan.success.exit_code,
            step=plan.success.step,
            committed=not plan.is_command,
            pattern=plan.success.pattern,
            file=plan.success.file,
        ),
        rungs=_rungs(plan),
        units=plan.units,
        num_hosts=plan.num_hosts,
        workers_are_units=plan.workers > 1 or plan.num_hosts > 0,
        side_by_side=plan.platform == "tpu",
        first_initialising=FIRST_INITIALISING.get(plan.platform or ""),
        finds_checkpoints=plan.finds_checkpoints,
    )


def _rungs(plan: PhasePlan) -> tuple[int, ...]:
    """Returns the ladder of a phase. On many hosts without a known number of devices, one device a
    host stands for it."""
    if plan.num_hosts:
        return plan.rungs or (plan.num_hosts,)
    return plan.rungs if plan.units else ()


def _is_watched_from_its_start(plan: PhasePlan, deadlines: Mapping[Stage, float]) -> bool:
    """Returns whether a report of the workers is due within the limit of STARTING. From a command
    it is due only if the config gives that limit, and a pattern that finds the first step."""
    return not plan.is_command or (Stage.STARTING in deadlines and bool(plan.progress_pattern))
