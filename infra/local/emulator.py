"""MiniStack: AWS on one port of this machine."""

from __future__ import annotations

import http.client
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from infra.local.processes import HOST, Process, StartStop, free_port, require_free

if TYPE_CHECKING:
    import boto3

REGION = "us-east-1"
ACCESS_KEY = "test"
SERVER = Path(__file__).with_name("ministack_server.py")
SECRET_KEY = "test"  # noqa: S105 (what emulators take)


class Emulator(StartStop):
    """A MiniStack of its own; `port` 0 takes a free one. `auth` makes it enforce IAM."""

    def __init__(self, port: int = 0, *, home: Path, log: Path, auth: bool = False) -> None:
        self.port = port or free_port()
        self._fixed = bool(port)
        self._home = home
        self._auth = auth
        self.process = Process("MiniStack", [sys.executable, "-P", str(SERVER)], log, self._environment())

    def _environment(self) -> dict[str, str]:
        # Compiled once and kept, whatever the shell says: it starts in a quarter of the time.
        dropped = ("AWS_", "MINISTACK_", "PYTHONDONTWRITEBYTECODE")
        keep = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **keep,
            "GATEWAY_PORT": str(self.port),
            # Without these three it listens on all addresses, and on more ports than one.
            "BIND_HOST": HOST,
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "AUTH": "true" if self._auth else "false",
            "MINISTACK_REGION": REGION,
            "LOG_LEVEL": "WARNING",
            # Where it puts the code of the functions that it runs.
            "TMPDIR": str(self._home),
            "S3_DATA_DIR": str(self._home / "s3"),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def endpoint_url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it answers. Raises StartError."""
        if self._fixed:
            require_free(self.port, "the emulator", "--emulator-port")
        self._home.mkdir(parents=True, exist_ok=True)
        self.process.start(self._healthy)

    def stop(self) -> None:
        """Stops it; what it held is gone."""
        self.process.stop()

    def load_cloudformation(self) -> None:
        """Makes it load what deployments need, which is most of what it has and takes it a second or more.

        It does so on the first such call, whatever the answer: this one is for the time in which nobody waits.
        """
        scope = f"{ACCESS_KEY}/20260101/{REGION}/cloudformation/aws4_request"
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        self._request("POST", "/", "Action=ListStacks&Version=2010-05-15", headers, timeout=60)

    def _healthy(self) -> bool:
        return self._request("GET", "/_ministack/health", None, {}, timeout=1) == 200

    def _request(self, method: str, path: str, body: str | None, headers: dict[str, str], timeout: float) -> int | None:
        """The status of the answer; None where there is none."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        else:
            return response.status
        finally:
            connection.close()


def aws_environment(endpoint_url: str) -> dict[str, str]:
    """The environment variables with which any AWS SDK, unchanged, talks to the emulator."""
    return {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        # Looked for on every start otherwise, with time-outs where there is none.
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def session(endpoint_url: str) -> boto3.Session:
    """A session whose clients talk to this emulator, whatever AWS_ENDPOINT_URL says."""
    from localstack_client.config import get_service_endpoints
    from localstack_client.session import Session

    class AtEndpoint(Session):  # type: ignore[misc]
        """localstack_client lets the environment go before its own argument."""

        def __init__(self) -> None:
            super().__init__(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION)
            self._service_endpoint_mapping: dict[str, str] = dict.fromkeys(get_service_endpoints(), endpoint_url)

    # It is used like boto3's own, of which it is no subclass.
    return cast("boto3.Session", AtEndpoint())
