"""The privacy statement: what a run promises, to whom, and whether it holds.

A statement that says `holds` can only be built with a sound accountant whose
epsilon is within the target. The paper's claim (Theorem 1) is shown next to the
delivered epsilon, never instead of it.
"""

import dataclasses
import decimal
import functools
import json
import math
import types
from collections.abc import Mapping

from tvdp_tf import _json, _validate
from tvdp_tf.privacy import accounting
from tvdp_tf.privacy import sensitivity as sensitivity_lib

# An epsilon by `moments` is a mere claim: its bound is false under sampling,
# and where it is true, `exact` is better.
SOUND_ACCOUNTANTS = ('exact', 'rdp', 'pld', 'basic')
# The adjacency accounted for in view `poisson`; no `exact` accountant has it.
_POISSON_ADJACENCY = sensitivity_lib.ADD_OR_REMOVE_ONE
# Above this, an attacker may be right more than 99.995 % of the time.
MEANINGFUL_EPSILON = 10.0
# `basic` adds up pure epsilons, those of Laplace noise.
_NAMES = (*accounting.ACCOUNTANTS, 'basic')


def _epsilon(name: str, value: object) -> float:
  if isinstance(value, float) and value == math.inf:
    return math.inf
  return _validate.non_negative(name, value)


def format_epsilon(value: float) -> str:
  """Formats six significant digits, rounded up, so that it remains a bound.

  If at most six digits read back as the same number, they are not rounded.

  >>> format_epsilon(1.0000001), format_epsilon(61.63114630234804)
  ('1.00001', '61.6312')
  >>> format_epsilon(0.1), format_epsilon(0.1 + 1e-9)
  ('0.1', '0.100001')
  >>> format_epsilon(10.0), format_epsilon(12345678.0)
  ('10', '1.23457e+7')
  """
  if value == math.inf:
    return 'inf'
  context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
  # The binary64 number 0.1 is a little more than a tenth; print it as 0.1.
  rounded = context.create_decimal(repr(float(value))).normalize(context)
  plain = 1e-4 <= value < 1e6 or value == 0
  return f'{rounded:f}' if plain else f'{rounded:g}'


def guess_probability(epsilon: float, delta: float) -> float:
  """An attacker's largest success rate in distinguishing two equal cases.

  Both cases are equally likely, so guessing is right half of the time. The rate
  is 1 - (1 - delta) / (1 + e^epsilon) (Wasserman and Zhou, 2010).

  >>> round(guess_probability(3.0, 1e-5), 4), guess_probability(1e9, 1e-5)
  (0.9526, 1.0)

  Args:
    epsilon: >= 0, or inf.
    delta: In [0, 1].
  """
  if epsilon > 700:
    return 1.0
  return 1 - (1 - delta) / (1 + math.exp(epsilon))


def worth(
  epsilon: float,
  delta: float,
  unit: str,
  units: int | None = None,
  adjacency: str = sensitivity_lib.REPLACE_ONE,
) -> tuple[str, bool]:
  """A sentence on what (epsilon, delta) protects, and whether that is little.

  Args:
    epsilon: As `PrivacyStatement.epsilon`.
    delta: In (0, 1).
    unit: 'example' or 'user'.
    units: The number of units, if it is known.
    adjacency: The adjacency of epsilon. Under replace-one, any two units are
      neighbors. Otherwise only the presence of one can be bounded.

  Returns:
    The sentence, and whether epsilon is above `MEANINGFUL_EPSILON` or delta
    would allow publishing one of the units.
  """
  if units is not None and delta >= 1 / units:
    return (
      f'little: delta = {delta!r} is at least 1/n for the {units} {unit}s, so'
      f' a mechanism that publishes one {unit} at random would satisfy it'
    ), True
  right = guess_probability(epsilon, delta)
  # One decimal place, unless that would say 100 %.
  percent = math.ceil(1000 * right) / 10
  if epsilon > MEANINGFUL_EPSILON or percent == 100:
    percent = math.ceil(1e6 * right) / 1e4
  what = f'whether one {unit} was in the data'
  if adjacency == sensitivity_lib.REPLACE_ONE:
    what = f'which of two {unit}s was in the data'
  if epsilon > MEANINGFUL_EPSILON:
    return (
      f'little: an attacker who has to tell {what} may be right up to'
      f' {percent:.7g} % of the time'
    ), True
  return (
    f'an attacker who has to tell {what} is right at'
    f' most {percent:.7g} % of the time; guessing is 50 %'
  ), False


