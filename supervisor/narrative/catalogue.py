"""Every event of the log: its name, its meaning and its keys. A public interface.

Tools rely on these names: an event that exists keeps its name and its keys; new ones may be added.
`python -m supervisor.narrative.document` renders this as docs/reference/events.md. A running
supervisor does not import it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.outcome import Verdict

COMMON = {
    "time": "text: the time of the event, on the wall clock, with its zone",
    "level": "text: `info`, `warning` or `error`",
    "source": "text: what the event is about: `main` (the job) or `attempt N`",
    "event": "text: the name of the event, from the tables below",
    "text": "text: a sentence for people, which may change with every version",
}
"""The keys that every event has."""

KEYS = {
    "address": "text: the address of the cluster's head, or `auto`; or where the job is shown over "
    "HTTP",
    "advice": "text: what a person should do",
    "after": "text: the value in the config now, as JSON, shortened; null: the key is not set",
    "attempt": "number: the number of the attempt",
    "attempts": "number: how many attempts the job has had so far",
    "before": "text or number: the earlier value: a number of devices, a value of the config as "
    "JSON, shortened (null: the key was not set), or a version",
    "bound": "number: the highest loss that would have been usual",
    "bytes": "number: a size in bytes",
    "cause": "text: what happened, in a few words",
    "certain": "true or false: true if the program is wrong by construction, so a FATAL ends "
    "the job at once; false if the verdict is a guess, or is not FATAL",
    "changed": "text: what changed, in words",
    "charge": "text: what the failure is charged to: `restarts`, `preemptions` or `nothing`",
    "code": "text or number: a stable code: the name of the rule that judged a failure, the "
    "exit code of a rank (null: not known, or a signal killed it) or of the job, the source of "
    "a stop, or the code of a notice",
    "cpu_seconds": "number: seconds of CPU time that the process used in these `seconds`",
    "detail": "text: what the event is about: the words of the one who asked, a pattern, a "
    "limit, a fault or a repair",
    "directory": "text: the phase's directory, relative to model_dir; of `job-place`, model_dir "
    "on this machine",
    "ending_step": "number: the last completed step that was reported; null: none was reported",
    "exception": "text: the exception",
    "failure": "object: the failure with all its fields; null: nothing failed",
    "files": "texts: the damaged files in a checkpoint; of many, the first ones by name",
    "forgiven": "number: how many charged failures no longer count, because the job made progress",
    "found": "true or false: true if the probe saw the unit, and it does not work; false if it is "
    "missing, or nothing could be found out about it alone",
    "from_snapshot": "true or false: true if the attempt resumed from a snapshot in memory",
    "goodput": "number: the share of the time that became committed steps, from 0 to 1",
    "healthy": "number: how many healthy devices are not in quarantine",
    "highest": "number: the highest step that was ever committed in the phase",
    "host": "text: the name of a host",
    "job": "text: the id of the job",
    "kept": "text: the file in model_dir that keeps what was cut off",
    "key": "text: the config key that changed, or that the event is about",
    "kind": "text: the kind of device, or of standby (`imports` or `ready`)",
    "limit": "number: how many occurrences of the same failure end the job",
    "longest_save": "number: the duration of the longest save so far, in seconds",
    "loss": "number: the loss of the step",
    "lost_steps": "number: how many completed steps must run again, because they came after the "
    "newest checkpoint or the restored state; null: not known",
    "max_num_devices": "number: the number of devices of the full rung; null: not known",
    "max_num_preemptions": "number: how many preemptions are allowed without progress",
    "max_num_restarts": "number: how many restarts are allowed without progress",
    "max_total_restarts": "number: how many restarts the phase may have in all; null: no limit",
    "metrics": "object: numbers by name, as the program reported them",
    "newest_committed_step": "number: the newest committed step at that time; null: no "
    "checkpoint was found",
    "next_attempt": "number: the number of the next attempt",
    "not_running": "number: the seconds between runs of the supervisor, which are no part of the "
    "goodput",
    "notice_seconds": "number: the length of the notice of a preemption, in seconds; null: not "
    "known",
    "num_devices": "number: the number of devices; null: as many as the config gives",
    "num_phases": "number: how many phases the job has",
    "num_units": "number: how many devices or hosts the phase has",
    "num_workers": "number: how many workers the attempt has",
    "number": "number: how many standbys, reports or processes the event is about",
    "odd_ranks": "text: the ranks that stand elsewhere than most, such as `3, 7-9`; empty: there "
    "is no such majority",
    "parts": "object: of `goodput`, the seconds of each part of the time "
    "([which](../explanation/goodput.md)); else of each part of the recovery, by name: "
    "`earlier attempts` (those that ended before a step), `detect`, `stop`, `clean up`, "
    "`backoff`, `probe`, `capacity`, `decide`, `start`, `standby`, `imports`, "
    "`backend`, `restore`, `compile`, `first step`, and `program` (work in "
    "no stage that was reported)",
    "peers": "number: the median of the other ranks' seconds",
    "phase": "text: the name of the phase",
    "phase_number": "number: the position of the phase in the job, from 1",
    "phases": "texts: the names of all phases",
    "pid": "number: the id of a process",
    "pids": "numbers: the ids of processes",
    "place": "text: a file, a directory, a bucket or a line of code",
    "places": "texts: each place with its ranks, such as `0-2: /home/me/train.py:81 in step`",
    "platform": "text: the platform of the devices: `cpu`, `gpu` or `tpu`",
    "preemptions": "number: how many preemptions were charged since the last progress",
    "program": "text: the name of a compiled program",
    "rank": "number: the rank of the worker",
    "ranks": "numbers: the ranks of the workers",
    "reason": "text: why it happened",
    "restarts": "number: how many restarts were charged since the last progress",
    "restarts_in_all": "number: how many restarts were charged since the phase began",
    "root_cause": "text: the exception, status or exit by which the failure was judged",
    "rungs": "numbers: the numbers of devices that the ladder has",
    "saved": "true or false: true if a new checkpoint was committed",
    "seconds": "number: a duration in seconds: of what happened, or of what begins now",
    "signal": "text: the signal that killed the rank, e.g. `SIGKILL` (null: none), or that came to "
    "the supervisor",
    "signature": "text: a name of the failure, which is the same when it comes again; null: it "
    "has none",
    "stage": "text: the last stage that the workers reported; null: they reported none",
    "standby": "true or false: true if standbys became the workers",
    "starting_step": "number: the step at which the attempt began; null: not known",
    "status": "text: how the job ended: `SUCCEEDED`, `FAILED` or `DRAINED` (`code` 79: a person "
    "stopped it); an attempt may also end as `MADE_WAY` (for a larger rung or a fresh attempt, or "
    "off hosts that go) or `LOST` (its supervisor ended before it)",
    "step": "number: a step: the last completed, restored or committed one; null: none is known",
    "step_seconds": "number: the seconds of a whole step",
    "steps_progressed": "number: how many steps the attempt completed; null: not known",
    "stream": "text: where the program wrote the line: `output` (its stdout and stderr are one)",
    "times": "number: how often the failure has come",
    "uncommitted": "number: the seconds of training that is in no checkpoint yet",
    "unit": "text: the name of a device or host",
    "units": "texts: the names of devices or hosts; null: all of the phase",
    "usual": "number: the median of the losses before it",
    "verdict": "text: " + ", ".join(f"`{each}`" for each in Verdict),
    "version": "text: the version of supervise, as `supervise --version` says it; null: not known",
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
            "A supervisor has started and owns the job.", ("job", "phases", "version")
        ),
        "supervisor-lost": Kind(
            "The previous supervisor ended before the job did, and left no record of it: it was "
            "killed, its machine was lost, or it could not write (exit code 74).",
            ("attempt",),
        ),
        "supervisor-failed": Kind(
            "The supervisor cannot go on: it kills the workers and ends.", ("reason",)
        ),
        "job-resumed": Kind(
            "A later supervisor goes on with the job; the keys are its attempts and its budget "
            "so far.",
            ("attempts", "step", *BUDGET),
        ),
        "job-ended": Kind(
            "The run ends; `status` and `code` say whether the job is complete.",
            ("status", "code", "reason", "failure"),
        ),
        "goodput": Kind(
            "How much of the job's wall time, so far, became training that is kept, and where the "
            "rest went; told at the end of a run.",
            ("goodput", "seconds", "not_running", "uncommitted", "parts"),
        ),
        "counts-reset": Kind(
            "The job had failed for good and was started again, so its counts start at zero.",
            ("code",),
        ),
        "attempts-unrecorded": Kind(
            "Attempts up to `attempt` have folders, but the journal does not know them; their "
            "numbers are not used again.",
            ("attempt",),
        ),
        "checkpoints-gone": Kind(
            "The checkpoint of the `highest` committed step is gone; `step` is the newest that "
            "is left (null: none).",
            ("step", "highest"),
        ),
        "checkpoint-without-journal": Kind(
            "There is no journal, but a committed checkpoint, from which training goes on.",
            ("step",),
        ),
        "phase-starting": Kind("A phase is about to start.", ("phase", "reason")),
        "phase-began": Kind(
            "A phase began, in a directory of its own.",
            ("phase", "directory", "step", "max_num_restarts", "phase_number", "num_phases"),
        ),
        "budget-used": Kind(
            "A failure was charged; the keys are what the phase has spent since its last progress.",
            BUDGET,
        ),
        "livelock": Kind(
            "The same failure comes after each new checkpoint, so the restart budget never runs "
            "out. It is a warning if `goodput` is below 0.8.",
            ("root_cause", "times", "restarts_in_all", "seconds", "goodput", "advice"),
        ),
        "stop-requested": Kind("Somebody asked the job to stop.", ("code", "detail")),
        "restart-requested": Kind("Somebody asked for a fresh attempt.", ("detail",)),
        "save-requested": Kind("Somebody asked for a checkpoint.", ("detail",)),
        "stop-postponed": Kind(
            "The job was asked to stop with a long notice: it trains on until a save must begin.",
            ("seconds", "longest_save"),
        ),
        "stop-hurried": Kind(
            "Somebody asked the job to stop again, so the grace period is shortened.", ("code",)
        ),
        "maintenance-announced": Kind(
            "The platform has announced maintenance of this machine.", ("detail",)
        ),
        "preemption-announced": Kind(
            "A preemption of this machine is announced, so the supervisor starts nothing.",
            ("reason",),
        ),
        "notification-failed": Kind(
            "A message of `init.notify` does not reach its receiver (`key`). Further ones are not "
            "told of until one is delivered.",
            ("key", "reason"),
        ),
        "notice-used": Kind(
            "An attempt was stopped by the notice of a preemption; `saved` says whether the "
            "notice was long enough for a save. It follows `attempt-stopped`.",
            ("attempt", "seconds", "saved", "step", "lost_steps", "notice_seconds", "ending_step"),
        ),
    },
    "An attempt": {
        "attempt-started": Kind(
            "An attempt starts.",
            ("attempt", "phase", "step", "num_devices", "units", "reason", "max_num_devices"),
        ),
        "workers-started": Kind(
            "All workers of the attempt are running.",
            ("attempt", "pids", "standby", "num_devices", "place"),
        ),
        "launch-failed": Kind(
            "The attempt's workers could not be started.", ("attempt", "status", "failure")
        ),
        "attempt-ended": Kind(
            "All processes of the attempt have ended. Its record in summary.json has these keys.",
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
            "The worker of a rank ended.", ("attempt", "rank", "code", "signal", "stage", "step")
        ),
        "attempt-failed": Kind(
            "The attempt failed; the keys are the failure's root cause and verdict.",
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
            "All processes of an attempt that was asked to stop have ended.",
            ("attempt", "saved", "step", "lost_steps", "ending_step"),
        ),
        "traceback": Kind("One line of the root cause's traceback.", ("attempt", "rank")),
        "verdict": Kind(
            "The verdict about the failure, and the reason for it.",
            ("attempt", "code", "verdict", "certain", "reason"),
        ),
        "verdict-grounds": Kind(
            "Why a FATAL is certain, or why it is a guess; of a guess, `seconds` is the wait "
            "before one more attempt.",
            ("attempt", "code", "verdict", "certain", "reason", "signature", "seconds"),
        ),
        "failure-repeated": Kind(
            "A failure with the same signature came again without progress in between.",
            ("attempt", "signature", "times", "limit"),
        ),
        "advice": Kind("What a person should do about the failure.", ("attempt", "code", "advice")),
        "success-doubted": Kind(
            "The program succeeded, but its output ends in a traceback, or in a shell's line that "
            "it was killed.",
            ("attempt", "exception"),
        ),
        "hang-detected": Kind(
            "The workers hang: they reported nothing for too long.",
            ("attempt", "stage", "step", "reason"),
        ),
        "silence-excused": Kind(
            "The workers may be silent for `seconds` more; until then their silence is no hang.",
            ("seconds", "reason"),
        ),
        "workers-told-to-stop": Kind(
            "The supervisor sent SIGTERM to the workers; SIGKILL follows after `seconds`.",
            ("attempt", "seconds", "reason"),
        ),
        "workers-killed": Kind(
            "The supervisor sent SIGKILL to the processes that were left.",
            ("attempt", "pids", "reason"),
        ),
        "backoff": Kind(
            "The job waits for `seconds` before the next attempt.",
            ("seconds", "reason", "next_attempt"),
        ),
        "recovered": Kind(
            "The attempt completed its first step after a restart.",
            ("attempt", "step", "seconds", "parts", "lost_steps"),
        ),
        "not-resumed": Kind(
            "After a restart the program goes on at a step below the newest checkpoint, so it did "
            "not restore it.",
            ("attempt", "step", "newest_committed_step"),
        ),
    },
    "What the program reports": {
        "output": Kind(
            "One line of rank 0's output (only with `--log-format json`). Bytes that are not "
            r"UTF-8 are written as `\xNN`.",
            ("attempt", "rank", "stream"),
        ),
        "output-unshown": Kind(
            "Lines of output were dropped: nobody read them, or the disk was full.", ("bytes",)
        ),
        "stage-entered": Kind("A worker began a stage.", ("attempt", "rank", "stage")),
        "devices-found": Kind(
            "The program's backend has found these devices.",
            ("attempt", "rank", "num_devices", "platform", "kind"),
        ),
        "state-restored": Kind(
            "A worker restored a checkpoint; step null: there was none, so it starts from the "
            "beginning.",
            ("attempt", "rank", "step"),
        ),
        "snapshot-restored": Kind(
            "A worker restored a snapshot in memory.",
            ("attempt", "rank", "step", "newest_committed_step"),
        ),
        "program-compiled": Kind(
            "A worker compiled a program.", ("attempt", "rank", "program", "seconds")
        ),
        "program-loaded": Kind(
            "A worker loaded a compiled program instead of compiling it.",
            ("attempt", "rank", "program", "seconds", "place"),
        ),
        "evaluated": Kind(
            "A worker completed an evaluation.", ("attempt", "rank", "step", "metrics")
        ),
        "worker-notice": Kind(
            "The program has a message for people; `code` is the program's own code for it, or "
            "null.",
            NOTICE,
        ),
        "batch-skipped": Kind("The trainer skips a batch that gave NaN or Inf.", NOTICE),
        "metrics-unwritable": Kind("The trainer cannot write metrics.jsonl now.", NOTICE),
        "executables-off": Kind("The trainer neither loads nor keeps compiled steps.", NOTICE),
        "executable-not-kept": Kind("The trainer could not keep a compiled step.", NOTICE),
        "executable-removed": Kind(
            "The trainer removed a compiled step that it had kept, because it cannot be used.",
            NOTICE,
        ),
        "checkpoint-damaged": Kind(
            "A damaged checkpoint of this job is taken out of use: by our trainer, or before a "
            "launch (`checkpoint.verify`).",
            (*NOTICE, "place", "reason", "files", "newest_committed_step", "advice"),
        ),
        "checkpoint-not-trusted": Kind(
            "A checkpoint that was saved after the last check for silent corruption that passed is "
            "taken out of use. Its files are as they were committed.",
            NOTICE,
        ),
        "checkpoint-skipped": Kind(
            "The trainer skips a checkpoint that it cannot use. It may be another job's, so it is "
            "not changed.",
            NOTICE,
        ),
        "checkpoint-unverified": Kind(
            "A checkpoint has no manifest, or cannot be read to be verified (`reason`): it is used "
            "without verification.",
            (*NOTICE, "place", "reason"),
        ),
        "checkpoint-verified": Kind(
            "The newest checkpoint is as it was committed (`checkpoint.verify`).",
            ("step", "bytes", "seconds"),
        ),
        "checkpoint-read-broken-off": Kind(
            "The last read of a checkpoint did not complete: it is verified before the next one.",
            NOTICE,
        ),
        "checkpoint-not-pinned": Kind(
            "The trainer could not have the checkpoint before a failure kept for a replay.",
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
            "A checkpoint is committed, but it cannot be verified later.", (*NOTICE, "reason")
        ),
        "snapshot-not-used": Kind(
            "A snapshot in memory cannot be used: a checkpoint is restored instead.", NOTICE
        ),
        "save-awaited": Kind(
            "SIGTERM came, and the next save of the program is the last one "
            "(`command.save_on_sigterm`).",
            NOTICE,
        ),
        "rollout-mesh-chosen": Kind(
            "Completions are made on devices of their own, which do not train "
            "(`grpo.rollout`): the text says on which.",
            NOTICE,
        ),
        "save-failed": Kind(
            "A save of the trainer failed for a moment: training goes on, and another follows.",
            NOTICE,
        ),
        "save-interval-chosen": Kind(
            "The trainer has chosen the time between checkpoints, or changed it by much "
            "(`checkpoint.every: auto`).",
            NOTICE,
        ),
        "save-on-sigterm-off": Kind(
            "SIGTERM does not save: this version of Orbax is not known "
            "(`command.save_on_sigterm`).",
            NOTICE,
        ),
        "resume-differs": Kind(
            "A library that the program uses cannot resume to the same numbers: the text says why, "
            "and what follows. Told once by each supervisor.",
            NOTICE,
        ),
        "loss-not-finite": Kind(
            "The loss of `step` is NaN or Inf, and the one before was finite; "
            "`newest_committed_step` is of the newest checkpoint from before it.",
            ("attempt", "step", "newest_committed_step"),
        ),
        "data-slow": Kind(
            "Training waits for data for more than 2% of the time, and has for half a minute.",
            NOTICE,
        ),
        "data-unusable": Kind(
            "A record of data that are read later is not as the config says. The job goes on; the "
            "attempt that reads it will fail.",
            ("phase",),
        ),
        "loss-spike": Kind(
            "The loss of `step` stands out from those before it, of which `usual` is the median: "
            "more than `bound` is not usual. Nothing is decided by it.",
            ("attempt", "step", "loss", "usual", "bound"),
        ),
        "silent-corruption": Kind(
            "A check of a step found that a device has computed wrongly without an error.", NOTICE
        ),
        "snapshots-stopped": Kind("The trainer takes no more snapshots.", NOTICE),
        "worker-told-to-stop": Kind(
            "A worker got a SIGTERM that the supervisor did not send.", ("attempt", "rank")
        ),
        "checkpoints-found": Kind(
            "The program commits its checkpoints in `place`, which the config does not name: new "
            "steps are looked for there from now on.",
            ("attempt", "place", "forgiven"),
        ),
        "checkpoints-elsewhere": Kind(
            "The program also commits checkpoints in `place`, which do not count: only those in "
            "the directory that was found do.",
            ("place",),
        ),
        "checkpoint-incomplete": Kind(
            "An attempt has left a newest checkpoint which is not complete; after exit code 0, it "
            "wrote that itself.",
            ("place",),
        ),
        "checkpoint-committed": Kind(
            "A checkpoint was committed.", ("attempt", "step", "forgiven")
        ),
        "reports-left-out": Kind(
            "The log left out reports of the worker, because there were too many.", ("number",)
        ),
    },
    "Devices": {
        "devices-probing": Kind(
            "The devices or hosts are being probed. While the job waits for more of them, each "
            "repeated probe has `capacity-awaited` alone, unless something has changed.",
            ("units", "reason"),
        ),
        "devices-probed": Kind(
            "A probe ended; `units` are those that are healthy.", ("units", "num_units")
        ),
        "devices-not-probed": Kind(
            "The probe failed, so nothing is known about the devices.", ("reason",)
        ),
        "device-bad": Kind(
            "A device or host cannot be used; if it was found, it is in quarantine for `seconds`.",
            ("unit", "reason", "found", "seconds"),
        ),
        "rung-changed": Kind(
            "The next attempt has more or fewer devices: of the `healthy` ones that are not in "
            "quarantine, what one of the `rungs` of the ladder can use. `reason`: why a rung that "
            "would fit better is out of use.",
            ("before", "num_devices", "healthy", "rungs", "reason"),
        ),
        "rung-disabled": Kind(
            "The program cannot run on this number of devices, so the job uses this rung no more.",
            ("num_devices", "reason"),
        ),
        "driver-missing": Kind("The driver of the accelerator was not found.", ("reason",)),
        "tpu-lock-unusable": Kind(
            "Something else is in the place of libtpu's lock file, or the file is not ours.",
            ("place",),
        ),
        "larger-rung-seen": Kind(
            "Enough devices for a larger rung are healthy again; the job waits a while before "
            "it uses them."
        ),
        "quarantine-cleared": Kind(
            "A person took devices or hosts out of quarantine; empty `units`: all of them.",
            ("units",),
        ),
        "capacity-awaited": Kind(
            "Too few devices are healthy for any rung: the job waits, and probes them again.",
            ("seconds", "reason"),
        ),
    },
    "Processes": {
        "bootstrap-left-out": Kind("The program runs without the bootstrap.", ("reason", *NOTICE)),
        "standby-ready": Kind("A standby is ready to become a worker.", ("kind", "pid")),
        "standby-used": Kind(
            "Standbys become workers of the new attempt.", ("kind", "number", "num_workers")
        ),
        "standby-unfit": Kind(
            "The standby does not fit the next attempt, which starts without it."
        ),
        "standby-limited": Kind(
            "A standby leaves out a part of what it could prepare.", ("reason",)
        ),
        "standby-lost": Kind(
            "The standby is gone, so the next attempt starts without it.", ("reason",)
        ),
        "standby-failed": Kind(
            "No standby can be prepared; attempts of this phase start without one.", ("reason",)
        ),
        "prefetch-began": Kind(
            "Compiling for another rung ahead of time has begun.", ("pid", "num_devices")
        ),
        "prefetch-done": Kind(
            "The program for a rung of `num_devices` was compiled ahead of time.", ("num_devices",)
        ),
        "prefetch-failed": Kind(
            "Compiling for a rung of `num_devices` ahead of time failed; a restart that needs "
            "it compiles then.",
            ("num_devices", "reason"),
        ),
        "prefetch-waits": Kind(
            "Compiling for a rung of `num_devices` ahead of time waits for free memory.",
            ("num_devices",),
        ),
        "prefetch-off": Kind("Nothing is compiled ahead of time.", ("reason",)),
        "prober-failed": Kind(
            "The process that probes devices could not be started beforehand.", ("reason",)
        ),
        "sigterm-reaction": Kind(
            "How the workers react to SIGTERM, and so whether they can save. Where a person asked, "
            "the reason `interrupt` means that they get SIGINT in its place; `jax` means that jax "
            "keeps the signal for whoever asks it; `ends-first` and `passes-on` are of a shell or "
            "wrapper, which does not save itself.",
            ("ranks", "reason"),
        ),
        "process-lives-on": Kind(
            "A process lives on after its worker has ended, and gets SIGTERM too; pid null: "
            "there are more, which have no event each.",
            ("pid", "reason", "number"),
        ),
        "program-not-asked": Kind(
            "Programs are killed that got no SIGTERM: a wrapper above them got it, and neither "
            "ended nor, as it seems, passed it on.",
            ("pids",),
        ),
        "process-unkillable": Kind(
            "Processes do not end although they were killed; the supervisor ends in `seconds` "
            "if they have not.",
            ("pids", "seconds"),
        ),
        "rank-killed": Kind(
            "A rank has failed, but its process does not end, so the supervisor kills it.",
            ("rank",),
        ),
        "rank-not-ended": Kind(
            "A program of one rank has failed, but its process does not end. It is left alone: "
            "what keeps it may save.",
            ("rank",),
        ),
        "workers-idle": Kind(
            "The workers have done nothing for some minutes, and nothing in the config says what "
            "that means.",
            ("seconds",),
        ),
        "losses-doubtful": Kind(
            "Lines that were taken for steps show a loss that is NaN or Inf. Nothing is decided by "
            "such lines.",
            ("step", "number"),
        ),
        "straggler": Kind(
            "The host of a rank needs so much longer than its peers for its part of each step that "
            "all wait for it. `seconds`, `peers` and `step_seconds` are of one step.",
            ("rank", "host", "seconds", "peers", "step_seconds"),
        ),
        "message-refused": Kind(
            "A worker sent a message that the supervisor does not understand.", ("rank", "reason")
        ),
        "evidence-unusable": Kind(
            "The failure record, the stacks or the output of a rank cannot be read.",
            ("rank", "reason"),
        ),
        "judging-failed": Kind(
            "A bug of supervise made it fail to judge a failure; please report it.", ("reason",)
        ),
        "stacks-dumped": Kind(
            "The stacks of a rank that hangs, or of the programs below it if it is a shell or "
            "another wrapper, are written to `place`: Python, native or both.",
            ("rank", "pid", "place", "cpu_seconds", "seconds"),
        ),
        "stacks-compared": Kind(
            "Where the ranks of a hanging group stand, by their Python stacks: `places` has a text "
            "for each place, and `odd_ranks` the ranks that stand elsewhere than most.",
            ("places", "odd_ranks"),
        ),
        "stacks-missing": Kind(
            "The stacks of a rank that hangs are not written, or the native ones are not.",
            ("rank", "pid", "reason", "cpu_seconds", "seconds"),
        ),
        "output-held": Kind("A process outside the job still holds the worker's output open."),
        "pattern-slow": Kind("A pattern takes too long on a line, which is skipped.", ("detail",)),
        "pattern-off": Kind(
            "A pattern took too long too often: it is off for the rest of the attempt.", ("detail",)
        ),
        "steps-recognised": Kind(
            "Steps are read from lines of the output such as `detail`; nobody reports them, and "
            "no pattern is given.",
            ("phase", "detail"),
        ),
        "steps-dropped": Kind(
            "Lines such as `detail` were read as steps, and are none: their number fell.",
            ("phase", "detail"),
        ),
        "pattern-unmatched": Kind("The progress pattern found no step in the output.", ("detail",)),
        "device-in-use": Kind("A process keeps an accelerator open.", ("reason",)),
        "host-lost": Kind(
            "A host was lost, or cut off from the supervisor: its guard kills its workers.",
            ("unit", "reason"),
        ),
        "leader-slept": Kind(
            "The supervisor of a job on many hosts did not run, and answered no host: their guards "
            "kill the workers.",
            ("seconds",),
        ),
        "host-unusable": Kind("A host of the cluster is not used.", ("unit", "reason")),
        "cluster-awaited": Kind(
            "The cluster of the hosts does not answer yet, and the job waits for it before it "
            "starts; `reason` may be empty.",
            ("address", "seconds", "reason"),
        ),
        "hosts-left": Kind(
            "The config has no hosts any more, and workers may still run on those that it had: the "
            "next attempt waits.",
            ("seconds",),
        ),
        "cluster-lost": Kind(
            "The cluster does not answer; workers run on while their agents are answered.",
            ("reason",),
        ),
        "guard-lost": Kind("The guard process died or failed.", ("reason",)),
        "ray-cluster-open": Kind(
            "The Ray cluster has no token, so everybody who reaches it can run code in it."
        ),
        "ray-helper-replaced": Kind(
            "The process that speaks to Ray ended or hung, and another one took its place.",
            ("reason",),
        ),
        "leftovers-killed": Kind(
            "Processes of an earlier supervisor were still running, and were killed.", ("pids",)
        ),
        "leftovers-left": Kind(
            "Processes that may belong to another job were not killed.", ("pids", "reason")
        ),
        "leftovers-unknown": Kind(
            "The record of an earlier supervisor's processes cannot be read, so none of them is "
            "killed.",
            ("reason",),
        ),
        "workers-not-still": Kind(
            "Some workers could not be paused at once after a jump of the clock: they wait in "
            "the kernel, and pause after that."
        ),
        "workers-continued": Kind(
            "The workers run again after they were paused for `seconds`.", ("seconds",)
        ),
        "http-shown": Kind("`--http`: the job is shown there.", ("address",)),
        "http-exposed": Kind(
            "`--http`: others than users of this machine can see the job there.", ("address",)
        ),
        "http-not-shown": Kind(
            "`--http`: the job is not shown there, or not any more. It goes on.",
            ("address", "reason"),
        ),
        "cgroups-off": Kind("Processes are started without cgroups from now on.", ("reason",)),
        "snapshots-size": Kind("The memory that the snapshots take.", ("bytes",)),
        "snapshots-dropped": Kind(
            "The snapshots in memory are dropped, and not used.", ("reason",)
        ),
        "snapshots-off": Kind(
            "There are no snapshots, because no memory could be made for them.", ("reason",)
        ),
        "drill-armed": Kind("A fault injection of the config (`faults`) is armed.", ("detail",)),
        "drill-fired": Kind("A fault injection of the config has happened.", ("detail",)),
        "allocation-end-unusable": Kind(
            "The environment names no usable end of the batch system's allocation.", ("reason",)
        ),
        "signal-ignored": Kind(
            "A signal came that asks the supervisor for nothing, such as SIGUSR1: the job goes on. "
            "It is told once for each signal.",
            ("signal",),
        ),
        "preemption-unheard": Kind(
            "The source of preemption notices does not answer.", ("reason",)
        ),
        "request-unheard": Kind(
            "A person's request to the job (such as `supervise quarantine clear`) cannot be read.",
            ("reason",),
        ),
        "observer-failed": Kind(
            "An observer of the job (such as run.log or status.json) failed and is off; the job "
            "goes on.",
            ("reason",),
        ),
    },
    "Files and buckets": {
        "file-unwritable": Kind("A file cannot be written.", ("place", "reason")),
        "file-restored": Kind(
            "Somebody changed or deleted a file of the supervisor, which was written again.",
            ("place",),
        ),
        "file-set-aside": Kind(
            "A file of another origin had the name of one of ours, and was renamed.", ("place",)
        ),
        "file-emptied": Kind("A file was far larger than its limit, and was emptied.", ("place",)),
        "place-unreadable": Kind(
            "The directory of the checkpoints cannot be read.", ("place", "reason")
        ),
        "checkpoints-unwatched": Kind(
            "The directory of the checkpoints cannot be watched.", ("place", "reason")
        ),
        "checkpoint-refused": Kind(
            "The marker or the metadata of a checkpoint cannot be read, so it does not count.",
            ("reason",),
        ),
        "checkpoints-unseen": Kind(
            "The program seems to save, or the budget is spent before any checkpoint was seen: no "
            "new one is found in `place`.",
            ("place",),
        ),
        "outputs-deleted": Kind(
            "The disk was full, so the output of an old attempt was deleted.",
            ("attempt", "directory", "bytes"),
        ),
        "room-not-made": Kind(
            "A file that should make room on the disk could not be deleted.", ("place", "reason")
        ),
        "limit-applied": Kind(
            "A limit of the config (`limits`) was exceeded, so old files were deleted.",
            ("detail", "bytes"),
        ),
        "limits-not-applied": Kind(
            "The limits cannot be enforced now; the supervisor tries again.", ("reason",)
        ),
        "compile-cache-off": Kind("The compilation cache cannot be used.", ("reason",)),
        "compilation-not-kept": Kind(
            "A compiled program could not be kept in the compilation cache.", ("program", "reason")
        ),
        "compilation-removed": Kind(
            "A compiled program in the compilation cache is damaged, and was removed.",
            ("program", "reason"),
        ),
        "compiled-programs-kept-here": Kind(
            "Compiled programs are not copied to the bucket, as the config does not say whom to "
            "trust."
        ),
        "bucket-programs-refused": Kind(
            "Compiled programs in the bucket are not used.", ("reason",)
        ),
        "bucket-object-left-out": Kind(
            "An object in the bucket is damaged or has an unknown name, and is not used.",
            ("place",),
        ),
        "bucket-copy-failed": Kind("A file could not be copied to the bucket.", ("reason",)),
        "lease-overdue": Kind(
            "The lease on model_dir is not renewed in time, because `place` cannot be written. "
            "What the supervisor writes there waits; if that lasts, it kills the workers and ends.",
            ("place", "seconds"),
        ),
        "lease-renewed": Kind("The lease on model_dir is renewed again.", ("place",)),
        "bucket-unwritable": Kind(
            "The bucket cannot be written; the supervisor tries again.", ("reason",)
        ),
        "bucket-writable": Kind("The bucket can be written again."),
        "checkpoints-not-locked": Kind(
            "The directory of checkpoints cannot be locked: another job that saves there is not "
            "noticed.",
            ("place", "reason"),
        ),
        "stdout-lost": Kind("Standard output is not used any more.", ("reason",)),
        "stdout-unwritable": Kind("Standard output cannot be written.", ("reason",)),
    },
    "Everything else": {
        "config-doubtful": Kind(
            "A part of the config is valid, but is probably a mistake.", ("code",)
        ),
        "hang-unnoticeable": Kind(
            "The program reports no steps, so a hang in it cannot be detected.", ("phase",)
        ),
        "config-changed": Kind(
            "A value of the config differs from that of the last run.",
            ("changed", "key", "before", "after"),
        ),
        "version-changed": Kind(
            "The previous supervisor had another version.", ("version", "before")
        ),
        "journal-torn": Kind(
            "The journal's last line was incomplete, and was cut off.", ("bytes", "kept")
        ),
        "journal-repaired": Kind("A person repaired the journal.", ("detail",)),
        "journal-not-compacted": Kind(
            "The journal could not be compacted; the supervisor tries again.", ("reason",)
        ),
        "summary-incomplete": Kind(
            "summary.json lacks earlier attempts, because the journal cannot be read.", ("reason",)
        ),
        "lock-ignored": Kind(
            "A program that is no supervisor holds a lock on model_dir, which is ignored.",
            ("reason",),
        ),
        "success-by-exit-code": Kind(
            "The config does not define the success of a phase, so exit code 0 is a success.",
            ("phase",),
        ),
        "defaults-chosen": Kind(
            "The job has a command and no config, so these values were chosen for it; null: the "
            "command line gives the value.",
            ("place", "max_num_restarts"),
        ),
        "job-place": Kind("The job is in a bucket.", ("place", "directory")),
        "files-exposed": Kind("Other users may change the job's files.", ("place",)),
        "checkpoints-unmarked": Kind(
            "Checkpoints lack their commit markers, so they do not count as committed.", ("place",)
        ),
        "run-log-unwritable": Kind("run.log cannot be written.", ("reason",)),
    },
}
"""The events by name, in groups with a title."""


def kinds() -> dict[str, Kind]:
    """Returns all events by name."""
    return {name: kind for group in EVENTS.values() for name, kind in group.items()}
