"""Hooks of MkDocs, named in mkdocs.yml: pages from all over the checkout."""

import logging
import posixpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import site_pages

_LOG = logging.getLogger('mkdocs.hooks.site')
# Place in the site -> the file of the page.
_paths: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds notebooks, and files outside of docs/ that pages link to."""
  for path in site_pages.closure():
    uri = site_pages.site_uri(path)
    if not site_pages.is_page(path):
      if files.get_file_from_path(uri) is None:
        source = str(site_pages.ROOT / path)
        files.append(File.generated(config, uri, abs_src_path=source))
      continue
    _paths[uri] = path
    if path.endswith('.ipynb'):
      name = posixpath.basename(path)
      if not (site_pages.ROOT / site_pages.EXECUTED / name).exists():
        _LOG.warning('%s was not executed: make docs', path)
    if files.get_file_from_path(uri) is None:
      page = site_pages.read_page(path)
      files.append(File.generated(config, uri, content=page.markdown))
      for name, content in page.pictures.items():
        picture = posixpath.join(posixpath.dirname(uri), name)
        files.append(File.generated(config, picture, content=content))
  return files


def on_page_markdown(
  markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
  """Converts the links of a checkout to those of the site."""
  del config, files
  return site_pages.rewritten(markdown, _paths[page.file.src_uri])
