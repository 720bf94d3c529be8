"""Converts docstrings to Markdown for mkdocstrings; named in mkdocs.yml."""

from typing import Any

import griffe

from tools import site_pages


class Docstrings(griffe.Extension):
  """Marks examples as code, before the sections are parsed."""

  def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
    """Changes the docstring of an object that was just loaded."""
    del kwargs
    if obj.docstring is not None:
      obj.docstring.value = site_pages.docstring_markdown(obj.docstring.value)
