"""The usual strategies for counting a hot item, side by side: rates, write units, reads, and what faults leave."""
