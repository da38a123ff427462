"""The restart budget of a phase, and the progress that refills it.

`max_num_restarts` bounds *consecutive* restarts without a new committed checkpoint: a step above
every earlier one of the phase sets the counts to zero; the failure that finds `max_num_restarts`
already spent ends the job. So there are exactly N restarts in a row, whether or not the first
failure made progress.

The first step that is seen may be that of a base model, which was there before or which the program
has copied there. While it is the only one, a lower step that an attempt commits takes its place.
This happens at most once in a phase, so it cannot keep a job alive that makes no progress. Nor is
such a step believed to complete the work if the program told lower steps after its commit.

Some programs begin to count anew in each epoch. Where the epoch is in the name of the step
(`epoch_3_step_5`), a later epoch is progress, and within an epoch a higher step
(`protocol.epochs`).

Others have a folder for each epoch (`out/epoch_1/step_5`). So an attempt that goes on in the folder
of a later epoch makes progress, whatever the step. One that begins such a folder makes none by
that: a program that begins again from nothing may make a new one each time. The next attempt makes
progress with the first step above those that are there. Once an attempt has saved in one epoch and
then in a later one, these are epochs beyond doubt, and each later one is progress.

`max_total_restarts`, where it is set, bounds all charged restarts of the phase, and nothing refills
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.policy import PhasePolicy
from supervisor.diagnosis.outcome import Charge as Charge
from supervisor.protocol.epochs import SavedStep, epochs_in, without_epochs


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent since the last progress, and the highest step ever committed in the phase.

    Retention may delete checkpoints, so what is there now can be lower than `highest`: progress is
    judged against `highest` alone. It never falls, except below the first step (`first`), and in a
    later epoch.
    """

    restarts: int = 0
    preemptions: int = 0
    highest: int | None = None
    signatures: tuple[str, ...] = ()
    """The signatures of the failures since the last progress; a failure may have none."""
    total: int = 0
    """Charged restarts of the phase, whatever progress there was between."""
    first: int | None = None
    """The first step that was seen in the phase; None: nothing doubts `highest`. Above `highest`:
    it is a base model's (`is_base`)."""
    trained: bool | None = None
    """Whether the program has trained as far as a lone `highest`: see `core.trained`. None: nothing
    shows it."""
    latest_epoch: str | None = None
    """The directory of the latest epoch in which a step was committed; None: none has one."""
    begun_in: int | None = None
    """The attempt that has begun that directory: its commits there refill nothing. None: it was
    there, or is the first one."""
    saved_in: int | None = None
    """The last attempt that has committed a step in that directory; None: not known."""
    counts_epochs: bool = False
    """Whether one attempt has committed in two epochs, one after the other."""
    is_behind: bool = False
    """Whether the program saves in the directory of an earlier epoch: what it commits there is no
    progress."""
    epochs: tuple[int, ...] = ()
    """The numbers of the epochs before the step in the name of `highest` (`SavedStep`); empty: none
    is known."""
    first_epochs: tuple[int, ...] = ()
    """The same for `first`."""

    @property
    def failures(self) -> int:
        """Consecutive charged failures without progress."""
        return self.restarts + self.preemptions

    @property
    def is_lone(self) -> bool:
        """Whether `highest` is the only step that was seen, so that it may be a base model's."""
        is_first = self.highest == self.first and self.epochs == self.first_epochs
        return self.highest is not None and is_first

    def is_base(self, step: int, epochs: tuple[int, ...] | None = None) -> bool:
        """Whether `step` turned out to be a base model's, and does not count; None: nothing tells
        its `epochs`."""
        if step != self.first or self.highest is None or epochs not in (None, self.first_epochs):
            return False
        return SavedStep(step, self.first_epochs).is_above(SavedStep(self.highest, self.epochs))

    def is_earlier(self, step: int, epochs: tuple[int, ...]) -> bool:
        """Whether `highest` is of a later epoch than `step`, whose name has these `epochs`."""
        if self.highest is None or not epochs or epochs == self.epochs:
            return False
        return SavedStep(self.highest, self.epochs).is_above(SavedStep(step, epochs))

    def proves(self, step: int, target: int, *, exited: bool) -> bool:
        """Whether a committed `step` that has reached `target` is no base model's.

        A program may tell no step and save only the last one. If it `exited` with the code of
        success, such a step is believed. A program that still runs is not ended because of it.
        """
        if self.is_base(step):
            return self.highest is not None and self.highest >= target
        if not self.is_lone:
            return True
        trained = exited if self.trained is None else self.trained
        # A last step may be a little above the target, and be the only one that is saved.
        return trained and step <= target + about(target)

    def own(self, step: int | None) -> int | None:
        """Returns the newest step that was found, but `highest` in place of a base model's."""
        return self.highest if step is not None and self.is_base(step) else step

    def committed(
        self,
        step: int | None,
        *,
        new: bool = False,
        attempt: int = 0,
        epochs: tuple[int, ...] = (),
    ) -> Budget:
        """Returns the budget after a commit of `step` in an `attempt` (0: in none): refilled if
        that is progress. For `new` and `epochs` see `CheckpointCommitted`."""
        if step is None or self.is_base(step, epochs or None) or self.is_behind:
            return self
        refilled = Budget(
            highest=step,
            total=self.total,
            latest_epoch=self.latest_epoch,
            saved_in=attempt if self.latest_epoch is not None else None,
            counts_epochs=self.counts_epochs,
            epochs=epochs or self.epochs,
        )
        if self.highest is None:
            return replace(refilled, first=step, first_epochs=epochs)
        saved, highest = SavedStep(step, epochs), SavedStep(self.highest, self.epochs)
        is_above = saved.is_above(highest)
        if self.begun_in == attempt:
            known = replace(self, highest=step, epochs=refilled.epochs, saved_in=attempt)
            return known if is_above else self
        if is_above or (new and self.is_lone and highest.is_above(saved)):
            return replace(refilled, first=self.first, first_epochs=self.first_epochs)
        if step == self.highest and not self.epochs:  # the same one, whose name is known now
            first = epochs if self.is_lone else self.first_epochs
            return replace(self, epochs=epochs, first_epochs=first)
        return self

    def saving_in(
        self, directory: str, before: str | None, attempt: int, *, is_resumed: bool
    ) -> Budget:
        """Returns the budget once the steps of a `directory` count, after those of `before`. For
        `is_resumed` see `CheckpointsFound`.

        In the directory of a later epoch than all before, steps begin again. Whoever goes back to
        an earlier epoch makes no progress until it is where it was.
        """
        latest = self.latest_epoch
        if latest is None and before is None:
            return replace(self, latest_epoch=directory if has_an_epoch(directory) else None)
        if is_of_a_later_epoch(directory, latest or before):
            counts = self.counts_epochs or self.saved_in == attempt
            later = Budget(highest=0, latest_epoch=directory, counts_epochs=counts)
            if is_resumed or counts:
                return replace(later, total=self.total)
            return replace(
                later,
                restarts=self.restarts,
                preemptions=self.preemptions,
                signatures=self.signatures,
                total=self.total,
                begun_in=attempt,
            )
        return replace(
            self, is_behind=latest is not None and is_of_a_later_epoch(latest, directory)
        )

    def told(self, step: int | None, *, trained: bool | None) -> Budget:
        """Returns the budget after the program told that it completed `step`, its last one so far:
        if it counts as far as `highest`, that one is its own. `trained` as in `WorkersGone`."""
        if self.highest is None or not self.is_lone:
            return self
        if step is not None and step >= self.highest:
            return replace(self, first=None, first_epochs=())
        return self if trained is None else replace(self, trained=trained)

    def failed(self, signature: str | None, policy: PhasePolicy) -> Budget:
        """Returns the budget after a failure of `signature`, kept only if the policy limits
        repetitions."""
        if signature is None or not self.repetition_limit(policy):
            return self
        return replace(self, signatures=(*self.signatures, signature))

    def repetition_limit(self, policy: PhasePolicy) -> int:
        """Returns how often the same failure may come without progress; 0: no limit."""
        if policy.repeated_failure_limit is not None:
            return policy.repeated_failure_limit
        return 2 if self.highest is None else 3

    def repetitions(self, signature: str | None) -> int:
        """Returns how often a failure of `signature` came since the last progress."""
        return self.signatures.count(signature)

    def on_another_machine(self, policy: PhasePolicy) -> Budget | None:
        """Returns the budget after the machine is replaced: only `total` stays.

        None: `max_total_restarts` is spent.
        """
        if self._all_spent(policy):
            return None
        return replace(self, restarts=0, preemptions=0, signatures=())

    def fresh(self) -> Budget:
        """Returns a budget with all counts zero and the same highest step."""
        return replace(self, restarts=0, preemptions=0, signatures=(), total=0)

    def charge(self, kind: Charge, policy: PhasePolicy) -> Budget | None:
        """Returns the budget after a failure that spends `kind`; None: nothing was left to
        spend."""
        if kind is Charge.NOTHING:
            return self
        if self._all_spent(policy):
            return None
        if kind is Charge.RESTARTS:
            if self.restarts >= policy.max_num_restarts:
                return None
            return replace(self, restarts=self.restarts + 1, total=self.total + 1)
        if self.preemptions >= policy.max_num_preemptions:
            return None
        return replace(self, preemptions=self.preemptions + 1, total=self.total + 1)

    def why_spent(self, kind: Charge, policy: PhasePolicy) -> str:
        """Returns a sentence on why `charge` found nothing left."""
        if self._all_spent(policy):
            limit = policy.max_total_restarts
            return f"all {limit} restarts of max_total_restarts are spent, which nothing refills"
        limit = getattr(policy, f"max_num_{kind}")
        unit = kind.removesuffix("s") if limit == 1 else kind
        why = f"the budget of {limit} {unit} without a new checkpoint is spent"
        return why if self.highest is not None else f"{why}; no checkpoint was ever seen"

    def _all_spent(self, policy: PhasePolicy) -> bool:
        return policy.max_total_restarts is not None and self.total >= policy.max_total_restarts


def about(step: int) -> int:
    """Returns how far from `step` the last one may be: some programs count from 0, or tell only
    each tenth step."""
    return max(1, step // 100)


def has_an_epoch(directory: str) -> bool:
    """Whether a path has the number of an epoch."""
    return bool(epochs_in(directory))


def is_of_a_later_epoch(directory: str, earlier: str | None) -> bool:
    """Whether two paths differ in the number of an epoch alone, and that of `earlier` is lower."""
    if earlier is None or without_epochs(directory) != without_epochs(earlier):
        return False
    return epochs_in(directory) > epochs_in(earlier)
