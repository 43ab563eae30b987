"""The command line: the only part that prints, draws and chooses exit codes."""
