"""Check what is to be published, wheels, source distributions and bills of materials: check_dist.py FILE...

Their size, what they require, the licences in them, with twine what PyPI shows of them, bills of materials by the
schema of CycloneDX, and that a wheel's module takes nothing from a later C library. Needs the extra `release`.
"""

import email
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from symbols import unversioned

MOST_BYTES = 6 << 20
REQUIRED = {"numpy", "msgspec"}


def metadata(text: str) -> list[str]:
    """What is wrong with the package's own description."""
    found = email.message_from_string(text)
    names = {line.partition(">=")[0] for line in found.get_all("Requires-Dist", []) if "extra ==" not in line}
    return [] if names == REQUIRED else [f"requires {names}, not {REQUIRED}"]


def bill(text: str) -> list[str]:
    wrong = JsonStrictValidator(SchemaVersion.V1_7).validate_str(text)
    return [] if wrong is None else [f"bill of materials: {str(wrong).partition(chr(10))[0]}"]


def wheel(path: Path) -> list[str]:
    archive = zipfile.ZipFile(path)
    info = f"{'-'.join(path.name.split('-')[:2])}.dist-info"
    own, parts = f"{info}/METADATA", f"{info}/sboms/di-store.cdx.json"
    needed = [own, parts, f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE", "di_store/licenses/zstd.txt"]
    if missing := [f"lacks {name}" for name in needed if name not in archive.namelist()]:
        return missing
    with tempfile.TemporaryDirectory() as folder:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        later = [name for module in modules for name in unversioned(Path(archive.extract(module, folder)))]
    late = [f"takes {name} from a C library later than it says" for name in later]
    return late + metadata(archive.read(own).decode()) + bill(archive.read(parts).decode())


def source(path: Path) -> list[str]:
    root = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as tar:
        file = tar.extractfile(f"{root}/PKG-INFO")
        assert file is not None
        faults = metadata(file.read().decode())
        names = set(tar.getnames())
    needed = ["third_party/zstd.c", "tools/third_party.py", "tools/sbom.py", "LICENSE", "NOTICE"]
    return faults + [f"lacks {name}" for name in needed if f"{root}/{name}" not in names]


def faults(path: Path) -> list[str]:
    if path.suffix == ".json":
        return bill(path.read_text())
    size = path.stat().st_size
    print(f"{path.name}: {size / (1 << 20):.2f} MiB")
    large = [f"has {size} bytes, more than {MOST_BYTES}"] if size > MOST_BYTES else []
    return large + (wheel if path.suffix == ".whl" else source)(path)


def main(paths: list[Path]) -> None:
    if found := [f"{path.name}: {fault}" for path in paths for fault in faults(path)]:
        sys.exit("\n".join(found))
    if packages := [path for path in paths if path.suffix != ".json"]:
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *packages], check=True)


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
