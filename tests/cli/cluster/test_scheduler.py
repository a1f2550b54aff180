"""`aliquot scheduler`: the command line over the file over the environment, and every slip named with its field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.adapters.kubernetes.kube import Server
from aliquot.cli.cluster.scheduler import scheduler
from aliquot.cli.errors import InputError
from aliquot.cli.options.webhook import scheduler_names
from aliquot.dialects import MemoryUnit, QgpuRules
from aliquot.services.dashboard.access import Listen
from aliquot.services.scheduler.ports.verbstls import VerbsTls
from aliquot.services.scheduler.settings import Settings
from aliquot.services.scheduler.watches.firstlists import FirstLists
from kit.clusters.kubectl import invoked

USUAL = Listen("127.0.0.1", 12346, usual=True)


class Started:
    """What would have been started."""

    server: Server
    settings: Settings
    level: str
    error: Exception | None = None


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A machine with a kubeconfig, on which a scheduler is not started but noted."""
    found = Started()

    class Noted:
        def __init__(self, server: Server, settings: Settings, started: object) -> None:
            found.server, found.settings = server, settings

        async def run(self) -> None:
            if found.error is not None:
                raise found.error

    monkeypatch.setattr("aliquot.services.scheduler.service.Scheduler", Noted)
    monkeypatch.setattr("aliquot.services.scheduler.starting.request_first_lists", lambda *_: FirstLists())
    monkeypatch.setattr("aliquot.adapters.host.logs.start_logging", lambda level: setattr(found, "level", level))
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path / "env.yaml", "http://environment")))
    monkeypatch.delenv("PORT", raising=False)
    return found


def _kubeconfig(path: Path, url: str) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
            }
        )
    )
    return path


def _file(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "the_config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def _ran(*words: object) -> None:
    result = invoked(scheduler, *map(str, words))
    assert (result.exit_code, result.stderr) == (0, "")


def _refused(*words: object) -> str:
    result = invoked(scheduler, *map(str, words))
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    return result.stderr


def test_scheduler_defaults_match_help(started: Started) -> None:
    _ran()
    assert started.settings == Settings(dashboard=USUAL)
    assert (started.settings.port, started.settings.priority) == (12345, "binpack")
    assert (started.server.url, started.level) == ("http://environment", "info")


def test_scheduler_accepts_qgpu_scheduler_command(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "39999")
    _ran("--priority=binpack")
    assert (started.settings.priority, started.settings.port) == ("binpack", 39999)


def test_options_override_file_and_environment(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "1")
    path = _file(tmp_path, {"port": 2, "priority": "spread", "leader-elect": False, "keep_nodes": False})
    _ran("--config", path, "--priority", "fgd", "--keep-nodes")
    settings = started.settings
    assert (settings.port, settings.priority, settings.leader_elect, settings.keep_nodes) == (2, "fgd", False, True)
    _ran("--config", path, "--port", "3")
    assert (started.settings.port, started.settings.priority) == (3, "spread")


def test_config_file_sets_all_options(started: Started, tmp_path: Path) -> None:
    kubeconfig = _kubeconfig(tmp_path / "named.yaml", "http://named")
    path = _file(
        tmp_path,
        {
            "rules": 2026,
            "memory-unit": "MiB",
            "bind-address": "127.0.0.1",
            "lease-namespace": "gpu",
            "lease-name": "l",
            "advertise": "h:1",
            "log-level": "debug",
            "kubeconfig": str(kubeconfig),
        },
    )
    _ran("--config", path)
    settings = started.settings
    assert (settings.rules, settings.memory_unit) == (QgpuRules.Y2026, MemoryUnit.MIB)
    assert (settings.bind_address, settings.advertise) == ("127.0.0.1", "h:1")
    assert (settings.lease_namespace, settings.lease_name) == ("gpu", "l")
    assert (started.server.url, started.level) == ("http://named", "debug")


@pytest.mark.parametrize("content", ["", "{}", "# nothing\n"])
def test_config_file_may_be_empty(started: Started, tmp_path: Path, content: str) -> None:
    _ran("--config", _file(tmp_path, content))
    assert started.settings == Settings(dashboard=USUAL)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "１２", "80 ", "9" * 5000], ids=lambda port: port[:8])
