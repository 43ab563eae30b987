"""Chat templates: messages in, prompt out, with a record of what the user wrote."""
