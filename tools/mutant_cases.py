"""The mutants of `tools.mutants`: what is broken, and which tests notice it.

A change is given by the text that it replaces, which must occur exactly once in
its file.
"""

from typing import NamedTuple

from tools import (
  mutants_of_aggregators,
  mutants_of_ghost_clipping,
  mutants_of_learning,
)


class Mutant(NamedTuple):
  """One change to one file.

  Attributes:
    path: The file, relative to the root.
    before: Text that occurs in it exactly once.
    after: The replacement.
    tests: Arguments of pytest; at least one of these tests should fail.
  """

  path: str
  before: str
  after: str
  tests: tuple[str, ...]


def mutated(mutant: Mutant, text: str) -> str:
  """Applies the change to the text of a file.

  Raises:
    ValueError: If the text to replace does not occur exactly once.
  """
  count = text.count(mutant.before)
  if count != 1:
    raise ValueError(
      f'{mutant.path} must hold {mutant.before!r} once, got {count} times'
    )
  return text.replace(mutant.before, mutant.after)


_SENSITIVITY = (
  'tests/privacy/sensitivity_test.py',
  'tests/privacy/noise_distance_test.py',
  'tests/learning/clipping_arithmetic_test.py',
)
_LEDGER = (
  'tests/privacy/ledger_test.py',
  'tests/privacy/ledger_accounting_test.py',
  'tests/privacy/ledger_shared_test.py',
  'tests/privacy/ledger_retry_test.py',
)
_SHARES = (
  'tests/mechanisms/distributed_test.py',
  'tests/federated/distributed_noise_test.py',
)
_PLANS = (
  'tests/training/proven_epsilon_test.py',
  'tests/mechanisms/plans_test.py',
)
_SECRET_DRAWS = (
  'tests/training/shared_ledger_test.py::OneBudgetTest'
  '::test_times_of_secret_draws_are_kept'
)
_AHEAD = ('tests/training/computed_ahead_test.py',)
_OTHER_FOLDER = (
  'tests/training/shared_ledger_test.py::CompanyTest'
  '::test_another_folder_is_other_data',
)

