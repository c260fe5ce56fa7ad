"""What the project runs on: templates for AWS, and the whole stack on one machine."""
