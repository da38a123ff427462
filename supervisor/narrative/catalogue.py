"""Every event of the log: its name, its meaning and its keys. A public interface.

Tools rely on these names: an event that exists keeps its name and its keys; new ones may be added.
`python -m supervisor.narrative.document` renders this as docs/events.md. A running supervisor does
not import it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.outcome import Verdict

COMMON = {
    "time": "text: when, on the wall clock, with its zone",
    "level": "text: `info`, `warning` or `error`",
    "source": "text: who says it, `main` or `attempt N`",
    "event": "text: the name of the event, from the table below",
    "text": "text: the sentence for people, which may change with every version",
}
"""The keys that every event has."""

KEYS = {
    "advice": "text: what a person should do",
    "attempt": "number: which attempt",
    "attempts": "number: how many attempts there were so far",
    "after": "text: the value in the config now, as JSON, shortened; null: not set",
    "before": "text or number: what there was before: the number of devices, the value in the "
    "config as JSON, shortened (null: not set), or the version",
    "bytes": "number: how many bytes",
    "cause": "text: what happened, in a few words",
    "certain": "truth: whether a FATAL is wrong by construction, and not only looks so",
    "charge": "text: what the failure is charged to: `restarts`, `preemptions` or `nothing`",
    "changed": "text: what changed",
    "code": "text or number: what happened, as a stable code: the rule's name of a failure, the "
    "exit code of a rank (null: none is known, or a signal) or of the job, the source of a stop",
    "cpu_seconds": "number: seconds of CPU time that it used in these `seconds`",
    "detail": "text: what was said, where that is more than the code",
    "directory": "text: the phase's directory, relative to model_dir",
    "exception": "text: the exception",
    "ending_step": "number: the last completed step that was told; null: none was",
    "failure": "object: all that is known of the failure, as an object; null: nothing failed",
    "from_snapshot": "truth: whether it went on from a snapshot in memory",
    "forgiven": "number: how many charged failures no longer count",
    "highest": "number: the highest step that was ever committed in the phase",
    "found": "truth: whether the unit is there at all",
    "goodput": "number: share of the time that became committed steps, from 0 to 1",
    "job": "text: the job's identity",
    "key": "text: the key of the config",
    "kind": "text: what kind of device, or of standby, it is",
    "limit": "number: how many times end the job",
    "longest_save": "number: seconds that the longest save so far took",
    "lost_steps": "number: steps run after the state that is restored; null: not known",
    "max_num_devices": "number: the devices of the full rung; null: not known",
    "max_num_preemptions": "number: preemptions allowed without progress",
    "max_num_restarts": "number: restarts allowed without progress",
    "max_total_restarts": "number: restarts allowed in this phase in all; null: any number",
    "metrics": "object: numbers by name, as the program reported them",
    "next_attempt": "number: the attempt that comes next",
    "num_devices": "number: how many devices; null: as the config says",
    "newest_committed_step": "number: the newest committed step then; null: none is seen",
    "num_phases": "number: how many phases the job has",
    "notice_seconds": "number: the seconds that the notice gives; null: not known",
    "num_units": "number: how many devices or hosts there should be",
    "num_workers": "number: how many workers the attempt has",
    "number": "number: how many",
    "parts": "object: seconds of each part of the recovery, by name",
    "phase": "text: the name of the phase",
    "phase_number": "number: which of the phases it is, from 1",
    "phases": "texts: the names of all phases",
    "kept": "text: the file that has what was cut off, in model_dir",
    "pid": "number: process id",
    "pids": "numbers: process ids",
    "place": "text: where: a file, a directory, a line of code",
    "platform": "text: the platform of the devices: `cpu`, `gpu`, `tpu`",
    "preemptions": "number: preemptions charged since the last progress",
    "program": "text: the name of the compiled program",
    "rank": "number: the worker's rank",
    "ranks": "numbers: the workers' ranks",
    "reason": "text: why",
    "restarts": "number: restarts charged since the last progress",
    "restarts_in_all": "number: restarts charged in this phase",
    "root_cause": "text: the exception, status or exit that the failure was judged by",
    "saved": "truth: whether a new checkpoint was committed",
    "seconds": "number: seconds that it took, or takes",
    "signal": "text: the signal that killed the rank, e.g. `SIGKILL`; null: none",
    "signature": "text: the failure's fingerprint; null: it has none",
    "stage": "text: what the worker was doing; null: it does not say",
    "standby": "truth: whether a standby took over",
    "status": "text: as what the job ended: `SUCCEEDED`, `FAILED` or `DRAINED`; an attempt also "
    "as `MADE_WAY` (for a larger rung) or `LOST` (its supervisor ended before it)",
    "starting_step": "number: the step that the attempt began at; null: nothing tells",
    "step": "number: a step: the last completed, restored or committed one; null: none is known",
    "steps_progressed": "number: how many steps the attempt got further",
    "stream": "text: where the program wrote it: `output` (its stdout and stderr are one)",
    "times": "number: how many times",
    "unit": "text: the device or host",
    "units": "texts: devices or hosts; null: all",
    "version": "text: the version of supervise, as `supervise --version` says it; null: not known",
    "verdict": "text: " + ", ".join(f"`{each}`" for each in Verdict),
}
"""The type and the meaning of each key."""

BUDGET = (
    "restarts",
    "max_num_restarts",
    "preemptions",
    "max_num_preemptions",
    "restarts_in_all",
    "max_total_restarts",
)
"""The keys of `event_line.budget_keys`."""
NOTICE = ("attempt", "rank", "code", "step")
"""The keys of a notice that a worker sends to people."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of event."""

    meaning: str
    keys: tuple[str, ...] = ()


