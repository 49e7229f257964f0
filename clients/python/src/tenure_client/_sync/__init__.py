"""The sync client. Its modules, except `_io`, are generated from `_async` by `tools/generate_sync.py`."""
