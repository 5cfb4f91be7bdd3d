"""Settings are read once and refused in words that say what to do."""

from __future__ import annotations

import stat
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from paywitness.admin.client import AdminClient
from paywitness.cli.run import run as run_command
from paywitness.core.errors import SettingsError
from paywitness.limits.factory import limits_factory, local_limits
from paywitness.option_defaults import (
    EVENTS_SECRET,
    Address,
    Settings,
    load_or_create_secret,
    read_address,
    read_duration,
    read_listener,
    read_sink,
)

TOP = Path(__file__).resolve().parents[1]
PAGE = (TOP / "docs" / "settings.md").read_text()
OPTIONS = [option for option in run_command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8700", Address("127.0.0.1", 8700)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, address: Address) -> None:
    assert read_address(text, "--listen") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["http://127.0.0.1:8701", "http://127.0.0.1:8701/", "127.0.0.1:8701"])
def test_an_address_may_be_a_url(text: str) -> None:
    """PAYWITNESS_ADMIN is read by the sidecar and the doctor, and by the commands that call the admin port."""
    assert read_address(text, "--admin") == Address("127.0.0.1", 8701)
    assert AdminClient(text, None).address == "http://127.0.0.1:8701"


@pytest.mark.parametrize("text", ["", "8700", ":8700", "host:", "host:port", "host:99999", "https://h:80", "h/p:80"])
def test_a_bad_address_names_its_flag_and_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--listen .*127\.0\.0\.1:8700"):
        read_address(text, "--listen")


def test_a_journal_url_is_a_path_relative_or_absolute() -> None:
    assert Settings(Path("p"), journal="sqlite:///a/b.db").journal_path == Path("a/b.db")
    assert Settings(Path("p"), journal="sqlite:////a/b.db").journal_path == Path("/a/b.db")


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://u:p@h:6380/1", "redis+sentinel://a:1,b:2/service"])
def test_a_journal_of_a_fleet_is_no_path(url: str) -> None:
    assert Settings(Path("p"), journal=url).journal_path is None


@pytest.mark.parametrize("url", ["postgres://localhost", "sqlite://", "sqlite:///", "sqlite://host/x.db", "x.db"])
def test_another_journal_is_refused_with_what_is_possible(url: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:///"):
        _ = Settings(Path("p"), journal=url).journal_path


def test_a_password_is_never_shown() -> None:
    url = "redis://user:pa/s@s@host:6379/0?sentinel_password=hidden"
    assert Settings(Path("p"), journal=url).journal_redacted_url == "redis://host:6379/0"
    for limits in (url.replace("redis:", "rebis:"), url.replace("6379", "a-port")):
        with pytest.raises(SettingsError) as refused:
            limits_factory(limits)
        assert "hidden" not in str(refused.value)
        assert "pa/s" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgres://localhost", "redis", "redis://localhost:port", ""])
def test_other_limits_are_refused_with_what_is_possible(url: str) -> None:
    assert limits_factory("local") is local_limits
    with pytest.raises(SettingsError, match="--limits"):
        limits_factory(url)


def test_a_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    assert load_or_create_secret(path, lambda: "first") == "first"
    assert load_or_create_secret(path, lambda: "second") == "first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_empty_secret_file_is_never_taken_for_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch()
    with pytest.raises(SettingsError, match="empty"):
        load_or_create_secret(path, lambda: "fresh")


def test_a_listener_may_be_off() -> None:
    assert read_listener("off", "--webhooks") is None
    assert read_listener("0.0.0.0:80", "--webhooks") == Address("0.0.0.0", 80)
    with pytest.raises(SettingsError, match="--webhooks"):
        read_listener("on", "--webhooks")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300ms", 0.3), ("2s", 2.0), ("5m", 300.0), ("24h", 86400.0), ("30d", 2_592_000.0), ("0", 0.0), ("off", 0.0)],
)
def test_a_duration_is_written_as_in_a_policy(text: str, seconds: float) -> None:
    assert read_duration(text, "--harvest", least_s=0, most_s=1e9) == seconds


@pytest.mark.parametrize("text", ["", "5", "1.5s", "-1s", "5 m", "5w", "5m5s", "s", "\u0665s", "5s\n", "9999999999s"])
def test_a_bad_duration_names_its_flag_and_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--harvest .*300ms, 2s, 5m"):
        read_duration(text, "--harvest", least_s=0, most_s=1e9)


@pytest.mark.parametrize("text", ["0", "off", "59s", "366d"])
def test_a_duration_out_of_bounds_is_told_the_bounds(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--retention .*(1m to 365d|such as)"):
        read_duration(text, "--retention", least_s=60, most_s=365 * 86400)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:9/events", "https://company.test/hook?of=payments", "http://[::1]/"]
)
def test_a_sink_is_an_http_address(text: str) -> None:
    assert read_sink(text, "--events") == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "company.test/hook", "ftp://company.test/", "http://", "https:///path", "http://company.test:port/"),
        *("http://user:pass@company.test/", "http://company.test/#here", "http://company.test/a b", "http://[::1/"),
    ],
)
def test_another_sink_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(SettingsError, match="--events") as refused:
        read_sink(text, "--events")
    assert "pass@" not in str(refused.value)


