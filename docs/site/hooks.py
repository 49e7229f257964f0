"""Adds two files to the site: the page of all routes, and the script that draws Mermaid diagrams.

`TENURE_TEST_MERMAID` is the path of that script, `mermaid.min.js` of the npm package `mermaid`. The script becomes part
of the site, so the site needs no other host. Without this variable, the site shows the text of the diagrams.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

ROUTES = "docs/routes.md"
SCRIPT = "assets/mermaid.min.js"


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"]["slugify"] = anchor
    if _mermaid() is not None:
        config.extra_javascript.append(SCRIPT)
    else:
        # The theme fetches a script from another host if a block has the class `mermaid`, so no block gets this class.
        config.mdx_configs["pymdownx.superfences"]["custom_fences"] = []
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests import this module where MkDocs is not installed

    files.append(File.generated(config, ROUTES, content=_routes()))
    if (script := _mermaid()) is not None:
        files.append(File.generated(config, SCRIPT, content=script.read_text(encoding="utf-8")))
    return files


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it, so that links work on GitHub and on the site."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def _routes() -> str:
    """Return the page of `routes.py`. That module is loaded by its path, because this folder is not on `sys.path`."""
    spec = importlib.util.spec_from_file_location("routes", Path(__file__).with_name("routes.py"))
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def _mermaid() -> Path | None:
    path = os.environ.get("TENURE_TEST_MERMAID")
    return Path(path) if path else None
