r"""The contraction A of Theorem 3: by how much a round shrinks the gap to F*.

  A = 1 + 2 rho phi,  phi = (eta^2 L / 2) c - eta

c is the second moment of the mean of K of U gradients, drawn without
replacement, over the squared norm of the full gradient:

  corrected  c = [(U-K) B^2 + U (K-1)] / (K (U-1))
  printed    c = [(U-K) B^2 + (K-1)/U] / (K (U-1))

The printed one loses a factor U^2 (sum_k g_k = U grad F, eq_delta_fk), so that
noise-free gradient descent with all users violates the bound as printed.
"""

from tvdp_tf import _validate

FORMS = ('printed', 'corrected')


def descent_coefficient(
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  dissimilarity_squared: float,
  form: str = 'corrected',
) -> float:
  """phi: F falls by -phi ||grad F||^2 a round, up to the noise.

  phi = (eta^2 L / 2) c - eta, with
  c = [(U-K) B^2 + U (K-1)] / (K (U-1)), the second moment of the mean of K
  gradients drawn without replacement, over ||grad F||^2.

  Args:
    eta: Learning rate, > 0.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    dissimilarity_squared: B^2 >= 1 of the paper's local dissimilarity.
    form: 'corrected', or 'printed' with U (K-1) replaced by (K-1)/U.

  Returns:
    phi, negative if the step makes progress.

  Raises:
    ValueError: If an argument is out of range.
  """
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  users = _validate.integer('users', users, 2)
  users_per_round = _validate.integer(
    'users_per_round', users_per_round, 1, users
  )
  dissimilarity_squared = _validate.positive(
    'dissimilarity_squared', dissimilarity_squared
  )
  _validate.one_of('form', form, FORMS)
  if dissimilarity_squared < 1:
    raise ValueError(
      'dissimilarity_squared must be a finite number >= 1, got'
      f' {dissimilarity_squared!r}'
    )
  together = (users_per_round - 1) * (
    users if form == 'corrected' else 1 / users
  )
  apart = (users - users_per_round) * dissimilarity_squared
  second_moment = (apart + together) / (users_per_round * (users - 1))
  return eta * eta * smoothness / 2 * second_moment - eta


def contraction(
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  dissimilarity_squared: float,
  pl_constant: float,
  form: str = 'corrected',
) -> float:
  """A = 1 + 2 rho phi, the factor by which a round shrinks the gap.

  >>> contraction(0.3, 1.0, 100, 100, 1.0, 1.0)
  0.49

  Args:
    eta: Learning rate, > 0.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    dissimilarity_squared: B^2 >= 1.
    pl_constant: rho > 0 of the Polyak-Lojasiewicz condition.
    form: 'corrected', or 'printed' as in the paper.

  Returns:
    A. The printed form is returned as it comes, even if negative.

  Raises:
    ValueError: If an argument is out of range, or the corrected A is not in
      (0, 1): the bound then says nothing.
  """
  pl_constant = _validate.positive('pl_constant', pl_constant)
  phi = descent_coefficient(
    eta, smoothness, users, users_per_round, dissimilarity_squared, form
  )
  factor = 1 + 2 * pl_constant * phi
  if form == 'corrected' and not 0 < factor < 1:
    raise ValueError(
      'contraction must be a number strictly between 0 and 1, got'
      f' {factor!r} for eta={eta!r}, smoothness={smoothness!r},'
      f' pl_constant={pl_constant!r}: reduce eta'
    )
  return factor
