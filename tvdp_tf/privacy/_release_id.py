"""What tells one release from another, without telling its noise."""

import hashlib
import re
from collections.abc import Iterable

_NOISE_DOMAIN = b'tvdp_tf noise key v1\0'
_INPUT_DOMAIN = b'tvdp_tf release input v1\0'
_RELEASE_ID = re.compile('[0-9a-f]{64}:[0-9a-f]{64}')


def _digest(domain: bytes, *parts: bytes) -> str:
  state = hashlib.sha256(domain)
  for part in parts:
    state.update(len(part).to_bytes(8, 'big'))
    state.update(part)
  return state.hexdigest()


def release_id(
  noise_key: bytes, model_digest: bytes, settings_digest: bytes
) -> str:
  """What tells a release from another: its noise and what it is computed from.

  Equal ones must mean equal bits. Where computing a release again may round
  differently, a retry needs a fresh key: the same noise on two results that
  differ in the last place gives their difference away.

  >>> len(release_id(bytes(16), b'model', b'settings'))
  129

  Args:
    noise_key: The secret key that the noise is a function of, >= 16 bytes. Its
      SHA-256 is published: a key that can be guessed, such as one from a small
      seed, can be found from it. Where the key is drawn out of sight, give
      fresh random bytes: the release then never counts as a repeat.
    model_digest: Digest of the model that the release starts from.
    settings_digest: Digest of all else that it depends on: settings, code
      version, and the client's data if they can change.

  Returns:
    SHA-256 of the key, a colon, SHA-256 of the rest; in hexadecimal.

  Raises:
    ValueError: If the key is shorter than 16 bytes or not bytes.
  """
  # Not the key itself: messages end up in logs.
  if not isinstance(noise_key, bytes):
    raise ValueError(
      'noise_key must be at least 16 bytes, got a value of type'
      f' {type(noise_key).__name__}'
    )
  if len(noise_key) < 16:
    raise ValueError(
      f'noise_key must be at least 16 bytes, got {len(noise_key)}'
    )
  noise = _digest(_NOISE_DOMAIN, noise_key)
  return f'{noise}:{_digest(_INPUT_DOMAIN, model_digest, settings_digest)}'


def split_ids(
  release_ids: Iterable[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The digests of the noise keys [k], and of the inputs [k], or [1] if equal.

  Raises:
    ValueError: If one is not of the form of `release_id`.
  """
  noise, inputs = [], []
  for identity in release_ids:
    if not isinstance(identity, str) or _RELEASE_ID.fullmatch(identity) is None:
      # Not the value: it may be a key, given by mistake.
      raise ValueError(
        'release_ids must be made by release_id, got another'
        f' {type(identity).__name__}'
      )
    noise.append(identity[:64])
    inputs.append(identity[65:])
  if len(set(inputs)) == 1:
    inputs = inputs[:1]
  return tuple(noise), tuple(inputs)
