"""How docstrings become Markdown, for mkdocstrings; named in mkdocs.yml."""

from typing import Any

import griffe

from tools import site_pages


class Docstrings(griffe.Extension):
  """Makes code of examples, before the sections are read."""

  def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
    """Changes the docstring of what was just loaded."""
    del kwargs
    if obj.docstring is not None:
      obj.docstring.value = site_pages.docstring_markdown(obj.docstring.value)
