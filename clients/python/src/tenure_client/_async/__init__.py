"""The async client. Except for `_io`, the modules of `_sync` are generated from the modules here."""
