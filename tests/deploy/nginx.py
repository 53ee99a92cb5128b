"""A real nginx with deploy/nginx.conf: only names, ports and the certificate's place differ."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.network import free_port
from tests.conftest import ROOT

CONF = ROOT / "deploy" / "nginx.conf"
PICTURES = ROOT / "deploy" / "nginx-pictures.conf"
START_TIMEOUT_S = 20
CERTIFICATE = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"


def binary() -> str:
    """Where `make test` unpacks it, unless the machine has one."""
    found = shutil.which("nginx") or str(Path(sys.prefix) / "nginx" / "usr" / "sbin" / "nginx")
    assert Path(found).is_file(), "there is no nginx: say `make nginx`"
    return found


def configuration(folder: Path, webs: Mapping[str, int], port: int, plain_port: int) -> str:
    """The documented file with each of its web processes on a port of this machine."""
    text = CONF.read_text()
    named = set(re.findall(r"server (\S+):7860", text))
    assert named == set(webs), (named, set(webs))
    for name, web_port in webs.items():
        text = text.replace(f"server {name}:7860", f"server 127.0.0.1:{web_port}")
    places = [f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    changes = {
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "/etc/nginx/tls/": f"{folder}/",
        "/etc/nginx/sites/": f"{folder}/sites/",
        "http {": " ".join(["http {", *places]),
    }
    for old, new in changes.items():
        assert text.count(old), old
        text = text.replace(old, new)
    return text


def pictures_configuration(folder: Path, s3_port: int, port: int) -> str:
    """The same for nginx-pictures.conf."""
    text = PICTURES.read_text()
    for old, new in {
        "listen 9443 ": f"listen 127.0.0.1:{port} ",
        "http://s3:8333": f"http://127.0.0.1:{s3_port}",
        "/etc/nginx/tls/": f"{folder}/",
    }.items():
        assert text.count(old), old
        text = text.replace(old, new)
    return text


class Nginx:
    """In the foreground, with a certificate made for the occasion."""

    def __init__(self, folder: Path, webs: Mapping[str, int], s3_port: int | None = None) -> None:
        self._folder = folder
        if s3_port is not None:
            self.pictures_port = free_port()
            (folder / "sites").mkdir()
            (folder / "sites" / "pictures.conf").write_text(pictures_configuration(folder, s3_port, self.pictures_port))
        self.port, self.plain_port = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        (folder / "nginx.conf").write_text(configuration(folder, webs, self.port, self.plain_port))
        to = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
        subprocess.run(["openssl", *CERTIFICATE.split(), *to], check=True, capture_output=True)

    def start(self) -> None:
        as_us = "user root;" if os.geteuid() == 0 else ""
        main = f"daemon off; pid {self._folder / 'nginx.pid'}; {as_us}"
        command = [binary(), "-c", str(self._folder / "nginx.conf"), "-e", "stderr", "-g", main]
        with (self._folder / "nginx.log").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            assert self._process.poll() is None, self.log()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError(self.log())

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def log(self) -> str:
        return (self._folder / "nginx.log").read_text()

    def served_by(self, path: str) -> set[str]:
        """Addresses of the web processes that answered for this path below the sub-path."""
        lines = [line.split() for line in self.log().splitlines() if f" /firstlight{path} " in line]
        return {words[4] for words in lines if len(words) == 6}
