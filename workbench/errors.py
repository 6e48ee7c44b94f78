"""Exceptions that a user of the workbench can meet."""

__all__ = ["InputError", "ScheduleError", "one_line"]


class InputError(ValueError):
    """Input that cannot be used; the message is one line that names the place and the mend."""


class ScheduleError(ValueError):
    """A schedule that breaks a rule of the model; the message lists the violations."""


def one_line(message: object) -> str:
    """Return a message as one printable line: line breaks become spaces, other control characters escapes."""
    text = " ".join(str(message).split())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
