"""What everything may use: errors, settings, discovery of files, the logger."""
