"""Run state machines: with the same stories in every run, and with many fresh ones in deep tests."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def run(machine: type[RuleBasedStateMachine], stories: int, steps: int) -> None:
    """Run `stories` stories, each of at most `steps` steps."""
    run_state_machine_as_test(machine, settings=settings(CALM, max_examples=stories, stateful_step_count=steps))


def run_deep(machine: type[RuleBasedStateMachine], stories: int, steps: int) -> None:
    """Run so many stories that differ from run to run."""
    deep = settings(CALM, max_examples=stories, stateful_step_count=steps, derandomize=False)
    run_state_machine_as_test(machine, settings=deep)
