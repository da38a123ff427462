"""Rules about the host and what it gives the job: devices, checkpoints, disks, limits."""

from __future__ import annotations

from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules.rule import (
    FATAL,
    LOW,
    MEDIUM,
    NO_OOM_KILL,
    NO_SPACE,
    POLICY,
    RESTART,
    Rule,
)
from supervisor.diagnosis.rules.wording import KILLED_NOT_FOR_MEMORY

DISK_FULL = "disk-full"
_SILENTLY, _SHORT_WRITE = "disk-full-silently", "short-write"
FULL_DISK_RULES = frozenset({DISK_FULL, _SILENTLY, _SHORT_WRITE})
"""Names of the rules after whose failures the supervisor makes room on the disk. A `Failure` has
the name of its rule."""

_LIMIT = "a limit of the host is reached"
_LIMIT_REASON = "The host refused memory, files or processes; that may pass, or it is too low."
_LIMIT_ADVICE = "Look at ulimit, /dev/shm and the memory of the host or container."
_KILLED = r"^(?:\S+: line \d+: +\d+ )?Killed(?: |$)"
"""What a shell prints for a process that SIGKILL ended."""

RULES = (
    Rule(
        "devices-missing",
        RESTART,
        "fewer devices than there should be",
        "The backend found fewer devices than the attempt was started for; they may come back.",
        "None needed where the ladder has a smaller rung; else give the job what it asks for.",
        types=("DevicesMissing",),
        transient=True,
        hardware=True,
    ),
    Rule(
        "devices-differ",
        FATAL,
        "devices found differ from the config",
        "The backend found more devices than trainer.init.devices asks for.",
        "Correct trainer.init.devices, or show the job only as many as it asks for "
        "(CUDA_VISIBLE_DEVICES, TPU_VISIBLE_CHIPS).",
        types=("mesh.DevicesDiffer",),
        certain=True,
    ),
    Rule(
        "no-usable-checkpoint",
        FATAL,
        "every checkpoint is damaged",
        "The files of every checkpoint differ from what was saved; only a person may decide to "
        "start from the beginning.",
        "Put an undamaged copy in place, or do as the message says to start from the beginning; "
        "then run the same command again. Suspect the storage.",
        types=("NoUsableCheckpointError",),
    ),
    Rule(
        "foreign-checkpoint",
        FATAL,
        "the checkpoints may be another program's",
        "No checkpoint can be restored, and some are not known to be this job's; only a person may "
        "decide to ignore them for good.",
        "Move what is not this job's away, or choose another trainer.init.checkpoint.directory; "
        "then run the same command again.",
        types=("ForeignCheckpointError",),
        certain=True,
    ),
    Rule(
        "unmarked-checkpoint",
        FATAL,
        "a checkpoint lacks the mark of its commit",
        "A step newer than all committed checkpoints has no commit marker. It may be a copy, and "
        "further training would overwrite it.",
        "Do as the message says: complete the copy and add the mark, or remove the step; then run "
        "the same command again.",
        types=("UnmarkedCheckpointError",),
        certain=True,
    ),
    Rule(
        "checkpoint-unreadable",
        RESTART,
        "storage or network trouble",
        "The newest step cannot be read now, so it may be a committed checkpoint. Restoring an "
        "older one would discard it.",
        "See that the checkpoint that the message names can be read, or move it away.",
        types=("UnreadableCheckpointError",),
        transient=True,
    ),
    Rule(
        "fenced",
        RESTART,
        "the job has another owner",
        "The trainer could not see that its supervisor still owns the job, so it stopped "
        "committing checkpoints.",
        "None needed where another supervisor has the job; else see that the file with its owner "
        "can be read.",
        types=("FencedError",),
        transient=True,
    ),
    Rule(
        "ended-by-scheduler",
        RESTART,
        "the scheduler took the machines away",
        "The scheduler ended the job to run another one, for a node, or because its time is over.",
        "None needed where the scheduler starts it again.",
        charge=Charge.PREEMPTIONS,
        # Slurm's slurmd/slurmstepd/req.c; submitit's job_environment.py
        patterns=(
            r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|NODE FAILURE|JOB REQUEUE|TIME LIMIT)",
            r"\bthis job is preempted\b",
        ),
        transient=True,
    ),
    Rule(
        DISK_FULL,
        POLICY,
        "disk full",
        "No space was left on the device; it may be freed.",
        "Free space where the message says, else under model_dir (or enlarge /dev/shm).",
        patterns=(
            r"(?i)no space left on device|disk quota exceeded",
            r"(?i)(?:not enough|insufficient|no) (?:free |available )?(?:disk )?space\b",
            r"(?i)(?:disk|volume|filesystem|device) (?:is )?full\b",
            r"os_error_code='(?:28|122)'|\[Errno (?:28|122)\]|(?i:errno = (?:28|122)\b)",
        ),
        transient=True,
    ),
    Rule(
        _SILENTLY,
        POLICY,
        "disk full",
        "The disk of model_dir is full, and the error is about a write, although it names another "
        "cause.",
        "Free space under model_dir.",
        patterns=(r"(?i)\b(?:write|save|saving|flush|close|bus error|input/output)",),
        facts=(NO_SPACE,),
        transient=True,
    ),
    Rule(
        _SHORT_WRITE,
        POLICY,
        "disk full",
        "Less was written than there was to write: as a rule the disk is full, or a quota is.",
        "Look for room where the program writes (df, quota), and free some.",
        patterns=(
            # numpy tofile (ctors.c, convert.c); torch inline_container.cc; HDF5 H5FDsec2.c
            r"\b\d+ requested and \d+ written|problem writing element \d+ to file",
            r"unexpected pos \d+ vs|(?i:file write failed)",
            r"(?i)unable to extend file properly|bytes actually written",
            # Go's io.ErrShortWrite, GNU tar
            r"(?i)\bshort write\b|\bwrote only \d|"
            r"(?:could not|couldn't|cannot|failed to) write \d+ bytes",
            r"(?i)\bwrote \d+ (?:bytes )?(?:of|out of|instead of) \d+",
        ),
        transient=True,
        confidence=MEDIUM,
    ),
    Rule(
        "resource-limit",
        POLICY,
        _LIMIT,
        _LIMIT_REASON,
        _LIMIT_ADVICE,
        types=("*MemoryError", "ObjectStoreFullError"),
        patterns=(r"^(?!.*(?i:cuda|hip|hbm|device|gpu|tpu))",),
        transient=True,
    ),
    Rule(
        "rank-killed",
        POLICY,
        "killed",
        "torchrun says that SIGKILL ended one of its ranks: the kernel sent it for memory, or a "
        "person, or the platform.",
        "If it comes back, look for the kernel's out-of-memory killer (dmesg).",
        patterns=(r"\bfailed \(exitcode: -9\) local_rank|\bSignal 9 \(SIGKILL\) received by PID",),
        transient=True,
        confidence=LOW,
    ),
    Rule(
        "killed-told",
        POLICY,
        *KILLED_NOT_FOR_MEMORY,
        patterns=(_KILLED,),
        facts=(NO_OOM_KILL,),
        transient=True,
        confidence=LOW,
    ),
    Rule(
        "resource-limit-text",
        POLICY,
        _LIMIT,
        _LIMIT_REASON,
        _LIMIT_ADVICE,
        patterns=(
            r"\[Errno (?:11|12|23|24|27)\]|os_error_code='(?:11|12|23|24|27)'",
            r"(?i)too many open files|cannot allocate memory|file too large\b",
            r"(?i)can't start new thread(?! at interpreter)|std::bad_alloc|"
            r"pthread_create\(\) failed",  # XLA's tsl/platform/default/env.cc
            r"(?i)(?:unable|failed) to (?:create|start|spawn) (?:a )?(?:new )?(?:thread|process)",
            r"(?i)resource temporarily unavailable",
            r"(?i)(?:insufficient|out of|enlarge|raise your|limited by) ?(?:the )?shared memory",
            r"(?i)/dev/shm\b.{0,80}(?:full|too small|space|limit|size)|Bus error",
            r"(?i)exceed\w* .{0,30}memory limit",
            r"OutOfMemoryError: (?:Task|Actor|\d+ [Ww]orkers?)|node running low on memory",
            r"(?i)(?:exit ?code:?|signal:?|returncode:?|status:?) -9\b",
            r"(?i)killed by (?:the )?(?:kernel'?s? )?oom|\bOOMKilled\b|signal: killed",
            r"(?i)\boom-kill:|\b\d+ oom[-_ ]kill",
            # the kubelet's eviction manager
            r"node was low on resource: |\bcondition: \[\w+Pressure\]|"
            r"local storage usage exceeds",
            _KILLED,
            r"(?i)object store (?:is )?(?:full|memory)|unable to allocate .{1,40} for an array",
        ),
        transient=True,
    ),
)
