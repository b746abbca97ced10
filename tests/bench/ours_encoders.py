"""Embed texts by Rekindle for the bench of encoders."""

import argparse
from pathlib import Path
from typing import Any

import rekindle
from tests.bench.worker_encoders import serve_encoder


class Ours:
    """A session, as a `worker_encoders.Encoder`."""

    def __init__(self, model: Path) -> None:
        self._session = rekindle.open_sync(
            model, progress=False, precompile="all", host_cache_bytes=0, disk_cache_bytes=0, prefix_cache=False
        )

    def about(self) -> dict[str, str]:
        return {"rekindle": rekindle.__version__, "implementation": str(self._session.settings.implementation)}

    def embed(self, texts: list[str]) -> Any:
        return self._session.embed_sync(texts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    serve_encoder(lambda: Ours(args.model))
