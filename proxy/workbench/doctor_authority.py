"""The local authority: whether it covers the policies' hosts, how long it lives, and who can read its key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from proxy.authority.certificates import Authority, at
from proxy.authority.files import AuthorityFiles
from proxy.core.errors import PolicyError, SettingsError
from proxy.policy.book import load_directory
from proxy.settings import Settings
from proxy.workbench.finding import Finding, ok, unfit, warning

_SOON = timedelta(days=30)
_ROTATE = "`paywitness ca rotate`, let services load the bundle, then `paywitness ca rotate --finish`"


def authority_findings(settings: Settings, now: float) -> Iterator[Finding]:
    files = AuthorityFiles(settings.home)
    try:
        authority = files.read()
    except SettingsError as error:
        yield unfit("authority", str(error), "a start is refused", "Mend it, or remove ca.pem and ca.key")
        return
    if authority is None:
        yield ok("authority", "none: calls come by our own address; `paywitness ca init` lets them come by HTTPS_PROXY")
        return
    yield ok("authority key", "its owner's alone")
    yield from _covering(authority, settings)
    yield from _ending(authority, now)
    if not files.bundle_for_services.is_file():
        why = "services that are told of it do not start, or trust nobody"
        yield warning("authority bundle", f"{files.bundle_for_services} is missing", why, "`paywitness ca init`")


def _covering(authority: Authority, settings: Settings) -> Iterator[Finding]:
    try:
        book = load_directory(settings.policies)
    except PolicyError:
        return  # told by the check of the policies
    missing = authority.missing({host for provider in book.providers.values() for host in provider.hosts})
    if missing:
        found = f"it does not cover {', '.join(missing)}"
        why = "calls to them by HTTPS_PROXY or redirect are refused"
        yield warning("authority", found, why, "`paywitness ca init`")
    else:
        yield ok("authority", "covers every host of the policies")


def _ending(authority: Authority, now: float) -> Iterator[Finding]:
    until = f"{authority.ends_at:%Y-%m-%d}"
    left = authority.ends_at - at(now)
    if left <= timedelta(0):
        yield unfit("authority end", f"it ended on {until}", "no client believes it any more", _ROTATE)
    elif left < _SOON:
        yield warning("authority end", f"it ends on {until}", "from then on no client believes it", _ROTATE)
    else:
        yield ok("authority end", until)
