"""The policies: whether they load, whether they are in shadow mode, and the variables that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook, compile_content, cross_file_problems, policy_files, read_policy_file
from paywitness.policy.compile import CompiledFile
from paywitness.tools.doctor.runner import DoctorFinding, ok, unfit, warning

_PROBLEMS_SHOWN = 20
_START_REFUSED = "a start is refused, and a reload keeps the old policies"


def policy_findings(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """The policies as a start would read them."""
    check = f"paywitness policy check {settings.policies}"
    compiled, problems = _compiled(settings)
    for problem in problems[:_PROBLEMS_SHOWN]:
        yield unfit("policies", problem, _START_REFUSED, f"Correct it; `{check}` shows more")
    if len(problems) > _PROBLEMS_SHOWN:
        yield unfit("policies", f"{len(problems) - _PROBLEMS_SHOWN} more problems", _START_REFUSED, f"See `{check}`")
    if not problems:
        book = PolicyBook.of(found.provider for found in compiled)
        operations = sum(len(provider.policies) for provider in book.providers.values())
        names = ", ".join(book.providers)
        yield ok("policies", f"{settings.policies}: {operations} operations of {names}; revision {book.revision}")
    warnings = sum(len(found.warnings) for found in compiled)
    if warnings:
        text = "1 warning" if warnings == 1 else f"{warnings} warnings"
        yield warning("policies", text, "a file may mean something else than its author meant", f"Read them: `{check}`")
    for found in compiled:
        yield from _provider_findings(found.provider, settings, environment)


def _compiled(settings: Settings) -> tuple[list[CompiledFile], list[str]]:
    compiled: list[CompiledFile] = []
    problems: list[str] = []
    try:
        paths = policy_files(settings.policies)
    except PolicyError as error:
        return [], list(error.problems)
    if not paths:
        return [], [f"{settings.policies}: found no policy file (*.yaml, *.yml)"]
    for path in paths:
        try:
            compiled.append(compile_content(read_policy_file(path), str(path)))
        except PolicyError as error:
            problems += error.problems
    return compiled, [*problems, *cross_file_problems(compiled, complete=not problems)]


def _provider_findings(
    provider: Provider, settings: Settings, environment: Mapping[str, str]
) -> Iterator[DoctorFinding]:
    subject = f"policy {provider.name}"
    if provider.observe:
        why = "its calls pass unchanged: nothing is journalled, retried or guarded against paying twice"
        yield warning(subject, "mode: observe", why, "Remove it when its counts are as you expect")
    yield from _webhook_findings(subject, provider, settings, environment)
    unset = [name for name in _credential_names(provider) if not environment.get(name)]
    if unset:
        why = "once the callers' own credentials end, an inquiry cannot resolve an unknown outcome"
        yield warning(subject, f"{', '.join(unset)} not set", why, "Set it, or remove it from `credentials`")


def _webhook_findings(
    subject: str, provider: Provider, settings: Settings, environment: Mapping[str, str]
) -> Iterator[DoctorFinding]:
    if provider.webhook_rules is None:
        return
    if settings.webhooks is None:
        yield ok(subject, "its webhooks are not received: --webhooks is off")
        return
    for account, names in provider.webhook_rules.secrets.items():
        of_whom = f"webhooks of account {account}" if account else "webhooks"
        unset = [name for name in names if not environment.get(name)]
        if len(unset) == len(names):
            why = "without its secret every event is refused"
            yield warning(subject, f"{of_whom}: {' or '.join(unset)} not set", why, "Set it to the provider's secret")
        elif unset:
            yield ok(subject, f"{of_whom}: one secret of {len(names)} is there; {', '.join(unset)} not set")
        else:
            yield ok(subject, f"{of_whom}: {'secret is' if len(names) == 1 else 'secrets are'} there")


def _credential_names(provider: Provider) -> list[str]:
    """The variables of its credentials, each once."""
    names: dict[str, None] = {}
    for policy in provider.policies:
        names.update((variable, None) for account in policy.accounts.named for variable in account.variables)
        if policy.credentials is not None:
            names.update((variable, None) for variable in policy.credentials.variables)
    return list(names)
