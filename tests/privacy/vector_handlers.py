"""Every value of `vectors.json`, computed by the package from its inputs.

A handler a group: inputs to a nest of values, with the names of the file.
"""

import math

from tvdp_tf import privacy


def _keywords(inputs, **symbols):
  """The inputs that there are, under the names that the package gives them."""
  return {
    name: inputs[symbol] for name, symbol in symbols.items() if symbol in inputs
  }


def _claim(inputs):
  """The last four arguments of the theorems."""
  return [inputs[name] for name in ('epsilon', 'delta', 'q', 'sensitivity')]


def theorem1_sigma(inputs):
  theta, rounds = inputs['theta'], inputs['M']
  claim = _claim(inputs)
  sensitivity = inputs['sensitivity']
  sigma = privacy.theorem1_stddev(theta, rounds, *claim)
  tight = privacy.tight_moment_stddev(theta, rounds, *claim)
  schedule = privacy.GeometricSchedule(theta, rounds, sigma)
  # R is the sum of 1/variance for a unit variance in round 1.
  unit = privacy.GeometricSchedule(theta, rounds, 1.0)
  moment = inputs['q'] * sensitivity**2 * schedule.precision()
  return {
    'R': unit.precision(),
    'sigma_printed': sigma,
    'sigma_tight': tight,
    'sigma_last_round_printed': schedule.stddev(rounds),
    'z_eff_printed': schedule.precision() ** -0.5 / sensitivity,
    'tight_over_printed': tight / sigma,
    'epsilon_delivered_by_printed_under_own_bound': (
      privacy.moment_bound_epsilon(moment, inputs['delta'])
    ),
    'delta_delivered_by_printed_under_own_bound': (
      privacy.moment_bound_delta(moment, inputs['epsilon'])
    ),
  }


def _precision(theta, first, last):
  """Sum of theta^(1-n) for n = first..last, term by term."""
  return math.fsum(theta ** (1.0 - n) for n in range(first, last + 1))


def theorem2_sigma_prime(inputs):
  theta, rounds = inputs['theta'], inputs['M']
  done, new_rounds = inputs['m'], inputs['M_prime']
  claim = _claim(inputs)
  sigma = privacy.theorem1_stddev(theta, rounds, *claim)
  schedule = privacy.GeometricSchedule(theta, rounds, sigma)
  budget = schedule.precision()
  printed = privacy.theorem2_stddev(theta, done, new_rounds, *claim)
  exact = privacy.refine_stddev(
    theta, schedule.stddevs()[:done], new_rounds, budget
  )
  # A sigma of one: what is left of the printed formula is its bracket.
  unit = privacy.theorem1_stddev(1.0, 1, *claim)
  past = _precision(theta, 1, done) / sigma**2
  future = _precision(theta, done + 1, new_rounds)
  spent = past + future / printed**2
  moment = inputs['q'] * inputs['sensitivity'] ** 2 * spent
  return {
    'sigma_initial_printed': sigma,
    'bracket_printed': (printed / unit) ** 2,
    'sigma_prime_printed': printed,
    'sigma_prime_exact': exact,
    'exact_over_printed_std': exact / printed,
    'spend_fraction_before_refinement': past / budget,
    'true_future_sum': future,
    'total_spend_fraction_printed': spent / budget,
    'printed_overspends': spent / budget > 1 + 1e-12,
    'sigma_exact_over_initial': exact / sigma,
    'sigma_printed_over_initial': printed / sigma,
    'epsilon_own_bound_after_printed': privacy.moment_bound_epsilon(
      moment, inputs['delta']
    ),
  }


def _refine_repeatedly(inputs, rule):
  """The sigma' of every refinement, and what all rounds spend."""
  theta = inputs['theta']
  current = inputs['sigma_initial']
  series: list[float] = []
  past: list[float] = []
  steps = [*inputs['refinements'], {'m': None, 'M_prime': None}]
  last_round = inputs['M']
  for step in steps:
    until = last_round if step['m'] is None else step['m']
    schedule = privacy.GeometricSchedule(theta, last_round, current)
    past += [schedule.stddev(n) for n in range(len(past) + 1, until + 1)]
    if step['m'] is not None:
      last_round = step['M_prime']
      current = rule(past, last_round)
      series.append(current)
  return series, math.fsum(stddev**-2 for stddev in past)


