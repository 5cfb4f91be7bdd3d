"""Commands of an operator on credentials: two of them belong to one account (map), or do not after all (unmap).

A credential is named by an operation that it made, because only the caller has its text. The timelines of the
operations record who gave the command and why. The provider's answer about a credential overrides an operator's.
"""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.core.consequences import WriteContext
from paywitness.core.credential_owners import PEER_MARK, CredentialRelation, MarkSource, credential_key, related
from paywitness.core.operation import Operation
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.operator_commands import InvalidCommand, NoSuchOperation, valid_actor_and_reason
from paywitness.journal.base import Journal, OperationChange


@dataclass(frozen=True, slots=True)
class CredentialView:
    """The marks of the credential that made an operation."""

    operation: Operation
    marks: dict[str, str]  # each mark with its source


@dataclass(frozen=True, slots=True)
class CredentialCommands:
    journal: Journal
    journal_writer: JournalWriter
    owners: CredentialOwners

    async def show(self, operation_id: str) -> CredentialView:
        operation = await self._operation(operation_id)
        return CredentialView(operation, await self.owners.marks(_key_of(operation)))

    async def map(self, operation_id: str, same_as: str, *, actor: str, reason: str, evidence: str) -> CredentialView:
        """Record that the credentials that made two operations are of one account. Raises InvalidCommand,
        NoSuchOperation, JournalUnavailable."""
        actor, reason = valid_actor_and_reason(actor, _with_evidence(reason, evidence))
        first, other = await self._operation(operation_id), await self._operation(same_as)
        if first.provider_in_keys != other.provider_in_keys:
            raise InvalidCommand("The operations are of two providers. A credential is of an account at one of them.")
        if first.credential == other.credential:
            raise InvalidCommand("One credential made both operations. There is nothing to map.")
        marks = [await self.owners.marks(_key_of(each)) for each in (first, other)]
        relation = related(first.credential, marks[0], other.credential, marks[1], other.account)
        if relation is CredentialRelation.OTHER:
            raise InvalidCommand("The provider says that they are of two owners, and its answer overrides yours.")
        await self.owners.add_marks(_key_of(first), {PEER_MARK + other.credential: MarkSource.OPERATOR})
        await self._note(first, "credential_mapped", actor, f"to the account of {other.id}: {reason}")
        return await self.show(operation_id)

    async def unmap(self, operation_id: str, *, actor: str, reason: str, evidence: str) -> CredentialView:
        """Remove the marks that operators and control questions gave to the credential that made an operation."""
        actor, reason = valid_actor_and_reason(actor, _with_evidence(reason, evidence))
        operation = await self._operation(operation_id)
        await self.owners.remove_peers(_key_of(operation))
        await self._note(operation, "credential_unmapped", actor, reason)
        return await self.show(operation_id)

    async def _operation(self, operation_id: str) -> Operation:
        operation = await self.journal.read(operation_id)
        if operation is None:
            raise NoSuchOperation(operation_id)
        return operation

    async def _note(self, operation: Operation, event: str, actor: str, note: str) -> None:
        def change_from(current: Operation) -> OperationChange:
            known = WriteContext(self.journal_writer.journal_clock.now())
            return change_of(current, current, (event,), known, source="operator", actor=actor, note=note)

        await self.journal_writer.write_with_retry(operation, change_from)


def _key_of(operation: Operation) -> str:
    return credential_key(operation.provider_in_keys, operation.credential)


def _with_evidence(reason: str, evidence: str) -> str:
    if not evidence.strip():
        raise InvalidCommand("Say what was seen, and where: evidence.")
    return f"{reason} (evidence: {evidence.strip()})" if reason.strip() else reason
