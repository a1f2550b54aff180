"""What several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kit.clusters.installapi import FakeApi, kubeconfig


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    url = f"http://127.0.0.1:{fake.server.server_address[1]}"
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(url)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield fake
    fake.server.shutdown()
    fake.server.server_close()
