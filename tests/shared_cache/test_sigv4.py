"""Presigned URLs: as Amazon's example has them, and as its own client makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from shared_cache.sigv4 import Login, presign

ISSUED = datetime(2013, 5, 24, tzinfo=UTC)
LOGIN = Login("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")  # Amazon's example, nobody's


def test_signature_is_that_of_the_documented_example() -> None:
    url = presign("https://examplebucket.s3.amazonaws.com/test.txt", {}, LOGIN, "us-east-1", ISSUED, 86400)
    assert url.endswith("X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


def test_same_arguments_make_the_same_url_and_another_time_another() -> None:
    first, again, later = (
        presign("https://x.example/b/k.png", {}, LOGIN, "eu-west-1", ISSUED + timedelta(seconds=seconds), 60)
        for seconds in (0, 0, 1)
    )
    assert first == again != later


@pytest.mark.parametrize("token", [None, "a+token/with=signs"])
def test_url_is_as_boto3_makes_it(token: str | None) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url="http://localhost:8333",
        region_name="eu-west-1",
        aws_access_key_id=LOGIN.access_key,
        aws_secret_access_key=LOGIN.secret_key,
        aws_session_token=token,
        config=boto3.session.Config(signature_version="s3v4"),
    )
    shown = 'inline; filename="firstlight-a-0.png"'
    asked = {"Bucket": "b", "Key": "renders/a/0.png", "ResponseContentDisposition": shown}
    theirs = client.generate_presigned_url("get_object", Params=asked, ExpiresIn=60)
    stamp = parse_qs(urlsplit(theirs).query)["X-Amz-Date"][0]
    issued = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    login = Login(LOGIN.access_key, LOGIN.secret_key, token)
    answer = {"response-content-disposition": shown}
    ours = presign("http://localhost:8333/b/renders/a/0.png", answer, login, "eu-west-1", issued, 60)
    assert parse_qs(urlsplit(ours).query) == parse_qs(urlsplit(theirs).query)
    assert urlsplit(ours).path == urlsplit(theirs).path
