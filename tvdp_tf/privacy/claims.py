"""Checks the privacy claim of another tool against the noise that it adds.

A formula says how the tool sets its noise, and what it accounts for:

  gaussian           noise multiplier z on each of all rounds
  flower-local-dp    Flower's LocalDpMod: sensitivity sqrt(2 ln(1.25/delta)) /
                     epsilon on each client's clipped update, for each round as
                     if it were the only one (as of flwr 1.15.2 and 1.41.0)
  dp-sgd             tensorflow_privacy's DP-SGD and Opacus: z on each batch's
                     sum of clipped gradients, accounted as Poisson sampled
  nvflare-svt        NVFlare's SVTPrivacy: Laplace noise on some coordinates (as
                     of nvflare 2.9.0)
  nvflare-percentile NVFlare's PercentilePrivacy: no noise (as of nvflare 2.9.0)

The delivered epsilon is an upper bound for the worst client or example. It
assumes that the tool does what it says. Audits of the tools: docs/CLAIMS.md.
"""

import dataclasses
import math
from typing import Any

from tvdp_tf import _validate, errors
from tvdp_tf.privacy import accounting, gaussian, statement

# Arguments of each formula besides epsilon, delta and rounds.
_TAKES = {
  'gaussian': ('noise_multiplier',),
  'flower-local-dp': ('clip', 'sensitivity'),
  'dp-sgd': ('noise_multiplier', 'sampling_rate', 'batches'),
  'nvflare-svt': (),
  'nvflare-percentile': (),
}
FORMULAS = tuple(_TAKES)
# More rounds take minutes to account for.
_MOST_ROUNDS = 10**7
# How batches are drawn; amplification is granted to secret Poisson draws only.
BATCHES = ('poisson', 'shuffled')


@dataclasses.dataclass(frozen=True)
class CheckedClaim:
  """A claim and the delivered epsilon.

  Attributes:
    formula: One of `FORMULAS`.
    claimed_epsilon: What the tool claims; NaN if it claims nothing.
    delta: The delta of both epsilons.
    delivered_epsilon: What all releases together deliver; inf if nothing is
      proven.
    unit: What is protected, and how neighboring data sets differ.
    noise_multipliers: Noise multiplier of each release, relative to the proven
      sensitivity.
    reasons: Explanations of the result, in sentences.
  """

  formula: str
  claimed_epsilon: float
  delta: float
  delivered_epsilon: float
  unit: str
  noise_multipliers: tuple[float, ...]
  reasons: tuple[str, ...]

  @property
  def holds(self) -> bool:
    """Whether the delivered epsilon is at most the claimed one."""
    return self.delivered_epsilon <= self.claimed_epsilon

  def describe(self) -> str:
    """The verdict in words, several lines."""
    words = 'HOLDS' if self.holds else 'DOES NOT HOLD'
    if math.isnan(self.claimed_epsilon):
      claim = f'Claim ({self.formula}): no epsilon was claimed.'
    else:
      claim = (
        f'Claim ({self.formula}): epsilon = {self.claimed_epsilon!r} {words}.'
      )
    delivered = statement.format_epsilon(self.delivered_epsilon)
    return '\n'.join(
      [
        claim,
        f'  Delivered: epsilon = {delivered} at delta = {self.delta!r}'
        f' ({len(self.noise_multipliers)} releases that count)',
        f'  Protects: {self.unit}',
        *(f'  - {reason}' for reason in self.reasons),
      ]
    )


def check_claim(
  formula: str,
  *,
  delta: float,
  rounds: int,
  epsilon: float | None = None,
  noise_multiplier: float | None = None,
  clip: float | None = None,
  sensitivity: float | None = None,
  sampling_rate: float = 1.0,
  batches: str = 'poisson',
) -> CheckedClaim:
  """Computes the epsilon that the noise of another tool delivers.

  >>> found = check_claim(
  ...   'flower-local-dp', epsilon=1.0, delta=1e-5, rounds=30, clip=1.0,
  ...   sensitivity=1.0)
  >>> found.holds, round(found.delivered_epsilon, 2)
  (False, 11.64)

  Args:
    formula: One of `FORMULAS`, described above.
    delta: In (0, 1).
    rounds: The number of releases: rounds, or steps of DP-SGD; at most 10^7.
    epsilon: The epsilon that the tool claims for all rounds, if any. With
      flower-local-dp, its setting, which is for one round.
    noise_multiplier: With gaussian and dp-sgd: the standard deviation of the
      noise divided by the sensitivity, or by the clip of one example.
    clip: With flower-local-dp: its clipping_norm.
    sensitivity: With flower-local-dp: its sensitivity.
    sampling_rate: With dp-sgd: the share of the examples in a batch.
    batches: With dp-sgd: `poisson` for fresh, secret draws, or `shuffled` if
      every example is used once per epoch.

  Returns:
    The checked claim.

  Raises:
    ValueError: If an argument is missing or out of range, or if the formula
      does not use it.
  """
  _validate.one_of('formula', formula, FORMULAS)
  for name, value, unused in (
    ('noise_multiplier', noise_multiplier, None),
    ('clip', clip, None),
    ('sensitivity', sensitivity, None),
    ('sampling_rate', sampling_rate, 1.0),
    ('batches', batches, 'poisson'),
  ):
    if name not in _TAKES[formula] and value != unused:
      raise ValueError(
        f'{name} must not be given with {formula}, got'
        f' {_validate.quoted(value)}'
      )
  delta = _validate.open_unit('delta', delta)
  _validate.integer('rounds', rounds, maximum=_MOST_ROUNDS)
  claimed = math.nan
  if epsilon is not None:
    claimed = _validate.positive('epsilon', epsilon)
  if formula.startswith('nvflare'):
    return _unproven(formula, claimed, delta)
  if formula == 'flower-local-dp':
    return _flower(
      _validate.positive('epsilon', epsilon),
      delta,
      rounds,
      _validate.positive('clip', clip),
      _validate.positive('sensitivity', sensitivity),
    )
  z = _validate.positive('noise_multiplier', noise_multiplier)
  if formula == 'gaussian':
    return CheckedClaim(
      formula,
      claimed,
      delta,
      accounting.delivered_epsilon([z] * rounds, delta, 'exact'),
      'the unit that the noise multiplier is relative to',
      (z,) * rounds,
      (f'{rounds} releases of the same data are composed, exactly',),
    )
  _validate.one_of('batches', batches, BATCHES)
  rate = _validate.rate('sampling_rate', sampling_rate)
  return _dp_sgd(claimed, delta, rounds, z, rate, batches)


