"""Finished pictures in S3 or what speaks its language; boto3 writes, browsers read by presigned URL.

Only processes that keep pictures in S3 import this module, since boto3 takes a while to import.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from core.errors import NotFound, StartupError
from core.settings import Settings
from shared_cache.objects import check_content_type, check_key, content_type_of, disposition
from shared_cache.outage import PICTURES, Outage, StoreAway
from shared_cache.s3_faults import LOGIN, explain
from shared_cache.sigv4 import LONGEST_S, Login, presign

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 2.0, 5.0, 3
CONNECTIONS = 16
RULE = "firstlight-pictures"
PROBE = "renders/.write-test"
DEFAULT_REGION = "us-east-1"
HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+")  # as browsers send it: a name of other letters they spell anew
LONGEST_TTL_S = LONGEST_S - 3600  # URLs are dated back a little, so that they stay the same for a while


class S3Objects:
    """One bucket, or one folder of it. Safe for threads.

    base_url is where browsers reach the bucket: scheme://host or scheme://host/bucket.
    """

    def __init__(self, client: Any, credentials: Any, bucket: str, prefix: str, base_url: str) -> None:
        self._client = client
        self._credentials = credentials
        self._bucket = bucket
        self._prefix = prefix
        self._base_url = base_url
        self._outage = Outage(*PICTURES)

    def put(self, key: str, data: bytes, content_type: str) -> None:
        check_content_type(key, content_type)
        with self._told():
            self._ask("put_object", Key=self._prefix + key, Body=data, ContentType=content_type)
        self._outage.worked()

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._told():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
                data: bytes = answer["Body"].read()
            except self._client.exceptions.NoSuchKey:
                raise NotFound("there is no such picture") from None
            except (BotoCoreError, ClientError) as error:
                raise self._away(error) from error
        return data

    def sign(self, key: str, ttl_s: float, now_s: float, download: bool = False) -> str:
        """Signed here, without asking S3; for the host that browsers reach it under."""
        check_key(key)
        answer = {
            "response-cache-control": f"private, max-age={int(ttl_s)}, immutable",
            "response-content-disposition": disposition(key, download),
            "response-content-type": content_type_of(key),
        }
        url = f"{self._base_url}/{quote(self._prefix + key, safe='/~')}"
        issued = datetime.fromtimestamp(int(now_s), UTC)
        with self._told():
            login = self._login()
        return presign(url, answer, login, self._client.meta.region_name, issued, int(ttl_s))

    def check(self, writes: bool) -> None:
        """Raises: Unavailable when the bucket cannot be read, or written to where that is asked."""
        self._ask("list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        if writes:
            self._ask("put_object", Key=self._prefix + PROBE, Body=b"")

    def expire_after(self, days: int) -> None:
        """Has the bucket delete our pictures when they are that old; its other rules stay as they are.

        Raises: Unavailable when it does not let us.
        """
        rule = {
            "ID": RULE,
            "Status": "Enabled",
            "Filter": {"Prefix": f"{self._prefix}renders/"},
            "Expiration": {"Days": days},
        }
        rules = self._rules()
        if rule not in rules:
            kept = [other for other in rules if other.get("ID") != RULE]
            self._ask("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [*kept, rule]})

    def _rules(self) -> list[dict[str, Any]]:
        try:
            found = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchLifecycleConfiguration":
                return []
            raise self._away(error) from error
        except BotoCoreError as error:
            raise self._away(error) from error
        return list(found["Rules"])

    def _login(self) -> Login:
        try:
            frozen = self._credentials.get_frozen_credentials()
        except BotoCoreError as error:  # temporary ones that cannot be renewed
            raise self._away(error) from error
        return Login(frozen.access_key, frozen.secret_key, frozen.token)

    def _ask(self, method: str, **asked: Any) -> None:
        try:
            getattr(self._client, method)(Bucket=self._bucket, **asked)
        except (BotoCoreError, ClientError) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> StoreAway:
        return StoreAway(explain(error, self._client.meta.endpoint_url, self._bucket))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What fails inside is told to those who run the app; at the start, who starts it is told by the error."""
        try:
            yield
        except StoreAway as away:
            self._outage.failed(away.fault)
            raise


def open_s3(settings: Settings, writes: bool) -> S3Objects:
    """The bucket that the settings name, tried out.

    Raises: StartupError when settings cannot be followed, or the bucket cannot be used.
    """
    if settings.url_ttl_s > LONGEST_TTL_S:
        raise StartupError(
            f"FIRSTLIGHT_URL_TTL_S is {settings.url_ttl_s}, and S3 signs for 7 days at most",
            f"give at most {LONGEST_TTL_S}",
        )
    try:
        session = boto3.Session(region_name=settings.s3_region)
        known = session.get_credentials()
    except BotoCoreError as error:  # a profile that is not there, a file that cannot be read
        raise StartupError(f"no credentials for S3: {error}", LOGIN) from error
    if known is None:
        raise StartupError(f"no credentials for the S3 bucket {settings.s3_bucket}", LOGIN)
    objects = _store(settings, session, known)
    _try_out(objects, settings, writes)
    return objects


def _store(settings: Settings, session: Any, credentials: Any) -> S3Objects:
    bucket = settings.s3_bucket
    assert bucket is not None
    endpoint = _host_of("FIRSTLIGHT_S3_ENDPOINT", settings.s3_endpoint)
    public = _host_of("FIRSTLIGHT_S3_PUBLIC_ENDPOINT", settings.s3_public_endpoint)
    region = session.region_name or DEFAULT_REGION
    try:
        client = session.client("s3", region_name=region, endpoint_url=endpoint, config=_config(endpoint))
    except (BotoCoreError, ValueError) as error:
        raise StartupError(f"the S3 settings cannot be used: {error}", "correct FIRSTLIGHT_S3_*") from error
    base_url = bucket_url(public or endpoint, client.meta.endpoint_url, bucket)
    return S3Objects(client, credentials, bucket, settings.s3_prefix, base_url)


def _try_out(objects: S3Objects, settings: Settings, writes: bool) -> None:
    try:
        objects.check(writes)
    except StoreAway as error:
        raise StartupError(error.fault.cause, error.fault.remedy) from error
    if writes and settings.s3_expire_days is not None:
        try:
            objects.expire_after(settings.s3_expire_days)
        except StoreAway as error:
            log.warning("pictures will not expire: the bucket's lifecycle rule was not set: %s", error.fault.cause)


def _config(endpoint: str | None) -> Config:
    """Services that are not Amazon's know buckets by path, and not all of them its newer checksums."""
    return Config(
        signature_version="s3v4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )


def bucket_url(given: str | None, amazon: str, bucket: str) -> str:
    """The bucket is a folder of a host that was given; Amazon's has a host for each, unless dots are in its name."""
    parts = urlsplit(given or amazon)
    if given is None and "." not in bucket:
        return f"{parts.scheme}://{bucket}.{parts.netloc}"
    return f"{parts.scheme}://{parts.netloc}/{bucket}"


def _host_of(name: str, url: str | None) -> str | None:
    """scheme://host[:port], as browsers name the host: signatures cover it.

    Raises: StartupError for anything else.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    behind = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not HOST.fullmatch(parts.netloc) or behind:
        raise StartupError(f"{name} is {url}", "give http://host:port or https://host, without anything behind it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, default) else "")