def test_invalid_port_variable_is_refused(started: Started, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("PORT", port)
    assert f'$PORT: "{port}" is not allowed: a number from 1 to 65535' in _refused()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not YAML"),
        ("- a", "must be a mapping of options, for example `priority: spread`"),
        ({"prio": "spread"}, "prio: unknown option; allowed: advertise, agent-port, bind-address"),
        ({"priority": "best"}, 'priority: "best" is not allowed: one of binpack, spread, fgd, dense'),
        ({"priority": None}, 'priority: "None" is not allowed: one of'),
        ({"port": "80"}, 'port: "80" is not allowed: a number from 1 to 65535'),
        ({"port": 0}, 'port: "0" is not allowed'),
        ({"port": True}, 'port: "True" is not allowed'),
        ({"leader-elect": "yes please"}, 'leader-elect: "yes please" is not allowed: true or false'),
        ({"lease_name": 5}, 'lease_name: "5" is not allowed: text'),
        ({"rules": "new"}, 'rules: "new" is not allowed: one of seed, 2026'),
        ({"memory-unit": "GB"}, 'memory-unit: "GB" is not allowed: one of auto, GiB, MiB'),
        ({"log-level": "loud"}, 'log-level: "loud" is not allowed: one of debug, info, warning'),
        ({"webhook-port": 65536}, 'webhook-port: "65536" is not allowed: a number from 0 to 65535'),
        ({5: "x"}, "5: unknown option"),
    ],
    ids=str,
)
def test_config_file_error_names_file_field_and_allowed(
    started: Started, tmp_path: Path, content: object, says: str
) -> None:
    path = _file(tmp_path, content)
    said = _refused("--config", path)
    assert f"{path}: " in said
    assert says in said


def test_missing_config_file_is_reported(started: Started, tmp_path: Path) -> None:
    assert f"{tmp_path}/none: No such file" in _refused("--config", tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--priority", "best"], "'best' is not one of"),
        (["--port", "0"], "--port"),
        (["--memory-unit", "GB"], "--memory-unit"),
        (["--dialects", "qgpu,nano"], '--dialects: "qgpu,nano" is not allowed: qgpu, t9k, gpushare'),
        (["--dialects", ""], "--dialects"),
        (["--kubeconfig", "/no/such/file"], "/no/such/file: No such file"),
        (["--webhook-url", "https://x"], "add --webhook-port"),
        (["--webhook-port", "1", "--webhook-url", "http://x"], "https://HOST:PORT"),
        (["--webhook-client-names", "a"], "add --webhook-port"),
        (["--webhook-port", "1", "--webhook-client-names", "a"], "need each other"),
        (["--webhook-port", "1", "--webhook-client-ca", "/no/file"], "need each other"),
        (
            ["--webhook-port", "1", "--webhook-client-ca", "/no/file", "--webhook-client-names", "a"],
            "--webhook-client-ca: /no/file: No such file",
        ),
        (
            ["--webhook-port", "1", "--webhook-client-ca", "/dev/null", "--webhook-client-names", "a"],
            "--webhook-client-ca: /dev/null: the authorities' certificates cannot be used",
        ),
        (["--webhook-port", "1", "--webhook-service", "x"], "NAMESPACE/NAME"),
        (["--webhook-port", "1", "--webhook-service", "a/b", "--webhook-url", "https://x"], "omit one of them"),
    ],
    ids=" ".join,
)
def test_invalid_scheduler_option_is_refused(started: Started, words: list[str], says: str) -> None:
    assert says in _refused(*words)


