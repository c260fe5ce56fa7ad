"""Between Lambda and the subjects: events in, answers out, stores wired."""
