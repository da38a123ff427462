"""What this process tells people: in its output, and as a worker in the supervisor's log too."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.protocol.reporter import Reporter


@dataclass(slots=True)
class Voice:
    """Speaks through `reporter`, which is silent until somebody sets another."""

    reporter: Reporter = field(default_factory=lambda: Reporter(None))

    def say(self, text: str) -> None:
        """One line that a person should read."""
        print(text, flush=True)
        self.reporter.notice(text)

    def obtained(self, seconds: float, name: str, source: str) -> None:
        """A compiled step is there: loaded from `source`, or else compiled."""
        how = f"loaded from {source}" if source else "compiled"
        print(f"{name}: {how} in {seconds:.2f} s", flush=True)
        self.reporter.compiled(seconds, name, source)
