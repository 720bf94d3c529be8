"""The experiments as data: the paper's, and a second look at its claims."""

from reproduction.catalogue import central, frontier, paper, second_look
from reproduction.catalogue.experiment import POINT, ROUND, ROUNDS, Experiment

EXPERIMENTS = {
  experiment.name: experiment
  for experiment in (
    *paper.EXPERIMENTS,
    *second_look.EXPERIMENTS,
    *frontier.EXPERIMENTS,
    *central.EXPERIMENTS,
  )
}

__all__ = ['EXPERIMENTS', 'POINT', 'ROUND', 'ROUNDS', 'Experiment']