def test_the_spool_stands_in_our_home_unless_it_has_a_place_of_its_own() -> None:
    assert Settings(Path("p"), home=Path("h")).spool_directory == Path("h/spool")
    assert Settings(Path("p"), home=Path("h"), spool=Path("/s")).spool_directory == Path("/s")


def test_a_payment_is_never_forgotten_before_its_operations() -> None:
    day_s = 86400.0
    assert Settings(Path("p")).kept_for_s == (30 * day_s, 90 * day_s, 400 * day_s)
    assert Settings(Path("p"), retention_s=500 * day_s).kept_for_s == (500 * day_s, 90 * day_s, 500 * day_s)
    assert Settings(Path("p"), payments_kept_s=60 * day_s).kept_for_s == (30 * day_s, 90 * day_s, 60 * day_s)


# --- flags, environment and paywitness.yaml, as `paywitness run` joins them


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Settings]:
    """What would have been started. Nothing of the machine's own comes in."""
    settings: list[Settings] = []
    monkeypatch.setattr(import_module("paywitness.cli.run"), "_run", settings.append)
    monkeypatch.chdir(tmp_path)
    for option in OPTIONS:
        monkeypatch.delenv(str(option.envvar), raising=False)
    return settings


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(run_command, arguments, env=environment)


def test_what_nobody_sets_is_as_the_settings_say(started: list[Settings]) -> None:
    assert run("--policies", "p").exit_code == 0
    assert started == [Settings(Path("p"))]


CHANGED: dict[str, tuple[str, str, Any]] = {
    "webhooks": ("0.0.0.0:443", "webhooks", Address("0.0.0.0", 443)),
    "events": ("https://company.test/hook", "events", "https://company.test/hook"),
    "retention": ("24h", "retention_s", 86400.0),
    "tombstones": ("400d", "tombstones_s", 400 * 86400.0),
    "payments-kept": ("800d", "payments_kept_s", 800 * 86400.0),
    "resolvers": ("4", "resolvers", 4),
    "resolvers-per-provider": ("2", "resolvers_per_provider", 2),
    "harvest": ("1500ms", "late_response_s", 1.5),
    "spool": ("elsewhere", "spool", Path("elsewhere")),
    "lease-seconds": ("6", "lease_s", 6.0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_option_is_taken_from_a_flag_the_environment_or_the_file(
    started: list[Settings], tmp_path: Path, name: str
) -> None:
    text, field, value = CHANGED[name]
    variable = "PAYWITNESS_" + name.upper().replace("-", "_")
    results = [run(f"--{name}", text), run(**{variable: text})]
    (tmp_path / "paywitness.yaml").write_text(f"{name}: {text}\n")
    results.append(run())
    assert [result.output for result in results] == ["", "", ""]
    assert [getattr(settings, field) for settings in started] == [value] * 3


def test_a_flag_wins_over_the_environment_and_that_over_the_file(started: list[Settings], tmp_path: Path) -> None:
    (tmp_path / "paywitness.yaml").write_text("retention: 1h\n")
    run("--retention", "3h", PAYWITNESS_RETENTION="2h")
    run(PAYWITNESS_RETENTION="2h")
    run()
    assert [settings.retention_s for settings in started] == [3 * 3600.0, 2 * 3600.0, 3600.0]


@pytest.mark.parametrize("text", ["off", "'off'", "false"])
def test_off_in_the_file_is_off_whatever_yaml_takes_it_for(started: list[Settings], tmp_path: Path, text: str) -> None:
    (tmp_path / "paywitness.yaml").write_text(f"webhooks: {text}\nharvest: {text}\nevents: {text}\nwith-sandbox: off\n")
    assert run().output == ""
    (settings,) = started
    assert (settings.webhooks, settings.late_response_s, settings.events, settings.sandbox) == (None, 0.0, None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--webhooks", "nowhere"),
        ("--events", "company.test"),
        ("--retention", "1s"),
        ("--tombstones", "1h"),
        ("--payments-kept", "1h"),
        ("--harvest", "10m"),
        ("--resolvers", "0"),
        ("--resolvers-per-provider", "1001"),
        ("--lease-seconds", "5"),
        ("--webhook-body-bytes", "100"),
        ("--webhook-rate", "0"),
        ("--trusted-proxies", "10.0.0.1/8"),
        ("--allowed-hosts", "pay.example.com:443"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_the_flag(
    started: list[Settings], arguments: tuple[str, str]
) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert arguments[0] in result.output.splitlines()[-1]
    assert "Traceback" not in result.output
    assert started == []


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_every_option_is_documented_with_its_variable_and_its_default(option: click.Option) -> None:
    flag = option.opts[0]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{flag}` |")]
    assert f"`{option.envvar}`" in row
    default = option.default
    if isinstance(default, (str, int, float, Path)) and not isinstance(default, bool):
        assert f"`{default:g}`" in row if isinstance(default, float) else f"`{default}`" in row


def test_no_option_is_documented_that_does_not_exist() -> None:
    listed = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `--")}
    assert listed == {option.opts[0] for option in OPTIONS}


def test_the_secrets_are_documented_and_have_no_flag() -> None:
    for name in ("PAYWITNESS_IDENTITY_SECRET", "PAYWITNESS_ENCRYPTION_KEYS", "PAYWITNESS_ADMIN_TOKEN", EVENTS_SECRET):
        assert f"| `{name}` |" in PAGE
        assert name not in {option.envvar for option in OPTIONS}
