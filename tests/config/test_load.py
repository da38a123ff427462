"""Checking a config: every mistake is told with its line, its key, its value and a remedy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.load import EXIT_CODE_PRESETS, OWN_EXIT_CODES
from supervisor.config.problems import ConfigError
from supervisor.config.schema import Phase
from supervisor.config.violations import known_keys
from supervisor.core.exit_codes import ExitCode
from tests.config.files import (
    COMMAND,
    DATA,
    FIT,
    PHASES,
    load,
    problems,
    with_command,
    with_init,
    with_restart,
)

MISTAKES = [
    # --- the top of the file
    ("just text", 'c.yaml:1: is not a mapping (value "just text"); a config starts with'),
    ("- 1\n- 2", "c.yaml:1: is not a mapping (value [1, 2])"),
    ("exit_codes: xpk", "c.yaml:1: trainer: is required"),
    ("trainer:", "c.yaml:1: trainer: has nothing below it; give it `init`"),
    (
        f"trainer: {{init: {{model_dir: m, autorestart: {{max_num_restarts: {'9' * 400}}}}}}}",
        "is an integer of more than 18 digits",
    ),
    ("trainer: []", "c.yaml:1: trainer: is an empty list; give at least one phase"),
    ("trainer: 3", "c.yaml:1: trainer: is not a mapping or a list (value 3)"),
    ("trainer:\n- 3", "c.yaml:2: trainer[0]: each phase is a mapping with the one key"),
    ("trainer:\n- {trainer: {}, name: a}", "c.yaml:2: trainer[0]: each phase is a mapping"),
    (COMMAND + "trainers: 1", "c.yaml:7: trainers: unknown key (value 1); did you mean 'trai"),
    (
        "defaults: {a: 1}\n" + COMMAND,
        'c.yaml:1: defaults: unknown key (value {"a": 1}); a key that '
        "only holds anchors begins with x- (x-defaults)",
    ),
    (COMMAND + "init: {seed: 1}", 'init: unknown key (value {"seed": 1}); it belongs below'),
    (COMMAND + "command: [a]", 'unknown key (value ["a"]); it belongs below `trainer:` (trainer.c'),
    # --- the budget
    (with_restart("max_num_restarts: -1"), "c.yaml:5: trainer.init.autorestart.max_num_rest"),
    (with_restart("max_num_restarts: true"), "should be a valid integer (value true)"),
    (with_restart("max_num_restarts: 3.0"), "should be a valid integer (value 3.0)"),
    (with_restart("max_num_restarts: '3'"), 'should be a valid integer (value "3")'),
    (with_restart("max_num_restarts:"), "should be a valid integer (value null)"),
    (with_restart("{}"), "c.yaml:4: trainer.init.autorestart.max_num_restarts: is required"),
    (
        with_restart("max_num_restarts: 3\nmin_num_csx: 2"),
        "c.yaml:6: trainer.init.autorestart.min_num_csx: unknown key (value 2); "
        "did you mean 'min_num_devices'?",
    ),
    (with_restart("max_num_restarts: 3\nmin_num_devices: 0"), "greater than or equal to 1"),
    (
        with_restart("max_num_restarts: 3\nzzz: 0"),
        "known here: backoff, deadlines, grace_period",
    ),
    (
        with_restart(
            "max_num_restarts: 3\nmin_num_devices: 5",
            with_init("devices: {platform: cpu, count: 4}"),
        ),
        "c.yaml:7: trainer.init.autorestart.min_num_devices: is 5, but the job has only 4",
    ),
    (
        with_restart(
            "max_num_restarts: 3\nmin_num_devices: 9",
            with_init("devices: {platform: tpu, type: v4-16}"),
        ),
        "min_num_devices: is 9, but the job has only 8 devices; at most 8",
    ),
    # --- notifications
    (
        with_init("notify: [{webhook: 'ftp://example.com/SECRET'}]"),
        "notify[0].webhook: is no http:// or https:// URL (value [redacted])",
    ),
    (
        with_init("notify: [{command: [x], webhook: 'http://a/SECRET'}]"),
        "c.yaml:4: trainer.init.notify[0]: give exactly one of command and webhook",
    ),
    (
        with_init("notify: [{webhook: {env: A, url: 'http://a/SECRET'}}]"),
        "give exactly one of url and env",
    ),
    (with_init("notify: [{command: [x], format: json}]"), "format is only for a webhook"),
    (with_init("notify: [{command: [x], on: [fail]}]"), "notify[0].on[0]"),
    # --- limits and trust
    (
        with_init("limits: {outputs: 10 gigs}"),
        "c.yaml:4: trainer.init.limits.outputs: '10 gigs' is not a size such as 500MiB or 10GiB "
        '(value "10 gigs")',
    ),
    (with_init("limits: {records: -1}"), "limits.records: input should be greater than or equal"),
    (with_init("limits: {record: 1GiB}"), "unknown key (value \"1GiB\"); did you mean 'records'?"),
    (
        with_init("compile_cache: {key_file: k, from_bucket: true}"),
        "c.yaml:4: trainer.init.compile_cache: give either key_file or from_bucket: true",
    ),
    (
        with_init("compile_cache: {key_file: 'gs://bucket/key'}"),
        "compile_cache.key_file: is in a bucket; give a file on this machine",
    ),
    # --- workers
    (with_init("workers: 0"), "c.yaml:4: trainer.init.workers: input should be greater than"),
    (
        with_init("workers: 2"),
        "c.yaml:4: trainer.init.workers: is 2, which needs init.devices with a count to share out",
    ),
    (
        with_init("devices: {platform: cpu, count: 8}\nworkers: 3"),
        "c.yaml:5: trainer.init.workers: is 3, which cannot share 8 devices equally; "
        "use one of 1, 2, 4, 8",
    ),
    (
        with_init("devices: {platform: tpu, type: v5e-8}\nworkers: 2"),
        "trainer.init.workers: is 2, but no source shows that so many processes can share a "
        "v5e-8: jax skips its own tests of several processes on a v5e in the cloud "
        "(test_multiprocess.py). Use 1: one process uses all chips of its host",
    ),
    (
        with_init("devices: {platform: tpu, type: v6e-8}\nworkers: 4"),
        "no source shows bounds for that. Use 1 or 2: ",
    ),
    (
        with_init("devices: {platform: tpu, count: 8}\nworkers: 2"),
        "bounds differ from one TPU generation to another: name the type in init.devices. Use 1: ",
    ),
    (
        with_init("devices: {platform: tpu, type: v5e-16}\nworkers: 2"),
        "c.yaml:5: trainer.init.workers: is 2, but all workers run on one host, and v5e-16 has "
        "several: give init.devices.type a slice of one host (v5e-8 at most)",
    ),
    (
        with_restart(
            "max_num_restarts: 3\nstandby: ready",
            with_init("devices: {platform: cpu, count: 2}\nworkers: 2", FIT),
        ),
        "standby: is ready, but several workers must first find one another; use imports or off",
    ),
    (
        with_init("devices: {platform: cpu, count: 2}\nworkers: 2", FIT)
        + "  faults: [{step: 3, rank: 2, signal: SIGKILL}]\n",
        "trainer.faults[0].rank: is 2, but the last rank is 1",
    ),
    # --- standby
    (
        with_restart("max_num_restarts: 3\nstandby: warm"),
        "input should be 'off', 'imports' or 'ready' (value \"warm\")",
    ),
    (
        with_restart("max_num_restarts: 3\nstandby: ready"),
        "c.yaml:6: trainer.init.autorestart.standby: is ready, which only our trainer (fit) can",
    ),
    (
        with_restart(
            "max_num_restarts: 3\nstandby: ready",
            with_init("devices: {platform: tpu, type: v5e-8}", FIT),
        ),
        "standby: is ready, but a TPU belongs to one process at a time; use imports or off",
    ),
    (
        with_restart("max_num_restarts: 1\npreemption: {until: '2027-01-01T00:00'}"),
        "preemption.until: has no time zone: write 2027-01-01T00:00Z for UTC, or an offset",
    ),
    (
        with_restart("max_num_restarts: 1\npreemption: {until: tomorrow}"),
        "preemption.until: is no time: write an ISO time such as 2026-11-30T08:00:00Z",
    ),
    (
        with_command("argv: [a]\nbootstrap: false\nsave_on_sigterm: true"),
        "trainer.command.save_on_sigterm: needs the bootstrap, which is switched off",
    ),
    (
        with_command("argv: [a]\nbootstrap: false\npreload: [numpy]"),
        "trainer.command.preload: needs the bootstrap, which is switched off",
    ),
    (with_command("argv: [a]\npreload: ['import numpy']"), "trainer.command.preload[0]: string"),
    # --- rules of one's own
    (
        with_restart("max_num_restarts: 3\nrules: [{regex: '(', verdict: FATAL}]"),
        "c.yaml:6: trainer.init.autorestart.rules[0].regex: is not a regular expression",
    ),
    (
        with_restart("max_num_restarts: 3\nrules:\n- {regex: x, verdict: FATAL}\n- {regex: y}"),
        "c.yaml:8: trainer.init.autorestart.rules[1].verdict: is required",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{regex: x, verdict: MAYBE}]"),
        "rules[0].verdict: input should be 'RESTART', 'FATAL' or 'POLICY' (value \"MAYBE\")",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{verdict: FATAL}]"),
        "rules[0]: give at least one of type, regex, exit_code, signal and stage",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{signal: SIGFOO, verdict: FATAL}]"),
        "rules[0].signal: 'SIGFOO' is not a signal such as SIGKILL",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{type: 'a b', verdict: FATAL}]"),
        "rules[0].type: 'a b' is not the name of an exception type",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{exit_code: 256, verdict: FATAL}]"),
        "rules[0].exit_code: 256 is no exit code: give one from 0 to 255 (if a signal",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{exit_code: -9, verdict: FATAL}]"),
        "-9 is no exit code: give one from 0 to 255 (if a signal killed it, `signal: SIGKILL`)",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{signal: SIGSTOP, verdict: FATAL}]"),
        "rules[0].signal: 'SIGSTOP' ends no process; give one that does, such as SIGKILL",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{stage: LUNCH, verdict: FATAL}]"),
        "rules[0].stage: input should be 'STARTING'",
    ),
    (
        with_restart("max_num_restarts: 3\nrules: [{regexp: x, verdict: FATAL}]"),
        "rules[0].regexp: unknown key (value \"x\"); did you mean 'regex'?",
    ),
    (
        with_restart("max_num_restarts: 3\nrepeated_failure_limit: -1"),
        "c.yaml:6: trainer.init.autorestart.repeated_failure_limit: input should be greater",
    ),
    # --- durations
    (with_restart("max_num_restarts: 3\ngrace_period: soon"), "'soon' is not a duration such"),
    (with_restart("max_num_restarts: 3\ngrace_period: -1"), "greater than or equal to 0"),
    (with_restart("max_num_restarts: 3\ngrace_period: .inf"), "less than or equal to 604800"),
    (with_restart("max_num_restarts: 3\ngrace_period: 8d"), 'to 604800 (value "8d")'),
    (with_restart("max_num_restarts: 3\ngrace_period: .nan"), "grace_period: input should be"),
    (
        with_restart(f"max_num_restarts: 3\ngrace_period: {10**400}"),
        "grace_period: is an integer of more",
    ),
    (
        with_restart("max_num_restarts: 3\ndeadlines: {LUNCH: 1h}"),
        "c.yaml:6: trainer.init.autorestart.deadlines.LUNCH: input should be 'STARTING', 'INITI",
    ),
    (
        with_restart("max_num_restarts: 3\ndeadlines:\n  TRAINING: soon"),
        "c.yaml:7: trainer.init.autorestart.deadlines.TRAINING: 'soon' is not a duration",
    ),
    (
        with_restart("max_num_restarts: 3\ndeadlines: {TRAINING: 0}"),
        "c.yaml:6: trainer.init.autorestart.deadlines.TRAINING: every attempt would be a hang at "
        "once: leave it out for a learned limit, or raise it (value 0)",
    ),
    (with_restart("max_num_restarts: 3\ndeadlines: {SAVING: 0.0s}"), "would be a hang at once"),
    (with_restart("max_num_restarts: 3\nbackoff: {max: 5s}"), "backoff.max: is below backoff."),
    (with_init("checkpoint: {every: 0}"), "every: is neither auto nor a number of steps nor a"),
    (with_init("checkpoint: {every: 0s}"), "every: is neither auto nor a number of steps nor"),
    (with_init("checkpoint: {every: true}"), "nor a duration such as 5m (value true)"),
    (with_init("checkpoint: {every: 1.5}"), "nor a duration such as 5m (value 1.5)"),
    (with_init("checkpoint: {every: {int: 1}}"), "c.yaml:4: trainer.init.checkpoint.every: is"),
    (with_init("checkpoint: {every: often}"), "every: 'often' is not a duration such as 30s"),
    (
        with_init("checkpoint: {snapshot: {every: 5m}}"),
        "snapshot.every: input should be a valid i",
    ),
    (
        with_init("checkpoint: {snapshot: {every: 0}}"),
        "every: input should be greater than 0 (value 0)",
    ),
    (with_init("checkpoint: {snapshot: {}}"), "trainer.init.checkpoint.snapshot.every: is req"),
    (with_init("checkpoint: {snapshot: {every: 5}}"), "snapshot: snapshots in memory need our tr"),
    (with_init("checkpoint: {pattern: 'ckpt'}"), "checkpoint.pattern: needs exactly one group"),
    (with_init("checkpoint: {pattern: '(a)(b)'}"), "pattern: needs exactly one group, for the st"),
    (with_init("checkpoint: {pattern: '(a'}"), "pattern: is not a regular expression"),
    (with_init("checkpoint: {committed: closed}"), "checkpoint: committed needs a pattern, such"),
    (with_init("checkpoint: {pattern: '(a)', committed: yes}"), "committed: input should be 'cl"),
    (with_init("checkpoint: {pattern: '(a)', marker: x}"), "marker needs committed: marker"),
    (
        with_init("checkpoint: {pattern: '(a)', committed: marker, marker: a/b}"),
        "checkpoint.marker: ",
    ),
    (with_init("checkpoint: {pattern: '(a)'}", FIT), "pattern: is only for a command; our tr"),
    (
        with_init("checkpoint: {pattern: '(a)', directory: 'gs://b/c'}"),
        "checkpoint.committed: must be marker: the checkpoints are in a bucket, and nothing",
    ),
    (
        with_init("checkpoint: {verify: true}", FIT),
        "checkpoint.verify: is only for a command; our trainer (fit) verifies",
    ),
    (
        with_init("checkpoint: {verify: true, directory: 'gs://b/c'}"),
        "checkpoint.verify: must be left out: the checkpoints are in a bucket",
    ),
    (
        with_init("checkpoint: {verify: true, pattern: '(a)'}"),
        "checkpoint: verify is only for the known layouts",
    ),
    (with_init("checkpoint: {keep: 0}"), "keep: input should be greater than 0"),
    # --- places
    (COMMAND.replace("runs/x", "''"), "c.yaml:3: trainer.init.model_dir: string should have"),
    (COMMAND.replace("runs/x", "ftp://b/x"), "model_dir: is on no object store that is supported"),
    (
        COMMAND.replace(
            "[python, train.py]", "{argv: [python, train.py], success: {file: 'ftp://b/x'}}"
        ),
        "c.yaml:6: trainer.command.success.file: is on no object store that is supported",
    ),
    (COMMAND.replace("runs/x", "gs:///x"), "model_dir: names no bucket (gs://BUCKET/PATH)"),
    (COMMAND.replace("runs/x", "~nobody-here/x"), "names the home directory of an unknown user"),
    (COMMAND.replace("runs/x", "$HOME/x"), "c.yaml:3: trainer.init.model_dir: $HOME is not expan"),
    (COMMAND.replace("runs/x", "'${SCRATCH}/x'"), "model_dir: ${SCRATCH} is not expanded here"),
    (with_command("argv: [a]\nsuccess: {file: $OUT/done}"), "success.file: $OUT is not expanded"),
    (with_command("argv: [a]\nenv_file: $HOME/e"), "command.env_file: $HOME is not expanded here"),
    (with_init("checkpoint: {directory: 'az://b/x'}"), "checkpoint.directory: is on no object"),
    (with_init("checkpoint: {directory: '{modeldir}/x'}"), "unknown placeholder {modeldir} (v"),
    (with_init("checkpoint: {directory: '{attempt}/x'}"), '{attempt} (value "{attempt}/x"); k'),
    # --- devices
    (with_init("devices: {platform: tup}"), "platform: input should be 'cpu', 'gpu' or 'tpu'"),
    (with_init("devices: {}"), "c.yaml:4: trainer.init.devices.platform: is required"),
    (with_init("devices: {platform: cpu, count: 0}"), "greater than or equal to 1 (value 0)"),
    (with_init("devices: {platform: cpu, type: v4-8}"), "type is only for platform tpu"),
    (with_init("devices: {platform: tpu, type: v9-8}"), "'v9-8' is not a TPU type such as"),
    (
        with_init("devices: {platform: tpu, type: v4-7}"),
        "'v4-7' is not a TPU type: v4 is named by twice",
    ),
    (with_init("devices: {platform: tpu, type: v5e-0}"), "'v5e-0' is not a TPU type such as"),
    (with_init("devices: {platform: tpu, type: v4-8, count: 8}"), "v4-8 has 4 chips, not 8"),
    # --- fit or command
    (
        FIT.replace(f"  fit: {DATA}\n", ""),
        "c.yaml:1: trainer: needs either fit (our trainer) or co",
    ),
    (FIT + "  command: [a]\n", "c.yaml:7: trainer.command: is given beside fit: keep command (any"),
    (FIT.replace(DATA, "3"), "c.yaml:6: trainer.fit: is not a mapping (value 3)"),
    (with_init("seed: 3"), "c.yaml:4: trainer.init.seed: is only for our trainer (fit); a"),
    (with_init("model:\n  name: gpt"), "c.yaml:4: trainer.init.model: is only for our trainer"),
    (with_command("[]"), "c.yaml:6: trainer.command: list should have at least 1 item"),
    (COMMAND.replace("train.py", "3"), "c.yaml:6: trainer.command[1]: input should be a valid"),
    (
        COMMAND.replace("[python, train.py]", "python 'my train.py' --lr 1"),
        "c.yaml:6: trainer.command: is one text, but no shell reads it: "
        'write the list ["python", "my train.py", "--lr", "1"]',
    ),
    (
        with_command("argv: python x.py | tee log"),
        'c.yaml:7: trainer.command.argv: is one text, but no shell reads it: write the list ["bash"'
        ', "-c", "python x.py | tee log"]',
    ),
    (COMMAND.replace("[python, train.py]", '"it\'s"'), 'write the list ["bash", "-c", "it\'s"]'),
    (COMMAND.replace("[python, train.py]", "3"), "c.yaml:6: trainer.command: is not a mapping (v"),
    (with_command("argv: [a]\nenv: {X: 1}"), "trainer.command.env.X: is no text"),
    (
        with_command("argv: [a]\nenv: {'A=B': x}"),
        "trainer.command.env.A=[redacted]: string should matc",
    ),
    (with_command("argv: [a]\nenv: {'': x}"), "c.yaml:8: trainer.command.env.: string should"),
    (with_command("argv: [a]\nsucces: {}"), "succes: unknown key (value {}); did you mean 'su"),
    # --- placeholders
    (with_command("argv: [a, 'x{modeldir}']"), "command.argv[1]: unknown placeholder {modeldi"),
    (COMMAND.replace("train.py", "'{what}'"), "c.yaml:6: trainer.command[1]: unknown placehol"),
    (with_command("argv: [a]\nenv: {X: '{what}'}"), "trainer.command.env.X: unknown placehold"),
    (with_command("argv: ['{num_devices}']"), "{num_devices} needs init.devices with a count"),
    (
        with_command("argv: ['{per_device_batch}']\nglobal_batch: 8"),
        "c.yaml:7: trainer.command.argv[0]: {per_device_batch} needs command.global_batch and",
    ),
    (with_command("argv: [a]\nglobal_batch: 0"), "c.yaml:8: trainer.command.global_batch: inp"),
    (
        with_init("devices: {platform: cpu, count: 3}").replace(
            "command: [python, train.py]", "command: {argv: [a], global_batch: 8}"
        ),
        "trainer.command.global_batch: is 8, which 3 devices cannot share equally",
    ),
    (
        with_command("argv: [a]\nsuccess: {file: '{dir}/x'}"),
        "c.yaml:8: trainer.command.success.file: unknown placeholder {dir}",
    ),
    # --- patterns
    (with_command("argv: [a]\nprogress: {pattern: 'a'}"), "needs exactly one group, for the s"),
    (with_command("argv: [a]\nprogress: {pattern: '(a)(b)'}"), "needs exactly one group, for "),
    (with_command("argv: [a]\nprogress: {pattern: '('}"), "is not a regular expression: missi"),
    (with_command("argv: [a]\nsuccess: {pattern: '['}"), "is not a regular expression: unterm"),
    (with_command("argv: [a]\nsuccess: {pattern: 'a{99999999999999}'}"), "is not a regular ex"),
    (with_command("argv: [a]\nsuccess: {step: 3, file: x}"), "give one of step, pattern and f"),
    (with_command("argv: [a]\nsuccess: {step: 0}"), "success.step: input should be greater than"),
    (with_command("argv: [a]\nsuccess: {exit_code: 256}"), "less than or equal to 255"),
    # --- drills
    (FIT + "  faults: [{step: 1}]", "c.yaml:7: trainer.faults[0]: give exactly one of signal"),
    (FIT + "  faults: [{step: 1, hang: true, exit_code: 1}]", "give exactly one of signal"),
    (FIT + "  faults: [{step: 1, hang: false}]", "give exactly one of signal, exception"),
    (FIT + "  faults: [{step: 0, hang: true}]", "faults[0].step: input should be greater"),
    (FIT + "  faults: [{hang: true}]", "c.yaml:7: trainer.faults[0]: give either step or stage"),
    (FIT + "  faults: [{step: 1, stage: SAVING, hang: true}]", "give either step or stage"),
    (FIT + "  faults: [{stage: COMPILNG, hang: true}]", "trainer.faults[0].stage: "),
    (FIT + "  faults: [{step: 1, signal: SIGFOO}]", "'SIGFOO' is not a signal such as SIGKI"),
    (FIT + "  faults: [{step: 1, exception: NoError}]", "'NoError' is not a built-in except"),
    (FIT + "  faults: [{step: 1, exception: print}]", "'print' is not a built-in exception"),
    (FIT + "  faults: [{step: 1, exception: '.'}]", "'.' is not a built-in exception; give m"),
    (FIT + "  faults: [{step: 1, stp: 1, hang: true}]", "faults[0].stp: unknown key (value 1)"),
    (FIT + "  faults: [{step: 1, hang: true, device_lost: '1'}]", "give exactly one of signal"),
    (FIT + "  faults: [{step: 1, device_lost: 1}]", "faults[0].device_lost: input should be a v"),
    (FIT + "  faults: [{step: 1, host_lost: '1'}]", "faults[0].host_lost: string should match"),
    (FIT + "  faults: [{step: 1, device_lost: '1'}]", "device_lost: needs simulated devices: in"),
    (
        FIT.replace("  fit:", "    devices: {platform: cpu, count: 4}\n  fit:")
        + "  faults: [{step: 1, device_returns: '4'}]",
        "faults[0].device_returns: is '4', but there are only 0 to 3",
    ),
    (
        FIT.replace(
            "  fit:",
            "    workers: 2\n    devices: {platform: cpu, count: 4}\n    grpo: {reward: a:b, "
            "completion_length: 4, rollout: {devices: 2}}\n  fit:",
        ),
        "init.grpo.rollout: needs a single worker, which has all devices, but there are 2",
    ),
    (COMMAND + "  faults: [{step: 1, hang: true}]", "drills need our trainer (fit)"),
    (COMMAND + "  start_from: {load: all}", "trainer.start_from: is only for our trainer"),
    # --- phases
    (FIT + "  name: a b", "c.yaml:7: trainer.name: string should match pattern"),
    (FIT + "  start_from: {phase: a}", "trainer.start_from: the first phase has no earlier"),
    (PHASES.replace("runs/x", "runs/y", 1), "c.yaml:8: trainer[1].trainer.init.model_dir: all"),
    (PHASES.replace("second", "first"), "c.yaml:7: trainer[1].trainer.name: 'first' is the"),
    (PHASES.replace("first", "phase2").replace("    name: second\n", ""), "'phase2' is the name"),
    (
        PHASES + "    start_from: {phase: frist}",
        'trainer[1].trainer.start_from.phase: is not an earlier phase (value "frist"); there',
    ),
    (PHASES + "    start_from: {phase: second}", 'is not an earlier phase (value "second")'),
    (PHASES + "    start_from: {load: some}", "load: input should be 'params' or 'all'"),
    (
        PHASES.replace("{model_dir: runs/x,", "{model_dir: runs/x, checkpoint: {directory: c},"),
        "c.yaml:8: trainer[1].trainer.init.checkpoint.directory: is also the directory of another",
    ),
    (
        PHASES.replace(
            "{model_dir: runs/x,",
            "{model_dir: runs/x, lora: {rank: 2}, checkpoint: {save_frozen: false},",
            1,
        ),
        "trainer[0].trainer.init.checkpoint.save_frozen: must be true: phase 'second' starts from",
    ),
    (
        PHASES.replace("hidden_size: 16", "hidden_size: 32", 1),
        "c.yaml:8: trainer[1].trainer.init.model.hidden_size: is 16, but 32 in phase 'first', from "
        "whose weights this one starts: make them equal, or name another phase or a directory in",
    ),
    (
        PHASES.replace("hidden_size: 16", "hidden_size: 16, vocab_size: 300", 1),
        "trainer[1].trainer.init.model.vocab_size: is 264, but 300 in phase 'first'",
    ),
    # --- exit codes
    (COMMAND + "exit_codes: slurm", "c.yaml:7: exit_codes: is neither a preset (xpk) nor a map"),
    (COMMAND + "exit_codes: {1: 300}", 'a map of exit codes (value {"1": 300})'),
    (
        COMMAND + "exit_codes: {71: 13, 70: 3}",
        "c.yaml:7: exit_codes.71: is no exit code of `supervise run`, which ends with one of 0, 1,",
    ),
    (COMMAND + "exit_codes: {a: 3}", "exit_codes: is neither a preset (xpk) nor a map"),
    (COMMAND + "exit_codes: {1: true}", "exit_codes: is neither a preset (xpk) nor a map"),
    (COMMAND + "exit_codes: [1]", "exit_codes: is neither a preset (xpk) nor a map"),
    (COMMAND + f"exit_codes: {{? '{'9' * 5000}' : 1}}", "exit_codes: is neither a preset"),
]


@pytest.mark.parametrize(("config", "expected"), MISTAKES)
def test_one_mistake_is_told_once(config: str, expected: str) -> None:
    (found,) = problems(config)
    assert expected in found
    assert found.startswith("c.yaml:")


def test_every_problem_is_told_at_once() -> None:
    found = problems("""\
        exit_codes: slurm
        trainers: 1
        trainer:
        - trainer:
            init:
              model_dir: 3
              autorestart: {max_num_restart: 3}
            fit: {}
        - trainer:
            init: {model_dir: x, autorestart: {max_num_restarts: 1}}
    """)
    where = [problem.split(": ")[:2] for problem in found]
    assert where == [
        ["c.yaml:2", "trainers"],
        ["c.yaml:1", "exit_codes"],
        ["c.yaml:6", "trainer[0].trainer.init.model_dir"],
        ["c.yaml:7", "trainer[0].trainer.init.autorestart.max_num_restarts"],
        ["c.yaml:7", "trainer[0].trainer.init.autorestart.max_num_restart"],
        ["c.yaml:8", "trainer[0].trainer.fit"],
        ["c.yaml:9", "trainer[1].trainer"],
    ]
    assert "did you mean 'max_num_restarts'?" in found[4]


def test_a_long_value_is_cut() -> None:
    (found,) = problems(COMMAND.replace("[python, train.py]", "x" * 5000))
    assert len(found) < 300


@pytest.mark.parametrize(
    ("kind", "count"),
    [("v5e-8", 8), ("v5litepod-16", 16), ("v6e-1", 1), ("v4-8", 4), ("v5p-12288", 6144)],
)
def test_chips_of_a_slice(kind: str, count: int) -> None:
    job = load(with_init(f"devices: {{platform: tpu, type: {kind}, count: {count}}}"))
    assert job.phases[0].init.devices is not None
    assert job.phases[0].init.devices.num_devices == count


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [
        (COMMAND, "command.argv", ["python", "train.py"]),
        (with_command("argv: [a]"), "command.argv", ["a"]),
        (with_command("argv: ['{{not}} {model_dir}']"), "command.argv", ["{{not}} {model_dir}"]),
        (with_command("argv: ['${HOME} {}']"), "command.argv", ["${HOME} {}"]),
        (
            with_command("argv: [a]\nprogress: {pattern: 'step (\\d+)'}"),
            "command.progress.pattern",
            r"step (\d+)",
        ),
        (with_restart("max_num_restarts: 0"), "init.autorestart.max_num_restarts", 0),
        (
            with_restart("max_num_restarts: 1\ngrace_period: 1.5m"),
            "init.autorestart.grace_period",
            90.0,
        ),
        (
            with_restart("max_num_restarts: 1\ngrace_period: 7"),
            "init.autorestart.grace_period",
            7.0,
        ),
        (with_restart("max_num_restarts: 1\nstandby: off"), "init.autorestart.standby", "off"),
        (with_init("checkpoint: {every: 5m}"), "init.checkpoint.every", "5m"),
        (with_init("checkpoint: {every: 50}"), "init.checkpoint.every", 50),
        (with_init("checkpoint: {every: auto}"), "init.checkpoint.every", "auto"),
        (
            with_init(
                "devices: {platform: cpu, count: 2}\nworkers: 2\ncheckpoint: {every: 5m}", FIT
            ),
            "init.checkpoint.every",
            "5m",
        ),
        (FIT + "  faults: [{step: 2, exception: jax.errors.JaxRuntimeError}]", "faults.0.step", 2),
        (FIT + "  faults: [{step: 2, exception: FloatingPointError}]", "faults.0.step", 2),
        (FIT + "  name: warm-up.1", "name", "warm-up.1"),
    ],
)
def test_what_is_valid_is_read(config: str, path: str, value: Any) -> None:
    found: Any = load(config).phases[0]
    for part in path.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ("", {}),
        ("exit_codes: xpk", EXIT_CODE_PRESETS["xpk"]),
        ("exit_codes: {70: 42, 75: 0}", {70: 42, 75: 0}),
    ],
)
def test_exit_codes(lines: str, codes: dict[int, int]) -> None:
    assert load(COMMAND + lines).exit_codes == codes


def test_each_phase_knows_its_place() -> None:
    job = load(PHASES)
    assert [phase.name for phase in job.phases] == ["first", "second"]
    assert job.locations == (("trainer", 0, "trainer"), ("trainer", 1, "trainer"))
    assert load(FIT).locations == (("trainer",),)


# --- whatever stands at a key ---------------------------------------------------------------------


def _known_places(model: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every key that the schema knows, also below lists."""
    places = []
    for key in known_keys(model, place):
        places += [(*place, key), *_known_places(model, (*place, key))]
    return places


