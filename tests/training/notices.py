"""A list of the notices that the trainer's parts tell people."""

from __future__ import annotations

from supervisor.protocol.messages import NoticeCode


class Notices(list[str]):
    """The texts; `codes` and `steps` have what tools read of each."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[NoticeCode] = []
        self.steps: list[int | None] = []

    def __call__(self, text: str, code: NoticeCode, step: int | None = None, /) -> None:
        """Add a notice; a `trainer.log.Warn`."""
        self.append(text)
        self.codes.append(code)
        self.steps.append(step)
