"""The experiments as data: the paper's, and the second look at its claims."""

from reproduction.catalogue import paper, second_look
from reproduction.catalogue.experiment import ROUND, ROUNDS, Experiment

EXPERIMENTS = {
  experiment.name: experiment
  for experiment in (*paper.EXPERIMENTS, *second_look.EXPERIMENTS)
}

__all__ = ['EXPERIMENTS', 'ROUND', 'ROUNDS', 'Experiment']
