"""Write tests/goldens/responses.json: the answers of tests/unit/response_cases.py, as transformers parses each.

Run it in an environment of its own, with transformers and without torch. The first argument is the file of
`python -m tests.bench.peer_responses --cases FILE` in ours.
"""

import json
import sys
from pathlib import Path


def write_cases(path: Path) -> None:
    """Write the cases with their response templates as JSON."""
    from rekindle.formats.responses.families import template_for
    from tests.unit.response_cases import CASES

    cases = [
        {"name": name, "template": case.own or template_for(case.marks, None), "prompt": case.prompt, "text": case.text}
        for name, case in CASES.items()
    ]
    path.write_text(json.dumps(cases), encoding="utf-8")


def write_goldens(cases: Path, goldens: Path) -> None:
    """Write the messages that transformers parses from the cases."""
    import transformers
    from transformers.utils.chat_parsing import parse_response

    messages = {
        case["name"]: parse_response(case["text"], case["template"], prefix=case["prompt"])
        for case in json.loads(cases.read_text(encoding="utf-8"))
    }
    payload = {"transformers": transformers.__version__, "messages": messages}
    goldens.write_text(json.dumps(payload, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--cases":
        write_cases(Path(sys.argv[2]))
    else:
        write_goldens(Path(sys.argv[1]), Path(__file__).parents[1] / "goldens" / "responses.json")
