"""Judges the end of an attempt on many hosts, once: by what the agents saw of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from supervisor.core.events import WorkersGone
from supervisor.diagnosis.failure import RankEvidence
from supervisor.diagnosis.verdicts import host_lost_failure, leader_slept_failure
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_messages import Evidences, GroupSeen
from supervisor.engines.host_port import HostFiles
from supervisor.engines.judging import Seen, judged_by
from supervisor.engines.launch import Launch
from supervisor.host.notice import Tell


def collected(evidences: Evidences, wall: float) -> dict[int, RankEvidence]:
    """Returns the evidence of ranks, with the times of failure records on the leader's clock.

    `wall` is the Unix time on the leader's host when the message came.
    """
    ahead = evidences.wall - wall
    return {
        each.exit.rank: replace(each, record=replace(each.record, time=each.record.time - ahead))
        if each.record is not None
        else each
        for each in evidences.ranks
    }


def judged_fleet(
    at: float,
    files: HostFiles,
    launch: Launch,
    attempt: FleetAttempt,
    known: Mapping[int, RankEvidence],
    host_of: Callable[[str], str],
    committed: int | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> WorkersGone:
    """Returns the event of an attempt's end. Nothing of it lived at the time `at`.

    `known` is the whole evidence of the suspects, and `host_of` names the host of an agent.
    """
    exits = attempt.exits_by_time
    ranks = tuple(_evidence(attempt, ended.rank, known) for ended in exits)
    seen = _seen(attempt)
    gone = judged_by(at, files, launch, exits, ranks, seen, committed, tell, redact)
    failure = gone.failure
    if failure is None or not failure.struck:
        return gone
    end = attempt.ends.get(failure.rank)
    if end is None or not end.host_lost:
        return gone
    agent = attempt.agents[failure.rank]
    if (slept := attempt.slept.get(agent)) is not None:
        return replace(gone, failure=leader_slept_failure(failure, slept))
    why = attempt.lost.get(agent, "it was not answered in time")
    return replace(gone, failure=host_lost_failure(failure, host_of(agent), why))


def _evidence(attempt: FleetAttempt, rank: int, known: Mapping[int, RankEvidence]) -> RankEvidence:
    end = attempt.ends[rank]
    told = known.get(rank)
    if told is not None:
        return replace(told, ended_before_kill=told.ended_before_kill or end.host_lost)
    digest = attempt.digests.get(rank)
    if digest is None:
        return RankEvidence(end.exit, ended_before_kill=end.host_lost)
    before = digest.ended_before_kill or end.host_lost
    return RankEvidence(end.exit, None, digest.digest, digest.stage, before)


def _seen(attempt: FleetAttempt) -> Seen:
    """Returns what the agents saw of the group. What all ranks report alike, the first one says."""
    reports = [attempt.gone[agent].seen for agent in attempt.agents if agent in attempt.gone]
    told = next((each for each in reports if each.step is not None), GroupSeen())
    speaker = reports[0] if reports else told
    kills = [each.oom_kills for each in reports if each.oom_kills is not None]
    return Seen(
        step=told.step,
        step_recognised=told.step_recognised,
        every_step=told.every_step,
        resumed_from=speaker.resumed_from,
        from_snapshot=speaker.from_snapshot,
        starting_step=speaker.starting_step,
        adjustable=speaker.adjustable,
        pattern_seen=any(each.pattern_seen for each in reports),
        oom_kills=sum(kills) if kills else None,
        lost_guard=any(each.lost_guard for each in reports),
        survivors=tuple(one for each in reports for one in each.survivors),
    )
