"""Adapters to DynamoDB, Valkey and SQS: one function per access pattern, model objects in and out."""
