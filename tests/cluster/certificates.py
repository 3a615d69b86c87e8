"""An authority of the tests, which signs certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

from programs import need


class Authority:
    """Makes certificates in a folder, with the command `openssl`."""

    def __init__(self, folder: Path) -> None:
        need("openssl")
        self._folder = folder
        self._run("req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tests", "-days", "2")
        self.path = str(folder / "ca.pem")

    def sign(
        self, file: str, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2, subject: str = "/CN=agent"
    ) -> tuple[str, str]:
        """Paths of a new certificate and its key. `days`: until it expires."""
        (self._folder / "ext").write_text(f"subjectAltName={names}")
        key, asked, made = f"{file}.key", f"{file}.csr", f"{file}.pem"
        self._run("req", *_NEW_KEY, "-keyout", key, "-out", asked, "-subj", subject)
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        self._run("x509", "-req", "-in", asked, "-out", made, "-days", str(days), *signed)
        return str(self._folder / made), str(self._folder / key)

    def _run(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
