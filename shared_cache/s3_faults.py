"""What went wrong with S3, as a cause and a remedy for those who run the app."""

from __future__ import annotations

from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError

from shared_cache.outage import Fault

ENDPOINT = "start it, or correct FIRSTLIGHT_S3_ENDPOINT"
LOGIN = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role in use"


def explain(error: Exception, endpoint: str, bucket: str) -> Fault:
    """Of an error of boto3's."""
    if isinstance(error, ClientError):
        return _answered(error, endpoint, bucket)
    if isinstance(error, NoCredentialsError):
        return Fault(f"no credentials for the S3 bucket {bucket}", LOGIN)
    if isinstance(error, ParamValidationError):
        return Fault(f"S3 has no bucket of the name {bucket}", "correct FIRSTLIGHT_S3_BUCKET")
    return Fault(f"S3 at {endpoint} does not answer: {type(error).__name__}: {error}", ENDPOINT)


def _answered(error: ClientError, endpoint: str, bucket: str) -> Fault:
    code = error.response["Error"].get("Code", "")
    said = error.response["Error"].get("Message", "")
    if code == "NoSuchBucket":
        return Fault(f"S3 at {endpoint} has no bucket {bucket}", "create it, or correct FIRSTLIGHT_S3_BUCKET")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return Fault(f"S3 at {endpoint} refuses the credentials: {code}", LOGIN)
    if code == "AccessDenied":
        return Fault(
            f"S3 at {endpoint} does not allow {error.operation_name} on the bucket {bucket}",
            "allow s3:ListBucket, s3:GetObject and s3:PutObject, and for expiry s3:PutLifecycleConfiguration",
        )
    if code in ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"):
        return Fault(f"the S3 bucket {bucket} is in another region: {said}", "set FIRSTLIGHT_S3_REGION to the bucket's")
    if code == "RequestTimeTooSkewed":
        return Fault(f"S3 at {endpoint} has another time than this machine", "set this machine's clock")
    return Fault(f"S3 at {endpoint} answers {code}: {said}", "look into its log, and at FIRSTLIGHT_S3_BUCKET")
