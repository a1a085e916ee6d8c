"""Schedules: the order in which workers record rollouts, and in which these become batches."""
