"""Streams: live connections of sessions. A handler processes their messages, and keep-alives renew their sessions."""
