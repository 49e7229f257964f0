"""Live connections that are sessions: what a stream is, who handles its messages, and how it is kept alive."""
