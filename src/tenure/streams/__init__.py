"""Streams: sessions over live connections, the handlers of their messages, and their keep-alives."""
