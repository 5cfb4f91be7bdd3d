"""Our own exceptions. A network failure is never one of these: that is Evidence, a value."""


class PaywitnessError(Exception):
    """Base of every error that this product raises on purpose."""


class PolicyError(PaywitnessError):
    """A policy file that cannot be put in force. Carries every problem found, not only the first."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SettingsError(PaywitnessError):
    """A flag, environment variable or configuration value that cannot be used."""


class JournalUnavailable(PaywitnessError):
    """The journal did not confirm a call. Whether it took the write is not known."""


class JournalNotAsked(JournalUnavailable):
    """The journal was not asked about a call, or has lost the data that it would need to answer. The caller gets the
    message as its text."""


class StoreUnavailable(PaywitnessError):
    """The limits' Redis did not answer in time, or is not asked at the moment. It may have done the requested step."""


class JournalLevelError(JournalUnavailable):
    """The journal was raised to a level that this release does not keep. Nothing was written, and nothing is sent."""


class JournalUnusable(PaywitnessError):
    """The journal cannot be used at all: another process holds it, or it belongs to another identity secret."""


class StaleWrite(PaywitnessError):
    """Another writer has changed the operation since it was read. Read it again and advance again."""


class IllegalTransition(PaywitnessError):
    """An event that the lifecycle table does not allow in this state. Nothing was changed."""


class UnreadableSecret(PaywitnessError):
    """A stored ciphertext that no key of the ring opens, or that belongs to another operation."""


class BodyError(PaywitnessError):
    """A request body that cannot be read or written as the policy says it is encoded."""


class BodyOverBound(BodyError):
    """A body that is too large, too deep or has too many values to be parsed here. Its content is not known."""


class MoneyError(PaywitnessError):
    """An amount or currency that is not money."""
