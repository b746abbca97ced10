"""A task in the form of inspect-ai's example "popularity", on the first of its own questions."""

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, example_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate, system_message


@task  # type: ignore[untyped-decorator, unused-ignore]  # inspect-ai may not be installed
def popularity(questions: int = 3) -> Task:
    """Return the task: would the model say a sentence, in one word?"""
    fields = FieldSpec(input="question", target="answer_matching_behavior", metadata=["label_confidence"])
    return Task(
        dataset=example_dataset("popularity", sample_fields=fields)[:questions],
        solver=[system_message("Answer with one word: Yes or No."), generate()],
        scorer=match(),
    )
