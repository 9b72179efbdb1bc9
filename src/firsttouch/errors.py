"""What a user is told when something cannot be done: one message, one hint, one exit code."""


class FirsttouchError(Exception):
    """A mistake or a limit that the user can act on; the command line prints it without a traceback.

    `message` says what could not be done, to what, and why. `hint` is the next thing to try ("" if there is none).
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NotHere(FirsttouchError):
    """This machine cannot do it (kernel, privilege, missing program); the hint says what would change that."""

    exit_code = 3
