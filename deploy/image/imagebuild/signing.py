"""Signs a release with cosign: its checksums, which name every other file, and its provenance."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import CannotBuildError


@dataclass(frozen=True, slots=True)
class Signer:
    """How to sign. `key`: what cosign's --key takes (a file, a KMS address); None: keyless, by an OIDC identity."""

    cosign: str
    key: str | None

    def sign(self, file: Path) -> Path:
        """Write the signature as a bundle beside the file."""
        bundle = file.with_name(f"{file.name}.sigstore.json")
        how = [] if self.key is None else ["--key", self.key]
        command = [self.cosign, "sign-blob", "--yes", *how, "--bundle", str(bundle), str(file)]
        done = subprocess.run(command, check=False)  # noqa: S603  # it may ask for a password or print an address
        if done.returncode or not bundle.is_file():
            raise CannotBuildError(
                f"cosign did not sign {file.name} (exit status {done.returncode}); what it said is above"
            )
        return bundle


def signer(key: str | None, *, keyless: bool) -> Signer | None:
    """How the options want a release to be signed; None: not at all. Raises CannotBuildError, before a build."""
    if key is not None and keyless:
        raise CannotBuildError("--key and --keyless exclude each other: omit one of them")
    if key is None and not keyless:
        return None
    cosign = shutil.which("cosign")
    if cosign is None:
        option = "--keyless" if keyless else "--key"
        raise CannotBuildError(f"{option} needs cosign, which is not on PATH: install it, or omit the option")
    return Signer(cosign, key)


def sign(files: Sequence[Path], by: Signer | None, say: Callable[[str], None]) -> None:
    if by is None:
        names = " and ".join(file.name for file in files)
        have = "cosign is here" if shutil.which("cosign") else "cosign is not on PATH"
        say(f"  not signed: {names}. {have}; --key FILE signs with a key (COSIGN_KEY), --keyless by an identity")
        return
    for file in files:
        say(f"  signed: {by.sign(file).name}")
