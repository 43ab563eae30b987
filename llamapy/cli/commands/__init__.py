"""One file, one subcommand: its options, and what it prints of what the parts below give."""
