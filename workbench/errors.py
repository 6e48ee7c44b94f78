"""Exceptions that a user of the workbench can meet."""

__all__ = ["InputError", "ScheduleError"]


class InputError(ValueError):
    """Input that cannot be used; the message is one line that names the place and the mend."""


class ScheduleError(ValueError):
    """A schedule that breaks a rule of the model; the message lists the violations."""
