"""The parts of a statement that are common to all mechanisms.

A custom mechanism states what its releases deliver. This module adds the
assumptions of every run, and the conditions under which no guarantee holds, so
that no mechanism can leave them out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.learning import features, views
from tvdp_tf.privacy import noise_distance
from tvdp_tf.privacy import statement as statement_lib

_SEEDED = (
  'the noise is reproducible from --seed: it hides nothing from anyone who'
  ' knows the seed'
)
# The least share of the ledger's epsilon that may be stated: it is rounded or,
# with secret sampling, accounted at another Renyi order.
_SAME = {'none': 1 - 1e-6, 'poisson': 0.99}


_ACCOUNTANTS = ('exact', 'pld', 'rdp')


def delivered(
  noise_multipliers: np.ndarray, delta: float
) -> Mapping[str, float]:
  """Returns the epsilon of unsampled releases, by accountant."""
  return {
    accountant: privacy.delivered_epsilon(noise_multipliers, delta, accountant)
    for accountant in _ACCOUNTANTS
  }


def of(plan: Any, on_record: float = 0.0) -> privacy.PrivacyStatement:
  """The statement on all releases of a plan's history.

  Args:
    plan: A `contract.Mechanism`.
    on_record: What the worst client has spent in the run according to its
      ledger, if there is one.
  """
  found = plan.statement()
  if plan._is_ours():
    return found
  granted = [*assumptions(plan), *warnings(plan)]
  holds, reason = found.holds, found.reason
  if holds:
    holds, reason = verdict(plan, found.epsilon, reason)
  if holds and (other := _not_on_record(found, plan, on_record)):
    holds, reason = False, other
  author = f'as {type(plan).__module__} claims'
  rule = found.sensitivity
  if rule is not None:
    rule = dataclasses.replace(rule, reason=f'{author}: {rule.reason}')
  return dataclasses.replace(
    found,
    holds=holds,
    reason=f'{reason}, {author}: it is not proven here' if holds else reason,
    sensitivity=rule,
    assumptions=(
      *found.assumptions,
      *(words for words in granted if words not in found.assumptions),
    ),
  )


def _not_on_record(
  found: privacy.PrivacyStatement, plan: Any, on_record: float
) -> str:
  """What a statement says that the ledger does not; empty if nothing.

  Args:
    found: The statement of a custom mechanism.
    plan: The mechanism.
    on_record: As for `of`.
  """
  spent = max(on_record, plan.spending.worst_epsilon())
  if found.epsilon < _SAME[plan.header.sampling] * spent:
    stated, counted = map(statement_lib.format_epsilon, (found.epsilon, spent))
    return (
      f'it states epsilon = {stated}, but its releases have spent {counted}'
    )
  # A part of delta may be kept for the tail of the noise.
  delta = max(plan.delta, plan.header.delta)
  if found.delta < delta:
    return (
      f'it states delta = {found.delta!r}, but its releases are accounted at'
      f' {delta!r}'
    )
  unit, adjacency = plan.header.unit, plan.header.adjacency
  if (found.unit, found.adjacency) != (unit, adjacency):
    return (
      f'it states {found.adjacency} of one {found.unit}, but its releases are'
      f' accounted for {adjacency} of one {unit}'
    )
  return ''


def cut_off(plan: Any) -> str:
  """Why no statement of a plan holds whose noise does not reach far enough."""
  return (
    f'{plan.noise} noise is cut off too early to hide anything at epsilon ='
    f' {plan.settings.epsilon:g}: a value beyond the cut-off reveals the data'
  )


def verdict(plan: Any, delivered_epsilon: float, why: str) -> tuple[bool, str]:
  """Whether a proven mechanism keeps its promise, and the reason.

  Args:
    plan: A `contract.Mechanism`.
    delivered_epsilon: Epsilon in the promised view, by a sound accountant.
    why: The reason to return if it does.
  """
  if not (plan.is_sound and plan.header.enforced):
    return False, f'mechanism {plan.name} gives no enforced guarantee'
  if plan.settings.seed is not None:
    return False, (
      'the noise is reproducible from --seed: this was a simulation'
    )
  if not plan.reaches_far_enough:
    return False, cut_off(plan)
  if not plan.covers_changes:
    return False, (
      'the noise differs from round to round and was not released as planned,'
      ' and no Renyi order was fixed in advance: start a new run, or use'
      ' --theta=1'
    )
  if delivered_epsilon > plan.settings.epsilon:
    return False, 'the releases have spent more than the target'
  return True, why


def assumptions(plan: Any) -> list[str]:
  """The assumptions about a run, in addition to those of its mechanism.

  Args:
    plan: A `contract.Mechanism`, with the releases that the statement is about.
  """
  if plan.noise == noise_distance.DISCRETE:
    drawn = (
      'the noise keys are unpredictable, and so is what ChaCha20 generates from'
      ' them; the noise needs no assumption about floating point'
    )
  else:
    drawn = (
      'the noise keys are unpredictable, and what Philox generates from them is'
      ' taken as random; the noise is computed and added in floating point, and'
      ' the last bits are assumed to disclose nothing'
    )
  found = [
    drawn,
    'the process that trains holds the data of all clients and draws all noise'
    ' keys: the promise is against those who see what the algorithm sends, not'
    ' against those who run this process',
    'all settings are public and were not chosen by looking at the data; the'
    ' test set is public, and so are the weights that training starts from',
    'other runs on the same data add to this one, unless they share its ledger',
  ]
  if plan.settings.features != features.NONE:
    found.append(features.FEATURES[plan.settings.features].privacy_words)
  if plan.settings.views != views.NONE:
    found.append(views.privacy_words(plan.settings.views))
  if plan.settings.split == 'dirichlet':
    found.append(
      'the assignment of examples to clients is taken as given: this'
      ' simulation assigns them by their labels, and what that discloses is'
      ' not covered'
    )
  if plan.header.unit == 'user' and plan.settings.number_decides:
    found.append(
      'the number of examples is public: it decides how the run deals them out'
      ' to the users, whose own numbers follow from it'
    )
  if plan.header.unit == 'example':
    found.append(
      'an example is not a person: a person with several examples, at one or'
      ' several clients, has less protection'
    )
  if not plan.as_planned and plan.header.enforced:
    found.append(
      'the run did not follow its first plan: the delivered epsilon stated'
      ' here is the target, which the privacy filter guarantees whatever made'
      ' the run stop or change'
      if plan.covers_changes
      else 'the run did not follow its first plan, and its noise may depend on'
      ' what was released: the delivered epsilon stated here is not a bound'
    )
  if not plan._is_ours():
    found.append(
      f'mechanism {plan.name} is not part of this library:'
      f' {type(plan).__module__} claims its sensitivity, that its releases are'
      ' as recorded, and that clients send nothing else'
    )
  return found


def warnings(plan: Any) -> list[str]:
  """Assumptions that the settings force on any mechanism.

  Args:
    plan: As for `of`.
  """
  found = [] if plan.settings.seed is None else [_SEEDED]
  unit, units = plan.header.unit, plan.units
  if plan.settings.delta >= 1 / units:
    found.append(
      f'WARNING: delta = {plan.settings.delta!r} is at least 1/n for the '
      f'{units} {unit}s in the run, so a mechanism that publishes a '
      f'random {unit} could satisfy it'
    )
  return found
