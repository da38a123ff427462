"""The metrics of jobs for Prometheus, by the conventions of OpenMetrics.

The one list, `METRICS`, has what is exported and what the page of the reference says of it. The
label is `job_name`, because Prometheus gives each series a `job` of its own: the name of its scrape
config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.metrics_core import StateSetMetricFamily
from prometheus_client.registry import Collector

from supervisor import __version__
from supervisor.core.state import Status
from supervisor.web.job_facts import JobFacts, Seen, Unreadable

JOB = "job_name"
"""The label that names the job."""
Kind = Literal["gauge", "counter", "info", "stateset"]
Sample = tuple[Mapping[str, str], float | Mapping[str, bool]]
"""The labels beside the job's, and the value. Of `info` the labels are all; a `stateset` has the
states."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric of a job."""

    name: str
    """Without `supervise_`, and without the ending of its kind."""
    kind: Kind
    meaning: str
    samples: Callable[[JobFacts, float], Iterable[Sample]]
    """Returns what is exported of a job at the Unix time that is given; nothing: not known."""
    labels: tuple[str, ...] = ()
    """Beside the one for the job."""
    unit: str = ""

    @property
    def family(self) -> str:
        """The name of its family."""
        return f"supervise_{self.name}"

    @property
    def series(self) -> str:
        """The name of its series, as a query has it."""
        return self.family + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def _one(
    value: Callable[[JobFacts], float | None],
) -> Callable[[JobFacts, float], Iterator[Sample]]:
    """Returns the `samples` of a metric without labels, whose value may not be known."""

    def samples(it: JobFacts, now: float) -> Iterator[Sample]:
        if (known := value(it)) is not None:
            yield {}, known

    return samples


def _info(it: JobFacts, now: float) -> Iterator[Sample]:
    yield {"id": it.standing.job, "phase": it.standing.phase, "version": it.version}, 1


def _status(it: JobFacts, now: float) -> Iterator[Sample]:
    yield {}, {str(status): status is it.standing.status for status in Status}


def _failures(it: JobFacts, now: float) -> Iterator[Sample]:
    for kind, times in (it.tally.failures if it.tally is not None else {}).items():
        yield {"code": kind.code, "verdict": kind.verdict, "cause": kind.cause}, times


def _goodput(it: JobFacts, now: float) -> Iterator[Sample]:
    known = it.goodput(now)
    if known is not None and known.share is not None:
        yield {}, known.share


def _parts(it: JobFacts, now: float) -> Iterator[Sample]:
    known = it.goodput(now)
    for part, seconds in (known.parts if known is not None else {}).items():
        yield {"part": str(part)}, seconds


def _wall(it: JobFacts, now: float) -> Iterator[Sample]:
    if (known := it.goodput(now)) is not None:
        yield {}, known.wall


def _uncommitted(it: JobFacts, now: float) -> Iterator[Sample]:
    if (known := it.goodput(now)) is not None:
        yield {}, known.uncommitted


def _sign_of_life(it: JobFacts, now: float) -> Iterator[Sample]:
    if it.signed_at is not None and not it.has_ended:
        yield {}, max(0.0, now - it.signed_at)


def _quarantined(it: JobFacts, now: float) -> Iterator[Sample]:
    yield {}, sum(each.until + it.state.epoch > now for each in it.state.quarantine.entries)


