"""`python -m infra.service_key`: the key that makes a caller a service, of a stack that is deployed.

Reads the stack's secret with the credentials of the shell, so it is for whoever may read that secret.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tallymark.identity import service_key

if TYPE_CHECKING:
    from mypy_boto3_cloudformation.type_defs import StackTypeDef


def key_of(session: boto3.Session, stack_name: str, endpoint_url: str | None = None) -> str:
    """The service key in force. Raises what boto3 raises, and KeyError for a stack of another kind."""
    cloudformation = session.client("cloudformation", endpoint_url=endpoint_url)
    stack = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
    secrets = session.client("secretsmanager", endpoint_url=endpoint_url)
    secret = secrets.get_secret_value(SecretId=_outputs(stack)["SecretArn"])["SecretString"]
    return service_key(secret, int(_parameters(stack)["ServiceKeyGeneration"]))


def _outputs(stack: StackTypeDef) -> dict[str, str]:
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}


def _parameters(stack: StackTypeDef) -> dict[str, str]:
    return {parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in stack.get("Parameters", [])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the key; 1 with the reason on standard error if it cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m infra.service_key", description=__doc__)
    parser.add_argument("--stack", default="tallymark", help="name of the deployed stack (tallymark)")
    options = parser.parse_args(arguments)
    try:
        print(key_of(boto3.Session(), options.stack))
    except (BotoCoreError, ClientError, KeyError) as error:
        print(f"No service key of the stack {options.stack}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
