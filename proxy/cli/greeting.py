"""What a person who has just started a sidecar wants to know."""

from __future__ import annotations

from proxy.policy.book import PolicyBook
from proxy.settings import LOCAL, Settings, shown_address


def greeting(settings: Settings, book: PolicyBook, recovered: int) -> list[str]:
    """Its first lines: where it listens, for whom, and what it found."""
    providers = ", ".join(sorted(book.providers))
    lines = [
        f"Paywitness listens on {settings.listen.url}/{{provider}}/...  for: {providers}",
        f"Admin, metrics, health on {settings.admin.url}  journal: {settings.journal_shown}",
    ]
    observed = sorted(name for name, provider in book.providers.items() if provider.observe)
    if observed:
        lines.append(f"Only observed, so calls pass as they came and nothing guards them: {', '.join(observed)}")
    if settings.limits != LOCAL:
        lines.append(f"Retry budgets and circuits are the fleet's: {shown_address(settings.limits)}")
    elif settings.journal_path is None:
        lines.append("Retry budgets and circuits are this sidecar's own: give --limits redis://... to share them")
    if settings.webhooks is not None:
        told = sorted(name for name, provider in book.providers.items() if provider.notices is not None)
        lines.append(
            f"Webhooks on {settings.webhooks.url}/paywitness/webhooks/{{provider}}  for: {', '.join(told) or 'nobody'}"
        )
    if settings.events is not None:
        lines.append(f"Events go to {settings.events}")
    if settings.sandbox is not None:
        url = settings.sandbox.url
        lines.append(f"The sandbox provider listens on {url}  ledger: {url}/_sandbox/ledger")
        if url not in {provider.upstream for provider in book.providers.values()}:
            lines.append(f"No policy's upstream is the sandbox: set `upstream: {url}` in a policy to reach it.")
    if recovered:
        lines.append(f"Recovered what an earlier process had left under way: {recovered} operation(s).")
    return lines