_CASES: list[mutants_of_learning.Case] = [
  (
    'tvdp_tf/_environment.py',
    ('tests/environment_test.py',),
    ('version <= LAST_WITH_ONEDNN', 'True'),
  ),
  (
    'tvdp_tf/runtimes/compiled/graph_function.py',
    ('tests/runtimes/compiled/graph_function_test.py',),
    ('self._turn = _ALONE', 'pass'),
    ('config_proto=onednn.CALL_OPTIONS', "config_proto=b''"),
    ('    onednn.kept_apart(definition)\n', ''),
  ),
  (
    'tvdp_tf/runtimes/graph_import.py',
    ('tests/runtimes/worker/client_blocks_test.py',),
    ('by_others=True', 'by_others=False'),
  ),
  (
    'tvdp_tf/runtimes/worker/client_blocks.py',
    ('tests/runtimes/worker/client_blocks_test.py',),
    ('1 if import_add_client.waits else', 'parallel_clients or'),
  ),
  (
    'tvdp_tf/privacy/sensitivity.py',
    _SENSITIVITY,
    (
      'microbatch_size * (microbatch_size + 16) * 2.0**-24',
      'microbatch_size * 2.0**-24',
    ),
    (
      'within += MOST_MICROBATCHES**2 * microbatch_size * 2.0**-24',
      'pass',
    ),
    ('if not LEAST_CLIP <= clip <= MOST_CLIP:', 'if False:'),
    ('value=factor * clip / examples', 'value=clip / examples'),
    (
      'name=GRADIENT_SUM,\n    value=factor * clip,',
      'name=GRADIENT_SUM,\n    value=clip,',
    ),
    (
      'name=UPDATE,\n    value=factor * clip,',
      'name=UPDATE,\n    value=clip,',
    ),
    ('return within + microbatches * examples * 2.0**-52', 'return within'),
  ),
  (
    'tvdp_tf/privacy/spending.py',
    (*_LEDGER, 'tests/privacy/spending_test.py'),
    ('return part * part', 'return part'),
    ('part = part * count', 'part = part * 1'),
    ('fits = after * (1 + 2.0**-50) <= 1 - _NEAR', 'fits = after <= 1 + 1e-3'),
    (
      'fits[i] = self._epsilon(releases) <= self.target_epsilon',
      'fits[i] = True',
    ),
    (
      'self._spent[clients] = (self._spent[clients] + cost) * (1 + 2.0**-50)',
      'self._spent[clients] = cost',
    ),
    (
      'if 0.0 in releases:\n      return math.inf\n    mu',
      'if 0.0 in releases:\n      return 0.0\n    mu',
    ),
    ('return total <= 1 << _FIXED_POINT_BITS', 'return True'),
    ('np.isnan(part), np.inf,', 'np.isnan(part), 0.0,'),
    (
      'return epsilon if epsilon >= total else math.nextafter(epsilon,'
      ' math.inf)',
      'return epsilon',
    ),
    ('+= count * squared_mu', '+= squared_mu'),
    ('np.where(np.isinf(amounts), 0.0, np.finfo(np.float64).tiny)', '0.0'),
    ('spent = self.squared_mu * ROUNDED_UP', 'spent = self.squared_mu'),
    ('+= count * _round_moment(amount, rate, order)', '+= 0'),
    ('total += _round_moment(multiplier, self._rate, order)', 'total += 0'),
    ('more, max(rate, self._rate))', 'more, rate)'),
  ),
  (
    'tvdp_tf/privacy/_ledger_state.py',
    _LEDGER,
    ('if fits.all():', 'if True:'),
    ('self.spending.charge(*release)', 'pass'),
    ('self._run_spendings[record.run].charge(*release)', 'pass'),
    (
      'if _release_at(record, i) != _release_at(earlier, then):',
      'if False:',
    ),
    ('self._records.add(record, fresh)', 'pass'),
    (
      'if len(set(record.noise_digests)) != len(record.noise_digests):',
      'if False:',
    ),
    ('if record.attempt != expected:', 'if False:'),
    ('self.noise_distance + run.noise_distance,\n      )', '0.0,\n      )'),
  ),
  (
    'tvdp_tf/privacy/_released.py',
    (*_LEDGER, 'tests/privacy/released_test.py'),
    ('self._counts[last[same]] += count', 'pass'),
    ('self._counts[at] < 2**62', 'self._counts[at] > 0'),
    ('self._before[entries] = last[new]', 'self._before[entries] = -1'),
    ('self._recent[digest] = number', 'pass'),
    ('if self._kept[number].has(digests[i]):', 'if False:'),
    ('self._keys.append(keys)', 'self._keys = [keys]'),
  ),
  (
    'tvdp_tf/mechanisms/contract.py',
    _PLANS,
    (
      'self.spending.record(rate=self._sampling_rate, **self.entry(releases))',
      'pass',
    ),
    ('if self.as_planned or not self.header.enforced:', 'if True:'),
  ),
  (
    'tvdp_tf/mechanisms/statements.py',
    _PLANS,
    ('if not plan.reaches_far_enough:', 'if False:'),
    ('if plan.settings.seed is not None:', 'if False:'),
  ),
  (
    'tvdp_tf/mechanisms/distributed.py',
    _SHARES,
    (
      'return self.settings.users_per_round - self._missing',
      'return self.settings.users_per_round',
    ),
    ('left = max(0, len(clients) - self._missing)', 'left = len(clients)'),
    ('self.l2_norm_clip * (1 - _GRID_ROUNDING)', 'self.l2_norm_clip'),
    ('update_rule(l2_norm_clip, adjacency)', 'update_rule(l2_norm_clip / 2)'),
    (
      'if (share > _GRID_ROUNDING * self._sensitivity).any():',
      'if False:',
    ),
  ),
  (
    'tvdp_tf/privacy/noise_distance.py',
    ('tests/learning/discrete_noise_test.py',),
    (
      'math.sqrt(size) * noise_multiplier / GRID_STDDEV',
      '0.0 * size * noise_multiplier',
    ),
  ),
  (
    'tvdp_tf/mechanisms/gradient.py',
    ('tests/mechanisms/plans_test.py',),
    ('share <= noise_distance.LARGEST_ROUNDING', 'share >= 0'),
    ('schedule.stddevs()[completed:].max()', 'schedule.stddevs().max()'),
  ),
  (
    'tvdp_tf/privacy/noise_distance.py',
    _SHARES,
    ('(sensitivity / math.sqrt(shares))', '(sensitivity / shares)'),
  ),
  (
    'tvdp_tf/privacy/noise_distance.py',
    _SENSITIVITY,
    ('math.nextafter(delta - share, 0.0)', 'delta'),
  ),
  (
    'tvdp_tf/training/plain_process.py',
    ('tests/training/plain_process_test.py',),
    ('self._made_for != _guarantees(plan)', 'False'),
  ),
  (
    'tvdp_tf/training/results.py',
    ('tests/training/resume_test.py',),
    ('self._ledger.reread()', 'pass'),
    ('self._plan.retake(self._recorder.charged())', 'pass'),
  ),
  (
    'tvdp_tf/training/plain_process.py',
    ('tests/training/plain_process_test.py::ThreadTest',),
    ('onednn.require_sound()  # Of this thread', 'pass  # Of this thread'),
  ),
  (
    'tvdp_tf/training/export.py',
    ('tests/training/export_test.py::ExportTest',),
    ('    _names_from_the_start(),\n', ''),
    ('_renumber_drawn(temporary, least)', 'pass'),
    (
      "{**json.loads(members['metadata.json']), 'date_saved': _DATE_SAVED}",
      "json.loads(members['metadata.json'])",
    ),
    (
      'archive.writestr(zipfile.ZipInfo(name), content)',
      'archive.writestr(name, content)',
    ),
    (
      'backend.PER_GRAPH_OBJECT_NAME_UIDS, backend.OBSERVED_NAMES',
      '(backend.PER_GRAPH_OBJECT_NAME_UIDS,)',
    ),
    ('_renumber_shared(config, {})', 'pass'),
    ('while (number := ops.uid()) < _LEAST_DRAWN:\n    pass', 'number = 10**7'),
    ("(isinstance(value, bytes) and name == 's')", 'False'),
    (
      'library.function.sort(key=lambda f: f.signature.name)',
      'pass',
    ),
    ('(path / _FINGERPRINT).unlink(missing_ok=True)', 'pass'),
  ),
  (
    'tvdp_tf/training/recorder.py',
    (
      'tests/training/resume_test.py::UnseededTest'
      '::test_draws_no_more_noise_than_delta_covers0',
    ),
    ('self._check_draws(round_number)', 'pass'),
    ('self._num_charged = len(ledger.charged)', 'self._num_charged = 0'),
    ('self._num_charged += 1', 'pass'),
    ('if self._num_charged >= covered', 'if self._num_charged > covered'),
  ),
  (
    'tvdp_tf/learning/datasets.py',
    _OTHER_FOLDER,
    ('pathlib.Path(folder).resolve()', 'pathlib.Path(folder)'),
    ('{_root(data_dir).resolve()}', '{data_dir}'),
    ("f'{name} in {_root(data_dir).resolve()}' if data_dir else name", 'name'),
  ),
  (
    'tvdp_tf/training/federation.py',
    _OTHER_FOLDER,
    ('datasets.place(settings.dataset, settings.data_dir)', 'settings.dataset'),
  ),
  (
    'tvdp_tf/learning/datasets.py',
    ('tests/learning/datasets_test.py',),
    ("{'digits', *_GENERATED}", 'LOADERS'),
    ('return fixed and LOADERS[name] is _BUILT_IN[name]', 'return fixed'),
  ),
  (
    'tvdp_tf/training/run.py',
    _AHEAD,
    ('    self._saved.result()\n    return', '    return'),
    ('        self._saved.result()\n        await', '        await'),
    ('if self._rounds.stays_here and self._complete:', 'if self._complete:'),
    ('if self._rounds.stays_here and self._complete:', 'if True:'),
    ('self._complete = not recorded.dropped', 'self._complete = True'),
  ),
  (
    'tvdp_tf/training/rounds.py',
    _AHEAD,
    ('return isinstance(current, runtime.CompiledContext)', 'return True'),
    (' and begun.releases is releases', ''),
    (
      '    except Exception as error:\n      output.set_exception(error)\n',
      '    finally:\n      pass\n',
    ),
  ),
  (
    'tvdp_tf/training/start.py',
    (
      'tests/training/damaged_run_test.py',
      'tests/training/shared_ledger_test.py',
    ),
    ('elif plan.settings.number_decides:', 'elif False:'),
    ('if _EXAMPLES in resolved and not', 'if False and not'),
  ),
  (
    'tvdp_tf/training/start.py',
    ('tests/training/changed_noise_test.py',),
    ('if len({*planned}) < 2:', 'if True:'),
    ('  if found is not None:\n    return found.renyi_order\n', ''),
    (
      'return order if book.worst_epsilon() <= own.target_epsilon else None',
      'return order',
    ),
    (
      'header.target_epsilon <= plan.header.target_epsilon',
      'header.target_epsilon > 0',
    ),
  ),
  (
    'tvdp_tf/mechanisms/contract.py',
    _PLANS,
    (
      'all(len(past.clients) == cohort_size for past in self.history)',
      'True',
    ),
    ('if self._follows_plan or self.renyi_order is not None:', 'if True:'),
    (
      'return len(taken) == 1 and len({*self.planned_multipliers}) == 1',
      'return len(taken) == 1',
    ),
    (
      'return len(taken) == 1 and len({*self.planned_multipliers}) == 1',
      'return len({*self.planned_multipliers}) == 1',
    ),
    ('      and self._follows_plan\n', ''),
    (
      'len(taken) == len(planned) and np.allclose(taken, planned, 1e-9, 0)',
      'len(taken) == len(planned)',
    ),
    (
      'len(taken) == len(planned) and np.allclose(taken, planned, 1e-9, 0)',
      'np.allclose(taken[: len(planned)], planned, 1e-9, 0)',
    ),
  ),
  (
    'tvdp_tf/mechanisms/statements.py',
    _PLANS,
    ('if not plan.covers_changes:', 'if False:'),
  ),
  (
    'tvdp_tf/privacy/ledger_audit.py',
    ('tests/privacy/ledger_audit_test.py',),
    ('if self._is_order_chosen_at_the_end and self.noise_recurs:', 'if False:'),
    ('1 < len(np.unique(multipliers))', '2 < len(np.unique(multipliers))'),
  ),
  (
    'tvdp_tf/privacy/selection.py',
    ('tests/privacy/selection_test.py::NumberTest',),
    ('if not probability > sys.float_info.min:', 'if False:'),
  ),
  (
    'tvdp_tf/privacy/claims.py',
    ('tests/privacy/claims_test.py',),
    (
      "exchanged = 'its gradient set to zero'",
      "exchanged = 'added or removed (or its gradient set to zero)'",
    ),
  ),
  (
    'tvdp_tf/runtimes/compiled/graph_function.py',
    ('tests/runtimes/compiled/stock_algorithms_test.py',),
    ("r'|Random(?!Shuffle\\w)\\w*|", "r'|Random\\w*|"),
    ('if lasting := _lasting(definition):', 'if lasting := []:'),
    ("if node.op == 'VarHandleOp'\n  }", 'if False\n  }'),
    ('if node.op in _CACHES and _has_file(node, by_name)', 'if False'),
    ("    or name.op != 'Const'\n", ''),
    ('if _LIVES_ON.fullmatch(kind)', 'if False'),
  ),
  (
    'tvdp_tf/runtimes/compiled/values.py',
    ('tests/runtimes/compiled/values_test.py',),
    ('if not (fits and in_range):', 'if not fits:'),
    ('if not (fits and in_range):', 'if not in_range:'),
    ('yield _checked(leaf, leaf_type)', 'yield leaf'),
  ),
  (
    'tvdp_tf/mechanisms/statements.py',
    ('tests/mechanisms/own_mechanism_test.py',),
    ('holds, reason = verdict(plan, found.epsilon, reason)', 'pass'),
    ('found.epsilon < _SAME[plan.header.sampling] * spent', 'False'),
    ("_SAME = {'none': 1 - 1e-6", "_SAME = {'none': 0.99"),
    ('if found.delta < delta:', 'if False:'),
    ('max(plan.delta, plan.header.delta)', 'plan.delta'),
    ('max(plan.delta, plan.header.delta)', 'plan.header.delta'),
    ('if (found.unit, found.adjacency) != (unit, adjacency):', 'if False:'),
    ('max(on_record, plan.spending.worst_epsilon())', 'on_record'),
    ('if not (plan.is_sound and plan.header.enforced):', 'if False:'),
    ('[*assumptions(plan), *warnings(plan)]', '[*warnings(plan)]'),
    ('[*assumptions(plan), *warnings(plan)]', '[*assumptions(plan)]'),
  ),
  (
    'tvdp_tf/mechanisms/contract.py',
    ('tests/mechanisms/own_mechanism_test.py',),
    ("if self.unit == 'user' and not self._is_ours():", 'if False:'),
  ),
  (
    'tvdp_tf/privacy/ledger_audit.py',
    ('tests/mechanisms/own_mechanism_test.py',),
    ('    if authors:\n', '    if False:\n'),
  ),
  (
    'tvdp_tf/training/run_folder.py',
    ('tests/training/changed_noise_test.py',),
    ('(path if path.is_dir() else folder).chmod(0o700)', 'pass'),
  ),
  (
    'tvdp_tf/training/shared_ledger.py',
    (_SECRET_DRAWS,),
    ('if mode & 0o077:', 'if False:'),
  ),
  (
    'tvdp_tf/training/shared_ledger.py',
    ('tests/training/shared_ledger_test.py',),
    (
      'if not spending.is_gaussian_enough(own.delta, total, distance):',
      'if False:',
    ),
    ('if not (is_proven and ledger.header.enforced):', 'if not is_proven:'),
    (
      'if not (is_proven and ledger.header.enforced):',
      'if not ledger.header.enforced:',
    ),
  ),
  (
    'tvdp_tf/training/best_run.py',
    ('tests/training/shared_ledger_test.py',),
    ("output_dir / PRIVATE / _RUNS / f'run", "output_dir / PRIVATE / f'run"),
  ),
  (
    'tvdp_tf/mechanisms/__init__.py',
    ('tests/mechanisms/own_mechanism_test.py',),
    ('known in _ALL or ', ''),
    (' or _place(known) != _place(mechanism)', ''),
    ('and {*vars(graph)} <= {field', 'or {*vars(graph)} <= {field'),
    ('and (sensitivities > 0).all()', ''),
  ),
  (
    'tvdp_tf/privacy/ledger.py',
    ('tests/privacy/budget_test.py',),
    ('with self._of_one_thread:', 'with contextlib.nullcontext():'),
  ),
  (
    'tvdp_tf/_validate.py',
    ('tests/privacy/ledger_test.py', 'tests/privacy/accounting_test.py'),
    ('  if isinstance(values, TEXT):', '  if False:'),
    ("kind in 'iuf'", 'True'),
  ),
  (
    'tvdp_tf/mechanisms/statements.py',
    ('tests/training/damaged_run_test.py',),
    ("unit == 'user' and plan.settings.number_decides", 'unit is None'),
  ),
  (
    'tvdp_tf/privacy/spending.py',
    ('tests/privacy/spending_test.py',),
    ('least = self._squared_mu.max() / ROUNDED_UP**2', 'least = math.inf'),
    ('max(of_sums.values(), key=self.epsilon)', 'max(of_sums.values())'),
  ),
  (
    'tvdp_tf/privacy/optima.py',
    ('tests/privacy/optima_test.py',),
    ('32 + 2 * int(abs(log_sum) + abs(log_budget))', '0'),
  ),
  (
    'tvdp_tf/attacks/noise_reach.py',
    ('tests/attacks/noise_reach_test.py',),
    ('-np.expm1(np.sum(np.log1p(-beyond)))', 'np.sum(beyond)'),
  ),
  (
    'tvdp_tf/attacks/membership.py',
    ('tests/attacks/membership_bound_test.py',),
    ('rounded = 1e-13 * trials', 'rounded = 0.0'),
  ),
  (
    'tvdp_tf/output/layout.py',
    ('tests/binaries/plan_test.py',),
    ('return statement_lib.format_epsilon(level)', "return f'{level:.6g}'"),
  ),
  (
    'tvdp_tf/privacy/statement.py',
    ('tests/privacy/statement_test.py',),
    (
      '  if adjacency == sensitivity_lib.REPLACE_ONE:',
      '  if True:',
    ),
    ('math.ceil(1e6 * right) / 1e4', 'math.floor(1e6 * right) / 1e4'),
  ),
  (
    'tvdp_tf/privacy/claims.py',
    ('tests/privacy/claims_test.py',),
    ('name not in _TAKES[formula] and value != unused', 'False'),
  ),
  (
    'tvdp_tf/mechanisms/__init__.py',
    ('tests/mechanisms/own_mechanism_test.py',),
    ('if not isinstance(stated, privacy.PrivacyStatement):', 'if False:'),
  ),
  (
    'tvdp_tf/mechanisms/distributed.py',
    ('tests/training/resume_test.py::UnseededTest',),
    ('  replans = True\n', '  replans = False\n'),
  ),
  (
    'tvdp_tf/training/run.py',
    ('tests/training/train_test.py',),
    ('if not rounds.completed:\n            raise', 'raise'),
  ),
  (
    'tvdp_tf/planner/report.py',
    ('tests/planner/report_test.py',),
    (
      'shown = [asked, *shown, *(plan.asked for plan in plans)]',
      'shown = list(shown)',
    ),
  ),
  (
    'tvdp_tf/output/report.py',
    ('tests/output/report_test.py',),
    ("if statements[0].unit == 'user':", 'if False:'),
  ),
  (
    'tvdp_tf/training/metrics.py',
    ('tests/training/metrics_test.py',),
    ("is_secret = plan.header.sampling != 'none'", 'is_secret = False'),
    ("if plan.header.unit != 'user':", 'if True:'),
    (
      "if not is_secret:\n    values['seconds']",
      "if True:\n    values['seconds']",
    ),
  ),
]

MUTANTS = [
  Mutant(path, before, after, tests)
  for path, tests, *changes in [
    *mutants_of_learning.CASES,
    *mutants_of_ghost_clipping.CASES,
    *mutants_of_aggregators.CASES,
    *_CASES,
  ]
  for before, after in changes
]
