"""The BUILD files are what the imports say; the generator sees every change."""

import pathlib
import tempfile
import textwrap

from absl.testing import absltest

from tools import build_files

_ROOT = pathlib.Path(__file__).resolve().parents[2]


class CheckoutTest(absltest.TestCase):
  def test_build_files_are_up_to_date(self):
    self.assertEmpty(
      build_files.stale_files(_ROOT), 'run `make build-files` and commit'
    )


class GeneratorTest(absltest.TestCase):
  """On a small tree, whose BUILD files are up to date at first."""

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.write('LICENSE', '')
    self.write('tvdp_tf/__init__.py', '')
    self.write('tvdp_tf/errors.py', '')
    self.write('tvdp_tf/privacy/__init__.py', 'from .schedule import f')
    self.write('tvdp_tf/privacy/schedule.py', 'from tvdp_tf import errors')
    self.write(
      'tests/privacy/schedule_test.py',
      """
      from tvdp_tf import privacy
      LICENSE, VALUES = 'LICENSE', 'values.json'
      """,
    )
    self.write('tests/privacy/values.json', '{}')
    self.write('tests/privacy/unused.json', '{}')
    build_files.write(self.root)
    self.assertEmpty(build_files.stale_files(self.root))

  def write(self, name: str, text: str) -> None:
    path = self.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))

  def read(self, name: str) -> str:
    return (self.root / name).read_text()

  def assert_updates(self, *names: str) -> None:
    """These files, and no other, are stale; writing puts that right."""
    self.assertEqual(build_files.stale_files(self.root), list(names))
    self.assertEqual(build_files.write(self.root), list(names))
    self.assertEmpty(build_files.stale_files(self.root))

  def test_library(self):
    self.assertEqual(
      self.read('tvdp_tf/privacy/BUILD'),
      textwrap.dedent("""\
        load("@rules_python//python:defs.bzl", "py_library")

        package(default_visibility = ["//visibility:public"])

        licenses(["notice"])

        py_library(
            name = "privacy",
            srcs = ["__init__.py"],
            deps = [":schedule"],
        )

        py_library(
            name = "schedule",
            srcs = ["schedule.py"],
            deps = ["//tvdp_tf:errors"],
        )
        """),
    )

  def test_test_with_data(self):
    self.assertEqual(
      self.read('tests/privacy/BUILD'),
      textwrap.dedent("""\
        load("@rules_python//python:defs.bzl", "py_test")

        package(default_visibility = ["//:__subpackages__"])

        licenses(["notice"])

        py_test(
            name = "schedule_test",
            size = "small",
            srcs = ["schedule_test.py"],
            data = [
                "values.json",
                "//:LICENSE",
            ],
            deps = ["//tvdp_tf/privacy"],
        )
        """),
    )

  def test_size_follows_what_is_loaded(self):
    self.write('tvdp_tf/errors.py', 'import tensorflow.math')
    self.assert_updates('tests/privacy/BUILD')
    self.assertIn('size = "medium"', self.read('tests/privacy/BUILD'))
    self.write('tvdp_tf/errors.py', 'import tensorflow_federated as tff')
    self.assert_updates('tests/privacy/BUILD')
    self.assertIn('size = "large"', self.read('tests/privacy/BUILD'))

  def test_program_and_the_test_that_runs_it(self):
    self.write('binaries/plan.py', "if __name__ == '__main__':\n  print()")
    self.write('tests/binaries/plan_test.py', "PROGRAM = 'binaries/plan.py'")
    self.assert_updates('binaries/BUILD', 'tests/binaries/BUILD')
    self.assertIn('py_binary(', self.read('binaries/BUILD'))
    test = self.read('tests/binaries/BUILD')
    self.assertIn('data = ["//binaries:plan"]', test)
    self.assertIn('size = "large"', test)

  def test_missing_dependency(self):
    self.write('tvdp_tf/_validate.py', '')
    self.write(
      'tvdp_tf/privacy/schedule.py',
      """
      def f():
        from tvdp_tf import _validate, errors
      """,
    )
    self.assert_updates('tvdp_tf/BUILD', 'tvdp_tf/privacy/BUILD')
    self.assertIn('"//tvdp_tf:_validate",', self.read('tvdp_tf/privacy/BUILD'))

  def test_stale_dependency(self):
    self.write('tvdp_tf/privacy/schedule.py', '')
    self.assert_updates('tvdp_tf/privacy/BUILD')
    self.assertNotIn('errors', self.read('tvdp_tf/privacy/BUILD'))

  def test_new_file(self):
    self.write('tvdp_tf/privacy/ledger.py', '')
    self.assert_updates('tvdp_tf/privacy/BUILD')
    self.assertIn('name = "ledger"', self.read('tvdp_tf/privacy/BUILD'))

  def test_new_folder(self):
    self.write('tvdp_tf/learning/__init__.py', '')
    self.assert_updates('tvdp_tf/learning/BUILD')

  def test_removed_folder(self):
    (self.root / 'tests/privacy/schedule_test.py').unlink()
    self.assert_updates('tests/privacy/BUILD')
    self.assertFalse((self.root / 'tests/privacy/BUILD').exists())

  def test_edited_by_hand(self):
    self.write('tvdp_tf/BUILD', self.read('tvdp_tf/BUILD') + '# note\n')
    self.assert_updates('tvdp_tf/BUILD')

  def test_two_targets_of_one_name(self):
    self.write('tvdp_tf/privacy/privacy.py', '')
    with self.assertRaisesRegex(ValueError, 'two targets named privacy'):
      build_files.build_files(self.root)


if __name__ == '__main__':
  absltest.main()
