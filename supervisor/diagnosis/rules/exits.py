"""Rules about how a process ended, for failures without an error text.

They come last, because exit codes and signals mislead most.
"""

from __future__ import annotations

from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules.rule import (
    FATAL,
    GUARD_LOST,
    LOW,
    MEDIUM,
    NO_OOM_KILL,
    NO_STEP_TOLD,
    OOM_KILLED,
    POLICY,
    RESTART,
    STILL_RUNNING,
    TOLD_TO_STOP,
    Rule,
)
from supervisor.diagnosis.rules.wording import (
    FIX_CONFIG,
    KILLED_NOT_FOR_MEMORY,
    PREEMPTED,
    REFUSED_INSTRUCTION,
    WHO_STOPS_IT,
)

RULES = (
    Rule(
        "guard-lost",
        RESTART,
        "the guard process was killed",
        "The guard process died, and its workers with it: the program is not at fault.",
        "See who killed it: as a rule a person, or the kernel for memory (dmesg).",
        charge=Charge.PREEMPTIONS,
        signals=("SIGKILL",),
        facts=(GUARD_LOST,),
        transient=True,
        culprit=True,
        confidence=MEDIUM,
    ),
    Rule(
        "host-oom-kill",
        POLICY,
        "killed by the kernel for memory",
        "The counter of its cgroup says that the kernel killed a process for memory.",
        "Give the host or container more memory, or load data with fewer workers.",
        signals=("SIGKILL",),
        facts=(OOM_KILLED,),
        transient=True,
        culprit=True,
    ),
    Rule(
        "sigterm",
        RESTART,
        PREEMPTED,
        "Somebody else told the worker to stop: as a rule the machine is being taken away.",
        WHO_STOPS_IT,
        charge=Charge.PREEMPTIONS,
        signals=("SIGTERM",),
        transient=True,
        confidence=MEDIUM,
    ),
    Rule(
        "sigkill",
        POLICY,
        *KILLED_NOT_FOR_MEMORY,
        signals=("SIGKILL",),
        facts=(NO_OOM_KILL,),
        transient=True,
        confidence=LOW,
    ),
    Rule(
        "sigkill-or-memory",
        POLICY,
        "killed",
        "Nobody is told who sends SIGKILL: the kernel for memory, a person, a script, the "
        "platform, or the program itself. The kernel's kills were not counted.",
        "If it comes back, look for the kernel's out-of-memory killer first: `dmesg -T | grep -i "
        "'killed process'`; then in the platform's own log (Slurm's `sacct`, `kubectl describe "
        "pod`); if it dies at the same step again, for `os.kill` in the program.",
        signals=("SIGKILL",),
        transient=True,
        confidence=LOW,
    ),
    Rule(
        "hangup",
        RESTART,
        "its session or its reader went away",
        "The terminal, session or reader of its output is gone; the program is not at fault.",
        "Start it where no session ends it: as a service, or under tmux.",
        signals=("SIGHUP", "SIGPIPE", "SIGINT", "SIGQUIT"),
        transient=True,
        confidence=MEDIUM,
    ),
    Rule(
        "limit-signal",
        POLICY,
        "a limit of the host is reached",
        "The system ended it for using more time, or a larger file, than its limits allow.",
        "Raise the limit (ulimit -t, ulimit -f, or that of the service manager).",
        signals=("SIGXCPU", "SIGXFSZ"),
        transient=True,
        culprit=True,
        confidence=MEDIUM,
    ),
    Rule(
        "bus-error",
        POLICY,
        "a limit of the host is reached",
        "Memory behind a file was not there: as a rule /dev/shm is full, or a file was cut short.",
        "Enlarge /dev/shm (--shm-size), or free some; see that no data file changes meanwhile.",
        signals=("SIGBUS",),
        transient=True,
        culprit=True,
        confidence=LOW,
    ),
    Rule(
        "refused-instruction",
        FATAL,
        *REFUSED_INSTRUCTION,
        signals=("SIGILL", "SIGFPE"),
        culprit=True,
        confidence=MEDIUM,
    ),
    Rule(
        "crash",
        RESTART,
        "native code crashed",
        "Native code crashed; that may not repeat.",
        "Look first at what the program passes to the native code, at the line that the stacks "
        "name (rank*.stacks.txt, else the output). Only if that is right, update or rebuild the "
        "library.",
        signals=("SIGSEGV", "SIGTRAP", "SIGSYS"),
        culprit=True,
        confidence=LOW,
    ),
    Rule(
        "abort",
        RESTART,
        "aborted",
        "Native code ended the process; ranks that lost another do so too.",
        "Read the Python stacks (rank*.stacks.txt) and the end of the worker's output.",
        signals=("SIGABRT",),
        confidence=LOW,
    ),
    Rule(
        "not-executable",
        FATAL,
        "the command cannot be run",
        "A shell or wrapper could not find or run the command.",
        FIX_CONFIG,
        exit_codes=(126, 127),
        confidence=MEDIUM,
    ),
    Rule(
        "ended-on-sigterm",
        RESTART,
        PREEMPTED,
        "The worker ended after a SIGTERM that the supervisor did not send. Usually it has saved, "
        "but its work is not done.",
        f"{WHO_STOPS_IT} If the program sends it when its work is done, `command.success` "
        "(`--success-step N`) must say what proves that.",
        charge=Charge.PREEMPTIONS,
        facts=(TOLD_TO_STOP,),
        transient=True,
        culprit=True,
        confidence=MEDIUM,
    ),
    Rule(
        "background",
        FATAL,
        "the command went on in the background",
        "It exited, but processes that it had started were still running 5 s later.",
        "Run the program in the foreground (no `&`, nohup, setsid or daemon option; end a shell "
        "script with `wait`). If the work was done, declare what proves it, and what is left over "
        "does no harm: a line of the output (`--set 'trainer.command.success.pattern=...'`), or "
        "the last step (`--success-step N`). A step must be reported or committed, or read by "
        "`--set 'trainer.command.progress.pattern=...'`: one that is only recognised in the output "
        "proves nothing.",
        facts=(STILL_RUNNING,),
        confidence=MEDIUM,
    ),
    Rule(
        "no-step-told",
        RESTART,
        "no step was reported",
        "The worker exited with code 0, but `success.step` cannot hold: no step was reported, and "
        "no checkpoint was seen. Steps that are only recognised in the output do not count.",
        "Say how the output tells a step (`--set 'trainer.command.progress.pattern=...'`), where "
        "the program saves (`--set trainer.init.checkpoint.directory=...`), or another `success`.",
        exit_codes=(0,),
        facts=(NO_STEP_TOLD,),
        transient=True,
        confidence=MEDIUM,
    ),
    Rule(
        "early-exit",
        RESTART,
        "ended before its work was done",
        "It exited with code 0, but the success criterion does not hold.",
        "If it comes back, see why the program ends early, or correct `success` "
        "(`--success-step N`).",
        exit_codes=(0,),
        transient=True,
        confidence=MEDIUM,
    ),
    Rule(
        "unknown",
        RESTART,
        "unknown",
        "The cause is not known; another attempt may succeed.",
        "If it comes back, read the worker's output.",
        confidence=LOW,
    ),
)
