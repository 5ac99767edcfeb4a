"""What can be wrong with a scenario or a transcript, as one clear line."""

from __future__ import annotations

from algebra.errors import LockstepError


class ScenarioError(LockstepError):
    """A scenario that cannot be run, or text that is none; names the line where there is one."""

    reason = "SCENARIO"

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line


class ScheduleError(LockstepError):
    """An action that cannot happen at this point of a schedule."""

    reason = "SCHEDULE"
