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

STATE_NOT_FINITE = "state-not-finite"
_LIMIT = "a limit of the host is reached"
_LIMIT_REASON = "The host refused memory, files or processes; that may pass, or it is too low."
_LIMIT_ADVICE = "Look at ulimit, /dev/shm and the memory of the host or container."
KILLED = (
    r"^(?:\S+: line \d+: +\d+ )?Killed(?: |$)|"
    r"^g?make(?:\[\d+\])?: \*\*\* \[[^\]]{1,300}\] (?:Killed|Error 137)(?: |$)"
)
"""What a shell or make prints for a process that SIGKILL ended."""
_TOLD_KILLS = (
    r"\bfailed \(exitcode: -9\) local_rank|\bSignal 9 \(SIGKILL\) received by PID",  # torchrun
    r"(?i)(?:exit ?code:?|signal:?|returncode:?|status:?) -9\b|signal: killed",
    KILLED,
)

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
        "unusable-reward",
        FATAL,
        "the reward function cannot be used",
        "trainer.init.grpo.reward names no function, or one that does not return a number for each "
        "completion; it will not next time either.",
        "Mend the function that the message names, or trainer.init.grpo.reward.",
        types=("rewards.UnusableRewardError",),
        certain=True,
    ),
    Rule(
        "reward-not-finite",
        FATAL,
        "a reward is NaN or Inf",
        "The same completion is made again, and the function will most likely say the same of it.",
        "Have the reward function return a finite number for the completion in the message.",
        types=("rewards.RewardNotFiniteError",),
    ),
    Rule(
        "bad-data",
        FATAL,
        "the data is not as the config says",
        "A record of the data cannot be used, or there is too little data: the same is read again.",
        "Mend or remove the record that the message names, or correct the keys of fit.",
        types=("supervisor.config.training.data_files.DataError",),
        certain=True,
    ),
    Rule(
        "damaged-tokens",
        RESTART,
        "the stored tokens of the data are damaged",
        "The file of tokens changed after it was written. Nothing was trained on the damage, and "
        "the next attempt writes the file again.",
        "None needed; if it comes back, suspect the disk or the memory of the machine.",
        types=("token_store.DamagedTokensError",),
        transient=True,
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
        "pretrained-model",
        FATAL,
        "the pretrained model cannot be used",
        "The folder of init.model.pretrained, or of init.tokenizer, does not hold what the job "
        "needs of it: reading it again changes nothing.",
        "Do as the message says: mostly download the model again, or name another one; then run "
        "the same command again.",
        # No more than a guess: a file that is not there may be on a mount that is lost.
        types=("PretrainedError",),
    ),
    Rule(
        "weights-not-finite",
        FATAL,
        "the weights to start from hold NaN or Inf",
        "The model or the checkpoint that training would start from holds numbers that are not "
        "finite, and loading it again changes nothing.",
        "Do as the message says: download the model again, mend the array that it names, or start "
        "from an earlier checkpoint. It is no batch, so init.loop.skip_bad_batches cannot help.",
        types=("not_finite.WeightsNotFiniteError",),
        certain=True,
    ),
    Rule(
        STATE_NOT_FINITE,
        FATAL,
        "NaN or Inf in the state to be saved",
        "The losses and gradients up to this step were finite, but the message names arrays of the "
        "state that are not.",
        "Frozen weights come from init.model.pretrained, start_from or a checkpoint: look there. "
        "Trained parameters and the optimizer's state overflow if steps are too large: lower the "
        "learning rate, or lower init.optimizer.clip_norm. init.loop.skip_bad_batches cannot "
        "help, since no loss tells of it.",
        # A guess: memory of a device may have been wrong once.
        types=("inflight.StateNotFiniteError",),
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
            r"(?i)killed by (?:the )?(?:kernel'?s? )?oom|\bOOMKilled\b",
            r"(?i)\boom-kill:|\b\d+ oom[-_ ]kill",
            # the kubelet's eviction manager
            r"node was low on resource: |\bcondition: \[\w+Pressure\]|"
            r"local storage usage exceeds",
            r"(?i)object store (?:is )?(?:full|memory)|unable to allocate .{1,40} for an array",
        ),
        transient=True,
    ),
    Rule(
        "killed-told",
        POLICY,
        *KILLED_NOT_FOR_MEMORY,
        patterns=_TOLD_KILLS,
        facts=(NO_OOM_KILL,),
        transient=True,
        confidence=LOW,
    ),
    Rule(
        "rank-killed",
        POLICY,
        "killed",
        "The text says that SIGKILL ended a rank or a helper process: the kernel sent it for "
        "memory, or a person, or the platform.",
        "If it comes back, look for the kernel's out-of-memory killer (dmesg).",
        patterns=_TOLD_KILLS,
        transient=True,
        confidence=LOW,
    ),
)
