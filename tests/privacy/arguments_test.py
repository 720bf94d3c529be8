"""Bad arguments of the package: one table, one clear line each."""

import dataclasses
import re

from absl.testing import absltest, parameterized

from tests.privacy import argument_cases
from tvdp_tf import privacy

# The modules of the ledger have tests of their own.
_LEDGER = re.compile(r'ledger|_released|_chained_file')


def _rows():
  for name, case in argument_cases.CASES.items():
    for argument, (_, allowed) in case.arguments.items():
      if isinstance(allowed, str):
        rows = [
          (value, f'{argument} must be {allowed}, got {value!r}')
          for value in argument_cases.bad_values(allowed)
        ]
      else:
        rows = allowed
      for i, (value, message) in enumerate(rows):
        yield f'{name}_{argument}_{i}', name, argument, value, message


class ArgumentsTest(parameterized.TestCase):
  @parameterized.parameters(*argument_cases.CASES)
  def test_the_table_starts_from_arguments_that_are_taken(self, name):
    argument_cases.CASES[name].function(**argument_cases.CASES[name].valid())

  @parameterized.named_parameters(*_rows())
  def test_bad_argument(self, name, argument, value, message):
    case = argument_cases.CASES[name]
    with self.assertRaises(ValueError) as caught:
      case.function(**{**case.valid(), argument: value})
    self.assertStartsWith(str(caught.exception), message)
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.named_parameters(
    (f'{name}_{i}', name, value, allowed)
    for name, (_, allowed) in argument_cases.OPTIONAL.items()
    for i, value in enumerate(argument_cases.bad_values(allowed))
    if value is not None
  )
  def test_optional_attribute_of_a_setting(self, name, value, allowed):
    with self.assertRaises(ValueError) as caught:
      dataclasses.replace(argument_cases.SETTING, **{name: value})
    self.assertStartsWith(
      str(caught.exception), f'{name} must be {allowed}, got {value!r}'
    )


class CoverageTest(absltest.TestCase):
  def test_every_function_with_arguments_to_check_is_in_the_table(self):
    functions = {case.function for case in argument_cases.CASES.values()}
    missing = {
      name
      for name in privacy.__all__
      if callable(getattr(privacy, name))
      and getattr(privacy, name) not in functions
      and not _LEDGER.search(getattr(privacy, name).__module__)
    }
    self.assertEqual(
      missing,
      {
        # Tested where they are: results, and what has a test of its own.
        *('BoundTerms', 'CheckedClaim', 'OptimalPlan', 'OptimalRounds'),
        *('PrivacyStatement', 'SensitivityRule', 'NoiseSchedule', 'NoiseShape'),
        # Of lists: `schedule_test`, `own_schedule_test`.
        *('ListedSchedule', 'ListedShape', 'listed_shape'),
        # A ledger; `budget_test`.
        'Budget',
        # In the table with its formula: `claims_test` has the others.
        'check_claim',
        # Same arguments as `convergence_bound`, which calls it.
        'convergence_terms',
      },
    )


if __name__ == '__main__':
  absltest.main()