def _unproven(formula: str, claimed: float, delta: float) -> CheckedClaim:
  if formula == 'nvflare-percentile':
    reason = (
      'the data decide which coordinates are sent and how they are truncated,'
      ' and no noise is added: there is no finite epsilon'
    )
  else:
    reason = (
      'the epsilon that is set is for the search for coordinates to send, in'
      ' one round; the accounting of nvflare 2.9.0 adds the cost of their'
      ' values and of all rounds, but counts the search as if it stopped at'
      ' the last coordinate that is sent, although it continues: nothing is'
      ' proven about that here'
    )
  return CheckedClaim(
    formula, claimed, delta, math.inf, 'nothing that is proven', (), (reason,)
  )


def _flower(
  epsilon: float, delta: float, rounds: int, clip: float, sensitivity: float
) -> CheckedClaim:
  stddev = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
  # Both updates are within the clip, from two clients or one with other data.
  true = 2 * clip
  z = stddev / true
  once = gaussian.gaussian_epsilon(z, delta)
  reasons = [
    'its epsilon is for one round, and the tool does not add up the rounds:'
    f' here, a client that takes part in all {rounds} is counted {rounds}'
    ' times',
    f'two clipped updates differ by up to 2 * {clip:g} = {true:g}, but the'
    f' sensitivity was set to {sensitivity:g}; one round delivers'
    f' {statement.format_epsilon(once)}',
  ]
  if epsilon > 1:
    reasons.append('its formula is proven only for epsilon < 1')
  return CheckedClaim(
    'flower-local-dp',
    epsilon,
    delta,
    accounting.delivered_epsilon([z] * rounds, delta, 'exact'),
    'all data of one client, exchanged for any other, against the server',
    (z,) * rounds,
    tuple(reasons),
  )


def _dp_sgd(
  claimed: float, delta: float, steps: int, z: float, rate: float, batches: str
) -> CheckedClaim:
  reasons: tuple[str, ...]
  if batches == 'poisson':
    multipliers = (z,) * steps
    exchanged = 'added or removed (or its gradient set to zero)'
    delivered = min(
      accounting.delivered_epsilon(multipliers, delta, name, 'poisson', rate)
      for name in ('rdp', 'pld')
    )
    reasons = (
      'each batch must be a fresh Poisson draw that stays secret; for the'
      ' common shuffled batches of one size, set batches=shuffled',
    )
  else:
    # In an epoch, each example is in only one release. An incomplete last batch
    # may be left out, which makes the shortest epochs.
    epochs = math.ceil(steps / math.floor(min(1 / rate, 2.0**60) * (1 + 1e-12)))
    multipliers = (z,) * epochs
    exchanged = 'its gradient set to zero'
    delivered = accounting.delivered_epsilon(multipliers, delta, 'exact')
    reasons = (
      f'an example is in one batch of each of {epochs} epochs; no'
      ' amplification by shuffling is proven here, so none is counted',
      'the epsilon of these tools is about adding or removing an example,'
      ' which moves others to other batches; nothing is proven about that here',
    )
  return CheckedClaim(
    'dp-sgd',
    claimed,
    delta,
    delivered,
    f'one example, {exchanged}, against anyone who sees the model after each'
    ' step',
    multipliers,
    reasons,
  )


_NUMBERS = (
  *('delta', 'epsilon', 'noise_multiplier', 'clip', 'sensitivity'),
  'sampling_rate',
)


def check_text(text: str) -> CheckedClaim:
  """Checks a claim given as text.

  Args:
    text: FORMULA:NAME=VALUE,... with the arguments of `check_claim`.

  Raises:
    ValueError: If the text is malformed, or an argument is wrong.
  """
  formula, _, rest = text.partition(':')
  arguments: dict[str, Any] = {}
  try:
    if formula not in FORMULAS:
      raise ValueError(f'FORMULA is not one of {", ".join(FORMULAS)}')
    for part in filter(None, rest.split(',')):
      name, _, value = part.partition('=')
      if name in arguments:
        raise ValueError(f'{name} is given twice')
      if name in _NUMBERS:
        arguments[name] = float(value)
      elif name == 'rounds':
        arguments[name] = int(value)
      elif name == 'batches':
        arguments[name] = value
      else:
        allowed = ', '.join([*_NUMBERS, 'rounds', 'batches'])
        raise ValueError(f'{name!r} is not one of {allowed}')
    for name in ('delta', 'rounds'):
      if name not in arguments:
        raise ValueError(f'{name} must be given')
    return check_claim(formula, **arguments)
  except ValueError as error:
    raise ValueError(
      f'claim must be FORMULA:NAME=VALUE,..., got {text!r}: {error}'
    ) from error


def raise_unless_holds(claim: CheckedClaim) -> None:
  """Raises `TvdpError` if there is a claim and it does not hold."""
  if not (math.isnan(claim.claimed_epsilon) or claim.holds):
    raise errors.TvdpError('the claim does not hold')
