"""Presigned GETs by AWS Signature Version 4: the same arguments make the same URL, so that browsers cache it.

boto3 signs with the present second only, which would give a picture a new URL at every look.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"
LONGEST_S = 7 * 86400  # S3 refuses more


@dataclass(frozen=True, slots=True)
class Login:
    """token comes with temporary credentials; a URL works no longer than they do."""

    access_key: str
    secret_key: str
    token: str | None = None


def presign(url: str, answer: Mapping[str, str], login: Login, region: str, issued: datetime, ttl_s: int) -> str:
    """The URL, good from issued (UTC) for ttl_s; answer names headers that S3 shall answer with.

    Shapes: url is scheme://host/path with its path quoted. Units: ttl_s in whole seconds, at most LONGEST_S.
    Source: docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
    """
    parts, stamp = urlsplit(url), issued.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    asked = {
        **answer,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{login.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(ttl_s),
        "X-Amz-SignedHeaders": "host",
    }
    if login.token is not None:
        asked["X-Amz-Security-Token"] = login.token
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(asked.items()))
    request = f"GET\n{parts.path}\n{query}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{login.secret_key}".encode()
    for step in (stamp[:8], region, "s3", "aws4_request"):
        key = _hmac(key, step)
    return f"{url}?{query}&X-Amz-Signature={_hmac(key, text).hex()}"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
