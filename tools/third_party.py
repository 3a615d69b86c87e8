"""Puts the sources of zstd into a folder: third_party.py FOLDER. CMake calls it; what is there and unchanged stays.

They are no part of the repository. They come from the source distribution of the Python package zstandard, which
holds zstd in one file, through pip and thus from wherever pip is configured to look. pip checks the archive before it
opens it, and this program checks every file. To take another version: change all these lines, and the golden bytes of
tests/native/test_packing.cc if they differ.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVE = "zstandard==0.25.0 --hash=sha256:7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b"
FILES = {  # zstd 1.5.7
    "zstd.c": "68181bcc33ce17fdd4acc8b954abfb32e1d40bfc332235cdff8c6c95c341dab1",
    "zstd.h": "9b4bc8245565c98ccfc61c07749928b57e7c0f6fddb0530c4f6aa1971893d88b",
    "zstd_errors.h": "66a8c3f71d12ea6e797e4f622f31f3f8f81c41b36f48cad4f5de7d8bfb6aac0a",
    "LICENSE": "7055266497633c9025b777c78eb7235af13922117480ed5c674677adc381c9d8",
}

CROSS = {"SETUPTOOLS_EXT_SUFFIX", "_PYTHON_HOST_PLATFORM"}  # tools/wheels.sh names the wheel's architecture there


def is_whole(path: Path) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == FILES[path.name]


def download(folder: Path) -> Path:
    """The archive, in this folder."""
    wanted = folder / "requirements.txt"
    wanted.write_text(ARCHIVE + "\n")
    name = ARCHIVE.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    # pip runs the package's setup.py, with packages that it needs: of this architecture, whatever the build is for.
    environment = {key: value for key, value in os.environ.items() if key not in CROSS}
    words = [*pip, "--no-binary", name, "--require-hashes", "-d", folder, "-r", wanted]
    subprocess.run(words, check=True, env=environment)
    return next(folder.glob(f"{name}-*.tar.gz"))


def extract(archive: Path, target: Path) -> None:
    """Take the files out; each appears whole or not at all, as several builds may run at once."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            parts = Path(member.name).parts
            if len(parts) != 3 or parts[1] != "zstd" or parts[2] not in FILES:
                continue
            file = tar.extractfile(member)
            assert file is not None, f"{member.name} is no file"
            fresh = target / f"{parts[2]}.{os.getpid()}"
            fresh.write_bytes(file.read())
            fresh.rename(target / parts[2])


def main(target: Path) -> None:
    if all(is_whole(target / name) for name in FILES):
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        extract(download(Path(folder)), target)
    if wrong := [name for name in FILES if not is_whole(target / name)]:
        sys.exit(f"{ARCHIVE.split()[0]} holds no {', '.join(wrong)} of the expected content")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
