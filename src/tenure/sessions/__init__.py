"""What a session is and how it is opened, kept and ended."""
