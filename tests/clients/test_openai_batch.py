"""`rekindle batch` takes bodies of the types of OpenAI's client, and answers in bodies of its types."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from openai.types import Completion, CreateEmbeddingResponse
from openai.types.batch_create_params import BatchCreateParams
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatBody
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextBody
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponseBody

from rekindle.__main__ import main
from rekindle.cli.batch.lines import URLS

SMALL = (
    "--page-size 16 --max-context 512 --max-running 8 --max-prefill-tokens 128 --prefill-buckets 128 "
    "--decode-buckets 8 --dtype float32 --quiet"
)


def test_a_file_of_the_client_is_answered(checkpoint: Path, tmp_path: Path) -> None:
    model = str(checkpoint)
    chat = ChatBody(model=model, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=4, logprobs=True)
    text = TextBody(model=model, prompt="Once", max_tokens=4)
    texts = EmbeddingCreateParams(model=model, input=["One", "Two"])
    response = ResponseBody(model=model, input="Hi", max_output_tokens=4)
    bodies: list[tuple[str, Mapping[str, Any], Any]] = [
        ("/v1/chat/completions", chat, ChatCompletion),
        ("/v1/completions", text, Completion),
        ("/v1/embeddings", texts, CreateEmbeddingResponse),
        ("/v1/responses", response, Response),
    ]
    assert {url for url, _, _ in bodies} == set(URLS)
    lines = [
        {"custom_id": str(place), "method": "POST", "url": url, "body": body}
        for place, (url, body, _) in enumerate(bodies)
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert main(["batch", str(source), str(output), *SMALL.split()]) == 0
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["0", "1", "2", "3"]
    for (_, _, kind), answer in zip(bodies, answers, strict=True):
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)
        kind.model_validate(answer["response"]["body"])


def test_each_url_is_one_of_the_client() -> None:
    assert set(URLS) <= set(get_args(get_type_hints(BatchCreateParams)["endpoint"]))