EVENTS: dict[str, dict[str, Kind]] = {
    "The job": {
        "supervisor-started": Kind(
            "A supervisor owns the job from here on.", ("job", "phases", "version")
        ),
        "supervisor-lost": Kind("The supervisor before this one was killed.", ("attempt",)),
        "supervisor-failed": Kind("The supervisor cannot go on, and ends.", ("reason",)),
        "job-resumed": Kind("What was spent so far.", ("attempts", "step", *BUDGET)),
        "job-ended": Kind(
            "The job ends, for this run at least.", ("status", "code", "reason", "failure")
        ),
        "counts-reset": Kind("The job had failed for good; counts start at zero.", ("code",)),
        "attempts-unrecorded": Kind(
            "Attempts up to this one have folders, but no record.",
            ("attempt",),
        ),
        "checkpoints-gone": Kind(
            "Checkpoints of this job are not where it looks for them; step null: none is.",
            ("step", "highest"),
        ),
        "checkpoint-without-journal": Kind("Training goes on from a checkpoint.", ("step",)),
        "phase-starting": Kind("A phase is about to start.", ("phase", "reason")),
        "phase-began": Kind(
            "The phase has its directory.",
            ("phase", "directory", "step", "max_num_restarts", "phase_number", "num_phases"),
        ),
        "budget-used": Kind("What the phase has spent since its last progress.", BUDGET),
        "livelock": Kind(
            "The same failure comes after every checkpoint.",
            ("root_cause", "times", "restarts_in_all", "seconds", "goodput", "advice"),
        ),
        "stop-requested": Kind("Somebody asked the job to stop.", ("code", "detail")),
        "stop-postponed": Kind(
            "Training goes on until a save must begin.", ("seconds", "longest_save")
        ),
        "stop-hurried": Kind("The grace period is shortened.", ("code",)),
        "maintenance-announced": Kind("Something will happen to this machine.", ("detail",)),
        "preemption-announced": Kind("A preemption is announced; nothing starts.", ("reason",)),
        "notice-used": Kind(
            "Whether a save fitted into the notice of a preemption; after `attempt-stopped`.",
            ("attempt", "seconds", "saved", "step", "lost_steps", "notice_seconds", "ending_step"),
        ),
    },
    "An attempt": {
        "attempt-started": Kind(
            "An attempt is started.",
            ("attempt", "phase", "step", "num_devices", "units", "reason", "max_num_devices"),
        ),
        "workers-started": Kind(
            "Every worker runs.", ("attempt", "pids", "standby", "num_devices", "place")
        ),
        "launch-failed": Kind(
            "The attempt's workers could not be started.", ("attempt", "status", "failure")
        ),
        "attempt-ended": Kind(
            "No process of the attempt is left: its record in summary.json.",
            (
                "attempt",
                "status",
                "starting_step",
                "from_snapshot",
                "ending_step",
                "steps_progressed",
                "newest_committed_step",
                "failure",
            ),
        ),
        "rank-ended": Kind(
            "A worker ended.", ("attempt", "rank", "code", "signal", "stage", "step")
        ),
        "attempt-failed": Kind(
            "The attempt failed, for this root cause.",
            (
                "attempt",
                "rank",
                "step",
                "code",
                "verdict",
                "certain",
                "cause",
                "root_cause",
                "place",
                "signature",
                "charge",
            ),
        ),
        "attempt-stopped": Kind(
            "The attempt was asked to stop, and is gone.",
            ("attempt", "saved", "step", "lost_steps", "ending_step"),
        ),
        "traceback": Kind("A line of the root cause's traceback.", ("attempt", "rank")),
        "verdict": Kind(
            "What the failure was taken for.",
            ("attempt", "code", "verdict", "certain", "reason"),
        ),
        "verdict-grounds": Kind(
            "Why a FATAL is certain, or a guess.",
            ("attempt", "code", "verdict", "certain", "reason", "signature", "seconds"),
        ),
        "failure-repeated": Kind(
            "The same signature came again.", ("attempt", "signature", "times", "limit")
        ),
        "advice": Kind("What a person should do.", ("attempt", "code", "advice")),
        "success-doubted": Kind(
            "It succeeded, and its output ends in a traceback.",
            ("attempt", "exception"),
        ),
        "hang-detected": Kind(
            "Nothing was heard for too long.", ("attempt", "stage", "step", "reason")
        ),
        "silence-excused": Kind("The workers may be silent for longer.", ("seconds", "reason")),
        "workers-told-to-stop": Kind("SIGTERM was sent.", ("attempt", "seconds", "reason")),
        "workers-killed": Kind("SIGKILL was sent.", ("attempt", "pids", "reason")),
        "backoff": Kind("Nothing happens for so long.", ("seconds", "reason", "next_attempt")),
        "recovered": Kind(
            "A step is complete again.", ("attempt", "step", "seconds", "parts", "lost_steps")
        ),
    },
    "What the program reports": {
        "output": Kind(
            "A line of rank 0's output (with `--log-format json` alone). Bytes that are no UTF-8 "
            r"are `\xNN`.",
            ("attempt", "rank", "stream"),
        ),
        "output-unshown": Kind(
            "Lines were dropped: nobody read them, or the disk was full.", ("bytes",)
        ),
        "stage-entered": Kind("A worker began a stage.", ("attempt", "rank", "stage")),
        "devices-found": Kind(
            "What the program runs on.", ("attempt", "rank", "num_devices", "platform", "kind")
        ),
        "state-restored": Kind(
            "A checkpoint was restored; step null: none.", ("attempt", "rank", "step")
        ),
        "snapshot-restored": Kind(
            "A snapshot in memory was used.", ("attempt", "rank", "step", "newest_committed_step")
        ),
        "program-compiled": Kind(
            "A program was compiled.", ("attempt", "rank", "program", "seconds")
        ),
        "program-loaded": Kind(
            "A compiled program was loaded.", ("attempt", "rank", "program", "seconds", "place")
        ),
        "evaluated": Kind("An evaluation is done.", ("attempt", "rank", "step", "metrics")),
        "worker-notice": Kind(
            "The program says something to people; code: a word of its own for it, or null.", NOTICE
        ),
        "batch-skipped": Kind("The trainer passes over a batch that gave NaN or Inf.", NOTICE),
        "executables-off": Kind("Compiled steps are neither loaded nor kept.", NOTICE),
        "executable-not-kept": Kind("A compiled step could not be kept.", NOTICE),
        "executable-removed": Kind("A kept step cannot be used, and is removed.", NOTICE),
        "checkpoint-damaged": Kind(
            "The trainer takes a damaged checkpoint of this job out of use.", NOTICE
        ),
        "checkpoint-skipped": Kind(
            "The trainer skips a checkpoint that it cannot use. It may be another job's, so it is "
            "not changed.",
            NOTICE,
        ),
        "checkpoint-unverified": Kind(
            "A checkpoint has no manifest: the trainer uses it without verification.", NOTICE
        ),
        "checkpoint-read-broken-off": Kind(
            "The last read of a checkpoint did not complete: it is verified before the next one.",
            NOTICE,
        ),
        "checkpoint-not-removed": Kind(
            "The trainer could not remove an old checkpoint, or the rest of a killed save.", NOTICE
        ),
        "checkpoints-foreign": Kind(
            "The checkpoint directory holds things that this job did not save. They are kept.",
            NOTICE,
        ),
        "foreign-set-aside": Kind(
            "Something that this job did not save has a name that a save needs: moved aside.",
            NOTICE,
        ),
        "ledger-unusable": Kind(
            "The record of the steps that this job saved cannot be used: none of them is removed.",
            NOTICE,
        ),
        "manifest-not-written": Kind(
            "A checkpoint is committed, but it cannot be verified later.", NOTICE
        ),
        "snapshot-not-used": Kind(
            "A snapshot in memory cannot be used: a checkpoint is restored instead.", NOTICE
        ),
        "snapshots-stopped": Kind("The trainer takes no more snapshots.", NOTICE),
        "worker-told-to-stop": Kind(
            "A worker got a SIGTERM that the supervisor did not send.", ("attempt", "rank")
        ),
        "checkpoint-committed": Kind("A checkpoint is committed.", ("attempt", "step", "forgiven")),
        "reports-left-out": Kind("Reports of the worker were not shown.", ("number",)),
    },
    "Devices": {
        "devices-probing": Kind("Devices are looked at.", ("units", "reason")),
        "devices-probed": Kind("These are well.", ("units", "num_units")),
        "devices-not-probed": Kind("Nothing could be found out.", ("reason",)),
        "device-bad": Kind(
            "A device or host is not usable.", ("unit", "reason", "found", "seconds")
        ),
        "rung-changed": Kind("The next attempt has more or fewer.", ("before", "num_devices")),
        "rung-disabled": Kind("The program cannot run on so many.", ("num_devices", "reason")),
        "driver-missing": Kind("No driver of the accelerator is seen.", ("reason",)),
        "tpu-lock-unusable": Kind("Something is in the place of libtpu's lock file.", ("place",)),
        "larger-rung-seen": Kind("A larger rung is there again."),
        "quarantine-cleared": Kind("A person wants units used again.", ("units",)),
        "capacity-awaited": Kind("There are too few devices.", ("seconds", "reason")),
    },
    "Processes": {
        "bootstrap-left-out": Kind("The program runs as it is.", ("reason", *NOTICE)),
        "standby-ready": Kind("A standby waits.", ("kind", "pid")),
        "standby-used": Kind("Standbys become the workers.", ("kind", "number", "num_workers")),
        "standby-unfit": Kind("The standby does not fit the next attempt."),
        "standby-lost": Kind("The standby is gone: a cold start.", ("reason",)),
        "standby-failed": Kind("There is no standby.", ("reason",)),
        "prefetch-began": Kind("A program is compiled ahead.", ("pid", "num_devices")),
        "prefetch-done": Kind("It is compiled.", ("num_devices",)),
        "prefetch-failed": Kind("It was not compiled.", ("num_devices", "reason")),
        "prefetch-waits": Kind("Too little memory is free for it.", ("num_devices",)),
        "prefetch-off": Kind("Nothing is compiled ahead.", ("reason",)),
        "prober-failed": Kind("No process waits to look at the devices.", ("reason",)),
        "sigterm-reaction": Kind("What SIGTERM does to workers.", ("ranks", "reason")),
        "process-lives-on": Kind(
            "A process outlives its worker, and gets SIGTERM; pid null: not each is told.",
            ("pid", "reason", "number"),
        ),
        "process-unkillable": Kind("Processes do not end when killed.", ("pids", "seconds")),
        "rank-killed": Kind("A rank has failed and does not end.", ("rank",)),
        "message-refused": Kind("A worker's message is not understood.", ("rank", "reason")),
        "evidence-unusable": Kind("What a rank left cannot be read.", ("rank", "reason")),
        "judging-failed": Kind("A bug of supervise; please report it.", ("reason",)),
        "stacks-dumped": Kind(
            "The stacks of a rank are written.", ("rank", "pid", "place", "cpu_seconds", "seconds")
        ),
        "stacks-missing": Kind("Native stacks cannot be taken.", ("rank", "reason")),
        "output-held": Kind("Somebody outside the job holds the worker's output open."),
        "pattern-slow": Kind("A pattern takes too long in a line.", ("detail",)),
        "pattern-off": Kind("A pattern is not looked for any more.", ("detail",)),
        "pattern-unmatched": Kind("The progress pattern found no step.", ("detail",)),
        "device-in-use": Kind("A process has a chip open.", ("reason",)),
        "guard-lost": Kind("The guard process is gone.", ("reason",)),
        "leftovers-killed": Kind("What an earlier supervisor left was killed.", ("pids",)),
        "leftovers-left": Kind("It may be another job's: it is left alone.", ("pids", "reason")),
        "leftovers-unknown": Kind("What it left is not on record any more.", ("reason",)),
        "workers-not-still": Kind("Some of the workers stand still later."),
        "workers-continued": Kind("The workers go on after they stood still.", ("seconds",)),
        "cgroups-off": Kind("Processes get no cgroup.", ("reason",)),
        "snapshots-size": Kind("What snapshots take of the memory.", ("bytes",)),
        "snapshots-dropped": Kind("Snapshots are not used.", ("reason",)),
        "snapshots-off": Kind("There are no snapshots.", ("reason",)),
        "drill-armed": Kind("The config asks for a fault.", ("detail",)),
        "drill-fired": Kind("The fault happened.", ("detail",)),
        "preemption-unheard": Kind("Who announces preemptions does not answer.", ("reason",)),
        "request-unheard": Kind("What people ask of the job cannot be read.", ("reason",)),
        "observer-failed": Kind("What only looks on failed, and is off.", ("reason",)),
    },
    "Files and buckets": {
        "file-unwritable": Kind("A file cannot be written.", ("place", "reason")),
        "file-restored": Kind("Somebody changed a file: written again.", ("place",)),
        "file-set-aside": Kind("A file that is not ours was renamed.", ("place",)),
        "file-emptied": Kind("A file far beyond its bound.", ("place",)),
        "place-unreadable": Kind("Checkpoints cannot be listed.", ("place", "reason")),
        "checkpoints-unwatched": Kind("Checkpoints cannot be watched.", ("place", "reason")),
        "checkpoint-refused": Kind("A checkpoint is damaged, and is not used.", ("reason",)),
        "checkpoints-unseen": Kind("The program saves, and no checkpoint is seen.", ("place",)),
        "outputs-deleted": Kind(
            "Old output was deleted to make room.", ("attempt", "directory", "bytes")
        ),
        "room-not-made": Kind("A file could not be deleted.", ("place", "reason")),
        "limit-applied": Kind("A limit of `limits` was enforced.", ("detail", "bytes")),
        "limits-not-applied": Kind("The limits cannot be enforced now.", ("reason",)),
        "compile-cache-off": Kind("The compilation cache cannot be used.", ("reason",)),
        "compilation-not-kept": Kind("A compilation was not kept.", ("program", "reason")),
        "compilation-removed": Kind("A kept compilation is damaged.", ("program", "reason")),
        "compiled-programs-kept-here": Kind("Compilations are not in the bucket."),
        "bucket-programs-refused": Kind("Compilations in the bucket are not used.", ("reason",)),
        "bucket-object-left-out": Kind("An object in the bucket is not used.", ("place",)),
        "bucket-copy-failed": Kind("A file is not copied to the bucket.", ("reason",)),
        "bucket-unwritable": Kind("The bucket cannot be written.", ("reason",)),
        "bucket-writable": Kind("The bucket can be written again."),
        "stdout-lost": Kind("Standard output is not used any more.", ("reason",)),
        "stdout-unwritable": Kind("Standard output cannot be written.", ("reason",)),
    },
    "Everything else": {
        "config-doubtful": Kind("Something may not be meant so.", ("code",)),
        "hang-unnoticeable": Kind("A hang of the program cannot be noticed.", ("phase",)),
        "config-changed": Kind(
            "The config is not that of the last run.", ("changed", "key", "before", "after")
        ),
        "version-changed": Kind(
            "The supervisor before this one was of another version.", ("version", "before")
        ),
        "journal-torn": Kind("The journal's last line was incomplete: cut off.", ("bytes", "kept")),
        "journal-repaired": Kind("A person has repaired the journal.", ("detail",)),
        "journal-not-compacted": Kind("The journal stays long for now.", ("reason",)),
        "summary-incomplete": Kind("The summary lacks earlier attempts.", ("reason",)),
        "lock-ignored": Kind("A lock on model_dir is no supervisor's.", ("reason",)),
        "success-by-exit-code": Kind("No success is declared: exit code 0 is taken.", ("phase",)),
        "job-place": Kind("The job is in a bucket.", ("place", "directory")),
        "files-exposed": Kind("Others may change the job's files.", ("place",)),
        "checkpoints-unmarked": Kind("Checkpoints lack their commit markers.", ("place",)),
        "run-log-unwritable": Kind("run.log cannot be written.", ("reason",)),
    },
}
"""The events by name, in groups with a title."""


def kinds() -> dict[str, Kind]:
    """Returns all events by name."""
    return {name: kind for group in EVENTS.values() for name, kind in group.items()}