PLACES = _known_places(Phase)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**310)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["5m", "1e400s", "v5e-8", "v4-1", "SIGKILL", "{model_dir}", "{x}", "~a", "("]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from([str(place[-1]) for place in PLACES]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def test_the_known_places_are_found() -> None:
    assert ("init", "autorestart", "backoff", "first") in PLACES
    assert ("faults", "exit_code") in PLACES


@given(st.sampled_from(PLACES), values, st.sampled_from([FIT, COMMAND]))
def test_any_value_anywhere_loads_or_is_refused(
    place: tuple[str, ...], value: Any, base: str
) -> None:
    data = yaml.safe_load(base)
    target = data["trainer"]
    for part in place[:-1]:
        inner = target.get(part)
        if not isinstance(inner, dict):
            inner = [{}] if part == "faults" else {}
            target[part] = inner
        target = inner[0] if isinstance(inner, list) else inner
    target[place[-1]] = value
    text = yaml.safe_dump(data, allow_unicode=True)
    with suppress(ConfigError):
        assert load(text.encode("utf-8", "backslashreplace")).model_dir.is_absolute()


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("CUDA_VISIBLE_DEVICES: 0", "CUDA_VISIBLE_DEVICES: '0'"),
        ("CUDA_VISIBLE_DEVICES: [0, 1]", "CUDA_VISIBLE_DEVICES: '0,1'"),
        ("DEBUG: true", "DEBUG: 'true'"),
        ("API_TOKEN: 4711", "API_TOKEN: '...'"),
        ("X: 731731731", "X: '...'"),
    ],
)
def test_a_variable_that_is_no_text_is_to_be_quoted(variable: str, remedy: str) -> None:
    name = variable.partition(":")[0]
    (told,) = problems(with_command(f"argv: [a]\nenv: {{{variable}}}"))
    assert told.endswith(
        f"command.env.{name}: is no text, as a variable must be; quote it: {remedy}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", "is a list, and a variable must be text: write it as the program reads it"),
        ("[hunter2]", "is a list, and a variable must be text: write it as the program reads it"),
        ("[1, [2]]", "is a list, and a variable must be text: write it as the program reads it"),
        ("{a: 1}", "is a mapping, and a variable must be text: write it as the program reads it"),
        ("", "has no value, and a variable must be text; an empty one is NAMES: ''"),
    ],
)
def test_what_no_quotes_make_a_variable_is_told_as_what_it_is(value: str, message: str) -> None:
    (told,) = problems(with_command(f"argv: [a]\nenv: {{NAMES: {value}}}"))
    assert told.endswith(f"command.env.NAMES: {message}")


def test_the_exit_codes_that_may_be_mapped_are_ours() -> None:
    assert {int(code) for code in OWN_EXIT_CODES} == set(ExitCode)
    assert set(EXIT_CODE_PRESETS["xpk"]) <= set(ExitCode)


def test_a_phase_that_starts_from_another_one_may_use_its_weights_in_another_way() -> None:
    dropped = PHASES.replace("hidden_size: 16", "hidden_size: 16, dropout: 0.5, rope_theta: 5", 1)
    assert problems(dropped) == []
    larger = PHASES.replace("hidden_size: 16", "hidden_size: 32", 1)
    assert problems(larger + "    start_from: {directory: elsewhere}") == []