def test_scheduler_without_kubeconfig_gives_advice(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "name a file with --kubeconfig" in _refused()


def test_scheduler_port_in_use_is_reported(started: Started) -> None:
    started.error = OSError(98, "Address already in use")
    said = _refused("--bind-address", "127.0.0.1", "--port", "4444")
    assert "cannot listen on 127.0.0.1:4444: Address already in use; choose another --port" in said


def test_metrics_port_must_be_free_only_if_it_was_named(started: Started) -> None:
    _ran()
    assert started.settings.metrics == Listen("0.0.0.0", 12347, usual=True)
    _ran("--metrics-port", "9", "--bind-address", "127.0.0.1")
    assert started.settings.metrics == Listen("127.0.0.1", 9)


def test_verbs_without_tls_listen_on_loopback(started: Started) -> None:
    _ran()
    assert (started.settings.bind_address, started.settings.tls) == ("127.0.0.1", None)
    for address in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        _ran("--bind-address", address)
        assert started.settings.bind_address == address


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7", "node-1", ""])
def test_verbs_without_tls_off_loopback_need_a_flag(
    started: Started, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    said = _refused("--bind-address", address)
    assert f'--bind-address: "{address}" is not allowed: anybody who reaches the port could have Pods bound' in said
    assert "--insecure-verbs" in said
    _ran("--bind-address", address, "--insecure-verbs")
    assert started.settings.bind_address == address
    assert "verbs_without_tls" in caplog.text


def test_tls_port_is_on_all_addresses_and_leaves_plain_verbs_on_loopback(started: Started) -> None:
    _ran("--tls-port", "12348", "--lease-namespace", "gpu", "--lease-name", "l")
    assert started.settings.tls == VerbsTls(12348, "0.0.0.0", "gpu", lease="l")
    assert started.settings.bind_address == "127.0.0.1"
    _ran("--tls-port", "12348", "--bind-address", "10.0.0.7")
    settings = started.settings
    assert settings.tls is not None
    assert (settings.tls.bind_address, settings.metrics.address, settings.bind_address) == (
        "10.0.0.7",
        "10.0.0.7",
        "127.0.0.1",
    )


def test_vendors_name_listens_as_the_vendors_program_does_and_says_so(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    """A manifest of which only the image was changed: its kube-scheduler calls by HTTP, maybe from another host."""
    _ran("--drop-in")
    assert started.settings.bind_address == "0.0.0.0"
    assert "verbs_without_tls" in caplog.text
    _ran("--drop-in", "--tls-port", "12348")
    assert started.settings.bind_address == "127.0.0.1"
    _ran("--drop-in", "--bind-address", "127.0.0.1")
    assert started.settings.bind_address == "127.0.0.1"
    assert "0.0.0.0" in _refused("--drop-in", "--bind-address", "0.0.0.0")


def test_dialects_option_selects_served_dialects(started: Started, tmp_path: Path) -> None:
    _ran("--dialects", "qgpu, gpushare", "--webhook-port", "8443")
    webhook: Any = started.settings.webhook
    assert started.settings.served == webhook.served == {"qgpu", "gpushare"}
    _ran("--config", _file(tmp_path, {"dialects": "t9k"}))
    assert started.settings.served == {"t9k"}
    _ran()
    assert started.settings.served == {"qgpu", "t9k", "gpushare"}


def test_pod_namespace_is_used_for_lease_and_webhook(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "aliquot-system")
    _ran("--webhook-port", "8443")
    webhook: Any = started.settings.webhook
    assert started.settings.lease_namespace == webhook.namespace == webhook.where.namespace == "aliquot-system"
    _ran("--lease-namespace", "gpu")
    assert started.settings.lease_namespace == "gpu"


def test_webhook_is_off_without_port(started: Started) -> None:
    _ran("--webhook-port", "0")
    assert started.settings.webhook is None
    _ran("--webhook-port", "8443", "--bind-address", "127.0.0.1")
    webhook: Any = started.settings.webhook
    assert (webhook.port, webhook.bind_address) == (8443, "127.0.0.1")


def test_scheduler_name_option_per_dialect() -> None:
    assert scheduler_names("aliquot-scheduler,t9k=t9k-scheduler") == ("aliquot-scheduler", {"t9k": "t9k-scheduler"})
    assert scheduler_names("t9k=t9k-scheduler") == (None, {"t9k": "t9k-scheduler"})
    assert scheduler_names("") == (None, {})
    for wrong in ("a,b", "t9k=", "volcano=x"):
        with pytest.raises(InputError, match="--scheduler-name"):
            scheduler_names(wrong)


def test_scheduler_starts_without_threads_for_matrices(tmp_path: Path) -> None:
    lines = [
        "import os",
        "from aliquot.cli.cluster.scheduler import scheduler",
        "from aliquot.cli.errors import InputError",
        "try: scheduler(['--kubeconfig', 'missing'], standalone_mode=False)",
        "except InputError: print(len(os.listdir('/proc/self/task')))",
    ]
    program = [sys.executable, "-c", "\n".join(lines)]
    answer = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert answer == "1\n"
