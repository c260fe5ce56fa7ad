"""The whole stack on one machine, made from template.yaml: `python -m infra.local up`."""
