"""The async client. The package `_sync` is generated from the modules here, except from `_io`."""
