"""What a Redis says of itself (INFO, CONFIG), judged. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.journal.redis_url import Place
from proxy.workbench.finding import Finding, ok, unfit, warning

CONFIGURATION = ("appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory", "min-replicas-to-write")

_OLDEST = (7, 0)  # as the journal asks for when it is opened
_FULL_WARN, _FULL_UNFIT = 0.80, 0.95  # of its memory
_MIB = 1 << 20

Facts = dict[str, str]


def _replicas_in(info: Facts) -> int:
    """Those that are connected and filled."""
    told = (info.get(f"slave{number}", "") for number in range(_number(info, "connected_slaves")))
    return sum("state=online" in replica for replica in told)


def of_journal(info: Facts, configured: Facts | str, place: Place) -> Iterator[Finding]:
    yield _version("journal", info)
    yield from _one_primary(info)
    if isinstance(configured, str):
        yield from _on_the_operators_word(info, configured, place)
        configured = {}
    else:
        yield from _persistence(configured)
        yield _eviction(configured.get("maxmemory-policy", ""))
    yield from _disk(info)
    yield _memory(info)
    yield _replicas(_replicas_in(info), configured.get("min-replicas-to-write", "0"), place)


def of_limits(info: Facts, *, cluster: bool) -> Iterator[Finding]:
    """Budgets and circuits are forgotten without harm: persistence and eviction do not matter."""
    yield _version("limits", info)
    enabled = info.get("cluster_enabled") == "1"
    if enabled == cluster:
        yield ok("limits mode", "a Redis Cluster" if cluster else "one primary")
    elif enabled:
        why = "half of the keys are elsewhere"
        yield unfit("limits mode", "it is a Redis Cluster", why, "Write --limits redis+cluster://...")
    else:
        why = "its client asks for slots that it does not have"
        yield unfit("limits mode", "it is no Redis Cluster", why, "Write --limits redis://...")
    if not cluster and info.get("role", "master") != "master":
        yield unfit("limits role", "it is a replica", "it takes no writes", "Name the primary, or its sentinels")


def of_cluster(told: Facts) -> Finding:
    state = told.get("cluster_state", "unknown")
    if state == "ok":
        return ok("limits cluster", f"{told.get('cluster_size', '?')} primaries, all slots served")
    return unfit("limits cluster", f"its state is {state}", "some slots are not served", "See CLUSTER INFO")


def _version(room: str, info: Facts) -> Finding:
    version = info.get("redis_version", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        needed = f"{_OLDEST[0]}.{_OLDEST[1]}"
        return unfit(f"{room} version", version, f"its scripts need {needed}", f"Use Redis {needed} or newer")
    return ok(f"{room} version", version)


def _one_primary(info: Facts) -> Iterator[Finding]:
    if info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster":
        why = "a step touches keys that a cluster would scatter"
        yield unfit("journal mode", "it is a Redis Cluster", why, "Use one primary, with replicas and sentinels")
    elif info.get("role") != "master":
        yield unfit("journal mode", "it is a replica", "it takes no writes", "Name the primary, or its sentinels")
    else:
        yield ok("journal mode", "one primary")


def _on_the_operators_word(info: Facts, refusal: str, place: Place) -> Iterator[Finding]:
    subject = "journal persistence"
    if not place.asserted:
        why = "nobody can look at persistence and eviction, and a start is refused"
        remedy = "Make sure of both by other means, then add ?assert_persistence=yes to the URL; or allow CONFIG GET"
        yield unfit(subject, f"CONFIG is forbidden ({refusal})", why, remedy)
        return
    why = "nobody has looked at persistence and eviction"
    remedy = "Look again whenever the plan at its provider changes"
    yield warning(subject, "CONFIG is forbidden; assert_persistence=yes is the operator's word", why, remedy)
    if info.get("aof_enabled") == "0":
        why = "unless it is durable otherwise, it forgets acknowledged writes when it stops"
        yield warning(subject, "INFO says that it keeps no append-only file", why, "Make sure of it")
    policy = info.get("maxmemory_policy")
    if policy is not None:
        yield _eviction(policy)


def _persistence(configured: Facts) -> Iterator[Finding]:
    subject, fsync = "journal persistence", configured.get("appendfsync", "unknown")
    if configured.get("appendonly") != "yes":
        snapshots = f"save is `{configured.get('save')}`" if configured.get("save") else "it makes no snapshots either"
        why = "it forgets acknowledged payments when it stops"
        remedy = "Set `appendonly yes` (CONFIG SET, and in redis.conf)"
        yield unfit(subject, f"appendonly is no, {snapshots}", why, remedy)
        return
    if fsync == "always":
        yield ok(subject, "appendonly yes, appendfsync always")
    elif fsync == "everysec":
        why = "a loss of power loses up to two seconds; so does a killed Redis while its disk is slow"
        remedy = "Have a replica on another machine (we wait for it before a send), or set `appendfsync always`"
        yield warning(subject, "appendonly yes, appendfsync everysec", why, remedy)
    else:
        why = "a loss of power loses what the system had not written, half a minute perhaps"
        yield unfit(subject, f"appendonly yes, appendfsync {fsync}", why, "Set `appendfsync everysec` or `always`")
    if configured.get("save"):
        yield ok("journal snapshots", f"save is `{configured['save']}`", "the append-only file is what counts")


def _eviction(policy: str) -> Finding:
    if policy == "noeviction":
        return ok("journal eviction", "maxmemory-policy noeviction")
    why = "with its memory full it throws payments away, and they would be made again"
    remedy = "Set `maxmemory-policy noeviction` (CONFIG SET, and in redis.conf)"
    return unfit("journal eviction", f"maxmemory-policy {policy or 'unknown'}", why, remedy)


def _disk(info: Facts) -> Iterator[Finding]:
    """What Redis says of its own writing. Snapshots that fail stop writes too, by its default."""
    for name, what in (
        ("aof_last_write_status", "append-only file"),
        ("rdb_last_bgsave_status", "last snapshot"),
        ("aof_last_bgrewrite_status", "last rewrite of the append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            why = "with a failing disk it takes no writes"
            yield unfit("journal disk", f"its {what} failed ({name})", why, "Look at its log and at its disk")


def _memory(info: Facts) -> Finding:
    subject, used = "journal memory", _number(info, "used_memory")
    limit, of_what = _number(info, "maxmemory"), "maxmemory"
    if not limit:
        limit, of_what = _number(info, "total_system_memory"), "the machine's (maxmemory is not set)"
    if not limit:
        return ok(subject, f"{used // _MIB:,} MiB used")
    share, found = used / limit, f"{used // _MIB:,} MiB used of {limit // _MIB:,} MiB, {of_what}"
    if share <= _FULL_WARN:
        return ok(subject, found)
    say = unfit if share > _FULL_UNFIT else warning
    return say(subject, found, "when it is full no payment is taken", "Raise maxmemory, or shorten --retention")


def _replicas(connected: int, wanted_by_redis: str, place: Place) -> Finding:
    subject = "journal replicas"
    found = f"{connected} connected, min-replicas-to-write {wanted_by_redis}"
    needed = int(wanted_by_redis) if wanted_by_redis.isdecimal() else 0
    if place.replicas is not None:
        found += f", replicas={place.replicas} in the URL"
        needed = max(needed, place.replicas)
    if connected < needed:
        why = "fewer than are asked for: nothing would be sent"
        return unfit(subject, found, why, "Start the replicas, or ask for fewer")
    if not connected and place.replicas is None:
        why = "a machine that is lost takes the journal with it"
        return warning(subject, found, why, "Give it a replica on another machine: we then wait for it before a send")
    return ok(subject, found)


def _number(info: Facts, name: str) -> int:
    text = info.get(name, "0")
    return int(text) if text.isdecimal() else 0
