"""Build hook: generate the Python stubs of `turnd.v1` from `proto/`.

Run by hatchling for wheels and editable installs alike, and as a script by `make proto`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_ROOT = "proto"
PACKAGE = Path("turnd", "v1")
OUTPUT_ROOT = "daemon"
STUB_GLOBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


class StubGenerationError(RuntimeError):
    """The stubs could not be made; the message says which tool or file is at fault."""


class StubBuildHook(BuildHookInterface[Any]):
    """Generates the stubs before hatchling collects the files of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; `version` is the kind of build (`standard` or `editable`)."""
        generate(Path(self.root))


def generate(root: Path) -> list[Path]:
    """Write the stubs of `proto/turnd/v1/*.proto` below `root` into `daemon/turnd/v1`; return their paths.

    Stubs whose `.proto` is gone are removed. A file whose text stays the same keeps its time stamp, so that
    type checkers and `make` do not see a change where there is none. When the compiler fails nothing changes.
    Raises StubGenerationError.
    """
    sources = sorted((root / PROTO_ROOT / PACKAGE).glob("*.proto"))
    if not sources:
        raise StubGenerationError(f"expected .proto files in {root / PROTO_ROOT / PACKAGE}, found none")
    output = root / OUTPUT_ROOT / PACKAGE
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnd-stubs-") as scratch:
        _compile(root / PROTO_ROOT, sources, Path(scratch))
        fresh = {
            path.name: path for pattern in STUB_GLOBS for path in (Path(scratch) / PACKAGE).glob(pattern)
        }
        for stale in (
            path for pattern in STUB_GLOBS for path in output.glob(pattern) if path.name not in fresh
        ):
            stale.unlink()
        return [_install(path, output / name) for name, path in sorted(fresh.items())]


def _compile(proto_root: Path, sources: list[Path], destination: Path) -> None:
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={proto_root}",
        f"--proto_path={well_known}",
        f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
        f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
        f"--python_out={destination}",
        f"--grpc_python_out={destination}",
        f"--mypy_out=quiet:{destination}",
        f"--mypy_grpc_out=quiet:{destination}",
        *map(str, sources),
    ]
    status = protoc.main(arguments)
    if status != 0:
        raise StubGenerationError(
            f"protoc ended with status {status}; its own message above names the file and line"
        )


def _plugin(name: str) -> str:
    # An environment that was not activated does not have its scripts on PATH.
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=search)
    if found is None:
        raise StubGenerationError(
            f"expected the protoc plugin {name} (of mypy-protobuf), found none on {search}"
        )
    return found


def _install(source: Path, target: Path) -> Path:
    text = source.read_bytes()
    if not target.exists() or target.read_bytes() != text:
        target.write_bytes(text)
    return target


if __name__ == "__main__":
    try:
        generate(Path(__file__).resolve().parent)
    except StubGenerationError as error:
        sys.exit(f"error: {error}")
