"""A real S3 server for benchmarks and tests: SeaweedFS on free ports."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.network import free_port

BUCKET, REGION = "pictures", "us-east-1"
OWNER, WRITER, READER = (("OWNER", "owner-secret"), ("WRITER", "writer-secret"), ("READER", "reader-secret"))
WRITERS_PREFIX = "writers/"
READY_TIMEOUT_S = 30.0
GRPC_APART = 10_000


class S3Server:
    """One server on one folder. Users: OWNER may do all, WRITER writes under its prefix alone, READER only reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, *self._others = _free_ports(4)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.public_endpoint = f"http://localhost:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> S3Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        users = self.folder / "users.json"
        writer = _user(*WRITER, "Read", "List", f"Write:{BUCKET}/{WRITERS_PREFIX}*")
        known = [_user(*OWNER, "Admin"), writer, _user(*READER, "Read", "List")]
        users.write_text(json.dumps({"identities": known}))
        with (self.folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(users), stdout=log, stderr=log, cwd=self.folder)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._healthy():
            assert self._process.poll() is None and time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def login(self, who: tuple[str, str] = OWNER) -> dict[str, str]:
        """Environment variables."""
        return {"AWS_ACCESS_KEY_ID": who[0], "AWS_SECRET_ACCESS_KEY": who[1], "AWS_DEFAULT_REGION": REGION}

    def make_bucket(self, name: str = BUCKET) -> None:
        self.client().create_bucket(Bucket=name)

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=OWNER[0],
            aws_secret_access_key=OWNER[1],
        )

    def log(self) -> str:
        return (self.folder / "weed.log").read_text()[-4000:]

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.endpoint}/healthz", timeout=1, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _command(self, users: Path) -> list[str]:
        master, volume, filer = self._others
        weed = Path(sys.executable).with_name("weed")
        options = {
            "dir": self.folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.port": master,
            "master.volumeSizeLimitMB": 64,
            "volume.port": volume,
            "volume.max": 20,
            "volume.minFreeSpacePercent": 0,
            "filer.port": filer,
            "s3.port": self.port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.autoCreateBucket": "false",
            "s3.config": users,
        }
        program = str(weed) if weed.exists() else shutil.which("weed") or "weed"
        return [program, "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def _user(access_key: str, secret_key: str, *actions: str) -> dict[str, Any]:
    return {
        "name": access_key.lower(),
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": list(actions),
    }


def _free_ports(count: int) -> list[int]:
    """Ports whose gRPC twin is free too."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        with socket.socket() as twin:
            try:
                twin.bind(("127.0.0.1", port + GRPC_APART))
            except (OSError, OverflowError):  # taken, or beyond the last port
                continue
        if port not in found:
            found.append(port)
    return found