def verdict(holds: bool, little: bool) -> str:
  """HOLDS, with a reservation if it is worth little, or DOES NOT HOLD."""
  if not holds:
    return 'DOES NOT HOLD'
  return 'HOLDS, BUT PROTECTS LITTLE' if little else 'HOLDS'


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
  """What is promised, what is delivered, and under which assumptions.

  Attributes:
    target_epsilon: The target epsilon, > 0; inf for no privacy.
    delta: In (0, 1).
    claimed_epsilon: The claim of the formula that set the noise, >= 0.
    delivered: Epsilon at `delta` by view (what the adversary sees, such as
      'none' for no sampling, 'visible', 'poisson') and accountant; may be inf.
    unit: What is protected: 'example' or 'user'.
    adjacency: One of `sensitivity.ADJACENCIES`, of that unit.
    assumptions: The assumptions of the statement, in sentences.
    holds: Whether (target_epsilon, delta) is delivered in `view`.
    reason: Why it holds or not, in a sentence.
    view: The view, a key of `delivered`, that the promise is about. The default
      has no amplification.
    sensitivity: The rule that the noise is scaled to; None if unknown.
    units: The number of examples or users, if it is public. The statement
      points out a delta of at least 1 / units.

  Raises:
    ValueError: If a number is NaN or out of range; or if `holds` is True while
      no sound accountant delivers the target in `view`, the claim is below all
      that sound accountants deliver, the sensitivity is missing or not proven,
      or the view is secret sampling for a unit smaller than the sampled user or
      for replacing one.
  """

  target_epsilon: float
  delta: float
  claimed_epsilon: float
  delivered: Mapping[str, Mapping[str, float]]
  unit: str
  adjacency: str
  assumptions: tuple[str, ...]
  holds: bool
  reason: str
  view: str = 'none'
  sensitivity: sensitivity_lib.SensitivityRule | None = None
  units: int | None = None

  def __post_init__(self):
    target = _epsilon('target_epsilon', self.target_epsilon)
    if target == 0:
      raise ValueError('target_epsilon must be > 0, got 0')
    frozen = {
      'target_epsilon': target,
      'delta': _validate.open_unit('delta', self.delta),
      'claimed_epsilon': _epsilon('claimed_epsilon', self.claimed_epsilon),
      'delivered': types.MappingProxyType(
        {
          view: types.MappingProxyType(
            {
              _validate.one_of('accountant', accountant, _NAMES): _epsilon(
                f'delivered epsilon ({view}, {accountant})', epsilon
              )
              for accountant, epsilon in by_accountant.items()
            }
          )
          for view, by_accountant in self.delivered.items()
        }
      ),
      'assumptions': tuple(self.assumptions),
    }
    for name, value in frozen.items():
      object.__setattr__(self, name, value)
    _validate.one_of('unit', self.unit, sensitivity_lib.UNITS)
    _validate.one_of('adjacency', self.adjacency, sensitivity_lib.ADJACENCIES)
    if not isinstance(self.holds, bool):
      raise ValueError(f'holds must be True or False, got {self.holds!r}')
    for name, text in (
      ('reason', self.reason),
      *(('assumptions', text) for text in self.assumptions),
    ):
      if not isinstance(text, str) or not text:
        raise ValueError(f'{name} must be non-empty text, got {text!r}')
    if self.units is not None:
      _validate.integer('units', self.units)
    self._check_sensitivity()
    if self.holds:
      self._check_holds()

  def __reduce__(self):
    # A mapping proxy cannot be pickled. Pickles and copies are checked again.
    values = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
    }
    values['delivered'] = {
      view: dict(by_accountant)
      for view, by_accountant in self.delivered.items()
    }
    return functools.partial(type(self), **values), ()

  def _check_sensitivity(self):
    rule = self.sensitivity
    if rule is None:
      return
    if (rule.unit, rule.adjacency) != (self.unit, self.adjacency):
      raise ValueError(
        f'sensitivity must be for {self.adjacency} of one {self.unit}, got'
        f' {rule.adjacency} of one {rule.unit}'
      )
    if self.holds and not rule.proven:
      raise ValueError(
        'holds must be False if the sensitivity is not proven, got True with'
        f' {rule.name!r}'
      )

  def _check_holds(self):
    if self.sensitivity is None:
      raise ValueError(
        'holds must be False without a proven sensitivity, got True with None'
      )
    delivered = self.epsilon
    if not delivered <= self.target_epsilon < math.inf:
      raise ValueError(
        'holds must be False if no sound accountant delivers a finite target'
        f' epsilon, got True with {delivered!r} delivered in view'
        f' {self.view!r} for target {self.target_epsilon!r}'
      )
    if self.claimed_epsilon < delivered:
      raise ValueError(
        'claimed_epsilon must be at least what is delivered if holds is True,'
        f' got {self.claimed_epsilon!r} with {delivered!r} delivered'
      )
    if self.view == 'poisson' and self.unit != 'user':
      raise ValueError(
        "unit must be 'user' if holds is True in view 'poisson', got"
        f' {self.unit!r}: the users are sampled'
      )
    if self.view == 'poisson' and self.adjacency != _POISSON_ADJACENCY:
      raise ValueError(
        f'adjacency must be {_POISSON_ADJACENCY} if holds is True in view'
        f" 'poisson', got {self.adjacency!r}: the accounting of secret"
        f' sampling is for {_POISSON_ADJACENCY}'
      )

  def __repr__(self) -> str:
    target = format_epsilon(self.target_epsilon)
    return (
      f'<PrivacyStatement: epsilon = {target} at delta = {self.delta!r}'
      f' {self.verdict}>'
    )

  def __str__(self) -> str:
    return self.describe()

  @property
  def accountant(self) -> str | None:
    """The sound accountant with the smallest epsilon in `view`, or None."""
    by_accountant = self.delivered.get(self.view, {})
    sound = [
      (by_accountant[name], name)
      for name in SOUND_ACCOUNTANTS
      if name in by_accountant and (name, self.view) != ('exact', 'poisson')
    ]
    return min(sound)[1] if sound else None

  @property
  def epsilon(self) -> float:
    """What is delivered in `view` by `accountant`; inf if there is none."""
    name = self.accountant
    return math.inf if name is None else self.delivered[self.view][name]

  @property
  def worth(self) -> str:
    """What the promise is worth if it holds, in a sentence."""
    return self._worth()[0]

  def _worth(self) -> tuple[str, bool]:
    return worth(
      *(self.target_epsilon, self.delta, self.unit, self.units, self.adjacency)
    )

  @property
  def verdict(self) -> str:
    """HOLDS, with a reservation if it is worth little, or DOES NOT HOLD."""
    return verdict(self.holds, self._worth()[1])

  def to_json_dict(self) -> dict[str, object]:
    """The statement, ready for `json.dumps`; infinity is the string 'inf'."""
    result: dict[str, object] = {
      'target_epsilon': _json.number(self.target_epsilon),
      'delta': self.delta,
      'claimed_epsilon': _json.number(self.claimed_epsilon),
      'delivered': {
        view: {name: _json.number(value) for name, value in values.items()}
        for view, values in self.delivered.items()
      },
      'unit': self.unit,
      'adjacency': self.adjacency,
      'assumptions': list(self.assumptions),
      'holds': self.holds,
      'reason': self.reason,
      'view': self.view,
      'sensitivity': self.sensitivity and self.sensitivity.to_json_dict(),
      'worth': self.worth,
      'units': self.units,
    }
    json.dumps(result, allow_nan=False)
    return result

  def describe(self) -> str:
    """The statement in words, several lines, for a terminal."""
    target = format_epsilon(self.target_epsilon)
    lines = [
      f'Privacy statement: epsilon = {target} at delta = {self.delta!r}'
      f' {self.verdict}.',
      f'  Reason: {self.reason}',
      *([f'  Worth: {self.worth}'] if self.holds else []),
      f'  Protects: one {self.unit} ({self.adjacency}:'
      f' {sensitivity_lib.ADJACENCY_MEANINGS[self.adjacency]})',
      f'  Promised in view: {self.view}',
      f'  Claimed epsilon: {format_epsilon(self.claimed_epsilon)}',
      '  Delivered epsilon:',
    ]
    for view, by_accountant in self.delivered.items():
      for name, value in by_accountant.items():
        note = '' if name in SOUND_ACCOUNTANTS else ' (a claim, not a bound)'
        lines.append(f'    {view}, {name}: {format_epsilon(value)}{note}')
    if self.sensitivity is not None:
      rule = self.sensitivity
      status = 'proven' if rule.proven else 'NOT PROVEN'
      lines.append(f'  Sensitivity: {rule.formula} ({status}: {rule.reason})')
      if rule.rounding:
        lines.append(
          '    including a relative rounding error of up to'
          f' {rule.rounding:.2g}, by which the clip is reduced'
        )
    if self.assumptions:
      lines.append('  Assuming that:')
      lines.extend(f'    - {assumption}' for assumption in self.assumptions)
    return '\n'.join(lines)