def repeated_refinement(inputs):
  theta = inputs['theta']
  initial = inputs['sigma_initial']
  budget = privacy.GeometricSchedule(theta, inputs['M'], initial).precision()
  # The claim for which Theorem 1 prints `initial`: the budget is 1/unit^2.
  claim = {'delta': 1e-3, 'sampling_rate': 1.0, 'sensitivity': 1.0}
  epsilon = privacy.theorem1_stddev(1.0, 1, 1.0, **claim) * budget**0.5

  def exact_rule(past, last_round):
    return privacy.refine_stddev(theta, past, last_round, budget)

  def printed_rule(past, last_round):
    return privacy.theorem2_stddev(
      theta, len(past), last_round, epsilon, **claim
    )

  exact, exact_spent = _refine_repeatedly(inputs, exact_rule)
  printed, printed_spent = _refine_repeatedly(inputs, printed_rule)
  return {
    'budget': budget,
    'sigma_prime_exact_sequence': exact,
    'sigma_prime_printed_sequence': printed,
    'total_spend_fraction_exact': exact_spent / budget,
    'total_spend_fraction_printed': printed_spent / budget,
  }


def lemma1_gap(inputs):
  gap = privacy.divergence_gap(
    inputs['x'], inputs['gamma'], inputs['eta'], inputs['L']
  )
  return {'H': gap}


def gap_derivative(inputs):
  return {
    f'dH_dM_{form}': privacy.divergence_gap_derivative(
      inputs['T'],
      inputs['M'],
      inputs['gamma'],
      inputs['eta'],
      inputs['L'],
      form,
    )
    for form in ('printed', 'corrected')
  }


def phi_and_contraction(inputs):
  arguments = _keywords(
    inputs,
    eta='eta',
    smoothness='L',
    users='U',
    users_per_round='K',
    dissimilarity_squared='B_squared',
  )
  values = {}
  for form in ('printed', 'corrected'):
    phi = privacy.descent_coefficient(**arguments, form=form)
    values[f'phi_{form}'] = phi
    try:
      factor = privacy.contraction(
        **arguments, pl_constant=inputs['rho'], form=form
      )
    except ValueError:
      # A bound with a contraction outside (0, 1) says nothing; it is refused.
      factor = 1 + 2 * inputs['rho'] * phi
      assert not 0 < factor < 1, factor
    values[f'A_{form}'] = factor
  return values


def _setting(inputs):
  return privacy.ConvergenceSetting(
    **_keywords(
      inputs,
      contraction='A',
      initial_gap='Theta',
      theta='theta',
      smoothness='L',
      sensitivity='sensitivity',
      epsilon='epsilon',
      delta='delta',
      sampling_rate='q',
      users='U',
      dimension='d',
      sum_squared_weights='sum_p_squared',
      lipschitz='L_c',
      gradient_divergence='gamma',
      learning_rate='eta',
    )
  )


def theorem3_corollary1_bounds(inputs):
  setting, rounds, tau = _setting(inputs), inputs['M'], inputs['tau']
  printed = privacy.convergence_terms(setting, rounds, 'printed', 'single', tau)
  corrected = privacy.convergence_terms(
    setting, rounds, 'corrected', 'single', tau
  )

  def bound(form, drift):
    return privacy.convergence_bound(setting, rounds, form, drift, tau)

  return {
    'decay_term': corrected.decay,
    'noise_term_printed': printed.noise,
    'noise_term_corrected': corrected.noise,
    'drift_term': corrected.drift,
    'theorem3_printed': bound('printed', 'none'),
    'theorem3_corrected': bound('corrected', 'none'),
    'corollary1_printed': bound('printed', 'single'),
    'corollary1_corrected_noise_only': bound('corrected', 'single'),
    'corollary1_corrected_accumulated_drift': bound('corrected', 'accumulated'),
  }


