"""What only pictures in S3 have: a host for browsers, expiry in the bucket, outages, faults with their remedies."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import botocore.auth
import httpx
import pytest

from benchmarks.network import Link, free_port
from benchmarks.s3_server import BUCKET, READER, WRITER, WRITERS_PREFIX, S3Server
from core.errors import InvalidInput, StartupError, Unavailable
from core.settings import Settings
from shared_cache import s3_objects
from shared_cache.s3_objects import RULE, S3Objects, bucket_url, open_s3
from tests.conftest import ROOT
from tests.telling import lines

KEY = "renders/0197-Ab_c/0.png"


def opened(server: S3Server, writes: bool = True, **changes: Any) -> S3Objects:
    fields = {"s3_bucket": BUCKET, "s3_endpoint": server.endpoint, "s3_prefix": f"{uuid.uuid4().hex}/"}
    return open_s3(Settings(**{**fields, **changes}), writes)


def log_in(monkeypatch: pytest.MonkeyPatch, server: S3Server, who: tuple[str, str]) -> None:
    for name, value in server.login(who).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def link(s3: S3Server) -> Iterator[Link]:
    link = Link(s3.port)
    yield link
    link.close()


def test_link_is_signed_for_the_public_host_and_for_no_other(s3: S3Server) -> None:
    objects = opened(s3, s3_public_endpoint=s3.public_endpoint)
    objects.put(KEY, b"png", "image/png")
    url = objects.sign(KEY, 60, time.time())
    assert url.startswith(f"{s3.public_endpoint}/{BUCKET}/")
    assert httpx.get(url, trust_env=False).content == b"png"
    inside = url.replace(s3.public_endpoint, s3.endpoint)
    assert inside != url and httpx.get(inside, trust_env=False).status_code == 403


def test_link_stops_working_by_itself(s3: S3Server) -> None:
    objects = opened(s3)
    objects.put(KEY, b"png", "image/png")
    now_s = time.time()
    url = objects.sign(KEY, 2, now_s)
    assert httpx.get(url, trust_env=False).status_code == 200
    time.sleep(max(0.0, int(now_s) + 3.1 - time.time()))
    assert httpx.get(url, trust_env=False).status_code == 403


def test_object_lies_in_its_folder_of_the_bucket(s3: S3Server) -> None:
    opened(s3, s3_prefix="team/one/").put(KEY, b"png", "image/png")
    head = s3.client().head_object(Bucket=BUCKET, Key=f"team/one/{KEY}")
    assert (head["ContentLength"], head["ContentType"]) == (3, "image/png")


@pytest.mark.parametrize(
    ("given", "bucket", "url"),
    [
        (None, "pictures", "https://pictures.s3.eu-west-1.amazonaws.com"),
        (None, "my.pictures", "https://s3.eu-west-1.amazonaws.com/my.pictures"),
        ("https://s3.example", "pictures", "https://s3.example/pictures"),
    ],
)
def test_bucket_is_a_host_at_amazon_and_a_folder_elsewhere(given: str | None, bucket: str, url: str) -> None:
    assert bucket_url(given, "https://s3.eu-west-1.amazonaws.com", bucket) == url


def test_pictures_expire_and_other_rules_of_the_bucket_stay(s3: S3Server) -> None:
    other = {"ID": "other", "Status": "Enabled", "Filter": {"Prefix": "other/"}, "Expiration": {"Days": 3}}
    s3.client().put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [other]})
    for days in (7, 30, 30):
        opened(s3, s3_prefix="shown/", s3_expire_days=days)
        rules = s3.client().get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
        ours = {"ID": RULE, "Status": "Enabled", "Filter": {"Prefix": "shown/renders/"}, "Expiration": {"Days": days}}
        assert sorted(rules, key=lambda rule: str(rule["ID"])) == [ours, other]


def test_bucket_that_keeps_its_rules_to_itself_is_used_all_the_same(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(monkeypatch, s3, WRITER)
    objects = opened(s3, s3_prefix=WRITERS_PREFIX, s3_expire_days=7)
    assert "will not expire" in caplog.text and "does not allow" in caplog.text
    objects.put(KEY, b"png", "image/png")


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"s3_bucket": "no-such-bucket"}, "no bucket no-such-bucket", "create it, or correct FIRSTLIGHT_S3_BUCKET"),
        ({"s3_bucket": "no bucket"}, "no bucket of the name", "FIRSTLIGHT_S3_BUCKET"),
        ({"s3_endpoint": f"http://127.0.0.1:{free_port()}"}, "does not answer", "FIRSTLIGHT_S3_ENDPOINT"),
        ({"s3_endpoint": "http://nowhere.invalid:1"}, "does not answer", "FIRSTLIGHT_S3_ENDPOINT"),
        ({"s3_endpoint": "127.0.0.1:9000"}, "FIRSTLIGHT_S3_ENDPOINT is 127.0.0.1:9000", "http://host:port"),
        ({"s3_public_endpoint": "https://a.example/s3"}, "FIRSTLIGHT_S3_PUBLIC_ENDPOINT is", "without anything behind"),
        ({"s3_public_endpoint": "https://a.example?x=1"}, "FIRSTLIGHT_S3_PUBLIC_ENDPOINT is", "https://host"),
        ({"s3_public_endpoint": "https://bücher.example"}, "FIRSTLIGHT_S3_PUBLIC_ENDPOINT is", "https://host"),
        ({"s3_public_endpoint": "https://a.example "}, "FIRSTLIGHT_S3_PUBLIC_ENDPOINT is", "https://host"),
        ({"s3_endpoint": "http://me:secret@a"}, "FIRSTLIGHT_S3_ENDPOINT is", "http://host:port"),
        ({"url_ttl_s": 7 * 86400}, "7 days at most", "give at most"),
    ],
)
def test_fault_at_start_is_named_with_its_remedy_at_once(
    s3: S3Server, changes: dict[str, Any], cause: str, remedy: str
) -> None:
    began_s = time.monotonic()
    with pytest.raises(StartupError) as caught:
        opened(s3, **changes)
    assert cause in caught.value.cause and remedy in caught.value.remedy
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("who", [("NOBODY", "x"), (WRITER[0], "wrong-secret")])
def test_wrong_login_is_named_with_its_remedy(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, who: tuple[str, str]
) -> None:
    log_in(monkeypatch, s3, who)
    with pytest.raises(StartupError, match="refuses the credentials") as caught:
        opened(s3)
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy and who[1] not in str(caught.value)


def test_missing_login_is_named_with_its_remedy(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StartupError, match="no credentials") as caught:
        opened(s3_server)
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_who_may_not_write_is_told_at_start_where_pictures_are_written(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, s3, READER)
    assert opened(s3, writes=False).sign(KEY, 60, 0)
    with pytest.raises(StartupError, match="does not allow PutObject") as caught:
        opened(s3)
    assert "s3:PutObject" in caught.value.remedy


def test_outage_is_told_once_and_over_when_it_is(s3: S3Server, link: Link, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shared_cache")
    objects = opened(s3, s3_endpoint=link.endpoint, s3_public_endpoint=s3.endpoint)
    objects.put(KEY, b"before", "image/png")
    link.cut()
    for _ in range(2):
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match="cannot be reached") as caught:
            objects.put(KEY, b"meanwhile", "image/png")
        assert time.monotonic() - began_s < 10 and caught.value.code == "unavailable"
    with pytest.raises(Unavailable):
        objects.get(KEY)
    url = objects.sign(KEY, 60, time.time())  # asks nobody
    assert httpx.get(url, trust_env=False).content == b"before"
    link.mend()
    objects.put(KEY, b"after", "image/png")
    assert objects.get(KEY) == b"after"
    assert caplog.text.count("does not answer") == 1 and caplog.text.count("can be stored again") == 1
    assert "FIRSTLIGHT_S3_ENDPOINT" in caplog.text


def test_bucket_that_is_deleted_is_named_with_its_remedy(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    s3.make_bucket("short-lived")
    objects = opened(s3, s3_bucket="short-lived")
    objects.put(KEY, b"png", "image/png")
    bucket = s3.client()
    for found in bucket.list_objects_v2(Bucket="short-lived")["Contents"]:
        bucket.delete_object(Bucket="short-lived", Key=found["Key"])
    bucket.delete_bucket(Bucket="short-lived")
    with pytest.raises(Unavailable):
        objects.put(KEY, b"png", "image/png")
    assert "has no bucket short-lived; what to do: create it" in caplog.text


def test_clock_that_is_off_is_named_once_with_its_remedy(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now() + timedelta(minutes=20))
    with pytest.raises(StartupError, match="another time than this machine") as caught:
        opened(s3)
    assert "set this machine's clock" in caught.value.remedy and not lines(caplog, "shared_cache")


def test_store_that_hangs_is_given_up_in_bounded_time(
    s3: S3Server, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_objects, "READ_TIMEOUT_S", 0.3)
    objects = opened(s3, s3_endpoint=link.endpoint)
    objects.put(KEY, b"before", "image/png")
    link.delay_s = 20.0
    began_s = time.monotonic()
    with pytest.raises(Unavailable):
        objects.put(KEY, b"meanwhile", "image/png")
    assert time.monotonic() - began_s < 6


def test_login_that_cannot_be_renewed_is_an_outage(s3: S3Server) -> None:
    from botocore.exceptions import CredentialRetrievalError

    class Gone:
        def get_frozen_credentials(self) -> None:
            raise CredentialRetrievalError(provider="role", error_msg="away")

    objects = S3Objects(s3.client(), Gone(), BUCKET, "", s3.endpoint)
    with pytest.raises(Unavailable):
        objects.sign(KEY, 60, 0)
    with pytest.raises(InvalidInput):
        objects.sign("../x", 60, 0)


def test_boto3_is_not_imported_where_the_disk_is_used() -> None:
    program = "import sys, app.context, final_engine.finish_stage; assert not {'boto3', 'botocore'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
