"""Print the parts of a wheel as a bill of materials in CycloneDX 1.7: sbom.py [LINKED]...

Named are the libraries that are compiled into the module, in the versions of this build, and the packages that the
wheel requires, with the versions that it accepts. LINKED, as "ziglang==0.15.2": what the compiler itself links in. The
build puts the text into the wheel, as PEP 770 says; the same sources and compilers give the same bytes.
"""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import nanobind

import third_party

ROOT = Path(__file__).parent.parent


def define(header: Path, *names: str) -> str:
    """The version that a C header defines, part by part."""
    text = header.read_text()
    found = [re.search(rf"^ *# *define +{name} +(\d+)", text, re.M) for name in names]
    return ".".join(each[1] for each in found if each)


def compiled(name: str, number: str, licence: str, purl: str, **others: object) -> dict:
    return {
        "type": "library",
        "bom-ref": f"{name}@{number}",
        "name": name,
        "version": number,
        "licenses": [{"expression": licence}],
        "purl": purl + number,
        **others,
    }


def in_module() -> list[dict]:
    sources = ROOT / "third_party"
    zstd = define(sources / "zstd.h", *(f"ZSTD_VERSION_{each}" for each in ("MAJOR", "MINOR", "RELEASE")))
    hashes = [{"alg": "SHA-256", "content": third_party.FILES["zstd.c"]}]
    growth = Path(nanobind.include_dir()).parent / "ext/robin_map/include/tsl/robin_growth_policy.h"
    robin = define(growth, *(f"TSL_RH_VERSION_{each}" for each in ("MAJOR", "MINOR", "PATCH")))
    return [
        compiled("zstd", zstd, "BSD-3-Clause", "pkg:github/facebook/zstd@v", hashes=hashes),
        compiled("nanobind", version("nanobind"), "BSD-3-Clause", "pkg:pypi/nanobind@"),
        compiled("robin-map", robin, "MIT", "pkg:github/Tessil/robin-map@v"),
    ]


def linked(requirement: str) -> dict:
    name, _, number = requirement.partition("==")
    what = "libc++, libc++abi and libunwind of LLVM, as zig links them"
    return compiled(name, number, "Apache-2.0 WITH LLVM-exception", f"pkg:pypi/{name}@", description=what)


def required(line: str) -> dict:
    name, least = line.split(">=")
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "purl": f"pkg:pypi/{name}",
        "isExternal": True,
        "versionRange": f"vers:pypi/>={least}",
    }


def bill(extra: list[str]) -> dict:
    text = (ROOT / "pyproject.toml").read_text()
    lines = re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[(.*)\]", text, re.M)[1])
    number = re.search(r'^__version__ = "(.*)"', (ROOT / "src/di_store/__init__.py").read_text(), re.M)[1]
    parts = [*in_module(), *map(linked, extra), *map(required, lines)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {"component": compiled("di-store", number, "Apache-2.0", "pkg:pypi/di-store@")},
        "components": parts,
        "dependencies": [{"ref": f"di-store@{number}", "dependsOn": [part["bom-ref"] for part in parts]}],
    }


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1:]), indent=1))