METRICS: Sequence[MetricDefinition] = (
    MetricDefinition("job", "info", "The job.", _info, ("id", "phase", "version")),
    MetricDefinition(
        "status",
        "stateset",
        "What the supervisor does, or did last: see `supervise_supervisor_up`.",
        _status,
        ("supervise_status",),
    ),
    MetricDefinition(
        "exit_code",
        "gauge",
        "The exit code; there is none while the job has not ended.",
        _one(lambda it: it.state.exit_code),
    ),
    MetricDefinition(
        "needs_person",
        "gauge",
        "1: the job cannot go on until a person acts, because it failed for good, or its "
        "supervisor is stopped or hangs.",
        _one(lambda it: bool(it.needs_a_person)),
    ),
    MetricDefinition(
        "supervisor_up",
        "gauge",
        "1: a supervisor watches over the job. It is 0 also after the end of the job.",
        _one(lambda it: it.is_supervised),
    ),
    MetricDefinition(
        "sign_of_life_age_seconds",
        "gauge",
        "How old the supervisor's last sign of life is, in `status.json` or `lease.json`.",
        _sign_of_life,
        unit="seconds",
    ),
    MetricDefinition(
        "attempts", "counter", "Attempts that were started.", _one(lambda it: it.state.attempt)
    ),
    MetricDefinition(
        "restarts",
        "counter",
        "Restarts of the phase that were charged, whatever progress there was between.",
        _one(lambda it: it.standing.restarts_in_all),
    ),
    MetricDefinition(
        "restarts_charged",
        "gauge",
        "Restarts in a row that were charged, without a new committed checkpoint.",
        _one(lambda it: it.standing.restarts),
    ),
    MetricDefinition(
        "restarts_left",
        "gauge",
        "How many more restarts the budget has, if no new checkpoint is committed.",
        _one(lambda it: max(0, it.standing.max_num_restarts - it.standing.restarts)),
    ),
    MetricDefinition(
        "restarts_limit",
        "gauge",
        "The restart budget: `max_num_restarts`.",
        _one(lambda it: it.standing.max_num_restarts),
    ),
    MetricDefinition(
        "preemptions_charged",
        "gauge",
        "Preemptions in a row that were charged, without a new committed checkpoint.",
        _one(lambda it: it.standing.preemptions),
    ),
    MetricDefinition(
        "failures",
        "counter",
        "Failed attempts, by the code of the verdict, the verdict and the cause.",
        _failures,
        ("code", "verdict", "cause"),
    ),
    MetricDefinition(
        "step",
        "gauge",
        "The last completed step that is known.",
        _one(lambda it: it.step),
    ),
    MetricDefinition(
        "target_step",
        "gauge",
        "The last step of the phase.",
        _one(lambda it: it.target_step),
    ),
    MetricDefinition(
        "loss", "gauge", "The loss, if the program reports it.", _one(lambda it: it.live.loss)
    ),
    MetricDefinition(
        "steps_per_second",
        "gauge",
        "The rate of the training, as the supervisor sees it.",
        _one(lambda it: it.live.steps_per_second),
    ),
    MetricDefinition(
        "data_wait",
        "gauge",
        "The share of the time in which training waits for data, if the program reports it.",
        _one(lambda it: it.live.data_wait),
    ),
    MetricDefinition(
        "mfu",
        "gauge",
        "The model FLOPs utilisation, if the program reports it.",
        _one(lambda it: it.live.mfu),
    ),
    MetricDefinition(
        "eta_seconds",
        "gauge",
        "The time until the training is complete, at that rate.",
        _one(lambda it: it.live.eta_seconds),
        unit="seconds",
    ),
    MetricDefinition(
        "committed_step",
        "gauge",
        "The highest step ever committed in the phase.",
        _one(lambda it: it.standing.highest_committed),
    ),
    MetricDefinition(
        "committed_timestamp_seconds",
        "gauge",
        "The Unix time at which that step was seen committed.",
        _one(lambda it: it.tally.committed_at if it.tally is not None else None),
        unit="seconds",
    ),
    MetricDefinition("goodput_ratio", "gauge", "The goodput, from 0 to 1.", _goodput, unit="ratio"),
    MetricDefinition(
        "wall_time_seconds",
        "gauge",
        "The wall time since the first start.",
        _wall,
        unit="seconds",
    ),
    MetricDefinition(
        "wall_time_part_seconds",
        "gauge",
        "Where the wall time went: the parts add up to it. A part may become smaller, because "
        "steps that are lost were productive before.",
        _parts,
        ("part",),
        unit="seconds",
    ),
    MetricDefinition(
        "uncommitted_seconds",
        "gauge",
        "How much of the productive time is in no checkpoint yet.",
        _uncommitted,
        unit="seconds",
    ),
    MetricDefinition(
        "devices",
        "gauge",
        "The rung, as a number of devices.",
        _one(lambda it: it.standing.num_devices),
    ),
    MetricDefinition(
        "devices_full",
        "gauge",
        "The full rung, as a number of devices.",
        _one(lambda it: it.standing.max_num_devices),
    ),
    MetricDefinition(
        "units",
        "gauge",
        "Hosts of the full rung, or devices where one host has them all.",
        _one(lambda it: it.num_units or None),
    ),
    MetricDefinition(
        "quarantined_units", "gauge", "Hosts or devices in quarantine now.", _quarantined
    ),
    MetricDefinition(
        "damaged_checkpoints",
        "counter",
        "Damaged checkpoints that the job has moved aside.",
        _one(lambda it: it.state.num_damaged),
    ),
)
READABLE = MetricDefinition(
    "journal_readable",
    "gauge",
    "0: the journal of the job is damaged or gone, so all other metrics of the job are missing.",
    lambda it, now: (({}, 1.0),),
)
BUILD = MetricDefinition(
    "build", "info", "The supervise that exports these metrics.", lambda it, now: (), ("version",)
)
"""It is the only one without the label of a job."""


class JobMetrics(Collector):
    """Collects the metrics of all jobs whenever Prometheus asks."""

    def __init__(self, seen: Callable[[], Mapping[str, Seen]], now: Callable[[], float]) -> None:
        """`seen` returns what was seen last of each job, by its name."""
        self._seen = seen
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        now, seen = self._now(), self._seen()
        yield InfoMetricFamily(BUILD.family, BUILD.meaning, {"version": __version__})
        readable = _family(READABLE)
        for name, it in seen.items():
            _add(readable, READABLE, name, {}, not isinstance(it, Unreadable))
        yield readable
        for metric in METRICS:
            family = _family(metric)
            for name, it in seen.items():
                if isinstance(it, JobFacts):
                    for labels, value in metric.samples(it, now):
                        _add(family, metric, name, labels, value)
            yield family


_Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily | StateSetMetricFamily


def _family(metric: MetricDefinition) -> _Family:
    name, help_text = metric.family, metric.meaning
    match metric.kind:
        case "counter":
            return CounterMetricFamily(name, help_text, labels=(JOB, *metric.labels))
        case "info":
            return InfoMetricFamily(name, help_text, labels=(JOB,))
        case "stateset":
            return StateSetMetricFamily(name, help_text, labels=(JOB,))
    labels = (JOB, *metric.labels)
    return GaugeMetricFamily(name, help_text, labels=labels, unit=metric.unit)


def _add(
    family: _Family,
    metric: MetricDefinition,
    job: str,
    labels: Mapping[str, str],
    value: float | Mapping[str, bool],
) -> None:
    if isinstance(family, InfoMetricFamily):
        family.add_metric([job], dict(labels))
    elif isinstance(family, StateSetMetricFamily):
        assert isinstance(value, Mapping)
        family.add_metric([job], dict(value))
    else:
        assert not isinstance(value, Mapping)
        family.add_metric([job, *(labels[name] for name in metric.labels)], float(value))
