"""What `deploy/` holds: valid for Kubernetes, and consistent in itself."""

import copy
import importlib
import importlib.util
import pathlib
import re
import unittest

from absl.testing import absltest

from tests.binaries import program_runner

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MANIFESTS = _ROOT / 'deploy' / 'kubernetes'
_VERSION = '1.30'
_VALIDATOR = importlib.util.find_spec('kubernetes_validate')


@unittest.skipIf(_VALIDATOR is None, 'kubernetes-validate is not installed')
class ManifestsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # It brings PyYAML, and the schemas, so that no network is needed.
    cls.validator = importlib.import_module('kubernetes_validate')
    yaml = importlib.import_module('yaml')
    cls.objects = {
      (manifest['kind'], manifest['metadata']['name']): manifest
      for path in sorted(_MANIFESTS.glob('*.yaml'))
      for manifest in yaml.safe_load_all(path.read_text())
    }

  def _spec(self, kind, name):
    return self.objects[kind, name]['spec']

  def _pods(self):
    return {
      'worker': self._spec('StatefulSet', 'tvdp-tf-worker')['template'],
      'trainer': self._spec('Job', 'tvdp-tf-trainer')['template'],
    }

  def _validate(self, manifest):
    self.validator.validate(manifest, _VERSION, strict=True)

  def test_schema(self):
    self.assertLen(self.objects, 7)
    for manifest in self.objects.values():
      self._validate(manifest)
    broken = copy.deepcopy(self.objects['StatefulSet', 'tvdp-tf-worker'])
    broken['spec']['replicas'] = 'three'
    misspelled = copy.deepcopy(self.objects['Service', 'tvdp-tf-workers'])
    misspelled['spec']['clusterIp'] = misspelled['spec'].pop('clusterIP')
    for manifest in (broken, misspelled):
      with self.assertRaises(self.validator.ValidationError):
        self._validate(manifest)

  def test_one_namespace(self):
    (namespace,) = (name for kind, name in self.objects if kind == 'Namespace')
    for (kind, _), manifest in self.objects.items():
      if kind != 'Namespace':
        self.assertEqual(manifest['metadata']['namespace'], namespace)

  def test_pods_have_no_rights(self):
    for name, pod in self._pods().items():
      with self.subTest(name):
        spec = pod['spec']
        self.assertIs(spec['automountServiceAccountToken'], False)
        self.assertIs(spec['securityContext']['runAsNonRoot'], True)
        self.assertEqual(
          spec['securityContext']['seccompProfile']['type'], 'RuntimeDefault'
        )
        for container in spec['containers']:
          self.assertEqual(
            container['securityContext'],
            {
              'allowPrivilegeEscalation': False,
              'readOnlyRootFilesystem': True,
              'capabilities': {'drop': ['ALL']},
            },
          )
          self.assertIn('memory', container['resources']['limits'])
        for forbidden in ('hostNetwork', 'hostPID', 'hostIPC'):
          self.assertNotIn(forbidden, spec)
        for volume in spec['volumes']:
          self.assertNotIn('hostPath', volume)

  def test_labels_select_the_pods(self):
    labels = {
      name: pod['metadata']['labels'] for name, pod in self._pods().items()
    }
    self.assertNotEqual(labels['worker'], labels['trainer'])
    stateful = self._spec('StatefulSet', 'tvdp-tf-worker')
    self.assertEqual(stateful['selector']['matchLabels'], labels['worker'])
    service = self._spec('Service', stateful['serviceName'])
    self.assertEqual(service['selector'], labels['worker'])
    for name, selected in labels.items():
      policy = self._spec('NetworkPolicy', f'tvdp-tf-{name}')
      self.assertEqual(policy['podSelector']['matchLabels'], selected)
      self.assertCountEqual(policy['policyTypes'], ['Ingress', 'Egress'])

  def test_only_the_trainer_reaches_a_worker_and_only_through_tls(self):
    labels = self._pods()['trainer']['metadata']['labels']
    policy = self._spec('NetworkPolicy', 'tvdp-tf-worker')
    self.assertEqual(
      policy['ingress'],
      [
        {
          'from': [{'podSelector': {'matchLabels': labels}}],
          'ports': [{'port': 8443}],
        }
      ],
    )
    self.assertEqual(policy['egress'], [])
    worker, tls = self._pods()['worker']['spec']['containers']
    settings = {variable['name']: variable['value'] for variable in tls['env']}
    self.assertEqual(settings['TVDP_TF_LISTEN'], ':8443')
    self.assertIn('--port=8000', worker['args'])
    self.assertEqual(settings['TVDP_TF_WORKER'], '127.0.0.1:8000')
    config = (_ROOT / 'deploy/tls/haproxy.cfg').read_text()
    self.assertCountEqual(settings, set(re.findall(r'\$\{(\w+)', config)))

  def _trainer_flags(self, container):
    """The flags of the training program, which must know them."""
    self.assertEqual(container['command'], ['python', 'binaries/train.py'])
    help_text = program_runner.run('train.py', '--helpfull').stdout
    flags = dict(
      argument.removeprefix('--').partition('=')[::2]
      for argument in container['args']
    )
    for name in flags:
      self.assertRegex(help_text, f' --({name}|.no.{name.removeprefix("no")}):')
    return flags

  def test_the_trainer_knows_every_worker(self):
    stateful = self._spec('StatefulSet', 'tvdp-tf-worker')
    (container,) = self._pods()['trainer']['spec']['containers']
    flags = self._trainer_flags(container)
    self.assertEqual(flags['runtime'], 'remote')
    self.assertEqual(
      flags['workers'].split(','),
      [
        f'tvdp-tf-worker-{i}.{stateful["serviceName"]}.tvdp-tf.svc:8443'
        for i in range(stateful['replicas'])
      ],
    )

  def test_what_is_mounted_is_there(self):
    document = (_ROOT / 'docs/DISTRIBUTED.md').read_text()
    for name, pod in self._pods().items():
      volumes = {volume['name']: volume for volume in pod['spec']['volumes']}
      mounted = set()
      for container in pod['spec']['containers']:
        mounts = {m['name']: m for m in container.get('volumeMounts', ())}
        mounted |= set(mounts)
        for variable in container.get('env', ()):
          if variable['name'] == 'TVDP_TF_TLS':
            self.assertEqual(variable['value'], mounts['tls']['mountPath'])
        if name == 'trainer':
          flags = self._trainer_flags(container)
          self.assertEqual(flags['worker_tls'], mounts['tls']['mountPath'])
          folder = pathlib.PurePath(flags['output_dir']).parent
          self.assertEqual(str(folder), mounts['runs']['mountPath'])
      self.assertCountEqual(volumes, mounted)
      # What no manifest holds, the document makes.
      secret = volumes['tls']['secret']['secretName']
      self.assertIn(f'secret generic {secret} ', document)
      self.assertIn(f'certificates/{name}', document)
      if 'config' in volumes:
        config = volumes['config']['configMap']['name']
        self.assertIn(f'configmap {config} ', document)
      if 'runs' in volumes:
        claim = volumes['runs']['persistentVolumeClaim']['claimName']
        self.assertIn(('PersistentVolumeClaim', claim), self.objects)

  def test_image_of_the_worker(self):
    dockerfile = (_ROOT / 'deploy/worker.Dockerfile').read_text()
    worker, _ = self._pods()['worker']['spec']['containers']
    self.assertIn(f'--tag {worker["image"]} ', dockerfile)


class DockerfileTest(absltest.TestCase):
  def test_the_worker_is_the_locked_one(self):
    dockerfile = (_ROOT / 'deploy/worker.Dockerfile').read_text()
    lock = (_ROOT / 'requirements.lock').read_text()
    (wanted,) = re.findall(r'tensorflow-federated==[\d.]+', dockerfile)
    (digest,) = re.findall(r'--hash=sha256:[0-9a-f]{64}', dockerfile)
    _, _, rest = lock.partition(f'\n{wanted} \\\n')
    self.assertIn(digest, rest.partition('\n    # via')[0])
    self.assertIn(f'tvdp-tf-worker:{wanted.partition("==")[2]}', dockerfile)


if __name__ == '__main__':
  absltest.main()