def bound_derivatives(inputs):
  setting, rounds = _setting(inputs), inputs['M']
  return {
    'dG_corrected_fixed_tau': privacy.bound_derivative(setting, rounds),
    'dG_corrected_fixed_T': privacy.bound_derivative(
      setting, rounds, total_steps=inputs['T']
    ),
    'dG_printed_without_H': privacy.bound_derivative(
      setting, rounds, 'printed'
    ),
    'dG_printed_as_in_paper_with_H': privacy.bound_derivative(
      setting, rounds, 'printed', inputs['T']
    ),
  }


def bound_sound_for_tau_rounds(inputs):
  keywords = _keywords(
    inputs,
    initial_gap='Theta',
    rounds='M',
    theta='theta',
    initial_stddev='sigma_first_round',
    pl_constant='rho',
    eta='eta',
    smoothness='L',
    users='U',
    users_per_round='K',
    local_steps='tau',
    gradient_divergences='gammas',
    lipschitz='L_c',
    dimension='d',
  )
  return {'bound': privacy.sound_bound(**keywords)}


def best_rounds(inputs):
  form = 'printed' if 'U' in inputs else 'corrected'
  best = privacy.optimal_rounds(_setting(inputs), form, inputs.get('T'))
  return {
    'M_star': best.real,
    'M_star_brute_force': best.real,
    'root': best.real,
    'M_star_integer': best.rounds,
    'objective_at_M_star': best.bound,
  }


def _epsilons(multipliers, accountant, sampling, q):
  return {
    str(delta): privacy.delivered_epsilon(
      multipliers, delta, accountant, sampling, q
    )
    for delta in (1e-3, 1e-5)
  }


def accountants(inputs):
  schedule = privacy.GeometricSchedule(
    inputs['theta'], inputs['M'], inputs['z1']
  )
  multipliers, q = schedule.noise_multipliers(1.0), inputs['q']

  def by_rdp(sampling):
    epsilons = _epsilons(multipliers, 'rdp', sampling, q)
    return {delta: {'epsilon': epsilon} for delta, epsilon in epsilons.items()}

  values = {
    'sum_inverse_z_squared': schedule.precision(),
    'z_eff': schedule.precision() ** -0.5,
    'plain_exact_epsilon': _epsilons(multipliers, 'exact', 'none', q),
    'plain_rdp': by_rdp('none'),
    'plain_pld': _epsilons(multipliers, 'pld', 'none', q),
    'poisson_rdp': by_rdp('poisson'),
    'public_selection_rdp': by_rdp('visible'),
    'poisson_pld': _epsilons(multipliers, 'pld', 'poisson', q),
  }
  if inputs['theta'] == 1:
    values['public_selection_exact'] = _epsilons(
      multipliers, 'exact', 'visible', q
    )
  return values


def z_eff_calibration(inputs):
  epsilon, delta = inputs['epsilon'], inputs['delta']
  exact = privacy.gaussian_noise_multiplier(epsilon, delta)
  single = (1.0, 1, epsilon, delta, 1.0, 1.0)
  return {
    'z_eff_exact_gaussian': exact,
    'budget_sum_inverse_z_squared': exact**-2,
    'z_eff_printed_q1': privacy.theorem1_stddev(*single),
    'z_eff_tight_moment_q1': privacy.tight_moment_stddev(*single),
  }


HANDLERS = {
  'theorem1_sigma': theorem1_sigma,
  'theorem2_sigma_prime': theorem2_sigma_prime,
  'repeated_refinement': repeated_refinement,
  'lemma1_H': lemma1_gap,
  'dH_dM': gap_derivative,
  'phi_and_A': phi_and_contraction,
  'theorem3_corollary1_bounds': theorem3_corollary1_bounds,
  'dG_dM': bound_derivatives,
  'bound_sound_for_tau_rounds': bound_sound_for_tau_rounds,
  'M_star': best_rounds,
  'accountants': accountants,
  'z_eff_calibration': z_eff_calibration,
}
