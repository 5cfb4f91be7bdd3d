"""`paywitness policy explain`, the part about the rules that did not decide: each one above the chosen, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.policy.explain import Explanation
from proxy.workbench.why_not import passed_over


def told_of_the_others(explained: Explanation) -> Iterator[str]:
    """Lines for a person: the rules above the one that decided, in their order, each with its reason."""
    passed = list(passed_over(explained.context))
    if not passed:
        return
    yield "  not by:"
    width = max(len(one.rule) for one in passed)
    for one in passed:
        yield f"    {one.rule:<{width}}  {one.why}"
