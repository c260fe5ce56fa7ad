"""What API Gateway asks of a caller on routes of AuthorizationType AWS_IAM, before any function is called.

Amazon API Gateway Developer Guide, "Control access to HTTP APIs with IAM authorization"; AWS Identity and Access
Management User Guide, "AWS Signature Version 4 for API requests". Signatures in headers alone, not in a query.
The policies of the caller, which on AWS must allow execute-api:Invoke, are not asked here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SERVICE = "execute-api"
WINDOW = timedelta(minutes=15)
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<key>[^/, ]+)/(?P<day>\d{8})/(?P<region>[^/, ]+)/(?P<service>[^/, ]+)"
    r"/aws4_request, *SignedHeaders=(?P<headers>[a-z0-9;-]+), *Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Signatures:
    """Knows the signatures of one pair of keys."""

    access_key: str
    secret_key: str
    region: str
    account_id: str

    def caller(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, now: datetime
    ) -> dict[str, Any] | None:
        """Who signed the request, as `requestContext.authorizer.iam` says it; None unless all of it is as signed.

        `url` is as it was sent, nothing decoded; the names of `headers` are small letters.
        """
        signed = AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if signed is None or not self._is_current(signed, headers, now) or not _holds_body(headers, body):
            return None
        names = signed["headers"].split(";")
        if "host" not in names or any(name not in headers for name in names):
            return None
        request = AWSRequest(method, url, {name: headers[name] for name in names}, body)
        if not hmac.compare_digest(self._signature(request, headers["x-amz-date"]), signed["signature"]):
            return None
        return {
            "accessKey": self.access_key,
            "accountId": self.account_id,
            "callerId": self.account_id,
            "cognitoIdentity": None,
            "principalOrgId": None,
            "userArn": f"arn:aws:iam::{self.account_id}:root",
            "userId": self.account_id,
        }

    def _is_current(self, signed: re.Match[str], headers: Mapping[str, str], now: datetime) -> bool:
        """Whether keys and scope are those of here, and the time is that of now."""
        if (signed["key"], signed["region"], signed["service"]) != (self.access_key, self.region, SERVICE):
            return False
        try:
            at = datetime.strptime(headers.get("x-amz-date", ""), SIGV4_TIMESTAMP).replace(tzinfo=UTC)
        except ValueError:
            return False
        return headers["x-amz-date"].startswith(signed["day"]) and abs(now - at) <= WINDOW

    def _signature(self, request: AWSRequest, timestamp: str) -> str:
        request.context["timestamp"] = timestamp
        signer = SigV4Auth(Credentials(self.access_key, self.secret_key), SERVICE, self.region)
        signature: str = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return signature


def _holds_body(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the digest that is signed, where one is sent, is that of the body: the signer takes it at its word."""
    sent = headers.get("x-amz-content-sha256")
    return sent is None or hmac.compare_digest(sent.encode(), hashlib.sha256(body).hexdigest().encode())
