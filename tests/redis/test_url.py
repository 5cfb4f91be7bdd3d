"""The URLs of Redis, of a journal and of limits."""

from __future__ import annotations

import pytest

from paywitness.core.errors import SettingsError
from paywitness.redis.connection import new_connection
from paywitness.redis.url import RedisTarget, parse_limits_url, parse_redis_url


class TestJournalUrls:
    @pytest.mark.parametrize(
        ("url", "place"),
        [
            ("redis://localhost", RedisTarget((("localhost", 6379),))),
            ("redis://[::1]:7000/3", RedisTarget((("::1", 7000),), database=3)),
            ("redis://ada:p%40ss@h/0", RedisTarget((("h", 6379),), user="ada", password="p@ss")),
            ("redis://:pass@h", RedisTarget((("h", 6379),), password="pass")),
            ("rediss://h?ca=/ca.pem", RedisTarget((("h", 6379),), tls=True, ca="/ca.pem")),
            ("redis://h?prefix=shop:", RedisTarget((("h", 6379),), prefix="shop:{j}:")),
            (
                "redis://h?assert_persistence=yes&replicas=2",
                RedisTarget((("h", 6379),), persistence_asserted=True, replicas=2),
            ),
            ("redis+sentinel://a,b:1/pay", RedisTarget((("a", 26379), ("b", 1)), service="pay")),
            (
                "rediss+sentinel://u:p@a/pay/2?sentinel_password=s",
                RedisTarget((("a", 26379),), "pay", 2, "u", "p", tls=True, sentinel_password="s"),
            ),
        ],
    )
    def test_what_they_say(self, url: str, place: RedisTarget) -> None:
        assert parse_redis_url(url) == place

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("http://h", "begins with none of"),
            ("redis://", "names no host"),
            ("redis://h:many", "(?i)port"),
            ("redis://h/a/b", "more than a database"),
            ("redis://h/first", "database is no number"),
            ("redis+sentinel://h", "names no service"),
            ("redis://h?colour=red", "unknown: colour"),
            ("redis://h?assert_persistence=perhaps", "yes or no"),
            ("redis://h?replicas=some", "auto or a number"),
        ],
    )
    def test_what_they_must_not_say(self, url: str, why: str) -> None:
        with pytest.raises(SettingsError, match=why):
            parse_redis_url(url)

    def test_a_password_is_never_shown(self) -> None:
        place = parse_redis_url("redis+sentinel://ada:secret@h/pay?sentinel_password=hidden")
        assert "secret" not in f"{place} {place!r}"
        assert "hidden" not in f"{place} {place!r}"

    def test_a_piece_of_a_password_is_not_shown_as_a_database(self) -> None:
        with pytest.raises(SettingsError) as caught:
            parse_redis_url("redis://ada:12/secret@h")
        assert "secret" not in f"{caught.value} {caught.value.__cause__}"


class TestLimitsUrls:
    @pytest.mark.parametrize(
        ("url", "target"),
        [
            (
                "redis://user:word@127.0.0.1:6379/2",
                RedisTarget((("127.0.0.1", 6379),), "", 2, "user", "word", prefix="paywitness"),
            ),
            ("redis://127.0.0.1?prefix=shop:", RedisTarget((("127.0.0.1", 6379),), prefix="shop")),
            ("redis://h?prefix=", RedisTarget((("h", 6379),), prefix="paywitness")),
            ("redis://h?colour=red", RedisTarget((("h", 6379),), prefix="paywitness")),
            (
                "redis+sentinel://one:26379,two/service/1?prefix=shop",
                RedisTarget((("one", 26379), ("two", 26379)), "service", 1, prefix="shop"),
            ),
            ("rediss+sentinel://one/service", RedisTarget((("one", 26379),), "service", tls=True, prefix="paywitness")),
            (
                "rediss+cluster://one?ca=/ca.pem",
                RedisTarget((("one", 6379),), tls=True, ca="/ca.pem", prefix="paywitness", cluster=True),
            ),
        ],
    )
    def test_what_they_say(self, url: str, target: RedisTarget) -> None:
        assert parse_limits_url(url) == target

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("http://127.0.0.1", r"--limits http://: give local, redis://"),
            ("redis+something://127.0.0.1", r"--limits redis\+something://"),
            ("redis://127.0.0.1:port", "cannot be used: its port is no number"),
            ("redis+sentinel://127.0.0.1:26379", "names no service"),
            ("redis://127.0.0.1?prefix={x}", "without braces"),
            ("redis+cluster://127.0.0.1/2", "database 0"),
        ],
    )
    def test_what_they_must_not_say(self, url: str, why: str) -> None:
        with pytest.raises(SettingsError, match=why):
            parse_limits_url(url)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h", "redis+sentinel://h/service"])
def test_a_connection_never_tries_again_by_itself(url: str) -> None:
    retry = new_connection(parse_limits_url(url), "h", 1).retry
    assert retry is not None
    assert retry.get_retries() == 0
